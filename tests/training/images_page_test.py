"""Messages of docs/images.md are those of the code, and there are no others."""

import os
import pathlib
import re

import numpy as np

from grpo_jax.data import formats
from grpo_jax.data.images import files, processors
from grpo_jax.training.problem import images
from tests.data import encoder_test
from tests.data.images import pictures
from tests.training import pictures as runs

PAGE = pathlib.Path(__file__).parents[2] / "docs/images.md"


def documented():
  """Expression -> the message of the page that it stands for."""
  rows = PAGE.read_text().partition("<!-- Compared")[2].partition("\n\n")[0]
  cells = [row.split(" | ")[0] for row in rows.splitlines()[3:]]
  found = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
  assert len(found) == 21
  return {
    ".+".join(map(re.escape, text.split("…"))).replace(
      "png;base64,.+'", "png;base64,…'"
    ): text
    for text in found
  }


def said(tmp_path):
  """Messages of all kinds, from the code."""
  folder = tmp_path / "images"
  folder.mkdir()
  (tmp_path / "outside.png").write_bytes(b"")
  os.mkfifo(folder / "pipe.png")
  for name, data in pictures.BROKEN.items():
    (folder / name).write_bytes(data)
  with (folder / "sparse.png").open("wb") as file:
    file.truncate(files.MAX_BYTES + 1)

  def message(image, where=str(folder)):
    try:
      encoder_test.QWEN.cut(files.pixels(image, where))
    except files.BadImage as error:
      return str(error)
    raise AssertionError(image)

  made = [
    message(["path", name])
    for name in (
      *(*pictures.BROKEN, "gone.png", "../outside.png", "pipe.png"),
      "sparse.png",
    )
  ]
  made += [message(["path", "a"], ""), message(["bytes", "?"])]
  made += [message(encoder_test.picture(1, 300))]
  (_, sent) = images._unsent(["path", "a"]), "A" * 2**24
  made += [images._unsent(["bytes", sent])]
  convert = formats.conversion(images=("a",))
  made += [convert({"prompt": "", "a": 3})["pictures"][0][1]]
  processor = processors.from_folder(runs.PROCESSORS / "qwen2_5_vl")
  call = images._Call([0, 1], processor)
  call.fail(0, "timeout", "")
  call.fail(1, "worker_died", "")
  made += call.results
  encode = encoder_test.encoder.Encoder(
    encoder_test.Characters(),
    "{prompt}",
    {},
    encoder_test.image_encoder(max_patches=9),
  )
  picture = encoder_test.picture()
  record = encoder_test.record
  made += encode.prompts(
    [
      *(record("<image>"), record("", picture, picture)),
      *(
        record("", *[picture] * 3),
        record(f"<image>{encoder_test.TOKEN}", picture),
      ),
    ]
  )
  assert all(isinstance(text, str) for text in made)
  return made


def test_messages_are_those_of_the_page(tmp_path):
  known, found = documented(), said(tmp_path)
  matches = {
    text: [one for one in known if re.fullmatch(one, text, re.DOTALL)]
    for text in found
  }
  assert all(len(rows) == 1 for rows in matches.values()), matches
  assert {rows[0] for rows in matches.values()} == known.keys()


def test_figures_of_the_page():
  page = " ".join(PAGE.read_text().split())
  assert f"at most {files.MAX_BYTES} are read" in page
  assert f"at most {files.MAX_SENT_BYTES // 2**20} MiB of them" in page
  assert f"{images.TIMEOUT_S:g} seconds for an image" in page
  assert ", ".join(files.FORMATS) in page
  usual = encoder_test.processors.Processor(
    kind="qwen", patch=14, merge=2, frames=2
  )
  assert f"where F is {usual.features} for Qwen2.5-VL" in page
  assert np.prod((1024, usual.features, 4)) == 4816896
