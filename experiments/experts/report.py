"""Writes the page and the figure of the experiment on four domains.

    python -m experiments.experts.report --results=benchmarks/experts --out=docs

Writes experts.md and experts.png into the folder --out, about the arms that
have ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.experts import figure, page
from experiments.experts.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("experts")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
