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

Live groups beyond a batch are dropped, or are recycled: they wait in the state,
and the rounds of the next step begin with them. There are fewer of them than a
batch has, and they come first, so none waits for longer than one step. What a
step has drawn that trains nothing is no surplus, and is gone.

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
    surplus: P groups, of which the live ones come first: those beyond the
      batch, in their order. None where these are dropped.
    num_recycled: Live groups that the step has begun with.
    num_rounds: Rounds drawn.
    full: P groups are live.
    counts: Sums over all that was drawn, kept or not: "live" groups, "valid"
      and "correct" rows, their "reward", "tokens".
  """

  groups: Groups
  surplus: Groups | None
  num_recycled: jax.Array  # [] int32
  num_rounds: jax.Array  # [] int32
  full: jax.Array  # [] bool
  counts: dict[str, jax.Array]  # each [] float32


def live_groups(groups: Groups, min_std: float = 0.0) -> jax.Array:  # [P] bool
  """Which groups dynamic sampling trains on; see `baselines.live_groups`."""
  rollout, scored = groups.rollout, groups.scored
  return baselines.live_groups(
    scored.rewards, scored.valid, rollout.group_id, rollout.num_groups, min_std
  )


def merge(
  kept: Groups, new: Groups, min_std: float = 0.0
) -> tuple[Groups, Groups]:
  """The first P live groups of `kept`, then of `new`; and P that are left over.

  If fewer live, dead groups of `new` come after them: its P groups are always
  enough, so no dead one of `kept` stays. Of those that are left over the live
  ones come first. Both are numbered anew.
  """
  num_groups = len(new.prompts.ids)
  rank = jnp.concatenate(
    [
      jnp.where(live_groups(kept, min_std), 0, 2),
      jnp.where(live_groups(new, min_std), 0, 1),
    ]
  )  # [2P]
  order = jnp.argsort(rank, stable=True)
  both = joined(kept, new)
  return (
    taken(both, order[:num_groups], new),
    taken(both, order[num_groups:], new),
  )


def joined(one: Groups, other: Groups) -> Groups:
  """The groups of two, with the numbers of rows that each had."""
  # The weights of components are scalars, the same in each round.
  return jax.tree.map(
    lambda x, y: jnp.concatenate([x, y]) if y.ndim else y, one, other
  )


def taken(
  groups: Groups,
  order: jax.Array,  # [P] int
  like: Groups,
) -> Groups:
  """The groups at these places, numbered as those of `like`."""

  def one(x, of_like):  # x [K, ...] or [K · G, ...] of K groups.
    if not x.ndim:
      return x
    rows = len(of_like) // len(order)  # Of each group.
    by_group = x.reshape(-1, rows, *x.shape[1:])
    return by_group[order].reshape(of_like.shape)

  found = jax.tree.map(one, groups, like)
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
  return taken(groups, order, groups), trains


def _missing(collected: Collected) -> jax.Array:  # [] int32
  """Live groups that a batch is short of."""
  return jnp.maximum(-_beyond(collected), 0)


def _beyond(collected: Collected) -> jax.Array:  # [] int32
  """Live groups beyond a batch; negative where there are not enough."""
  live = collected.counts["live"].astype(jnp.int32) + collected.num_recycled
  return live - len(collected.groups.prompts.ids)


def add(
  collected: Collected | None,
  new: Groups,
  min_std: float = 0.0,
  recycled: Groups | None = None,
) -> Collected:
  """Adds a round to what others have left.

  Args:
    collected: None before the first round.
    new: The round.
    min_std: As in `live_groups`.
    recycled: The surplus that the step begins with, if it is the first round;
      None: no surplus is kept.
  """
  scored, valid = new.scored, new.scored.valid
  of_round = {
    "live": live_groups(new, min_std),
    "valid": valid,
    "correct": scored.correct & valid,
    "reward": masked.select(scored.rewards, valid),
    "tokens": new.rollout.num_drawn,
  }
  counts = {name: x.sum().astype(jnp.float32) for name, x in of_round.items()}
  if collected is None:
    # Groups of nothing are dead, and no dead one of the past is kept.
    collected = Collected(
      groups=_zeros(new),
      surplus=None,
      num_recycled=jnp.int32(0),
      num_rounds=jnp.int32(0),
      full=jnp.bool(False),
      counts=_zeros(counts),
    )
    if recycled is not None:
      collected = _begun(collected, recycled, min_std)
  counts = jax.tree.map(jnp.add, collected.counts, counts)
  groups, surplus = merge(collected.groups, new, min_std)
  added = dataclasses.replace(
    collected,
    groups=groups,
    surplus=None if collected.surplus is None else surplus,
    num_rounds=collected.num_rounds + 1,
    counts=counts,
  )
  return dataclasses.replace(added, full=_beyond(added) >= 0)


def _begun(collected: Collected, recycled: Groups, min_std: float) -> Collected:
  """No round yet, and the live groups of an earlier step's surplus."""
  count = live_groups(recycled, min_std).sum(dtype=jnp.int32)
  return dataclasses.replace(
    collected, groups=recycled, surplus=recycled, num_recycled=count
  )


def nothing(like: Groups) -> Groups:
  """Groups of these shapes, all of which are dead."""
  return _zeros(like)


def _zeros(like: PyTree) -> PyTree:
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def collect(
  draw: Callable[[Prompts], Groups],
  prompts: Prompts,
  max_rounds: int,
  constrain_rows: Callable[[PyTree], PyTree],
  min_std: float = 0.0,
  recycled: Groups | None = None,
) -> Collected:
  """Draws rounds until the groups are full, in one loop of the program.

  Args:
    draw: Samples and scores a round; compiled once.
    prompts: R · P prompts, in the order in which they are drawn.
    max_rounds: R. Static.
    constrain_rows: As in `Parts`.
    min_std: As in `live_groups`.
    recycled: The surplus of an earlier step, which is fewer than P groups: one
      round is always drawn. None: no surplus is kept.

  Returns:
    P groups; fewer of them live than P if all rounds did not have as many.
  """
  size = len(prompts.ids) // max_rounds  # P

  def with_round(collected, number):
    chosen = jax.tree.map(
      lambda x: lax.dynamic_slice_in_dim(x, number * size, size), prompts
    )
    drawn = draw(constrain_rows(chosen))
    return constrain_rows(add(collected, drawn, min_std, recycled))

  start = _zeros(jax.eval_shape(lambda: with_round(None, 0)))
  if recycled is not None:
    start = _begun(start, recycled, min_std)
  return lax.while_loop(
    lambda collected: (collected.num_rounds < max_rounds) & ~collected.full,
    lambda collected: with_round(collected, collected.num_rounds),
    start,
  )


def metrics(collected: Collected) -> Metrics:
  """What is said of all that was drawn, beside what the step trains on.

  Returns:
    `drawn/rounds`, `drawn/groups`, the share `drawn/live` of these that were
    live, `drawn/missing`, the live groups that a batch is short of,
    `drawn/surplus`, those beyond it, and `drawn/reward` and `drawn/accuracy`
    over all rows drawn, which the choice of groups does not bias as it does
    `reward/mean` and `accuracy`; NaN where none of them was scored.
    `tokens/generated` and `completions/generated` count the dropped groups too,
    in the place of the numbers that the batch gives. Where a surplus is kept,
    `drawn/recycled` are the groups of the batch that an earlier step has drawn,
    and all others are of what this step has.
  """
  counts = collected.counts
  rounds = collected.num_rounds.astype(jnp.float32)
  num_groups = rounds * len(collected.groups.prompts.ids)
  num_rows = rounds * len(collected.groups.rollout.tokens)
  num_valid = jnp.where(counts["valid"] > 0, counts["valid"], jnp.nan)
  found = {
    "drawn/rounds": rounds,
    "drawn/groups": num_groups,
    "drawn/live": counts["live"] / num_groups,
    "drawn/missing": _missing(collected).astype(jnp.float32),
    "drawn/surplus": jnp.maximum(_beyond(collected), 0).astype(jnp.float32),
    "drawn/reward": counts["reward"] / num_valid,
    "drawn/accuracy": counts["correct"] / num_valid,
    "completions/generated": num_rows,
    "tokens/generated": counts["tokens"],
  }
  if collected.surplus is not None:
    found["drawn/recycled"] = collected.num_recycled.astype(jnp.float32)
  return found
