"""Writes the page and the figure of the experiment on objectives.

    python -m experiments.objectives.report --root=runs/objectives --out=docs

Writes objectives.md and objectives.png into the folder --out, about the arms
that `experiments.objectives.run` has ended in --root. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments.objectives import figure, page
from experiments.objectives.results import Results
from experiments.sweeps import cells as cells_lib
from grpo_jax.cli import flags as flags_lib

_ROOT = flags.DEFINE_string("root", "runs/objectives", "Folder of all runs.")
_OUT = flags.DEFINE_string("out", "docs", "Folder of page and figure.")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  out = flags_lib.existing_folder(_OUT)
  results = Results(root)
  if not results.bandits and not results.arms:
    raise FileNotFoundError(
      f"--root={_ROOT.value}: nothing has ended there; run"
      " `python -m experiments.objectives.run` first."
    )
  written, drawn = out / "objectives.md", out / "objectives.png"
  figure.plot(drawn, results)
  written.write_text(page.markdown(results), encoding="utf-8")
  print(f"{written}, {drawn}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
