"""Completes a prompt with a trained policy.

    grpo-sample --workdir=runs/quickstart --prompt="27 + 58 ="
    grpo-sample --workdir=runs/gsm8k --prompt="Tom has 3 ..."

Completions are greedy unless --temperature is given. A toy task's prompt is
written in its own alphabet, as `evaluate` and the training log print it. Each
completion is one line: line ends, control characters and other characters that
a terminal acts upon are written as in a Python string.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.runtime import files

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
_PROMPT = flags.DEFINE_string("prompt", None, "Text.", required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint; by default the last.")
_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Completions.", 1)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0: greedy.", 0.0)
_SEED = flags.DEFINE_integer("seed", 0, "Of the samples.")


def main(argv: Sequence[str]) -> int:
  """Prints the completions, one per line."""
  from grpo_jax import api

  del argv
  with api.load(_WORKDIR.value, _STEP.value) as run:
    (rows,) = run.sample(
      _PROMPT.value, _NUM_SAMPLES.value, _TEMPERATURE.value, _SEED.value
    )
  if all(row.error for row in rows):  # Their texts are broken off.
    raise ValueError(
      f"sample: a session of the environment failed: {rows[0].error}"
    )
  for row in rows:
    print(files.escaped(row.text))
  return 0


run = functools.partial(flags_lib.run, main)
