"""The total reward of each row from its weighted components, in the graph."""

from __future__ import annotations

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import shaping
from grpo_jax.types import Scored


def combine(
  components: Mapping[str, jax.Array],  # each [B]
  weights: Mapping[str, float | jax.Array],
  failed: jax.Array | None,  # [B] bool
  correct: str | None,
) -> Scored:
  """Sums the components that apply to each row.

      R_b = Σ_{k applicable to b} w_k r_kb

  Args:
    components: Each reward by name, before weights; NaN = not applicable.
    weights: Weight of each component, by the same names; an array [] where it
      changes between steps.
    failed: True where a component failed, so that the row is unscored; None
      if none can fail.
    correct: The component whose values of at least 1 mark a right answer;
      None for the first in sorted order.

  Returns:
    The scored rows. A row is valid unless it failed, a component or the total
    is beyond `ranges.MAX_REWARD`, or no component of non-zero weight applies
    (a component of weight 0 is only observed, and its row alone would have a
    reward of 0 that nobody gave). Rewards are 0 and `correct` is False where
    not valid.

  Raises:
    KeyError: Components and weights do not have the same names, there are
      none, or `correct` is not among them.
  """
  if not components or set(components) != set(weights):
    raise KeyError(
      f"combine: received components {sorted(components)} and weights"
      f" {sorted(weights)}; needed are the same names, at least one; without"
      f" weight: {sorted(set(components) - set(weights))}, without component:"
      f" {sorted(set(weights) - set(components))}."
    )
  names = sorted(components)
  correct = names[0] if correct is None else correct
  if correct not in components:
    raise KeyError(
      f"combine: correct='{correct}' is not a component; needed is one of"
      f" {names}."
    )
  values = {
    name: jnp.asarray(components[name], jnp.float32) for name in names
  }  # each [B]
  chex.assert_rank(list(values.values()), 1)
  chex.assert_equal_shape(list(values.values()))

  total, too_large = shaping.total_reward(values, weights)  # [B], [B]
  valid = jnp.zeros_like(too_large)  # [B]
  for name in names:
    applicable = ~jnp.isnan(values[name])
    valid |= applicable & (jnp.asarray(weights[name]) != 0)
  valid &= ~too_large
  if failed is not None:
    chex.assert_equal_shape([jnp.asarray(failed), total])
    valid &= ~jnp.asarray(failed)
  return Scored(
    rewards=jnp.where(valid, total, 0.0),
    valid=valid,
    correct=valid & (values[correct] >= 1.0),
    components=values,
    weights={name: jnp.float32(weights[name]) for name in names},
  )
