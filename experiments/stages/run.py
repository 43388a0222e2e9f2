r"""Trains whatever is missing of the experiment on stages.

    python -m experiments.stages.run --root=runs/stages
    python -m experiments.stages.report --root=runs/stages --out=docs

The base is one run, each arm a sweep of five seeds in one program. What the
smaller model imitates is drawn from the first seed of an arm. A run that was
stopped goes on from its last checkpoint with the same command, and what has
ended is left alone. --arms takes a regular expression: others wait. All
together take about twenty minutes on 2 CPU cores.

Exit status: 0 all has ended, 1 something has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.stages import arms as arms_lib
from experiments.stages import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib

_ROOT = flags.DEFINE_string("root", "runs/stages", "Folder of all runs.")
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_CONFIG = "experiments/stages/config.py"


def main(argv: Sequence[str]) -> int:
  """Runs what is missing, one after another."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  root.mkdir(parents=True, exist_ok=True)
  chosen = sweeps_lib.chosen(arms_lib.ARMS, _ARMS.value)
  needed = arms_lib.with_needed(chosen)
  return sweeps_lib.go_through(needed, functools.partial(_run, root))


def _run(root: pathlib.Path, name: str) -> int:
  """Runs the base, an arm, or what draws completions; its exit status."""
  if name == arms_lib.BASE:
    return _run_base(root)
  if name == arms_lib.KEPT:
    return _draw(root)
  overrides = []
  if name not in (arms_lib.SMALL_LABELS, arms_lib.SMALL_KEPT):
    overrides.append(f"--config.start_workdir={results.base(root)}")
  if name == arms_lib.SMALL_KEPT:
    overrides.append(f"--config.sft.demonstrations={results.kept(root)}")
  return sweeps_lib.sweep(root / name, f"{_CONFIG}:{name}", *overrides)


def _run_base(root: pathlib.Path) -> int:
  if cells_lib.read_result(results.base(root)) is not None:
    return 0
  return sweeps_lib.timed(
    root / arms_lib.BASE,
    "experiments.train",
    f"--config={_CONFIG}:{arms_lib.BASE}",
    f"--workdir={results.base(root)}",
  )


def _draw(root: pathlib.Path) -> int:
  """Keeps right completions; a file that is complete stays as it is."""
  teacher = root / arms_lib.TEACHER
  if not sweeps_lib.has_ended(teacher):
    return 1
  if results.num_drawn(root) is not None:
    return 0
  return sweeps_lib.timed(
    root / arms_lib.KEPT,
    "experiments.generate",
    f"--workdir={teacher / next(iter(cells_lib.read_manifest(teacher)))}",
    "--prompts=train",
    f"--num_prompts={results.NUM_DRAWN}",
    "--num_samples=4",
    "--keep=1",
    f"--out={results.kept(root)}",
  )


if __name__ == "__main__":
  flags_lib.run(main)
