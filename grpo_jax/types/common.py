"""Names of types that the others are made of.

Images of prompts, as the patches that a vision tower reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

PyTree = Any
Extras = Mapping[str, Any]  # What a verifier needs, by name; arrays.
Metrics = dict[str, jax.Array]  # name -> [] float32

# Axes of the mesh that split rows, and tokens, together: those of
# `training/runtime/sharding.py` but for `tensor`.
ROW_AXES = ("data", "fsdp", "expert")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Images:
  """The images of P prompts: room for N patches and M images in each prompt.

  The patches of an image are adjacent, and the images of a prompt follow one
  another in the order in which the prompt names them. Within an image patches
  are in the order in which the family's tower reads them: the patches that it
  merges into one token are adjacent. Places behind the last patch are empty.

  Attributes:
    patches: Pixels of each patch, normalized as the tower expects them.
    image: Which image of its prompt a patch is part of, from 0; -1 in an empty
      place.
    place: Row and column of each patch in the grid of its image, from 0.
    grid: Rows and columns of patches of each image; 0, 0 where there is none.
  """

  patches: jax.Array  # [P, N, F] float32
  image: jax.Array  # [P, N] int32
  place: jax.Array  # [P, N, 2] int32
  grid: jax.Array  # [P, M, 2] int32
