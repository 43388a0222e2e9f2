"""The end of a step, which environments in the graph have in common.

`types.Environment` has the interface. An environment uses token ids, and no
models, prompts or samplers: the rollout samples an action, calls `step`, and
writes the observation after the action as tokens that are not trained.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from grpo_jax.types import PyTree, Turn


def mask_after_end(
  over: jax.Array,  # [] bool
  old: PyTree,
  new: PyTree,
  turn: Turn,
) -> tuple[PyTree, Turn]:
  """Keeps the state after the end of an episode, and masks its observation.

  Args:
    over: Whether the episode was over before the step.
    old: State before the step.
    new: State after the step, if the episode was not over.
    turn: The turn, if the episode was not over.

  Returns:
    A result for `Environment.step`. After the end, and at the end, there is no
    observation; slots without a token hold 0, the pad id.
  """
  done = over | turn.done
  mask = turn.mask & ~done
  return jax.tree.map(lambda x, y: jnp.where(over, x, y), old, new), Turn(
    jnp.where(mask, turn.observation, 0),
    mask,
    jnp.where(over, 0.0, turn.reward),
    done,
  )
