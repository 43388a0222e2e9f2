"""Dynamic sampling that draws until a batch is full of live groups.

A round is a batch of prompts, sampled and scored. What stays of it are its live
groups, those whose rewards are not all equal, until there are as many as a
round has prompts. Draws are those of the prompts wherever they stand, so a
group that stays has the tokens that it would have in one large batch.

Source: Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at
Scale", arXiv:2503.14476, Section 3.2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import baselines, masked
from grpo_jax.types import Metrics, Prompts, PyTree, Rollout, Scored


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Groups:
  """P prompts with G scored completions of each, in the sampler's order.

  Attributes:
    prompts: What was asked.
    rollout: Rows b = p · G + g.
    scored: What the verifiers said of them.
    greedy: The same of the greedy completion of each prompt, if needed.
  """

  prompts: Prompts
  rollout: Rollout
  scored: Scored
  greedy: Scored | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Collected:
  """What the rounds so far have left.

  Attributes:
    groups: The first P live groups, in the order in which they were drawn; as
      long as there are fewer, dead ones of the last round after them.
    num_rounds: Rounds drawn.
    full: P groups are live.
    counts: Sums over all that was drawn, kept or not: "live" groups, "valid"
      and "correct" rows, their "reward", "tokens".
  """

  groups: Groups
  num_rounds: jax.Array  # [] int32
  full: jax.Array  # [] bool
  counts: dict[str, jax.Array]  # each [] float32


def live_groups(groups: Groups) -> jax.Array:  # [P] bool
  """Which groups dynamic sampling trains on."""
  rollout, scored = groups.rollout, groups.scored
  return baselines.live_groups(
    scored.rewards, scored.valid, rollout.group_id, rollout.num_groups
  )


def merge(kept: Groups, new: Groups) -> Groups:
  """The first P live groups of `kept`, then of `new`, numbered anew.

  If there are fewer, dead groups of `new` come after them: its P groups are
  always enough, so no dead one of `kept` stays. Live groups beyond P are
  dropped.
  """
  num_groups = len(new.prompts.ids)
  rank = jnp.concatenate(
    [
      jnp.where(live_groups(kept), 0, 2),
      jnp.where(live_groups(new), 0, 1),
    ]
  )  # [2P]
  order = jnp.argsort(rank, stable=True)[:num_groups]

  def taken(old, x):
    if not x.ndim:  # The weights of components, the same in each round.
      return x
    both = jnp.concatenate([old, x])  # [2P, ...] or [2B, ...]
    groups = both.reshape(2 * num_groups, -1, *x.shape[1:])
    return groups[order].reshape(x.shape)

  merged = jax.tree.map(taken, kept, new)
  rollout = dataclasses.replace(
    merged.rollout,
    prompt_index=new.rollout.prompt_index,
    group_id=new.rollout.group_id,
  )
  return dataclasses.replace(merged, rollout=rollout)


def add(collected: Collected | None, new: Groups) -> Collected:
  """Adds a round to what others have left; None before the first one."""
  scored, valid = new.scored, new.scored.valid
  of_round = {
    "live": live_groups(new),
    "valid": valid,
    "correct": scored.correct & valid,
    "reward": masked.select(scored.rewards, valid),
    "tokens": new.rollout.written,
  }
  counts = {name: x.sum().astype(jnp.float32) for name, x in of_round.items()}
  if collected is None:
    # Groups of nothing are dead, and no dead one of the past is kept.
    collected = Collected(
      _zeros(new), jnp.int32(0), jnp.bool(False), _zeros(counts)
    )
  counts = jax.tree.map(jnp.add, collected.counts, counts)
  return Collected(
    groups=merge(collected.groups, new),
    num_rounds=collected.num_rounds + 1,
    full=counts["live"] >= len(new.prompts.ids),
    counts=counts,
  )


def _zeros(like: PyTree) -> PyTree:
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def collect(
  draw: Callable[[Prompts], Groups],
  prompts: Prompts,
  max_rounds: int,
  constrain_rows: Callable[[PyTree], PyTree],
) -> Collected:
  """Draws rounds until the groups are full, in one loop of the program.

  Args:
    draw: Samples and scores a round; compiled once.
    prompts: R · P prompts, in the order in which they are drawn.
    max_rounds: R. Static.
    constrain_rows: As in `Parts`.

  Returns:
    P groups; fewer of them live than P if all rounds did not have as many.
  """
  size = len(prompts.ids) // max_rounds  # P

  def with_round(collected, number):
    chosen = jax.tree.map(
      lambda x: lax.dynamic_slice_in_dim(x, number * size, size), prompts
    )
    return constrain_rows(add(collected, draw(constrain_rows(chosen))))

  return lax.while_loop(
    lambda collected: (collected.num_rounds < max_rounds) & ~collected.full,
    lambda collected: with_round(collected, collected.num_rounds),
    _zeros(jax.eval_shape(lambda: with_round(None, 0))),
  )


def metrics(collected: Collected) -> Metrics:
  """What is said of all that was drawn, beside what the step trains on.

  Returns:
    `drawn/rounds`, `drawn/groups`, the share `drawn/live` of these that were
    live, and `drawn/reward` and `drawn/accuracy` over all rows drawn, which the
    choice of groups does not bias as it does `reward/mean` and `accuracy`; NaN
    where none of them was scored.
    `tokens/generated` counts the dropped groups too, in the place of the number
    that the batch gives.
  """
  counts = collected.counts
  rounds = collected.num_rounds.astype(jnp.float32)
  num_groups = rounds * len(collected.groups.prompts.ids)
  num_valid = jnp.where(counts["valid"] > 0, counts["valid"], jnp.nan)
  return {
    "drawn/rounds": rounds,
    "drawn/groups": num_groups,
    "drawn/live": counts["live"] / num_groups,
    "drawn/reward": counts["reward"] / num_valid,
    "drawn/accuracy": counts["correct"] / num_valid,
    "tokens/generated": counts["tokens"],
  }
