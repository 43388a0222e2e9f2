"""Writes the small GSM8K sample that the tests and a first try-out read.

  TFDS_DATA_DIR=... python scripts/make_gsm8k_sample.py

Takes the first questions of each TFDS split, with the fields and the layout
of the original `question`/`answer` files (github.com/openai/grade-school-math).
"""

import json
import pathlib

import tensorflow_datasets as tfds
from absl import app, flags

_OUTPUT_DIR = flags.DEFINE_string(
  "output_dir", "tests/data/gsm8k_sample", "Folder to write to."
)
_NUM_QUESTIONS = flags.DEFINE_integer(
  "num_questions", 64, "Questions of each split."
)


def main(argv):
  del argv
  for split in ("train", "test"):
    rows = tfds.data_source("gsm8k", split=f"{split}[:{_NUM_QUESTIONS.value}]")
    lines = [
      json.dumps(
        {field: row[field].decode() for field in ("question", "answer")},
        ensure_ascii=False,
      )
      for row in rows
    ]
    path = pathlib.Path(_OUTPUT_DIR.value) / f"{split}.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path}: {len(lines)} questions, {path.stat().st_size} bytes")


if __name__ == "__main__":
  app.run(main)
