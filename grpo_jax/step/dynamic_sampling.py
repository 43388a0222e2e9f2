"""Dynamic sampling and replay: batches of live groups of completions.

A group is live if its rewards are not all equal; a dead group trains nothing.
Two mechanisms fill a batch with live groups, and both let groups wait in the
state for a later step. Waiting groups keep all records of their draw: their
tokens have the version and the log-probs of the policy that wrote them, so the
corrections of an update and `staleness/mean` reflect their age.

Dynamic sampling draws rounds until a batch is full of live groups. A round is a
batch of prompts, sampled and scored. The live groups of each round stay, until
there are as many as a round has prompts. The random keys belong to the prompts
and not to their places, so a group has the tokens that it would have in one
large batch.

`when_short` decides what a step does if its rounds end with too few live
groups:

    "fewer"      trains on the live groups (the other groups are masked)
    "error"      trains nothing, and the run ends (verl)
    "duplicate"  if more than half of the groups are live, repeats them in
                 their order until the batch is full; if not, trains nothing
                 (GLM-5)

Live groups beyond a batch, the surplus, are dropped or recycled. Recycled
groups wait in the state, and the rounds of the next step begin with them. They
are fewer than a batch and come first, so none waits for longer than one step.
Rollouts of a step that trains nothing are not a surplus; they are dropped.

Source: Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at
Scale", arXiv:2503.14476, Section 3.2. GLM-5 Team, "GLM-5: from Vibe Coding to
Agentic Engineering", arXiv:2602.15763, for "duplicate".

Replay puts live groups of earlier steps in the place of dead groups. A buffer
keeps groups with a high spread of rewards:

    score = Σ_g |A_g| · s,   s the deviation of the rewards of the group

The buffer keeps the K groups with the highest scores so far. In each step the
live groups enter the buffer first. Then a group is drawn for each dead group,
with probability in proportion to its score. The drawn groups are different, or,
if the buffer has fewer groups than there are dead ones, drawn with replacement.
While the buffer is empty, dead groups stay.

Source: TRL, `GRPOWithReplayBufferTrainer` (experimental). Deviations:
- The advantage of a replayed group is computed anew from its rewards, with all
  shaping. Its ratio is taken against the policy at the start of the update, and
  its importance weights against the policy that has drawn it; TRL takes the
  current policy for both unless its steps are misaligned.
- All live groups of a step enter the buffer; in TRL 1.13 only the first did.
- A group that was not scored is dead.
- Of equal scores the older group stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import baselines, masked
from grpo_jax.step import features
from grpo_jax.types import Metrics, Prompts, PyTree, Rollout, Scored, TrainState

# Folded into the key of an update, for draws of groups to replay.
_REPLAYED = 13


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Groups:
  """P prompts with G scored completions of each, in the sampler's order.

  Attributes:
    prompts: P prompts.
    rollout: Rows b = p · G + g.
    greedy: Scores of the greedy completion of each prompt, if needed.
  """

  prompts: Prompts
  rollout: Rollout
  scored: Scored
  greedy: Scored | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Collected:
  """The groups collected by the rounds so far, with counts over all rounds.

  Attributes:
    groups: The first P live groups, in the order in which they were drawn. If
      there are fewer, dead groups of the last round follow.
    surplus: P groups, the live groups beyond the batch first, in their order.
      None if the surplus is dropped.
    full: True if P groups are live.
    counts: Sums over all rollouts, kept or not: "live" groups, "valid" and
      "correct" rows, their "reward", "tokens".
  """

  groups: Groups
  surplus: Groups | None
  num_recycled: jax.Array  # [] int32
  num_rounds: jax.Array  # [] int32
  full: jax.Array  # [] bool
  counts: dict[str, jax.Array]  # each [] float32


def live_groups(groups: Groups, min_std: float = 0.0) -> jax.Array:  # [P] bool
  """True for groups with unequal rewards; see `baselines.live_groups`."""
  rollout, scored = groups.rollout, groups.scored
  return baselines.live_groups(
    scored.rewards, scored.valid, rollout.group_id, rollout.num_groups, min_std
  )


def merge(
  earlier: Groups, new: Groups, min_std: float = 0.0
) -> tuple[Groups, Groups]:
  """Merges groups into the first P live ones and the P that remain.

  Both have P groups. Live groups of `earlier` come before those of `new`. If
  fewer than P are live, dead groups of `new` follow, never those of `earlier`.
  In both results live groups come first, and groups are numbered anew.
  """
  num_groups = len(new.prompts.ids)
  rank = jnp.concatenate(
    [
      jnp.where(live_groups(earlier, min_std), 0, 2),
      jnp.where(live_groups(new, min_std), 0, 1),
    ]
  )  # [2P]
  order = jnp.argsort(rank, stable=True)
  all_groups = concatenate(earlier, new)
  return (
    select(all_groups, order[:num_groups], new),
    select(all_groups, order[num_groups:], new),
  )


def concatenate(first: Groups, second: Groups) -> Groups:
  """Returns the groups of both; row numbers are not shifted."""
  # The weights of components are scalars, the same in each round.
  return jax.tree.map(
    lambda x, y: jnp.concatenate([x, y]) if y.ndim else y, first, second
  )


def select(
  groups: Groups,
  order: jax.Array,  # [P] int
  like: Groups,
) -> Groups:
  """Returns the groups at these places, numbered as the groups of `like`."""

  def pick(x, of_like):  # x [K, ...] or [K · G, ...] of K groups.
    if not x.ndim:
      return x
    rows = len(of_like) // len(order)  # Rows of each group.
    by_group = x.reshape(-1, rows, *x.shape[1:])
    return by_group[order].reshape(of_like.shape)

  result = jax.tree.map(pick, groups, like)
  rollout = dataclasses.replace(
    result.rollout,
    prompt_index=like.rollout.prompt_index,
    group_id=like.rollout.group_id,
  )
  return dataclasses.replace(result, rollout=rollout)


def choose_groups(
  collected: Collected, when_short: str = "fewer"
) -> tuple[Groups, jax.Array | None]:
  """Chooses the groups that a step trains on.

  Args:
    collected: The groups that its rounds have collected.
    when_short: "fewer", "error" or "duplicate". Static.

  Returns:
    P groups, and True if the step trains at all; None: it always trains.
  """
  groups = collected.groups
  if when_short == "fewer":
    return groups, None
  if when_short == "error":
    return groups, collected.full
  size = len(groups.prompts.ids)  # P
  place = jnp.arange(size)
  num_live = size - _missing(collected)  # Live groups come first.
  trains = 2 * num_live > size
  # If all groups are live, each stays where it is.
  order = jnp.where(trains, place % jnp.maximum(num_live, 1), place)
  return select(groups, order, groups), trains


def _missing(collected: Collected) -> jax.Array:  # [] int32
  """Number of live groups that the batch lacks."""
  return jnp.maximum(-_beyond(collected), 0)


def _beyond(collected: Collected) -> jax.Array:  # [] int32
  """Number of live groups beyond a batch; negative if there are too few."""
  live = collected.counts["live"].astype(jnp.int32) + collected.num_recycled
  return live - len(collected.groups.prompts.ids)


def add(
  collected: Collected | None,
  new: Groups,
  min_std: float = 0.0,
  recycled: Groups | None = None,
) -> Collected:
  """Adds a round to the collected groups.

  Args:
    collected: Groups of the rounds before; None before the first round.
    recycled: For the first round, the surplus with which the step begins; None
      if a surplus is not kept.
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
    # Groups of zeros are dead, and dead groups of the past are not kept.
    collected = Collected(
      groups=nothing(new),
      surplus=None,
      num_recycled=jnp.int32(0),
      num_rounds=jnp.int32(0),
      full=jnp.bool(False),
      counts=nothing(counts),
    )
    if recycled is not None:
      collected = _start(collected, recycled, min_std)
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


def _start(collected: Collected, recycled: Groups, min_std: float) -> Collected:
  """The state before the first round, with an earlier step's surplus."""
  count = live_groups(recycled, min_std).sum(dtype=jnp.int32)
  return dataclasses.replace(
    collected, groups=recycled, surplus=recycled, num_recycled=count
  )


def nothing(like: PyTree) -> PyTree:
  """Zeros of these shapes; groups of zeros are dead."""
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)


def collect(
  draw: Callable[[Prompts], Groups],
  prompts: Prompts,
  max_rounds: int,
  constrain_rows: Callable[[PyTree], PyTree],
  min_std: float = 0.0,
  recycled: Groups | None = None,
) -> Collected:
  """Draws rounds until P groups are live, in one loop of the program.

  Args:
    draw: Samples and scores a round; compiled once.
    prompts: R · P prompts, in the order in which they are drawn.
    max_rounds: R. Static.
    constrain_rows: As in `Phase`.
    recycled: The surplus of an earlier step; it has fewer than P live groups,
      so at least one round is drawn. None if a surplus is not kept.

  Returns:
    P groups; fewer than P are live if the rounds had fewer live groups.
  """
  size = len(prompts.ids) // max_rounds  # P

  def with_round(collected, number):
    round_prompts = jax.tree.map(
      lambda x: lax.dynamic_slice_in_dim(x, number * size, size), prompts
    )
    groups = draw(constrain_rows(round_prompts))
    return constrain_rows(add(collected, groups, min_std, recycled))

  start = nothing(jax.eval_shape(lambda: with_round(None, 0)))
  if recycled is not None:
    start = _start(start, recycled, min_std)
  return lax.while_loop(
    lambda collected: (collected.num_rounds < max_rounds) & ~collected.full,
    lambda collected: with_round(collected, collected.num_rounds),
    start,
  )


def metrics(collected: Collected) -> Metrics:
  """Metrics of all rollouts of a step, beside those of its batch.

  Returns:
    `drawn/rounds`, `drawn/groups` and the share `drawn/live` of these that are
    live. `drawn/missing`, the live groups that the batch lacks, and
    `drawn/surplus`, the live groups beyond it. `drawn/reward` and
    `drawn/accuracy` over all rows drawn: unlike `reward/mean` and `accuracy`,
    they are not biased by the choice of groups; NaN if no row was scored.
    `tokens/generated` and `completions/generated` also count the dropped
    groups, and replace the numbers of the batch. If a surplus is kept,
    `drawn/recycled` counts the groups of the batch that an earlier step has
    drawn; all other metrics are about the draws of this step.
  """
  counts = collected.counts
  rounds = collected.num_rounds.astype(jnp.float32)
  num_groups = rounds * len(collected.groups.prompts.ids)
  num_rows = rounds * len(collected.groups.rollout.tokens)
  num_valid = jnp.where(counts["valid"] > 0, counts["valid"], jnp.nan)
  values = {
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
    values["drawn/recycled"] = collected.num_recycled.astype(jnp.float32)
  return values


class ReplayMix(NamedTuple):
  """A batch with replayed groups."""

  groups: Groups
  state: PyTree
  metrics: Metrics


def scores(
  groups: Groups, scale: str, min_std: float = 0.0, eps: float = 1e-6
) -> jax.Array:  # [P] float32
  """Scores of groups for replay: Σ |A| · s; 0 for a dead group.

  Args:
    scale: A is the reward minus the mean of the group, divided by the deviation
      of the "group" or of the "batch", or "none".
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
  key: jax.Array, score: jax.Array, count: jax.Array, limit: int
) -> jax.Array:  # [most] int32
  """Draws places of a buffer with probabilities in proportion to their scores.

  Args:
    score: Score of each place [K]; 0 for an empty place.
    count: Number of places that the caller needs, the first ones. They are
      different if the buffer has at least `count` groups.
    limit: Upper bound of `count`. Static.
  """
  once_key, again_key = jax.random.split(key)
  logits = jnp.log(score)  # −inf for an empty place.
  noise = jax.random.gumbel(once_key, score.shape)
  once = jnp.argsort(-(logits + noise), stable=True)
  once = jnp.resize(once, (limit,))  # Entries beyond K are not read.
  again = jax.random.categorical(again_key, logits, shape=(limit,))
  return jnp.where(count <= (score > 0).sum(), once, again).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class Replay:
  """The replay buffer of a phase.

  Attributes:
    size: K, the most groups in the buffer.
    scale, eps, min_std: As in `scores`.
  """

  size: int
  scale: str = "group"
  eps: Any = 1e-6
  min_std: Any = 0.0

  def init(self, groups: Groups) -> PyTree:
    """Returns an empty buffer.

    Args:
      groups: A round, or its shapes.

    Returns:
      `groups`, K of them; `score` of each, 0 in an empty place; and `step`, the
      step in which each came.
    """
    num_groups = len(groups.prompts.ids)

    def empty(x):
      if not x.ndim:
        return jnp.zeros((), x.dtype)
      rows = len(x) // num_groups * self.size
      return jnp.zeros((rows, *x.shape[1:]), x.dtype)

    return {
      "groups": jax.tree.map(empty, groups),
      "score": jnp.zeros(self.size, jnp.float32),
      "step": jnp.zeros(self.size, jnp.int32),
    }

  def mix(
    self, state: PyTree, fresh: Groups, key: jax.Array, step: jax.Array
  ) -> ReplayMix:
    """Stores live groups, and replaces dead groups by stored ones.

    Args:
      state: See `init`.
      step: Step of the run.
    """
    num_groups = len(fresh.prompts.ids)
    live = live_groups(fresh, self.min_std)  # [P]
    state = self._with(state, fresh, step)
    score = state["score"]
    places = choose(key, score, (~live).sum(), num_groups)
    # The first dead group gets the first chosen group, and so on.
    source = places[jnp.maximum(jnp.cumsum(~live) - 1, 0)]  # [P]
    replayed = ~live & (score > 0).any()
    place = jnp.arange(num_groups, dtype=jnp.int32)
    order = jnp.where(replayed, source, self.size + place)
    groups = select(concatenate(state["groups"], fresh), order, fresh)
    count = replayed.sum()
    ages = jnp.where(replayed, step - state["step"][source], 0).sum()
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
    """The K groups with the highest scores, of the buffer and of a step."""
    score = jnp.concatenate(
      [state["score"], scores(fresh, self.scale, self.min_std, self.eps)]
    )
    came = jnp.concatenate(
      [state["step"], jnp.full(len(fresh.prompts.ids), step, jnp.int32)]
    )
    order = jnp.argsort(-score, stable=True)[: self.size]
    all_groups = concatenate(state["groups"], fresh)
    return {
      "groups": select(all_groups, order, state["groups"]),
      "score": score[order],
      "step": came[order],
    }


@dataclasses.dataclass(frozen=True)
class Buffers(features.WaitingGroups):
  """The groups that a phase keeps for later steps.

  Attributes:
    prompts: Shapes of the prompts of a round.
    host_scores: Shapes of the scores of verifiers on the host for a round; None
      without such verifiers.
    recycles: True if the surplus of a step is kept.
    replay: The replay buffer; None: groups are not replayed.
  """

  prompts: Prompts
  host_scores: Any = None
  recycles: bool = False
  replay: Replay | None = None

  waits = True

  def enter(self, draw: Callable[..., Groups]) -> dict[str, PyTree]:
    """The state at the start of a phase, without kept groups.

    Args:
      draw: (prompts, scores of verifiers on the host) -> a round.
    """
    shapes = jax.eval_shape(draw, self.prompts, self.host_scores)
    state: dict[str, PyTree] = {}
    if self.recycles:
      state["surplus"] = nothing(shapes)
    if self.replay is not None:
      state["replay"] = self.replay.init(shapes)
    return state

  def mix(
    self,
    state: TrainState,
    groups: Groups,
    key: jax.Array,
    constrain_rows: Callable[[PyTree], PyTree],
  ) -> tuple[TrainState, Groups, Metrics]:
    """Replaces dead groups by replayed groups.

    The metrics of the batch then differ from the metrics of the rollouts, as in
    dynamic sampling with several rounds; those of the rollouts are returned.
    `key` is that of the update.
    """
    if self.replay is None:
      return state, groups, {}
    key = jax.random.fold_in(key, _REPLAYED)
    mixed = self.replay.mix(state.waiting["replay"], groups, key, state.step)
    of_rollouts = metrics(add(None, groups, self.replay.min_std))
    state = dataclasses.replace(
      state, waiting=state.waiting | {"replay": mixed.state}
    )
    return state, constrain_rows(mixed.groups), of_rollouts | mixed.metrics


def surplus(state: PyTree) -> Groups | None:
  """The surplus with which the rounds of a step begin, or None.

  Args:
    state: `TrainState.waiting`; None if the phase does not keep groups.
  """
  return None if state is None else state.get("surplus")


def with_surplus(state: TrainState, collected: Collected) -> TrainState:
  """The state with the surplus of the rounds of a step."""
  if collected.surplus is None:
    return state
  waiting = state.waiting | {"surplus": collected.surplus}
  return dataclasses.replace(state, waiting=waiting)
