"""Loads a transformer from a Hugging Face checkpoint, and exports to one.

Loading reads only tensors that the shards of this process need, one at a time,
from memory-mapped safetensors files into the stacked leaves. Beside the result
the host holds one shard of one leaf. MiB of resident memory, minus that before
loading, for bfloat16 files of 6 · 32 MiB (176 in all, CPU devices;
experiments/benchmarks/load.py):

| parameters | devices                       | result | peak |
|------------|-------------------------------|--------|------|
| bfloat16   | 1                             |    176 |  219 |
| bfloat16   | 8, split on the last axis     |    176 |  200 |
| bfloat16   | 2 processes, split on the 1st |     88 |  119 |
| float32    | 1                             |    352 |  428 |
| float32    | 8, split on the last axis     |    352 |  392 |

Exporting is the reverse, one layer of one leaf at a time.

`families.py` has the names of the tensors, and `_LAYOUT` their places in the
leaves of the parameters. A tensor of a checkpoint may be several tensors here
(`Family.fused`): reading presents its parts as tensors without a copy, and
writing concatenates them again.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
import math
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Sharding, SingleDeviceSharding

from grpo_jax.models import architecture, transformer
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.hf import families, fp8, hub, mxfp4, safetensors
from grpo_jax.models.hf.families import Family, Fused
from grpo_jax.models.hf.safetensors import DTYPES, Output, Tensor
from grpo_jax.types import PyTree

Index = tuple[slice, ...]

# Axes of a leaf of one layer; and for each axis of a tensor, the axes of the
# leaf that it runs over, the last one fastest; "-" for an axis of length 1.
# Letters are those of transformer.py; E experts, Q the R + 2 of a fused kernel.
_LAYOUT = {
  leaf: layout
  for layout, leaves in {
    ("VD", "V D"): """
      embed/embedding places/embedding layer_inputs/embed/embedding""",
    ("DV", "V D"): "head/kernel",
    ("E", "E"): "router_bias mlp/router/bias",
    ("VK", "V K"): "router_table",
    ("DCQK", "CQK D"): "attention/qkv/kernel",
    ("CQK", "CQK"): "attention/qkv/bias",
    ("CRKD", "D CRK"): "attention/out/kernel",
    ("CR", "CR"): "attention/sinks",
    ("DCK", "CK D"): "attention/query_heads/kernel attention/key_heads/kernel",
    # N is the width of a latent vector.
    ("DN", "N D"): "attention/query_down/kernel attention/kv_down/kernel",
    ("NCK", "CK N"): """
      attention/query_up/kernel attention/kv_up/kernel
      attention/indexer/query/kernel""",
    ("GIN", "GN I"): "attention/out_down",
    ("DF", "F D"): """
      attention/compressor/values/kernel attention/compressor/gates/kernel
      attention/indexer/compressor/values/kernel
      attention/indexer/compressor/gates/kernel
      attention_streams/weight mlp_streams/weight stream_head/weight
      mlp/gate/kernel mlp/up/kernel inputs/gate/kernel
      layer_inputs/projection/kernel mlp/shared/gate/kernel
      mlp/shared/up/kernel mlp/shared_gate/kernel""",
    ("SF", "S F"): """
      attention/compressor/place_bias
      attention/indexer/compressor/place_bias""",
    ("DK", "K D"): "attention/indexer/key/kernel",
    ("DC", "C D"): "attention/indexer/head_weights/kernel",
    # With a norm over each head they have only the last axis.
    ("CRK", "CRK"): "attention/query_norm/scale",
    ("C1K", "C1K"): "attention/key_norm/scale",
    # M: channels of a head of keys, whose parts may be tensors of their own.
    ("DGM", "GM D"): "delta/inputs/kernel delta/rates/kernel",
    ("GMW", "GM - W"): "delta/taps",
    ("GR", "GR"): "delta/log_rate delta/rate_bias",
    ("GRVD", "D GRV"): "delta/out/kernel",
    ("F", "F"): "mlp/up/bias",
    ("FD", "D F"): "mlp/down/kernel inputs/down/kernel mlp/shared/down/kernel",
    ("DE", "E D"): "mlp/router/kernel",
    # One tensor for each expert.
    ("eDF", "F D"): "mlp/experts/gate mlp/experts/up",
    ("eFD", "D F"): "mlp/experts/down",
  }.items()
  for leaf in leaves.split()
}
# One tensor for all of a layer's.
_EXPERTS_IN_ONE = {
  "mlp/experts/gate": ("EDF", "E D F"),
  "mlp/experts/up": ("EDF", "E D F"),
  "mlp/experts/down": ("EFD", "E F D"),
  "mlp/experts/gate_bias": ("EF", "E F"),
  "mlp/experts/up_bias": ("EF", "E F"),
  "mlp/experts/down_bias": ("ED", "E D"),
}
_TOWER = {
  "patch/kernel": ("FD", "D F"),
  "places/embedding": ("VD", "V D"),
  "connector/kernel": ("DF", "F D"),
  "up/kernel": ("DF", "F D"),
  "down/kernel": ("FD", "D F"),
}
# Queries, keys and values of towers, if they are one tensor.
_IN_ONE = {"CQK D": "QCK D", "CQK": "QCK"}
_NORM = ("D", "D")
# Beginnings of the paths of leaves whose first axis counts layers.
_STACKED = re.compile(
  r"((tower/)?layers|tower/deep|(?!tower)\w+_layers)/"
  r"|router_(bias|table)|layer_scale"
)


def name(path) -> str:
  """A path of a tree as text: its keys, separated by slashes."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


@dataclasses.dataclass(frozen=True)
class Piece:
  """A tensor of a checkpoint as a part of a leaf.

  Attributes:
    tensor: Name of the tensor.
    region: Part of the leaf that the tensor fills.
    axes: Axes of the leaf that each axis of the tensor runs over, the last one
      fastest. In all other axes the region has length 1.
    stored: Shape of the tensor in the file, if several axes there are the last
      axis here; else empty.
  """

  tensor: str
  region: Index
  axes: tuple[tuple[int, ...], ...]
  stored: tuple[int, ...] = ()

  @property
  def sizes(self) -> tuple[int, ...]:
    """Lengths of the region."""
    return tuple(part.stop - part.start for part in self.region)

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the tensor with the axes of `axes`."""
    return tuple(
      math.prod(self.sizes[axis] for axis in group) for group in self.axes
    )

  @property
  def stored_shape(self) -> tuple[int, ...]:
    """Shape of the tensor in the file."""
    return self.stored or self.shape

  @property
  def order(self) -> tuple[int, ...]:
    """Axes of the leaf in the order of the tensor, after all other axes."""
    inner = tuple(axis for group in self.axes for axis in group)
    outer = (axis for axis in range(len(self.region)) if axis not in inner)
    return (*outer, *inner)


def leaves(params: PyTree) -> list[tuple]:
  """Leaves with their paths inside "trained" or "frozen"."""
  return [
    entry
    for group in ("trained", "frozen")
    for entry in jax.tree_util.tree_flatten_with_path(params[group])[0]
  ]


def checkpoint_pieces(
  family: Family, config: TransformerConfig, abstract: PyTree
) -> dict[str, list[Piece]]:
  """The pieces of each leaf, layer by layer."""
  return {
    name(path): list(pieces_of_leaf(family, config, name(path), leaf.shape))
    for path, leaf in leaves(abstract)
  }


def pieces_of_leaf(
  family: Family,
  config: TransformerConfig,
  path: str,
  shape: tuple[int, ...],
) -> Iterator[Piece]:
  """The pieces of one leaf with this path and shape."""
  stack = _STACKED.match(path)
  leaf, path = path, re.sub(r"^\w+_layers/", "layers/", path)
  names = family.tensors[path]
  letters, tensor_axes = _layout(family, path, len(names))
  letters = letters[-(len(shape) - bool(stack)) :]
  letters = "L" + letters if stack else letters
  groups = (
    (
      group,
      tuple(letters.index(letter) for letter in group if letter in letters),
    )
    for group in tensor_axes.split()
  )
  axes = tuple(indices for group, indices in groups if indices or group == "-")
  sizes = dict(zip(letters, shape, strict=True))
  stored: tuple[int, ...] = ()
  if path == "tower/patch/kernel":  # In files it is a convolution's kernel.
    assert config.tower is not None
    stored = (shape[-1], *config.tower.patch_shape)
  split_axis = "M" if "M" in sizes else "Q"
  end = sizes.get(split_axis, 0)
  widths = [end]
  if split_axis == "M" and len(names) > 1:
    widths = _parts_of_inputs(config, len(names))
  elif len(names) == 3:
    widths = [end - 2, 1, 1]
  ends = list(itertools.accumulate(widths, initial=0))
  parts = [slice(*pair) for pair in itertools.pairwise(ends)]
  numbers = _layer_numbers(config, leaf, sizes.get("L", 1))
  for place, layer in enumerate(numbers):
    for expert in range(sizes.get("e", 1)):
      for name, part in zip(names, parts, strict=True):
        narrow = {
          "L": slice(place, place + 1),
          "e": slice(expert, expert + 1),
          split_axis: part,
        }
        yield Piece(
          name.format(layer=layer, expert=expert),
          tuple(narrow.get(a, slice(0, sizes[a])) for a in letters),
          axes,
          stored,
        )


def _layer_numbers(
  config: TransformerConfig, path: str, count: int
) -> Sequence[int]:
  """Numbers of the `count` layers that a leaf is stacked over."""
  if path.startswith("router_"):
    of_tables = path == "router_table"
    return [
      layer
      for layer, name in enumerate(config.stacks)
      if config.of_stack(name).num_experts
      and config.has_table(layer) == of_tables
    ]
  stack = path.partition("/")[0]
  return config.layers_of(stack) or range(count)  # A tower's, in their order.


def _parts_of_inputs(config: TransformerConfig, count: int) -> list[int]:
  """Widths of parts of M: two rates; or query, key, values, and their gates."""
  sizes = config.delta
  assert sizes is not None
  if count == 2:
    return [sizes.values_per_key] * 2
  values = sizes.values_per_key * sizes.value_width
  return [sizes.key_width, sizes.key_width, values, values][:count]


def _layout(family: Family, path: str, num_tensors: int) -> tuple[str, str]:
  """Axes of a leaf of one layer, and which of them make up each tensor axis."""
  experts = _EXPERTS_IN_ONE if family.experts_in_one else {}
  of_layer = _STACKED.sub("", path) or path
  if path.startswith("tower/"):
    of_layer = of_layer.removeprefix("tower/").removeprefix("merger/")
    layout = _TOWER.get(of_layer) or _LAYOUT.get(of_layer, _NORM)
  else:
    layout = experts.get(of_layer) or _LAYOUT.get(of_layer, _NORM)
  letters, tensor_axes = layout
  if family.experts_outputs_first and of_layer in experts:
    first, second, third = tensor_axes.split()
    tensor_axes = f"{first} {third} {second}"
  if num_tensors == 1:
    tensor_axes = _IN_ONE.get(tensor_axes, tensor_axes)
  if family.inputs_first and of_layer != path:  # Not the embeddings.
    tensor_axes = " ".join(reversed(tensor_axes.split()))
  return letters, tensor_axes


@dataclasses.dataclass(frozen=True)
class WeightPart(safetensors.LazyTensor):
  """A part of a fused tensor, which is `stored`.

  Attributes:
    shape: Shape of the part.
    axis: The axis along which the parts lie.
    start, step: First index of the part on that axis, and the distance between
      its entries.
  """

  shape: tuple[int, ...]
  axis: int
  start: int
  step: int

  @property
  def dtype(self) -> str:
    """Dtype by its name in files."""
    return self.stored.dtype

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    """A block of the part; `index` has a slice for each axis."""
    part = index[self.axis]
    start = self.start + part.start * self.step
    # Stops right after the last entry: the next may belong to another part.
    stop = start + (part.stop - part.start - 1) * self.step + 1
    stored_index = list(index)
    stored_index[self.axis] = slice(start, stop, self.step)
    return self.stored.map()[tuple(stored_index)]


def split(
  tensors: Mapping[str, Tensor],
  shapes: Mapping[str, tuple[int, ...]],
  table: tuple[Fused, ...],
) -> dict[str, Any]:
  """Tensors of the files, with fused tensors replaced by their parts.

  Args:
    shapes: Shapes of all tensors that a model needs; parts instead of fused
      tensors.
    table: The fused tensors of the family.

  Raises:
    ValueError: A fused tensor does not have the shape of its parts together.
  """
  by_name: dict[str, Any] = dict(tensors)
  for name, tensor in tensors.items():
    for fused in table:
      start = name.removesuffix(fused.name)
      parts = [start + part for part in fused.parts]
      if start == name or not all(part in shapes for part in parts):
        continue
      fused_shape = _fused_shape([shapes[part] for part in parts], fused)
      if tensor.shape != fused_shape:
        raise ValueError(
          f"{name} in {tensor.path} is {list(tensor.shape)}, but the sizes in"
          f" config.json make it {list(fused_shape)}."
        )
      del by_name[name]
      axis = len(fused_shape) - 1 if fused.interleaved else fused.axis
      begin = 0
      for number, part in enumerate(parts):
        shape = shapes[part]
        place = (number, len(parts)) if fused.interleaved else (begin, 1)
        by_name[part] = WeightPart(tensor, shape, axis, *place)
        begin += shape[axis]
  return by_name


def _fused_shape(
  shapes: list[tuple[int, ...]], fused: Fused
) -> tuple[int, ...]:
  if fused.interleaved:
    return *shapes[0][:-1], sum(shape[-1] for shape in shapes)
  before, after = shapes[0][: fused.axis], shapes[0][fused.axis + 1 :]
  return *before, sum(shape[fused.axis] for shape in shapes), *after


def fused_names(names: list[str], table: tuple[Fused, ...]) -> list[str]:
  """Names of tensors in files: fused tensors instead of their parts."""

  def fused_name(name):
    for fused in table:
      for part in fused.parts:
        if name.endswith(part):
          return name.removesuffix(part) + fused.name
    return name

  return list(dict.fromkeys(map(fused_name, names)))


def joined(
  outputs: Iterable[Output], table: tuple[Fused, ...]
) -> Iterator[Output]:
  """Outputs with the parts of each fused tensor concatenated."""
  waiting: dict[str, dict[str, Output]] = {}
  for output in outputs:
    (key,) = fused_names([output.name], table)
    if key == output.name:
      yield output
      continue
    (fused,) = (x for x in table if key.endswith(x.name))
    parts = waiting.setdefault(key, {})
    parts[output.name] = output
    if len(parts) == len(fused.parts):
      start = key.removesuffix(fused.name)
      del waiting[key]
      yield _join(key, fused, [parts[start + name] for name in fused.parts])


def _join(name: str, fused: Fused, parts: list[Output]) -> Output:
  def data() -> np.ndarray:
    dtype = DTYPES[parts[0].dtype]
    arrays = [part.data().view(dtype).reshape(part.shape) for part in parts]
    if fused.interleaved:
      array = np.stack(arrays, axis=-1)
    else:
      array = np.concatenate(arrays, fused.axis)
    return array.reshape(-1).view(np.uint8)

  shape = _fused_shape([part.shape for part in parts], fused)
  num_bytes = math.prod(shape) * DTYPES[parts[0].dtype].itemsize
  return Output(name, parts[0].dtype, shape, num_bytes, data)


# Tensors of old checkpoints that follow from config.json.
_REDUNDANT = re.compile(
  r"(rotary_emb\.inv_freq|\.h\.\d+\.attn\.(masked_)?bias)$"
)

# Files that an export copies: configuration and license, and the tokenizer.
_OF_MODEL = (
  *("config.json", "generation_config.json", "*processor_config.json"),
  *("LICENSE*", "NOTICE*"),
)
_OF_TOKENIZER = (
  *("tokenizer*", "vocab.*", "merges.txt", "added_tokens.json"),
  *("special_tokens_map.json", "chat_template.*"),
  "additional_chat_templates/*.jinja",
)


def load(
  directory: str | os.PathLike,
  config: TransformerConfig | None = None,
  *,
  param_dtype: str | None = None,
  shardings: PyTree | Callable[[PyTree], PyTree] = None,
  convert: Callable[[tuple, jax.Array], PyTree] = lambda path, leaf: leaf,
  family: Family | None = None,
) -> tuple[TransformerConfig, PyTree]:
  """Loads the parameters of a checkpoint.

  Args:
    directory: Folder with config.json and model.safetensors, with
      model.safetensors.index.json and the files that the index names, or with
      a link to a GGUF file, as `gguf.folder` makes it.
    config: The config of config.json with any `architecture.FIELDS_OF_A_RUN`;
      None for the defaults of these fields.
    param_dtype: Dtype of the parameters, whatever the dtype of the files; None
      for the config's.
    shardings: A sharding, a tree of shardings whose leaves may stand for
      subtrees of the parameters, or a function from abstract parameters to
      such a tree. None for the default device. With several processes, each
      process reads only the parts of the files that its devices need.
    convert: (path, leaf) -> the leaf to keep, called as soon as a leaf is read;
      with `quantization.quantize_leaf` no two leaves are whole at a time.
    family: The family, if the caller has read config.json, as for a classifier;
      then `config` is needed. None: from config.json.

  Returns:
    The config with `param_dtype`, and {"trained": …, "frozen": …}, where
    "frozen" has biases of routers and a tower that is not trained, if any.

  Raises:
    FileNotFoundError: A file is missing, also one named by the index.
    ValueError: config.json is not supported or differs from `config`; tensors
      are missing, unknown, or of another shape or dtype than needed; a file is
      truncated or not a safetensors file; a model with tied embeddings has a
      head that is not its embedding; a file does not have the checksum in
      SHA256SUMS. Without that list a flipped bit in a number is not noticed.
  """
  directory = pathlib.Path(directory)
  hub.check_sums(directory)
  if family is None:
    config, family = _config_and_family(directory, config)
  assert config is not None
  if param_dtype is not None:
    config = dataclasses.replace(config, param_dtype=param_dtype)
  tensors: dict
  if (path := directory / safetensors.GGUF).exists():
    from grpo_jax.models.hf import gguf  # It needs a further package.

    tensors = gguf.tensors(path, family, config)
  else:
    tensors = fp8.unpacked(safetensors.find(directory))
  family = family.of_files(tensors)
  if not any(name.startswith(family.base) for name in tensors):
    tensors = {family.base + name: x for name, x in tensors.items()}
  if family.experts_in_one:
    tensors = mxfp4.unpacked(tensors)
  # Checked before each expert is looked up by name.
  num_experts = 0 if family.experts_in_one else config.num_experts
  layers = config.num_dense_layers, config.num_layers - config.num_dense_layers
  if layers[0] + layers[1] * max(num_experts, 1) > len(tensors):
    raise ValueError(
      f"{directory} has {len(tensors)} tensors, and config.json describes"
      f" {config.num_layers} layers with {config.num_experts} experts each; it"
      " is of another checkpoint. Copy all files again."
    )
  abstract = _abstract_params(config)
  pieces = checkpoint_pieces(family, config, abstract)
  shapes = {
    p.tensor: p.stored_shape for of_leaf in pieces.values() for p in of_leaf
  }
  tensors = split(tensors, shapes, family.fused)
  _check(directory, config, family, pieces, tensors)
  fate = "are neither run nor trained; an export copies them"
  _name_later_layers(directory, tensors, family, f"{fate} or leaves them out")
  if callable(shardings):
    shardings = shardings(abstract)

  def make(path, leaf, sharding=None):
    read = functools.partial(_read_leaf, leaf, pieces[name(path)], tensors)
    # Until the result is ready, the leaf is in memory too.
    return jax.block_until_ready(convert(path, _place(leaf, sharding, read)))

  trees = [abstract]
  if shardings is not None:
    trees.append(jax.tree.broadcast(shardings, abstract))
  params = {
    group: jax.tree_util.tree_map_with_path(make, *(x[group] for x in trees))
    for group in abstract
  }
  _check_table(directory, config, params["frozen"].get("router_table"))
  return config, params


def export(
  params: PyTree,
  config: TransformerConfig,
  source_directory: str | os.PathLike,
  out_directory: str | os.PathLike,
  *,
  max_shard_bytes: int = 5_000_000_000,
  dtype: str | None = None,
  later_layers: bool = True,
  tokenizer: Any = None,
  end_ids: Sequence[int] = (),
) -> None:
  """Writes parameters in the format of `transformers`.

  Configuration, tokenizer and license of the source are copied; config.json
  names the dtype of the written tensors. Parts of the source that are missing
  in the parameters, such as a tower that is not run here, are copied too.

  Args:
    params: {"trained": …, "frozen": …} of a transformer; for a policy with
      adapters, the result of `lora.merge`.
    config: The config of the transformer.
    source_directory: The checkpoint from which the parameters were loaded.
    out_directory: A folder that is empty or does not exist. It is written under
      another name and renamed when it is complete.
    max_shard_bytes: Most bytes of a file, unless a single tensor is larger.
    dtype: "float32" or "bfloat16"; None for that of the parameters.
    later_layers: True: layers of the source that predict later tokens are
      copied. False: they are left out, and config.json says that there are no
      such layers.
    tokenizer: Path of another folder, or of a tokenizer.json, whose tokenizer
      is copied instead; None: that of the source.
    end_ids: Tokens that end a completion, for generation_config.json; empty:
      those of the source.

  Raises:
    FileNotFoundError: The source has no config.json.
    ValueError: The target has files already; the parameters do not fit
      `config`, or are on other processes; `config` is not the source's.
    OSError: The target cannot be written, or the disk is full.
  """
  source = pathlib.Path(source_directory)
  out = pathlib.Path(out_directory).absolute()
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise ValueError(
      f"{out} exists and is not an empty folder; nothing was changed. Pass"
      " another one."
    )
  if dtype not in (None, "float32", "bfloat16"):
    raise ValueError(
      f"dtype is {dtype!r}; use 'float32' or 'bfloat16', or None for that of"
      " the parameters."
    )
  config, family = _config_and_family(source, config)
  if family.forms:
    family = family.of_files(safetensors.find(source))
  _check_params(params, config)
  others = [*_other_parts(source, family)]
  fate = "are copied as they are, and fit the model before its training"
  if not later_layers:
    fate = "are left out, and config.json says that there are none"
  _name_later_layers(source, (x.name for x in others), family, fate)
  if not later_layers:
    others = [x for x in others if not x.name.startswith(family.later_layers)]
  outputs = [
    *joined(_outputs(params, family, config, dtype), family.fused),
    *others,
  ]
  partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
  try:
    partial.mkdir(parents=True)
    safetensors.write(partial, outputs, max_shard_bytes)
    _copy(source, _OF_MODEL, partial)
    if tokenizer is None or tokenizer.is_dir():
      _copy(tokenizer or source, _OF_TOKENIZER, partial)
    else:
      (partial / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    if end_ids:
      path = partial / "generation_config.json"
      entries = safetensors.read_object(path) if path.exists() else {}
      safetensors.write_json(path, entries | {"eos_token_id": [*end_ids]})
    kind = dtype or jnp.result_type(*jax.tree.leaves(params["trained"])).name
    _change_config(partial / "config.json", kind, later_layers)
    partial.replace(out)
  except OSError as error:
    num_bytes = sum(output.num_bytes for output in outputs)
    raise OSError(
      f"writing {out} failed ({error}), and nothing of it is left; needs a"
      f" folder with room for {num_bytes / 1e6:.1f} MB."
    ) from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _copy(source: Any, names: Sequence[str], target: pathlib.Path) -> None:
  """Copies the files of a folder that match the names."""
  for path in (path for name in names for path in source.glob(name)):
    if path.is_file():
      copy = target / path.relative_to(source).as_posix()
      copy.parent.mkdir(exist_ok=True)
      copy.write_bytes(path.read_bytes())


def _config_and_family(
  directory: pathlib.Path, config: TransformerConfig | None
) -> tuple[TransformerConfig, Family]:
  """Config and family; raises if the config differs from config.json."""
  fields, family = families.from_config_json(directory)
  if config is None:
    return TransformerConfig(**fields), family
  of_run = (*architecture.FIELDS_OF_A_RUN, "tower_trained")
  run_fields = {name: getattr(config, name) for name in of_run}
  source = TransformerConfig(**fields, **run_fields)
  differ = [
    f"{field.name} is {getattr(config, field.name)} and there"
    f" {getattr(source, field.name)}"
    for field in dataclasses.fields(config)
    if getattr(config, field.name) != getattr(source, field.name)
  ]
  if differ:
    raise ValueError(
      f"the config is not that of {directory / 'config.json'}:"
      f" {'; '.join(differ)}. Only {', '.join(run_fields)} may differ; take"
      " the other fields from families.from_config_json."
    )
  return config, family


def _abstract_params(config: TransformerConfig) -> PyTree:
  init = transformer.transformer_policy(config).init
  return jax.eval_shape(init, jax.random.key(0))


# --- Reading ---


def _check(
  directory: pathlib.Path,
  config: TransformerConfig,
  family: Family,
  pieces: dict[str, list[Piece]],
  tensors: dict[str, Tensor],
) -> None:
  """Raises unless the tensors are exactly those that the config needs."""
  places = {p.tensor: p for of_leaf in pieces.values() for p in of_leaf}
  of_tables = {p.tensor for p in pieces.get("router_table", ())}
  (head,) = family.tensors["head/kernel"]
  extra = sorted(
    name
    for name in tensors.keys() - places.keys()
    if not name.startswith(family.other_parts)
    and not _REDUNDANT.search(name)
    and not (config.tied_embeddings and name == head)
  )
  if missing := [name for name in places if name not in tensors]:
    missing = fused_names(missing, family.fused)
    instead = f" It has {safetensors.few(extra)} instead." if extra else ""
    raise ValueError(
      f"{directory} has no {safetensors.few(missing)}; config.json describes a"
      f" model with {len(places)} tensors of the family {family.name}.{instead}"
    )
  if extra:
    raise ValueError(
      f"{tensors[extra[0]].path} has {safetensors.few(extra)}, for which a"
      f" model of the family {family.name} with this config.json has no place;"
      " without it the model would compute something else."
    )
  for name, piece in places.items():
    tensor = tensors[name]
    dtypes: Any = safetensors.DTYPES
    if name in of_tables:
      dtypes = safetensors.INTEGERS
    if tensor.dtype not in dtypes:
      raise ValueError(
        f"{name} in {tensor.path} is {tensor.dtype}; supported are"
        f" {', '.join(dtypes)}. Use the checkpoint before its"
        " quantization, or one that docs/checkpoints.md says is read."
      )
    if tensor.shape != piece.stored_shape:
      raise ValueError(
        f"{name} in {tensor.path} is {list(tensor.shape)}, but the sizes in"
        f" config.json make it {list(piece.stored_shape)}."
      )
  if config.tied_embeddings and head in tensors:
    (embedding,) = family.tensors["embed/embedding"]
    if not safetensors.equal(tensors[head], tensors[embedding]):
      raise ValueError(
        f"{head} in {tensors[head].path} is not {embedding}, although"
        " config.json says tie_word_embeddings; set it to false if the head was"
        " trained apart."
      )


def _check_table(
  directory: pathlib.Path, config: TransformerConfig, table: jax.Array | None
) -> None:
  """Raises ValueError if tables have the ids of experts that do not exist."""
  if table is None:
    return
  if table.min() < 0 or table.max() >= config.num_experts:
    raise ValueError(
      f"{directory} has tables of experts with the entries {table.min()} to"
      f" {table.max()}, and config.json describes {config.num_experts} experts;"
      " it is of another checkpoint. Copy all files again."
    )


def _name_later_layers(
  directory: pathlib.Path, names: Iterable[str], family: Family, fate: str
) -> None:
  """Names layers that predict later tokens in the log, if there are any."""
  matches = [name for name in names if name.startswith(family.later_layers)]
  if matches:
    later = {
      start.removesuffix(".")
      for start in family.later_layers
      if any(name.startswith(start) for name in matches)
    }
    logging.warning(
      "%s: %s, which predict later tokens (num_nextn_predict_layers), %s.",
      *(directory, ", ".join(sorted(later)), fate),
    )


def _place(
  leaf: jax.ShapeDtypeStruct,
  sharding: Sharding | None,
  read: Callable[[Index], np.ndarray],
) -> jax.Array:
  """Makes an array; `read` returns the shards of this process.

  `jax.make_array_from_callback` would keep all shards on the host until the
  last one is read, and would read a shard again for every device that has it.
  """
  if sharding is None:
    return jax.device_put(read(tuple(slice(0, size) for size in leaf.shape)))
  devices: dict[tuple, list] = {}
  indices = sharding.addressable_devices_indices_map(leaf.shape)
  for device, index in indices.items():
    bounds = tuple(
      part.indices(size)[:2]
      for part, size in zip(index or (), leaf.shape, strict=True)
    )
    devices.setdefault(bounds, []).append(device)
  shards: list[jax.Array] = []
  for bounds, same in devices.items():
    block = read(tuple(slice(*bound) for bound in bounds))
    shards += jax.block_until_ready(
      [
        jax.device_put(
          block,
          SingleDeviceSharding(device, memory_kind=sharding.memory_kind),
        )
        for device in same
      ]
    )
  return jax.make_array_from_single_device_arrays(leaf.shape, sharding, shards)


def _read_leaf(
  leaf: jax.ShapeDtypeStruct,
  pieces: list[Piece],
  tensors: dict[str, Tensor],
  index: Index,
) -> np.ndarray:
  """Reads leaf[index] from the tensors that have a part of it."""
  out = np.empty([part.stop - part.start for part in index], leaf.dtype)
  for piece in pieces:
    common = [
      slice(max(i.start, r.start), min(i.stop, r.stop))
      for i, r in zip(index, piece.region, strict=True)
    ]
    if any(part.start >= part.stop for part in common):
      continue
    to = tuple(_shift(c, i) for c, i in zip(common, index, strict=True))
    inside = [_shift(c, r) for c, r in zip(common, piece.region, strict=True)]
    # The copy converts the dtype, and reads nothing else from the file.
    tensor = tensors[piece.tensor].map()
    if piece.stored:
      tensor = tensor.reshape(piece.shape)
    out[to].transpose(piece.order)[...] = _slice_of_tensor(
      tensor, piece, inside
    )
  return out


def _shift(part: slice, origin: slice) -> slice:
  return slice(part.start - origin.start, part.stop - origin.start)


def _slice_of_tensor(
  tensor: np.ndarray, piece: Piece, inside: list[slice]
) -> np.ndarray:
  """A view of the part `inside` of a tensor, with the axes of the leaf."""
  rows, shape, rest = [], [], []
  for group in piece.axes:
    if not group:
      rows.append(slice(0, 1))
      continue
    first, *others = group
    # If an axis of the tensor runs over several axes of the leaf, the range of
    # the first of them is a range of the tensor's axis.
    inner = [piece.sizes[axis] for axis in others]
    step = math.prod(inner)
    rows.append(slice(inside[first].start * step, inside[first].stop * step))
    shape += [inside[first].stop - inside[first].start, *inner]
    rest += [slice(None), *(inside[axis] for axis in others)]
  return tensor[tuple(rows)].reshape(shape)[tuple(rest)]


# --- Writing ---


def _check_params(params: PyTree, config: TransformerConfig) -> None:
  expected = jax.tree.map(lambda leaf: leaf.shape, _abstract_params(config))
  shapes = jax.tree.map(lambda leaf: leaf.shape, params)
  if shapes != expected:
    raise ValueError(
      "the parameters are not those of a transformer with this config. Needed"
      " are {'trained': …, 'frozen': …} with all its leaves and no others; of a"
      " policy with adapters, lora.merge makes them."
    )
  for leaf in jax.tree.leaves(params):
    if not leaf.is_fully_addressable:
      raise ValueError(
        "a part of the parameters is on other processes; restore the run's"
        " checkpoint in a single process and export it there."
      )


def _outputs(
  params: PyTree,
  family: Family,
  config: TransformerConfig,
  dtype: str | None,
) -> Iterator[Output]:
  dtypes = {**safetensors.DTYPES, **safetensors.INTEGERS}
  names = {value: name for name, value in dtypes.items()}
  for path, leaf in leaves(params):
    # Not rounded: the biases of routers decide near-ties.
    is_bias = name(path) == "router_bias"
    to = jnp.dtype(leaf.dtype if is_bias else dtype or leaf.dtype)
    if name(path) == "router_table":
      to = np.dtype(np.int64)
    # Cached: queries, keys and values, or all experts, need the same layer.
    part = functools.lru_cache(1)(functools.partial(_part, leaf))
    for piece in pieces_of_leaf(family, config, name(path), leaf.shape):
      yield Output(
        piece.tensor,
        names[to],
        piece.stored_shape,
        math.prod(piece.shape) * to.itemsize,
        functools.partial(_data, part, piece, to),
      )


def _part(leaf: jax.Array, start: int, stop: int) -> np.ndarray:
  """leaf[start:stop] on the host."""
  if stop - start == len(leaf):
    return np.asarray(leaf)
  return np.asarray(_slice(leaf, start, stop - start))


@functools.partial(jax.jit, static_argnums=2)
def _slice(leaf: jax.Array, start: int, length: int) -> jax.Array:
  """Slices a leaf; one compiled program serves all layers."""
  return lax.dynamic_slice_in_dim(leaf, start, length)


def _data(
  part: Callable[[int, int], np.ndarray], piece: Piece, dtype: np.dtype
) -> np.ndarray:
  """The bytes of a tensor."""
  first, *others = piece.region
  block = part(first.start, first.stop)[:, *others]
  return block.transpose(piece.order).astype(dtype).reshape(-1).view(np.uint8)


def _other_parts(source: pathlib.Path, family: Family) -> Iterator[Output]:
  """The source's tensors outside the language model; in FP8 as bfloat16."""
  if not family.other_parts:
    return
  for name, tensor in fp8.unpacked(safetensors.find(source)).items():
    if not name.startswith(family.other_parts):
      continue
    if isinstance(tensor, fp8.Matrix):
      num_bytes = 2 * math.prod(tensor.shape)
      data = functools.partial(_bfloat16, tensor)
      yield Output(name, "BF16", tensor.shape, num_bytes, data)
    else:
      data = functools.partial(
        np.fromfile,
        tensor.path,
        np.uint8,
        count=tensor.num_bytes,
        offset=tensor.offset,
      )
      yield Output(name, tensor.dtype, tensor.shape, tensor.num_bytes, data)


_LATER_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")


def _change_config(path: pathlib.Path, dtype: str, later_layers: bool) -> None:
  """Says in config.json what differs from the source.

  Args:
    dtype: Dtype of the tensors, to which `transformers` converts.
    later_layers: False if there are no layers that predict later tokens.
  """
  config = json.loads(path.read_text(encoding="utf-8"))
  # Written tensors are not quantized, whatever the source's were.
  changed = config.pop("quantization_config", None) is not None
  for keys in (config, config.get("text_config", {})):
    entries: dict[str, Any] = dict.fromkeys(("dtype", "torch_dtype"), dtype)
    if not later_layers:
      entries |= dict.fromkeys(_LATER_LAYERS, 0)
    for key, value in entries.items():
      if keys.get(key, value) != value:
        keys[key] = value
        changed = True
  if changed:
    safetensors.write_json(path, config)


def _bfloat16(tensor: fp8.Matrix) -> np.ndarray:
  """The bytes of a matrix in bfloat16."""
  matrix = tensor[tuple(slice(size) for size in tensor.shape)]
  return matrix.astype(jnp.bfloat16).reshape(-1).view(np.uint8)
