"""Names of types that the others are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

PyTree = Any
Extras = Mapping[str, Any]  # What a verifier needs, by name; arrays.
Metrics = dict[str, jax.Array]  # name -> [] float32

# Axes of the mesh that split rows, and tokens, together: those of
# `training/runtime/sharding.py` but for `tensor`.
ROW_AXES = ("data", "fsdp", "expert")
