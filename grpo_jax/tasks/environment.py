"""What environments have in common.

`types.Environment` says what one is. It knows token ids, and nothing of models,
prompts or samplers: the rollout samples an action, steps, and writes the
observation behind it as tokens that are not trained.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from grpo_jax.types import PyTree, Turn


def settle(
  over: jax.Array,  # [] bool
  old: PyTree,
  new: PyTree,
  turn: Turn,
) -> tuple[PyTree, Turn]:
  """Ends a step: nothing happens after the end, nothing is read at the end.

  Args:
    over: Whether the episode was over before the step.
    old: State before the step.
    new: State after it, if the episode was not over.
    turn: The turn, if the episode was not over.

  Returns:
    What `Environment.step` returns; slots without a token hold 0, the pad id.
  """
  done = over | turn.done
  mask = turn.mask & ~done
  return jax.tree.map(lambda x, y: jnp.where(over, x, y), old, new), Turn(
    jnp.where(mask, turn.observation, 0),
    mask,
    jnp.where(over, 0.0, turn.reward),
    done,
  )
