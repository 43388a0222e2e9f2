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

Groups with a high spread of rewards, replayed in the place of dead ones.

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

Groups of completions that wait in the state for a later step.

Two things wait: the surplus of dynamic sampling, with which the next step
begins (`dynamic_sampling.py`), and groups that are replayed in the place of
dead ones (`dynamic_sampling.py`). Both keep all that was recorded while they
were drawn: their tokens have the version and the log-probs of the policy that
wrote them, so the corrections of an update and `staleness/mean` see how old
they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

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
    when_short: "fewer", "error" or "duplicate". Static.

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


class ReplayMix(NamedTuple):
  """A batch of which some groups are replayed.

  Attributes:
    groups: What is trained on.
    state: The buffer after the step.
    metrics: What there is to say.
  """

  groups: Groups
  state: PyTree
  metrics: Metrics


def scores(
  groups: Groups,
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
  live = live_groups(groups, min_std)
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

  def init(self, drawn: Groups) -> PyTree:
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
    fresh: Groups,
    key: jax.Array,
    step: jax.Array,
  ) -> ReplayMix:
    """Keeps live groups, and puts kept ones in the place of dead ones.

    Args:
      state: See `init`.
      fresh: P groups.
      key: For the choice.
      step: Of the run.
    """
    num_groups = len(fresh.prompts.ids)
    live = live_groups(fresh, self.min_std)  # [P]
    state = self._with(state, fresh, step)
    score = state["score"]
    chosen = choose(key, score, (~live).sum(), num_groups)
    # The first dead group has the first of them, and so on.
    own = chosen[jnp.maximum(jnp.cumsum(~live) - 1, 0)]  # [P]
    replayed = ~live & (score > 0).any()
    place = jnp.arange(num_groups, dtype=jnp.int32)
    order = jnp.where(replayed, own, self.size + place)
    groups = taken(joined(state["groups"], fresh), order, fresh)
    count = replayed.sum()
    ages = jnp.where(replayed, step - state["step"][own], 0).sum()
    return ReplayMix(
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

  def _with(self, state: PyTree, fresh: Groups, step: jax.Array) -> PyTree:
    """The K groups with the highest scores of the buffer and of a step."""
    score = jnp.concatenate(
      [state["score"], scores(fresh, self.scale, self.min_std, self.eps)]
    )
    came = jnp.concatenate(
      [state["step"], jnp.full(len(fresh.prompts.ids), step, jnp.int32)]
    )
    order = jnp.argsort(-score, stable=True)[: self.size]
    both = joined(state["groups"], fresh)
    return {
      "groups": taken(both, order, state["groups"]),
      "score": score[order],
      "step": came[order],
    }


@dataclasses.dataclass(frozen=True)
class Buffers:
  """What a phase keeps of the groups that it draws.

  Attributes:
    prompts: Shapes of the prompts of a round.
    said: Shapes of what verifiers on the host say of a round; None: none is
      asked.
    recycles: Whether the surplus of a step is kept.
    replay: Which groups are replayed; None: none are.
  """

  prompts: Prompts
  said: Any = None
  recycles: bool = False
  replay: Replay | None = None

  def enter(self, drawn: Groups) -> dict[str, PyTree]:
    """The state at the start of a phase: nothing waits.

    Args:
      drawn: A round, or its shapes.
    """
    state: dict[str, PyTree] = {}
    if self.recycles:
      state["surplus"] = nothing(drawn)
    if self.replay is not None:
      state["replay"] = self.replay.init(drawn)
    return state


def surplus(state: PyTree) -> Groups | None:
  """The groups that the rounds of a step begin with.

  Args:
    state: `TrainState.kept`; None where a phase keeps nothing.
  """
  return None if state is None else state.get("surplus")


def with_surplus(state: PyTree, collected: Collected) -> PyTree:
  """`TrainState.kept` with what the rounds of a step have left over."""
  if collected.surplus is None:
    return state
  return state | {"surplus": collected.surplus}
