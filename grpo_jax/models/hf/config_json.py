"""Functions from keys of a config.json to fields of a `TransformerConfig`.

`families.py` lists the keys of each family. A function here receives the keys
that are left, removes those that it reads, and returns fields. It raises
ValueError for a value that a `TransformerConfig` cannot express.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_jax import ranges
from grpo_jax.models import rope as rope_lib
from grpo_jax.models.architecture import (
  DEEPSEEK4_RANGES,
  DELTA_RANGES,
  INDEXER_RANGES,
  RANGES,
  Deepseek4Config,
  DeltaConfig,
  Gemma4Config,
  IndexerConfig,
  Llama4Config,
  TransformerConfig,
)
from grpo_jax.models.hf import fp8, safetensors

# Keys of a config.json; functions remove the keys that they read.
Keys = dict[str, Any]


def read(directory: str | os.PathLike) -> dict[str, Any]:
  """Reads the config.json of a folder."""
  path = pathlib.Path(directory) / "config.json"
  if not path.is_file():
    raise FileNotFoundError(
      f"from_config_json: {path} is missing; needs a folder as"
      " save_pretrained writes it."
    )
  return safetensors.read_object(path, "config.json")


def flat(config: Mapping[str, Any], kinds: tuple[str | None, ...]) -> Keys:
  """Merges the keys of the text part of a model with the keys beside it.

  Args:
    config: Content of the file.
    kinds: Values that the part's model_type may have. None among them: the file
      may have no such part, and its keys are beside those of the other parts.
  """
  outer = dict(config)
  inner = outer.pop("text_config", None)
  if inner is None and None in kinds:
    return outer
  if not isinstance(inner, Mapping) or inner.get("model_type") not in kinds:
    names = listed(tuple(kind for kind in kinds if kind))
    raise unsupported("text_config", inner, f"one of model_type {names}")
  return {k: v for k, v in inner.items() if k != "architectures"} | outer


def unsupported(key: str, value: Any, supported: str) -> ValueError:
  """The error for a value that a `TransformerConfig` cannot express."""
  remedy = ""
  if key == "quantization_config":
    remedy = " docs/checkpoints.md (Quantised files) says what to take instead."
  return ValueError(
    f"config.json: {key} is {reprlib.repr(value)}; supported is {supported}."
    f"{remedy}"
  )


# Keys of a quantization_config that change nothing, or that tensors tell.
_NOTES = {
  *("quant_method", "modules_to_not_convert", "modules_to_convert"),
  *("ignored_layers", "dequantize", "scale_fmt"),
}
_FP8 = {
  "activation_scheme": "dynamic",
  "expert_dtype": "fp8",
  "fmt": "e4m3",
  "weight_block_size": [fp8.BLOCK, fp8.BLOCK],
}


def check_quantization(config: Any, *, packs_experts: bool) -> None:
  """Accepts a quantization_config that `fp8.py` or `mxfp4.py` can read.

  Args:
    packs_experts: Whether the family's experts may be in four bits.

  Raises:
    ValueError: It is another one.
  """
  if config in (None, {}):
    return
  if isinstance(config, Mapping):
    keys = {key: value for key, value in config.items() if key not in _NOTES}
    method = config.get("quant_method")
    if method == "fp8" and {**_FP8, **keys} == _FP8:
      return
    if method == "mxfp4" and packs_experts and not keys:
      return
  supported = f"null, or the quant_method 'fp8' with {_FP8}"
  if packs_experts:
    supported += ", or the quant_method 'mxfp4'"
  raise unsupported("quantization_config", config, supported)


def listed(values: tuple) -> str:
  """Lists values for a message: "1 or 2"."""
  return " or ".join(repr(value) for value in values)


def check_supported(
  keys: Keys, supported: Mapping[str, tuple], part: str = ""
) -> None:
  """Removes keys that have to have one of a few values, if they are there.

  Args:
    keys: Keys that are left.
    supported: Key -> the values.
    part: Beginning of the keys in messages, such as "vision_config.".
  """
  for key, values in supported.items():
    if key in keys and (value := keys.pop(key)) not in values:
      raise unsupported(part + key, value, listed(values))


def required(keys: Keys, key: str) -> Any:
  """The value of a key that a file must have."""
  if key not in keys:
    raise ValueError(
      f"config.json: {key} is missing; the file is incomplete, or of a version"
      " of the family that is not supported."
    )
  return keys[key]


def take(keys: Keys, key: str) -> Any:
  """Removes a required key and returns its value."""
  value = required(keys, key)
  del keys[key]
  return value


def whole(
  key: str, value: Any, allowed: ranges.Range, words: str = "a whole number"
) -> int:
  """The value, if it is a whole number of a range; not None."""
  if type(value) is not int or value not in allowed:
    raise unsupported(key, value, f"{words}, {allowed}")
  return value


def integer(key: str, value: Any, field: str) -> int:
  """The value, if it is a whole number that the field may have; not None."""
  return whole(key, value, RANGES[field])


def _flag(key: str, value: Any) -> bool:
  if not isinstance(value, bool):
    raise unsupported(key, value, "true or false")
  return value


def _share(value: Any) -> float:
  """The share of a head that positions turn."""
  if type(value) not in (int, float) or not 0 < value <= 1:
    raise unsupported("partial_rotary_factor", value, "a number in (0, 1]")
  return value


def _of_layers(key: str, values: Any, kinds: Sequence, count: int) -> list:
  """The values, if there is one of these for each layer."""
  if (
    not isinstance(values, list)
    or len(values) != count
    or not all(type(x) in (int, str) and x in kinds for x in values)
  ):
    raise unsupported(
      key, values, f"{listed(tuple(kinds))} for each of {count} layers"
    )
  return values


def sizes(
  keys: Keys, names: Mapping[str, str], allowed: Mapping[str, ranges.Range]
) -> dict[str, int]:
  """Removes keys whose values are sizes; returns the sizes by their fields.

  `names` are the fields of keys, all there; `allowed` their numbers.
  """
  return {
    field: whole(key, take(keys, key), allowed[field])
    for key, field in names.items()
  }


_KINDS: dict[str, Any] = {
  "bool": bool,
  "int": int,
  "float": (int, float),
  "str": str,
  "None": type(None),
}
_ANNOTATIONS = {
  field.name: str(field.type) for field in dataclasses.fields(TransformerConfig)
}


def checked(key: str, value: Any, field: str) -> Any:
  """The value, if a field of a `TransformerConfig` may have it."""
  annotation, allowed = _ANNOTATIONS[field], RANGES.get(field)
  for kind in annotation.split(" | "):
    # Python's True is an int.
    is_bool = isinstance(value, bool)
    if isinstance(value, _KINDS[kind]) and is_bool == (kind == "bool"):
      if value is not None and allowed is not None and value not in allowed:
        raise unsupported(key, value, f"a number, {allowed}")
      return value
  raise unsupported(key, value, f"a value of type {annotation}")


# --- Rotary positions ---

_ROPE_TYPES: dict[str, dict[str, str]] = {
  "default": {},
  "linear": {"factor": "rope_factor"},
  "llama3": {
    "factor": "rope_factor",
    "low_freq_factor": "rope_low_freq",
    "high_freq_factor": "rope_high_freq",
    "original_max_position_embeddings": "rope_original_len",
  },
  "yarn": {
    "factor": "rope_factor",
    "beta_slow": "rope_low_freq",
    "beta_fast": "rope_high_freq",
    "original_max_position_embeddings": "rope_original_len",
    "truncate": "rope_truncate",
  },
}
OLMO3_THETA = 500_000.0
# Defaults of keys that a file may leave out.
_ROPE_DEFAULTS = {"beta_slow": 1.0, "beta_fast": 32.0, "truncate": True}


def rope(keys: Keys) -> dict[str, Any]:
  """Fields of rotary positions that are the same in all layers."""
  theta = keys.pop("rope_theta")
  return _rope_fields(*_rope_keys(keys), theta)


def named_rope(keys: Keys) -> dict[str, Any]:
  """Fields of rotary positions, for families whose files must name a scaling.

  For a file without a scaling, `transformers` uses one of its own.
  """
  if not (keys.get("rope_scaling") or keys.get("rope_parameters")):
    raise ValueError(
      "config.json: rope_scaling is missing or null, for which transformers"
      " takes YaRN with numbers of its own; write them out, or the rope_type"
      " 'default'."
    )
  return rope(keys)


def partial_rope(keys: Keys) -> dict[str, Any]:
  """Fields of positions that turn a part of each head (Phi-4, GLM-4)."""
  theta, share = keys.pop("rope_theta"), keys.pop("partial_rotary_factor")
  name, entry = _rope_keys(keys)
  share = entry.pop("partial_rotary_factor", share)
  share = _share(1.0 if share is None else share)
  width = keys.get("head_dim") or (
    required(keys, "hidden_size") // required(keys, "num_attention_heads")
  )
  fields = {} if share == 1 else {"rotary_width": int(width * share)}
  kind = entry.get("rope_type", entry.get("type"))
  if kind in ("longrope", "su"):
    return fields | _longrope(keys, name, entry, theta)
  keys.pop("original_max_position_embeddings", None)  # Only LongRoPE reads it.
  return fields | _rope_fields(name, entry, theta)


def _longrope(keys, name, entry, theta) -> dict[str, Any]:
  entry = {k: v for k, v in entry.items() if k not in ("rope_type", "type")}
  original = keys.pop("original_max_position_embeddings", None)
  original = entry.pop("original_max_position_embeddings", original)
  original = integer(
    "original_max_position_embeddings", original, "rope_original_len"
  )
  if original < 2:  # Its logarithm is a divisor.
    raise unsupported("original_max_position_embeddings", original, "2 or more")
  longest = integer(
    "max_position_embeddings",
    required(keys, "max_position_embeddings"),
    "rope_original_len",
  )
  factor = entry.pop("factor", None)
  if factor is None:
    factor = longest / original
  factor = checked(f"{name}.factor", factor, "rope_factor")
  amplitude = entry.pop("attention_factor", None)
  if amplitude is None:
    amplitude = rope_lib.longrope_amplitude(factor, original)
  theta = entry.pop("rope_theta", theta)
  fields: dict[str, Any] = {
    "rope_theta": float(checked("rope_theta", theta, "rope_theta")),
    "rope_scaling": "longrope",
    "rope_original_len": original,
    "rope_amplitude": checked(
      f"{name}.attention_factor", amplitude, "rope_amplitude"
    ),
  }
  for key in ("short_factor", "long_factor"):
    factors = entry.pop(key, None)
    if not isinstance(factors, list) or not all(
      type(x) in (int, float) and x in ranges.POSITIVE for x in factors
    ):
      raise unsupported(f"{name}.{key}", factors, "a list of positive numbers")
    fields[f"rope_{key}s"] = tuple(float(x) for x in factors)
  for key, value in entry.items():
    raise unsupported(
      f"{name}.{key}", value, "no such key with rope_type 'longrope'"
    )
  return fields


def gemma3_rope(keys: Keys) -> dict[str, Any]:
  """Fields of positions with another base, unscaled, in sliding layers."""
  theta, local_theta = keys.pop("rope_theta"), keys.pop("rope_local_base_freq")
  local_theta = checked("rope_local_base_freq", local_theta, "rope_theta")
  name, entry = _rope_keys(keys)
  local: Mapping[str, Any] = {}
  if name == "rope_parameters":
    layers = dict(entry)
    entry = layers.pop("full_attention", None) or {}
    local = layers.pop("sliding_attention", None) or {}
    if layers:
      raise unsupported(
        name, layers, "an entry for full_attention and sliding_attention"
      )
  fields = _rope_fields(name, entry, theta)
  local_theta = _unscaled(f"{name}.sliding_attention", local, local_theta)
  return {**fields, "local_rope_theta": local_theta}


def olmo3_rope(keys: Keys) -> dict[str, Any]:
  """Fields of positions whose scaling is that of layers without a window."""
  theta = keys["rope_theta"]
  if not keys.get("rope_parameters") and theta != OLMO3_THETA:
    # Versions of transformers disagree about the base of sliding layers.
    raise unsupported(
      "rope_theta", theta, f"{OLMO3_THETA}, or rope_parameters instead"
    )
  keys["rope_local_base_freq"] = theta
  return gemma3_rope(keys)


def ministral3_rope(keys: Keys) -> dict[str, Any]:
  """Fields of YaRN and of the scaling of queries; a file must have both."""
  theta = keys.pop("rope_theta")
  name, entry = _rope_keys(keys)
  if (kind := entry.get("rope_type", entry.get("type"))) != "yarn":
    raise unsupported(f"{name}.rope_type", kind, "'yarn'")
  entry.pop("max_position_embeddings", None)  # transformers ignores it.
  key, field = "llama_4_scaling_beta", "query_scaling"
  growth = checked(f"{name}.{key}", entry.pop(key, None), field)
  return _rope_fields(name, entry, theta) | {field: float(growth)}


def _rope_keys(keys: Keys) -> tuple[str, dict[str, Any]]:
  """Name and value of the scaling's key, renamed in transformers 5."""
  present = {
    name: value
    for name in ("rope_scaling", "rope_parameters")
    if (value := keys.pop(name, None))
  }
  if len(present) > 1:
    raise unsupported(
      "rope_scaling", present["rope_scaling"], "null beside rope_parameters"
    )
  for name, value in present.items():
    if not isinstance(value, Mapping):
      raise unsupported(name, value, "null or an object")
    return name, dict(value)
  return "rope_scaling", {}


def _rope_fields(name: str, entry: Any, theta: Any) -> dict[str, Any]:
  if not isinstance(entry, Mapping):
    raise unsupported(name, entry, "null or an object")
  entry = dict(entry)
  kind = entry.pop("rope_type", entry.pop("type", "default"))
  if not isinstance(kind, str) or kind not in _ROPE_TYPES:
    raise unsupported(f"{name}.rope_type", kind, listed(tuple(_ROPE_TYPES)))
  if (part := entry.pop("partial_rotary_factor", 1.0)) != 1:
    raise unsupported(f"{name}.partial_rotary_factor", part, "1.0")
  theta = checked("rope_theta", entry.pop("rope_theta", theta), "rope_theta")
  fields = {
    "rope_theta": float(theta),
    "rope_scaling": "none" if kind == "default" else kind,
  }
  if kind == "yarn":
    entry = _ROPE_DEFAULTS | {k: v for k, v in entry.items() if v is not None}
    fields |= _yarn_amplitude(name, entry)
  for key, field in _ROPE_TYPES[kind].items():
    if key not in entry:
      raise ValueError(
        f"config.json: {name} has no {key}, which rope_type {kind!r} needs."
      )
    fields[field] = checked(f"{name}.{key}", entry.pop(key), field)
  for key, value in entry.items():
    raise unsupported(
      f"{name}.{key}", value, f"no such key with rope_type {kind!r}"
    )
  return fields


def _unscaled(name: str, entry: Any, theta: Any) -> float:
  """The base of positions that have no scaling."""
  fields = _rope_fields(name, entry, theta)
  if fields["rope_scaling"] != "none":
    raise unsupported(name, entry, "no scaling")
  return fields["rope_theta"]


def _yarn_amplitude(name: str, entry: Keys) -> dict[str, Any]:
  """Factor of cosines and sines; removes the keys that it reads."""
  number = {
    key: entry.pop(key, None)
    for key in ("attention_factor", "mscale", "mscale_all_dim")
  }
  for key, value in number.items():
    if value is not None and not (type(value) in (int, float) and value == 0):
      checked(f"{name}.{key}", value, "rope_amplitude")
  factor = checked(f"{name}.factor", required(entry, "factor"), "rope_factor")
  amplitude = number["attention_factor"]
  weights = number["mscale"], number["mscale_all_dim"]
  if amplitude is None and all(weights):
    over, under = (rope_lib.yarn_amplitude(factor, x) for x in weights)
    amplitude = over / under
  elif amplitude is None:
    amplitude = rope_lib.yarn_amplitude(factor)
  checked(f"{name}.attention_factor", amplitude, "rope_amplitude")
  return {"rope_amplitude": float(amplitude)}


def no_rope_layers(keys: Keys) -> dict[str, Any]:
  """Layers that positions turn (SmolLM3): all but every fourth, or a list."""
  if any(_layer_types(keys, lambda layer: False)):
    # Forms of attention in transformers disagree about their windows.
    raise unsupported("layer_types", "sliding_attention", "full_attention")
  return _rotary_layers(_rotary_flags(keys))


def _rotary_flags(keys: Keys) -> tuple[bool, ...]:
  """A flag for each layer: True if positions turn its queries and keys."""
  count = keys["num_hidden_layers"]
  period = keys.pop("no_rope_layer_interval")
  turned = keys.pop("no_rope_layers")
  if turned is None:
    period = integer("no_rope_layer_interval", period, "num_layers")
    turned = [int((layer + 1) % period != 0) for layer in range(count)]
  return tuple(map(bool, _of_layers("no_rope_layers", turned, (0, 1), count)))


def _rotary_layers(turned: tuple[bool, ...]) -> dict[str, Any]:
  return {} if all(turned) else {"rotary_layers": turned}


# --- Layers with the gated delta rule ---

_DELTA = {
  "linear_conv_kernel_dim": "num_taps",
  "linear_key_head_dim": "key_width",
  "linear_num_key_heads": "num_key_heads",
  "linear_num_value_heads": "num_value_heads",
  "linear_value_head_dim": "value_width",
}


def delta_rule(keys: Keys) -> dict[str, Any]:
  """Sizes of layers with the rule: all but the last of each group of layers."""
  count = keys["num_hidden_layers"]
  period = keys.pop("full_attention_interval")
  types = keys.pop("layer_types", None)
  if isinstance(types, list) and "full_attention" in types:
    period = types.index("full_attention") + 1  # The list decides.
  whole("full_attention_interval", period, DELTA_RANGES["period"], "a number")
  group = ["linear_attention"] * (period - 1) + ["full_attention"]
  if types not in (None, group * (count // period)) or count % period:
    raise unsupported(
      "layer_types",
      types,
      f"{group}, repeated for all of {count} layers",
    )
  fields = sizes(keys, _DELTA, DELTA_RANGES)
  try:
    return {"delta": DeltaConfig(period=period, **fields)}
  except ValueError as error:
    raise ValueError(f"config.json: linear_num_… makes no {error}") from error


def text_rope(keys: Keys) -> dict[str, Any]:
  """Partial positions of a model with images, for text alone (Qwen3.5).

  Time, row and column of a token of text are all its position.
  """
  for name in ("rope_scaling", "rope_parameters"):
    if isinstance(entry := keys.get(name), Mapping):
      of_images = ("mrope_interleaved", "mrope_section")
      keys[name] = {k: v for k, v in entry.items() if k not in of_images}
  return partial_rope(keys)


# --- Sliding windows ---


def qwen_window(keys: Keys) -> dict[str, Any]:
  """A window in the layers from `max_window_layers` on, if it is enabled."""
  used = keys.pop("use_sliding_window")
  window, first = keys.pop("sliding_window"), keys.pop("max_window_layers")
  if not used:
    slides = _layer_types(keys, lambda layer: False)
    if any(slides):
      raise unsupported(
        "use_sliding_window", used, "True if layer_types has sliding layers"
      )
    return {}
  if type(first) is not int or first < 0:
    raise unsupported("max_window_layers", first, "a number of layers")
  return _window(window, _layer_types(keys, lambda layer: layer >= first))


def mistral_window(keys: Keys) -> dict[str, Any]:
  """A window in all layers, or none."""
  window = keys.pop("sliding_window")
  return _window(window, (window is not None,))


def alternating_window(keys: Keys) -> dict[str, Any]:
  """A window in every second layer, beginning with the first."""
  window = take(keys, "sliding_window")
  return _window(window, _layer_types(keys, lambda layer: layer % 2 == 0))


def gemma3_window(keys: Keys) -> dict[str, Any]:
  """A window in all layers but the last of every `sliding_window_pattern`."""
  window = keys.pop("sliding_window")
  period = keys.pop("_sliding_window_pattern", 6)
  period = keys.pop("sliding_window_pattern", period)
  if not isinstance(period, int) or period < 1:
    raise unsupported("sliding_window_pattern", period, "a number of layers")
  return _window(
    window, _layer_types(keys, lambda layer: (layer + 1) % period != 0)
  )


def olmo3_window(keys: Keys) -> dict[str, Any]:
  """A window in all layers but every fourth, or by `layer_types`."""
  window = keys.pop("sliding_window")
  return _window(window, _layer_types(keys, lambda layer: (layer + 1) % 4 != 0))


def _layer_types(
  keys: Keys, default: Callable[[int], bool], near: str = "sliding_attention"
) -> tuple[bool, ...]:
  """A flag for each layer: True if it slides, by `layer_types` or default."""
  count = keys["num_hidden_layers"]
  types = keys.pop("layer_types", None)
  if types is None:
    return tuple(default(layer) for layer in range(count))
  kinds = ("full_attention", near)
  types = _of_layers("layer_types", types, kinds, count)
  return tuple(kind == near for kind in types)


def _window(
  size: Any, slides: tuple[bool, ...], key: str = "sliding_window"
) -> dict[str, Any]:
  if not any(slides):
    return {}
  if type(size) is not int or size not in RANGES["sliding_window"]:
    raise unsupported(key, size, "a number of tokens")
  if all(slides):
    return {"sliding_window": size}
  return {"sliding_window": size, "sliding_layers": slides}


# --- Keys of a few families only ---


def attention_scale(keys: Keys) -> dict[str, Any]:
  """Factor of the scores: the key's value to the power of −½."""
  scalar = take(keys, "query_pre_attn_scalar")
  if type(scalar) not in (int, float) or scalar not in ranges.POSITIVE:
    raise unsupported("query_pre_attn_scalar", scalar, "a positive number")
  return {"attention_scale": float(scalar) ** -0.5}


def embedding_scale(keys: Keys) -> dict[str, Any]:
  """Factor of embeddings: the root of their width (Gemma)."""
  return {"embedding_scale": keys["hidden_size"] ** 0.5}


def logit_scale(keys: Keys) -> dict[str, Any]:
  """Factor of logits, of which a file has the inverse (Granite)."""
  key = "logits_scaling"
  divisor = checked(key, keys.pop(key), "logit_scale")
  return {"logit_scale": checked(key, 1 / divisor, "logit_scale")}


def num_experts(keys: Keys) -> dict[str, Any]:
  """The number of experts, whose key transformers 5 renamed."""
  counts = {
    name: checked(name, keys.pop(name), "num_experts")
    for name in ("num_experts", "num_local_experts")
    if name in keys
  }
  if not counts:
    required(keys, "num_experts")
  count, *others = {*counts.values()}
  if others or count < 1:
    raise unsupported("num_experts", counts, "one number, at least 1")
  return {"num_experts": count}


def latent_attention(keys: Keys) -> dict[str, Any]:
  """Widths, positions and scale of scores of DeepSeek's latent attention.

  With YaRN the scores are multiplied by the square of a second amplitude, which
  depends on `mscale_all_dim`.
  """
  plain, turned, value = (
    integer(key, take(keys, key), "head_dim")
    for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
  )
  # Keys that transformers 5 also writes, and that follow from the others.
  for key, size in (("qk_head_dim", plain + turned), ("head_dim", turned)):
    if (other := keys.pop(key, None)) not in (size, None):
      raise unsupported(key, other, str(size))
  theta = keys.pop("rope_theta")
  name, entry = _rope_keys(keys)
  fields = _rope_fields(name, entry, theta)
  scale = (plain + turned) ** -0.5
  if fields["rope_scaling"] == "yarn" and entry.get("mscale_all_dim"):
    weight, factor = entry["mscale_all_dim"], fields["rope_factor"]
    scale *= rope_lib.yarn_amplitude(factor, weight) ** 2
  queries = keys.pop("q_lora_rank")
  latent = take(keys, "kv_lora_rank")
  return fields | {
    "attention_scale": checked("mscale_all_dim", scale, "attention_scale"),
    "head_dim": plain + turned,
    "latent_width": whole("kv_lora_rank", latent, ranges.SIZE),
    "query_latent_width": 0
    if queries is None
    else integer("q_lora_rank", queries, "query_latent_width"),
    "rotary_width": turned,
    "value_dim": value,
  }


_INDEXER = {
  "index_head_dim": "head_dim",
  "index_n_heads": "num_heads",
  "index_topk": "top_k",
}


def indexer(keys: Keys, *, interleaved: bool) -> dict[str, Any]:
  """Sizes of the indexers of DeepSeek's sparse attention, one in each layer.

  Args:
    interleaved: Whether neighbouring channels are pairs, in the family's code.
  """
  count = keys["num_hidden_layers"]
  check_supported(
    keys,
    {
      "indexer_rope_interleave": (interleaved, None),
      "layer_types": (["indexed_attention"] * count, None),
      # Layers that see what the layer before has chosen (GLM-5.2) are none
      # here.
      "indexer_types": (["full"] * count, None),
      "index_topk_freq": (1, None),
      "index_topk_pattern": ("F" * count, ["full"] * count, None),
    },
  )
  keys.pop("index_skip_topk_offset", None)  # Nothing, if all layers choose.
  fields = sizes(keys, _INDEXER, INDEXER_RANGES)
  return {"indexer": IndexerConfig(**fields, interleaved=interleaved)}


def routed_experts(keys: Keys) -> dict[str, Any]:
  """Experts of DeepSeek-V3 and GLM-4.5: shared, groups, dense layers."""
  whole("n_routed_experts", keys["n_routed_experts"], ranges.SIZE)
  width = keys["moe_intermediate_size"]
  shared = take(keys, "n_shared_experts") or 0
  shared = integer("n_shared_experts", shared, "shared_width")
  layers = keys["num_hidden_layers"]
  first = keys.pop("first_k_dense_replace", None)
  types = keys.pop("mlp_layer_types", None)
  if types is not None:
    dense = types.count("dense") if isinstance(types, list) else 0
    if types != ["dense"] * dense + ["sparse"] * (layers - dense):
      raise unsupported(
        "mlp_layer_types",
        types,
        f"dense and then sparse layers, {layers} in all",
      )
    first = dense
  return {
    "num_dense_layers": integer(
      "first_k_dense_replace", first, "num_dense_layers"
    ),
    "shared_width": integer("n_shared_experts", shared * width, "shared_width"),
  }


def expert_width(keys: Keys) -> dict[str, Any]:
  """The width of experts that replace the MLP of every layer."""
  return {"expert_width": keys["intermediate_size"]}


def clamped_experts(keys: Keys) -> dict[str, Any]:
  """Bound and slope of the clamped experts of gpt-oss."""
  count = keys["num_experts_per_tok"]
  if (other := keys.pop("experts_per_token", count)) != count:
    raise unsupported(
      "experts_per_token", other, f"num_experts_per_tok, {count}"
    )
  return {
    field: float(checked(key, keys.pop(key), field))
    for key, field in (
      ("swiglu_limit", "swiglu_limit"),
      ("swiglu_alpha", "swiglu_slope"),
    )
  }


def gpt2_widths(keys: Keys) -> dict[str, Any]:
  """Width of the MLP, 4 times that of the model by default, and key heads."""
  whole("n_positions", keys["n_positions"], ranges.SIZE)
  inner = keys.pop("n_inner")
  inner = 4 * keys["n_embd"] if inner is None else inner
  return {
    "mlp_width": integer("n_inner", inner, "mlp_width"),
    "num_kv_heads": keys["n_head"],
  }


def head_norms(keys: Keys) -> dict[str, Any]:
  """Norms of queries and keys: over each head, or none."""
  used = _flag("use_qk_norm", keys.pop("use_qk_norm"))
  return {"qk_norm": "head" if used else "none"}


# --- Gemma 4 ---


def gemma4(keys: Keys) -> dict[str, Any]:
  """Windows, positions, experts, and what only Gemma 4 has."""
  count = keys["num_hidden_layers"]
  slides = _layer_types(keys, lambda layer: (layer + 1) % 6 != 0)
  if slides[-1]:
    raise unsupported(
      "layer_types", "sliding_attention", "full_attention in the last layer"
    )
  head_dim, key_heads = _of_full_layers(keys, slides)
  rope, share = _proportional_rope(keys)
  shared, inputs = (
    integer(key, take(keys, key) or 0, field)
    for key, field in (
      ("num_kv_shared_layers", "num_dense_layers"),
      ("hidden_size_per_layer_input", "shared_width"),
    )
  )
  rows = keys.pop("vocab_size_per_layer_input")
  wide, k_eq_v = (
    _flag(x, keys.pop(x)) for x in ("use_double_wide_mlp", "attention_k_eq_v")
  )
  if shared >= count:
    raise unsupported("num_kv_shared_layers", shared, f"less than {count}")
  record = Gemma4Config(
    full_head_dim=head_dim,
    full_kv_heads=key_heads if k_eq_v else keys["num_key_value_heads"],
    full_turned=2 * int(share * head_dim // 2),
    values_are_keys=k_eq_v,
    num_shared_layers=shared,
    shared_mlp_width=keys["intermediate_size"] * (1 + wide),
    input_width=inputs,
    input_vocab=integer("vocab_size_per_layer_input", rows, "vocab_size"),
  )
  return {
    **_window(keys.pop("sliding_window"), slides),
    **rope,
    **_gemma4_experts(keys),
    "gemma4": record,
  }


def _of_full_layers(keys: Keys, slides: tuple[bool, ...]) -> tuple[int, int]:
  """Width and number of key heads of the layers that do not slide.

  transformers 5.24 writes them once for each layer ("per_layer_config").
  """
  width, count = (
    keys.pop(key) for key in ("global_head_dim", "num_global_key_value_heads")
  )
  if (by_layer := keys.pop("per_layer_config", None)) is not None:
    full = [str(layer) for layer, near in enumerate(slides) if not near]
    entries = [*by_layer.values()] if isinstance(by_layer, Mapping) else []
    entry = entries[0] if entries else None
    if (
      not isinstance(entry, Mapping)
      or any(x != entry for x in entries)
      or sorted(by_layer) != sorted(full)
      or not entry.keys() <= {"head_dim", "num_key_value_heads"}
    ):
      raise unsupported(
        "per_layer_config", by_layer, "one head_dim for all full layers"
      )
    width = entry.get("head_dim", keys["head_dim"])
    count = entry.get("num_key_value_heads")
  width = keys["head_dim"] if width is None else width
  count = keys["num_key_value_heads"] if count is None else count
  return (
    integer("global_head_dim", width, "head_dim"),
    integer("num_global_key_value_heads", count, "num_kv_heads"),
  )


def _proportional_rope(keys: Keys) -> tuple[dict[str, Any], float]:
  """Fields of positions, and the share of a head that full layers turn."""
  kinds = ("full_attention", "sliding_attention")
  ropes = keys.pop("rope_parameters")
  if not isinstance(ropes, Mapping) or {*ropes} != {*kinds}:
    raise unsupported("rope_parameters", ropes, f"an entry for {listed(kinds)}")
  full, near = (
    dict(ropes[kind]) if isinstance(ropes[kind], Mapping) else {}
    for kind in kinds
  )
  share = _share(full.pop("partial_rotary_factor", 1.0))
  name = "rope_parameters.full_attention"
  if (kind := full.pop("rope_type", None)) != "proportional":
    raise unsupported(f"{name}.rope_type", kind, "'proportional'")
  of_full = _rope_fields(name, full, take(full, "rope_theta"))
  local_theta = _unscaled(
    "rope_parameters.sliding_attention", near, take(near, "rope_theta")
  )
  return {**of_full, "local_rope_theta": local_theta}, float(share)


def _gemma4_experts(keys: Keys) -> dict[str, Any]:
  """Experts beside the MLP, if the model has them."""
  names = {
    "moe_intermediate_size": "expert_width",
    "num_experts": "num_experts",
    "top_k_experts": "experts_per_token",
  }
  size = {key: keys.pop(key) for key in names}
  if not _flag("enable_moe_block", keys.pop("enable_moe_block")):
    return {}
  return {field: integer(key, size[key], field) for key, field in names.items()}


# --- Llama 4 ---


def llama4(keys: Keys) -> dict[str, Any]:
  """Chunks, layers without positions or experts, and temperatures."""
  if not keys["no_rope_layers"]:  # An empty list too.
    keys["no_rope_layers"] = None
  turned, size = _rotary_flags(keys), keys.pop("attention_chunk_size")
  chunked = _layer_types(
    keys, lambda layer: turned[layer] and size is not None, "chunked_attention"
  )
  dense = _dense_layers(keys)
  fields = {
    **_rotary_layers(turned),
    **_window(size, chunked, "attention_chunk_size"),
    "num_dense_layers": len(dense),
    "shared_width": keys["intermediate_size"],
  }
  if len(dense) == len(turned):
    fields |= {"num_dense_layers": 0, "num_experts": 0, "shared_width": 0}
    dense = ()
  used = {
    key: keys.pop(key) for key in ("attn_temperature_tuning", "use_qk_norm")
  }
  for key, value in used.items():
    if type(value) not in (bool, int):
      raise unsupported(key, value, "true or false")
  growth, length = keys.pop("attn_scale"), keys.pop("floor_scale")
  if type(growth) not in (int, float) or growth not in ranges.NOT_NEGATIVE:
    raise unsupported("attn_scale", growth, "a number, 0 or larger")
  record = Llama4Config(
    head_norm=bool(used["use_qk_norm"]),
    temperature=float(growth) if used["attn_temperature_tuning"] else 0.0,
    temperature_len=integer("floor_scale", length, "sliding_window"),
    dense_layers=dense,
  )
  return {**fields, "llama4": record}


def _dense_layers(keys: Keys) -> tuple[int, ...]:
  """Layers without experts: all but every n-th, or those not in a list."""
  count, period = (
    keys["num_hidden_layers"],
    keys.pop("interleave_moe_layer_step"),
  )
  sparse = keys.pop("moe_layers")
  if sparse is None:
    period = integer("interleave_moe_layer_step", period, "num_layers")
    sparse = list(range(period - 1, count, period))
  if not isinstance(sparse, list) or not all(
    type(x) is int and 0 <= x < count for x in sparse
  ):
    raise unsupported("moe_layers", sparse, f"a list of layers of {count}")
  return tuple(x for x in range(count) if x not in sparse)


# --- DeepSeek-V4 ---

_DEEPSEEK4 = {
  "hc_mult": "num_streams",
  "hc_sinkhorn_iters": "sinkhorn_steps",
  "o_groups": "num_groups",
  "o_lora_rank": "group_width",
  "q_lora_rank": "query_width",
}
_LAYER_KINDS = {
  "sliding_attention": "sliding",
  "compressed_sparse_attention": "sparse",
  "heavily_compressed_attention": "heavy",
}
_OF_RATIOS = {0: "sliding", 4: "sparse", 128: "heavy"}


def deepseek4(keys: Keys) -> dict[str, Any]:
  """Kinds of layers, positions, streams, and the tables of experts."""
  eps = keys.pop("hc_eps")
  if type(eps) not in (int, float) or eps not in DEEPSEEK4_RANGES["stream_eps"]:
    raise unsupported("hc_eps", eps, f"{DEEPSEEK4_RANGES['stream_eps']}")
  whole("n_routed_experts", keys["n_routed_experts"], ranges.SIZE)
  kinds = _compressed_layers(keys)
  record = Deepseek4Config(
    kinds=kinds,
    indexer=IndexerConfig(
      **sizes(keys, _INDEXER, INDEXER_RANGES), interleaved=True
    ),
    num_hash_layers=_layers_with_tables(keys),
    stream_eps=float(eps),
    **_window_lengths(keys),
    **sizes(keys, _DEEPSEEK4, DEEPSEEK4_RANGES),
  )
  return {
    **_rope_of_windows(keys),
    "deepseek4": record,
    "router_bias": record.num_hash_layers < len(kinds),
    "shared_width": keys["moe_intermediate_size"],
    "sliding_layers": tuple(kind == "sliding" for kind in kinds),
  }


def _compressed_layers(keys: Keys) -> tuple[str, ...]:
  """The kind of each layer: by its type, by its ratio, or by default."""
  count = keys["num_hidden_layers"]
  ratios, types = (
    keys.pop(x, None) for x in ("compress_ratios", "layer_types")
  )
  key, values, kinds = "layer_types", types, dict(_LAYER_KINDS)
  if types is None and ratios is not None:
    # Published files have further ones, of layers that predict later tokens.
    key, kinds = "compress_ratios", dict(_OF_RATIOS)  # type: ignore[arg-type]
    values = ratios[:count] if isinstance(ratios, list) else ratios
  elif types is None:
    _, sparse, heavy = _LAYER_KINDS
    values = [heavy, heavy, *[heavy, sparse] * count][:count]
  values = _of_layers(key, values, tuple(kinds), count)
  return tuple(kinds[x] for x in values)


def _window_lengths(keys: Keys) -> dict[str, int]:
  """Tokens of compressed windows, in the form of transformers or an older."""
  rates = keys.pop("compress_rates", None)
  if rates is not None and (
    not isinstance(rates, Mapping) or {*rates} - {*_LAYER_KINDS}
  ):
    raise unsupported("compress_rates", rates, "a number for each kind")
  lengths = {}
  for field, name, old, default in (
    ("heavy_window", "heavily_compressed_attention", "compress_rate_hca", 128),
    ("sparse_window", "compressed_sparse_attention", "compress_rate_csa", 4),
  ):
    length = keys.pop(old, (rates or {}).get(name, default))
    lengths[field] = integer("compress_rates", length, "sliding_window")
  return lengths


def _layers_with_tables(keys: Keys) -> int:
  """Number of the first layers in which token ids choose the experts."""
  count = keys["num_hidden_layers"]
  first = keys.pop("num_hash_layers", 3)
  types = keys.pop("mlp_layer_types", None)
  if types is None:
    return min(integer("num_hash_layers", first, "num_dense_layers"), count)
  first = types.count("hash_moe") if isinstance(types, list) else 0
  if types != ["hash_moe"] * first + ["moe"] * (count - first):
    raise unsupported(
      "mlp_layer_types", types, f"hash_moe and then moe, {count} in all"
    )
  return first


def _rope_of_windows(keys: Keys) -> dict[str, Any]:
  """Positions of layers with windows, and unscaled ones of sliding layers."""
  width = integer("head_dim", keys["head_dim"], "head_dim")
  turned = keys.pop("qk_rope_head_dim", None)
  share = keys.pop("partial_rotary_factor", None)
  if share is None and turned is not None:
    share = integer("qk_rope_head_dim", turned, "head_dim") / width
  elif share is None:
    share = 64 / 512
  share = _share(share)
  of_main, key = keys.pop("rope_theta"), "compress_rope_theta"
  of_windows = checked(key, keys.pop(key), "rope_theta")
  name, entry = _rope_keys(keys)
  main: Any = {}
  if entry.keys() >= {"compress", "main"}:
    main, entry = entry["main"], entry["compress"]
  else:
    entry.pop("rope_theta", None)  # That of sliding layers, as `rope_theta`.
  if not (isinstance(main, Mapping) and isinstance(entry, Mapping)):
    raise unsupported(name, entry, "null or an object")
  main, entry = dict(main), dict(entry)
  for part in (main, entry):
    if (other := part.pop("partial_rotary_factor", share)) != share:
      raise unsupported(f"{name}.partial_rotary_factor", other, str(share))
  if entry.get("rope_type", entry.get("type")) == "yarn":
    entry.setdefault("attention_factor", 1.0)
  return {
    **_rope_fields(name, entry, of_windows),
    "local_rope_theta": _unscaled(f"{name}.main", main, of_main),
    "rotary_width": int(width * share),
  }
