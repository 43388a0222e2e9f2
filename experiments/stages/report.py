"""Writes the page and the figure of the experiment on stages.

    python -m experiments.stages.report --root=runs/stages --out=docs

Writes sft_or_rl.md and sft_or_rl.png into the folder --out, about whatever
`experiments.stages.run` has ended in --root. Needs the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.stages import page
from experiments.stages.results import Results
from experiments.sweeps import cells as cells_lib

_ROOT = flags.DEFINE_string("root", "runs/stages", "Folder of all runs.")
_OUT = flags.DEFINE_string("out", "docs", "Folder of page and figure.")


def main(argv: Sequence[str]) -> int:
  """Writes both, and says where they are."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  out = flags_lib.existing_folder(_OUT)
  results = Results(root)
  if not results.arms:
    raise FileNotFoundError(
      f"--root={_ROOT.value}: nothing has ended there; run"
      " `python -m experiments.stages.run` first."
    )
  written, drawn = out / "sft_or_rl.md", out / "sft_or_rl.png"
  page.plot(drawn, results)
  written.write_text(page.markdown(results), encoding="utf-8")
  print(f"{written}, {drawn}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
