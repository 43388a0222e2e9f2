"""Writes the page and the figure of the ladder of DAPO.

    python -m experiments.ladder.report --results=benchmarks/ladder --out=docs

Writes ladder.md and ladder.png into the folder --out, about the arms that have
ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.ladder import figure, page
from experiments.ladder.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("ladder")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
