"""Open checkpoints that a `TransformerConfig` can express.

`FAMILIES` says for each `model_type` of a config.json what its keys mean and
what its tensors are called. Every key must be in a family's table: one that
nobody read could be the switch that makes the model another one, and the
difference would show as slightly wrong logits. DeepSeek-R1's distillations are
"qwen2" and "llama" files.
"""

from __future__ import annotations

import dataclasses
import os
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from grpo_jax.models import config_json
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.config_json import Keys


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
    nested: Whether the keys of the language model are in "text_config".
    tensors: Path of a leaf under "trained" -> its tensors' names. Queries,
      keys and values are three for one leaf; {layer} and {expert} count.
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
  nested: bool = False
  tensors: Mapping[str, tuple[str, ...]]
  other_parts: tuple[str, ...] = ()


def from_config_json(
  source: str | os.PathLike | Mapping[str, Any],
) -> tuple[dict[str, Any], Family]:
  """What a config.json says, in both forms that `transformers` has had.

  Args:
    source: Folder with a config.json, or what it holds.

  Returns:
    Fields of a `TransformerConfig`, `vocab_size` among them; those left out
    have its defaults, as `architecture.FIELDS_OF_A_RUN` always do. And the
    family.

  Raises:
    FileNotFoundError: No config.json.
    ValueError: A family, key or value that is not supported; named with the
      value received and what is supported.
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
    **(config_json.flat(config) if family.nested else config),
  }
  del keys["model_type"]
  architectures = keys.pop("architectures", None) or [family.architecture]
  if architectures != [family.architecture]:
    raise config_json.unsupported(
      "architectures",
      architectures,
      f"{[family.architecture]}, the model with a language head",
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
  TransformerConfig(**fields)  # Complains about what does not fit together.
  if unknown := sorted(keys.keys() - family.fields.keys() - family.ignored):
    raise ValueError(
      "config.json:"
      f" {', '.join(f'{k}={reprlib.repr(keys[k])}' for k in unknown)} is not"
      f" supported for model_type {name!r}: it may change what the model"
      " computes. If it is a note of the tool that wrote the file, remove it."
    )
  return fields, family


# --- The table ---

_FIELDS = {
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
_SOFTCAPS = {
  "attn_logit_softcapping": "attention_softcap",
  "final_logit_softcapping": "final_softcap",
}
_DEFAULTS = {
  "head_dim": None,
  "hidden_act": "silu",
  "rms_norm_eps": 1e-6,
  "rope_theta": 10_000.0,
  "tie_word_embeddings": False,
}
_NO_WINDOW = {
  "max_window_layers": 28,
  "sliding_window": 4096,
  "use_sliding_window": False,
}
# Of any model.
_SUPPORTED: dict[str, tuple] = {
  "add_cross_attention": (False, None),
  "auto_map": (None, {}),  # Code of its own.
  "is_encoder_decoder": (False, None),
  "partial_rotary_factor": (1.0, None),
  "pruned_heads": (None, {}),
  "quantization_config": (None, {}),
}
# One for all four projections; the output's has no place in our layers.
_NO_BIAS = {"attention_bias": (False, None)}
_SILU = {"hidden_act": ("silu",)}
# Dropout and losses of routers are of the training that made the checkpoint;
# lengths are advice.
_NOTES = """
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
_IGNORED = frozenset(_NOTES.split())
_IMAGES = {
  "boi_token_index",
  "eoi_token_index",
  "image_token_index",
  "mm_tokens_per_image",
  "vision_config",
}

_ATTENTION = "model.layers.{layer}.self_attn."
_MLP = "model.layers.{layer}.mlp."
_TENSORS = {
  "embed/embedding": ("model.embed_tokens.weight",),
  "final_norm/scale": ("model.norm.weight",),
  "head/kernel": ("lm_head.weight",),
  "layers/attention/qkv/kernel": tuple(
    _ATTENTION + f"{name}_proj.weight" for name in "qkv"
  ),
  "layers/attention/qkv/bias": tuple(
    _ATTENTION + f"{name}_proj.bias" for name in "qkv"
  ),
  "layers/attention/out/kernel": (_ATTENTION + "o_proj.weight",),
  "layers/attention/query_norm/scale": (_ATTENTION + "q_norm.weight",),
  "layers/attention/key_norm/scale": (_ATTENTION + "k_norm.weight",),
  "layers/mlp/gate/kernel": (_MLP + "gate_proj.weight",),
  "layers/mlp/up/kernel": (_MLP + "up_proj.weight",),
  "layers/mlp/down/kernel": (_MLP + "down_proj.weight",),
  "layers/mlp/router/kernel": (_MLP + "gate.weight",),
  "layers/mlp/experts/gate": (_MLP + "experts.{expert}.gate_proj.weight",),
  "layers/mlp/experts/up": (_MLP + "experts.{expert}.up_proj.weight",),
  "layers/mlp/experts/down": (_MLP + "experts.{expert}.down_proj.weight",),
}


def _tensors(
  norms: Mapping[str, str], prefix: str = ""
) -> dict[str, tuple[str, ...]]:
  """`_TENSORS` with the names of the norms between attention and MLP.

  What a layer calls `post_attention_layernorm` stands before the MLP in Llama
  and after the attention in Gemma and OLMo-2.
  """
  between = {
    f"layers/{leaf}/scale": (f"model.layers.{{layer}}.{name}.weight",)
    for leaf, name in norms.items()
  }
  return {
    leaf: tuple(prefix + name for name in names)
    for leaf, names in {**_TENSORS, **between}.items()
  }


_LLAMA_NORMS = {
  "attention_norm": "input_layernorm",
  "mlp_norm": "post_attention_layernorm",
}
_OLMO2_NORMS = {
  "attention_post_norm": "post_attention_layernorm",
  "mlp_post_norm": "post_feedforward_layernorm",
}
_GEMMA_NORMS = {
  **_OLMO2_NORMS,
  "attention_norm": "input_layernorm",
  "mlp_norm": "pre_feedforward_layernorm",
}

_QWEN2 = Family(
  name="qwen2",
  architecture="Qwen2ForCausalLM",
  fixed={"qkv_bias": True},
  fields=_FIELDS,
  derived=(config_json.rope, config_json.qwen_window),
  defaults={**_DEFAULTS, **_NO_WINDOW},
  supported={**_SUPPORTED, **_SILU, "use_mrope": (False, None)},
  ignored=_IGNORED,
  tensors=_tensors(_LLAMA_NORMS),
)
_QWEN3 = Family(
  name="qwen3",
  architecture="Qwen3ForCausalLM",
  fixed={"qk_norm": "head"},
  fields=_FIELDS,
  derived=(config_json.rope, config_json.qwen_window),
  defaults={**_DEFAULTS, **_NO_WINDOW, "head_dim": 128},
  supported={**_SUPPORTED, **_SILU, **_NO_BIAS},
  ignored=_IGNORED,
  tensors=_tensors(_LLAMA_NORMS),
)
_QWEN3_MOE = Family(
  name="qwen3_moe",
  architecture="Qwen3MoeForCausalLM",
  fixed={"qk_norm": "head"},
  fields={
    **_FIELDS,
    "moe_intermediate_size": "expert_width",
    "norm_topk_prob": "norm_topk",
    "num_experts_per_tok": "experts_per_token",
  },
  derived=(config_json.rope, config_json.num_experts),
  defaults={**_DEFAULTS, "norm_topk_prob": False},
  supported={
    **_SUPPORTED,
    **_SILU,
    **_NO_BIAS,
    # Experts in all layers.
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    # Versions of transformers disagree about which layers would slide.
    "use_sliding_window": (False, None),
  },
  ignored=_IGNORED
  | {
    "max_window_layers",
    "output_router_logits",
    "router_aux_loss_coef",
    "sliding_window",
  },
  tensors=_tensors(_LLAMA_NORMS),
)
_LLAMA = Family(
  name="llama",
  architecture="LlamaForCausalLM",
  fields=_FIELDS,
  derived=(config_json.rope,),
  defaults={**_DEFAULTS, "num_key_value_heads": None},
  supported={
    **_SUPPORTED,
    **_SILU,
    **_NO_BIAS,
    "is_llama_config": (True,),
    "mlp_bias": (False, None),
    "rope_interleaved": (False,),
  },
  # How the matmuls of the pretraining were split.
  ignored=_IGNORED | {"pretraining_tp"},
  tensors=_tensors(_LLAMA_NORMS),
)
_MISTRAL = Family(
  name="mistral",
  architecture="MistralForCausalLM",
  fields=_FIELDS,
  derived=(config_json.rope, config_json.mistral_window),
  defaults={**_DEFAULTS, "sliding_window": 4096},
  supported={**_SUPPORTED, **_SILU},
  ignored=_IGNORED,
  tensors=_tensors(_LLAMA_NORMS),
)
_OLMO2 = Family(
  name="olmo2",
  architecture="Olmo2ForCausalLM",
  fixed={"pre_norm": False, "post_norm": True, "qk_norm": "projection"},
  fields=_FIELDS,
  derived=(config_json.rope,),
  defaults={**_DEFAULTS, "num_key_value_heads": None, "rms_norm_eps": 1e-5},
  supported={**_SUPPORTED, **_SILU, **_NO_BIAS},
  ignored=_IGNORED,
  tensors=_tensors(_OLMO2_NORMS),
)
_GEMMA2 = Family(
  name="gemma2",
  architecture="Gemma2ForCausalLM",
  fixed={
    "activation": "gelu",
    "norm_plus_one": True,
    "post_norm": True,
    "scale_embeddings": True,
  },
  fields={**_FIELDS, **_SOFTCAPS},
  derived=(
    config_json.rope,
    config_json.gemma2_window,
    config_json.attention_scale,
  ),
  defaults={**_DEFAULTS, "head_dim": 256, "tie_word_embeddings": True},
  supported={
    **_SUPPORTED,
    **_NO_BIAS,
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False, None),
  },
  # Other names of hidden_activation and sliding_window, which nothing reads.
  ignored=_IGNORED | {"hidden_act", "sliding_window_size"},
  tensors=_tensors(_GEMMA_NORMS),
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
  ),
  # transformers keeps a cap of the scores in the config and never applies it.
  fields={
    key: field
    for key, field in _GEMMA2.fields.items()
    if key != "attn_logit_softcapping"
  },
  supported={**_GEMMA2.supported, "attn_logit_softcapping": (None,)},
  # Published models with images name little but what differs from these.
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
  ignored=_GEMMA3_TEXT.ignored | _IMAGES,
  nested=True,
  tensors=_tensors(_GEMMA_NORMS, "language_model."),
  other_parts=("vision_tower.", "multi_modal_projector."),
)

FAMILIES = {
  family.name: family
  for family in (
    _QWEN2,
    _QWEN3,
    _QWEN3_MOE,
    _LLAMA,
    _MISTRAL,
    _OLMO2,
    _GEMMA2,
    _GEMMA3_TEXT,
    _GEMMA3,
  )
}
