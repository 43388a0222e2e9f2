"""Writes the page of the experiment on judges.

    python -m experiments.judges.report --results=benchmarks/judges --out=docs

Writes judges.md into the folder --out, about the arms that have ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.judges import page
from experiments.judges.results import Results
from experiments.sweeps import commands
from grpo_jax.cli import flags as flags_lib

_REPORT = commands.Report("judges", "the page")


def main(argv: Sequence[str]) -> int:
  """Writes the page, and prints its path."""
  del argv
  return _REPORT.write(Results, page.markdown)


if __name__ == "__main__":
  flags_lib.run(main)
