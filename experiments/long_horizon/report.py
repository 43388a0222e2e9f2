r"""Runs an experiment on long horizons, and writes its page.

    python -m experiments.long_horizon.report --experiment=E2 --profile=smoke \
        --root=runs/long_horizon --out=benchmarks/long_horizon

Each arm is a sweep in ROOT/HASH, the hash of all its settings; experiments that
share an arm share its runs. The same command runs only missing arms. --arms
takes a regular expression: other arms wait, and the page is about those that
have ended.

Writes OUT/E2_smoke.md, .png and .json, and OUT/README.md, the table of all
pages (`page.py`). Needs the extra `plot`.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Sequence

from absl import flags

from experiments.long_horizon import arms as arms_lib
from experiments.long_horizon import page
from experiments.science import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib
from grpo_jax.cli import flags as flags_lib

_EXPERIMENT = flags.DEFINE_enum(
  "experiment", None, list(arms_lib.EXPERIMENTS), "Which one.", required=True
)
_PROFILE = flags.DEFINE_enum(
  "profile", "smoke", list(arms_lib.PROFILES), "Of which size."
)
_ROOT = flags.DEFINE_string("root", None, "Folder of all runs.", required=True)
_OUT = flags.DEFINE_string("out", None, "Folder of all pages.", required=True)
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_CONFIG = "experiments/long_horizon/config.py"


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, and writes the page."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  name, profile = _EXPERIMENT.value, _PROFILE.value
  experiment = arms_lib.EXPERIMENTS[name]
  known = [arm.name for arm in experiment.chosen(profile)]
  chosen = sweeps_lib.chosen(known, _ARMS.value)
  run = functools.partial(_run, root, f"{name},{profile}")
  status = sweeps_lib.go_through(chosen, run)
  if status != sweeps_lib.STOPPED:
    page.write(name, profile, root, pathlib.Path(_OUT.value))
  return status


def _run(root: pathlib.Path, experiment: str, arm: str) -> int:
  """Runs the sweep of an arm, if needed; returns its exit status."""
  variant = f"{experiment},{arm}"
  folder = root / arms_lib.key(variant)
  print(f"{variant}: {folder}", flush=True)
  if sweeps_lib.has_ended(folder):
    return 0
  overrides = []
  warm = arms_lib.warm_start(variant)
  if warm is not None:
    start = root / arms_lib.key(warm)
    if cells_lib.read_result(start) is None:
      status = sweeps_lib.timed(
        start,
        "experiments.train",
        f"--config={_CONFIG}:{warm}",
        f"--workdir={start}",
      )
      if status:
        return status
    overrides.append(f"--config.start_workdir={start}")
  return sweeps_lib.sweep(folder, f"{_CONFIG}:{variant}", *overrides)


if __name__ == "__main__":
  flags_lib.run(main)
