"""Groups with a high spread of rewards, replayed in the place of dead ones.

A group whose rewards are all equal trains nothing. Its place in the batch is
given to a group of an earlier step, which a buffer has kept for that:

    score = Σ_g |A_g| · s,   s the deviation of the rewards of the group

The buffer keeps the K groups with the highest scores that there were. First the
live groups of the step come into it, then one is drawn for each dead group,
with a probability in proportion to its score: different ones, or, if the buffer
has fewer than there are dead ones, with replacement. While it is empty, dead
groups stay.

Source: TRL, `GRPOWithReplayBufferTrainer` (experimental). Deviations: the
advantage of a replayed group is computed anew from its rewards, with all that
shapes them; its ratio is taken against the policy at the start of the update,
and its importance weights against the policy that has drawn it, where TRL takes
the current policy for both unless its steps are misaligned; all live groups of
a step come into the buffer, where TRL 1.13 looked at the first one alone; a
group that was not scored is dead; of equal scores the older one stays.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.ops import baselines
from grpo_jax.step import rounds
from grpo_jax.types import Metrics, PyTree


class Mixed(NamedTuple):
  """A batch of which some groups are replayed.

  Attributes:
    groups: What is trained on.
    state: The buffer after the step.
    metrics: What there is to say.
  """

  groups: rounds.Groups
  state: PyTree
  metrics: Metrics


def scores(
  groups: rounds.Groups,
  scale: str,
  min_std: float = 0.0,
  eps: float = 1e-6,
) -> jax.Array:  # [P] float32
  """Σ |A| · s of each group; 0 of a dead one.

  Args:
    groups: P groups.
    scale: A is the reward minus the mean of the group, divided by the deviation
      of the "group" or of the "batch", or "none".
    min_std: As in `rounds.live_groups`.
    eps: Added to that deviation.
  """
  rewards, valid = groups.scored.rewards, groups.scored.valid
  of_groups = groups.rollout.group_id, groups.rollout.num_groups
  advantages = baselines.scaled(
    baselines.group_centered(rewards, valid, *of_groups),
    *(rewards, valid, *of_groups, scale),
    eps=eps,
  )
  spread = jnp.sqrt(
    baselines.group_statistics(rewards, valid, *of_groups).variance
  )
  total = jax.ops.segment_sum(jnp.abs(advantages), *of_groups)
  live = rounds.live_groups(groups, min_std)
  return jnp.where(live, total * spread, 0.0).astype(jnp.float32)


def choose(
  key: jax.Array, score: jax.Array, count: jax.Array, most: int
) -> jax.Array:  # [most] int32
  """Places of a buffer, as likely as their scores, of which `count` are meant.

  Args:
    key: For the draw.
    score: Of each place [K]; 0 of an empty one.
    count: How many are asked for. As long as there are as many groups, they are
      different.
    most: Upper bound of `count`. Static.
  """
  once_key, again_key = jax.random.split(key)
  logits = jnp.log(score)  # −inf of an empty place.
  noise = jax.random.gumbel(once_key, score.shape)
  once = jnp.argsort(-(logits + noise), stable=True)
  once = jnp.resize(once, (most,))  # Beyond K nobody reads it.
  again = jax.random.categorical(again_key, logits, shape=(most,))
  return jnp.where(count <= (score > 0).sum(), once, again).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Replay:
  """What a phase keeps for its dead groups.

  Attributes:
    size: K, groups that are kept.
    scale, eps, min_std: As in `scores`.
  """

  size: int
  scale: str = "group"
  eps: Any = 1e-6
  min_std: Any = 0.0

  def init(self, drawn: rounds.Groups) -> PyTree:
    """An empty buffer.

    Args:
      drawn: A round, or its shapes.

    Returns:
      `groups`, K of them; `score` of each, 0 in an empty place; and `step`, at
      which it came.
    """
    num_groups = len(drawn.prompts.ids)

    def empty(x):
      if not x.ndim:
        return jnp.zeros((), x.dtype)
      rows = len(x) // num_groups * self.size
      return jnp.zeros((rows, *x.shape[1:]), x.dtype)

    return {
      "groups": jax.tree.map(empty, drawn),
      "score": jnp.zeros(self.size, jnp.float32),
      "step": jnp.zeros(self.size, jnp.int32),
    }

  def mix(
    self,
    state: PyTree,
    fresh: rounds.Groups,
    key: jax.Array,
    step: jax.Array,
  ) -> Mixed:
    """Keeps live groups, and puts kept ones in the place of dead ones.

    Args:
      state: See `init`.
      fresh: P groups.
      key: For the choice.
      step: Of the run.
    """
    num_groups = len(fresh.prompts.ids)
    live = rounds.live_groups(fresh, self.min_std)  # [P]
    state = self._with(state, fresh, step)
    score = state["score"]
    chosen = choose(key, score, (~live).sum(), num_groups)
    # The first dead group has the first of them, and so on.
    own = chosen[jnp.maximum(jnp.cumsum(~live) - 1, 0)]  # [P]
    replayed = ~live & (score > 0).any()
    place = jnp.arange(num_groups, dtype=jnp.int32)
    order = jnp.where(replayed, own, self.size + place)
    groups = rounds.taken(rounds.joined(state["groups"], fresh), order, fresh)
    count = replayed.sum()
    ages = jnp.where(replayed, step - state["step"][own], 0).sum()
    return Mixed(
      groups,
      state,
      {
        "replay/groups": count.astype(jnp.float32),
        "replay/age": jnp.where(
          count > 0, ages / jnp.maximum(count, 1), jnp.nan
        ).astype(jnp.float32),
        "replay/kept": (score > 0).sum().astype(jnp.float32),
      },
    )

  def _with(
    self, state: PyTree, fresh: rounds.Groups, step: jax.Array
  ) -> PyTree:
    """The K groups with the highest scores of the buffer and of a step."""
    score = jnp.concatenate(
      [state["score"], scores(fresh, self.scale, self.min_std, self.eps)]
    )
    came = jnp.concatenate(
      [state["step"], jnp.full(len(fresh.prompts.ids), step, jnp.int32)]
    )
    order = jnp.argsort(-score, stable=True)[: self.size]
    both = rounds.joined(state["groups"], fresh)
    return {
      "groups": rounds.taken(both, order, state["groups"]),
      "score": score[order],
      "step": came[order],
    }
