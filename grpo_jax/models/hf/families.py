"""Families of open checkpoints that a `TransformerConfig` can express.

`FAMILIES`, at the end, maps each `model_type` of a config.json to its `Family`:
the meaning of its keys and the names of its tensors. Every key must be in a
family's table. A key that is not read could be a switch that changes the model,
and the only sign would be slightly wrong logits.

The order here: `Family` and tables that many families share; families with
fused tensors, latent attention or routed experts (Phi-3 and 4, DeepSeek-V3 and
V3.2, GLM-4, 4.5 and 5, gpt-oss); families with images (Qwen2-VL, Qwen2.5-VL,
Qwen3-VL, Idefics3); and the table with all other families. DeepSeek-R1's
distillations are "qwen2" and "llama" files. SmolVLM's files are those of
Idefics3.

As in `config_json.py`, a function removes the keys that it reads. Towers are in
"vision_config", whose keys must all be known too. Videos are not supported:
their keys are ignored, and their tokens are like any other token.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grpo_jax.models.architecture import (
  TOWER_RANGES,
  TowerConfig,
  TransformerConfig,
)
from grpo_jax.models.hf import config_json
from grpo_jax.models.hf.config_json import Keys


@dataclasses.dataclass(frozen=True)
class Fused:
  """Tensors that files hold as one fused tensor.

  Attributes:
    name: End of the name of the fused tensor.
    parts: Ends of the names of its parts.
    interleaved: Whether the parts alternate along its last axis; else they
      follow each other along `axis`.
    axis: Number of that axis.
  """

  name: str
  parts: tuple[str, ...]
  interleaved: bool = False
  axis: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
  """The format of checkpoints of one `model_type`.

  Attributes:
    name: The `model_type`.
    architecture: Class of `transformers` for language models of the family; its
      classifiers have other classes, with another head.
    spellings: Other names of that class in files.
    fixed: Fields of a `TransformerConfig` that all members share.
    fields: Key of config.json -> field.
    derived: Functions (keys) -> fields; they remove the keys that no table
      names.
    defaults: Values of keys that a file may leave out, as in `transformers`.
    supported: Keys without a field -> the values that change nothing.
    ignored: Keys that do not change what the model computes.
    nested: Values that model_type may have in "text_config", which has the keys
      of the language model. None among them: the file may have no such part.
    tensors: Path of a leaf -> the names of its tensors. Queries, keys and
      values are three tensors of one leaf; {layer} and {expert} are numbers.
    fused: Tensors of files that have several of these tensors as parts.
    experts_in_one: Whether a tensor [E, in, out] has all experts of a layer.
    experts_outputs_first: Whether such a tensor is [E, out, in] instead.
    forms: End of the name of a tensor -> the family of files that have it, if
      files have several forms.
    inputs_first: Whether kernels of layers are [in, out], and not [out, in].
    base: Beginning of the names of tensors, which files may leave out.
    other_parts: Beginnings of names of tensors that are not the language
      model's; they are not read, and an export copies them.
    later_layers: Those of `other_parts` that are of layers that predict later
      tokens, which an export may leave out.
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
  experts_outputs_first: bool = False
  forms: Mapping[str, Family] = dataclasses.field(default_factory=dict)
  inputs_first: bool = False
  base: str = ""
  other_parts: tuple[str, ...] = ()
  later_layers: tuple[str, ...] = ()
  spellings: tuple[str, ...] = ()

  def of_files(self, names: Iterable[str]) -> Family:
    """The family in the form of these tensors."""
    own = tuple(x for x in names if not x.startswith(self.other_parts))
    for end, family in self.forms.items():
      if any(name.endswith(end) for name in own):
        return dataclasses.replace(
          family,
          other_parts=self.other_parts,
          later_layers=self.later_layers,
        )
    return self


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
# Keys of any model, and the values that change nothing.
SUPPORTED: dict[str, tuple] = {
  "add_cross_attention": (False, None),
  "auto_map": (None, {}),  # Code that a checkpoint brings.
  "is_encoder_decoder": (False, None),
  "partial_rotary_factor": (1.0, None),
  "pruned_heads": (None, {}),
}
# Keys of models whose positions may turn a part of a head.
PARTIAL = {
  key: values
  for key, values in SUPPORTED.items()
  if key != "partial_rotary_factor"
}
# Keys of the experts of DeepSeek-V3 and GLM-4.5.
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
# Losses of routers, and layers that predict later tokens; neither is run here.
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
# The key sets a bias on all four projections at once, which is not supported.
NO_BIAS = {"attention_bias": (False, None)}
SILU = {"hidden_act": ("silu",)}
# Keys about the training of the checkpoint, such as dropout and losses of
# routers, and lengths, which are advice.
NOTES = """
  _attn_implementation_autoset _commit_hash _model_name_or_path _name_or_path
  attention_dropout attn_implementation bad_words_ids begin_suppress_tokens
  bos_token_id cache_implementation chunk_size_feed_forward
  cross_attention_hidden_size
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
  unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
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
DELTA = "model.layers.{layer}.linear_attn."
INDEXER = ATTENTION + "indexer."
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
  "layers/delta/taps": tuple(DELTA + f"conv1d.{part}" for part in "qkv"),
  "layers/delta/log_rate": (DELTA + "A_log",),
  "layers/delta/rate_bias": (DELTA + "dt_bias",),
  "layers/delta/scale": (DELTA + "norm.weight",),
  "layers/delta/out/kernel": (DELTA + "out_proj.weight",),
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

  For example, `post_attention_layernorm` is the norm before the MLP in Llama,
  and the norm after attention in Gemma and OLMo-2.
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


PHI3 = Family(
  name="phi3",
  architecture="Phi3ForCausalLM",
  fields=FIELDS,
  derived=(config_json.partial_rope, config_json.mistral_window),
  defaults={
    **DEFAULTS,
    "num_key_value_heads": None,
    "partial_rotary_factor": None,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
  },
  supported={
    **PARTIAL,
    **SILU,
    **NO_BIAS,
    # Phi-4-mini brings its own code, which computes the same as transformers.
    "auto_map": (
      None,
      {},
      {
        "AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
        "AutoTokenizer": "Xenova/gpt-4o",
      },
    ),
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    "lm_head_bias": (False, None),
    "mlp_bias": (False, None),
  },
  ignored=IGNORED | {"embd_pdrop", "resid_pdrop"},
  tensors=tensors(LLAMA_NORMS),
  fused=(QKV, GATE_UP),
)
GLM4 = Family(
  name="glm4",
  architecture="Glm4ForCausalLM",
  fixed={"post_norm": True, "rotary_interleaved": True},
  fields={**FIELDS, "attention_bias": "qkv_bias"},
  derived=(config_json.partial_rope,),
  defaults={
    **DEFAULTS,
    "attention_bias": True,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
  },
  supported={**PARTIAL, **SILU},
  ignored=IGNORED,
  tensors=tensors(
    {
      "attention_norm": "input_layernorm",
      "attention_post_norm": "post_self_attn_layernorm",
      "mlp_norm": "post_attention_layernorm",
      "mlp_post_norm": "post_mlp_layernorm",
    }
  ),
  fused=(GATE_UP,),
)
DEEPSEEK_V3 = Family(
  name="deepseek_v3",
  architecture="DeepseekV3ForCausalLM",
  fixed={"router_bias": True, "router_scores": "sigmoid"},
  fields={
    **{key: field for key, field in FIELDS.items() if key != "head_dim"},
    **ROUTED,
    "rope_interleave": "rotary_interleaved",
  },
  derived=(
    config_json.latent_attention,
    config_json.routed_experts,
  ),
  defaults={
    **DEFAULTS,
    "first_k_dense_replace": 3,
    "q_lora_rank": None,
    "rope_interleave": True,
  },
  supported={
    **SUPPORTED,
    **SILU,
    **NO_BIAS,
    **SIGMOID,
    "auto_map": (
      None,
      {},
      {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
      },
    ),
  },
  ignored=IGNORED | OF_ROUTERS | {"ep_size", "pretraining_tp"},
  tensors=tensors(LLAMA_NORMS),
)
# DeepSeek-V3's architecture, and its code; transformers has no such model_type.
KIMI_K2 = dataclasses.replace(DEEPSEEK_V3, name="kimi_k2")
# Kimi K2.5 and K2.6; of both the text part.
KIMI_K25 = dataclasses.replace(
  DEEPSEEK_V3,
  name="kimi_k25",
  architecture="Kimi_K25ForConditionalGeneration",
  spellings=("KimiK25ForConditionalGeneration",),
  supported={
    **DEEPSEEK_V3.supported,
    "auto_map": (
      *DEEPSEEK_V3.supported["auto_map"],
      {
        "AutoConfig": "configuration_kimi_k25.KimiK25Config",
        **dict.fromkeys(
          ("AutoModel", "AutoModelForCausalLM"),
          "modeling_kimi_k25.KimiK25ForConditionalGeneration",
        ),
      },
    ),
  },
  ignored=DEEPSEEK_V3.ignored
  | {
    *("ignore_index", "image_token_id", "media_placeholder_token_id"),
    *("projection_hidden_size", "projection_layer_norm_eps"),
    *("use_unified_vision_chunk", "video_placeholder", "video_token_id"),
    *("vision_config", "vision_end_token_id", "vision_start_token_id"),
  },
  nested=("kimi_k2", "deepseek_v3"),
  tensors={
    leaf: tuple("language_model." + name for name in names)
    for leaf, names in DEEPSEEK_V3.tensors.items()
  },
  other_parts=("vision_tower.", "mm_projector."),
)
GLM4_MOE = Family(
  name="glm4_moe",
  architecture="Glm4MoeForCausalLM",
  fixed={"router_bias": True, "router_scores": "sigmoid"},
  fields={
    **FIELDS,
    **ROUTED,
    "attention_bias": "qkv_bias",
  },
  derived=(
    config_json.partial_rope,
    config_json.head_norms,
    config_json.routed_experts,
  ),
  defaults={
    **DEFAULTS,
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
    "use_qk_norm": False,
  },
  supported={**PARTIAL, **SILU, **SIGMOID},
  ignored=IGNORED | OF_ROUTERS,
  tensors=tensors(LLAMA_NORMS),
)
# GLM-4.7-Flash.
GLM4_MOE_LITE = dataclasses.replace(
  DEEPSEEK_V3,
  name="glm4_moe_lite",
  architecture="Glm4MoeLiteForCausalLM",
  defaults={
    **DEFAULTS,
    "first_k_dense_replace": 1,
    "q_lora_rank": None,
    "rms_norm_eps": 1e-5,
    "rope_interleave": True,
  },
)
# DeepSeek-V3 with sparse attention; queries always have a latent vector.
DEEPSEEK_V32 = dataclasses.replace(
  DEEPSEEK_V3,
  name="deepseek_v32",
  architecture="DeepseekV32ForCausalLM",
  derived=(
    *DEEPSEEK_V3.derived,
    functools.partial(config_json.indexer, interleaved=False),
  ),
  supported={
    **SUPPORTED,
    **SILU,
    **NO_BIAS,
    **SIGMOID,
    "mlp_bias": (False, None),
    "rope_interleave": (True,),
  },
  fields={
    key: field
    for key, field in DEEPSEEK_V3.fields.items()
    if key != "rope_interleave"
  },
  fixed={**DEEPSEEK_V3.fixed, "rotary_interleaved": True},
  defaults={
    key: value
    for key, value in DEEPSEEK_V3.defaults.items()
    if key != "rope_interleave"
  },
  tensors={
    **DEEPSEEK_V3.tensors,
    "layers/attention/indexer/query/kernel": (INDEXER + "wq_b.weight",),
    "layers/attention/indexer/key/kernel": (INDEXER + "wk.weight",),
    "layers/attention/indexer/key_norm/scale": (INDEXER + "k_norm.weight",),
    "layers/attention/indexer/key_norm/bias": (INDEXER + "k_norm.bias",),
    "layers/attention/indexer/head_weights/kernel": (
      INDEXER + "weights_proj.weight",
    ),
  },
)
# GLM-5.
GLM_MOE_DSA = dataclasses.replace(
  DEEPSEEK_V32,
  name="glm_moe_dsa",
  architecture="GlmMoeDsaForCausalLM",
  derived=(
    *DEEPSEEK_V3.derived,
    functools.partial(config_json.indexer, interleaved=True),
  ),
  defaults={**DEEPSEEK_V32.defaults, "rms_norm_eps": 1e-5},
)
_V4_LAYER = "model.layers.{layer}."
_V4_ATTENTION = _V4_LAYER + "attn."
_V4_TENSORS: dict[str, tuple[str, ...]] = {
  "embed/embedding": ("model.embed_tokens.weight",),
  "final_norm/scale": ("model.norm.weight",),
  "head/kernel": ("head.weight",),
  "router_bias": (_V4_LAYER + "ffn.gate.bias",),
  "router_table": (_V4_LAYER + "ffn.gate.tid2eid",),
  **{
    f"stream_head/{leaf}": (f"model.hc_head.hc_{name}",)
    for leaf, name in (("weight", "fn"), ("bias", "base"), ("scale", "scale"))
  },
  **{
    f"layers/{leaf}_streams/{part}": (f"{_V4_LAYER}hc_{name}_{ending}",)
    for leaf, name in (("attention", "attn"), ("mlp", "ffn"))
    for part, ending in (("weight", "fn"), ("bias", "base"), ("scale", "scale"))
  },
  **{
    f"layers/{leaf}": (_V4_LAYER + name,)
    for leaf, name in (
      ("attention_norm/scale", "attn_norm.weight"),
      ("mlp_norm/scale", "ffn_norm.weight"),
      ("attention/query_down/kernel", "attn.wq_a.weight"),
      ("attention/query_down_norm/scale", "attn.q_norm.weight"),
      ("attention/query_up/kernel", "attn.wq_b.weight"),
      ("attention/kv_down/kernel", "attn.wkv.weight"),
      ("attention/kv_down_norm/scale", "attn.norm.weight"),
      ("attention/sinks", "attn.attn_sink"),
      ("attention/out_down", "attn.wo_a.weight"),
      ("attention/out/kernel", "attn.wo_b.weight"),
      ("attention/indexer/query/kernel", "attn.indexer.wq_b.weight"),
      (
        "attention/indexer/head_weights/kernel",
        "attn.indexer.weights_proj.weight",
      ),
      ("mlp/router/kernel", "ffn.gate.weight"),
      ("mlp/shared/gate/kernel", "ffn.shared_experts.w1.weight"),
      ("mlp/shared/up/kernel", "ffn.shared_experts.w3.weight"),
      ("mlp/shared/down/kernel", "ffn.shared_experts.w2.weight"),
      ("mlp/experts/gate", "ffn.experts.{expert}.w1.weight"),
      ("mlp/experts/up", "ffn.experts.{expert}.w3.weight"),
      ("mlp/experts/down", "ffn.experts.{expert}.w2.weight"),
    )
  },
  **{
    f"layers/attention/{of}compressor/{leaf}": (
      _V4_ATTENTION + of.replace("/", ".") + "compressor." + name,
    )
    for of in ("", "indexer/")
    for leaf, name in (
      ("values/kernel", "wkv.weight"),
      ("gates/kernel", "wgate.weight"),
      ("place_bias", "ape"),
      ("norm/scale", "norm.weight"),
    )
  },
}
_AS_WRITTEN = Family(
  name="deepseek_v4",
  architecture="DeepseekV4ForCausalLM",
  fixed={
    "activation": "bounded",
    "attention_sinks": True,
    "router_scores": "sqrtsoftplus",
  },
  fields={
    **{key: x for key, x in FIELDS.items() if key != "intermediate_size"},
    "moe_intermediate_size": "expert_width",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "experts_per_token",
    "routed_scaling_factor": "router_scale",
    "sliding_window": "sliding_window",
    "swiglu_limit": "swiglu_limit",
  },
  derived=(config_json.deepseek4,),
  defaults={
    "compress_rope_theta": 160_000.0,
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_key_value_heads": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "routed_scaling_factor": 1.5,
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
  },
  supported={
    **PARTIAL,
    **SILU,
    **NO_BIAS,
    "expert_dtype": ("fp8", None),
    "mlp_bias": (False, None),
    "n_shared_experts": (1,),
    "norm_topk_prob": (True,),
    "router_jitter_noise": (0, None),
    "scoring_func": ("sqrtsoftplus",),
    "topk_method": ("noaux_tc",),
  },
  ignored=IGNORED | OF_ROUTERS,
  tensors=_V4_TENSORS,
  later_layers=("mtp.",),
)
# DeepSeek's own names; those of the first form are what transformers writes.
_AS_PUBLISHED = dataclasses.replace(
  _AS_WRITTEN,
  tensors={
    leaf: tuple(
      name.removeprefix("model.")
      .replace("embed_tokens", "embed")
      .replace("hc_head.hc_", "hc_head_")
      .replace("attn.norm.", "attn.kv_norm.")
      for name in names
    )
    for leaf, names in _V4_TENSORS.items()
  },
)
DEEPSEEK_V4 = dataclasses.replace(
  _AS_WRITTEN, forms={"hc_head_fn": _AS_PUBLISHED}
)
GPT_OSS = Family(
  name="gpt_oss",
  architecture="GptOssForCausalLM",
  fixed={
    "activation": "clamped",
    "attention_sinks": True,
    "expert_biases": True,
    "out_bias": True,
    "qkv_bias": True,
  },
  fields={
    **FIELDS,
    "num_experts_per_tok": "experts_per_token",
  },
  derived=(
    config_json.named_rope,
    config_json.num_experts,
    config_json.expert_width,
    config_json.clamped_experts,
    config_json.alternating_window,
  ),
  defaults={
    **DEFAULTS,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
  },
  supported={
    **SUPPORTED,
    **SILU,
    "attention_bias": (True,),
  },
  # A note; the original context is among the keys of the positions.
  ignored=IGNORED | OF_ROUTERS | {"initial_context_length"},
  tensors={
    **tensors(LLAMA_NORMS),
    "layers/mlp/router/kernel": (MLP + "router.weight",),
    "layers/mlp/router/bias": (MLP + "router.bias",),
    "layers/mlp/experts/gate": (MLP + "experts.gate_proj",),
    "layers/mlp/experts/up": (MLP + "experts.up_proj",),
    "layers/mlp/experts/down": (MLP + "experts.down_proj",),
    "layers/mlp/experts/gate_bias": (MLP + "experts.gate_proj_bias",),
    "layers/mlp/experts/up_bias": (MLP + "experts.up_proj_bias",),
    "layers/mlp/experts/down_bias": (MLP + "experts.down_proj_bias",),
  },
  fused=(
    Fused(
      "experts.gate_up_proj",
      ("experts.gate_proj", "experts.up_proj"),
      interleaved=True,
    ),
    Fused(
      "experts.gate_up_proj_bias",
      ("experts.gate_proj_bias", "experts.up_proj_bias"),
      interleaved=True,
    ),
  ),
  experts_in_one=True,
)


# Notes, and sizes of images, which only the processor needs.
_IGNORED = IGNORED | {
  "max_image_size",
  "model_type",
  "size",
  "spatial_patch_size",
  "tie_word_embeddings",
  "tokens_per_second",
}
_QWEN = {
  "depth": "num_layers",
  "hidden_size": "width",
  "in_channels": "channels",
  "intermediate_size": "mlp_width",
  "num_heads": "num_heads",
  "patch_size": "patch_size",
  "spatial_merge_size": "merge",
  "temporal_patch_size": "frames",
}
_QWEN_DEFAULTS: Keys = {
  "in_channels": 3,
  "num_heads": 16,
  "spatial_merge_size": 2,
  "temporal_patch_size": 2,
}
_AXIAL: tuple = (
  None,
  {"rope_theta": 10_000.0, "rope_type": "axial"},
  {"rope_theta": 10_000, "rope_type": "axial"},
)


def turned_by_place(keys: Keys, default: tuple[int, ...]) -> dict[str, Any]:
  """Fields of positions by time, row and column, each for a part of a head.

  Args:
    keys: Keys of the language model.
    default: Numbers of pairs of channels of the three, if a file has none.
  """
  for key in ("rope_scaling", "rope_parameters"):
    entry = keys.get(key)
    if not isinstance(entry, Mapping):
      continue
    entry = dict(entry)
    if "mrope_section" in entry:
      default = entry.pop("mrope_section")
    # transformers ignores the key: the family decides.
    entry.pop("mrope_interleaved", None)
    for name in ("type", "rope_type"):
      if entry.get(name) == "mrope":
        entry[name] = "default"
    keys[key] = entry
  if (
    not isinstance(default, list | tuple)
    or len(default) != 3
    or not all(type(x) is int and x >= 0 for x in default)
  ):
    raise config_json.unsupported(
      "mrope_section", default, "a list of three numbers of pairs of channels"
    )
  return {**config_json.rope(keys), "rope_sections": tuple(default)}


def _tower(
  keys: Keys,
  kind: str,
  names: Mapping[str, str],
  defaults: Keys,
  supported: Mapping[str, tuple],
) -> tuple[dict[str, Any], Keys]:
  """Fields of a `TowerConfig`, and the tower's keys that are left."""
  config = config_json.take(keys, "vision_config")
  if not isinstance(config, Mapping):
    raise config_json.unsupported("vision_config", config, "an object of keys")
  config = {**defaults, **config}
  fields: dict[str, Any] = {"kind": kind}
  for key, values in supported.items():
    if key in config and (value := config.pop(key)) not in values:
      raise config_json.unsupported(
        f"vision_config.{key}", value, config_json.listed(values)
      )
  for key, name in names.items():
    value = config_json.required(config, key)
    kinds = (int, float) if name == "norm_eps" else (int,)
    if type(value) not in kinds or value not in TOWER_RANGES[name]:
      raise config_json.unsupported(
        f"vision_config.{key}", value, f"a number, {TOWER_RANGES[name]}"
      )
    fields[name] = config.pop(key)
  return fields, {k: v for k, v in config.items() if k not in _IGNORED}


def _make(fields: dict[str, Any], rest: Keys) -> dict[str, Any]:
  """The fields of the tower; raises if a key is left."""
  for key, value in rest.items():
    raise config_json.unsupported(
      f"vision_config.{key}",
      value,
      "no such key: it may change what the tower computes",
    )
  try:
    return {"tower": TowerConfig(**fields)}
  except ValueError as error:
    raise ValueError(f"config.json: vision_config makes no {error}") from error


def _layers(key: str, value: Any) -> tuple[int, ...]:
  if not isinstance(value, list | tuple) or not all(
    type(x) is int and x >= 0 for x in value
  ):
    raise config_json.unsupported(key, value, "a list of layers, from 0")
  return tuple(value)


def _same_width(keys: Keys, rest: Keys, key: str = "out_hidden_size") -> None:
  """Raises unless features are as wide as the language model."""
  width = config_json.required(keys, "hidden_size")
  if (out := rest.pop(key, width)) != width:
    raise config_json.unsupported(
      f"vision_config.{key}", out, f"hidden_size, {width}"
    )


def qwen2_tower(keys: Keys) -> dict[str, Any]:
  """Fields of the tower of Qwen2-VL, whose hidden_size is that of features."""
  fields, rest = _tower(
    keys,
    "qwen2_vl",
    {
      **{k: x for k, x in _QWEN.items() if x not in ("width", "mlp_width")},
      "embed_dim": "width",
    },
    {
      **_QWEN_DEFAULTS,
      "depth": 32,
      "embed_dim": 1280,
      "hidden_size": 3584,
      "mlp_ratio": 4,
      "patch_size": 14,
    },
    {
      "hidden_act": ("quick_gelu",),
      "in_chans": (3,),
      "rope_parameters": _AXIAL,
    },
  )
  _same_width(keys, rest, "hidden_size")
  ratio = rest.pop("mlp_ratio")
  if type(ratio) is not int or ratio < 1:
    raise config_json.unsupported(
      "vision_config.mlp_ratio", ratio, "a whole number, at least 1"
    )
  return _make({**fields, "mlp_width": ratio * fields["width"]}, rest)


def qwen2_5_tower(keys: Keys) -> dict[str, Any]:
  """Fields of the tower of Qwen2.5-VL."""
  fields, rest = _tower(
    keys,
    "qwen2_5_vl",
    _QWEN,
    {
      **_QWEN_DEFAULTS,
      "depth": 32,
      "fullatt_block_indexes": [7, 15, 23, 31],
      "hidden_size": 3584,
      "intermediate_size": 3420,
      "patch_size": 14,
      "window_size": 112,
    },
    {"hidden_act": ("silu",), "in_chans": (3,), "rope_parameters": _AXIAL},
  )
  _same_width(keys, rest)
  size = rest.pop("window_size")
  token = fields["patch_size"] * fields["merge"]
  if type(size) is not int or size // token not in TOWER_RANGES["window"]:
    raise config_json.unsupported(
      "vision_config.window_size", size, "a number of pixels"
    )
  if size < token:
    raise config_json.unsupported(
      "vision_config.window_size", size, f"at least a token, {token} pixels"
    )
  key = "fullatt_block_indexes"
  full = _layers(f"vision_config.{key}", rest.pop(key))
  # Files list them in any order, and may list layers beyond the last one.
  full = tuple(sorted({x for x in full if x < fields["num_layers"]}))
  return _make({**fields, "window": size // token, "full_layers": full}, rest)


def qwen3_tower(keys: Keys) -> dict[str, Any]:
  """Fields of the tower of Qwen3-VL."""
  fields, rest = _tower(
    keys,
    "qwen3_vl",
    _QWEN,
    {
      **_QWEN_DEFAULTS,
      "deepstack_visual_indexes": [8, 16, 24],
      "depth": 27,
      "hidden_size": 1152,
      "intermediate_size": 4304,
      "num_position_embeddings": 2304,
      "patch_size": 16,
    },
    {"hidden_act": ("gelu_pytorch_tanh",), "rope_parameters": _AXIAL},
  )
  _same_width(keys, rest)
  count = rest.pop("num_position_embeddings")
  side = round(count**0.5) if type(count) is int and count > 0 else 0
  if side < 1 or side**2 != count:
    raise config_json.unsupported(
      "vision_config.num_position_embeddings", count, "the square of a number"
    )
  key = "deepstack_visual_indexes"
  deep = _layers(f"vision_config.{key}", rest.pop(key))
  return _make({**fields, "side": side, "deep_layers": deep}, rest)


def siglip_tower(keys: Keys) -> dict[str, Any]:
  """Fields of the tower of Idefics3 and SmolVLM."""
  fields, rest = _tower(
    keys,
    "siglip",
    {
      "hidden_size": "width",
      "intermediate_size": "mlp_width",
      "layer_norm_eps": "norm_eps",
      "num_attention_heads": "num_heads",
      "num_channels": "channels",
      "num_hidden_layers": "num_layers",
      "patch_size": "patch_size",
    },
    {
      "hidden_size": 1152,
      "image_size": 224,
      "intermediate_size": 3072,
      "layer_norm_eps": 1e-6,
      "num_attention_heads": 16,
      "num_channels": 3,
      "num_hidden_layers": 12,
      "patch_size": 32,
    },
    {"hidden_act": ("gelu_pytorch_tanh",), "use_base_siglip": (False,)},
  )
  merge = config_json.take(keys, "scale_factor")
  size = rest.pop("image_size")
  for key, value, name, number in (
    ("scale_factor", merge, "merge", merge),
    ("vision_config.image_size", size, "side", size),
  ):
    if type(number) is not int or number not in TOWER_RANGES[name]:
      raise config_json.unsupported(
        key, value, f"a number, {TOWER_RANGES[name]}"
      )
  side = size // fields["patch_size"]
  return _make({**fields, "merge": merge, "side": side}, rest)


def _within(
  tensors: Mapping[str, tuple[str, ...]], inner: str
) -> dict[str, tuple[str, ...]]:
  """Tensor names of a language model inside another model, at `inner`."""
  return {
    leaf: tuple(
      inner + name.removeprefix("model.") if name.startswith("model.") else name
      for name in names
    )
    for leaf, names in tensors.items()
  }


def _affine(leaf: str, name: str, kernel: bool = True) -> dict:
  """Tensor names of the kernel (or scale) and bias of a module."""
  weight = "kernel" if kernel else "scale"
  return {
    f"tower/{leaf}/{weight}": (f"{name}.weight",),
    f"tower/{leaf}/bias": (f"{name}.bias",),
  }


def _qwen_tower(prefix: str, names: Mapping[str, str]) -> dict:
  """Tensor names of a Qwen tower; `names` differ between the families."""
  layer = prefix + "blocks.{layer}."
  tensors = {
    **_affine("patch", prefix + "patch_embed.proj"),
    **_affine("layers/attention/qkv", layer + "attn.qkv"),
    **_affine("layers/attention/out", layer + "attn.proj"),
    **_affine("layers/attention_norm", layer + "norm1", kernel=False),
    **_affine("layers/mlp_norm", layer + "norm2", kernel=False),
  }
  for leaf, name in names.items():
    is_kernel = not leaf.endswith("norm")
    tensors |= _affine(leaf, prefix + name, kernel=is_kernel)
  return tensors


_QWEN2_MERGER = {
  "merger/norm": "merger.ln_q",
  "merger/up": "merger.mlp.0",
  "merger/down": "merger.mlp.2",
}
_QWEN2_TOWER = _qwen_tower(
  "visual.",
  {
    "layers/mlp/up": "blocks.{layer}.mlp.fc1",
    "layers/mlp/down": "blocks.{layer}.mlp.fc2",
    **_QWEN2_MERGER,
  },
)
_QWEN2_5_TOWER = _qwen_tower(
  "visual.",
  {
    **{
      f"layers/mlp/{name}": f"blocks.{{layer}}.mlp.{name}_proj"
      for name in ("gate", "up", "down")
    },
    **_QWEN2_MERGER,
  },
)
_MERGER = {"norm": "norm", "up": "linear_fc1", "down": "linear_fc2"}
_QWEN3_TOWER = {
  **_qwen_tower(
    "model.visual.",
    {
      "layers/mlp/up": "blocks.{layer}.mlp.linear_fc1",
      "layers/mlp/down": "blocks.{layer}.mlp.linear_fc2",
      **{f"merger/{k}": f"merger.{v}" for k, v in _MERGER.items()},
      **{
        f"deep/{k}": f"deepstack_merger_list.{{layer}}.{v}"
        for k, v in _MERGER.items()
      },
    },
  ),
  "tower/places/embedding": ("model.visual.pos_embed.weight",),
}
_SIGLIP = "model.vision_model."
_SIGLIP_LAYER = _SIGLIP + "encoder.layers.{layer}."
_SIGLIP_TOWER = {
  **_affine("patch", _SIGLIP + "embeddings.patch_embedding"),
  **_affine("layers/attention_norm", _SIGLIP_LAYER + "layer_norm1", False),
  **_affine("layers/mlp_norm", _SIGLIP_LAYER + "layer_norm2", False),
  **_affine("layers/attention/out", _SIGLIP_LAYER + "self_attn.out_proj"),
  **_affine("layers/mlp/up", _SIGLIP_LAYER + "mlp.fc1"),
  **_affine("layers/mlp/down", _SIGLIP_LAYER + "mlp.fc2"),
  **_affine("final_norm", _SIGLIP + "post_layernorm", False),
  **{
    f"tower/layers/attention/qkv/{leaf}": tuple(
      f"{_SIGLIP_LAYER}self_attn.{name}_proj.{ending}" for name in "qkv"
    )
    for leaf, ending in (("kernel", "weight"), ("bias", "bias"))
  },
  "tower/places/embedding": (_SIGLIP + "embeddings.position_embedding.weight",),
  "tower/connector/kernel": (
    "model.connector.modality_projection.proj.weight",
  ),
}
_FIELDS = {**FIELDS, "image_token_id": "image_token"}
# Keys about tokens around images and about videos, which are not read.
_MARKS = {
  "video_token_id",
  "vision_end_token_id",
  "vision_start_token_id",
  "vision_token_id",
}

QWEN2_5_VL = Family(
  name="qwen2_5_vl",
  architecture="Qwen2_5_VLForConditionalGeneration",
  fixed={"qkv_bias": True},
  fields={key: name for key, name in _FIELDS.items() if key != "head_dim"},
  derived=(
    functools.partial(turned_by_place, default=(16, 24, 24)),
    qwen2_5_tower,
    config_json.qwen_window,
  ),
  defaults={
    **{key: x for key, x in DEFAULTS.items() if key != "head_dim"},
    **NO_WINDOW,
    "max_window_layers": 80,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
  },
  supported={**SUPPORTED, **SILU},
  ignored=IGNORED | _MARKS,
  nested=("qwen2_5_vl_text", None),
  tensors={**tensors(LLAMA_NORMS), **_QWEN2_5_TOWER},
)
QWEN2_VL = dataclasses.replace(
  QWEN2_5_VL,
  name="qwen2_vl",
  architecture="Qwen2VLForConditionalGeneration",
  derived=(
    functools.partial(turned_by_place, default=(16, 24, 24)),
    qwen2_tower,
    config_json.qwen_window,
  ),
  nested=("qwen2_vl_text", None),
  tensors={**tensors(LLAMA_NORMS), **_QWEN2_TOWER},
)
QWEN3_VL = Family(
  name="qwen3_vl",
  architecture="Qwen3VLForConditionalGeneration",
  fixed={"qk_norm": "head", "rope_sections_mixed": True},
  fields=_FIELDS,
  derived=(
    functools.partial(turned_by_place, default=(24, 20, 20)),
    qwen3_tower,
  ),
  defaults={**DEFAULTS, "head_dim": 128, "rope_theta": 500_000.0},
  supported={**SUPPORTED, **SILU, **NO_BIAS},
  ignored=IGNORED | _MARKS,
  nested=("qwen3_vl_text",),
  tensors={
    **_within(tensors(LLAMA_NORMS), "model.language_model."),
    **_QWEN3_TOWER,
  },
)
IDEFICS3 = Family(
  name="idefics3",
  architecture="Idefics3ForConditionalGeneration",
  fields=_FIELDS,
  derived=(config_json.rope, siglip_tower),
  defaults={
    **DEFAULTS,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
    "scale_factor": 2,
  },
  supported={
    **SUPPORTED,
    **SILU,
    **NO_BIAS,
    "is_llama_config": (True,),
    "mlp_bias": (False, None),
    "qk_layer_norms": (False,),
    "rope_interleaved": (False,),
    "use_resampler": (False,),
  },
  # Keys of the code that trained the models; only "scale_factor" counts.
  ignored=IGNORED
  | {
    "_flash_attn_2_enabled",
    "neftune_noise_alpha",
    "perceiver_config",
    "pixel_shuffle_factor",
    "pretraining_tp",
    "use_reentrant_checkpointing",
  },
  nested=("llama",),
  tensors={
    **_within(tensors(LLAMA_NORMS), "model.text_model."),
    **_SIGLIP_TOWER,
  },
)
SMOLVLM = dataclasses.replace(
  IDEFICS3, name="smolvlm", architecture="SmolVLMForConditionalGeneration"
)


_MOST_FURTHER = 64  # Most layers behind the model; published files have 0 or 1.


def from_config_json(
  source: str | os.PathLike | Mapping[str, Any],
) -> tuple[dict[str, Any], Family]:
  """Reads a config.json, in both formats that `transformers` has had.

  Args:
    source: Folder with a config.json, or the content of that file.

  Returns:
    Fields of a `TransformerConfig`, `vocab_size` among them, and the family.
    Fields that are left out have their defaults: always so those of
    `architecture.FIELDS_OF_A_RUN`.

  Raises:
    FileNotFoundError: There is no config.json.
    ValueError: A family, key or value is not supported; the message has the
      value received and the supported values.
  """
  if isinstance(source, Mapping):
    return _fields(source)
  try:
    return _fields(config_json.read(source))
  except ValueError as error:
    raise ValueError(f"{os.fspath(source)}: {error}") from error


def _fields(config: Keys | Mapping[str, Any]) -> tuple[Keys, Family]:
  name = config.get("model_type")
  if not isinstance(name, str) or name not in FAMILIES:
    raise ValueError(
      f"config.json: model_type is {name!r}; supported are"
      f" {', '.join(FAMILIES)}."
    )
  family = FAMILIES[name]
  keys = {
    **family.defaults,
    **(config_json.flat(config, family.nested) if family.nested else config),
  }
  del keys["model_type"]
  architectures = keys.pop("architectures", None) or [family.architecture]
  if architectures not in [
    [x] for x in (family.architecture, *family.spellings)
  ]:
    raise config_json.unsupported(
      "architectures",
      architectures,
      f"{[family.architecture]}, the model with a language head",
    )
  config_json.check_quantization(
    keys.pop("quantization_config", None), packs_experts=name == GPT_OSS.name
  )
  for key, values in family.supported.items():
    if key in keys and (value := keys.pop(key)) not in values:
      raise config_json.unsupported(key, value, config_json.listed(values))
  if keys.get("num_key_value_heads", 0) is None:
    keys["num_key_value_heads"] = keys.get("num_attention_heads")
  fields = dict(family.fixed)
  for key, field in family.fields.items():
    fields[field] = config_json.checked(
      key, config_json.required(keys, key), field
    )
  for function in family.derived:
    fields |= function(keys)
  further = 0
  if "num_nextn_predict_layers" in family.ignored:
    further = keys.get("num_nextn_predict_layers") or 0
  if type(further) is not int or not 0 <= further <= _MOST_FURTHER:
    raise config_json.unsupported(
      "num_nextn_predict_layers", further, f"0 to {_MOST_FURTHER}"
    )
  # Layers that predict later tokens; they are not run here.
  layers = range(fields["num_layers"], fields["num_layers"] + further)
  norm, *_ = family.tensors.get("layers/attention_norm/scale", ("",))
  start = norm.partition("{layer}")[0]
  later = (*family.later_layers, *(f"{start}{i}." for i in layers))
  parts = (*family.other_parts, *later, *_unread_keys(family, fields))
  family = dataclasses.replace(family, other_parts=parts, later_layers=later)
  TransformerConfig(**fields)  # Raises if fields do not fit together.
  if unknown := sorted(keys.keys() - family.fields.keys() - family.ignored):
    raise ValueError(
      "config.json:"
      f" {', '.join(f'{k}={reprlib.repr(keys[k])}' for k in unknown)} is not"
      f" supported for model_type {name!r}: it may change what the model"
      " computes. If it is a note of the tool that wrote the file, remove it."
    )
  return fields, family


def _unread_keys(family: Family, fields: Keys) -> list[str]:
  """Tensors of keys and values in layers of Gemma 4 that read those of others.

  Published files have them, and nothing reads them.
  """
  if "gemma4" not in fields:
    return []
  count, shared = fields["num_layers"], fields["gemma4"].num_shared_layers
  names = (
    *family.tensors["layers/attention/qkv/kernel"][1:],
    *family.tensors["layers/attention/key_norm/scale"],
  )
  layers = range(count - shared, count)
  return [name.format(layer=layer) for layer in layers for name in names]


# --- The table ---

_QWEN2 = Family(
  name="qwen2",
  architecture="Qwen2ForCausalLM",
  fixed={"qkv_bias": True},
  fields=FIELDS,
  derived=(config_json.rope, config_json.qwen_window),
  defaults={**DEFAULTS, **NO_WINDOW},
  supported={**SUPPORTED, **SILU, "use_mrope": (False, None)},
  ignored=IGNORED,
  tensors=tensors(LLAMA_NORMS),
)
_QWEN3 = Family(
  name="qwen3",
  architecture="Qwen3ForCausalLM",
  fixed={"qk_norm": "head"},
  fields=FIELDS,
  derived=(config_json.rope, config_json.qwen_window),
  defaults={**DEFAULTS, **NO_WINDOW, "head_dim": 128},
  supported={**SUPPORTED, **SILU, **NO_BIAS},
  ignored=IGNORED,
  tensors=tensors(LLAMA_NORMS),
)
_QWEN3_MOE = Family(
  name="qwen3_moe",
  architecture="Qwen3MoeForCausalLM",
  fixed={"qk_norm": "head"},
  fields={
    **FIELDS,
    "moe_intermediate_size": "expert_width",
    "norm_topk_prob": "norm_topk",
    "num_experts_per_tok": "experts_per_token",
  },
  derived=(config_json.rope, config_json.num_experts),
  defaults={**DEFAULTS, "norm_topk_prob": False},
  supported={
    **SUPPORTED,
    **SILU,
    **NO_BIAS,
    # Experts in all layers.
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    # Versions of transformers disagree about which layers would slide.
    "use_sliding_window": (False, None),
  },
  ignored=IGNORED
  | {
    "max_window_layers",
    "output_router_logits",
    "router_aux_loss_coef",
    "sliding_window",
  },
  tensors=tensors(LLAMA_NORMS),
)
_TAPS = Fused(
  "linear_attn.conv1d.weight",
  tuple(f"linear_attn.conv1d.{part}" for part in "qkv"),
)
_QWEN3_NEXT = Family(
  name="qwen3_next",
  architecture="Qwen3NextForCausalLM",
  fixed={
    "attention_gate": True,
    "norm_plus_one": True,
    "qk_norm": "head",
    "shared_gate": True,
  },
  fields={
    **FIELDS,
    "moe_intermediate_size": "expert_width",
    "norm_topk_prob": "norm_topk",
    "num_experts_per_tok": "experts_per_token",
    "shared_expert_intermediate_size": "shared_width",
  },
  derived=(
    config_json.partial_rope,
    config_json.delta_rule,
    config_json.num_experts,
  ),
  defaults={
    **DEFAULTS,
    "full_attention_interval": 4,
    "head_dim": 256,
    "intermediate_size": 5632,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "norm_topk_prob": True,
    "partial_rotary_factor": 0.25,
  },
  supported={
    **PARTIAL,
    **SILU,
    **NO_BIAS,
    "attn_output_gate": (True,),
    # Experts in all layers.
    "decoder_sparse_step": (1,),
    "mamba_ssm_dtype": ("float32", None),
    "mlp_only_layers": ([], None),
    "use_sliding_window": (False, None),
  },
  ignored=IGNORED | OF_ROUTERS,
  tensors={
    **tensors(LLAMA_NORMS),
    "layers/delta/inputs/kernel": (DELTA + "in_proj_qkvz.weight",),
    "layers/delta/rates/kernel": (DELTA + "in_proj_ba.weight",),
    **{
      f"layers/mlp/shared/{name}/kernel": (
        MLP + f"shared_expert.{name}_proj.weight",
      )
      for name in ("gate", "up", "down")
    },
    "layers/mlp/shared_gate/kernel": (MLP + "shared_expert_gate.weight",),
  },
  fused=(_TAPS,),
  later_layers=("mtp.",),
)
_QWEN3_5_TEXT = dataclasses.replace(
  _QWEN3_NEXT,
  name="qwen3_5_text",
  architecture="Qwen3_5ForCausalLM",
  fixed={"attention_gate": True, "norm_plus_one": True, "qk_norm": "head"},
  fields=FIELDS,
  derived=(config_json.text_rope, config_json.delta_rule),
  defaults={
    key: value
    for key, value in _QWEN3_NEXT.defaults.items()
    if key not in ("intermediate_size", "norm_topk_prob")
  },
  supported={
    key: values
    for key, values in _QWEN3_NEXT.supported.items()
    if key != "decoder_sparse_step"
  },
  ignored=IGNORED | {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"},
  tensors={
    **_QWEN3_NEXT.tensors,
    "layers/delta/inputs/kernel": tuple(
      DELTA + f"in_proj_{part}.weight" for part in "qkvz"
    ),
    "layers/delta/rates/kernel": tuple(
      DELTA + f"in_proj_{part}.weight" for part in "ba"
    ),
  },
  fused=(
    _TAPS,
    Fused(
      "linear_attn.in_proj_qkv.weight",
      tuple(f"linear_attn.in_proj_{part}.weight" for part in "qkv"),
    ),
  ),
)
# Images are not read; the tower is left as it is.
_QWEN3_5 = dataclasses.replace(
  _QWEN3_5_TEXT,
  name="qwen3_5",
  architecture="Qwen3_5ForConditionalGeneration",
  ignored=_QWEN3_5_TEXT.ignored | _MARKS | {"image_token_id", "vision_config"},
  nested=("qwen3_5_text",),
  tensors=_within(_QWEN3_5_TEXT.tensors, "model.language_model."),
  other_parts=("model.visual.",),
)
# Files have one tensor for all experts of a layer; in FP8, and as transformers
# writes them, one for each.
_EXPERTS_GATE_UP = Fused(
  "experts.gate_up_proj", ("experts.gate_proj", "experts.up_proj"), axis=1
)


def _either_form(family: Family) -> Family:
  """A mixture whose files have one tensor for each expert, or for all."""
  joint_names = {
    leaf: tuple(
      name.replace(".{expert}", "").removesuffix(".weight") for name in names
    )
    for leaf, names in family.tensors.items()
    if leaf.startswith("layers/mlp/experts/")
  }
  form = dataclasses.replace(
    family,
    tensors={**family.tensors, **joint_names},
    fused=(*family.fused, _EXPERTS_GATE_UP),
    experts_in_one=True,
    experts_outputs_first=True,
  )
  return dataclasses.replace(family, forms={_EXPERTS_GATE_UP.name: form})


_MIXTURE_OF_QWEN3_5: dict[str, Any] = {
  "fixed": _QWEN3_NEXT.fixed,
  "fields": {
    key: field
    for key, field in _QWEN3_NEXT.fields.items()
    if key not in ("intermediate_size", "norm_topk_prob")
  },
  "derived": (*_QWEN3_5_TEXT.derived, config_json.num_experts),
  # Weights of a token's experts always add up to 1.
  "supported": {**_QWEN3_5_TEXT.supported, "norm_topk_prob": (True,)},
}
_QWEN3_5_MOE_TEXT = _either_form(
  dataclasses.replace(
    _QWEN3_5_TEXT,
    name="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    ignored=_QWEN3_5_TEXT.ignored | OF_ROUTERS,
    **_MIXTURE_OF_QWEN3_5,
  )
)
_QWEN3_5_MOE = _either_form(
  dataclasses.replace(
    _QWEN3_5,
    name="qwen3_5_moe",
    architecture="Qwen3_5MoeForConditionalGeneration",
    ignored=_QWEN3_5.ignored | OF_ROUTERS,
    nested=("qwen3_5_moe_text",),
    **_MIXTURE_OF_QWEN3_5,
  )
)
_LLAMA = Family(
  name="llama",
  architecture="LlamaForCausalLM",
  fields=FIELDS,
  derived=(config_json.rope,),
  defaults={**DEFAULTS, "num_key_value_heads": None},
  supported={
    **SUPPORTED,
    **SILU,
    **NO_BIAS,
    "is_llama_config": (True,),
    "mlp_bias": (False, None),
    "rope_interleaved": (False,),
  },
  # The split of matmuls in pretraining.
  ignored=IGNORED | {"pretraining_tp"},
  tensors=tensors(LLAMA_NORMS),
)
_GRANITE = Family(
  name="granite",
  architecture="GraniteForCausalLM",
  fields={
    **FIELDS,
    "attention_multiplier": "attention_scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
  },
  derived=(config_json.rope, config_json.logit_scale),
  defaults={
    **DEFAULTS,
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "num_key_value_heads": None,
    "residual_multiplier": 1.0,
  },
  supported={
    **SUPPORTED,
    **SILU,
    **NO_BIAS,
    "mlp_bias": (False, None),
  },
  ignored=IGNORED,
  tensors=tensors(LLAMA_NORMS),
)
_MISTRAL = Family(
  name="mistral",
  architecture="MistralForCausalLM",
  fields=FIELDS,
  derived=(config_json.rope, config_json.mistral_window),
  defaults={**DEFAULTS, "sliding_window": 4096},
  supported={**SUPPORTED, **SILU},
  ignored=IGNORED,
  tensors=tensors(LLAMA_NORMS),
)
_EXPERT = "model.layers.{layer}.block_sparse_moe.experts.{expert}."
_MINISTRAL3 = dataclasses.replace(
  _MISTRAL,
  name="ministral3",
  architecture="Ministral3ForCausalLM",
  derived=(config_json.ministral3_rope, config_json.mistral_window),
  defaults={
    **DEFAULTS,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
  },
)
_MISTRAL3 = dataclasses.replace(
  _MINISTRAL3,
  name="mistral3",
  architecture="Mistral3ForConditionalGeneration",
  ignored=IGNORED
  | {
    "image_token_id",
    "image_token_index",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "vision_config",
    "vision_feature_layer",
  },
  nested=("ministral3",),
  tensors=tensors(LLAMA_NORMS, "language_model."),
  other_parts=("vision_tower.", "multi_modal_projector."),
)
_MIXTRAL = Family(
  name="mixtral",
  architecture="MixtralForCausalLM",
  fields={**FIELDS, "num_experts_per_tok": "experts_per_token"},
  derived=(
    config_json.rope,
    config_json.mistral_window,
    config_json.num_experts,
    config_json.expert_width,
  ),
  defaults={
    **DEFAULTS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
    "sliding_window": None,
  },
  supported={**SUPPORTED, **SILU, "router_jitter_noise": (0, None)},
  ignored=IGNORED | OF_ROUTERS,
  tensors={
    **tensors(LLAMA_NORMS),
    "layers/mlp/router/kernel": (
      "model.layers.{layer}.block_sparse_moe.gate.weight",
    ),
    "layers/mlp/experts/gate": (_EXPERT + "w1.weight",),
    "layers/mlp/experts/up": (_EXPERT + "w3.weight",),
    "layers/mlp/experts/down": (_EXPERT + "w2.weight",),
  },
)
_SMOLLM3 = Family(
  name="smollm3",
  architecture="SmolLM3ForCausalLM",
  fields=FIELDS,
  derived=(config_json.rope, config_json.no_rope_layers),
  defaults={
    **DEFAULTS,
    "no_rope_layer_interval": 4,
    "no_rope_layers": None,
    "rope_theta": 2_000_000.0,
    "tie_word_embeddings": True,
  },
  supported={
    **SUPPORTED,
    **SILU,
    **NO_BIAS,
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
  },
  ignored=IGNORED | {"max_window_layers", "pretraining_tp", "sliding_window"},
  tensors=tensors(LLAMA_NORMS),
)
_LLAMA4_MLP = "model.layers.{layer}.feed_forward."
_LLAMA4_TENSORS = {
  **tensors(LLAMA_NORMS),
  **{
    f"layers/mlp/{leaf}": (_LLAMA4_MLP + name,)
    for leaf, name in (
      ("router/kernel", "router.weight"),
      ("experts/gate", "experts.gate_proj"),
      ("experts/up", "experts.up_proj"),
      ("experts/down", "experts.down_proj"),
      ("gate/kernel", "gate_proj.weight"),
      ("up/kernel", "up_proj.weight"),
      ("down/kernel", "down_proj.weight"),
      ("shared/gate/kernel", "shared_expert.gate_proj.weight"),
      ("shared/up/kernel", "shared_expert.up_proj.weight"),
      ("shared/down/kernel", "shared_expert.down_proj.weight"),
    )
  },
}
_LLAMA4_TEXT = Family(
  name="llama4_text",
  architecture="Llama4ForCausalLM",
  fixed={
    "norm_topk": False,
    "rotary_interleaved": True,
    "router_scores": "sigmoid",
  },
  fields={
    **FIELDS,
    "intermediate_size": "expert_width",
    "intermediate_size_mlp": "mlp_width",
    "num_experts_per_tok": "experts_per_token",
  },
  derived=(config_json.rope, config_json.num_experts, config_json.llama4),
  defaults={
    **DEFAULTS,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "head_dim": 128,
    "interleave_moe_layer_step": 1,
    "moe_layers": None,
    "no_rope_layer_interval": 4,
    "no_rope_layers": None,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "use_qk_norm": True,
  },
  supported={
    **SUPPORTED,
    **SILU,
    **NO_BIAS,
    "for_llm_compressor": (False,),
    "router_jitter_noise": (0, None),
  },
  ignored=IGNORED | OF_ROUTERS,
  tensors=_LLAMA4_TENSORS,
  fused=(
    Fused(
      "experts.gate_up_proj",
      ("experts.gate_proj", "experts.up_proj"),
      axis=2,
    ),
  ),
  experts_in_one=True,
)
_LLAMA4 = dataclasses.replace(
  _LLAMA4_TEXT,
  name="llama4",
  architecture="Llama4ForConditionalGeneration",
  ignored=_LLAMA4_TEXT.ignored | IMAGES,
  nested=("llama4_text",),
  tensors={
    leaf: tuple("language_model." + name for name in names)
    for leaf, names in _LLAMA4_TENSORS.items()
  },
  other_parts=("vision_model.", "multi_modal_projector."),
)
_OLMO2 = Family(
  name="olmo2",
  architecture="Olmo2ForCausalLM",
  fixed={"pre_norm": False, "post_norm": True, "qk_norm": "projection"},
  fields=FIELDS,
  derived=(config_json.rope,),
  defaults={
    **DEFAULTS,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
  },
  supported={**SUPPORTED, **SILU, **NO_BIAS},
  ignored=IGNORED,
  tensors=tensors(OLMO2_NORMS),
)
_OLMO3 = dataclasses.replace(
  _OLMO2,
  name="olmo3",
  architecture="Olmo3ForCausalLM",
  derived=(config_json.olmo3_rope, config_json.olmo3_window),
  defaults={
    **_OLMO2.defaults,
    "rope_theta": config_json.OLMO3_THETA,
    "sliding_window": 4096,
  },
)
_NANOCHAT = Family(
  name="nanochat",
  architecture="NanoChatForCausalLM",
  fixed={
    "activation": "relu2",
    "embedding_norm": True,
    "gate": False,
    "norm": "plain",
    "qk_norm": "head",
    "rotary_backward": True,
  },
  fields={**FIELDS, "final_logit_softcapping": "final_softcap"},
  derived=(config_json.rope,),
  defaults={
    **DEFAULTS,
    "final_logit_softcapping": 15.0,
    "hidden_act": "relu2",
    "num_key_value_heads": None,
  },
  supported={**SUPPORTED, **NO_BIAS, "hidden_act": ("relu2",)},
  ignored=IGNORED,
  tensors={
    **tensors({}),
    "layers/mlp/up/kernel": (MLP + "fc1.weight",),
    "layers/mlp/down/kernel": (MLP + "fc2.weight",),
  },
)
_GPT2_LAYER = "transformer.h.{layer}."
_GPT2 = Family(
  name="gpt2",
  architecture="GPT2LMHeadModel",
  fixed={
    "activation": "gelu",
    "gate": False,
    "mlp_bias": True,
    "norm": "layer",
    "out_bias": True,
    "qkv_bias": True,
    "rotary_width": 0,
  },
  fields={
    "layer_norm_epsilon": "norm_eps",
    "n_embd": "width",
    "n_head": "num_heads",
    "n_layer": "num_layers",
    "n_positions": "learned_positions",
    "tie_word_embeddings": "tied_embeddings",
    "vocab_size": "vocab_size",
  },
  derived=(config_json.gpt2_widths,),
  defaults={
    "layer_norm_epsilon": 1e-5,
    "n_inner": None,
    "tie_word_embeddings": True,
  },
  supported={
    **SUPPORTED,
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "reorder_and_upcast_attn": (False,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "scale_attn_weights": (True,),
  },
  ignored=IGNORED
  | {
    *("attn_pdrop", "embd_pdrop", "n_ctx", "resid_pdrop"),
    *("summary_activation", "summary_first_dropout", "summary_type"),
    *("summary_proj_to_labels", "summary_use_proj"),
  },
  tensors={
    "embed/embedding": ("transformer.wte.weight",),
    "places/embedding": ("transformer.wpe.weight",),
    "head/kernel": ("lm_head.weight",),
    **{
      f"{leaf}/{part}": (f"{name}.{'bias' if part == 'bias' else 'weight'}",)
      for leaf, name, parts in (
        ("final_norm", "transformer.ln_f", "scale bias"),
        ("layers/attention_norm", _GPT2_LAYER + "ln_1", "scale bias"),
        ("layers/attention/qkv", _GPT2_LAYER + "attn.c_attn", "kernel bias"),
        ("layers/attention/out", _GPT2_LAYER + "attn.c_proj", "kernel bias"),
        ("layers/mlp_norm", _GPT2_LAYER + "ln_2", "scale bias"),
        ("layers/mlp/up", _GPT2_LAYER + "mlp.c_fc", "kernel bias"),
        ("layers/mlp/down", _GPT2_LAYER + "mlp.c_proj", "kernel bias"),
      )
      for part in parts.split()
    },
  },
  inputs_first=True,
  base="transformer.",
)
_GEMMA2 = Family(
  name="gemma2",
  architecture="Gemma2ForCausalLM",
  fixed={
    "activation": "gelu",
    "norm_plus_one": True,
    "post_norm": True,
  },
  fields={**FIELDS, **SOFTCAPS},
  derived=(
    config_json.rope,
    config_json.alternating_window,
    config_json.attention_scale,
    config_json.embedding_scale,
  ),
  defaults={**DEFAULTS, "head_dim": 256, "tie_word_embeddings": True},
  supported={
    **SUPPORTED,
    **NO_BIAS,
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False, None),
  },
  # Other names of hidden_activation and sliding_window; transformers ignores
  # them.
  ignored=IGNORED | {"hidden_act", "sliding_window_size"},
  tensors=tensors(GEMMA_NORMS),
)
_GEMMA3_TEXT = dataclasses.replace(
  _GEMMA2,
  name="gemma3_text",
  architecture="Gemma3ForCausalLM",
  fixed={**_GEMMA2.fixed, "qk_norm": "head"},
  derived=(
    config_json.gemma3_rope,
    config_json.gemma3_window,
    config_json.attention_scale,
    config_json.embedding_scale,
  ),
  # transformers keeps a cap of the scores in the config, but never applies it.
  fields={
    key: field
    for key, field in _GEMMA2.fields.items()
    if key != "attn_logit_softcapping"
  },
  supported={**_GEMMA2.supported, "attn_logit_softcapping": (None,)},
  # Published models with images name little beside the differences to these.
  defaults={
    **_GEMMA2.defaults,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10_000.0,
    "rope_theta": 1_000_000.0,
    "sliding_window": 4096,
    "vocab_size": 262_208,
  },
)
_GEMMA3 = dataclasses.replace(
  _GEMMA3_TEXT,
  name="gemma3",
  architecture="Gemma3ForConditionalGeneration",
  ignored=_GEMMA3_TEXT.ignored | IMAGES,
  nested=("gemma3_text",),
  tensors=tensors(GEMMA_NORMS, "language_model."),
  other_parts=("vision_tower.", "multi_modal_projector."),
)
_GEMMA4_LAYER = "model.layers.{layer}."
_GEMMA4_TENSORS = {
  **tensors(GEMMA_NORMS),
  "layer_inputs/embed/embedding": ("model.embed_tokens_per_layer.weight",),
  "layer_inputs/projection/kernel": (
    "model.per_layer_model_projection.weight",
  ),
  "layer_inputs/norm/scale": ("model.per_layer_projection_norm.weight",),
  "layer_scale": (_GEMMA4_LAYER + "layer_scalar",),
  **{
    f"layers/{leaf}": (_GEMMA4_LAYER + name,)
    for leaf, name in (
      ("attention/key_heads/kernel", "self_attn.k_proj.weight"),
      ("inputs/gate/kernel", "per_layer_input_gate.weight"),
      ("inputs/down/kernel", "per_layer_projection.weight"),
      ("inputs_norm/scale", "post_per_layer_input_norm.weight"),
      ("mlp/router/kernel", "router.proj.weight"),
      ("mlp/router_norm/scale", "router.scale"),
      ("mlp/expert_scale", "router.per_expert_scale"),
      ("mlp/experts/gate", "experts.gate_proj"),
      ("mlp/experts/up", "experts.up_proj"),
      ("mlp/experts/down", "experts.down_proj"),
      ("mlp/dense_post_norm/scale", "post_feedforward_layernorm_1.weight"),
      ("mlp/experts_post_norm/scale", "post_feedforward_layernorm_2.weight"),
      ("mlp/experts_norm/scale", "pre_feedforward_layernorm_2.weight"),
    )
  },
}
_GEMMA4_TEXT = Family(
  name="gemma4_text",
  architecture="Gemma4ForCausalLM",
  fixed={
    "activation": "gelu",
    "attention_scale": 1.0,
    "post_norm": True,
    "qk_norm": "head",
  },
  fields={**FIELDS, "final_logit_softcapping": "final_softcap"},
  derived=(config_json.gemma4, config_json.embedding_scale),
  defaults={
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "final_logit_softcapping": None,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_size_per_layer_input": 256,
    "moe_intermediate_size": None,
    "num_experts": None,
    "num_global_key_value_heads": None,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
      "full_attention": {
        "partial_rotary_factor": 0.25,
        "rope_theta": 1_000_000.0,
        "rope_type": "proportional",
      },
      "sliding_attention": {"rope_theta": 10_000.0, "rope_type": "default"},
    },
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "top_k_experts": None,
    "use_double_wide_mlp": False,
    "vocab_size_per_layer_input": 262_144,
  },
  supported={
    **SUPPORTED,
    **NO_BIAS,
    "expert_intermediate_size": (None,),
    "hidden_activation": ("gelu_pytorch_tanh",),
    # "vision" is about the tokens of images, which are not read.
    "use_bidirectional_attention": (None, "vision"),
  },
  ignored=IGNORED,
  tensors=_GEMMA4_TENSORS,
  fused=(_EXPERTS_GATE_UP,),
  experts_in_one=True,
  experts_outputs_first=True,
)
_GEMMA4 = dataclasses.replace(
  _GEMMA4_TEXT,
  name="gemma4",
  architecture="Gemma4ForConditionalGeneration",
  ignored=_GEMMA4_TEXT.ignored
  | {
    *("audio_config", "audio_token_id", "boa_token_id", "boi_token_id"),
    *("eoa_token_id", "eoa_token_index", "eoi_token_id", "image_token_id"),
    *("video_token_id", "vision_config", "vision_soft_tokens_per_image"),
  },
  nested=("gemma4_text",),
  tensors=_within(_GEMMA4_TENSORS, "model.language_model."),
  other_parts=(
    *("model.vision_tower.", "model.audio_tower."),
    *("model.embed_vision.", "model.embed_audio."),
  ),
)

FAMILIES = {
  family.name: family
  for family in (
    _QWEN2,
    _QWEN3,
    _QWEN3_MOE,
    _QWEN3_NEXT,
    _QWEN3_5,
    _QWEN3_5_TEXT,
    _QWEN3_5_MOE,
    _QWEN3_5_MOE_TEXT,
    _LLAMA,
    _GRANITE,
    _MISTRAL,
    _MINISTRAL3,
    _MISTRAL3,
    _MIXTRAL,
    _SMOLLM3,
    _LLAMA4_TEXT,
    _LLAMA4,
    _OLMO2,
    _OLMO3,
    _NANOCHAT,
    _GPT2,
    _GEMMA2,
    _GEMMA3_TEXT,
    _GEMMA3,
    _GEMMA4_TEXT,
    _GEMMA4,
    PHI3,
    DEEPSEEK_V3,
    KIMI_K2,
    KIMI_K25,
    GLM4,
    GLM4_MOE,
    GLM4_MOE_LITE,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    GLM_MOE_DSA,
    GPT_OSS,
    QWEN2_VL,
    QWEN2_5_VL,
    QWEN3_VL,
    IDEFICS3,
    SMOLVLM,
  )
}
