r"""Trains the missing arms of the experiment on objectives.

    python -m experiments.objectives.run --root=runs/objectives
    python -m experiments.objectives.report --root=runs/objectives --out=docs

The three bandits are a file each, the arms on texts a sweep of five seeds in
one program each. A run that was stopped goes on from its last checkpoint with
the same command, and arms that have ended are left alone. --arms takes a
regular expression: other arms wait. All together take about half an hour on 2
CPU cores.

Exit status: 0 all arms have ended, 1 an arm has failed, 143 stopped.
"""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments.objectives import arms as arms_lib
from experiments.objectives import bandit, results
from experiments.sweeps import arms as sweeps_lib
from experiments.sweeps import cells as cells_lib
from grpo_jax.cli import flags as flags_lib

_ROOT = flags.DEFINE_string("root", "runs/objectives", "Folder of all runs.")
_ARMS = flags.DEFINE_string("arms", "", "Arms whose name has a match of it.")
_CONFIG = "experiments/objectives/config.py"


def main(argv: Sequence[str]) -> int:
  """Runs the missing arms, one after another."""
  del argv
  root = cells_lib.parse_root(_ROOT.value)
  every = [*(f"bandit-{name}" for name in results.BANDITS), *arms_lib.ARMS]
  root.mkdir(parents=True, exist_ok=True)
  chosen = sweeps_lib.chosen(every, _ARMS.value)
  return sweeps_lib.go_through(chosen, functools.partial(_run, root))


def _run(root: pathlib.Path, name: str) -> int:
  """Runs an arm or a bandit; returns its exit status."""
  if name in arms_lib.ARMS:
    return sweeps_lib.sweep(root / name, f"{_CONFIG}:{name}")
  return _run_bandit(root, name.removeprefix("bandit-"))


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


if __name__ == "__main__":
  flags_lib.run(main)
