"""Writes pages and figures again, and names those whose bytes have changed."""

from __future__ import annotations

import pathlib
import tempfile

from experiments.papers.registry import Experiment
from experiments.sweeps import made

SAME = "same bytes"


def again(experiment: Experiment, write: bool) -> dict[str, str]:
  """Writes outputs from records; path -> how it compares with that in git.

  With `write`, those that differ replace the old ones.

  Raises:
    ImportError: matplotlib is not installed.
    FileNotFoundError: The experiment has no records.
  """
  assert experiment.write is not None
  states = {}
  with tempfile.TemporaryDirectory() as folder:
    out = pathlib.Path(folder)
    experiment.write(out)
    for name in experiment.outputs:
      new, old = out / pathlib.Path(name).name, made.ROOT / name
      if not new.exists():
        state = "not written: there are no records for it"
      elif not old.exists():
        state = "new"
      elif new.read_bytes() == old.read_bytes():
        state = SAME
      else:
        state = f"differs: {_first(old, new)}"
      if write and state.startswith(("new", "differs")):
        old.write_bytes(new.read_bytes())
      states[name] = state
  return states


def _first(old: pathlib.Path, new: pathlib.Path) -> str:
  """Describes the first difference between two files."""
  if old.suffix != ".md":
    sizes = old.stat().st_size, new.stat().st_size
    return f"a picture of {sizes[0]} bytes, now {sizes[1]}"
  before = old.read_text("utf-8").splitlines()
  after = new.read_text("utf-8").splitlines()
  pairs = zip(before, after, strict=False)
  for number, (one, other) in enumerate(pairs, start=1):
    if one != other:
      return f"line {number} was {one!r}, now {other!r}"
  return f"{len(before)} lines, now {len(after)}"
