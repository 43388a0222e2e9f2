"""Processors of images: resize an image and cut it into patches.

    processor = processors.from_folder("checkpoints/qwen2_5_vl")
    cut = processor.cut(pixels)           # patches, uint8, and their grids
    processor.patches(cut.pixels)         # [patches, F] float32
    processor.placeholders(cut)           # the text in the place of the image

There are two kinds:

- "qwen": Qwen2-VL, Qwen2.5-VL and Qwen3-VL. An image keeps its proportions. It
  is resized so that its sides are multiples of a merged patch and its area is
  within bounds, and becomes one grid of patches. Each patch is there twice,
  because the tower reads two frames at a time.
- "idefics": Idefics3 and SmolVLM. An image is resized to a longest edge, cut
  into square tiles, and shown once more as a whole; each tile is a grid of its
  own.

Patches are in the order of a tower: blocks of merge × merge patches, row by
row, and row by row within a block. A patch is (channel, row, column), for
"qwen" (channel, frame, row, column).

The pixels equal those of the processors of transformers that resize with
Pillow, bit for bit. Its default processors resize with torchvision, and differ:
mostly by a level or two of 255 in one of two hundred pixels.

`from_folder` reads preprocessor_config.json, or the entry "image_processor" of
processor_config.json. If these have no sizes of patches and blocks (Idefics3,
SmolVLM), it reads them in config.json.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from grpo_jax.data.images import files
from grpo_jax.data.images.files import BadImage

KINDS = ("qwen", "idefics")
# Largest ratio of the sides of an image, from transformers' `smart_resize`.
# With longer sides a tile could be a single row.
MAX_RATIO = 200
# Longest side of an image of "idefics", whatever the settings are.
_MAX_SIDE = 4096


@dataclasses.dataclass(frozen=True)
class PatchCut:
  """An image in patches, before its pixels are normalized.

  Attributes:
    pixels: Pixels of all patches in the order of the tower; those of a patch by
      (channel, row, column).
    grids: Rows and columns of patches of each tile.
    rows, columns: Rows and columns of tiles, without the whole image; 0 if
      there is a single grid.
  """

  pixels: np.ndarray  # [patches, 3 · patch · patch] uint8
  grids: tuple[tuple[int, int], ...]
  rows: int = 0
  columns: int = 0


@dataclasses.dataclass(frozen=True)
class Processor:
  """A processor of images: makes patches and placeholders.

  Attributes:
    kind: One of `KINDS`.
    patch: Pixels of a side of a patch.
    merge: Patches of a side of a block that becomes one token.
    min_pixels, max_pixels: Bounds of the pixels of a resized image ("qwen").
    longest_edge: Longest edge of a resized image, in pixels ("idefics").
    tile: Pixels of a side of a tile ("idefics").
    splits: Whether there are tiles beside the whole image ("idefics").
    frames: Number of copies of each patch.
    resample: Pillow's number of the filter.
    mean, std: Mean and standard deviation of each channel, after `scale`.
    scale: Factor of the pixels.
    image_token: The text of a placeholder.
    before, after: Text around an image that no chat template writes.
  """

  kind: str
  patch: int
  merge: int
  min_pixels: int = 56 * 56
  max_pixels: int = 28 * 28 * 1280
  longest_edge: int = 4 * 364
  tile: int = 364
  splits: bool = True
  frames: int = 1
  resample: int = 3
  mean: tuple[float, ...] = (0.5, 0.5, 0.5)
  std: tuple[float, ...] = (0.5, 0.5, 0.5)
  scale: float = 1 / 255
  image_token: str = "<|image_pad|>"
  before: str = ""
  after: str = ""

  def __post_init__(self):
    if self.kind not in KINDS:
      raise ValueError(
        f"Processor: kind is {self.kind!r}; needs one of {KINDS}."
      )
    bounds = {
      "patch": (self.patch, 1, 64),
      "merge": (self.merge, 1, 16),
      "frames": (self.frames, 1, 4),
      "max_pixels": (self.max_pixels, 1, 2**26),  # The next line reads it.
      "min_pixels": (self.min_pixels, 1, self.max_pixels),
      "longest_edge": (self.longest_edge, 1, 2**13),
      "tile": (self.tile, 1, _MAX_SIDE),
      "resample": (self.resample, 0, 5),
    }
    for name, (value, least, most) in bounds.items():
      if type(value) is not int or not least <= value <= most:
        raise ValueError(
          f"Processor: {name} is {value!r}; needs a whole number from"
          f" {least} to {most}."
        )
    if self.kind == "idefics" and self.tile % (self.patch * self.merge):
      raise ValueError(
        f"Processor: tiles of {self.tile} pixels cannot be cut into blocks of"
        f" {self.merge} x {self.merge} patches of {self.patch} pixels."
      )
    for name in ("mean", "std"):
      numbers = getattr(self, name)
      if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        raise ValueError(
          f"Processor: {name} is {numbers!r}; needs three numbers."
        )
    if not all(x > 0 for x in self.std):
      raise ValueError(
        f"Processor: std is {self.std!r}; needs numbers above 0."
      )

  @property
  def features(self) -> int:
    """Number of values of a patch, F."""
    return 3 * self.frames * self.patch**2

  def size(self, height: int, width: int) -> tuple[int, int]:
    """Height and width of an image after resizing.

    Raises:
      BadImage: The sides of the image are too different.
    """
    if self.kind == "qwen":
      return self._within_bounds(height, width)
    height, width = self._longest(height, width)
    if not self.splits:
      return self.tile, self.tile
    return self._in_tiles(height, width)

  def _within_bounds(self, height: int, width: int) -> tuple[int, int]:
    if max(height, width) / min(height, width) > MAX_RATIO:
      raise BadImage(
        f"it has {width} x {height} pixels; one side may be at most"
        f" {MAX_RATIO} times the other"
      )
    step = self.patch * self.merge
    tall, wide = round(height / step) * step, round(width / step) * step
    if tall * wide > self.max_pixels:
      shrink = math.sqrt((height * width) / self.max_pixels)
      tall = max(step, math.floor(height / shrink / step) * step)
      wide = max(step, math.floor(width / shrink / step) * step)
    elif tall * wide < self.min_pixels:
      grow = math.sqrt(self.min_pixels / (height * width))
      tall = math.ceil(height * grow / step) * step
      wide = math.ceil(width * grow / step) * step
    return tall, wide

  def _longest(self, height: int, width: int) -> tuple[int, int]:
    """The size at which the longer side is `longest_edge`."""
    ratio = width / height
    if width >= height:
      width = self.longest_edge
      height = int(width / ratio)
      height += height % 2
    else:
      height = self.longest_edge
      width = int(height * ratio)
      width += width % 2
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > _MAX_SIDE:
      width = _MAX_SIDE
      height = int(width / ratio)
    elif height > width and height > _MAX_SIDE:
      height = _MAX_SIDE
      width = int(height * ratio)
    return max(height, 1), max(width, 1)

  def _in_tiles(self, height: int, width: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height:
      width = math.ceil(width / self.tile) * self.tile
      height = math.ceil(int(width / ratio) / self.tile) * self.tile
    else:
      height = math.ceil(height / self.tile) * self.tile
      width = math.ceil(int(height * ratio) / self.tile) * self.tile
    # A side may round to 0 pixels, for which transformers fails.
    return max(height, self.tile), max(width, self.tile)

  def cut(
    self,
    image: np.ndarray,  # [height, width, 3] uint8
  ) -> PatchCut:
    """Resizes an image and cuts it into patches.

    Raises:
      BadImage: The sides of the image are too different.
    """
    if self.kind == "qwen":
      resized = self._resized(image, *self.size(*image.shape[:2]))
      return PatchCut(self._in_patches(resized), (self._grid(resized),))
    # Resized twice, as in transformers: each step rounds to levels of 255.
    image = self._resized(image, *self._longest(*image.shape[:2]))
    if not self.splits:
      tiles = [self._resized(image, self.tile, self.tile)]
      rows = columns = 0
    else:
      image = self._resized(image, *self._in_tiles(*image.shape[:2]))
      rows, columns = (x // self.tile for x in image.shape[:2])
      tiles = [*self._tiles(image)]
      if len(tiles) == 1:
        rows = columns = 0
      else:
        tiles.append(self._resized(image, self.tile, self.tile))
    return PatchCut(
      np.concatenate([self._in_patches(tile) for tile in tiles]),
      tuple(map(self._grid, tiles)),
      rows,
      columns,
    )

  def _tiles(self, image: np.ndarray) -> Iterator[np.ndarray]:
    size = self.tile
    for top in range(0, image.shape[0], size):
      for left in range(0, image.shape[1], size):
        yield image[top : top + size, left : left + size]

  def _resized(self, image: np.ndarray, height: int, width: int) -> np.ndarray:
    pillow = files.import_pillow()
    resized = pillow.Image.fromarray(image).resize(
      (width, height), resample=self.resample
    )
    return np.asarray(resized)

  def _grid(self, image: np.ndarray) -> tuple[int, int]:
    return image.shape[0] // self.patch, image.shape[1] // self.patch

  def _in_patches(self, image: np.ndarray) -> np.ndarray:
    rows, columns = self._grid(image)
    merge, patch = self.merge, self.patch
    blocks = image.reshape(
      *(rows // merge, merge, patch), *(columns // merge, merge, patch), 3
    )
    # Row and column of the block, then of the patch, then channel, row, column.
    ordered = blocks.transpose(0, 3, 1, 4, 6, 2, 5)
    return ordered.reshape(rows * columns, 3 * patch * patch)

  def places(self, grid: tuple[int, int]) -> np.ndarray:  # [patches, 2] int32
    """Row and column of each patch of a grid, in the order of the tower."""
    rows, columns = grid
    merge = self.merge
    every = np.stack(
      np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1
    )
    blocks = every.reshape(rows // merge, merge, columns // merge, merge, 2)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2).astype(np.int32)

  @functools.cached_property
  def _levels(self) -> np.ndarray:  # [3, 256] float32
    """Normalized values of the 256 levels of each channel."""
    # Rounded where transformers rounds: to float32 after scaling; the mean and
    # the deviation are float32 too.
    scaled = (np.arange(256, dtype=np.float64) * self.scale).astype(np.float32)
    mean = np.asarray(self.mean, np.float32)[:, None]
    std = np.asarray(self.std, np.float32)[:, None]
    return (scaled - mean) / std

  def patches(
    self,
    pixels: np.ndarray,  # [patches, 3 · patch · patch] uint8
  ) -> np.ndarray:  # [patches, F] float32
    """The normalized patches of a `PatchCut`."""
    by_channel = pixels.reshape(len(pixels), 3, -1)
    values = np.empty(by_channel.shape, np.float32)
    for channel in range(3):
      values[:, channel] = self._levels[channel][by_channel[:, channel]]
    repeated = np.repeat(values[:, :, None], self.frames, axis=2)
    return repeated.reshape(len(pixels), self.features)

  def num_tokens(self, grid: tuple[int, int]) -> int:
    """Number of placeholders of a grid of patches."""
    return grid[0] * grid[1] // self.merge**2

  def placeholders(self, cut: PatchCut) -> str:
    """The text of placeholders that replaces an image's token."""
    if self.kind == "qwen":
      return self.image_token * self.num_tokens(cut.grids[0])
    around, tokens = _AROUND, self.image_token * self.num_tokens(cut.grids[-1])
    overview = f"{around}<global-img>{tokens}{around}"
    if not cut.rows:
      return overview
    lines = [
      "".join(
        f"{around}<row_{row + 1}_col_{column + 1}>{tokens}"
        for column in range(cut.columns)
      )
      for row in range(cut.rows)
    ]
    return "\n".join([*lines, "", overview])

  def described(self) -> dict[str, Any]:
    """The fields as plain data, from which `remade` makes the processor."""
    return dataclasses.asdict(self)


_AROUND = "<fake_token_around_image>"


def remade(described: dict[str, Any]) -> Processor:
  """The processor with fields from `Processor.described`."""
  fields: dict[str, Any] = {
    name: tuple(value) if isinstance(value, list) else value
    for name, value in described.items()
  }
  return Processor(**fields)


# Names of processors in files, without "Fast" at the end.
_QWEN = ("Qwen2VLImageProcessor", "Qwen3VLImageProcessor")
_IDEFICS = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
# Those of OpenAI's CLIP, the default of Qwen's processor.
_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
# Keys that `config.data.image_options` may have, by kind.
OPTIONS = {
  "qwen": ("min_pixels", "max_pixels"),
  "idefics": ("longest_edge", "tile", "splits"),
}


def from_folder(
  folder: str | pathlib.Path, options: Mapping[str, Any] | None = None
) -> Processor:
  """Reads the processor of a checkpoint.

  Options, with keys of `OPTIONS`, replace values of the files.

  Raises:
    FileNotFoundError: There are no such files.
    ValueError: The files describe a processor that is not supported; or an
      option is unknown or out of range.
  """
  where = pathlib.Path(folder)
  config = _settings(where)
  name = str(config.get("image_processor_type", "")).removesuffix("Fast")
  if name in _QWEN:
    kind, fields = "qwen", _qwen(config)
  elif name in _IDEFICS:
    kind, fields = "idefics", _idefics(config, _json(where / "config.json"))
  else:
    raise ValueError(
      f"{where} has the processor {name or 'without a name'!r}; known are"
      f" {', '.join((*_QWEN, *_IDEFICS))}. Set config.data.image_processor to"
      " the folder of a checkpoint that has one of these."
    )
  for switch in ("do_resize", "do_rescale", "do_normalize"):
    if config.get(switch, True) is not True:
      raise ValueError(
        f"{where} has {switch}={config[switch]!r}; needs true, as in all"
        " checkpoints of this family."
      )
  changes = dict(options or {})
  if unknown := changes.keys() - {*OPTIONS[kind]}:
    raise ValueError(
      f"config.data.image_options has {sorted(unknown)}; the processor of"
      f" {where} has {', '.join(OPTIONS[kind])}."
    )
  try:
    return Processor(kind=kind, **{**fields, **_norm(config, kind), **changes})
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"the processor of {where} with config.data.image_options={changes}:"
      f" {error}"
    ) from error


def _settings(where: pathlib.Path) -> dict[str, Any]:
  for name in ("preprocessor_config.json", "processor_config.json"):
    config = _json(where / name)
    config = config.get("image_processor", config)
    if isinstance(config, dict) and "image_processor_type" in config:
      return config
  raise FileNotFoundError(
    f"{where} has neither a preprocessor_config.json nor a"
    " processor_config.json with an 'image_processor_type'; set"
    " config.data.image_processor to the folder of a checkpoint that has one."
  )


def _json(path: pathlib.Path) -> dict[str, Any]:
  """Reads the object in a JSON file; {} if there is no file."""
  if not path.exists():
    return {}
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is not JSON: {error}") from error
  if not isinstance(content, dict):
    raise ValueError(f"{path} holds {content!r:.40}; needs an object.")
  return content


def _norm(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
  usual = (_CLIP_MEAN, _CLIP_STD) if kind == "qwen" else ((0.5,) * 3,) * 2
  filters = {"qwen": 3, "idefics": 1}  # Bicubic, Lanczos.
  return {
    "mean": tuple(config.get("image_mean") or usual[0]),
    "std": tuple(config.get("image_std") or usual[1]),
    "scale": config.get("rescale_factor", 1 / 255),
    "resample": config.get("resample", filters[kind]),
  }


def _edge(value: Any, name: str, usual: int) -> int:
  """Reads a length that a file has as a number or in a group."""
  if isinstance(value, Mapping):
    value = value.get(name)
  return usual if value is None else value


def _qwen(config: Mapping[str, Any]) -> dict[str, Any]:
  size = config.get("size") or {}
  least = _edge(size, "shortest_edge", _edge(size, "min_pixels", 56 * 56))
  most = _edge(size, "longest_edge", _edge(size, "max_pixels", 28 * 28 * 1280))
  # If a file has both, these win, as in transformers.
  return {
    "patch": config.get("patch_size", 14),
    "merge": config.get("merge_size", 2),
    "frames": config.get("temporal_patch_size", 2),
    "min_pixels": _edge(config.get("min_pixels"), "", least),
    "max_pixels": _edge(config.get("max_pixels"), "", most),
    "image_token": "<|image_pad|>",
    "before": "<|vision_start|>",
    "after": "<|vision_end|>",
  }


def _idefics(
  config: Mapping[str, Any], model: Mapping[str, Any]
) -> dict[str, Any]:
  vision = model.get("vision_config") or {}
  if "patch_size" not in vision or "scale_factor" not in model:
    raise ValueError(
      "an Idefics3 or SmolVLM processor needs the config.json of its model"
      " beside it, with vision_config.patch_size and scale_factor."
    )
  return {
    "patch": vision["patch_size"],
    "merge": model["scale_factor"],
    "longest_edge": _edge(config.get("size"), "longest_edge", 4 * 364),
    "tile": _edge(config.get("max_image_size"), "longest_edge", 364),
    "splits": config.get("do_image_splitting", True),
    "image_token": "<image>",
  }
