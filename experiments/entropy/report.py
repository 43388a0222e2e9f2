"""Writes the page and the figure of the experiment on entropy.

    python -m experiments.entropy.report --results=benchmarks/entropy --out=docs

Writes entropy.md and entropy.png into the folder --out, about whatever has
ended. Needs the extra `plot`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.entropy import figure, page
from experiments.entropy.results import Results

_RESULTS = flags.DEFINE_string("results", "benchmarks/entropy", "Of ARM.json.")
_OUT = flags.DEFINE_string("out", "docs", "Folder of page and figure.")


def main(argv: Sequence[str]) -> int:
  """Writes both, and says where they are."""
  del argv
  out = flags_lib.existing_folder(_OUT)
  results = Results(pathlib.Path(_RESULTS.value))
  if not results.arms:
    raise FileNotFoundError(
      f"--results={_RESULTS.value}: nothing has ended there; run"
      " `python -m experiments.entropy.run` first."
    )
  written, drawn = out / "entropy.md", out / "entropy.png"
  figure.plot(drawn, results)
  written.write_text(page.markdown(results), encoding="utf-8")
  print(f"{written}, {drawn}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
