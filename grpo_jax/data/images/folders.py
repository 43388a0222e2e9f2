"""The processor that a checkpoint's folder describes.

Read are preprocessor_config.json, or what processor_config.json has under
"image_processor", and the patches and the blocks of config.json where the
former says nothing of them (Idefics3, SmolVLM).
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from grpo_jax.data.images.processors import Processor

# Names in files, without "Fast" at the end.
_QWEN = ("Qwen2VLImageProcessor", "Qwen3VLImageProcessor")
_IDEFICS = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
# OpenAI's CLIP, the default of Qwen's processor.
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
# What `config.data.image_options` may say, by kind.
OPTIONS = {
  "qwen": ("min_pixels", "max_pixels"),
  "idefics": ("longest_edge", "tile", "splits"),
}


def from_folder(
  folder: str | pathlib.Path, options: Mapping[str, Any] | None = None
) -> Processor:
  """The processor of a checkpoint.

  Args:
    folder: Has the files of the processor.
    options: Fields in the place of the files' own, as `OPTIONS` has them.

  Raises:
    FileNotFoundError: There are no such files.
    ValueError: They describe another processor, or one that is not followed
      here; or an option is none, or out of range.
  """
  where = pathlib.Path(folder)
  ours = _settings(where)
  name = str(ours.get("image_processor_type", "")).removesuffix("Fast")
  if name in _QWEN:
    kind, fields = "qwen", _qwen(ours)
  elif name in _IDEFICS:
    kind, fields = "idefics", _idefics(ours, _read(where / "config.json"))
  else:
    raise ValueError(
      f"images: {where} has the processor {name or 'without a name'!r}; known"
      f" are {', '.join((*_QWEN, *_IDEFICS))}. Set config.data.image_processor"
      " to the folder of a checkpoint that has one of these."
    )
  for switch in ("do_resize", "do_rescale", "do_normalize"):
    if ours.get(switch, True) is not True:
      raise ValueError(
        f"images: {where} has {switch}={ours[switch]!r}; needed is true, as in"
        " all checkpoints of this family."
      )
  given = dict(options or {})
  if unknown := given.keys() - {*OPTIONS[kind]}:
    raise ValueError(
      f"config.data.image_options has {sorted(unknown)}; the processor of"
      f" {where} has {', '.join(OPTIONS[kind])}."
    )
  try:
    return Processor(kind=kind, **{**fields, **_norm(ours, kind), **given})
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"images: the processor of {where} with config.data.image_options="
      f"{given}: {error}"
    ) from error


def _settings(where: pathlib.Path) -> dict[str, Any]:
  for name in ("preprocessor_config.json", "processor_config.json"):
    found = _read(where / name)
    found = found.get("image_processor", found)
    if isinstance(found, dict) and "image_processor_type" in found:
      return found
  raise FileNotFoundError(
    f"images: {where} has neither a preprocessor_config.json nor a"
    " processor_config.json with an 'image_processor_type'; set"
    " config.data.image_processor to the folder of a checkpoint that has one."
  )


def _read(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file; empty where there is no file."""
  if not path.exists():
    return {}
  try:
    found = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"images: {path} is no JSON: {error}") from error
  if not isinstance(found, dict):
    raise ValueError(
      f"images: {path} holds {found!r:.40}; needed is an object."
    )
  return found


def _norm(ours: Mapping[str, Any], kind: str) -> dict[str, Any]:
  usual = (_CLIP_MEAN, _CLIP_STD) if kind == "qwen" else ((0.5,) * 3,) * 2
  filters = {"qwen": 3, "idefics": 1}  # Bicubic, Lanczos.
  return {
    "mean": tuple(ours.get("image_mean") or usual[0]),
    "std": tuple(ours.get("image_std") or usual[1]),
    "scale": ours.get("rescale_factor", 1 / 255),
    "resample": ours.get("resample", filters[kind]),
  }


def _edge(value: Any, name: str, usual: int) -> int:
  """A length that a file gives as a number, or in a group."""
  if isinstance(value, Mapping):
    value = value.get(name)
  return usual if value is None else value


def _qwen(ours: Mapping[str, Any]) -> dict[str, Any]:
  size = ours.get("size") or {}
  least = _edge(size, "shortest_edge", _edge(size, "min_pixels", 56 * 56))
  most = _edge(size, "longest_edge", _edge(size, "max_pixels", 28 * 28 * 1280))
  # Where a file has both, transformers lets these win.
  return {
    "patch": ours.get("patch_size", 14),
    "merge": ours.get("merge_size", 2),
    "frames": ours.get("temporal_patch_size", 2),
    "min_pixels": _edge(ours.get("min_pixels"), "", least),
    "max_pixels": _edge(ours.get("max_pixels"), "", most),
    "image_token": "<|image_pad|>",
    "before": "<|vision_start|>",
    "after": "<|vision_end|>",
  }


def _idefics(
  ours: Mapping[str, Any], model: Mapping[str, Any]
) -> dict[str, Any]:
  vision = model.get("vision_config") or {}
  if "patch_size" not in vision or "scale_factor" not in model:
    raise ValueError(
      "images: an Idefics3 or SmolVLM processor needs the config.json of its"
      " model beside it, with vision_config.patch_size and scale_factor."
    )
  return {
    "patch": vision["patch_size"],
    "merge": model["scale_factor"],
    "longest_edge": _edge(ours.get("size"), "longest_edge", 4 * 364),
    "tile": _edge(ours.get("max_image_size"), "longest_edge", 364),
    "splits": ours.get("do_image_splitting", True),
    "image_token": "<image>",
  }
