"""Command that writes a table and a figure about published estimators.

    python -m experiments.estimators.report
    python -m experiments.estimators.report --algorithms=grpo,rloo --out=/tmp

It enumerates every group of completions of two small tabular policies, so the
means and variances of gradients are exact. It writes estimators.md and
estimators.png into the folder --out, in one to three minutes on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
from absl import flags

from experiments.estimators import figure, measurements, page
from grpo_jax import algorithms
from grpo_jax.cli import flags as flags_lib

_OUT = flags.DEFINE_string("out", "docs", "Folder of the two files.")
_ALGORITHMS = flags.DEFINE_list(
  "algorithms", [], "Only these; by default every one with a policy gradient."
)


def main(argv: Sequence[str]) -> int:
  """Measures, writes page and figure, and prints their paths."""
  del argv
  chosen = _ALGORITHMS.value or measurements.names()
  for name in chosen:
    algorithms.get_algorithm(name)  # Raises with the nearest name.
    if name in measurements.WITHOUT:
      raise ValueError(
        f"--algorithms: {name!r} has no policy gradient, it"
        f" {measurements.WITHOUT[name]}; choose from"
        f" {', '.join(measurements.names())}."
      )
  if _ALGORITHMS.value and not flags.FLAGS["out"].present:
    raise ValueError(
      f"--algorithms={','.join(chosen)}: the page in {_OUT.value} is about all"
      " of them; pass --out=FOLDER for one about these."
    )
  out = flags_lib.existing_folder(_OUT)
  with jax.enable_x64(True):
    rows = measurements.measure_all(chosen)
    # REINFORCE without a baseline, at the main group size.
    sizes = (measurements.MAIN_SIZE,)
    reference = measurements.measure("reinforce", sizes).variance
    # About no algorithm in particular: on the whole page only.
    parts = [] if _ALGORITHMS.value else measurements.combinations()
  written, drawn = out / "estimators.md", out / "estimators.png"
  text = page.markdown(rows, parts, reference)
  written.write_text(text, encoding="utf-8")
  figure.plot(rows, reference, drawn)
  print(f"{len(rows)} rows: {written}, {drawn}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
