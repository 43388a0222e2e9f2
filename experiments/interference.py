"""Compares the gradients of the domains of prompts at the policy of a run.

    python -m experiments.interference --workdir=runs/mixture
    python -m experiments.interference --workdir=runs/mixture --step=100 \
        --num_prompts=256 --out=runs/interference.json

The table has the cosines between the gradients of the run's objective, each on
prompts of one domain. If a cosine is below 0, a step for one domain is a step
back for the other. The diagonal compares two batches of one domain: its
distance from 1 is the noise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from absl import flags

from grpo_jax import api
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.evaluation import interference
from grpo_jax.training.runtime import files

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint; by default the last.")
_PHASE = flags.DEFINE_string(
  "phase", "", "Whose objective; by default the last that draws completions."
)
_NUM_PROMPTS = flags.DEFINE_integer("num_prompts", 64, "Of a batch.", 1)
_NUM_BATCHES = flags.DEFINE_integer("num_batches", 4, "Of each domain.", 2)
_SEED = flags.DEFINE_integer("seed", 0, "Of prompts and samples.")
_OUT = flags.DEFINE_string("out", None, "JSON file, local or gs://.")


def main(argv: Sequence[str]) -> int:
  """Prints the table."""
  del argv
  out = flags_lib.file_to_write("out", _OUT.value)
  with api.load(_WORKDIR.value, _STEP.value) as run:
    found = interference.measure(
      run.loaded,
      phase=_PHASE.value,
      num_prompts=_NUM_PROMPTS.value,
      num_batches=_NUM_BATCHES.value,
      seed=_SEED.value,
    )
  print("\n".join(interference.table(found)))
  if out is not None:
    said = {
      "domains": found.names,
      "cosines": found.cosines.tolist(),
      "norms": found.norms.tolist(),
    }
    text = json.dumps(said, indent=2).replace("NaN", "null")
    files.write(out, (text + "\n").encode())
    print(f"written: {out}")
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
