"""Writes the page of the experiment on judges.

    python -m experiments.judges.report --results=benchmarks/judges --out=docs

Writes judges.md into the folder --out, about whatever has ended.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.judges import page
from experiments.judges.results import Results

_RESULTS = flags.DEFINE_string("results", "benchmarks/judges", "Of ARM.json.")
_OUT = flags.DEFINE_string("out", "docs", "Folder of the page.")


def main(argv: Sequence[str]) -> int:
  """Writes the page, and says where it is."""
  del argv
  out = flags_lib.existing_folder(_OUT)
  results = Results(pathlib.Path(_RESULTS.value))
  if not results.arms:
    raise FileNotFoundError(
      f"--results={_RESULTS.value}: nothing has ended there; run"
      " `python -m experiments.judges.run` first."
    )
  written = out / "judges.md"
  written.write_text(page.markdown(results), encoding="utf-8")
  print(written)
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
