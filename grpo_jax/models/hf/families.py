"""Families of open checkpoints that a `TransformerConfig` can express.

`FAMILIES`, at the end, maps each `model_type` of a config.json to its `Family`:
the meaning of its keys and the names of its tensors. Every key must be in a
family's table. A key that is not read could be a switch that changes the model,
and the only sign would be slightly wrong logits.

The order here: `Family`; names of tensors; keys of files; families with fused
tensors, latent attention or routed experts; towers of families with images; the
reader; and the table, whose rows say how a family differs from `_ANY`, or from
another family. DeepSeek-R1's distillations are "qwen2" and "llama" files.
SmolVLM's files are those of Idefics3.

As in `config_json.py`, a function removes the keys that it reads. Towers are in
"vision_config", whose keys must all be known too. Videos are not supported:
their keys are ignored, and their tokens are like any other token.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
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

  def like(
    self,
    name: str,
    architecture: str,
    *,
    without: Iterable[str] = (),
    **changes: Any,
  ) -> Family:
    """Another family, with the attributes in which it differs.

    Args:
      name, architecture: As above.
      without: Keys of this family's tables that the other does not have.
      **changes: Attributes. Tables and sets of keys have further entries,
        beside those of this family; all others replace this family's.
    """
    for table in ("fixed", "fields", "defaults", "supported", "tensors"):
      own = getattr(self, table)
      kept = {key: x for key, x in own.items() if key not in without}
      changes[table] = kept | changes.get(table, {})
    changes["ignored"] = self.ignored.difference(without).union(
      changes.get("ignored", ())
    )
    return dataclasses.replace(
      self, name=name, architecture=architecture, **changes
    )

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


# --- Names of tensors ---


def table(text: str, leaf: str = "", name: str = "") -> dict:
  """Reads a table of tensors, one row of a leaf and a name in each line.

  A row with (a|b) in both stands for two rows, and [qkv] for three tensors of
  one leaf.

  Args:
    text: The rows.
    leaf, name: Beginnings of all leaves, and of all names.
  """
  rows = {}
  for line in text.split("\n"):
    if line.strip():
      pair = (_each(x, r"\((.*?)\)", "|") for x in line.split())
      for path, tensor in zip(*pair, strict=True):
        rows[leaf + path] = _each(name + tensor, r"\[(.*?)\]", "")
  return rows


def _each(text: str, pattern: str, separator: str) -> tuple[str, ...]:
  """A text with each of the alternatives that it has in brackets."""
  match = re.search(pattern, text)
  if match is None:
    return (text,)
  parts = match[1].split(separator) if separator else match[1]
  return tuple(text.replace(match[0], part) for part in parts)


_LAYER = "model.layers.{layer}."


def layered(text: str, name: str = _LAYER) -> dict:
  """Reads a table of tensors of layers."""
  return table(text, "layers/", name)


def _inside(
  tensors: Mapping[str, tuple[str, ...]], inner: str, outer: str = ""
) -> dict[str, tuple[str, ...]]:
  """Tensors of a model inside another one: `inner` in the place of `outer`."""
  return {
    leaf: tuple(
      inner + name.removeprefix(outer) if name.startswith(outer) else name
      for name in names
    )
    for leaf, names in tensors.items()
  }


_NO_NORMS = table("""
  embed/embedding  model.embed_tokens.weight
  final_norm/scale model.norm.weight
  head/kernel      lm_head.weight
  router_bias      model.layers.{layer}.mlp.gate.e_score_correction_bias
""") | layered("""
  attention/qkv/(kernel|bias)      self_attn.[qkv]_proj.(weight|bias)
  attention/out/(kernel|bias)      self_attn.o_proj.(weight|bias)
  attention/(query|key)_norm/scale self_attn.(q|k)_norm.weight
  attention/sinks                  self_attn.sinks
  attention/query_heads/kernel     self_attn.q_proj.weight
  attention/query_down/kernel      self_attn.q_a_proj.weight
  attention/query_down_norm/scale  self_attn.q_a_layernorm.weight
  attention/query_up/kernel        self_attn.q_b_proj.weight
  attention/kv_down/kernel         self_attn.kv_a_proj_with_mqa.weight
  attention/kv_down_norm/scale     self_attn.kv_a_layernorm.weight
  attention/kv_up/kernel           self_attn.kv_b_proj.weight
  delta/taps                       linear_attn.conv1d.[qkv]
  delta/(log_rate|rate_bias|scale) linear_attn.(A_log|dt_bias|norm.weight)
  delta/out/kernel                 linear_attn.out_proj.weight
  mlp/(gate|up|down)/kernel        mlp.(gate|up|down)_proj.weight
  mlp/router/kernel                mlp.gate.weight
  mlp/shared/(gate|up|down)/kernel mlp.shared_experts.(gate|up|down)_proj.weight
  mlp/experts/(gate|up|down)  mlp.experts.{expert}.(gate|up|down)_proj.weight
""")
# post_attention_layernorm is the norm before the MLP in Llama, and the norm
# after attention in Gemma and OLMo-2.
_TENSORS = _NO_NORMS | layered("""
  attention_norm/scale input_layernorm.weight
  mlp_norm/scale       post_attention_layernorm.weight
""")
_OLMO2_TENSORS = _NO_NORMS | layered("""
  attention_post_norm/scale post_attention_layernorm.weight
  mlp_post_norm/scale       post_feedforward_layernorm.weight
""")
_GEMMA_TENSORS = _OLMO2_TENSORS | layered("""
  attention_norm/scale input_layernorm.weight
  mlp_norm/scale       pre_feedforward_layernorm.weight
""")
QKV = Fused(
  "self_attn.qkv_proj.weight",
  _each("self_attn.[qkv]_proj.weight", r"\[(.*?)\]", ""),
)
GATE_UP = Fused(
  "mlp.gate_up_proj.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight")
)
_EXPERTS_GATE_UP = Fused(
  "experts.gate_up_proj", ("experts.gate_proj", "experts.up_proj"), axis=1
)

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
NO_WINDOW = {
  "max_window_layers": 28,
  "sliding_window": 4096,
  "use_sliding_window": False,
}
_MIXTURE = {
  "moe_intermediate_size": "expert_width",
  "norm_topk_prob": "norm_topk",
  "num_experts_per_tok": "experts_per_token",
}
# Keys of the experts of DeepSeek-V3 and GLM-4.5.
ROUTED = {
  **_MIXTURE,
  "n_group": "router_groups",
  "n_routed_experts": "num_experts",
  "routed_scaling_factor": "router_scale",
  "topk_group": "groups_per_token",
}
SIGMOID: dict[str, tuple] = {
  "moe_layer_freq": (1,),
  "scoring_func": ("sigmoid",),
  "topk_method": ("noaux_tc",),
}
# Experts in all layers. Versions of transformers disagree about which layers
# would slide.
_IN_ALL_LAYERS: dict[str, tuple] = {
  "decoder_sparse_step": (1,),
  "mlp_only_layers": ([], None),
  "use_sliding_window": (False, None),
}
# Losses of routers, and layers that predict later tokens; neither is run here.
OF_ROUTERS = frozenset(
  (
    *("aux_loss_alpha", "num_nextn_predict_layers", "output_router_logits"),
    *("router_aux_loss_coef", "seq_aux"),
  )
)
_PART = ("partial_rotary_factor",)  # Of models that turn a part of a head.
_NO: tuple = (False, None)
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
  *("boi_token_index", "eoi_token_index", "image_token_index"),
  *("mm_tokens_per_image", "vision_config"),
}
# Keys about tokens around images and about videos, which are not read.
_MARKS = {
  *("video_token_id", "vision_end_token_id", "vision_start_token_id"),
  "vision_token_id",
}


def _code(**names: str) -> tuple:
  """Values of "auto_map": none, or code that a checkpoint brings.

  The code of these names computes the same as transformers.
  """
  return (None, {}, names) if names else (None, {})


# Keys and values that most families share; no family has this one's name.
_ANY = Family(
  name="",
  architecture="",
  fields=FIELDS,
  derived=(config_json.rope,),
  defaults={
    "head_dim": None,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
  },
  supported={
    "add_cross_attention": _NO,
    # The key sets a bias on all four projections at once.
    "attention_bias": _NO,
    "auto_map": _code(),
    "hidden_act": ("silu",),
    "is_encoder_decoder": _NO,
    "partial_rotary_factor": (1.0, None),
    "pruned_heads": (None, {}),
  },
  ignored=IGNORED,
  tensors={},
)
_USUAL = _ANY.like("", "", tensors=_TENSORS)

_PHI3 = _USUAL.like(
  "phi3",
  "Phi3ForCausalLM",
  without=_PART,
  derived=(config_json.partial_rope, config_json.mistral_window),
  defaults={
    "num_key_value_heads": None,
    "partial_rotary_factor": None,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
  },
  supported={
    "auto_map": _code(  # Phi-4-mini's.
      AutoConfig="configuration_phi3.Phi3Config",
      AutoModelForCausalLM="modeling_phi3.Phi3ForCausalLM",
      AutoTokenizer="Xenova/gpt-4o",
    ),
    "full_attn_mod": (1,),
    "interpolate_factor": (1,),
    "lm_head_bias": _NO,
    "mlp_bias": _NO,
  },
  ignored={"embd_pdrop", "resid_pdrop"},
  fused=(QKV, GATE_UP),
)
_GLM4 = _USUAL.like(
  "glm4",
  "Glm4ForCausalLM",
  without=(*_PART, "attention_bias"),
  fixed={"post_norm": True, "rotary_interleaved": True},
  fields={"attention_bias": "qkv_bias"},
  derived=(config_json.partial_rope,),
  defaults={
    "attention_bias": True,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
  },
  tensors=layered("""
    attention_post_norm/scale post_self_attn_layernorm.weight
    mlp_post_norm/scale       post_mlp_layernorm.weight
  """),
  fused=(GATE_UP,),
)
_DEEPSEEK_V3 = _USUAL.like(
  "deepseek_v3",
  "DeepseekV3ForCausalLM",
  without=("head_dim",),
  fixed={"router_bias": True, "router_scores": "sigmoid"},
  fields={**ROUTED, "rope_interleave": "rotary_interleaved"},
  derived=(config_json.latent_attention, config_json.routed_experts),
  defaults={
    "first_k_dense_replace": 3,
    "q_lora_rank": None,
    "rope_interleave": True,
  },
  supported={
    **SIGMOID,
    "auto_map": _code(
      AutoConfig="configuration_deepseek.DeepseekV3Config",
      AutoModel="modeling_deepseek.DeepseekV3Model",
      AutoModelForCausalLM="modeling_deepseek.DeepseekV3ForCausalLM",
    ),
  },
  ignored=OF_ROUTERS | {"ep_size", "pretraining_tp"},
)
_KIMI = "modeling_kimi_k25.KimiK25ForConditionalGeneration"
# Kimi K2.5 and K2.6; of both the text part.
_KIMI_K25 = _DEEPSEEK_V3.like(
  "kimi_k25",
  "Kimi_K25ForConditionalGeneration",
  spellings=("KimiK25ForConditionalGeneration",),
  supported={
    "auto_map": (
      *_DEEPSEEK_V3.supported["auto_map"],
      {
        "AutoConfig": "configuration_kimi_k25.KimiK25Config",
        "AutoModel": _KIMI,
        "AutoModelForCausalLM": _KIMI,
      },
    ),
  },
  ignored={
    *("ignore_index", "image_token_id", "media_placeholder_token_id"),
    *("projection_hidden_size", "projection_layer_norm_eps"),
    *("use_unified_vision_chunk", "video_placeholder", "video_token_id"),
    *("vision_config", "vision_end_token_id", "vision_start_token_id"),
  },
  nested=("kimi_k2", "deepseek_v3"),
  tensors=_inside(_TENSORS, "language_model."),
  other_parts=("vision_tower.", "mm_projector."),
)
# DeepSeek-V3 with sparse attention; queries always have a latent vector.
_DEEPSEEK_V32 = _DEEPSEEK_V3.like(
  "deepseek_v32",
  "DeepseekV32ForCausalLM",
  without=("rope_interleave",),
  fixed={"rotary_interleaved": True},
  derived=(
    *_DEEPSEEK_V3.derived,
    functools.partial(config_json.indexer, interleaved=False),
  ),
  supported={
    "auto_map": _code(),
    "mlp_bias": _NO,
    "rope_interleave": (True,),
  },
  tensors=layered(
    """
    attention/indexer/(query|key)/kernel    (wq_b|wk).weight
    attention/indexer/key_norm/(scale|bias) k_norm.(weight|bias)
    attention/indexer/head_weights/kernel   weights_proj.weight
    """,
    _LAYER + "self_attn.indexer.",
  ),
)
_V4_TENSORS = table("""
  embed/embedding                 model.embed_tokens.weight
  final_norm/scale                model.norm.weight
  head/kernel                     head.weight
  router_(bias|table)             model.layers.{layer}.ffn.gate.(bias|tid2eid)
  stream_head/(weight|bias|scale) model.hc_head.hc_(fn|base|scale)
""") | layered("""
  attention_streams/(weight|bias|scale) hc_attn_(fn|base|scale)
  mlp_streams/(weight|bias|scale)       hc_ffn_(fn|base|scale)
  (attention|mlp)_norm/scale            (attn|ffn)_norm.weight
  attention/query_down/kernel           attn.wq_a.weight
  attention/query_down_norm/scale       attn.q_norm.weight
  attention/query_up/kernel             attn.wq_b.weight
  attention/kv_down/kernel              attn.wkv.weight
  attention/kv_down_norm/scale          attn.norm.weight
  attention/sinks                       attn.attn_sink
  attention/out_down                    attn.wo_a.weight
  attention/out/kernel                  attn.wo_b.weight
  attention/compressor/(values|gates)/kernel attn.compressor.(wkv|wgate).weight
  attention/compressor/place_bias            attn.compressor.ape
  attention/compressor/norm/scale            attn.compressor.norm.weight
  attention/indexer/query/kernel             attn.indexer.wq_b.weight
  attention/indexer/head_weights/kernel      attn.indexer.weights_proj.weight
  attention/indexer/compressor/values/kernel attn.indexer.compressor.wkv.weight
  attention/indexer/compressor/gates/kernel attn.indexer.compressor.wgate.weight
  attention/indexer/compressor/place_bias    attn.indexer.compressor.ape
  attention/indexer/compressor/norm/scale    attn.indexer.compressor.norm.weight
  mlp/router/kernel                ffn.gate.weight
  mlp/shared/(gate|up|down)/kernel ffn.shared_experts.(w1|w3|w2).weight
  mlp/experts/(gate|up|down)       ffn.experts.{expert}.(w1|w3|w2).weight
""")
_DEEPSEEK_V4 = _ANY.like(
  "deepseek_v4",
  "DeepseekV4ForCausalLM",
  without=("intermediate_size", *_PART),
  fixed={
    "activation": "bounded",
    "attention_sinks": True,
    "router_scores": "sqrtsoftplus",
  },
  fields={
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
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "num_key_value_heads": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "routed_scaling_factor": 1.5,
    "sliding_window": 128,
    "swiglu_limit": 10.0,
  },
  supported={
    "expert_dtype": ("fp8", None),
    "mlp_bias": _NO,
    "n_shared_experts": (1,),
    "norm_topk_prob": (True,),
    "router_jitter_noise": (0, None),
    "scoring_func": ("sqrtsoftplus",),
    "topk_method": ("noaux_tc",),
  },
  ignored=OF_ROUTERS,
  tensors=_V4_TENSORS,
  later_layers=("mtp.",),
)
# DeepSeek's own names; those of the first form are what transformers writes.
_AS_PUBLISHED = dataclasses.replace(
  _DEEPSEEK_V4,
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
_GPT_OSS = _USUAL.like(
  "gpt_oss",
  "GptOssForCausalLM",
  fixed={
    "activation": "clamped",
    "attention_sinks": True,
    "expert_biases": True,
    "out_bias": True,
    "qkv_bias": True,
  },
  fields={"num_experts_per_tok": "experts_per_token"},
  derived=(
    config_json.named_rope,
    config_json.num_experts,
    config_json.expert_width,
    config_json.clamped_experts,
    config_json.alternating_window,
  ),
  defaults={
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
  },
  supported={"attention_bias": (True,)},
  # A note; the original context is among the keys of the positions.
  ignored=OF_ROUTERS | {"initial_context_length"},
  tensors=layered("""
    mlp/router/(kernel|bias)        mlp.router.(weight|bias)
    mlp/experts/(gate|up|down)      mlp.experts.(gate|up|down)_proj
    mlp/experts/(gate|up|down)_bias mlp.experts.(gate|up|down)_proj_bias
  """),
  fused=tuple(
    Fused(
      f"experts.gate_up_proj{end}",
      (f"experts.gate_proj{end}", f"experts.up_proj{end}"),
      interleaved=True,
    )
    for end in ("", "_bias")
  ),
  experts_in_one=True,
)

# --- Towers ---

# Notes, and sizes of images, which only the processor needs.
_IGNORED = IGNORED | {
  *("max_image_size", "model_type", "size", "spatial_patch_size"),
  *("tie_word_embeddings", "tokens_per_second"),
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
_AXIAL: tuple = (None, {"rope_theta": 10_000.0, "rope_type": "axial"})


def turned_by_place(keys: Keys, default: tuple[int, ...]) -> dict[str, Any]:
  """Fields of positions by time, row and column, each for a part of a head.

  Args:
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
  if not _are_numbers(default) or len(default) != 3:
    raise config_json.unsupported(
      "mrope_section", default, "a list of three numbers of pairs of channels"
    )
  return {**config_json.rope(keys), "rope_sections": tuple(default)}


def _are_numbers(values: Any) -> bool:
  return isinstance(values, list | tuple) and all(
    type(x) is int and x >= 0 for x in values
  )


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
  config_json.check_supported(config, supported, "vision_config.")
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


def _layers(rest: Keys, key: str) -> tuple[int, ...]:
  if not _are_numbers(value := rest.pop(key)):
    raise config_json.unsupported(
      f"vision_config.{key}", value, "a list of layers, from 0"
    )
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
  full = _layers(rest, "fullatt_block_indexes")
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
  side = math.isqrt(count) if type(count) is int and count > 0 else 0
  if side < 1 or side**2 != count:
    raise config_json.unsupported(
      "vision_config.num_position_embeddings", count, "the square of a number"
    )
  deep = _layers(rest, "deepstack_visual_indexes")
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
  for key, value, name in (
    ("scale_factor", merge, "merge"),
    ("vision_config.image_size", size, "side"),
  ):
    if type(value) is not int or value not in TOWER_RANGES[name]:
      raise config_json.unsupported(
        key, value, f"a number, {TOWER_RANGES[name]}"
      )
  side = size // fields["patch_size"]
  return _make({**fields, "merge": merge, "side": side}, rest)


def _modules(text: str, inner: str) -> dict[str, tuple[str, ...]]:
  """Reads a table of a tower's modules, each with a kernel, or scale, and bias.

  Args:
    text: Rows of a module here, which is a norm if its name ends so, and there.
    inner: Beginning of the names there.
  """
  rows: dict[str, tuple[str, ...]] = {}
  for leaf, names in table(text, "tower/", inner).items():
    weight = "scale" if leaf.endswith("norm") else "kernel"
    rows[f"{leaf}/{weight}"] = tuple(f"{name}.weight" for name in names)
    rows[f"{leaf}/bias"] = tuple(f"{name}.bias" for name in names)
  return rows


_QWEN_TOWER = """
  patch                            patch_embed.proj
  layers/attention/(qkv|out)       blocks.{layer}.attn.(qkv|proj)
  layers/(attention_norm|mlp_norm) blocks.{layer}.(norm1|norm2)
"""
_QWEN2_MERGER = "merger/(norm|up|down) merger.(ln_q|mlp.0|mlp.2)"
_QWEN2_TOWER = _modules(
  f"""{_QWEN_TOWER}
  layers/mlp/(up|down) blocks.{{layer}}.mlp.(fc1|fc2)
  {_QWEN2_MERGER}
  """,
  "visual.",
)
_QWEN2_5_TOWER = _modules(
  f"""{_QWEN_TOWER}
  layers/mlp/(gate|up|down) blocks.{{layer}}.mlp.(gate|up|down)_proj
  {_QWEN2_MERGER}
  """,
  "visual.",
)
_QWEN3_TOWER = _modules(
  _QWEN_TOWER
  + """
  layers/mlp/(up|down)  blocks.{layer}.mlp.(linear_fc1|linear_fc2)
  merger/(norm|up|down) merger.(norm|linear_fc1|linear_fc2)
  deep/(norm|up|down) deepstack_merger_list.{layer}.(norm|linear_fc1|linear_fc2)
  """,
  "model.visual.",
) | table("tower/places/embedding model.visual.pos_embed.weight")
_SIGLIP_TOWER = _modules(
  """
  patch                      embeddings.patch_embedding
  layers/attention_norm      encoder.layers.{layer}.layer_norm1
  layers/mlp_norm            encoder.layers.{layer}.layer_norm2
  layers/attention/(qkv|out) encoder.layers.{layer}.self_attn.([qkv]|out)_proj
  layers/mlp/(up|down)       encoder.layers.{layer}.mlp.(fc1|fc2)
  final_norm                 post_layernorm
  """,
  "model.vision_model.",
) | table(
  """
  places/embedding vision_model.embeddings.position_embedding.weight
  connector/kernel connector.modality_projection.proj.weight
  """,
  "tower/",
  "model.",
)

_QWEN2_5_VL = _USUAL.like(
  "qwen2_5_vl",
  "Qwen2_5_VLForConditionalGeneration",
  without=("attention_bias", "head_dim"),
  fixed={"qkv_bias": True},
  fields={"image_token_id": "image_token"},
  derived=(
    functools.partial(turned_by_place, default=(16, 24, 24)),
    qwen2_5_tower,
    config_json.qwen_window,
  ),
  defaults={
    **NO_WINDOW,
    "max_window_layers": 80,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
  },
  ignored=_MARKS,
  nested=("qwen2_5_vl_text", None),
  tensors=_QWEN2_5_TOWER,
)
_QWEN2_VL = dataclasses.replace(
  _QWEN2_5_VL,
  name="qwen2_vl",
  architecture="Qwen2VLForConditionalGeneration",
  derived=(
    functools.partial(turned_by_place, default=(16, 24, 24)),
    qwen2_tower,
    config_json.qwen_window,
  ),
  nested=("qwen2_vl_text", None),
  tensors=_TENSORS | _QWEN2_TOWER,
)
_QWEN3_VL = _USUAL.like(
  "qwen3_vl",
  "Qwen3VLForConditionalGeneration",
  fixed={"qk_norm": "head", "rope_sections_mixed": True},
  fields={"image_token_id": "image_token"},
  derived=(
    functools.partial(turned_by_place, default=(24, 20, 20)),
    qwen3_tower,
  ),
  defaults={"head_dim": 128, "rope_theta": 500_000.0},
  ignored=_MARKS,
  nested=("qwen3_vl_text",),
  tensors=_inside(_TENSORS, "model.language_model.", "model.") | _QWEN3_TOWER,
)
_IDEFICS3 = _USUAL.like(
  "idefics3",
  "Idefics3ForConditionalGeneration",
  fields={"image_token_id": "image_token"},
  derived=(config_json.rope, siglip_tower),
  defaults={
    "num_key_value_heads": None,
    "rms_norm_eps": 1e-5,
    "scale_factor": 2,
  },
  supported={
    "is_llama_config": (True,),
    "mlp_bias": _NO,
    "qk_layer_norms": (False,),
    "rope_interleaved": (False,),
    "use_resampler": (False,),
  },
  # Keys of the code that trained the models; only "scale_factor" counts.
  ignored={
    *("_flash_attn_2_enabled", "neftune_noise_alpha", "perceiver_config"),
    *("pixel_shuffle_factor", "pretraining_tp", "use_reentrant_checkpointing"),
  },
  nested=("llama",),
  tensors=_inside(_TENSORS, "model.text_model.", "model.") | _SIGLIP_TOWER,
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
    keys.pop("quantization_config", None), packs_experts=name == _GPT_OSS.name
  )
  config_json.check_supported(keys, family.supported)
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

_QWEN3 = _USUAL.like(
  "qwen3",
  "Qwen3ForCausalLM",
  fixed={"qk_norm": "head"},
  derived=(config_json.rope, config_json.qwen_window),
  defaults={**NO_WINDOW, "head_dim": 128},
)
_TAPS = Fused(
  "linear_attn.conv1d.weight",
  tuple(f"linear_attn.conv1d.{part}" for part in "qkv"),
)
_QWEN3_5_TEXT = _USUAL.like(
  "qwen3_5_text",
  "Qwen3_5ForCausalLM",
  without=_PART,
  fixed={"attention_gate": True, "norm_plus_one": True, "qk_norm": "head"},
  derived=(config_json.text_rope, config_json.delta_rule),
  defaults={
    "full_attention_interval": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "partial_rotary_factor": 0.25,
  },
  supported={
    "attn_output_gate": (True,),
    "mamba_ssm_dtype": ("float32", None),
    "mlp_only_layers": ([], None),
    "use_sliding_window": _NO,
  },
  ignored={"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"},
  tensors=layered("""
    delta/inputs/kernel    linear_attn.in_proj_[qkvz].weight
    delta/rates/kernel     linear_attn.in_proj_[ba].weight
    mlp/shared_gate/kernel mlp.shared_expert_gate.weight
   mlp/shared/(gate|up|down)/kernel mlp.shared_expert.(gate|up|down)_proj.weight
  """),
  fused=(
    _TAPS,
    Fused(
      "linear_attn.in_proj_qkv.weight",
      tuple(f"linear_attn.in_proj_{part}.weight" for part in "qkv"),
    ),
  ),
  later_layers=("mtp.",),
)
_QWEN3_NEXT = _QWEN3_5_TEXT.like(
  "qwen3_next",
  "Qwen3NextForCausalLM",
  without=_QWEN3_5_TEXT.ignored - IGNORED,
  fixed={"shared_gate": True},
  fields={**_MIXTURE, "shared_expert_intermediate_size": "shared_width"},
  derived=(
    config_json.partial_rope,
    config_json.delta_rule,
    config_json.num_experts,
  ),
  defaults={"intermediate_size": 5632, "norm_topk_prob": True},
  supported=_IN_ALL_LAYERS,
  ignored=OF_ROUTERS,
  tensors=layered("""
    delta/(inputs|rates)/kernel linear_attn.(in_proj_qkvz|in_proj_ba).weight
  """),
  fused=(_TAPS,),
)
_QWEN3_5_MOE_TEXT = _QWEN3_5_TEXT.like(
  "qwen3_5_moe_text",
  "Qwen3_5MoeForCausalLM",
  without=("intermediate_size",),
  fixed={"shared_gate": True},
  fields={
    "moe_intermediate_size": "expert_width",
    "num_experts_per_tok": "experts_per_token",
    "shared_expert_intermediate_size": "shared_width",
  },
  derived=(*_QWEN3_5_TEXT.derived, config_json.num_experts),
  # Weights of a token's experts always add up to 1.
  supported={"norm_topk_prob": (True,)},
  ignored=OF_ROUTERS,
)
# Images are not read; the tower is left as it is.
_QWEN3_5_IMAGES: dict[str, Any] = {
  "ignored": _MARKS | {"image_token_id", "vision_config"},
  "tensors": _inside(_QWEN3_5_TEXT.tensors, "model.language_model.", "model."),
  "other_parts": ("model.visual.",),
}


def _either_form(family: Family) -> Family:
  """A mixture whose files have one tensor for each expert, or for all.

  Files have one for all experts of a layer; in FP8, and as transformers writes
  them, one for each.
  """
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


_MISTRAL = _USUAL.like(
  "mistral",
  "MistralForCausalLM",
  without=("attention_bias",),
  derived=(config_json.rope, config_json.mistral_window),
  defaults={"sliding_window": 4096},
)
_MINISTRAL3 = _MISTRAL.like(
  "ministral3",
  "Ministral3ForCausalLM",
  derived=(config_json.ministral3_rope, config_json.mistral_window),
  defaults={"head_dim": 128, "rms_norm_eps": 1e-5, "sliding_window": None},
)
_LLAMA4_TEXT = _USUAL.like(
  "llama4_text",
  "Llama4ForCausalLM",
  fixed={
    "norm_topk": False,
    "rotary_interleaved": True,
    "router_scores": "sigmoid",
  },
  fields={
    "intermediate_size": "expert_width",
    "intermediate_size_mlp": "mlp_width",
    "num_experts_per_tok": "experts_per_token",
  },
  derived=(config_json.rope, config_json.num_experts, config_json.llama4),
  defaults={
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
    "for_llm_compressor": (False,),
    "router_jitter_noise": (0, None),
  },
  ignored=OF_ROUTERS,
  tensors=layered(
    """
    mlp/router/kernel                router.weight
    mlp/experts/(gate|up|down)       experts.(gate|up|down)_proj
    mlp/(gate|up|down)/kernel        (gate|up|down)_proj.weight
    mlp/shared/(gate|up|down)/kernel shared_expert.(gate|up|down)_proj.weight
    """,
    _LAYER + "feed_forward.",
  ),
  fused=(dataclasses.replace(_EXPERTS_GATE_UP, axis=2),),
  experts_in_one=True,
)
_OLMO2 = _ANY.like(
  "olmo2",
  "Olmo2ForCausalLM",
  fixed={"pre_norm": False, "post_norm": True, "qk_norm": "projection"},
  defaults={"num_key_value_heads": None, "rms_norm_eps": 1e-5},
  tensors=_OLMO2_TENSORS,
)
_GEMMA2 = _ANY.like(
  "gemma2",
  "Gemma2ForCausalLM",
  without=("hidden_act",),
  fixed={
    "activation": "gelu",
    "norm_plus_one": True,
    "post_norm": True,
  },
  fields={
    "attn_logit_softcapping": "attention_softcap",
    "final_logit_softcapping": "final_softcap",
  },
  derived=(
    config_json.rope,
    config_json.alternating_window,
    config_json.attention_scale,
    config_json.embedding_scale,
  ),
  defaults={"head_dim": 256, "tie_word_embeddings": True},
  supported={
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": _NO,
  },
  # Other names of hidden_activation and sliding_window; transformers ignores
  # them.
  ignored={"hidden_act", "sliding_window_size"},
  tensors=_GEMMA_TENSORS,
)
_GEMMA3_TEXT = _GEMMA2.like(
  "gemma3_text",
  "Gemma3ForCausalLM",
  # transformers keeps a cap of the scores in the config, but never applies it.
  without=("attn_logit_softcapping",),
  fixed={"qk_norm": "head"},
  derived=(
    config_json.gemma3_rope,
    config_json.gemma3_window,
    config_json.attention_scale,
    config_json.embedding_scale,
  ),
  supported={"attn_logit_softcapping": (None,)},
  # Published models with images name little beside the differences to these.
  defaults={
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
_GEMMA4_TEXT = _ANY.like(
  "gemma4_text",
  "Gemma4ForCausalLM",
  without=("hidden_act", "rope_theta"),
  fixed={
    "activation": "gelu",
    "attention_scale": 1.0,
    "post_norm": True,
    "qk_norm": "head",
  },
  fields={"final_logit_softcapping": "final_softcap"},
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
    "expert_intermediate_size": (None,),
    "hidden_activation": ("gelu_pytorch_tanh",),
    # "vision" is about the tokens of images, which are not read.
    "use_bidirectional_attention": (None, "vision"),
  },
  tensors=_GEMMA_TENSORS
  | table(
    """
    layer_inputs/embed/embedding   embed_tokens_per_layer.weight
    layer_inputs/projection/kernel per_layer_model_projection.weight
    layer_inputs/norm/scale        per_layer_projection_norm.weight
    layer_scale                    layers.{layer}.layer_scalar
    """,
    name="model.",
  )
  | layered("""
    attention/key_heads/kernel   self_attn.k_proj.weight
    inputs/gate/kernel           per_layer_input_gate.weight
    inputs/down/kernel           per_layer_projection.weight
    inputs_norm/scale            post_per_layer_input_norm.weight
    mlp/router/kernel            router.proj.weight
    mlp/router_norm/scale        router.scale
    mlp/expert_scale             router.per_expert_scale
    mlp/experts/(gate|up|down)   experts.(gate|up|down)_proj
    mlp/dense_post_norm/scale    post_feedforward_layernorm_1.weight
    mlp/experts_post_norm/scale  post_feedforward_layernorm_2.weight
    mlp/experts_norm/scale       pre_feedforward_layernorm_2.weight
  """),
  fused=(_EXPERTS_GATE_UP,),
  experts_in_one=True,
  experts_outputs_first=True,
)

_ALL = (
  _USUAL.like(
    "qwen2",
    "Qwen2ForCausalLM",
    without=("attention_bias",),
    fixed={"qkv_bias": True},
    derived=(config_json.rope, config_json.qwen_window),
    defaults=NO_WINDOW,
    supported={"use_mrope": _NO},
  ),
  _QWEN3,
  _USUAL.like(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    fixed={"qk_norm": "head"},
    fields=_MIXTURE,
    derived=(config_json.rope, config_json.num_experts),
    defaults={"norm_topk_prob": False},
    supported=_IN_ALL_LAYERS,
    ignored={
      *("max_window_layers", "output_router_logits"),
      *("router_aux_loss_coef", "sliding_window"),
    },
  ),
  _QWEN3_NEXT,
  _QWEN3_5_TEXT.like(
    "qwen3_5",
    "Qwen3_5ForConditionalGeneration",
    nested=("qwen3_5_text",),
    **_QWEN3_5_IMAGES,
  ),
  _QWEN3_5_TEXT,
  _either_form(
    _QWEN3_5_MOE_TEXT.like(
      "qwen3_5_moe",
      "Qwen3_5MoeForConditionalGeneration",
      nested=("qwen3_5_moe_text",),
      **_QWEN3_5_IMAGES,
    )
  ),
  _either_form(_QWEN3_5_MOE_TEXT),
  _USUAL.like(
    "llama",
    "LlamaForCausalLM",
    defaults={"num_key_value_heads": None},
    supported={
      "is_llama_config": (True,),
      "mlp_bias": _NO,
      "rope_interleaved": (False,),
    },
    ignored={"pretraining_tp"},  # The split of matmuls in pretraining.
  ),
  _USUAL.like(
    "granite",
    "GraniteForCausalLM",
    fields={
      "attention_multiplier": "attention_scale",
      "embedding_multiplier": "embedding_scale",
      "residual_multiplier": "residual_scale",
    },
    derived=(config_json.rope, config_json.logit_scale),
    defaults={
      "attention_multiplier": 1.0,
      "embedding_multiplier": 1.0,
      "logits_scaling": 1.0,
      "num_key_value_heads": None,
      "residual_multiplier": 1.0,
    },
    supported={"mlp_bias": _NO},
  ),
  _MISTRAL,
  _MINISTRAL3,
  _MINISTRAL3.like(
    "mistral3",
    "Mistral3ForConditionalGeneration",
    ignored={
      *("image_token_id", "image_token_index", "multimodal_projector_bias"),
      *("projector_hidden_act", "spatial_merge_size", "vision_config"),
      "vision_feature_layer",
    },
    nested=("ministral3",),
    tensors=_inside(_TENSORS, "language_model."),
    other_parts=("vision_tower.", "multi_modal_projector."),
  ),
  _USUAL.like(
    "mixtral",
    "MixtralForCausalLM",
    without=("attention_bias",),
    fields={"num_experts_per_tok": "experts_per_token"},
    derived=(
      config_json.rope,
      config_json.mistral_window,
      config_json.num_experts,
      config_json.expert_width,
    ),
    defaults={
      "rms_norm_eps": 1e-5,
      "rope_theta": 1_000_000.0,
      "sliding_window": None,
    },
    supported={"router_jitter_noise": (0, None)},
    ignored=OF_ROUTERS,
    tensors=layered(
      """
      mlp/router/kernel          gate.weight
      mlp/experts/(gate|up|down) experts.{expert}.(w1|w3|w2).weight
      """,
      _LAYER + "block_sparse_moe.",
    ),
  ),
  _USUAL.like(
    "smollm3",
    "SmolLM3ForCausalLM",
    derived=(config_json.rope, config_json.no_rope_layers),
    defaults={
      "no_rope_layer_interval": 4,
      "no_rope_layers": None,
      "rope_theta": 2_000_000.0,
      "tie_word_embeddings": True,
    },
    supported={"mlp_bias": _NO, "use_sliding_window": _NO},
    ignored={"max_window_layers", "pretraining_tp", "sliding_window"},
  ),
  _LLAMA4_TEXT,
  _LLAMA4_TEXT.like(
    "llama4",
    "Llama4ForConditionalGeneration",
    ignored=IMAGES,
    nested=("llama4_text",),
    tensors=_inside(_LLAMA4_TEXT.tensors, "language_model."),
    other_parts=("vision_model.", "multi_modal_projector."),
  ),
  _OLMO2,
  _OLMO2.like(
    "olmo3",
    "Olmo3ForCausalLM",
    derived=(config_json.olmo3_rope, config_json.olmo3_window),
    defaults={
      "rope_theta": config_json.OLMO3_THETA,
      "sliding_window": 4096,
    },
  ),
  _ANY.like(
    "nanochat",
    "NanoChatForCausalLM",
    fixed={
      "activation": "relu2",
      "embedding_norm": True,
      "gate": False,
      "norm": "plain",
      "qk_norm": "head",
      "rotary_backward": True,
    },
    fields={"final_logit_softcapping": "final_softcap"},
    defaults={
      "final_logit_softcapping": 15.0,
      "hidden_act": "relu2",
      "num_key_value_heads": None,
    },
    supported={"hidden_act": ("relu2",)},
    tensors=_NO_NORMS | layered("mlp/(up|down)/kernel mlp.(fc1|fc2).weight"),
  ),
  _ANY.like(
    "gpt2",
    "GPT2LMHeadModel",
    without={*FIELDS, *_ANY.defaults, "attention_bias"},
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
      "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
      "reorder_and_upcast_attn": (False,),
      "scale_attn_by_inverse_layer_idx": (False,),
      "scale_attn_weights": (True,),
    },
    ignored={
      *("attn_pdrop", "embd_pdrop", "n_ctx", "resid_pdrop"),
      *("summary_activation", "summary_first_dropout", "summary_type"),
      *("summary_proj_to_labels", "summary_use_proj"),
    },
    tensors=table("""
      embed/embedding              transformer.wte.weight
      places/embedding             transformer.wpe.weight
      head/kernel                  lm_head.weight
      final_norm/(scale|bias)      transformer.ln_f.(weight|bias)
    """)
    | layered(
      """
      attention_norm/(scale|bias)  ln_1.(weight|bias)
      attention/qkv/(kernel|bias)  attn.c_attn.(weight|bias)
      attention/out/(kernel|bias)  attn.c_proj.(weight|bias)
      mlp_norm/(scale|bias)        ln_2.(weight|bias)
      mlp/up/(kernel|bias)         mlp.c_fc.(weight|bias)
      mlp/down/(kernel|bias)       mlp.c_proj.(weight|bias)
      """,
      "transformer.h.{layer}.",
    ),
    inputs_first=True,
    base="transformer.",
  ),
  _GEMMA2,
  _GEMMA3_TEXT,
  _GEMMA3_TEXT.like(
    "gemma3",
    "Gemma3ForConditionalGeneration",
    ignored=IMAGES,
    nested=("gemma3_text",),
    tensors=_inside(_GEMMA_TENSORS, "language_model."),
    other_parts=("vision_tower.", "multi_modal_projector."),
  ),
  _GEMMA4_TEXT,
  _GEMMA4_TEXT.like(
    "gemma4",
    "Gemma4ForConditionalGeneration",
    ignored={
      *("audio_config", "audio_token_id", "boa_token_id", "boi_token_id"),
      *("eoa_token_id", "eoa_token_index", "eoi_token_id", "image_token_id"),
      *("video_token_id", "vision_config", "vision_soft_tokens_per_image"),
    },
    nested=("gemma4_text",),
    tensors=_inside(_GEMMA4_TEXT.tensors, "model.language_model.", "model."),
    other_parts=(
      *("model.vision_tower.", "model.audio_tower."),
      *("model.embed_vision.", "model.embed_audio."),
    ),
  ),
  _PHI3,
  _DEEPSEEK_V3,
  # DeepSeek-V3's architecture, and its code; transformers has no such one.
  dataclasses.replace(_DEEPSEEK_V3, name="kimi_k2"),
  _KIMI_K25,
  _GLM4,
  _USUAL.like(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    without=(*_PART, "attention_bias"),
    fixed={"router_bias": True, "router_scores": "sigmoid"},
    fields={**ROUTED, "attention_bias": "qkv_bias"},
    derived=(
      config_json.partial_rope,
      config_json.head_norms,
      config_json.routed_experts,
    ),
    defaults={
      "attention_bias": False,
      "first_k_dense_replace": 1,
      "partial_rotary_factor": 0.5,
      "rms_norm_eps": 1e-5,
      "use_qk_norm": False,
    },
    supported=SIGMOID,
    ignored=OF_ROUTERS,
  ),
  _DEEPSEEK_V3.like(  # GLM-4.7-Flash.
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    defaults={"first_k_dense_replace": 1, "rms_norm_eps": 1e-5},
  ),
  _DEEPSEEK_V32,
  dataclasses.replace(_DEEPSEEK_V4, forms={"hc_head_fn": _AS_PUBLISHED}),
  _DEEPSEEK_V32.like(  # GLM-5.
    "glm_moe_dsa",
    "GlmMoeDsaForCausalLM",
    derived=(
      *_DEEPSEEK_V3.derived,
      functools.partial(config_json.indexer, interleaved=True),
    ),
    defaults={"rms_norm_eps": 1e-5},
  ),
  _GPT_OSS,
  _QWEN2_VL,
  _QWEN2_5_VL,
  _QWEN3_VL,
  _IDEFICS3,
  dataclasses.replace(
    _IDEFICS3, name="smolvlm", architecture="SmolVLMForConditionalGeneration"
  ),
)
FAMILIES = {family.name: family for family in _ALL}
