"""Writes the page and the figure of the experiment on lengths.

    python -m experiments.lengths.report --results=benchmarks/lengths --out=docs

Writes lengths.md and lengths.png into the folder --out, about the arms that
have ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.lengths import figure, page
from experiments.lengths.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("lengths")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
