"""Writes the page and the figure of the experiment on stages.

    python -m experiments.stages.report --results=benchmarks/stages --out=docs

Writes sft_or_rl.md and sft_or_rl.png into the folder --out, about the runs
whose numbers `experiments.stages.run` has left in --results. Needs the extra
`plot`.
"""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from experiments.stages import page
from experiments.stages.results import Results
from grpo_jax.cli import flags as flags_lib

_RESULTS = flags.DEFINE_string(
  "results", "benchmarks/stages", "Folder of the files NAME.json."
)
_OUT = flags.DEFINE_string("out", "docs", "Folder of page and figure.")


def main(argv: Sequence[str]) -> int:
  """Writes page and figure, and prints their paths."""
  del argv
  folder, out = map(flags_lib.existing_folder, (_RESULTS, _OUT))
  results = Results(folder)
  if not results.arms:
    raise FileNotFoundError(
      f"--results={_RESULTS.value}: nothing has ended there; run"
      " `python -m experiments.stages.run` first."
    )
  written, drawn = out / "sft_or_rl.md", out / "sft_or_rl.png"
  page.plot(drawn, results)
  written.write_text(page.markdown(results), encoding="utf-8")
  print(f"{written}, {drawn}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
