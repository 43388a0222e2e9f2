"""Whether credits of segments find an error that was planted into a working.

    python -m experiments.planted_errors.run --workdir=runs/planted

A model is taught addition with a scratchpad. In right workings of held-out
problems one carry is then flipped, and whatever follows from it follows: the
rest of the working is consistent, and the answer is wrong. RREDCoT's most
negative credit should be that of the step with the flip. It can only be where
the model has something to expect before the flip, so the teacher leaves steps
out with the probability `skip`, and answers all the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from absl import flags

import grpo_jax
from experiments import flags as flags_lib
from experiments.planted_errors import errors

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_LEVEL = flags.DEFINE_integer("level", 2, "Digits of both operands.")
_SKIP = flags.DEFINE_float(
  "skip", 0.5, "Probability that the teacher leaves the last steps out."
)
_STEPS = flags.DEFINE_integer("steps", 600, "Supervised steps.")
_NUM_PROBLEMS = flags.DEFINE_integer("num_problems", 512, "Planted errors.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the run and of the errors.")


def main(argv: Sequence[str]) -> int:
  """Trains, plants and prints a line of JSON."""
  del argv
  config = grpo_jax.config("rredcot_add")
  config.data.name = "experiments.planted_errors.task:make"
  config.data.task_options = {"level": _LEVEL.value, "skip": _SKIP.value}
  config.phases = ("sft",)
  config.sft.steps = _STEPS.value
  config.eval.every = 0
  config.seed = _SEED.value
  with grpo_jax.train(config, _WORKDIR.value) as run:
    said = errors.measure(run, _LEVEL.value, _NUM_PROBLEMS.value, _SEED.value)
  print(json.dumps({"level": _LEVEL.value, "skip": _SKIP.value, **said}))
  return 0


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  flags_lib.run(main, needs_config=False)
