r"""Writes the page and the figure of the experiment on rounded rollouts.

    python -m experiments.rounding.report --results=benchmarks/rounding \
        --out=docs

Writes rounding.md and rounding.png into the folder --out, about the arms that
have ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.rounding import figure, page
from experiments.rounding.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("rounding")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
