"""What the prompt of a traced group shows: pictures, and the right box."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from grpo_jax.types import Images

MAX_SIDE = 64  # Pixels of a picture in the file; larger ones are thinned out.
MAX_PICTURES = 8  # Of a prompt.


def of_record(record: Mapping[str, Any]) -> dict[str, Any]:
  """Fields of a `traces.Group` about what its prompt shows.

  Args:
    record: As sources give it (`data/sources.py`).

  Returns:
    "images" and "box"; nothing of a prompt that is tokens only.
  """
  images: list[dict[str, Any]] = []
  if record.get("images") is not None:
    images = of_patches(record["images"])
  for kind, value, *_ in record.get("pictures") or ():
    images.append({"name": str(value) if kind == "path" else str(kind)})
  if not images:
    return {}
  box = np.asarray(record["extras"].get("box", ())).reshape(-1)
  is_one = box.size == 4 and box[2] > box[0] and box[3] > box[1]
  return {
    "images": tuple(images[:MAX_PICTURES]),
    "box": tuple(box.tolist()) if is_one else (),
  }


def of_patches(images: Images) -> list[dict[str, Any]]:
  """Pictures of patches that are rows, columns and three colours in [0, 1].

  Patches of other kinds, such as those that a processor has normalized, are no
  pictures, and nothing comes of them.

  Args:
    images: Of one prompt, NumPy arrays without the axis of prompts.
  """
  side = math.isqrt(images.patches.shape[-1] // 3)
  if 3 * side**2 != images.patches.shape[-1]:
    return []
  found = []
  for number, (rows, columns) in enumerate(np.asarray(images.grid).tolist()):
    own = np.asarray(images.image) == number
    patches = np.asarray(images.patches)[own]
    if not own.any() or patches.min() < 0 or patches.max() > 1:
      continue
    grid = np.zeros((rows, columns, side, side, 3), np.float32)
    place = np.asarray(images.place)[own]
    grid[place[:, 0], place[:, 1]] = patches.reshape(-1, side, side, 3)
    image = grid.swapaxes(1, 2).reshape(rows * side, columns * side, 3)
    found.append(_picture(np.round(255 * image).astype(np.uint8)))
  return found


def _picture(pixels: np.ndarray) -> dict[str, Any]:  # [rows, columns, 3] uint8
  """A picture as JSON has it, of at most 64 pixels a side."""
  rows, columns = pixels.shape[:2]
  step = max(1, math.ceil(max(rows, columns) / MAX_SIDE))
  thin = pixels[::step, ::step]
  return {
    "size": [columns, rows],
    "shape": [thin.shape[1], thin.shape[0]],
    "pixels": base64.b64encode(thin.tobytes()).decode(),
  }
