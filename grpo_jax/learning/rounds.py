"""Dynamic sampling that draws until a batch is full of live groups.

A round is a batch of prompts, sampled and scored. What stays of it are its live
groups, those whose rewards are not all equal, until there are as many as a
round has prompts. Draws are those of the prompts wherever they stand, so a
group that stays has the tokens that it would have in one large batch.

What a step does whose rounds end with too few live groups is `when_short`:

    "fewer"      trains on those there are (the other groups are masked)
    "error"      trains nothing, and the run ends (verl)
    "duplicate"  if more than half of the groups live, repeats them in their
                 order until the batch is full; if not, trains nothing (GLM-5)

Source: Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at
Scale", arXiv:2503.14476, Section 3.2. GLM-5 Team, "GLM-5: from Vibe Coding to
Agentic Engineering", arXiv:2602.15763, for "duplicate".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import baselines, masked
from grpo_jax.types import Metrics, Prompts, PyTree, Rollout, Scored

WHEN_SHORT = ("fewer", "error", "duplicate")


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


def live_groups(groups: Groups, min_std: float = 0.0) -> jax.Array:  # [P] bool
  """Which groups dynamic sampling trains on; see `baselines.live_groups`."""
  rollout, scored = groups.rollout, groups.scored
  return baselines.live_groups(
    scored.rewards, scored.valid, rollout.group_id, rollout.num_groups, min_std
  )


def merge(kept: Groups, new: Groups, min_std: float = 0.0) -> Groups:
  """The first P live groups of `kept`, then of `new`, numbered anew.

  If there are fewer, dead groups of `new` come after them: its P groups are
  always enough, so no dead one of `kept` stays. Live groups beyond P are
  dropped.
  """
  num_groups = len(new.prompts.ids)
  rank = jnp.concatenate(
    [
      jnp.where(live_groups(kept, min_std), 0, 2),
      jnp.where(live_groups(new, min_std), 0, 1),
    ]
  )  # [2P]
  order = jnp.argsort(rank, stable=True)[:num_groups]

  # The weights of components are scalars, the same in each round.
  both = jax.tree.map(
    lambda old, x: jnp.concatenate([old, x]) if x.ndim else x, kept, new
  )
  return _taken(both, order, new)


def _taken(
  groups: Groups,
  order: jax.Array,  # [P] int
  like: Groups,
) -> Groups:
  """The groups at these places, numbered as those of `like`."""

  def taken(x, of_like):  # x [K, ...] or [K · G, ...] of K groups.
    if not x.ndim:
      return x
    rows = len(of_like) // len(order)  # Of each group.
    by_group = x.reshape(-1, rows, *x.shape[1:])
    return by_group[order].reshape(of_like.shape)

  found = jax.tree.map(taken, groups, like)
  rollout = dataclasses.replace(
    found.rollout,
    prompt_index=like.rollout.prompt_index,
    group_id=like.rollout.group_id,
  )
  return dataclasses.replace(found, rollout=rollout)


def settle(
  collected: Collected, when_short: str = "fewer"
) -> tuple[Groups, jax.Array | None]:
  """What a step trains on.

  Args:
    collected: What its rounds have left.
    when_short: One of `WHEN_SHORT`. Static.

  Returns:
    P groups, and whether the step trains at all; None: it always does.
  """
  groups = collected.groups
  if when_short == "fewer":
    return groups, None
  if when_short == "error":
    return groups, collected.full
  size = len(groups.prompts.ids)  # P
  place = jnp.arange(size)
  num_live = size - _missing(collected)  # These come first.
  trains = 2 * num_live > size
  # If all groups live, each stays where it is.
  order = jnp.where(trains, place % jnp.maximum(num_live, 1), place)
  return _taken(groups, order, groups), trains


def _missing(collected: Collected) -> jax.Array:  # [] int32
  """Live groups that a batch is short of."""
  size = len(collected.groups.prompts.ids)
  live = collected.counts["live"].astype(jnp.int32)
  return size - jnp.minimum(live, size)


def add(
  collected: Collected | None, new: Groups, min_std: float = 0.0
) -> Collected:
  """Adds a round to what others have left; None before the first one."""
  scored, valid = new.scored, new.scored.valid
  of_round = {
    "live": live_groups(new, min_std),
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
    groups=merge(collected.groups, new, min_std),
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
  min_std: float = 0.0,
) -> Collected:
  """Draws rounds until the groups are full, in one loop of the program.

  Args:
    draw: Samples and scores a round; compiled once.
    prompts: R · P prompts, in the order in which they are drawn.
    max_rounds: R. Static.
    constrain_rows: As in `Parts`.
    min_std: As in `live_groups`.

  Returns:
    P groups; fewer of them live than P if all rounds did not have as many.
  """
  size = len(prompts.ids) // max_rounds  # P

  def with_round(collected, number):
    chosen = jax.tree.map(
      lambda x: lax.dynamic_slice_in_dim(x, number * size, size), prompts
    )
    drawn = draw(constrain_rows(chosen))
    return constrain_rows(add(collected, drawn, min_std))

  return lax.while_loop(
    lambda collected: (collected.num_rounds < max_rounds) & ~collected.full,
    lambda collected: with_round(collected, collected.num_rounds),
    _zeros(jax.eval_shape(lambda: with_round(None, 0))),
  )


def metrics(collected: Collected) -> Metrics:
  """What is said of all that was drawn, beside what the step trains on.

  Returns:
    `drawn/rounds`, `drawn/groups`, the share `drawn/live` of these that were
    live, `drawn/missing`, the live groups that a batch is short of, and
    `drawn/reward` and `drawn/accuracy` over all rows drawn, which the
    choice of groups does not bias as it does `reward/mean` and `accuracy`; NaN
    where none of them was scored.
    `tokens/generated` and `completions/generated` count the dropped groups too,
    in the place of the numbers that the batch gives.
  """
  counts = collected.counts
  rounds = collected.num_rounds.astype(jnp.float32)
  num_groups = rounds * len(collected.groups.prompts.ids)
  num_rows = rounds * len(collected.groups.rollout.tokens)
  num_valid = jnp.where(counts["valid"] > 0, counts["valid"], jnp.nan)
  return {
    "drawn/rounds": rounds,
    "drawn/groups": num_groups,
    "drawn/live": counts["live"] / num_groups,
    "drawn/missing": _missing(collected).astype(jnp.float32),
    "drawn/reward": counts["reward"] / num_valid,
    "drawn/accuracy": counts["correct"] / num_valid,
    "completions/generated": num_rows,
    "tokens/generated": counts["tokens"],
  }
