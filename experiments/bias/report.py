"""Writes the page and the figure of the experiment on one flipped example.

    python -m experiments.bias.report --results=benchmarks/bias --out=docs

Writes bias.md and bias.png into the folder --out, about the arms that have
ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.bias import figure, page
from experiments.bias.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("bias")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
