"""Checkpoints in GGUF files, the format of llama.cpp.

`folder` writes what a file says beside its weights, as the files of an ordinary
checkpoint: config.json, tokenizer.json, tokenizer_config.json and
generation_config.json. All that reads a checkpoint reads that folder, and an
export copies these files. The folder is temporary. `tensors` presents the
weights under the names that a family has in safetensors files, and decodes the
rows that are asked for, so that no two tensors are in memory at a time.

llama.cpp changes weights when it converts them, which is undone here:

| family         | change                                               |
|----------------|------------------------------------------------------|
| llama, granite | rows of queries and keys are in another order;       |
| and mixtral    | `_TURNED` has all such families                      |
| gemma2, gemma3 | 1 is added to the scales of norms                    |
| gpt-oss and    | gate and up are apart, and [E, out, in]              |
| llama4         |                                                      |
| gpt2           | kernels of layers are [out, in]                      |
| mixtral and    | the experts of a layer are one tensor                |
| qwen3moe       |                                                      |

Source: github.com/ggml-org/llama.cpp, `conversion/` and `gguf-py/`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import mmap
import pathlib
import re
import reprlib
import struct
import tempfile
from typing import Any

import numpy as np

from grpo_jax import optional
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.hf import families, gguf_tokenizer, safetensors
from grpo_jax.models.hf.families import Family
from grpo_jax.models.hf.safetensors import Tensor

_package = functools.partial(optional.package, "gguf", "gguf", __name__)
# Numbers of a file by their types; 8 is a text and 9 an array.
_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_AXES = 4
_MOST_TEXTS = 2**22  # Of an array; vocabularies have a few 100 000.
_TEXTS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")

# Architecture of llama.cpp -> model_type.
FAMILIES = {
  "gemma2": "gemma2",
  "gemma3": "gemma3_text",
  "glm4": "glm4",
  "gpt-oss": "gpt_oss",
  "gpt2": "gpt2",
  "granite": "granite",
  "llama": "llama",
  "llama4": "llama4_text",
  "mistral3": "ministral3",
  "olmo2": "olmo2",
  "phi3": "phi3",
  "qwen2": "qwen2",
  "qwen3": "qwen3",
  "qwen3moe": "qwen3_moe",
  "smollm3": "smollm3",
}
# Architecture of llama.cpp -> key, other than 0 -> model_type instead.
OTHERS = {
  "llama": {"expert_count": "mixtral"},
  "olmo2": {"attention.sliding_window": "olmo3"},
}
# Families whose files have rows of queries and keys in another order.
_TURNED = ("granite", "llama", "ministral3", "mixtral", "smollm3")
_KEYS = {
  "attention.head_count": "num_attention_heads",
  "attention.head_count_kv": "num_key_value_heads",
  "attention.key_length": "head_dim",
  "attention.layer_norm_epsilon": "layer_norm_epsilon",
  "attention.layer_norm_rms_epsilon": "rms_norm_eps",
  "attention.scale": "attention_multiplier",
  "attention.sliding_window": "sliding_window",
  "attn_logit_softcapping": "attn_logit_softcapping",
  "block_count": "num_hidden_layers",
  "context_length": "max_position_embeddings",
  "embedding_length": "hidden_size",
  "embedding_scale": "embedding_multiplier",
  "expert_count": "num_experts",
  "expert_feed_forward_length": "moe_intermediate_size",
  "expert_used_count": "num_experts_per_tok",
  "feed_forward_length": "intermediate_size",
  "final_logit_softcapping": "final_logit_softcapping",
  "logit_scale": "logits_scaling",
  "residual_scale": "residual_multiplier",
  "rope.freq_base": "rope_theta",
}
# Names of keys of GPT-2; it has no others of these.
_GPT2 = {
  "hidden_size": "n_embd",
  "intermediate_size": "n_inner",
  "max_position_embeddings": "n_positions",
  "num_attention_heads": "n_head",
  "num_hidden_layers": "n_layer",
}
# Keys of a scaling of positions, with the names of transformers.
_SCALING = {
  "factor": "factor",
  "original_context_length": "original_max_position_embeddings",
  "attn_factor": "attention_factor",
  "yarn_beta_fast": "beta_fast",
  "yarn_beta_slow": "beta_slow",
}
# Layers of the models of 27 billion, whose scores have another scale.
_LARGE = {"gemma2": 46, "gemma3": 62}

# Path of a leaf -> names of its tensors, in the order of `Family.tensors`.
_LAYER = "blk.{layer}."
_NAMES = families.table("""
  embed/embedding         token_embd.weight
  final_norm/(bias|scale) output_norm.(bias|weight)
  head/kernel             output.weight
  places/embedding        position_embd.weight
""") | families.layered(
  """
  attention/qkv/(kernel|bias)      attn_[qkv].(weight|bias)
  attention/out/(kernel|bias)      attn_output.(weight|bias)
  attention/(query|key)_norm/scale attn_(q|k)_norm.weight
  attention/sinks                  attn_sinks.weight
  attention_norm/(bias|scale)      attn_norm.(bias|weight)
  attention_post_norm/scale        post_attention_norm.weight
  mlp_norm/(bias|scale)            ffn_norm.(bias|weight)
  mlp_post_norm/scale              post_ffw_norm.weight
  mlp/(gate|up|down)/kernel        ffn_(gate|up|down).weight
  mlp/(up|down)/bias               ffn_(up|down).bias
  mlp/shared/(gate|up|down)/kernel ffn_(gate|up|down)_shexp.weight
  mlp/router/(kernel|bias)         ffn_gate_inp.(weight|bias)
  mlp/experts/(gate|up|down)       ffn_(gate|up|down)_exps.weight
  mlp/experts/(gate|up|down)_bias  ffn_(gate|up|down)_exps.bias
  """,
  _LAYER,
)
_FUSED = {
  families.QKV: "attn_qkv.weight",
  families.GATE_UP: "ffn_up.weight",
}
# Tensors that config.json has as numbers.
_FREQUENCIES = "rope_freqs.weight"
_FACTORS = {
  "long_factor": "rope_factors_long.weight",
  "short_factor": "rope_factors_short.weight",
}
# Numbers of Llama 3.1's scaling, which a file has only as divisors; Llama 4 has
# another factor.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA4 = {"low_freq_factor": 1.0, "high_freq_factor": 1.0}
_LLAMA3_LENGTH = 8192


# --- The header ---


@dataclasses.dataclass(frozen=True)
class Stored:
  """Place, shape and type of a tensor in a file; `kind` is ggml's number."""

  path: pathlib.Path
  kind: int
  shape: tuple[int, ...]
  offset: int
  num_bytes: int

  def rows(self, numbers: np.ndarray) -> np.ndarray:
    """Rows by their numbers, in float32; a row runs over the last axis."""
    count = math.prod(self.shape[:-1])
    of_row = self.num_bytes // count
    data = np.memmap(self.path, np.uint8, "r", self.offset, (count, of_row))
    out = np.empty((len(numbers), self.shape[-1]), np.float32)
    step = max(1, 2**22 // self.shape[-1])
    for i in range(0, len(numbers), step):  # Decoding takes memory too.
      out[i : i + step] = _decode(data[numbers[i : i + step]], self.kind)
    return out


@dataclasses.dataclass(frozen=True)
class Header:
  """The keys of a file, and the places of its tensors."""

  path: pathlib.Path
  keys: dict[str, Any]
  tensors: dict[str, Stored]


class _Cursor:
  """A place in a file that is mapped into memory."""

  def __init__(self, data: mmap.mmap):
    self._data = data
    self.at = 0

  @property
  def rest(self) -> int:
    """Number of bytes from here to the end."""
    return len(self._data) - self.at

  def take(self, size: int) -> bytes:
    if size > self.rest:
      raise ValueError(f"{size} bytes at {self.at} of {len(self._data)}")
    self.at += size
    return self._data[self.at - size : self.at]

  def number(self, code: str) -> Any:
    (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))
    return value

  def text(self) -> str:
    return self.take(self.number("Q")).decode()

  def count(self, code: str, least: int) -> int:
    """A number of entries that have at least so many bytes each."""
    number = self.number(code)
    if number * least > self.rest:
      raise ValueError(f"{number} entries in the {self.rest} bytes that follow")
    return number

  def value(self, key: str) -> Any:
    """The value of a key; for texts that nothing reads, only their number."""
    kind = self.number("I")
    if kind == _TEXT:
      return self.text()
    if kind != _ARRAY:
      return _plain(self.number(_code(key, kind)))
    kind = self.number("I")
    if kind != _TEXT:
      code = _code(key, kind)
      size = struct.calcsize(code)
      data = self.take(self.count("Q", size) * size)
      return np.frombuffer(data, np.dtype(code).newbyteorder("<"))
    count = self.count("Q", 8)
    if count > _MOST_TEXTS:
      raise ValueError(f"{key} has {count} texts, more than {_MOST_TEXTS}")
    if key in _TEXTS:
      return [self.text() for _ in range(count)]
    for _ in range(count):
      self.take(self.number("Q"))
    return count


def _code(key: str, kind: int) -> str:
  if kind not in _NUMBERS:
    raise ValueError(f"{key} has a value of the type {kind}")
  return _NUMBERS[kind]


def _plain(value: Any) -> Any:
  """A number; the decimals of a float32 and no more."""
  if isinstance(value, float):
    return float(str(np.float32(value)))
  return value


def read(path: pathlib.Path) -> Header:
  """Reads the header of a file.

  Raises:
    ImportError: The package `gguf` is missing.
    ValueError: The file is truncated, damaged, of another format, or a part of
      a model; or a tensor has a type that is not known.
  """
  _package()
  try:
    with (
      path.open("rb") as file,
      mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
      header = _header(path, _Cursor(data))
  except (ValueError, OverflowError) as error:
    raise ValueError(
      f"{path} is damaged or is not a GGUF file: {error}. Copy it again."
    ) from error
  if header.keys.get("split.count", 1) != 1:
    raise ValueError(
      f"{path} is one of {header.keys['split.count']} parts of a model;"
      " llama-gguf-split --merge of llama.cpp makes one file of them."
    )
  for name, stored in header.tensors.items():
    try:
      block = np.zeros((1, _sizes(stored.kind)[1]), np.uint8)
      _decode(block, stored.kind)
    except (KeyError, NotImplementedError) as error:
      raise ValueError(
        f"{name} in {path} has the type {_kind(stored.kind)}, which the package"
        " gguf cannot decode; quantize the model in another type, such as Q8_0,"
        " or update the package."
      ) from error
  return header


def _header(path: pathlib.Path, cursor: _Cursor) -> Header:
  start = cursor.take(min(cursor.rest, 7))
  if start == b"version":
    raise ValueError("a pointer of git-lfs, which git lfs pull resolves")
  if start[:4] != b"GGUF":
    raise ValueError(f"it begins with {start[:4]!r}, and not with b'GGUF'")
  cursor.at = 4
  if (version := cursor.number("I")) not in _VERSIONS:
    raise ValueError(f"version {version}; supported are {_VERSIONS}")
  # An entry is a text, a number and at least one further number.
  num_tensors, num_keys = cursor.count("Q", 24), cursor.count("Q", 13)
  keys: dict[str, Any] = {}
  for _ in range(num_keys):
    if (key := cursor.text()) in keys:
      raise ValueError(f"the key {key:.80} is there twice")
    keys[key] = cursor.value(key)
  entries = {}
  for _ in range(num_tensors):
    if (name := cursor.text()) in entries:
      raise ValueError(f"the tensor {name:.80} is there twice")
    axes = cursor.number("I")
    if not 1 <= axes <= _MOST_AXES:
      raise ValueError(f"the tensor {name:.80} has {axes} axes")
    shape = tuple(reversed([cursor.number("Q") for _ in range(axes)]))
    entries[name] = (shape, cursor.number("I"), cursor.number("Q"))
  alignment = keys.get("general.alignment", 32)
  if type(alignment) is not int or not 1 <= alignment <= 2**20:
    raise ValueError(f"general.alignment is {alignment!r}")
  begin = -(-cursor.at // alignment) * alignment
  size = cursor.at + cursor.rest
  tensors = {}
  for name, (shape, kind, offset) in entries.items():
    if kind in _package().GGML_QUANT_SIZES:
      of_block, num_bytes = _sizes(kind)
    else:  # Refused later, by its name.
      of_block, num_bytes = 1, 0
    if not all(shape) or shape[-1] % of_block:
      raise ValueError(
        f"{name:.80} is {list(shape)}, in blocks of {of_block} on the last axis"
      )
    num_bytes *= math.prod(shape) // of_block
    end = begin + offset + num_bytes
    if end > size:
      raise ValueError(f"{name:.80} ends at byte {end} of {size}: truncated")
    tensors[name] = Stored(path, kind, shape, begin + offset, num_bytes)
  return Header(path, keys, tensors)


def _sizes(kind: int) -> tuple[int, int]:
  """Numbers of values and of bytes of a block."""
  return _package().GGML_QUANT_SIZES[kind]


def _kind(kind: int) -> str:
  enum = _package().GGMLQuantizationType
  return enum(kind).name if kind in [*enum] else str(kind)


def _decode(data: np.ndarray, kind: int) -> np.ndarray:
  package = _package()
  return package.dequantize(data, package.GGMLQuantizationType(kind))


# --- The folder ---


def folder(path: pathlib.Path) -> pathlib.Path:
  """A temporary folder with the files of a checkpoint, but for its weights.

  Raises:
    ImportError: The package `gguf` is missing.
    ValueError: The file is damaged, or something in it is not supported.
  """
  stat = path.stat()
  return _folder(path.resolve(), stat.st_size, stat.st_mtime_ns)


_folders: list[tempfile.TemporaryDirectory] = []  # Removed at the end.


@functools.cache
def _folder(path: pathlib.Path, size: int, changed: int) -> pathlib.Path:
  del size, changed  # A file that has changed is read again.
  header = read(path)
  config = _config(header)
  try:
    families.from_config_json(config)
  except ValueError as error:
    raise ValueError(f"the keys of {path} as a {error}") from error
  files = gguf_tokenizer.files(path, header.keys, config["vocab_size"])
  names = {"bos_token_id", "eos_token_id", "pad_token_id"}
  generation = files["generation_config.json"]
  config |= {name: x for name, x in generation.items() if name in names}
  _folders.append(tempfile.TemporaryDirectory(prefix="grpo_jax_"))
  # Messages about the folder then name the file.
  target = pathlib.Path(_folders[-1].name, path.name)
  target.mkdir()
  for name, content in {"config.json": config, **files}.items():
    # A vocabulary is long, and Python indents slowly.
    indent = None if name == "tokenizer.json" else 2
    text = json.dumps(content, ensure_ascii=False, indent=indent)
    (target / name).write_text(text, encoding="utf-8")
  (target / safetensors.GGUF).symlink_to(path)
  return target


def _config(header: Header) -> dict[str, Any]:
  """The config.json of a file."""
  path, name = header.path, header.keys.get("general.architecture")
  if not isinstance(name, str) or name not in FAMILIES:
    raise ValueError(
      f"{path} has the architecture {name!r:.80}; supported are"
      f" {', '.join(FAMILIES)}. Take the safetensors files of the model."
    )
  own = {
    key.removeprefix(f"{name}."): value
    for key, value in header.keys.items()
    if key.startswith(f"{name}.")
  }
  family = families.FAMILIES[FAMILIES[name]]
  for key, kind in OTHERS.get(name, {}).items():
    family = families.FAMILIES[kind] if own.get(key) else family
  config: dict[str, Any] = {
    "architectures": [family.architecture],
    "model_type": family.name,
    "tie_word_embeddings": "output.weight" not in header.tensors,
    "torch_dtype": "float32",
    **{_KEYS[key]: own.pop(key) for key in _KEYS if key in own},
  }
  table = header.tensors.get("token_embd.weight")
  if table is None:
    raise ValueError(
      f"{path} has no token_embd.weight, which every model has; it has"
      f" {safetensors.few([*header.tensors]) or 'no tensor'}. A file with a"
      " vocabulary only, or with adapters, is not a model."
    )
  config["vocab_size"] = table.shape[0]
  for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"):
    value = config.get(key)
    # A layer has more than one tensor, so this ends loops over layers.
    most = len(header.tensors) if key == "num_hidden_layers" else math.inf
    if type(value) is not int or not 1 <= value <= most:
      raise ValueError(
        f"{path} has {len(header.tensors)} tensors, and"
        f" {name}.{next(k for k, x in _KEYS.items() if x == key)} is"
        f" {value!r:.80}; the file is damaged, or is not a model."
      )
  turned = own.pop("rope.dimension_count", None)
  width = config["hidden_size"] // config["num_attention_heads"]
  if "rope_theta" in config and family.name in _TURNED and turned:
    width = turned  # They turn whole heads.
  width = config.setdefault("head_dim", width)
  for key, value in (
    ("attention.key_length", width),
    ("rope.dimension_count", turned),
  ):
    if value is not None and (type(value) is not int or value < 1):
      raise ValueError(
        f"{path}: {name}.{key}, or what follows from the other sizes, is"
        f" {value!r:.80}; needs a whole number from 1. The file is damaged, or"
        " is not a model."
      )
  config |= _scaling(header, name, own)
  config |= _of_family(header, name, config, own)
  if not config.get("num_experts", config.get("num_local_experts")):
    config = {k: x for k, x in config.items() if not k.startswith("num_exper")}
  if turned not in (None, width):
    config["partial_rotary_factor"] = turned / width
  same = {
    "attention.causal": (True,),
    "attention.value_length": (width,),
    "expert_gating_func": (3,) if name == "gpt-oss" else (1,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "rope.scaling.finetuned": (True, False),
    "vocab_size": (config["vocab_size"],),
  }
  for key, value in own.items():
    if not np.isscalar(value) or value not in same.get(key, ()):
      allowed = " or ".join(map(str, same.get(key, ("no such key",))))
      raise ValueError(
        f"{path} has {name}.{key} = {reprlib.repr(value)}; supported is"
        f" {allowed}: it may change what the model computes."
      )
  return config


def _scaling(header: Header, name: str, own: dict[str, Any]) -> dict[str, Any]:
  """Keys of the scaling of positions; removes the keys that it reads."""
  kind = own.pop("rope.scaling.type", "none")
  entry = {
    _SCALING[key]: own.pop(f"rope.scaling.{key}")
    for key in _SCALING
    if f"rope.scaling.{key}" in own
  }
  if name == "phi3":
    length = "original_max_position_embeddings"
    lengths = {length: entry.pop(length)} if length in entry else {}
    for key, tensor in _FACTORS.items():
      if tensor in header.tensors:
        entry[key] = _vector(header, tensor)
    if not entry:
      return lengths
    return {**lengths, "rope_scaling": {"rope_type": "longrope", **entry}}
  if name == "gpt-oss":  # Its own code does not round, and llama.cpp does.
    entry["truncate"] = False
  if name == "mistral3":  # llama.cpp takes 1 for the weight that is not there.
    weight = own.pop("rope.scaling.yarn_log_multiplier", 0.0)
    entry |= {"mscale": 1.0, "mscale_all_dim": weight}
    entry["llama_4_scaling_beta"] = own.pop("attention.temperature_scale", 0.0)
  if _FREQUENCIES in header.tensors:
    divisors = _vector(header, _FREQUENCIES)
    factor = max(divisors)
    theta = header.keys.get(f"{name}.rope.freq_base", 10_000.0)
    ends = _LLAMA4 if name == "llama4" else _LLAMA3
    scaling = {"rope_type": "llama3", "factor": factor, **ends}
    expected = _llama3_divisors(theta, len(divisors), factor, *ends.values())
    if kind != "none" or not np.allclose(divisors, expected, rtol=1e-3):
      raise ValueError(
        f"{header.path} has {_FREQUENCIES} = {reprlib.repr(divisors)}, which is"
        f" not Llama 3.1's scaling by {factor:g} from {_LLAMA3_LENGTH} tokens;"
        " no other one is read from a GGUF file. Take the safetensors files of"
        " the model."
      )
    scaling["original_max_position_embeddings"] = _LLAMA3_LENGTH
    return {"rope_scaling": scaling}
  if kind == "none":
    return {}
  return {"rope_scaling": {"rope_type": kind, **entry}}


def _vector(header: Header, name: str) -> list[float]:
  stored = header.tensors[name]
  if len(stored.shape) != 1:
    raise ValueError(
      f"{name} in {header.path} is {list(stored.shape)}, and needs one axis."
    )
  return [_plain(float(x)) for x in stored.rows(np.arange(1))[0]]


def _llama3_divisors(
  theta: float, count: int, factor: float, low: float, high: float
) -> np.ndarray:  # [count]
  """Divisors of the frequencies in Llama 3.1's scaling."""
  turns = _LLAMA3_LENGTH / (2 * np.pi) * theta ** -(np.arange(count) / count)
  # Without a ramp everything is kept or scaled.
  smooth = np.clip((turns - low) / max(high - low, 1e-30), 0, 1)
  return 1 / ((1 - smooth) / factor + smooth)


def _of_family(
  header: Header, name: str, config: dict[str, Any], own: dict[str, Any]
) -> dict[str, Any]:
  """Keys that a file does not have, because its architecture implies them."""
  keys: dict[str, Any] = {}
  if name in _LARGE:
    is_large = config["num_hidden_layers"] == _LARGE[name]
    scalar = config["hidden_size"] // config["num_attention_heads"]
    keys["query_pre_attn_scalar"] = scalar if is_large else config["head_dim"]
  if name == "gemma3":
    keys["rope_local_base_freq"] = own.pop("rope.freq_base_swa", 10_000.0)
    if "sliding_window" not in config:
      keys["sliding_window_pattern"] = 1
  if config["model_type"] == "olmo3":
    theta = {"rope_theta": config.pop("rope_theta", 10_000.0)}
    scaled = config.pop("rope_scaling", {"rope_type": "default"})
    keys["rope_parameters"] = {
      "full_attention": scaled | theta,
      "sliding_attention": {"rope_type": "default"} | theta,
    }
    pattern = own.pop("attention.sliding_window_pattern", None)
    if pattern is not None:  # One of llama.cpp's flags for each layer.
      kinds = "full_attention", "sliding_attention"
      keys["layer_types"] = [kinds[bool(x)] for x in np.atleast_1d(pattern)]
  if name == "phi3":  # 0 is none.
    keys["sliding_window"] = config.get("sliding_window") or None
  if name == "glm4":
    keys["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
  if name in ("gpt-oss", "qwen3moe"):
    width = config.get("moe_intermediate_size")
    keys["intermediate_size"] = config.get("intermediate_size", width)
  if name == "gpt-oss":
    keys["intermediate_size"] = config.pop("moe_intermediate_size", width)
  if name == "qwen3moe":
    keys["norm_topk_prob"] = True
  if name == "gpt2":
    del config["head_dim"]
    keys |= {
      _GPT2[key]: config.pop(key) for key in _GPT2.keys() & config.keys()
    }
  if name == "llama4":
    keys["intermediate_size_mlp"] = config.get("intermediate_size")
    keys["intermediate_size"] = config.pop("moe_intermediate_size", None)
    keys["interleave_moe_layer_step"] = own.pop("interleave_moe_layer_step", 1)
    # llama.cpp tells the two published models apart by this number.
    keys["num_local_experts"] = config.pop("num_experts", 0)
    keys["use_qk_norm"] = keys["num_local_experts"] != 128
  return keys


# --- Tensors ---


@dataclasses.dataclass(frozen=True)
class View(safetensors.LazyTensor):
  """A tensor of the file, `stored`, as its family has it.

  Attributes:
    shape: Shape in the family.
    first: First row of the file's tensor that is this tensor's.
    heads: Number of heads whose rows llama.cpp has put in another order, or 0.
    is_transposed: Whether the last two axes are exchanged.
    shift: Number that llama.cpp has added.
    dtype: Dtype of the values that are read, by its name in files.
  """

  stored: Stored
  shape: tuple[int, ...]
  first: int = 0
  heads: int = 0
  is_transposed: bool = False
  shift: float = 0.0
  dtype: str = "F32"

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    """A block in float32; `index` has a slice for each axis."""
    shape = self.shape
    if self.is_transposed:
      shape = (*shape[:-2], shape[-1], shape[-2])
      index = (*index[:-2], index[-1], index[-2])
    count = math.prod(shape[:-1])
    numbers = self.first + np.arange(count).reshape(shape[:-1])
    if len(shape) == 1:  # A bias, whose heads are in its only row.
      columns = self._order(shape[0])[index]
      return self.stored.rows(np.zeros(1, int))[0][columns] - self.shift
    if self.heads:
      numbers = self._order(count)
    numbers = numbers[index[:-1]]
    block = self.stored.rows(numbers.reshape(-1))
    block = block.reshape(*numbers.shape, -1)[..., index[-1]]
    return block.swapaxes(-1, -2) if self.is_transposed else block

  def _order(self, count: int) -> np.ndarray:
    """Places in the file of the rows of all heads."""
    rows = np.arange(count)
    if not self.heads:
      return rows
    return rows.reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(-1)


def tensors(
  path: pathlib.Path, family: Family, config: TransformerConfig
) -> dict[str, Any]:
  """Tensors of a file by their names in the family's safetensors files.

  Raises:
    ValueError: The file has a tensor that the family has no place for.
  """
  header = read(path.resolve())
  names = _names(family)
  skipped = {_FREQUENCIES, *_FACTORS.values()}
  views: dict[str, Any] = {}
  unknown = []
  for name, stored in header.tensors.items():
    match = re.fullmatch(r"blk\.(\d{1,6})\.(.+)", name)
    layer = int(match[1]) if match else 0
    template = names.get(_LAYER + match[2] if match else name)
    if name in skipped:
      continue
    if template is None or layer >= config.num_layers:
      unknown.append(name)
    elif "{expert}" in template:
      experts, *shape = stored.shape
      for expert in range(min(experts, config.num_experts)):
        first = expert * math.prod(shape[:-1])
        view = View(stored, tuple(shape), first=first)
        views[template.format(layer=layer, expert=expert)] = view
    else:
      views[template.format(layer=layer)] = _view(name, stored, family, config)
  if unknown:
    raise ValueError(
      f"{path.resolve()} has {safetensors.few(unknown)}, for which a model of"
      f" the family {family.name} with {config.num_layers} layers has no place;"
      " without it the model would compute something else."
    )
  return views


def _names(family: Family) -> dict[str, str]:
  """Names in a file -> names in the family; {layer}, {expert} are numbers."""
  table = dict(_NAMES)
  if family.name == "gpt_oss":
    table["layers/mlp_norm/scale"] = (_LAYER + "post_attention_norm.weight",)
  if family.name == "gpt2":
    for part, name in (("kernel", "weight"), ("bias", "bias")):
      table[f"layers/attention/qkv/{part}"] = (_LAYER + f"attn_qkv.{name}",)
  names = {
    source: target
    for leaf, here in table.items()
    for source, target in zip(here, family.tensors.get(leaf, ()), strict=False)
  }
  for fused, name in _FUSED.items():
    if fused in family.fused:
      names[_LAYER + name] = "model.layers.{layer}." + fused.name
  return names


def _view(
  name: str, stored: Stored, family: Family, config: TransformerConfig
) -> Any:
  shape, heads = stored.shape, 0
  if family.name in _TURNED and re.search(r"\.attn_[qk]\.", name):
    heads = config.num_heads if ".attn_q." in name else config.num_kv_heads
    # Of another size it is refused, by its shape.
    count = math.prod(shape[:-1]) if name.endswith("weight") else shape[0]
    heads = 0 if count % (2 * heads) else heads
  is_transposed = family.experts_in_one and name.endswith("_exps.weight")
  is_transposed &= len(shape) == 3
  if family.inputs_first and name.startswith("blk.") and len(shape) == 2:
    is_transposed = True
  if is_transposed:
    shape = (*shape[:-2], shape[-1], shape[-2])
  is_norm = config.norm_plus_one and name.endswith("norm.weight")
  shift = 1.0 if is_norm else 0.0
  plain = {0: "F32", 1: "F16", 30: "BF16"}.get(stored.kind)
  if plain and not (heads or is_transposed or shift):
    return Tensor(stored.path, plain, shape, stored.offset, stored.num_bytes)
  return View(
    stored, shape, heads=heads, is_transposed=is_transposed, shift=shift
  )
