"""What a family of checkpoints is, and what many of them have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from grpo_jax.models.hf.config_json import Keys


@dataclasses.dataclass(frozen=True)
class Fused:
  """Tensors that files hold as one.

  Attributes:
    whole: End of the name of that one.
    parts: Ends of the names in its place.
    interleaved: Whether they take turns along its last axis; else they follow
      each other along its first.
  """

  whole: str
  parts: tuple[str, ...]
  interleaved: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """How checkpoints of one `model_type` are written.

  Attributes:
    name: The `model_type`.
    architecture: Class that `transformers` makes of it; of the same family
      there are also classifiers, whose head is another.
    fixed: Fields of a `TransformerConfig` that all members share.
    fields: Key of config.json -> field.
    derived: Functions (keys) -> fields; they take out the keys that no table
      names.
    defaults: Values of keys that a file may leave out, as in `transformers`.
    supported: Keys without a field -> the values that change nothing.
    ignored: Keys that do not matter for what the model computes.
    nested: What the model_type in "text_config" may be, which has the keys of
      the language model; None among them: there may be no such part.
    tensors: Path of a leaf -> its tensors' names. Queries, keys and values are
      three for one leaf; {layer} and {expert} count.
    fused: What several of these tensors are one tensor of.
    experts_in_one: Whether tensors of experts are [E, in, out], of all experts
      of a layer.
    other_parts: Beginnings of names of tensors that are not the language
      model's; they are neither read nor lost in an export.
  """

  name: str
  architecture: str
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  fields: Mapping[str, str]
  derived: tuple[Callable[[Keys], dict[str, Any]], ...]
  defaults: Mapping[str, Any]
  supported: Mapping[str, tuple]
  ignored: frozenset[str]
  nested: tuple[str | None, ...] = ()
  tensors: Mapping[str, tuple[str, ...]]
  fused: tuple[Fused, ...] = ()
  experts_in_one: bool = False
  other_parts: tuple[str, ...] = ()


# --- Keys of a config.json ---

FIELDS = {
  "hidden_size": "width",
  "head_dim": "head_dim",
  "intermediate_size": "mlp_width",
  "num_attention_heads": "num_heads",
  "num_hidden_layers": "num_layers",
  "num_key_value_heads": "num_kv_heads",
  "rms_norm_eps": "norm_eps",
  "tie_word_embeddings": "tied_embeddings",
  "vocab_size": "vocab_size",
}
SOFTCAPS = {
  "attn_logit_softcapping": "attention_softcap",
  "final_logit_softcapping": "final_softcap",
}
DEFAULTS = {
  "head_dim": None,
  "hidden_act": "silu",
  "rms_norm_eps": 1e-6,
  "rope_theta": 10_000.0,
  "tie_word_embeddings": False,
}
NO_WINDOW = {
  "max_window_layers": 28,
  "sliding_window": 4096,
  "use_sliding_window": False,
}
# Of any model.
SUPPORTED: dict[str, tuple] = {
  "add_cross_attention": (False, None),
  "auto_map": (None, {}),  # Code of its own.
  "is_encoder_decoder": (False, None),
  "partial_rotary_factor": (1.0, None),
  "pruned_heads": (None, {}),
  "quantization_config": (None, {}),
}
# Of models whose positions may turn a part of a head.
PARTIAL = {
  key: values
  for key, values in SUPPORTED.items()
  if key != "partial_rotary_factor"
}
# Experts of DeepSeek-V3, which GLM-4.5 has too.
ROUTED = {
  "moe_intermediate_size": "expert_width",
  "n_group": "router_groups",
  "n_routed_experts": "num_experts",
  "norm_topk_prob": "norm_topk",
  "num_experts_per_tok": "experts_per_token",
  "routed_scaling_factor": "router_scale",
  "topk_group": "groups_per_token",
}
SIGMOID: dict[str, tuple] = {
  "moe_layer_freq": (1,),
  "scoring_func": ("sigmoid",),
  "topk_method": ("noaux_tc",),
}
# Losses of routers, and layers that predict later tokens, which nothing runs.
OF_ROUTERS = frozenset(
  (
    *("aux_loss_alpha", "num_nextn_predict_layers", "output_router_logits"),
    *("router_aux_loss_coef", "seq_aux"),
  )
)
QKV = Fused(
  "self_attn.qkv_proj.weight",
  tuple(f"self_attn.{name}_proj.weight" for name in "qkv"),
)
GATE_UP = Fused(
  "mlp.gate_up_proj.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight")
)
# One for all four projections; the output's has no place in our layers.
NO_BIAS = {"attention_bias": (False, None)}
SILU = {"hidden_act": ("silu",)}
# Dropout and losses of routers are of the training that made the checkpoint;
# lengths are advice.
NOTES = """
  _attn_implementation_autoset _name_or_path attention_dropout
  attn_implementation begin_suppress_tokens bad_words_ids bos_token_id
  cache_implementation chunk_size_feed_forward cross_attention_hidden_size
  decoder_start_token_id diversity_penalty do_sample dtype early_stopping
  encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
  finetuning_task forced_bos_token_id forced_eos_token_id id2label
  initializer_range is_decoder label2id length_penalty max_length
  max_position_embeddings max_sequence_length min_length no_repeat_ngram_size
  num_beam_groups num_beams num_return_sequences output_attentions
  output_hidden_states output_scores pad_token_id prefix problem_type
  remove_invalid_values repetition_penalty return_dict return_dict_in_generate
  sep_token_id suppress_tokens task_specific_params temperature
  tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p torch_dtype
  torchscript transformers.js_config transformers_version typical_p
  unsloth_fixed unsloth_version use_bfloat16 use_cache
"""
IGNORED = frozenset(NOTES.split())
IMAGES = {
  "boi_token_index",
  "eoi_token_index",
  "image_token_index",
  "mm_tokens_per_image",
  "vision_config",
}

ATTENTION = "model.layers.{layer}.self_attn."
MLP = "model.layers.{layer}.mlp."
TENSORS = {
  "embed/embedding": ("model.embed_tokens.weight",),
  "final_norm/scale": ("model.norm.weight",),
  "head/kernel": ("lm_head.weight",),
  "layers/attention/qkv/kernel": tuple(
    ATTENTION + f"{name}_proj.weight" for name in "qkv"
  ),
  "layers/attention/qkv/bias": tuple(
    ATTENTION + f"{name}_proj.bias" for name in "qkv"
  ),
  "layers/attention/out/kernel": (ATTENTION + "o_proj.weight",),
  "layers/attention/query_norm/scale": (ATTENTION + "q_norm.weight",),
  "layers/attention/key_norm/scale": (ATTENTION + "k_norm.weight",),
  "layers/mlp/gate/kernel": (MLP + "gate_proj.weight",),
  "layers/mlp/up/kernel": (MLP + "up_proj.weight",),
  "layers/mlp/down/kernel": (MLP + "down_proj.weight",),
  "layers/mlp/router/kernel": (MLP + "gate.weight",),
  "layers/attention/out/bias": (ATTENTION + "o_proj.bias",),
  "layers/attention/sinks": (ATTENTION + "sinks",),
  "layers/attention/query_heads/kernel": (ATTENTION + "q_proj.weight",),
  "layers/attention/query_down/kernel": (ATTENTION + "q_a_proj.weight",),
  "layers/attention/query_down_norm/scale": (
    ATTENTION + "q_a_layernorm.weight",
  ),
  "layers/attention/query_up/kernel": (ATTENTION + "q_b_proj.weight",),
  "layers/attention/kv_down/kernel": (ATTENTION + "kv_a_proj_with_mqa.weight",),
  "layers/attention/kv_down_norm/scale": (ATTENTION + "kv_a_layernorm.weight",),
  "layers/attention/kv_up/kernel": (ATTENTION + "kv_b_proj.weight",),
  "layers/mlp/shared/gate/kernel": (MLP + "shared_experts.gate_proj.weight",),
  "layers/mlp/shared/up/kernel": (MLP + "shared_experts.up_proj.weight",),
  "layers/mlp/shared/down/kernel": (MLP + "shared_experts.down_proj.weight",),
  "router_bias": (MLP + "gate.e_score_correction_bias",),
  "layers/mlp/experts/gate": (MLP + "experts.{expert}.gate_proj.weight",),
  "layers/mlp/experts/up": (MLP + "experts.{expert}.up_proj.weight",),
  "layers/mlp/experts/down": (MLP + "experts.{expert}.down_proj.weight",),
}


def tensors(
  norms: Mapping[str, str], prefix: str = ""
) -> dict[str, tuple[str, ...]]:
  """`TENSORS` with the names of the norms between attention and MLP.

  What a layer calls `post_attention_layernorm` stands before the MLP in Llama
  and after the attention in Gemma and OLMo-2.
  """
  between = {
    f"layers/{leaf}/scale": (f"model.layers.{{layer}}.{name}.weight",)
    for leaf, name in norms.items()
  }
  return {
    leaf: tuple(prefix + name for name in names)
    for leaf, names in {**TENSORS, **between}.items()
  }


LLAMA_NORMS = {
  "attention_norm": "input_layernorm",
  "mlp_norm": "post_attention_layernorm",
}
OLMO2_NORMS = {
  "attention_post_norm": "post_attention_layernorm",
  "mlp_post_norm": "post_feedforward_layernorm",
}
GEMMA_NORMS = {
  **OLMO2_NORMS,
  "attention_norm": "input_layernorm",
  "mlp_norm": "pre_feedforward_layernorm",
}
