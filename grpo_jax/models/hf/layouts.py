"""Where the tensors of a checkpoint lie in the leaves of the parameters.

What a tensor is called is in `families.py`; how it lies in a leaf is in
`_LAYOUT`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator

import jax

from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.models.hf.family import Family
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


def pieces(
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
