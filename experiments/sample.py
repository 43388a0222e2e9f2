"""Completes a prompt with a trained policy.

    python -m experiments.sample --workdir=runs/quickstart --prompt="27 + 58 ="
    python -m experiments.sample --workdir=runs/gsm8k --prompt="Tom has 3 ..."

Greedy unless --temperature is given. A toy task's prompt is written in its own
alphabet, as `evaluate` and the training log print it. Each completion is one
line: line ends, control characters and whatever else a terminal acts upon are
written as in a Python string.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from experiments import flags as flags_lib
from grpo_jax.data import pipeline
from grpo_jax.rollout import sampling
from grpo_jax.training import escapes, players, runs, sharding
from grpo_jax.types import Prompts, Rollout

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
    config = sampling.SamplingConfig(
      max_new_tokens=problem.max_new_tokens,
      end_ids=problem.tokenizer.end_ids,
      pad_id=problem.tokenizer.pad_id,
      temperature=_TEMPERATURE.value,
    )
    num_samples = _NUM_SAMPLES.value
    draw = _with_host if problem.host_environment is not None else _drawn
    rollout = draw(loaded, config, ids)
    for text in problem.texts(
      np.asarray(rollout.tokens[:num_samples]),
      np.asarray(rollout.completion_mask[:num_samples]),
    ):
      print(escapes.escaped(text))
  return 0


def _batch(loaded: runs.Loaded, ids: np.ndarray) -> pipeline.PromptBatch:
  """The prompt, as often as rows are split: the first has the draws of one."""
  copies = sharding.num_row_shards(loaded.mesh)
  # As the records of the run have it: ids of a task, or else the text.
  is_text = isinstance(loaded.problem.train[0]["prompt"], str)
  record = {
    "prompt": _PROMPT.value if is_text else ids,
    "answer": "",
    "extras": {},
  }
  prompts = Prompts(
    tokens=np.tile(ids, (copies, 1)),
    mask=np.ones((copies, len(ids)), bool),
    ids=np.zeros(copies, np.int32),
    extras={},
  )
  return pipeline.PromptBatch(prompts, [record] * copies)


def _drawn(
  loaded: runs.Loaded, config: sampling.SamplingConfig, ids: np.ndarray
) -> Rollout:
  """Completions of the prompt."""
  sample = functools.partial(
    sampling.sample,
    loaded.policy,
    config=config,
    group_size=_NUM_SAMPLES.value,
  )
  prompts = jax.tree.map(jnp.asarray, _batch(loaded, ids).prompts)
  return jax.jit(sample)(loaded.params, prompts, jax.random.key(_SEED.value))


def _with_host(
  loaded: runs.Loaded, config: sampling.SamplingConfig, ids: np.ndarray
) -> Rollout:
  """Episodes of the prompt; its sessions get no extras.

  Raises:
    ValueError: One has failed.
  """
  batch = _batch(loaded, ids)
  player = players.HostEpisodes(
    loaded.problem,
    loaded.mesh,
    players.make_turns(
      loaded.policy, loaded.problem, config, _NUM_SAMPLES.value
    ),
  )
  played = player.play(
    loaded.params,
    sharding.from_local(batch.prompts, sharding.by_rows(loaded.mesh)),
    jax.random.key(_SEED.value),
    batch,
  )
  if any(played.failures.values()):
    raise ValueError(
      "sample: a session of the environment failed, as said above; one that"
      " begins with a prompt of yours has no answer and no extras."
    )
  return played.rollout


if __name__ == "__main__":
  flags_lib.run(main)
