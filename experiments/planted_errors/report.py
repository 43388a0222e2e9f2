"""Writes the page and the figure of the experiment on planted errors.

    python -m experiments.planted_errors.report \
        --results=benchmarks/planted_errors --out=docs

Writes planted_errors.md and planted_errors.png into the folder --out, about
whatever has ended. Needs the extra `plot`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.planted_errors import figure, page
from experiments.planted_errors.results import Results

_RESULTS = flags.DEFINE_string(
  "results", "benchmarks/planted_errors", "Folder of ARM.json."
)
_OUT = flags.DEFINE_string("out", "docs", "Folder of page and figure.")


def main(argv: Sequence[str]) -> int:
  """Writes both, and says where they are."""
  del argv
  out = flags_lib.existing_folder(_OUT)
  results = Results(pathlib.Path(_RESULTS.value))
  if not results.arms:
    raise FileNotFoundError(
      f"--results={_RESULTS.value}: nothing has ended there; run"
      " `python -m experiments.planted_errors.run` first."
    )
  written, drawn = out / "planted_errors.md", out / "planted_errors.png"
  figure.plot(drawn, results)
  written.write_text(page.markdown(results), encoding="utf-8")
  print(f"{written}, {drawn}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
