"""Writes the page and the figure of the league.

    python -m experiments.league.report --results=benchmarks/league --out=docs

Writes league.md and league.png into the folder --out, about the arms that have
ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.league import figure, page
from experiments.league.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("league")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
