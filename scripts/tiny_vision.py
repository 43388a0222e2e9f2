"""Vision-language members of scripts/make_tiny_checkpoints.py, and images.

Prompts are of three kinds: two images of different sizes, one image, none.
Beside the arrays of other references, those of these families have the images
of a prompt, with the fields of `grpo_jax.types.Images`: patches [P, N, F],
image [P, N], place [P, N, 2] and grid [P, M, 2].
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import torch

CHECKPOINTS = pathlib.Path(__file__).parents[1] / "tests/data/checkpoints"
_IMAGE, _VIDEO, _START, _END = 5, 6, 3, 4
_FIRST_TEXT = 8  # Ids below are of no text.
_TEXT = {
  "vocab_size": 96,
  "hidden_size": 32,
  "intermediate_size": 48,
  "num_hidden_layers": 3,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 256,
  "bos_token_id": 1,
  "eos_token_id": 2,
}
_TOKENS = {
  "image_token_id": _IMAGE,
  "video_token_id": _VIDEO,
  "vision_end_token_id": _END,
  "vision_start_token_id": _START,
}


def family_config(name: str) -> dict:
  """The config.json of a family."""
  return json.loads((CHECKPOINTS / name / "config.json").read_text("utf-8"))


_IDEFICS3 = family_config("idefics3")
VARIANTS = {
  # As transformers 5 writes it.
  "qwen2_5_vl-text_config": {
    **_TOKENS,
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "text_config": _TEXT
    | {
      "hidden_act": "silu",
      "model_type": "qwen2_5_vl_text",
      "rms_norm_eps": 1e-6,
      "rope_parameters": {
        "mrope_section": [1, 2, 1],
        "rope_theta": 10_000.0,
        "rope_type": "default",
      },
      "use_sliding_window": False,
    },
    "tie_word_embeddings": False,
    "vision_config": family_config("qwen2_5_vl")["vision_config"]
    | {"model_type": "qwen2_5_vl_vision", "window_size": 24},
  },
  "qwen2_vl-text_config": {
    **_TOKENS,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "text_config": _TEXT
    | {
      "hidden_act": "silu",
      "model_type": "qwen2_vl_text",
      "num_attention_heads": 1,
      "num_key_value_heads": 1,
      "rms_norm_eps": 1e-6,
      "rope_parameters": {
        "mrope_section": [3, 7, 6],
        "rope_theta": 10_000.0,
        "rope_type": "default",
      },
      "use_sliding_window": False,
    },
    "tie_word_embeddings": False,
    "vision_config": {
      **family_config("qwen2_vl")["vision_config"],
      "hidden_act": "quick_gelu",
      "model_type": "qwen2_vl_vision",
      "num_heads": 1,
    },
  },
  "qwen3_vl-tied": family_config("qwen3_vl") | {"tie_word_embeddings": True},
  "smolvlm-tied": _IDEFICS3
  | {
    "architectures": ["SmolVLMForConditionalGeneration"],
    "model_type": "smolvlm",
    "tie_word_embeddings": True,
    "vision_config": _IDEFICS3["vision_config"]
    | {"model_type": "smolvlm_vision"},
  },
}


_TYPES = {"idefics3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "smolvlm"}


def is_vision(config: dict) -> bool:
  """True if a config.json is of a model with images."""
  return config.get("model_type") in _TYPES


def _grids(config: dict) -> list[list[tuple[int, int]]]:
  """Rows and columns of patches of the images of each prompt."""
  if "scale_factor" in config:
    # Tiles, and all of one size: a larger image has more of them.
    return [[(4, 4), (4, 4), (4, 4)], [(4, 4)], []]
  return [[(4, 6), (8, 4)], [(6, 6)], []]


def draw(config: dict, seed: int) -> dict[str, np.ndarray]:
  """Draws prompts with images: input_ids, attention_mask and `Images`."""
  rng = np.random.default_rng(seed)
  vision = config["vision_config"]
  merge = config.get("scale_factor") or vision["spatial_merge_size"]
  size, frames = vision["patch_size"], vision.get("temporal_patch_size", 1)
  grids = _grids(config)
  most = max(sum(h * w for h, w in of_prompt) for of_prompt in grids)
  num_places = most + merge**2  # And empty ones.
  count = len(grids)
  images = {
    "patches": np.zeros((count, num_places, 3 * frames * size**2), np.float32),
    "image": np.full((count, num_places), -1, np.int32),
    "place": np.zeros((count, num_places, 2), np.int32),
    "grid": np.zeros((count, max(map(len, grids)), 2), np.int32),
  }
  prompts = []
  for row, of_prompt in enumerate(grids):
    tokens = [*rng.integers(_FIRST_TEXT, 96, 3)]
    at = 0
    for number, (h, w) in enumerate(of_prompt):
      tokens += [_START, *[_IMAGE] * (h * w // merge**2), _END]
      tokens += [*rng.integers(_FIRST_TEXT, 96, 2)]
      # In the order (row and column of a token, row and column within it).
      row_of, column_of = np.meshgrid(np.arange(h), np.arange(w), indexing="ij")
      place = np.stack([row_of, column_of], axis=-1)
      place = place.reshape(h // merge, merge, w // merge, merge, 2)
      place = place.transpose(0, 2, 1, 3, 4).reshape(-1, 2)
      # The frames of an image are equal.
      pixels = rng.normal(size=(h * w, 3, 1, size**2)).repeat(frames, axis=2)
      here = slice(at, at + h * w)
      images["patches"][row, here] = pixels.reshape(h * w, -1)
      images["image"][row, here] = number
      images["place"][row, here] = place
      images["grid"][row, number] = h, w
      at += h * w
    prompts.append(tokens)
  length = max(map(len, prompts))
  ids = np.zeros((count, length), np.int64)
  mask = np.zeros((count, length), bool)
  for row, tokens in enumerate(prompts):
    ids[row, length - len(tokens) :] = tokens
    mask[row, length - len(tokens) :] = True
  return {"input_ids": ids, "attention_mask": mask, **images}


def draw_completions(count: int, length: int, seed: int) -> np.ndarray:
  """Draws tokens [count, length] of text, after prompts of `draw`."""
  rng = np.random.default_rng(seed)
  return rng.integers(_FIRST_TEXT, 96, (count, length)).astype(np.int32)


def inputs(
  config: dict, arrays: dict[str, np.ndarray]
) -> dict[str, torch.Tensor]:
  """Inputs of `transformers` beside tokens, for several prompts at once."""
  is_patch = arrays["image"] >= 0
  grid = arrays["grid"]
  if "scale_factor" not in config:
    exists = grid[..., 0] > 0
    sizes = np.pad(grid[exists], ((0, 0), (1, 0)), constant_values=1)
    kinds = np.where(arrays["attention_mask"], arrays["input_ids"] == _IMAGE, 0)
    return {
      "pixel_values": torch.from_numpy(arrays["patches"][is_patch]),
      "image_grid_thw": torch.from_numpy(sizes.astype(np.int64)),
      "mm_token_type_ids": torch.from_numpy(kinds.astype(np.int32)),
    }
  size = config["vision_config"]["patch_size"]
  side = config["vision_config"]["image_size"]
  # Tiles that are 0 everywhere are none.
  pixels = np.zeros((*grid.shape[:2], 3, side, side), np.float32)
  for row, slot in zip(*np.nonzero(is_patch), strict=True):
    y, x = arrays["place"][row, slot] * size
    patch = arrays["patches"][row, slot].reshape(3, size, size)
    tile = arrays["image"][row, slot]
    pixels[row, tile, :, y : y + size, x : x + size] = patch
  return {"pixel_values": torch.from_numpy(pixels)}
