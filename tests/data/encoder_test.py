"""Prompts with images: their text, their arrays, and what is left out."""

import json

import grain
import jax
import numpy as np
import pytest

from grpo_jax.data import (
  encoder,
  finding,
  formats,
  pipeline,
  quality,
  sources,
  streaming,
)
from grpo_jax.data.images import files, processors
from tests.data.images import pictures

TOKEN = "<|image_pad|>"
QWEN = processors.Processor(
  kind="qwen",
  patch=2,
  merge=2,
  frames=2,
  min_pixels=16,
  max_pixels=64,
  before="<|vision_start|>",
  after="<|vision_end|>",
)
TILES = processors.Processor(
  kind="idefics",
  patch=2,
  merge=2,
  longest_edge=8,
  tile=4,
  image_token="<image>",
)


class Characters:
  """Ids of characters; those of the token are one."""

  token, end_ids = TOKEN, (1,)

  def encode(self, text):
    parts = text.split(self.token)
    ids = [ord(x) for x in parts[0]]
    for part in parts[1:]:
      ids += [0, *map(ord, part)]
    return ids

  context_ids = encode

  def chat_text(self, messages, **options):
    (message,) = messages
    made = "".join(
      f"<|vision_start|>{self.token}<|vision_end|>"
      if part["type"] == "image"
      else part["text"]
      for part in message["content"]
    )
    return f"{message['role']}:{made};{options.get('more', '')}"


class Pictures(Characters):
  token = "<image>"


def read(folder):
  """Looks at images in this process."""

  def cuts(images, ours=QWEN):
    found = []
    for image in images:
      try:
        if image[0] == "bad":
          raise files.BadImage(image[1])
        found.append(ours.cut(files.pixels(image, str(folder))))
      except files.BadImage as error:
        found.append(str(error))
    return found

  return cuts


def image_encoder(folder="", max_images=2, max_patches=40):
  return encoder.ImageEncoder(QWEN, read(folder), max_images, max_patches)


def picture(height=4, width=8, seed=0):
  return files.value(np.asarray(pictures.picture(height, width, seed)))


def record(prompt, *images, **more):
  return {
    "prompt": prompt,
    "answer": "",
    "completion": None,
    "extras": {},
    "pictures": images,
    **more,
  }


def text_of(ids, token=TOKEN):
  return "".join(token if i == 0 else chr(i) for i in ids.tolist())


START, END = "<|vision_start|>", "<|vision_end|>"
TWO = START + 2 * TOKEN + END  # Of an image of 4 x 8 pixels: 2 x 4 patches.


@pytest.mark.parametrize(
  ("prompt", "count", "expected"),
  [
    ("What?", 1, f"Q: {TWO}What? A:"),
    ("What?", 2, f"Q: {TWO}{TWO}What? A:"),
    ("Is <image> it?", 1, f"Q: Is {TWO} it? A:"),
    ("<image> or <image>?", 2, f"Q: {TWO} or {TWO}? A:"),
    (f"{START}{TOKEN}{END}What?", 1, None),
    ("What?", 0, "Q: What? A:"),
  ],
)
def test_images_stand_where_their_markers_are(prompt, count, expected):
  encode = encoder.Encoder(Characters(), "Q: {prompt} A:", {}, image_encoder())
  (made,) = encode.prompts([record(prompt, *[picture()] * count)])
  if expected is None:  # Its own token stands for an image, as it is.
    expected = f"Q: {START}{START}{2 * TOKEN}{END}{END}What? A:"
  assert text_of(made.ids) == expected
  assert len(made.cuts) == count
  np.testing.assert_array_equal(
    encode.prompt(record(prompt, *[picture()] * count)), made.ids
  )


def test_a_chat_template_is_given_parts():
  encode = encoder.Encoder(Characters(), "chat", {"more": "x"}, image_encoder())
  (made,) = encode.prompts([record("Is <image> it?", picture())])
  assert text_of(made.ids) == f"user:Is {TWO} it?;x"


def test_tiles_are_written_with_their_places():
  tiles = encoder.ImageEncoder(
    TILES, lambda images: read("")(images, TILES), max_images=9, max_patches=99
  )
  encode = encoder.Encoder(Pictures(), "{prompt}", {}, tiles)
  (made,) = encode.prompts([record("A <image>!", picture(4, 8))])
  around, token = "<fake_token_around_image>", "<image>"
  assert text_of(made.ids, token) == (
    f"A {around}<row_1_col_1>{token}{around}<row_1_col_2>{token}\n"
    f"\n{around}<global-img>{token}{around}!"
  )
  arrays = tiles.arrays([made.cuts, ()])
  assert arrays.grid[0, :4].tolist() == [[2, 2], [2, 2], [2, 2], [0, 0]]
  assert arrays.image[0, :13].tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [-1]
  assert not arrays.grid[1].any()
  assert (arrays.image[1] == -1).all()


def test_arrays_have_fixed_sizes():
  ours = image_encoder(max_images=3, max_patches=20)
  one, other = ours.cuts(
    [record("", picture(4, 8), picture(8, 4)), record("", picture(4, 4))]
  )
  made = ours.arrays([one, other])
  assert jax.tree.map(lambda x: (x.shape, x.dtype.name), made) == (
    type(made)(
      ((2, 20, 24), "float32"),
      ((2, 20), "int32"),
      ((2, 20, 2), "int32"),
      ((2, 3, 2), "int32"),
    )
  )
  assert made.grid.tolist() == [
    [[2, 4], [4, 2], [0, 0]],
    [[2, 2], [0, 0], [0, 0]],
  ]
  assert made.image[0].tolist() == [0] * 8 + [1] * 8 + [-1] * 4
  np.testing.assert_array_equal(
    made.patches[0, :8], QWEN.patches(one[0].pixels)
  )
  np.testing.assert_array_equal(
    made.patches[0, 8:16], QWEN.patches(one[1].pixels)
  )
  assert not made.patches[0, 16:].any()
  np.testing.assert_array_equal(made.place[0, 8:16], QWEN.places((4, 2)))


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (
      record("<image> <image>", picture()),
      "its prompt has 2 markers '<image>', and it has 1 images",
    ),
    (
      record("<image>"),
      "its prompt has 1 markers '<image>', and it has 0 images",
    ),
    (
      record(f"<image> {TOKEN}", picture()),
      f"its prompt shows 2 times {TOKEN!r}, and it has 1 images",
    ),
    (
      record("", *[picture()] * 3),
      "it has 3 images, tiles among them; there is room for 2"
      " (config.data.max_images)",
    ),
    (
      record("", picture(8, 8), picture(8, 8)),
      "its images have 32 patches; there is room for 30"
      " (config.data.max_patches)",
    ),
    (
      record("", picture(), ["path", "gone.png"]),
      "image 2 of 2 ('gone.png'): there is no file 'gone.png'",
    ),
    (
      record("", ["bad", "found the image 3; need a path"]),
      "image 1 of 1: found the image 3; need a path",
    ),
    (
      record("", picture(1, 201)),
      "image 1 of 1: it has 201 x 1 pixels; one side may be at most 200 times"
      " the other",
    ),
  ],
)
def test_what_is_said_of_records_that_cannot_be_shown(given, message, tmp_path):
  encode = encoder.Encoder(
    Characters(), "{prompt}", {}, image_encoder(tmp_path, max_patches=30)
  )
  (made,) = encode.prompts([given])
  assert isinstance(made, encoder.Unusable)
  assert made == message
  with pytest.raises(ValueError, match="Take it out, or correct its images"):
    encode.prompt(given)


def test_a_tokenizer_without_the_token():
  with pytest.raises(ValueError, match="the tokenizer has no token"):
    encoder.Encoder(Pictures(), "{prompt}", {}, image_encoder())


# --- streams -----------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
  """Ten records: numbers 2, 5 and 6 have broken images."""
  lines = []
  for number in range(10):
    name = f"{number}.png"
    pictures.picture(4, 8, number).save(tmp_path / name)
    lines.append({"prompt": f"{number}?", "answer": str(number), "pic": name})
    lines[-1]["completion"] = f"{number}."
  (tmp_path / "2.png").unlink()
  (tmp_path / "5.png").write_bytes(pictures.BROKEN["truncated.png"])
  lines[6]["pic"] = ["6.png", "6.png", "6.png"]
  text = "\n".join(map(json.dumps, lines))
  (tmp_path / "data.jsonl").write_text(text)
  return tmp_path


def source_of(folder, kind=sources.JsonlSource):
  return kind(folder / "data.jsonl", images=("pic",))


def stream(folder, source=None, make=pipeline.prompt_stream, **options):
  encode = encoder.Encoder(Characters(), "{prompt}", {}, image_encoder(folder))
  usual = {"batch_size": 4, "max_prompt_len": 60, "seed": 3, "pad_id": 0}
  return make(source or source_of(folder), encode, **usual | options)


def answers(batch):
  return [record["answer"] for record in batch.records]


def assert_same(one, other):
  jax.tree.map(np.testing.assert_array_equal, one.prompts, other.prompts)
  assert one.records == other.records
  assert one[2:] == other[2:]


def test_broken_images_are_replaced_and_counted(folder, caplog):
  batches = stream(folder)
  found = [next(batches) for _ in range(10)]
  drawn = {x for batch in found for x in answers(batch)}
  assert drawn == {*"0134789"}
  # Four epochs, in which three records of ten are broken.
  assert sum(batch.num_unusable for batch in found) >= 4 * 3
  text = caplog.text
  for number, why in (
    (2, "image 1 of 1 ('2.png'): there is no file '2.png'"),
    (5, "image 1 of 1 ('5.png'): it cannot be decoded: "),
    (6, "it has 3 images, tiles among them; there is room for 2"),
  ):
    line = f"config.data: left out record {number}: {why}"
    assert text.count(line) == 1
  for batch in found:
    for row, one in enumerate(batch.records):
      number = int(one["answer"])
      (cut,) = image_encoder(folder).cuts([one])[0]
      np.testing.assert_array_equal(
        batch.prompts.images.patches[row, :8], QWEN.patches(cut.pixels)
      )
      assert batch.numbers[row] == number
      slots = batch.prompts.tokens[row][batch.prompts.mask[row]]
      assert (slots == 0).sum() == 2


@pytest.mark.parametrize(
  "kind", [sources.JsonlSource, streaming.StreamedJsonlSource]
)
def test_a_stream_goes_on_where_it_was(folder, kind):
  whole = stream(folder, source_of(folder, kind))
  batches = [next(whole) for _ in range(6)]
  again = stream(folder, source_of(folder, kind))
  next(again)
  state = json.loads(json.dumps(again.get_state()))
  later = stream(folder, source_of(folder, kind))
  later.set_state(state)
  for batch in batches[1:]:
    assert_same(batch, next(later))


def test_processes_make_their_own_rows(folder):
  whole, second = stream(folder), stream(folder, rows=[1, 3])
  for _ in range(4):
    batch, rows = next(whole), next(second)
    assert answers(rows) == answers(batch)[1::2]
    np.testing.assert_array_equal(
      rows.prompts.images.patches, batch.prompts.images.patches[1::2]
    )


def test_placed_prompts_are_those_of_the_stream(folder):
  batches = stream(folder)
  made = stream(folder, make=pipeline.PlacedPrompts)
  for first in (0, 4):
    assert_same(next(batches), made.take(np.arange(first, first + 4)))


def test_supervised_batches_have_images(folder):
  batches = stream(
    folder, make=pipeline.supervised_stream, max_completion_len=4, end_id=1
  )
  found = next(batches)
  assert found.images.patches.shape == (4, 40, 24)
  assert (found.images.grid[:, 0] == (2, 4)).all()
  numbers = [chr(row[0]) for row in found.tokens]
  prompts = [
    text_of(row[mask])
    for row, mask in zip(found.prompt_tokens, found.prompt_mask, strict=True)
  ]
  assert prompts == [f"{TWO}{n}?" for n in numbers]
  total = found.num_unusable + sum(next(batches).num_unusable for _ in range(4))
  assert total > 0


def test_long_prompts_are_left_out_too(folder):
  source = source_of(folder)
  records = [
    {**one, "prompt": one["prompt"] * (40 if one["answer"] == "3" else 1)}
    for one in (source[i] for i in range(10))
  ]
  batches = stream(folder, records)
  drawn = {x for _ in range(8) for x in answers(next(batches))}
  assert drawn == {*"014789"}


def test_all_images_are_broken(folder, monkeypatch):
  monkeypatch.setattr(finding, "_MAX_ATTEMPTS", 20)
  for path in folder.glob("*.png"):
    path.unlink()
  with pytest.raises(ValueError, match="the images of 20 records in a row"):
    next(stream(folder))


def test_an_evaluation_leaves_nothing_out(folder):
  encode = encoder.Encoder(Characters(), "{prompt}", {}, image_encoder(folder))
  options = {"batch_size": 2, "max_prompt_len": 60, "pad_id": 0}
  ((batch, count),) = pipeline.evaluation_batches(
    source_of(folder), encode, 2, **options
  )
  assert count == 2
  assert (batch.prompts.images.grid[:, 0] == (2, 4)).all()
  with pytest.raises(ValueError, match="prompt 2: image 1") as caught:
    pipeline.evaluation_batches(source_of(folder), encode, 3, **options)
  assert str(caught.value) == (
    "config.data: held-out prompt 2: image 1 of 1 ('2.png'): there is no file"
    " '2.png'. Correct it, or take it out of the file. (Left out here, the"
    " score would be that of another set.)"
  )


# --- records -----------------------------------------------------------------


def test_fields_of_images():
  convert = formats.conversion("gsm8k", images=("a", "b"))
  row = {"question": "?", "answer": "x #### 1", "a": "a.png", "b": None}
  assert convert(row)["pictures"] == (["path", "a.png"],)
  found = convert({**row, "b": ["c.png", {"path": "d.png"}, 3]})["pictures"]
  assert found[:3] == (["path", "a.png"], ["path", "c.png"], ["path", "d.png"])
  assert found[3][0] == "bad"
  assert "found the image 3; need a path" in found[3][1]
  with pytest.raises(ValueError, match="found no field 'b'; the row has"):
    convert({"question": "?", "answer": "#### 1", "a": "a.png"})


def test_records_that_differ_in_their_images_are_told_apart():
  one, other = record("?", ["path", "a"]), record("?", ["path", "b"])
  assert quality.key(one) != quality.key(other)
  text = {**record("?")}
  without = {name: x for name, x in text.items() if name != "pictures"}
  assert quality.key(text) == quality.key(without)


def test_iterators_are_those_of_grain(folder):
  assert isinstance(stream(folder), grain.DatasetIterator)
