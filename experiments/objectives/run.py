r"""Trains whatever is missing of the experiment on objectives.

    python -m experiments.objectives.run --root=runs/objectives
    python -m experiments.objectives.report --root=runs/objectives --out=docs

The three bandits are a file each, the arms on texts a sweep of five seeds in
one program each. A run that was stopped goes on from its last checkpoint with
the same command, and what has ended is left alone. --arms takes a regular
expression: others wait. All together take about half an hour on 2 CPU cores.

Exit status: 0 all has ended, 1 something has failed, 143 stopped.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import flags as flags_lib
from experiments.objectives import arms as arms_lib
from experiments.objectives import bandit, results
from experiments.sweeps import cells as cells_lib

_ROOT = flags.DEFINE_string("root", "runs/objectives", "Folder of all runs.")
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_STOPPED = 143  # Exit status of a sweep that a signal stopped.
_CONFIG = "experiments/objectives/config.py"


def main(argv: Sequence[str]) -> int:
  """Runs what is missing, one after another."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  every = [*(f"bandit-{name}" for name in results.BANDITS), *arms_lib.ARMS]
  chosen = [name for name in every if re.search(_ARMS.value, name)]
  if not chosen:
    raise ValueError(
      f"run: --arms={_ARMS.value} is found in no arm; they are"
      f" {', '.join(every)}."
    )
  root.mkdir(parents=True, exist_ok=True)
  failed = []
  for name in chosen:
    if name in arms_lib.ARMS:
      status = _run_arm(root / name, name)
    else:
      status = _run_bandit(root, name.removeprefix("bandit-"))
    if status == _STOPPED:
      print("Stopped by a signal; the same command continues.")
      return status
    if status:
      failed.append(name)
  if failed:
    print(f"Failed: {', '.join(failed)}")
  return int(bool(failed))


def _run_bandit(root: pathlib.Path, name: str) -> int:
  if results.bandit_path(root, name).exists():
    return 0
  started = time.monotonic()
  seeds = jnp.arange(bandit.NUM_SEEDS)
  regrets = jax.vmap(lambda seed: bandit.train(name, seed))(seeds)
  end = np.asarray(regrets).mean(axis=0)[-1]
  seconds = time.monotonic() - started
  results.write_bandit(root, name, np.asarray(regrets), seconds)
  print(f"bandit-{name}: regrets {end.round(3)}, {seconds:.0f} s", flush=True)
  return 0


def _run_arm(folder: pathlib.Path, name: str) -> int:
  """Runs a sweep, adds to the seconds of its folder; its exit status."""
  if results.has_ended(folder):
    return 0
  folder.mkdir(parents=True, exist_ok=True)
  started = time.monotonic()
  command = [
    *(sys.executable, "-m", "experiments.sweeps.run", "--launcher=vmap"),
    *(f"--root={folder}", f"--config={_CONFIG}:{name}"),
  ]
  with (folder / results.OUTPUT).open("ab") as output:
    status = subprocess.run(
      command, check=False, stdout=output, stderr=subprocess.STDOUT
    ).returncode
  path = folder / results.SECONDS
  seconds = json.loads(path.read_text()) if path.exists() else []
  seconds.append(round(time.monotonic() - started))
  path.write_text(json.dumps(seconds))
  end = f", exit status {status}: see {folder / results.OUTPUT}"
  print(f"{name}: {seconds[-1]} s{end if status else ''}", flush=True)
  return status


if __name__ == "__main__":
  flags_lib.run(main)
