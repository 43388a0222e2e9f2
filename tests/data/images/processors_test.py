"""Patches and placeholders against those of transformers, bit for bit.

`references.npz` has image files, and what the processors of transformers that
resize with Pillow make of them; scripts/make_image_references.py wrote it.
"""

import functools
import json
import pathlib

import numpy as np
import pytest

from grpo_jax.data.images import files, processors

HERE = pathlib.Path(__file__).parent
NAMES = ("qwen2_5_vl", "qwen3_vl", "smolvlm", "smolvlm_whole", "smolvlm_small")


@functools.cache
def references():
  with np.load(HERE / "references.npz") as archive:
    return {name: archive[name] for name in archive}


def images():
  """Name -> pixels."""
  return {
    name.removeprefix("file/"): files.pixels(files.value(data.tobytes()), "")
    for name, data in references().items()
    if name.startswith("file/")
  }


def processor(name, **options):
  return processors.from_folder(HERE / "processors" / name, options)


def in_place(ours, cut):
  """The tiles of a cut as images, [tiles, 3, height, width] float32."""
  made = ours.patches(cut.pixels)
  tiles, start, size = [], 0, ours.patch
  for rows, columns in cut.grids:
    tile = np.full((3, rows * size, columns * size), np.nan, np.float32)
    for row, column in ours.places((rows, columns)):
      patch = made[start].reshape(3, ours.frames, size, size)
      start += 1
      top, left = row * size, column * size
      tile[:, top : top + size, left : left + size] = patch[:, 0]
    tiles.append(tile)
  assert start == len(made)
  return np.stack(tiles)


@pytest.mark.parametrize("name", NAMES)
def test_pixels_are_those_of_transformers(name):
  ours, found = processor(name), images()
  assert len(found) == 27
  for file, pixels in found.items():
    cut = ours.cut(pixels)
    theirs = references()[f"{name}/{file}/pixels"]
    if ours.kind == "qwen":
      np.testing.assert_array_equal(ours.patches(cut.pixels), theirs)
      grid = references()[f"{name}/{file}/grid"]
      assert ((1, *cut.grids[0]) == grid).all()
    else:
      np.testing.assert_array_equal(in_place(ours, cut), theirs[0])
      tiles = references()[f"{name}/{file}/tiles"]
      assert ((cut.rows, cut.columns) == tiles).all()


def test_blocks_are_adjacent():
  ours = processor("qwen2_5_vl")
  places = ours.places((4, 6)).reshape(-1, 4, 2)
  assert places[0].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
  assert places[1].tolist() == [[0, 2], [0, 3], [1, 2], [1, 3]]
  assert places[3].tolist() == [[2, 0], [2, 1], [3, 0], [3, 1]]
  assert len({tuple(x) for x in places.reshape(-1, 2).tolist()}) == 24


def test_each_patch_is_there_for_two_frames():
  ours = processor("qwen2_5_vl")
  made = ours.patches(np.arange(48, dtype=np.uint8)[None])
  assert made.shape == (1, ours.features) == (1, 96)
  frames = made.reshape(3, 2, 16)
  np.testing.assert_array_equal(frames[:, 0], frames[:, 1])
  # (level / 255 - mean) / deviation, of the second channel.
  expected = (np.arange(16, 32) / 255 - 0.4578275) / 0.26130258
  np.testing.assert_allclose(frames[1, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("tiles", [(0, 0), (1, 2), (3, 2)])
def test_the_text_of_tiles_is_that_of_transformers(tiles):
  ours = processor("smolvlm")
  grids = ((4, 4),) * (tiles[0] * tiles[1] + 1)
  cut = processors.PatchCut(np.zeros((0, 12), np.uint8), grids, *tiles)
  rows, columns = tiles
  expected = str(references()[f"text/{rows}x{columns}"])
  assert ours.placeholders(cut) == expected
  assert expected.count("<image>") == 4 * len(grids)


def test_an_image_has_a_placeholder_for_each_block():
  ours = processor("qwen3_vl")
  cut = ours.cut(np.zeros((20, 30, 3), np.uint8))
  rows, columns = cut.grids[0]
  assert ours.placeholders(cut) == "<|image_pad|>" * (rows * columns // 4)


def test_sides_that_are_too_different():
  ours = processor("qwen2_5_vl")
  assert ours.size(200, 1)
  with pytest.raises(files.BadImage) as caught:
    ours.size(10, 20_000)
  assert str(caught.value) == (
    "it has 20000 x 10 pixels; one side may be at most 200 times the other"
  )
  # Tiles have no such limit.
  cut = processor("smolvlm").cut(np.zeros((10, 2000, 3), np.uint8))
  assert (cut.rows, cut.columns) == (1, 3)


def test_options_take_the_place_of_the_files():
  ours = processor("qwen2_5_vl", min_pixels=64, max_pixels=64)
  assert ours.cut(np.zeros((90, 90, 3), np.uint8)).grids == ((2, 2),)
  small = processor("smolvlm", longest_edge=16, tile=16, splits=False)
  assert small.cut(np.zeros((9, 30, 3), np.uint8)).grids == ((8, 8),)
  with pytest.raises(ValueError, match=r"image_options has \['tile'\]"):
    processor("qwen2_5_vl", tile=8)
  with pytest.raises(ValueError, match="min_pixels is 900; needs a whole"):
    processor("qwen2_5_vl", min_pixels=900)
  with pytest.raises(ValueError, match="tiles of 10 pixels cannot be cut"):
    processor("smolvlm", tile=10)
  with pytest.raises(ValueError, match="min_pixels is '8'; needs a whole"):
    processor("qwen2_5_vl", min_pixels="8")


def described(tmp_path, name="preprocessor_config.json", **fields):
  made = json.loads(
    (HERE / "processors/qwen2_5_vl/preprocessor_config.json").read_text()
  )
  (tmp_path / name).write_text(json.dumps({**made, **fields}))
  return tmp_path


@pytest.mark.parametrize(
  "fields",
  [
    {"image_processor_type": "Qwen2VLImageProcessorFast"},
    {"size": {"min_pixels": 128, "max_pixels": 512}},
    {"min_pixels": 128, "max_pixels": 512, "size": {"longest_edge": 99}},
  ],
  ids=("fast", "old size", "pixels"),
)
def test_other_ways_to_write_the_same(tmp_path, fields):
  found = processors.from_folder(described(tmp_path, **fields))
  assert found == processor("qwen2_5_vl")


def test_a_processor_inside_of_another_file(tmp_path):
  path = described(tmp_path) / "preprocessor_config.json"
  inner = json.loads(path.read_text())
  path.unlink()
  with pytest.raises(FileNotFoundError, match=r"config\.data\.image_processor"):
    processors.from_folder(tmp_path)
  (tmp_path / "processor_config.json").write_text(
    json.dumps({"image_processor": inner, "processor_class": "x"})
  )
  assert processors.from_folder(tmp_path) == processor("qwen2_5_vl")


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"image_processor_type": "CLIPImageProcessor"}, "has the processor 'CLIP"),
    ({"do_resize": False}, "has do_resize=False; needs true"),
    ({"patch_size": 0}, "patch is 0; needs a whole number from 1 to 64"),
    ({"image_mean": [0.5]}, "mean is .0.5,.; needs three numbers"),
    ({"image_std": [0.5, 0.5, 0.0]}, "needs numbers above 0"),
    ({"size": {"longest_edge": "many"}}, "max_pixels is 'many'; needs a"),
  ],
)
def test_what_is_not_followed(tmp_path, fields, message):
  with pytest.raises(ValueError, match=message):
    processors.from_folder(described(tmp_path, **fields))


def test_files_that_are_no_json(tmp_path):
  for text, message in (("{", "is not JSON"), ("[1]", "needs an object")):
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
      processors.from_folder(tmp_path)


def test_what_travels_makes_the_same_processor():
  ours = processor("smolvlm")
  plain = json.loads(json.dumps(ours.described()))
  assert processors.remade(plain) == ours
