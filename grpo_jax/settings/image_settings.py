"""Settings of images in prompts, and what they open."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from grpo_jax import ranges

# Those that only prompts with images read.
_OF_IMAGES = (
  "image_folder",
  "image_processor",
  "image_options",
  "max_images",
  "max_patches",
)


@dataclasses.dataclass(frozen=True)
class ImageData:
  """The images of prompts; a part of the settings of data.

  Attributes:
    images: Fields of the rows that have the images of a prompt: each an image,
      a list of images, or null (docs/images.md). Empty: prompts are text alone.
    image_folder: Folder of images that are given by paths, which may not lead
      out of it; empty: the folder of `train_path`.
    image_processor: Folder of a checkpoint whose processor cuts images into
      patches; empty: that of `model.checkpoint`.
    image_options: Settings of this processor in the place of its file's:
      "min_pixels" and "max_pixels", or "longest_edge", "tile" and "splits".
    max_images: Room for images in a prompt; a tile counts as one.
    max_patches: Room for patches in a prompt. Prompts with more are left out
      and counted, as those are whose images are broken.
    image_workers: Processes in which images are decoded.
  """

  images: tuple[str, ...] = ()
  image_folder: str = ""
  image_processor: str = ""
  image_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  max_images: int | None = None
  max_patches: int | None = None
  image_workers: int = 2

  def check_images(self) -> None:
    """Raises ValueError unless these settings go together."""
    ranges.check(
      self,
      "config.data",
      max_images=ranges.SIZE,
      max_patches=ranges.SLOTS,
      image_workers=ranges.SIZE,
    )
    if not self.images:
      usual = ImageData()
      for name in _OF_IMAGES:
        value = getattr(self, name)
        if value != getattr(usual, name):
          raise ValueError(
            f"config.data.{name}={value!r} is for prompts with images; name"
            " their fields in config.data.images, or leave it as it is."
          )
      return
    for name in ("max_images", "max_patches"):
      if getattr(self, name) is None:
        raise ValueError(
          f"config.data.images={self.images!r} needs config.data.{name}: arrays"
          " have room for as many in each prompt."
        )
    if len({*self.images}) < len(self.images):
      raise ValueError(
        f"config.data.images={self.images!r} has a field twice; name each once."
      )


def folder(data: Any) -> str:
  """Where paths of images begin; empty: nowhere, and none is read.

  Args:
    data: A `DataConfig`.

  Raises:
    FileNotFoundError: There is no such folder.
    ValueError: It lies in a bucket; or training and held-out records lie in
      two folders, and no folder is named.
  """
  if data.image_folder:
    if "://" in data.image_folder:
      raise ValueError(
        f"config.data.image_folder={data.image_folder!r} is not on a disk of"
        " this machine, where processes read images; copy it here, or put the"
        " bytes of images into the records."
      )
    if not pathlib.Path(data.image_folder).is_dir():
      raise FileNotFoundError(
        f"config.data.image_folder={data.image_folder!r}: there is no such"
        " folder."
      )
    return os.path.abspath(data.image_folder)
  if data.source != "jsonl" or "://" in data.train_path:
    return ""
  folders = {
    os.path.abspath(pathlib.Path(path).parent)
    for path in (data.train_path, data.eval_path or data.train_path)
  }
  if len(folders) > 1:
    raise ValueError(
      f"config.data.train_path={data.train_path!r} and"
      f" config.data.eval_path={data.eval_path!r} lie in two folders; set"
      " config.data.image_folder to the one that paths of images begin in."
    )
  return folders.pop()
