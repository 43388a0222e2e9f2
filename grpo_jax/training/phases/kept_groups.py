"""The buffers of groups that a phase keeps, from the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.settings import config as config_lib
from grpo_jax.step import dynamic_sampling, features
from grpo_jax.training.problem import rewards
from grpo_jax.training.problem.problem import Problem
from grpo_jax.types import Prompts


def make(
  config: config_lib.RunConfig,
  problem: Problem,
  name: str,
  objective: Any,
  reward: rewards.RewardSum,
  num_shards: int,
) -> features.WaitingGroups:
  """Makes the buffers of the phase `name`; see `features.py`.

  Args:
    objective, reward: Config of its objective, and its reward.

  Raises:
    ValueError: The groups do not split over the devices.
  """
  phase = config.section(name)
  size = phase.replay_size
  if not (phase.recycle_surplus or size):
    return features.WaitingGroups()
  if size % num_shards:
    raise ValueError(
      f"config.{name}.replay_size={size} does not split over the {num_shards}"
      " devices that share rows; needed: replay_size = devices × (a whole"
      " number)."
    )
  slots = phase.max_prompt_len or problem.max_prompt_len
  return dynamic_sampling.Buffers(
    prompts=prompt_shapes(problem, phase.num_prompts, slots),
    host_scores=reward.host_shapes(phase.num_rows, problem.max_new_tokens),
    recycles=phase.recycle_surplus,
    replay=dynamic_sampling.Replay(
      size,
      objective.advantage_scale,
      objective.advantage_eps,
      objective.min_reward_std,
    )
    if size
    else None,
  )


def prompt_shapes(
  problem: Problem,
  num_prompts: int,
  slots: int,
  hints: Callable[[Any], Mapping[str, np.ndarray]] | None = None,
) -> Prompts:
  """Shapes of a batch of prompts, with the arrays that verifiers read.

  Args:
    problem: The problem; all records have the shapes of the first one.
    num_prompts: P.
    slots: S.
    hints: (record) -> arrays for the corrections of its completions; None:
      there are none.
  """
  record = problem.train[0]
  arrays = {
    name: value
    for name, value in record["extras"].items()
    if isinstance(value, np.ndarray | np.generic)
  }
  if (more_arrays := problem.arrays(hints)) is not None:
    arrays |= more_arrays(record)

  def of_prompts(kind: Any, *shape: int) -> jax.Array:
    array: Any = jax.ShapeDtypeStruct((num_prompts, *shape), kind)
    return array

  return Prompts(
    tokens=of_prompts(jnp.int32, slots),
    mask=of_prompts(jnp.bool_, slots),
    ids=of_prompts(jnp.int32),
    extras={
      name: of_prompts(
        jax.dtypes.canonicalize_dtype(np.asarray(x).dtype), *np.shape(x)
      )
      for name, x in arrays.items()
    },
    images=jax.tree.map(
      lambda x: of_prompts(x.dtype, *x.shape), problem.image_shapes
    ),
  )
