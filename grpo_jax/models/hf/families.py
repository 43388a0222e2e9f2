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
from collections.abc import Mapping
from typing import Any

from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.hf import (
  config_json,
  family,
  mixture_families,
  vision_families,
)
from grpo_jax.models.hf.config_json import Keys
from grpo_jax.models.hf.family import Family

_MOST_FURTHER = 64  # Layers behind the model; published are 0 and 1.


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
    **(config_json.flat(config, family.nested) if family.nested else config),
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
  further = 0
  if "num_nextn_predict_layers" in family.ignored:
    further = keys.get("num_nextn_predict_layers") or 0
  if type(further) is not int or not 0 <= further <= _MOST_FURTHER:
    raise config_json.unsupported(
      "num_nextn_predict_layers", further, f"0 to {_MOST_FURTHER}"
    )
  # Layers that predict later tokens, which nothing here runs.
  layers = range(fields["num_layers"], fields["num_layers"] + further)
  parts = (*family.other_parts, *(f"model.layers.{i}." for i in layers))
  family = dataclasses.replace(family, other_parts=parts)
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

_QWEN2 = family.Family(
  name="qwen2",
  architecture="Qwen2ForCausalLM",
  fixed={"qkv_bias": True},
  fields=family.FIELDS,
  derived=(config_json.rope, config_json.qwen_window),
  defaults={**family.DEFAULTS, **family.NO_WINDOW},
  supported={**family.SUPPORTED, **family.SILU, "use_mrope": (False, None)},
  ignored=family.IGNORED,
  tensors=family.tensors(family.LLAMA_NORMS),
)
_QWEN3 = family.Family(
  name="qwen3",
  architecture="Qwen3ForCausalLM",
  fixed={"qk_norm": "head"},
  fields=family.FIELDS,
  derived=(config_json.rope, config_json.qwen_window),
  defaults={**family.DEFAULTS, **family.NO_WINDOW, "head_dim": 128},
  supported={**family.SUPPORTED, **family.SILU, **family.NO_BIAS},
  ignored=family.IGNORED,
  tensors=family.tensors(family.LLAMA_NORMS),
)
_QWEN3_MOE = family.Family(
  name="qwen3_moe",
  architecture="Qwen3MoeForCausalLM",
  fixed={"qk_norm": "head"},
  fields={
    **family.FIELDS,
    "moe_intermediate_size": "expert_width",
    "norm_topk_prob": "norm_topk",
    "num_experts_per_tok": "experts_per_token",
  },
  derived=(config_json.rope, config_json.num_experts),
  defaults={**family.DEFAULTS, "norm_topk_prob": False},
  supported={
    **family.SUPPORTED,
    **family.SILU,
    **family.NO_BIAS,
    # Experts in all layers.
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
    # Versions of transformers disagree about which layers would slide.
    "use_sliding_window": (False, None),
  },
  ignored=family.IGNORED
  | {
    "max_window_layers",
    "output_router_logits",
    "router_aux_loss_coef",
    "sliding_window",
  },
  tensors=family.tensors(family.LLAMA_NORMS),
)
_LLAMA = family.Family(
  name="llama",
  architecture="LlamaForCausalLM",
  fields=family.FIELDS,
  derived=(config_json.rope,),
  defaults={**family.DEFAULTS, "num_key_value_heads": None},
  supported={
    **family.SUPPORTED,
    **family.SILU,
    **family.NO_BIAS,
    "is_llama_config": (True,),
    "mlp_bias": (False, None),
    "rope_interleaved": (False,),
  },
  # How the matmuls of the pretraining were split.
  ignored=family.IGNORED | {"pretraining_tp"},
  tensors=family.tensors(family.LLAMA_NORMS),
)
_MISTRAL = family.Family(
  name="mistral",
  architecture="MistralForCausalLM",
  fields=family.FIELDS,
  derived=(config_json.rope, config_json.mistral_window),
  defaults={**family.DEFAULTS, "sliding_window": 4096},
  supported={**family.SUPPORTED, **family.SILU},
  ignored=family.IGNORED,
  tensors=family.tensors(family.LLAMA_NORMS),
)
_OLMO2 = family.Family(
  name="olmo2",
  architecture="Olmo2ForCausalLM",
  fixed={"pre_norm": False, "post_norm": True, "qk_norm": "projection"},
  fields=family.FIELDS,
  derived=(config_json.rope,),
  defaults={
    **family.DEFAULTS,
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
  },
  supported={**family.SUPPORTED, **family.SILU, **family.NO_BIAS},
  ignored=family.IGNORED,
  tensors=family.tensors(family.OLMO2_NORMS),
)
_GEMMA2 = family.Family(
  name="gemma2",
  architecture="Gemma2ForCausalLM",
  fixed={
    "activation": "gelu",
    "norm_plus_one": True,
    "post_norm": True,
    "scale_embeddings": True,
  },
  fields={**family.FIELDS, **family.SOFTCAPS},
  derived=(
    config_json.rope,
    config_json.alternating_window,
    config_json.attention_scale,
  ),
  defaults={**family.DEFAULTS, "head_dim": 256, "tie_word_embeddings": True},
  supported={
    **family.SUPPORTED,
    **family.NO_BIAS,
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False, None),
  },
  # Other names of hidden_activation and sliding_window, which nothing reads.
  ignored=family.IGNORED | {"hidden_act", "sliding_window_size"},
  tensors=family.tensors(family.GEMMA_NORMS),
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
  ignored=_GEMMA3_TEXT.ignored | family.IMAGES,
  nested=("gemma3_text",),
  tensors=family.tensors(family.GEMMA_NORMS, "language_model."),
  other_parts=("vision_tower.", "multi_modal_projector."),
)

FAMILIES = {
  one.name: one
  for one in (
    _QWEN2,
    _QWEN3,
    _QWEN3_MOE,
    _LLAMA,
    _MISTRAL,
    _OLMO2,
    _GEMMA2,
    _GEMMA3_TEXT,
    _GEMMA3,
    mixture_families.PHI3,
    mixture_families.DEEPSEEK_V3,
    mixture_families.GLM4,
    mixture_families.GLM4_MOE,
    mixture_families.GLM4_MOE_LITE,
    mixture_families.GPT_OSS,
    vision_families.QWEN2_5_VL,
    vision_families.QWEN3_VL,
    vision_families.IDEFICS3,
    vision_families.SMOLVLM,
  )
}
