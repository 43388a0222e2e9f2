"""Writes the page and the figure of the experiment on images.

    python -m experiments.vision.report --results=benchmarks/vision --out=docs

Writes vision_generalises.md and vision_generalises.png into the folder --out,
about the arms that have ended. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.sweeps import commands
from experiments.vision import figure, page
from experiments.vision.results import Results
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("vision", page="vision_generalises")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  return _REPORT.write(Results, page.markdown, figure.plot)


if __name__ == "__main__":
  flags_lib.run(main)
