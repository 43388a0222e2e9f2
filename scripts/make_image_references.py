"""Writes image files and their arrays in transformers: `references.npz`.

    python scripts/make_image_references.py

in an environment with transformers (5.24) and Pillow. For each file and each
processor it holds the pixel values and grids of the processors that resize with
Pillow, and the largest difference of those with torchvision from them. Names of
processors are those of folders in tests/data/images/processors.
"""

import io
import json
import pathlib
import types

import numpy as np
import PIL.Image
import PIL.ImageOps
from transformers.models.idefics3 import (
  image_processing_idefics3 as idefics_fast,
)
from transformers.models.idefics3 import (
  image_processing_pil_idefics3 as idefics,
)
from transformers.models.idefics3 import processing_idefics3
from transformers.models.qwen2_vl import (
  image_processing_pil_qwen2_vl as qwen,
)
from transformers.models.qwen2_vl import (
  image_processing_qwen2_vl as qwen_fast,
)

ROOT = pathlib.Path(__file__).parents[1] / "tests/data/images"
QWEN = qwen.Qwen2VLImageProcessorPil, qwen_fast.Qwen2VLImageProcessor
IDEFICS = idefics.Idefics3ImageProcessorPil, idefics_fast.Idefics3ImageProcessor
_TILES = {"size": {"longest_edge": 24}, "max_image_size": {"longest_edge": 8}}
PROCESSORS = {
  "qwen2_5_vl": (
    QWEN,
    {"patch_size": 4, "min_pixels": 128, "max_pixels": 512},
  ),
  "qwen3_vl": (
    QWEN,
    {
      "patch_size": 2,
      "size": {"shortest_edge": 64, "longest_edge": 256},
      "image_mean": [0.5] * 3,
      "image_std": [0.5] * 3,
    },
  ),
  "smolvlm": (IDEFICS, _TILES),
  "smolvlm_whole": (IDEFICS, {**_TILES, "do_image_splitting": False}),
  "smolvlm_small": (
    IDEFICS,
    {"size": {"longest_edge": 6}, "max_image_size": {"longest_edge": 8}},
  ),
}
MODEL = {"vision_config": {"patch_size": 2}, "scale_factor": 2}


def files():
  """Name -> bytes of a file."""
  rng = np.random.default_rng(0)

  def drawn(height, width, channels):
    size = (height, width, channels) if channels > 1 else (height, width)
    # Smooth, so that a filter of another kind would be seen, and noise.
    y, x = np.mgrid[:height, :width]
    wave = 100 + 60 * np.sin(y / 5) * np.cos(x / 3)
    wave = wave[..., None] if channels > 1 else wave
    noise = rng.integers(0, 90, size)
    return PIL.Image.fromarray((wave + noise).clip(0, 255).astype(np.uint8))

  def written(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()

  found = {
    f"{height}x{width}.png": written(drawn(height, width, 3), "PNG")
    for height, width in (
      *((1, 1), (3, 17), (40, 9), (20, 30), (48, 48), (60, 1), (2, 90)),
    )
  }
  rgb, grey = drawn(21, 14, 3), drawn(14, 21, 1)
  found |= {
    "alpha.png": written(drawn(17, 23, 4), "PNG"),
    "grey.png": written(grey, "PNG"),
    "grey_alpha.png": written(drawn(16, 16, 4).convert("LA"), "PNG"),
    "one_bit.png": written(grey.convert("1"), "PNG"),
    "palette.png": written(rgb.quantize(16), "PNG"),
    "palette_transparent.png": written(rgb.quantize(16), "PNG", transparency=3),
    "palette.gif": written(rgb.quantize(8), "GIF"),
    "rgb.jpg": written(rgb, "JPEG"),
    "cmyk.jpg": written(rgb.convert("CMYK"), "JPEG"),
    "rgb.webp": written(rgb, "WEBP", lossless=True),
    "rgb.bmp": written(rgb, "BMP"),
    "rgb.tiff": written(rgb, "TIFF"),
  }
  for orientation in range(1, 9):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    found[f"rotated_{orientation}.jpg"] = written(rgb, "JPEG", exif=exif)
  return found


def text(rows, columns):
  """Placeholder text of an image with so many tiles, 4 tokens each."""
  ours = types.SimpleNamespace(
    fake_image_token="<fake_token_around_image>",
    image_token="<image>",
    global_image_tag="<global-img>",
    image_seq_len=4,
  )
  return processing_idefics3.Idefics3Processor.replace_image_token(
    ours, {"rows": [[rows]], "cols": [[columns]]}, 0
  )


def main():
  arrays, far = {}, {}
  for name, data in files().items():
    arrays[f"file/{name}"] = np.frombuffer(data, np.uint8)
  for name, ((slow, fast), options) in PROCESSORS.items():
    made, other = slow(**options), fast(**options)
    folder = ROOT / "processors" / name
    made.save_pretrained(folder)
    if slow is IDEFICS[0]:
      (folder / "config.json").write_text(json.dumps(MODEL) + "\n")
    more = {"return_row_col_info": True} if slow is IDEFICS[0] else {}
    far[name] = 0.0
    for file, data in files().items():
      image = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
      said = made(image, return_tensors="np", **more)
      key = f"{name}/{file}"
      arrays[f"{key}/pixels"] = pixels = said["pixel_values"]
      if more:
        arrays[f"{key}/tiles"] = np.array(
          [said["rows"][0][0], said["cols"][0][0]]
        )
      else:
        arrays[f"{key}/grid"] = said["image_grid_thw"][0]
      quick = other(image, return_tensors="pt")["pixel_values"].numpy()
      far[name] = max(far[name], float(np.abs(pixels - quick).max()))
  for rows, columns in ((0, 0), (1, 2), (3, 2)):
    arrays[f"text/{rows}x{columns}"] = np.array(text(rows, columns))
  np.savez_compressed(ROOT / "references.npz", **arrays)
  print("largest differences of torchvision's:", far)


if __name__ == "__main__":
  main()
