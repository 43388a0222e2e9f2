r"""Averages the policies of runs.

    grpo-merge --workdirs=runs/a,runs/b --out=runs/merged
    grpo-merge --workdirs=runs/math,runs/code \
        --weights=0.7,0.7 --base=runs/base --out=runs/both

Weights are equal, unless --weights sets others with the sum 1. With --base they
may have any sum, and each run's difference from the base is added to the base
(task arithmetic). The runs have one architecture and one tokenizer. If a run
keeps an average of its parameters, the average is taken.

The new folder opens like a run, with the settings of the first: evaluate it,
sample from it, or go on from it with --config.start_workdir=runs/merged. Its
README.md is a model card that names the runs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from absl import flags

from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import files, terminal

_WORKDIRS = flags.DEFINE_list(
  "workdirs", None, "Folders of runs, local or gs://.", required=True
)
_WEIGHTS = flags.DEFINE_list("weights", [], "One for each; by default equal.")
_BASE = flags.DEFINE_string(
  "base", "", "Run to which differences from it are added."
)
_OUT = flags.DEFINE_string(
  "out", None, "New folder, local or gs://.", required=True
)


def main(argv: Sequence[str]) -> int:
  """Merges the parameters of the runs, and saves the result."""
  from grpo_jax.training.evaluation import cards, merging
  from grpo_jax.training.runtime import hosts

  del argv
  try:
    weights = [float(x) for x in _WEIGHTS.value]
  except ValueError as error:
    raise ValueError(
      f"--weights={','.join(_WEIGHTS.value)}: needs numbers, as 0.5,0.5."
    ) from error
  with terminal.waiting("merging"):
    size = merging.merge(_WORKDIRS.value, _OUT.value, weights, _BASE.value)
  out = files.parse(_OUT.value)
  if hosts.is_main():
    text = cards.card(out, step=None, library="grpo_jax")
    files.write(out / cards.README, text.encode())
  print(
    f"{ranges.counted(len(_WORKDIRS.value), 'run')}, {size} parameters ->"
    f" {_OUT.value}"
  )
  return 0


run = functools.partial(flags_lib.run, main)
