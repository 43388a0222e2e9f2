r"""Runs an experiment on long horizons, and writes its page.

    python -m experiments.long_horizon.report --experiment=E2 --profile=smoke \
        --root=runs/long_horizon --out=benchmarks/long_horizon

Each arm is a sweep in ROOT/HASH, the hash of all its settings; experiments that
share an arm share its runs. The same command runs only what is missing. --arms
takes a regular expression: others wait, and the page is about what is there.

Writes OUT/E2_smoke.md, .png and .json, and OUT/README.md, the table of all
pages (`page.py`). Needs the extra `plot`.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence

from absl import flags

from experiments import flags as flags_lib
from experiments.long_horizon import arms as arms_lib
from experiments.long_horizon import page
from experiments.sweeps import cells as cells_lib

_EXPERIMENT = flags.DEFINE_enum(
  "experiment", None, list(arms_lib.EXPERIMENTS), "Which one.", required=True
)
_PROFILE = flags.DEFINE_enum(
  "profile", "smoke", list(arms_lib.PROFILES), "Of which size."
)
_ROOT = flags.DEFINE_string("root", None, "Folder of all runs.", required=True)
_OUT = flags.DEFINE_string("out", None, "Folder of all pages.", required=True)
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_STOPPED = 143  # Exit status of a sweep, or a run, that a signal stopped.
_CONFIG = "experiments/long_horizon/config.py"


def main(argv: Sequence[str]) -> int:
  """Runs what is missing, and writes the page."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  name, profile = _EXPERIMENT.value, _PROFILE.value
  experiment = arms_lib.EXPERIMENTS[name]
  chosen = [
    arm
    for arm in experiment.chosen(profile)
    if re.search(_ARMS.value, arm.name)
  ]
  if not chosen:
    known = ", ".join(arm.name for arm in experiment.chosen(profile))
    raise ValueError(
      f"report: --arms={_ARMS.value} is found in no arm of {name}; its arms"
      f" are {known}."
    )
  failed = []
  for arm in chosen:
    status = _run(root, f"{name},{profile},{arm.name}")
    if status == _STOPPED:
      print("Stopped by a signal; the same command continues.")
      return status
    if status:
      failed.append(arm.name)
  page.write(name, profile, root, pathlib.Path(_OUT.value))
  if failed:
    print(f"Failed: {', '.join(failed)}")
  return int(bool(failed))


def _run(root: pathlib.Path, variant: str) -> int:
  """Runs the sweep of an arm, if need be; its exit status."""
  folder = root / arms_lib.key(variant)
  print(f"{variant}: {folder}", flush=True)
  if page.has_ended(folder):
    return 0
  command = [f"--config={_CONFIG}:{variant}"]
  warm = arms_lib.warm_start(variant)
  if warm is not None:
    start = root / arms_lib.key(warm)
    if cells_lib.read_result(start) is None:
      status = _timed(
        start,
        "experiments.train",
        f"--config={_CONFIG}:{warm}",
        f"--workdir={start}",
      )
      if status:
        return status
    command.append(f"--config.start_workdir={start}")
  return _timed(
    folder,
    *("experiments.sweeps.run", "--launcher=vmap", f"--root={folder}"),
    *command,
  )


def _timed(folder: pathlib.Path, module: str, *arguments: str) -> int:
  """Runs a program, adds to the seconds of its folder; its exit status."""
  folder.mkdir(parents=True, exist_ok=True)
  started = time.monotonic()
  command = [sys.executable, "-m", module, *arguments]
  status = subprocess.run(command, check=False).returncode
  path = folder / page.SECONDS
  seconds = json.loads(path.read_text()) if path.exists() else []
  path.write_text(json.dumps([*seconds, round(time.monotonic() - started)]))
  return status


if __name__ == "__main__":
  flags_lib.run(main)
