r"""Writes the page and the figure of the experiment on staleness.

    python -m experiments.staleness.report --results=benchmarks/staleness \
        --out=docs

Writes staleness.md and staleness.png into the folder --out, about whatever has
ended. Needs the extra `plot`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.staleness import figure, page
from experiments.staleness.results import Results

_RESULTS = flags.DEFINE_string(
  "results", "benchmarks/staleness", "Of ARM.json."
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
      " `python -m experiments.staleness.run` first."
    )
  written, drawn = out / "staleness.md", out / "staleness.png"
  figure.plot(drawn, results)
  written.write_text(page.markdown(results), encoding="utf-8")
  print(f"{written}, {drawn}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
