"""Writes a small task for an agent that searches, with the files of a run.

    python -m experiments.rewards.search_task --out=runs/search_task

A question asks for the code of a name, which only a passage has:

    prompt    Code of "BFK"?
    answer    47
    passage   BFK: the code is 47.

The folder gets passages.jsonl; train.jsonl and test.jsonl, with different
names; demonstrations.jsonl for the warm start; and the folder tokenizer, with a
small tokenizer and a chat template in the format of Qwen. The bytes are the
same each time.

The teacher of the warm start is sloppy: of three episodes it guesses in one; in
another it writes an unreadable call and then guesses; only in the third it
searches and reads the answer. So the warm start learns to write calls and to
copy names and codes. The reward decides which habit pays.
"""

from __future__ import annotations

import pathlib

from absl import app, flags

from experiments.rewards import search_problems

_OUT = flags.DEFINE_string("out", None, "Folder to write.", required=True)


def main(argv: list[str]) -> None:
  """Writes the files to --out."""
  del argv
  search_problems.write(pathlib.Path(_OUT.value))


if __name__ == "__main__":
  app.run(main)
