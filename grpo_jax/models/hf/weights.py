"""Parameters of a transformer from, and to, a Hugging Face checkpoint.

Loading reads what the shards of this process need, one tensor at a time, from
memory-mapped safetensors files into the stacked leaves. Beside the result the
host holds one shard of one leaf. MiB of resident memory on top of that before
loading, for bfloat16 files of 6 · 32 MiB (176 in all, CPU devices;
experiments/benchmarks/load.py):

| parameters | devices                       | result | peak |
|------------|-------------------------------|--------|------|
| bfloat16   | 1                             |    176 |  219 |
| bfloat16   | 8, split on the last axis     |    176 |  200 |
| bfloat16   | 2 processes, split on the 1st |     88 |  119 |
| float32    | 1                             |    352 |  428 |
| float32    | 8, split on the last axis     |    352 |  392 |

Exporting is the reverse, one layer of one leaf at a time. What a tensor is
called is in `families.py`; how it lies in a leaf is in `weights.py`.

Where the tensors of a checkpoint lie in the leaves of the parameters.

What a tensor is called is in `families.py`; how it lies in a leaf is in
`_LAYOUT`.

Tensors of a checkpoint that are several of ours, as `Family.fused` says.

Reading shows the parts in the place of the whole, and copies nothing; writing
joins them again.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Sharding, SingleDeviceSharding

from grpo_jax.models import architecture, transformer
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.hf import families, hub, mxfp4, safetensors
from grpo_jax.models.hf.families import Family, Fused
from grpo_jax.models.hf.safetensors import DTYPES, Output, Tensor
from grpo_jax.types import PyTree

Index = tuple[slice, ...]

# Axes of a leaf of one layer, and which of them each axis of a tensor runs
# over, the last one fastest: letters of transformer.py, E experts, Q the R + 2
# of a fused kernel.
_LAYOUT = {
  "embed/embedding": ("VD", "V D"),
  "head/kernel": ("DV", "V D"),
  "router_bias": ("E", "E"),
  "attention/qkv/kernel": ("DCQK", "CQK D"),
  "attention/qkv/bias": ("CQK", "CQK"),
  "attention/out/kernel": ("CRKD", "D CRK"),
  "attention/sinks": ("CR", "CR"),
  # N: width of a latent vector.
  "attention/query_heads/kernel": ("DCK", "CK D"),
  "attention/query_down/kernel": ("DN", "N D"),
  "attention/query_up/kernel": ("NCK", "CK N"),
  "attention/kv_down/kernel": ("DN", "N D"),
  "attention/kv_up/kernel": ("NCK", "CK N"),
  # Of each head they are only as long as the last axis.
  "attention/query_norm/scale": ("CRK", "CRK"),
  "attention/key_norm/scale": ("C1K", "C1K"),
  "mlp/gate/kernel": ("DF", "F D"),
  "mlp/up/kernel": ("DF", "F D"),
  "mlp/down/kernel": ("FD", "D F"),
  "mlp/shared/gate/kernel": ("DF", "F D"),
  "mlp/shared/up/kernel": ("DF", "F D"),
  "mlp/shared/down/kernel": ("FD", "D F"),
  "mlp/router/kernel": ("DE", "E D"),
  "mlp/router/bias": ("E", "E"),
  # One tensor for each expert.
  "mlp/experts/gate": ("eDF", "F D"),
  "mlp/experts/up": ("eDF", "F D"),
  "mlp/experts/down": ("eFD", "D F"),
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
# Queries, keys and values that are one tensor; of towers.
_IN_ONE = {"CQK D": "QCK D", "CQK": "QCK"}
_NORM = ("D", "D")
# Beginnings of the paths of leaves whose first axis counts layers.
_STACKED = re.compile(r"((tower/)?layers|tower/deep|dense_layers)/|router_bias")


def name(path) -> str:
  """A path of a tree as text, its keys joined by slashes."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


@dataclasses.dataclass(frozen=True)
class Piece:
  """A tensor, as a part of a leaf.

  Attributes:
    tensor: Its name.
    region: What it is of the leaf.
    axes: Axes of the leaf that each axis of the tensor runs over, the last one
      fastest. In the others the region has length 1.
    stored: Shape of the tensor, if it has several axes in the place of its last
      one here; else empty.
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
    """Shape of the tensor, with the axes that it has here."""
    return tuple(
      math.prod(self.sizes[axis] for axis in group) for group in self.axes
    )

  @property
  def stored_shape(self) -> tuple[int, ...]:
    """Shape of the tensor in the file."""
    return self.stored or self.shape

  @property
  def order(self) -> tuple[int, ...]:
    """Axes of the leaf in the order of the tensor, the others first."""
    inner = tuple(axis for group in self.axes for axis in group)
    outer = (axis for axis in range(len(self.region)) if axis not in inner)
    return (*outer, *inner)


def leaves(params: PyTree) -> list[tuple]:
  """Paths, without what group they are of, and leaves."""
  return [
    entry
    for group in ("trained", "frozen")
    for entry in jax.tree_util.tree_flatten_with_path(params[group])[0]
  ]


def checkpoint_pieces(
  family: Family, config: TransformerConfig, abstract: PyTree
) -> dict[str, list[Piece]]:
  """The tensors of each leaf, layer by layer."""
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
  """The tensors of one leaf; `path` is its name, `shape` its own."""
  stack = _STACKED.match(path)
  of_tower = path.startswith("tower/")
  first = config.num_dense_layers
  if of_tower or path.startswith("dense_layers/"):
    first = 0
  path = path.removeprefix("dense_")  # Tensors know their layer only.
  names = family.tensors[path]
  letters, tensor_axes = _layout(family, path, len(names))
  letters = letters[-(len(shape) - bool(stack)) :]
  letters = "L" + letters if stack else letters
  groups = (
    tuple(letters.index(letter) for letter in group if letter in letters)
    for group in tensor_axes.split()
  )
  axes = tuple(group for group in groups if group)
  sizes = dict(zip(letters, shape, strict=True))
  stored: tuple[int, ...] = ()
  if path == "tower/patch/kernel":  # A convolution's.
    assert config.tower is not None
    stored = (shape[-1], *config.tower.patch_shape)
  parts = [slice(0, sizes.get("Q", 0))]
  if len(names) == 3:
    end = parts[0].stop
    parts = [slice(0, end - 2), slice(end - 2, end - 1), slice(end - 1, end)]
  for layer in range(sizes.get("L", 1)):
    for expert in range(sizes.get("e", 1)):
      for name, part in zip(names, parts, strict=True):
        narrow = {
          "L": slice(layer, layer + 1),
          "e": slice(expert, expert + 1),
          "Q": part,
        }
        yield Piece(
          name.format(layer=first + layer, expert=expert),
          tuple(narrow.get(a, slice(0, sizes[a])) for a in letters),
          axes,
          stored,
        )


def _layout(family: Family, path: str, num_tensors: int) -> tuple[str, str]:
  """Axes of a leaf of one layer, and what each axis of a tensor runs over."""
  in_one = _EXPERTS_IN_ONE if family.experts_in_one else {}
  of_layer = _STACKED.sub("", path) or path
  if path.startswith("tower/"):
    of_layer = of_layer.removeprefix("tower/").removeprefix("merger/")
    found = _TOWER.get(of_layer) or _LAYOUT.get(of_layer, _NORM)
  else:
    found = in_one.get(of_layer) or _LAYOUT.get(of_layer, _NORM)
  letters, tensor_axes = found
  if num_tensors == 1:
    tensor_axes = _IN_ONE.get(tensor_axes, tensor_axes)
  return letters, tensor_axes


@dataclasses.dataclass(frozen=True)
class WeightPart:
  """A part of a stored tensor, in the place of one.

  Attributes:
    whole: The stored one.
    shape: Of the part.
    axis: Along which it is a part.
    start, step: Where it begins on that axis, and how far its entries are
      apart.
  """

  whole: Any
  shape: tuple[int, ...]
  axis: int
  start: int
  step: int

  @property
  def path(self) -> pathlib.Path:
    """File of the whole."""
    return self.whole.path

  @property
  def dtype(self) -> str:
    """The file's name for it."""
    return self.whole.dtype

  def map(self) -> WeightPart:
    """What is sliced as an array is."""
    return self

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    """A block of the part; `index` has a slice for each axis."""
    part = index[self.axis]
    start = self.start + part.start * self.step
    # Not beyond the last one: the next entry may be of another part.
    stop = start + (part.stop - part.start - 1) * self.step + 1
    of_whole = list(index)
    of_whole[self.axis] = slice(start, stop, self.step)
    return self.whole.map()[tuple(of_whole)]


def split(
  tensors: Mapping[str, Tensor],
  shapes: Mapping[str, tuple[int, ...]],
  table: tuple[Fused, ...],
) -> dict[str, Any]:
  """Tensors with parts in the place of those that are fused.

  Args:
    tensors: What the files have.
    shapes: Of all tensors that a model needs, parts and not wholes.
    table: What is fused.

  Raises:
    ValueError: A fused tensor has another shape than its parts have together.
  """
  found: dict[str, Any] = dict(tensors)
  for name, tensor in tensors.items():
    for fused in table:
      start = name.removesuffix(fused.whole)
      parts = [start + part for part in fused.parts]
      if start == name or not all(part in shapes for part in parts):
        continue
      needed = _whole_shape([shapes[part] for part in parts], fused)
      if tensor.shape != needed:
        raise ValueError(
          f"load: {name} in {tensor.path} is {list(tensor.shape)}, but the"
          f" sizes in config.json make it {list(needed)}."
        )
      del found[name]
      axis = len(needed) - 1 if fused.interleaved else 0
      begin = 0
      for number, part in enumerate(parts):
        shape = shapes[part]
        place = (number, len(parts)) if fused.interleaved else (begin, 1)
        found[part] = WeightPart(tensor, shape, axis, *place)
        begin += shape[0]
  return found


def _whole_shape(
  shapes: list[tuple[int, ...]], fused: Fused
) -> tuple[int, ...]:
  if fused.interleaved:
    return *shapes[0][:-1], sum(shape[-1] for shape in shapes)
  return sum(shape[0] for shape in shapes), *shapes[0][1:]


def whole_names(names: list[str], table: tuple[Fused, ...]) -> list[str]:
  """Names as files have them, each once."""

  def whole(name):
    for fused in table:
      for part in fused.parts:
        if name.endswith(part):
          return name.removesuffix(part) + fused.whole
    return name

  return list(dict.fromkeys(map(whole, names)))


def joined(
  outputs: Iterable[Output], table: tuple[Fused, ...]
) -> Iterator[Output]:
  """Outputs with a whole in the place of its parts."""
  waiting: dict[str, dict[str, Output]] = {}
  for output in outputs:
    (whole,) = whole_names([output.name], table)
    if whole == output.name:
      yield output
      continue
    (fused,) = (x for x in table if whole.endswith(x.whole))
    parts = waiting.setdefault(whole, {})
    parts[output.name] = output
    if len(parts) == len(fused.parts):
      start = whole.removesuffix(fused.whole)
      del waiting[whole]
      yield _join(whole, fused, [parts[start + name] for name in fused.parts])


def _join(name: str, fused: Fused, parts: list[Output]) -> Output:
  def data() -> np.ndarray:
    dtype = DTYPES[parts[0].dtype]
    arrays = [part.data().view(dtype).reshape(part.shape) for part in parts]
    if fused.interleaved:
      whole = np.stack(arrays, axis=-1)
    else:
      whole = np.concatenate(arrays)
    return whole.reshape(-1).view(np.uint8)

  shape = _whole_shape([part.shape for part in parts], fused)
  num_bytes = math.prod(shape) * DTYPES[parts[0].dtype].itemsize
  return Output(name, parts[0].dtype, shape, num_bytes, data)


# Tensors that old checkpoints have and that follow from config.json.
_REDUNDANT = re.compile(r"rotary_emb\.inv_freq$")

# What an export copies: configuration, tokenizer, license.
_COPIED = (
  "config.json",
  "generation_config.json",
  "tokenizer*",
  "vocab.*",
  "merges.txt",
  "added_tokens.json",
  "special_tokens_map.json",
  "chat_template.*",
  "*processor_config.json",
  "LICENSE*",
  "NOTICE*",
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
  """The parameters of a checkpoint.

  Args:
    directory: Has config.json and model.safetensors, or
      model.safetensors.index.json and the files that it names.
    config: What config.json says, with `architecture.FIELDS_OF_A_RUN` as
      wanted; None for their defaults.
    param_dtype: Of the parameters, whatever the dtype of the files; None for
      the config's.
    shardings: A sharding, a tree of them whose leaves may stand for subtrees
      of the parameters, or a function from abstract parameters to such a
      tree. None for the default device. With several processes each one reads
      the files, and of them only what its devices need.
    convert: What becomes of a leaf, given its path, as soon as it is read;
      with `quantization.quantize_leaf` no two leaves are whole at a time.
    family: How the tensors are called, where somebody else has read
      config.json, as for a classifier, whose `config` this is; None: as
      config.json says.

  Returns:
    The config with `param_dtype`, and {"trained": …, "frozen": …}: biases of
    routers, or nothing.

  Raises:
    FileNotFoundError: A file is missing, also one named by the index.
    ValueError: config.json is not supported or says something else than
      `config`; tensors are missing, unknown, or of another shape or dtype than
      needed; a file is truncated or no safetensors file; a model with tied
      embeddings comes with a head that is not its embedding; a file is not the
      one that a SHA256SUMS beside it lists. Without that list a flipped bit in
      a number goes unnoticed.
  """
  directory = pathlib.Path(directory)
  hub.check_sums(directory)
  if family is None:
    config, family = _agreed("load", directory, config)
  assert config is not None
  if param_dtype is not None:
    config = dataclasses.replace(config, param_dtype=param_dtype)
  tensors: dict = safetensors.find(directory)
  if family.experts_in_one:
    tensors = mxfp4.unpacked(tensors)
  # Before each of them is looked for by name.
  num_experts = 0 if family.experts_in_one else config.num_experts
  layers = config.num_dense_layers, config.num_layers - config.num_dense_layers
  if layers[0] + layers[1] * max(num_experts, 1) > len(tensors):
    raise ValueError(
      f"load: {directory} has {len(tensors)} tensors, and config.json describes"
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
  if callable(shardings):
    shardings = shardings(abstract)

  def make(path, leaf, sharding=None):
    read = functools.partial(_read_leaf, leaf, pieces[name(path)], tensors)
    # Until it is ready the leaf is there too.
    return jax.block_until_ready(convert(path, _place(leaf, sharding, read)))

  trees = [abstract]
  if shardings is not None:
    trees.append(jax.tree.broadcast(shardings, abstract))
  return config, {
    group: jax.tree_util.tree_map_with_path(make, *(x[group] for x in trees))
    for group in abstract
  }


def export(
  params: PyTree,
  config: TransformerConfig,
  source_directory: str | os.PathLike,
  out_directory: str | os.PathLike,
  *,
  max_shard_bytes: int = 5_000_000_000,
  dtype: str | None = None,
) -> None:
  """Writes parameters as `transformers` does, for it to load.

  Configuration, tokenizer and license of the source are copied; the dtype that
  config.json names becomes that of the tensors. Parts of the source that
  the parameters have not, such as a tower that nothing here runs, are copied
  too.

  Args:
    params: {"trained": …, "frozen": …} of a transformer; of a policy with
      adapters, what `lora.merge` makes of them.
    config: The config of the transformer.
    source_directory: The checkpoint that the parameters were loaded from.
    out_directory: Must not exist, or be empty. It is written under another
      name and renamed when it is complete.
    max_shard_bytes: Of one file, unless a single tensor is larger.
    dtype: "float32" or "bfloat16"; None for that of the parameters.

  Raises:
    FileNotFoundError: The source has no config.json.
    ValueError: The target has files already; the parameters are not those of
      `config`, or are on other processes; `config` is not the source's.
    OSError: The target cannot be written, or the disk is full.
  """
  source = pathlib.Path(source_directory)
  out = pathlib.Path(out_directory).absolute()
  if out.exists() and (not out.is_dir() or any(out.iterdir())):
    raise ValueError(
      f"export: {out} exists and is not an empty folder; nothing was changed."
      " Pass another one."
    )
  if dtype not in (None, "float32", "bfloat16"):
    raise ValueError(
      f"export: dtype is {dtype!r}; use 'float32' or 'bfloat16', or None for"
      " that of the parameters."
    )
  config, family = _agreed("export", source, config)
  _check_params(params, config)
  outputs = [
    *joined(_outputs(params, family, config, dtype), family.fused),
    *_other_parts(source, family),
  ]
  partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
  try:
    partial.mkdir(parents=True)
    safetensors.write(partial, outputs, max_shard_bytes)
    for path in (p for name in _COPIED for p in source.glob(name)):
      if path.is_file():
        shutil.copyfile(path, partial / path.name)
    written = dtype or jnp.result_type(*jax.tree.leaves(params["trained"])).name
    _set_dtype(partial / "config.json", written)
    partial.replace(out)
  except OSError as error:
    num_bytes = sum(output.num_bytes for output in outputs)
    raise OSError(
      f"export: writing {out} failed ({error}), and nothing of it is left;"
      f" needed is a folder with room for {num_bytes / 1e6:.1f} MB."
    ) from error
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _agreed(
  caller: str, directory: pathlib.Path, config: TransformerConfig | None
) -> tuple[TransformerConfig, Family]:
  """The config; raises if it is not the one of config.json."""
  fields, family = families.from_config_json(directory)
  if config is None:
    return TransformerConfig(**fields), family
  of_run = (*architecture.FIELDS_OF_A_RUN, "tower_trained")
  ours = {name: getattr(config, name) for name in of_run}
  theirs = TransformerConfig(**fields, **ours)
  differ = [
    f"{field.name} is {getattr(config, field.name)} and there"
    f" {getattr(theirs, field.name)}"
    for field in dataclasses.fields(config)
    if getattr(config, field.name) != getattr(theirs, field.name)
  ]
  if differ:
    raise ValueError(
      f"{caller}: the config is not that of {directory / 'config.json'}:"
      f" {'; '.join(differ)}. Only {', '.join(ours)} may differ; take"
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
  """Raises unless the tensors are exactly those of the config."""
  needed = {p.tensor: p for of_leaf in pieces.values() for p in of_leaf}
  (head,) = family.tensors["head/kernel"]
  extra = sorted(
    name
    for name in tensors.keys() - needed.keys()
    if not name.startswith(family.other_parts)
    and not _REDUNDANT.search(name)
    and not (config.tied_embeddings and name == head)
  )
  if missing := [name for name in needed if name not in tensors]:
    missing = whole_names(missing, family.fused)
    instead = f" It has {safetensors.few(extra)} instead." if extra else ""
    raise ValueError(
      f"load: {directory} has no {safetensors.few(missing)}; config.json"
      f" describes a model with {len(needed)} tensors of the family"
      f" {family.name}.{instead}"
    )
  if extra:
    raise ValueError(
      f"load: {tensors[extra[0]].path} has {safetensors.few(extra)}, for which"
      f" a model of the family {family.name} with this config.json has no"
      " place; without it the model would compute something else."
    )
  for name, piece in needed.items():
    tensor = tensors[name]
    if tensor.dtype not in safetensors.DTYPES:
      raise ValueError(
        f"load: {name} in {tensor.path} is {tensor.dtype}; supported are"
        f" {', '.join(safetensors.DTYPES)}. Use the checkpoint before its"
        " quantization, or convert it as docs/checkpoints.md says."
      )
    if tensor.shape != piece.stored_shape:
      raise ValueError(
        f"load: {name} in {tensor.path} is {list(tensor.shape)}, but the sizes"
        f" in config.json make it {list(piece.stored_shape)}."
      )
  if config.tied_embeddings and head in tensors:
    (embedding,) = family.tensors["embed/embedding"]
    if not safetensors.equal(tensors[head], tensors[embedding]):
      raise ValueError(
        f"load: {head} in {tensors[head].path} is not {embedding}, although"
        " config.json says tie_word_embeddings; set it to false if the head"
        " was trained apart."
      )


def _place(
  leaf: jax.ShapeDtypeStruct,
  sharding: Sharding | None,
  read: Callable[[Index], np.ndarray],
) -> jax.Array:
  """An array of what `read` returns for the shards of this process.

  `jax.make_array_from_callback` keeps all shards on the host until the last
  one is read, and reads the same one for every device that has it.
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
  """leaf[index], from the tensors that have a part of it."""
  out = np.empty([part.stop - part.start for part in index], leaf.dtype)
  for piece in pieces:
    common = [
      slice(max(i.start, r.start), min(i.stop, r.stop))
      for i, r in zip(index, piece.region, strict=True)
    ]
    if any(part.start >= part.stop for part in common):
      continue
    to = tuple(_shifted(c, i) for c, i in zip(common, index, strict=True))
    inside = [_shifted(c, r) for c, r in zip(common, piece.region, strict=True)]
    # The copy converts, in pieces, and reads nothing else from the file.
    tensor = tensors[piece.tensor].map()
    if piece.stored:
      tensor = tensor.reshape(piece.shape)
    out[to].transpose(piece.order)[...] = _slice_of_tensor(
      tensor, piece, inside
    )
  return out


def _shifted(part: slice, origin: slice) -> slice:
  return slice(part.start - origin.start, part.stop - origin.start)


def _slice_of_tensor(
  tensor: np.ndarray, piece: Piece, inside: list[slice]
) -> np.ndarray:
  """A view of what `inside` says of a tensor, with one axis for each axis."""
  rows, shape, rest = [], [], []
  for first, *others in piece.axes:
    # In an axis of the tensor that runs over several, what is wanted of the
    # first of them is a range.
    inner = [piece.sizes[axis] for axis in others]
    step = math.prod(inner)
    rows.append(slice(inside[first].start * step, inside[first].stop * step))
    shape += [inside[first].stop - inside[first].start, *inner]
    rest += [slice(None), *(inside[axis] for axis in others)]
  return tensor[tuple(rows)].reshape(shape)[tuple(rest)]


# --- Writing ---


def _check_params(params: PyTree, config: TransformerConfig) -> None:
  expected = jax.tree.map(lambda leaf: leaf.shape, _abstract_params(config))
  found = jax.tree.map(lambda leaf: leaf.shape, params)
  if found != expected:
    raise ValueError(
      "export: the parameters are not those of a transformer with this config."
      " Needed are {'trained': …, 'frozen': …} with all its leaves and no"
      " others; of a policy with adapters, lora.merge makes them."
    )
  for leaf in jax.tree.leaves(params):
    if not leaf.is_fully_addressable:
      raise ValueError(
        "export: a part of the parameters is on other processes; restore the"
        " run's checkpoint in a single process and export it there."
      )


def _outputs(
  params: PyTree,
  family: Family,
  config: TransformerConfig,
  dtype: str | None,
) -> Iterator[Output]:
  names = {value: name for name, value in safetensors.DTYPES.items()}
  for path, leaf in leaves(params):
    # Near-ties are what the biases of routers decide.
    is_bias = name(path) == "router_bias"
    to = jnp.dtype(leaf.dtype if is_bias else dtype or leaf.dtype)
    # Queries, keys and values, and all experts, are of the same layer.
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
  """One program for all layers."""
  return lax.dynamic_slice_in_dim(leaf, start, length)


def _data(
  part: Callable[[int, int], np.ndarray], piece: Piece, dtype: np.dtype
) -> np.ndarray:
  """The bytes of a tensor."""
  first, *others = piece.region
  block = part(first.start, first.stop)[:, *others]
  return block.transpose(piece.order).astype(dtype).reshape(-1).view(np.uint8)


def _other_parts(source: pathlib.Path, family: Family) -> Iterator[Output]:
  """Tensors of the source that are not the language model's, as they are."""
  if not family.other_parts:
    return
  for name, tensor in safetensors.find(source).items():
    if name.startswith(family.other_parts):
      data = functools.partial(
        np.fromfile,
        tensor.path,
        np.uint8,
        count=tensor.num_bytes,
        offset=tensor.offset,
      )
      yield Output(name, tensor.dtype, tensor.shape, tensor.num_bytes, data)


def _set_dtype(path: pathlib.Path, dtype: str) -> None:
  """What `transformers` converts to unless it is told otherwise."""
  config = json.loads(path.read_text(encoding="utf-8"))
  # What is written is not packed, whatever the source was.
  changed = config.pop("quantization_config", None) is not None
  for keys in (config, config.get("text_config", {})):
    for key in ("dtype", "torch_dtype"):
      if keys.get(key, dtype) != dtype:
        keys[key] = dtype
        changed = True
  if changed:
    safetensors.write_json(path, config)
