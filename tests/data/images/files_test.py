"""Pixels of image files: modes, orientation, and what is wrong with them."""

import base64
import os

import numpy as np
import pytest
from PIL import Image

from grpo_jax.data.images import files
from tests.data.images import pictures


def read(data):
  return files.pixels(files.value(data), "")


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("empty.png", "it is empty"),
    ("text.png", "it is none of PNG, JPEG, WEBP, GIF, BMP, TIFF"),
    ("svg.png", "it is none of PNG, JPEG, WEBP, GIF, BMP, TIFF"),
    ("postscript.png", "it is none of PNG, JPEG, WEBP, GIF, BMP, TIFF"),
    ("header.png", "it is none of PNG, JPEG, WEBP, GIF, BMP, TIFF"),
    ("truncated.png", "it cannot be decoded: "),
    ("truncated.jpg", "it cannot be decoded: image file is truncated"),
    ("short.png", "it cannot be decoded: image file is truncated"),
    ("bomb.png", "it has too many pixels; at most 67108864 are decoded"),
    (
      "large.png",
      "it has 10000 x 10000 pixels; at most 67108864 are decoded",
    ),
    (
      "float.tiff",
      "its pixels have 32 bits (mode 'F'), and nobody says what white is;"
      " write it with 8 or 16",
    ),
    (
      "wide.tiff",
      "its pixels have 32 bits (mode 'I'), and nobody says what white is;"
      " write it with 8 or 16",
    ),
  ],
)
def test_what_is_said_of_broken_files(name, message):
  with pytest.raises(files.BadImage) as caught:
    read(pictures.BROKEN[name])
  said = str(caught.value)
  assert said == message or (
    message.startswith("it cannot") and message in said
  )


def test_every_broken_file_is_refused():
  for data in pictures.BROKEN.values():
    with pytest.raises(files.BadImage):
      read(data)


def test_files_stay_within_their_folder(tmp_path):
  folder, outside = tmp_path / "images", tmp_path / "outside"
  folder.mkdir()
  outside.mkdir()
  for place in (folder, outside):
    pictures.picture(3, 4).save(place / "a.png")
  (folder / "link.png").symlink_to(outside / "a.png")
  (folder / "inside.png").symlink_to(folder / "a.png")
  (folder / "folder").symlink_to(outside)
  (folder / "loop.png").symlink_to(folder / "loop.png")
  os.mkfifo(folder / "pipe.png")

  def message(path, where=folder):
    with pytest.raises(files.BadImage) as caught:
      files.pixels(files.value(path), str(where))
    return str(caught.value)

  expected = np.asarray(pictures.picture(3, 4))
  for path in ("a.png", "./a.png", "inside.png", str(folder / "a.png")):
    found = files.pixels(files.value(path), str(folder))
    np.testing.assert_array_equal(found, expected)
  leads = "leads out of the folder of images (config.data.image_folder)"
  for path in (
    *("link.png", "folder/a.png", "../outside/a.png"),
    str(outside / "a.png"),
  ):
    assert message(path) == f"the path {path!r} {leads}"
  for path in ("b.png", "loop.png", "a.png/b", "x" * 5000, "gs://a/b.png"):
    assert message(path) == f"there is no file {path!r:.200}"
  assert message("pipe.png") == "'pipe.png' is not a file"
  assert message(".") == "'.' is not a file"
  assert message("a.png", "") == (
    "no folder is named where paths of images begin (config.data.image_folder)"
  )


def test_large_files_are_not_read(tmp_path, monkeypatch):
  monkeypatch.setattr(files, "MAX_BYTES", 100)
  (tmp_path / "a.png").write_bytes(pictures.written(pictures.picture(9, 9)))
  size = (tmp_path / "a.png").stat().st_size
  with pytest.raises(files.BadImage) as caught:
    files.pixels(["path", "a.png"], str(tmp_path))
  assert str(caught.value) == f"it has {size} bytes; at most 100 are read"
  with pytest.raises(files.BadImage, match="at most 100 are read"):
    read(b"x" * 200)


@pytest.mark.parametrize(
  "given",
  [
    pictures.written(pictures.picture(5, 7)),
    {"bytes": pictures.written(pictures.picture(5, 7)), "path": "x"},
    {
      "bytes": base64.b64encode(
        pictures.written(pictures.picture(5, 7))
      ).decode()
    },
    "data:image/png;base64,"
    + base64.b64encode(pictures.written(pictures.picture(5, 7))).decode(),
    np.asarray(pictures.picture(5, 7)),
  ],
  ids=("bytes", "mapping", "base64", "url", "pixels"),
)
def test_forms_of_an_image(given):
  np.testing.assert_array_equal(read(given), np.asarray(pictures.picture(5, 7)))


@pytest.mark.parametrize(
  "given",
  [
    *(3, None, "", "a\0b", ["a.png"], {"url": "a"}, "data:image/png,abc"),
    *(
      np.zeros((2, 2, 2), np.uint8),
      np.zeros((2, 2, 3)),
      np.zeros(0, np.uint8),
    ),
  ],
  ids=range(10),
)
def test_what_is_no_image(given):
  with pytest.raises(ValueError, match="need"):
    files.value(given)


def test_bytes_that_are_no_base64():
  with pytest.raises(files.BadImage, match="its bytes are no base64"):
    read({"bytes": "a b c !"})


def test_sixteen_bits_of_grey_keep_the_upper_eight():
  levels = np.arange(0, 65536, 257 * 5, dtype=np.uint16).reshape(4, 13)
  expected = np.repeat((levels >> 8).astype(np.uint8)[..., None], 3, axis=-1)
  for kind in ("PNG", "TIFF"):
    data = pictures.written(Image.fromarray(levels), kind)
    np.testing.assert_array_equal(read(data), expected)


def test_transparent_pixels_are_white():
  clear = Image.new("RGBA", (3, 2), (10, 20, 30, 0))
  assert (read(pictures.written(clear)) == 255).all()


def test_orientation_is_that_of_the_camera():
  image = Image.new("RGB", (40, 20), "white")
  exif = Image.Exif()
  exif[0x0112] = 6  # A quarter to the right.
  found = read(pictures.written(image, "JPEG", exif=exif))
  assert found.shape == (40, 20, 3)
