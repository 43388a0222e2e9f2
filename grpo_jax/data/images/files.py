"""Reads image files of unknown origin as pixels.

An image may come from a stranger. So only formats that Pillow decodes itself
are read, sizes are checked before anything is decoded, and any fault of an
image is a `BadImage` with a reason for people.

    pixels(["path", "a.png"], "/data")  # uint8 [height, width, 3]

Images travel as lists that JSON can hold:

| value                             | is                                      |
|-----------------------------------|-----------------------------------------|
| ["path", path]                    | a file, in a folder that the run names  |
| ["bytes", base64]                 | the bytes of a file                     |
| ["pixels", base64, height, width, channels] | uint8, 1, 3 or 4 channels     |
"""

from __future__ import annotations

import base64
import binascii
import functools
import io
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax import optional

import_pillow = functools.partial(
  optional.package, "PIL", "vision", __name__, "Image", "ImageOps"
)
# Formats that Pillow itself decodes: others start programs, or are seldom
# tested.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
MAX_BYTES = 2**26  # Most bytes of a file.
# Most bytes that are sent to another process: in base64 they fit a message.
MAX_SENT_BYTES = 11 * 2**20
MAX_PIXELS = 2**26  # Decoded, they take 4 bytes each, and a few copies.

# Modes of images with 16 bits of grey; see `_eight_bits`.
_SIXTEEN = ("I;16", "I;16B", "I;16L", "I;16N")
# Modes whose pixels have no range that all files share.
_WIDE = ("I", "F")


class BadImage(ValueError):
  """An image that cannot be used; the message says why."""


def value(image: Any) -> list[Any]:
  """Converts an image in a row of data to a list that JSON can hold.

  Args:
    image: A path; a text "data:image/png;base64,…"; the bytes of a file; a
      mapping with `bytes` (bytes, or base64) or `path`; or uint8 pixels
      [height, width, channels].

  Raises:
    ValueError: The value is none of these.
  """
  if isinstance(image, Mapping):
    inner = image.get("bytes")
    if isinstance(inner, str):
      return ["bytes", inner]
    image = inner if inner is not None else image.get("path")
  if isinstance(image, np.ndarray):
    return _of_array(image)
  if isinstance(image, bytes | bytearray | np.bytes_):
    return ["bytes", base64.b64encode(bytes(image)).decode()]
  if isinstance(image, str) and image.startswith("data:"):
    head, comma, body = image.partition(",")
    if not comma or not head.endswith(";base64"):
      raise ValueError(
        f"found the image {image!r:.40}; need 'data:image/png;base64,' and"
        " base64 after it."
      )
    return ["bytes", body]
  if isinstance(image, str) and image and "\0" not in image:
    return ["path", image]
  raise ValueError(
    f"found the image {image!r:.60}; need a path, 'data:image/png;base64,…', or"
    " an object with 'bytes' in base64 or a 'path'."
  )


def _of_array(array: np.ndarray) -> list[Any]:
  shaped = array[..., None] if array.ndim == 2 else array
  is_image = shaped.ndim == 3 and shaped.shape[-1] in (1, 3, 4)
  if array.dtype != np.uint8 or not is_image or not array.size:
    raise ValueError(
      f"found an image of {array.dtype} {list(array.shape)}; need uint8 pixels"
      " [height, width, channels] with 1, 3 or 4 channels."
    )
  body = base64.b64encode(np.ascontiguousarray(shaped).tobytes()).decode()
  return ["pixels", body, *map(int, shaped.shape)]


def pixels(
  image: Sequence[Any], folder: str
) -> np.ndarray:  # [height, width, 3] uint8
  """The pixels of an image, upright, in RGB, and without transparency.

  Transparent pixels are put on white, as in the processors of transformers.
  Grey of 16 bits keeps its upper 8 bits, as colours of 16 bits do in Pillow.
  The first picture of an animation is taken.

  Args:
    image: A result of `value`.
    folder: Folder in which paths begin, and which they must not leave.

  Raises:
    BadImage: The image cannot be used.
    ImportError: Pillow is missing.
  """
  pillow = import_pillow()
  kind, body, *shape = image
  if kind == "pixels":
    return _rgb(pillow, _from_array(pillow, body, shape))
  data = _file_bytes(body, folder) if kind == "path" else _decoded(body)
  return _rgb(pillow, _opened(pillow, data))


def _from_array(pillow: Any, body: str, shape: Sequence[int]) -> Any:
  array = np.frombuffer(_decoded(body), np.uint8).reshape(shape)
  _check_size(shape[1], shape[0])
  return pillow.Image.fromarray(array[..., 0] if shape[-1] == 1 else array)


def _file_bytes(path: str, folder: str) -> bytes:
  """Reads a file that is inside a folder after all links are followed.

  Raises:
    BadImage: The path leaves the folder, the file is too large, or it is not a
      file.
  """
  if not folder:
    raise BadImage(
      "no folder is named where paths of images begin"
      " (config.data.image_folder)"
    )
  try:
    root = pathlib.Path(folder).resolve(strict=True)
    target = (root / path).resolve(strict=True)
    is_file = target.is_file()
  except (OSError, RuntimeError, ValueError) as error:
    raise BadImage(f"there is no file {path!r:.200}") from error
  if not target.is_relative_to(root):
    raise BadImage(
      f"the path {path!r:.200} leads out of the folder of images"
      " (config.data.image_folder)"
    )
  if not is_file:  # To open a pipe would block.
    raise BadImage(f"{path!r:.200} is not a file")
  try:
    with target.open("rb") as file:
      size = os.fstat(file.fileno()).st_size
      _check_bytes(size)
      return file.read(MAX_BYTES + 1)
  except OSError as error:
    raise BadImage(f"{path!r:.200} cannot be read: {error.strerror}") from error


def _decoded(body: str) -> bytes:
  _check_bytes(len(body) * 3 // 4)
  try:
    return base64.b64decode(body, validate=True)
  except (binascii.Error, ValueError) as error:
    raise BadImage("its bytes are no base64") from error


def _check_bytes(size: int) -> None:
  if size > MAX_BYTES:
    raise BadImage(f"it has {size} bytes; at most {MAX_BYTES} are read")


def _check_size(width: int, height: int) -> None:
  if width * height > MAX_PIXELS:
    raise BadImage(
      f"it has {width} x {height} pixels; at most {MAX_PIXELS} are decoded"
    )


def _opened(pillow: Any, data: bytes) -> Any:
  """Decodes an image.

  Raises:
    BadImage: The image has another format, too many pixels, or is broken.
  """
  _check_bytes(len(data))
  if not data:
    raise BadImage("it is empty")
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      image = pillow.Image.open(io.BytesIO(data), formats=FORMATS)
  except pillow.Image.DecompressionBombError as error:
    raise BadImage(
      f"it has too many pixels; at most {MAX_PIXELS} are decoded"
    ) from error
  except pillow.UnidentifiedImageError as error:
    raise BadImage(f"it is none of {', '.join(FORMATS)}") from error
  except Exception as error:  # A stranger's file may cause any exception.
    raise _undecoded(error) from error
  _check_size(*image.size)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      image.load()
      return pillow.ImageOps.exif_transpose(image)
  except Exception as error:
    raise _undecoded(error) from error


def _undecoded(error: Exception) -> BadImage:
  why = "it needs too much memory" if isinstance(error, MemoryError) else error
  return BadImage(f"it cannot be decoded: {why!s:.200}")


def _rgb(pillow: Any, image: Any) -> np.ndarray:  # [height, width, 3] uint8
  try:
    if image.mode in _WIDE:
      raise BadImage(
        f"its pixels have 32 bits (mode {image.mode!r}), and nobody says what"
        " white is; write it with 8 or 16"
      )
    if image.mode in _SIXTEEN:
      image = _eight_bits(pillow, image)
    transparency = image.info.get("transparency")
    if "A" in image.getbands() or transparency is not None:
      image = image.convert("RGBA")
      white = pillow.Image.new("RGBA", image.size, (255, 255, 255, 255))
      image = pillow.Image.alpha_composite(white, image)
    return np.asarray(image.convert("RGB"))
  except BadImage:
    raise
  except Exception as error:
    raise _undecoded(error) from error


def _eight_bits(pillow: Any, image: Any) -> Any:
  # Pillow's own conversion makes all grey above 255 of 65535 white.
  array = np.asarray(image).astype(np.uint16)
  return pillow.Image.fromarray((array >> 8).astype(np.uint8))
