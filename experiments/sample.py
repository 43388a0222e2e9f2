"""Completes a prompt with a trained policy.

    python -m experiments.sample --workdir=runs/quickstart --prompt="27 + 58 ="
    python -m experiments.sample --workdir=runs/gsm8k --prompt="Tom has 3 ..."

Greedy unless --temperature is given. A toy task's prompt is written in its own
alphabet, as `evaluate` and the training log print it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import flags as flags_lib
from grpo_jax.rollout import sampling
from grpo_jax.training import runs, sharding
from grpo_jax.types import Prompts

_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, local or gs://.", required=True
)
_PROMPT = flags.DEFINE_string("prompt", None, "Text.", required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint; by default the last.")
_NUM_SAMPLES = flags.DEFINE_integer("num_samples", 1, "Completions.", 1)
_TEMPERATURE = flags.DEFINE_float("temperature", 0.0, "0: greedy.", 0.0)
_SEED = flags.DEFINE_integer("seed", 0, "Of the samples.")


def main(argv: Sequence[str]) -> int:
  """Prints the completions, one per paragraph."""
  del argv
  with runs.load(_WORKDIR.value, _STEP.value) as loaded:
    problem = loaded.problem
    if problem.environment is not None:
      raise ValueError(
        "sample: this run's task has an environment, which needs more than a"
        " text to begin with; experiments.evaluate plays its held-out problems."
      )
    ids = problem.encoder.prompt({"prompt": _PROMPT.value})
    if len(ids) > problem.max_prompt_len:
      raise ValueError(
        f"--prompt has {len(ids)} tokens; this run was trained with at most"
        f" {problem.max_prompt_len} (config.data.max_prompt_len)."
      )
    # As often as rows are split: the first has the same draws alone.
    copies = sharding.num_row_shards(loaded.mesh)
    prompts = Prompts(
      tokens=jnp.tile(jnp.asarray(ids), (copies, 1)),
      mask=jnp.ones((copies, len(ids)), bool),
      ids=jnp.zeros(copies, jnp.int32),
      extras={},
    )
    config = sampling.SamplingConfig(
      max_new_tokens=problem.max_new_tokens,
      end_ids=problem.tokenizer.end_ids,
      pad_id=problem.tokenizer.pad_id,
      temperature=_TEMPERATURE.value,
    )
    num_samples = _NUM_SAMPLES.value
    sample = functools.partial(
      sampling.sample,
      loaded.policy,
      config=config,
      group_size=num_samples,
    )
    rollout = jax.jit(sample)(
      loaded.params, prompts, jax.random.key(_SEED.value)
    )
    for text in problem.texts(
      np.asarray(rollout.tokens[:num_samples]),
      np.asarray(rollout.completion_mask[:num_samples]),
    ):
      print(text)
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
