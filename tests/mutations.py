"""Bugs that are planted one at a time, and the tests that must fail with them.

Each replaces one piece of one file. `scripts/mutate.py` applies them and runs
the tests beside them, which shows whether the tests can still fail. They are in
`mutations.txt`: the file after "@", the bug after "#", the lines that go after
"-", those that come after "+", and the tests.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import NamedTuple

_FILE = pathlib.Path(__file__).with_name("mutations.txt")


class Mutation(NamedTuple):
  """Bug: `old`, which occurs once in the file at `path`, becomes `new`."""

  bug: str  # What is wrong then; a sentence.
  path: str
  old: str
  new: str
  tests: str  # Arguments of pytest; at least one test must fail.


def _read(text: str) -> Iterator[Mutation]:
  path = bug = ""
  pieces: dict[str, list[str]] = {}
  for line in text.splitlines():
    sign, rest = line[:1], line[2:]
    if sign == "@":
      path = rest
    elif sign == "#":
      bug, pieces = rest, {"-": [], "+": []}
    elif sign in pieces:
      pieces[sign].append(rest)
    else:
      yield Mutation(bug, path, *map("\n".join, pieces.values()), line)


MUTATIONS = [*_read(_FILE.read_text("utf-8"))]
