r"""Trains whatever is missing of the experiment on staleness.

    python -m experiments.staleness.run --root=runs/staleness \
        --results=benchmarks/staleness
    python -m experiments.staleness.report --results=benchmarks/staleness \
        --out=docs

Each arm is a sweep of six seeds in one program, and leaves ARM.json. All
follow on `base`. What has ended is left alone, and what was stopped goes on
with the same command. --arms takes a regular expression: others wait.

Exit status: 0 all has ended, 1 something has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.staleness import arms as arms_lib
from experiments.staleness import results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib

_ROOT = flags.DEFINE_string("root", "runs/staleness", "Folder of all runs.")
_RESULTS = flags.DEFINE_string(
  "results", "benchmarks/staleness", "Folder of the files ARM.json."
)
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_SIZE = flags.DEFINE_enum(
  "size", "full", list(arms_lib.SIZES), "How much is computed."
)
_CONFIG = "experiments/staleness/config.py"


def main(argv: Sequence[str]) -> int:
  """Runs what is missing, one after another."""
  del argv
  root, out = cells_lib.parse_root(_ROOT.value), pathlib.Path(_RESULTS.value)
  chosen = sweeps_lib.chosen(arms_lib.ARMS, _ARMS.value)
  out.mkdir(parents=True, exist_ok=True)
  return sweeps_lib.go_through(chosen, functools.partial(_run_arm, root, out))


def _run_arm(root: pathlib.Path, out: pathlib.Path, name: str) -> int:
  """Runs the sweep of an arm, and writes its numbers; the exit status."""
  return sweeps_lib.record(
    out,
    root / name,
    f"{_CONFIG}:{name}@{_SIZE.value}",
    arms_lib.follows_on(name, root),
    functools.partial(sweeps_lib.collected, results.of_run),
  )


if __name__ == "__main__":
  flags_lib.run(main)
