"""Writes the page and the figure of the experiment on planted errors.

    python -m experiments.planted_errors.report \
        --results=benchmarks/planted_errors --out=docs

Writes planted_errors.md and planted_errors.png into the folder --out, about the
arms that have ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.planted_errors import figure, page
from experiments.planted_errors.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("planted_errors")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
