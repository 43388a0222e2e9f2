"""Image files of tests, good and bad."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def written(image, kind="PNG", **options):
  """Bytes of an image file."""
  file = io.BytesIO()
  image.save(file, kind, **options)
  return file.getvalue()


def picture(height, width, seed=0):
  """Random pixels."""
  rng = np.random.default_rng(seed)
  pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
  return Image.fromarray(pixels)


def png(width, height, data=b""):
  """Makes a PNG whose header has a given size, with grey of one bit."""

  def chunk(name, body):
    checksum = zlib.crc32(name + body)
    return (
      struct.pack(">I", len(body)) + name + body + struct.pack(">I", checksum)
    )

  header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
  return (
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", header)
    + chunk(b"IDAT", zlib.compress(data))
    + chunk(b"IEND", b"")
  )


# Name -> bytes of a file that is no image, or none that can be used.
BROKEN = {
  "empty.png": b"",
  "text.png": b"not an image",
  "truncated.png": written(picture(64, 64))[:2000],
  "truncated.jpg": written(picture(64, 64), "JPEG")[:1000],
  "header.png": b"\x89PNG\r\n\x1a\n",
  "short.png": png(100, 100, b"\x00"),
  "bomb.png": png(60_000, 60_000),
  "large.png": png(10_000, 10_000),
  "postscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
  "float.tiff": written(Image.new("F", (4, 4), 0.5), "TIFF"),
  "wide.tiff": written(Image.new("I", (4, 4), 5), "TIFF"),
  "svg.png": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}
