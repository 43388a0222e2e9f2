"""Writes the page and the figure of the experiment on entropy.

    python -m experiments.entropy.report --results=benchmarks/entropy --out=docs

Writes entropy.md and entropy.png into the folder --out, about the arms that
have ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.entropy import figure, page
from experiments.entropy.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("entropy")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
