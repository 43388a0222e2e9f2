"""Types that the other types are built from: trees, metrics, images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

PyTree = Any
Extras = Mapping[str, Any]  # Arrays that a verifier needs, by name.
Metrics = dict[str, jax.Array]  # name -> [] float32

# Axes of the mesh that split rows, and tokens, together: the axes of
# `training/runtime/sharding.py` except `tensor`.
ROW_AXES = ("data", "fsdp", "expert")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Images:
  """The images of P prompts: room for N patches and M images in each prompt.

  The patches of an image are adjacent, and the images of a prompt follow one
  another in the order in which the prompt names them. Within an image, patches
  are in the order in which the family's vision tower reads them: the patches
  that the tower merges into one token are adjacent. Places behind the last
  patch are empty.

  Attributes:
    patches: Pixels of each patch, normalized as the tower expects them.
    image: Image of the prompt that each patch is part of, from 0; -1 in an
      empty place.
    place: Row and column of each patch in the grid of its image, from 0.
    grid: Rows and columns of patches of each image; 0, 0 without an image.
  """

  patches: jax.Array  # [P, N, F] float32
  image: jax.Array  # [P, N] int32
  place: jax.Array  # [P, N, 2] int32
  grid: jax.Array  # [P, M, 2] int32
