"""Schedules: the choice of a step's prompts from the results of earlier steps.

    state = schedule.enter(key, step=0)   # state["places"]: of the first step
    state, metrics = schedule.update(state, feedback, step=0)

The pool is the N prompts that a phase may draw; a place is a number below N. A
schedule is an object without memory. Its statistics are arrays in `TrainState`,
as are the places of the next step. So a run that was killed continues with the
same prompts, and all processes have them without communication.

There are three schedules. `Curriculum` weights prompts by how often they are
solved; see the class.

`Ads` draws clusters of prompts, and prompts of the right difficulty in them.
Prompts are clustered by their topic. The prompts of a cluster are ordered by
the probability of their reference solution under the first policy, the
likeliest first: this is their position. A cluster k has a mini-cluster M_k of B
positions, at first the B easiest. A step draws C clusters without replacement
by p and trains on all prompts of their mini-clusters. With ρ the share of right
completions of a prompt,

    r_k ← mean of ρ over M_k  for clusters that were drawn
    p   ← (1 − α) p + α r / Σ r

A prompt with |ρ − ½| ≤ tolerance keeps its position in M_k. The position of
others moves by one: one harder if ρ is higher, one easier if it is lower
(`moved`). After N / (C B) steps the schedule starts anew.

Source: "ADS: Adaptive Data Scheduling", arXiv:2606.22305, and the code of its
authors. Cases that they leave open: a prompt without a scored completion keeps
its position, a cluster without one keeps its r, and Σ r = 0 counts as equal r.
A position at the end of its direction goes to the nearest free position on the
other side.

`SingleStream` is the choice of SPO: counts that are forgotten as the policy
moves. a and b count right and wrong completions of each prompt, with
φ = a / (a + b). With D the mean of abs(log π_then − log π_now) over the tokens
of the prompt's previous completion,

    ρ ← clip(2^(−D / 0.06), ρ_low, 0.96)
    a ← ρ a + right,   b ← ρ b + (scored − right)
    weight of a prompt = √(φ (1 − φ)) + 0.05

each time that the prompt is drawn; D is 0 without a previous completion. The
previous completion of every prompt of the pool is part of the state. A pass of
the policy over those of a step's prompts, before the update, gives D.

Source: Xu and Ding, "Single-stream Policy Optimization", arXiv:2509.13232, and
verl's recipe `spo`. There both policies are taken after the update, so D covers
the same number of updates. The recipe draws from a loaded batch; here the whole
pool is that batch.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.ops import masked
from grpo_jax.step import features, models, passes
from grpo_jax.step.dynamic_sampling import Groups
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.types import (
  Metrics,
  Policy,
  PyTree,
  TrainBatch,
  TrainState,
  set_fields,
)

# Folded into the key of a step, for the draws of a schedule.
_DRAW = 11
# a and b of every prompt before its first completion.
PRIOR = 1.0
# Weight of a prompt that is always solved, or never, beside φ(1 − φ).
_LEAST = 1e-3


class Samples(NamedTuple):
  """A completion of each prompt, and its log-probs under the sampling policy.

  Attributes:
    completion_mask: True on tokens that exist.
    mask: True on tokens that the policy wrote.
    logp: Log-prob of each token when it was drawn, at the temperature of
      training, in nats; 0 without a token.
  """

  tokens: jax.Array  # [P, T] int32
  completion_mask: jax.Array  # [P, T] bool
  mask: jax.Array  # [P, T] bool
  logp: jax.Array  # [P, T] float32


class Feedback(NamedTuple):
  """The results of the prompts of a step.

  Attributes:
    right: Number of right completions of each prompt.
    scored: Number of scored completions of each prompt.
    samples: One completion of each prompt; None unless the schedule keeps
      samples.
    drift: Change of the policy's log-probs of each prompt's previous sample,
      nats per token; 0 without a previous sample. None if `samples` is None.
  """

  right: jax.Array  # [P] float32
  scored: jax.Array  # [P] float32
  samples: Samples | None = None
  drift: jax.Array | None = None  # [P] float32


class PoolSchedule(features.Schedule):
  """A choice of P different places of a pool of N."""

  chooses = True

  def init(self) -> dict[str, jax.Array]:
    """The state before the first step."""
    raise NotImplementedError

  def draw(
    self, state: PyTree, key: jax.Array, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], jax.Array]:
    """Draws the places [P] of step `step` of the phase, counted from 0."""
    raise NotImplementedError

  def update(
    self, state: PyTree, feedback: Feedback, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], Metrics]:
    """The state and metrics after the step with prompts `state["places"]`."""
    raise NotImplementedError

  def enter(self, key: jax.Array, step: Any) -> PyTree:
    """The state at the start of a phase, with the places of its first step."""
    return self._with_places(self.init(), key, step, 0)

  def advance(
    self, state: TrainState, feedback: Feedback
  ) -> tuple[TrainState, Metrics]:
    """The state after a step, with the places of the next one.

    `state` is the one after the update, and `feedback` is about its prompts.
    """
    past, step = state.schedule, state.phase_step
    following, metrics = self.update(past, feedback, step - 1)
    schedule = self._with_places(following, state.key, state.step, step)
    return dataclasses.replace(state, schedule=schedule), metrics

  def _with_places(self, state, key, step, phase_step) -> PyTree:
    draw_key = jax.random.fold_in(jax.random.fold_in(key, step), _DRAW)
    state, places = self.draw(state, draw_key, phase_step)
    return state | {"places": places.astype(jnp.int32)}

  def feedback(self, groups: Groups) -> Feedback:
    """Counts right and scored completions of each prompt.

    A completion in several rows counts once. An unscored completion does not
    count. Of a corrected completion the draft counts, because the policy has
    written the draft by itself.
    """
    rollout, scored = groups.rollout, groups.scored
    valid, correct = scored.valid, scored.correct
    if rollout.corrections is not None:
      valid, correct = rollout.corrections.valid, rollout.corrections.correct
    is_counted = valid & rollout.is_last  # [B]

    def total(rows):
      count = jnp.zeros(len(groups.prompts.ids), jnp.float32)
      return count.at[rollout.prompt_index].add(rows.astype(jnp.float32))

    return Feedback(total(is_counted & correct), total(is_counted))

  def expected(self, state: TrainState, groups: Groups) -> jax.Array:  # [B]
    """The φ of each row's prompt, for a schedule that counts completions."""
    places = state.schedule["places"]
    return success(state.schedule)[places[groups.rollout.prompt_index]]


def success(state: PyTree) -> jax.Array:  # [N]
  """The estimated success probability of each prompt, φ = a / (a + b)."""
  return state["a"] / (state["a"] + state["b"])


def track(
  state: PyTree,
  feedback: Feedback,
  step: jax.Array | int,
  decay: Any,  # [] or [P]
) -> dict[str, jax.Array]:
  """Updates the counts of the prompts at `state["places"]`.

      a ← g a + right,   b ← g b + (scored − right)

  Prompts without a scored completion stay as they are.

  Args:
    state: "a", "b", "visits" and "last_step" of N prompts.
    step: Step of the phase, from 0.
    decay: g, the remaining weight of earlier completions.
  """
  places = state["places"]
  is_scored = feedback.scored > 0  # [P]

  def changed(name, value):
    old = state[name][places]
    value = jnp.where(is_scored, value, old).astype(old.dtype)
    return state[name].at[places].set(value)

  num_wrong = feedback.scored - feedback.right
  return dict(state) | {
    "a": changed("a", decay * state["a"][places] + feedback.right),
    "b": changed("b", decay * state["b"][places] + num_wrong),
    "visits": changed("visits", state["visits"][places] + 1),
    "last_step": changed("last_step", jnp.asarray(step)),
  }


def untried(size: int, prior: float) -> dict[str, jax.Array]:
  """The state of N prompts before their first completions."""
  return {
    "a": jnp.full(size, prior, jnp.float32),
    "b": jnp.full(size, prior, jnp.float32),
    "visits": jnp.zeros(size, jnp.int32),
    "last_step": jnp.full(size, -1, jnp.int32),
  }


def without_replacement(
  key: jax.Array, probabilities: jax.Array, count: int
) -> jax.Array:  # [N] -> [count]
  """Draws different places one by one, in proportion to probabilities.

  Places of probability 0 come last, in random order.

  Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
  2006, in its form with Gumbel noise.
  """
  noise = jax.random.gumbel(key, probabilities.shape)
  # 1e-30 is far below the probability of any prompt of a pool.
  logits = jnp.log(jnp.maximum(probabilities, 1e-30))
  return jax.lax.top_k(logits + noise, count)[1]


@dataclasses.dataclass(frozen=True)
class Curriculum(PoolSchedule):
  """Weights of prompts by how often they are solved.

  With φ of `success` and u the uniform share, the probability of a prompt is

      p(x) = (1 − u) w(x) / Σ w + u / N

  | rule           | w(x)                                                     |
  |----------------|----------------------------------------------------------|
  | `uniform`      | 1                                                        |
  | `frontier`     | φ (1 − φ) + 0.001                                        |
  | `easy_to_hard` | 1 among the easiest q N prompts, else 0                  |
  | `hard_to_easy` | 1 among the hardest q N prompts, else 0                  |
  | `interleave`   | half of the weight by each of these two                  |
  | `target`       | 1 among the P prompts with the least abs(φ − ½), else 0  |

  with q = min(1, q₀ + (1 − q₀) step / pace). Ties with the last of these
  prompts are included: before the first completion, all prompts are.

  Attributes:
    size: N.
    num_prompts: P.
    uniform_share: u.
    decay: g of `track`.
    start_share: q₀.
    pace_steps: Steps after which q is 1.
  """

  rule: str
  size: int
  num_prompts: int
  uniform_share: Any = 0.1
  decay: Any = 0.9
  start_share: Any = 0.2
  pace_steps: Any = 100

  def init(self) -> dict[str, jax.Array]:
    return untried(self.size, PRIOR)

  def draw(self, state, key, step):
    p = self.probabilities(success(state), step)
    return dict(state), without_replacement(key, p, self.num_prompts)

  def update(self, state, feedback, step):
    following = track(state, feedback, step, self.decay)
    return following, metrics(state, following)

  def probabilities(
    self, rate: jax.Array, step: jax.Array | int
  ) -> jax.Array:  # [N] -> [N]
    """The probabilities p(x) from φ; see the class."""
    weights = WEIGHTS[self.rule](self, rate, step)
    weights = weights / weights.sum()
    share = self.uniform_share
    return (1 - share) * weights + share / self.size

  def easiest(
    self, rate: jax.Array, step: jax.Array | int
  ) -> jax.Array:  # [N] -> [N] float32
    """Marks the easiest share q of prompts by 1."""
    start = self.start_share
    pace = jnp.asarray(step, jnp.float32) / self.pace_steps
    share = jnp.minimum(1.0, start + (1 - start) * pace)
    # 0.2 · 10 is slightly above 2 in float32, and 2 prompts are meant.
    count = jnp.ceil(share * self.size - 1e-3).astype(jnp.int32)
    return _least(1 - rate, jnp.clip(count, 1, self.size))


def _least(x: jax.Array, count: Any) -> jax.Array:  # [N] -> [N] float32
  """Marks the `count` least entries of x, and ties with the last, by 1."""
  return (x <= jnp.sort(x)[count - 1]).astype(jnp.float32)


def _half_each(one: jax.Array, other: jax.Array) -> jax.Array:  # [N]
  return one / one.sum() + other / other.sum()


WEIGHTS = {
  "uniform": lambda own, rate, step: jnp.ones_like(rate),
  "frontier": lambda own, rate, step: rate * (1 - rate) + _LEAST,
  "easy_to_hard": lambda own, rate, step: own.easiest(rate, step),
  "hard_to_easy": lambda own, rate, step: own.easiest(1 - rate, step),
  "interleave": lambda own, rate, step: _half_each(
    own.easiest(rate, step), own.easiest(1 - rate, step)
  ),
  "target": lambda own, rate, step: _least(
    jnp.abs(rate - 0.5), own.num_prompts
  ),
}


def metrics(before: PyTree, after: PyTree) -> Metrics:
  """Metrics of a tracking schedule after a step.

  Args:
    before: The state that drew the prompts.
    after: The state with the results of the prompts.

  Returns:
    `schedule/success` over the pool; `schedule/expected`, the estimate for the
    drawn prompts before the step; `schedule/seen`, the share of the pool that
    has been drawn; and `schedule/most_visits` of a prompt.
  """
  return {
    "schedule/success": success(after).mean(),
    "schedule/expected": success(before)[before["places"]].mean(),
    **coverage(after["visits"]),
  }


def coverage(visits: jax.Array) -> Metrics:  # [N]
  """`schedule/seen` and `schedule/most_visits`, from visits of each prompt."""
  return {
    "schedule/seen": (visits > 0).mean(dtype=jnp.float32),
    "schedule/most_visits": visits.max().astype(jnp.float32),
  }


# r of every cluster before its first completions.
_START = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Ads(PoolSchedule):
  """A `Schedule` over clusters of prompts; see the module.

  Attributes:
    order: Places of the pool, those of the first cluster first, and in each
      cluster the easiest first.
    sizes: Number of prompts of each cluster, B or more; 0 for padding, so that
      runs with fewer clusters have arrays of the same shape.
    num_drawn: C.
    window: B.
    rate: α.
    tolerance: Distance of ρ from ½ within which a prompt keeps its position.
  """

  order: np.ndarray  # [N] int32
  sizes: np.ndarray  # [K] int32
  num_drawn: int = 4
  window: int = 32
  rate: Any = 0.3
  tolerance: Any = 0.17

  @property
  def period(self) -> int:
    """Number of steps after which the schedule starts anew."""
    return max(len(self.order) // (self.num_drawn * self.window), 1)

  def init(self) -> dict[str, jax.Array]:
    """The state before the first step; see `PoolSchedule`.

    The clusters are part of the state, because runs that share one program have
    different clusters.
    """
    sizes = jnp.asarray(self.sizes, jnp.int32)
    return {
      "order": jnp.asarray(self.order, jnp.int32),
      "sizes": sizes,
      "clusters": jnp.zeros(self.num_drawn, jnp.int32),
      "visits": jnp.zeros(len(self.order), jnp.int32),
      **self._anew(sizes),
    }

  def _anew(self, sizes: jax.Array) -> dict[str, jax.Array]:
    """The part of the state that starts anew in each period."""
    exists = sizes > 0
    first = jnp.arange(self.window, dtype=jnp.int32)
    return {
      "p": exists / exists.sum(dtype=jnp.float32),
      "r": jnp.where(exists, _START, 0.0),
      "windows": jnp.tile(first, (len(sizes), 1)),
    }

  def draw(self, state, key, step):
    """See `PoolSchedule`; the prompts of a cluster are adjacent."""
    del step
    clusters = without_replacement(key, state["p"], self.num_drawn)
    starts = jnp.cumsum(state["sizes"]) - state["sizes"]  # [K]
    ranks = starts[clusters, None] + state["windows"][clusters]  # [C, B]
    places = state["order"][ranks].reshape(-1)
    return dict(state) | {"clusters": clusters}, places

  def update(self, state, feedback, step):
    clusters = state["clusters"]
    shape = self.num_drawn, self.window
    scored = feedback.scored.reshape(shape)
    valid = scored > 0
    rho = feedback.right.reshape(shape) / jnp.maximum(scored, 1)  # [C, B]
    means = jnp.where(valid, rho, 0).sum(1) / jnp.maximum(valid.sum(1), 1)
    means = jnp.where(valid.any(1), means, state["r"][clusters])
    r = state["r"].at[clusters].set(means)
    windows = jax.vmap(moved)(
      state["windows"][clusters],
      jnp.where(valid, moves(rho, self.tolerance), 0),
      state["sizes"][clusters],
    )
    changed = {
      "p": mixed(state["p"], r, state["sizes"] > 0, self.rate),
      "r": r,
      "windows": state["windows"].at[clusters].set(windows),
    }
    ends = (jnp.asarray(step) + 1) % self.period == 0
    anew = self._anew(state["sizes"])
    following = dict(state) | {
      name: jnp.where(ends, anew[name], value)
      for name, value in changed.items()
    }
    following["visits"] = state["visits"].at[state["places"]].add(1)
    metrics = {
      "schedule/success": masked.mean(r, state["sizes"] > 0),
      "schedule/expected": state["r"][clusters].mean(),
      **coverage(following["visits"]),
      "schedule/depth": self._depth(state | changed),
      "schedule/largest_share": changed["p"].max(),
    }
    return following, metrics

  def _depth(self, state: PyTree) -> jax.Array:  # []
    """Mean place of mini-clusters, from 0, the easiest, to 1, the hardest."""
    middle = state["windows"].mean(axis=1, dtype=jnp.float32)
    lowest = (self.window - 1) / 2
    room = state["sizes"] - self.window
    return masked.mean((middle - lowest) / jnp.maximum(room, 1), room > 0)


def mixed(
  p: jax.Array,  # [K]
  r: jax.Array,  # [K]
  exists: jax.Array,  # [K] bool
  rate: Any,
) -> jax.Array:  # [K]
  """Returns (1 − α) p + α r / Σ r; if all r are 0, they count as equal."""
  r = jnp.where(r.sum() > 0, r, 1.0) * exists
  return (1 - rate) * p + rate * (r / r.sum())


def moves(rho: jax.Array, tolerance: Any) -> jax.Array:  # any shape, int32
  """Moves of positions: +1, one harder; −1, one easier; 0, none."""
  off = rho - 0.5
  return jnp.where(jnp.abs(off) <= tolerance, 0, jnp.sign(off)).astype(
    jnp.int32
  )


def moved(
  window: jax.Array,  # [B] int32
  move: jax.Array,  # [B] int32
  size: jax.Array | int,  # []
) -> jax.Array:  # [B] int32
  """The positions of a mini-cluster after a step, in ascending order.

  Prompts that stay take their positions first. Then the positions that become
  easier move, in ascending order; then those that become harder, in descending
  order. A position that is taken is replaced by the nearest free position in
  the same direction. Without one before the end of the cluster, it is replaced
  by the nearest free position in the other direction.

  Args:
    window: Different positions below `size`.
    move: −1, 0 or 1 for each position.
    size: Number of prompts of the cluster, B or more.
  """
  num = len(window)
  # The B − 1 others take at most B − 1 places around the target.
  around = jnp.arange(-num, num + 1)
  turn = jnp.where(move < 0, 1, 2 * (move > 0))
  order = jnp.lexsort((jnp.where(move > 0, -window, window), turn))

  def place(places, i):
    target = jnp.clip(window[i] + move[i], 0, size - 1)
    nearby = target + around
    is_taken = (nearby[:, None] == places).any(axis=1)
    free = ~is_taken & (nearby >= 0) & (nearby < size)
    easier = jnp.max(jnp.where(free & (around <= 0), nearby, -1))
    harder = jnp.min(jnp.where(free & (around >= 0), nearby, size))
    upwards = jnp.where(move[i] > 0, harder < size, easier < 0)
    return places.at[i].set(jnp.where(upwards, harder, easier)), None

  places, _ = jax.lax.scan(place, jnp.full(num, -1, window.dtype), order)
  return jnp.sort(places)


# a and b of every prompt before its first completion.
SPO_PRIOR = 0.5
# D at which half of the counts is forgotten, nats per token.
_HALF = 0.06
# Largest ρ: a + b is at most 1 / (1 − 0.96) = 25 completions.
_MOST = 0.96
# Weight of a prompt that is always solved, or never.
_SPO_LEAST = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class SingleStream(PoolSchedule):
  """SPO's `Schedule` of N prompts; see the module.

  Attributes:
    size: N.
    num_prompts: P.
    num_slots: T of completions.
    memory_low: ρ_low.
    counts: a and b of each prompt at the start; None: `SPO_PRIOR`.
  """

  size: int
  num_prompts: int
  num_slots: int
  memory_low: Any = 0.875
  counts: np.ndarray | None = None  # [N, 2] float32

  def init(self) -> dict[str, jax.Array]:
    state = untried(self.size, SPO_PRIOR)
    if self.counts is not None:
      state |= {name: jnp.asarray(self.counts[:, i]) for i, name in _COUNTS}
    shape = self.size, self.num_slots
    return state | {
      "tokens": jnp.zeros(shape, jnp.int32),
      "completion_mask": jnp.zeros(shape, bool),
      "mask": jnp.zeros(shape, bool),
      "logp": jnp.zeros(shape, jnp.float32),
    }

  def draw(self, state, key, step):
    del step
    weights = weight(success(state))
    p = weights / weights.sum()
    return dict(state), without_replacement(key, p, self.num_prompts)

  def update(self, state, feedback, step):
    assert feedback.samples is not None
    assert feedback.drift is not None
    rho = memory(feedback.drift, self.memory_low)  # [P]
    following = track(state, feedback, step, rho)
    places = state["places"]
    is_scored = feedback.scored > 0
    for name, value in feedback.samples._asdict().items():
      old = state[name]
      value = jnp.where(is_scored[:, None], value, old[places])
      following[name] = old.at[places].set(value)
    again = state["visits"][places] > 0
    return following, metrics(state, following) | {
      "schedule/drift": masked.mean(feedback.drift, again),
      "schedule/memory": rho.mean(),
    }

  def with_samples(
    self,
    plan: UpdatePlan,
    policy: Policy,
    state: TrainState,
    groups: Groups,
    batch: TrainBatch,
    feedback: Feedback,
  ) -> Feedback:
    """Adds a completion of each prompt and the policy's drift to the feedback.

    The first completion of each prompt is kept. `batch` has the rows of
    `groups`, and `state` is the one before the update.
    """
    rollout = groups.rollout
    num_rows = len(rollout.prompt_index)
    num_prompts = len(feedback.scored)
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    first = jnp.full(num_prompts, num_rows, jnp.int32)
    first = first.at[rollout.prompt_index].min(rows)  # [P]
    samples = Samples(
      rollout.tokens[first],
      rollout.completion_mask[first],
      rollout.written[first],
      rollout.sampler_logp[first],
    )
    # As many rows as the batch has; all but one of each prompt are not run.
    places = state.schedule["places"][rollout.prompt_index]  # [B]
    is_first = first[rollout.prompt_index] == rows
    past = {name: state.schedule[name][places] for name in samples._fields}
    mask = past["mask"] & is_first[:, None]
    inputs = {
      "tokens": past["tokens"],
      "completion_mask": past["completion_mask"],
      "mask": mask,
      "sampler.kept_ids": None,
    }
    view = models.policy_view(policy, state.params)
    # Experts were not recorded for old completions: the router chooses them.
    view = view._replace(trunk=view.trunk._replace(is_free=True))
    with jax.named_scope("drift"):
      logp = passes.fields(
        plan,
        view.trunk,
        set_fields(batch, inputs),
        functools.partial(models.anchor_fields, plan, frozenset(), view),
        couples_group=False,
      )["old_logp"]
    moved = masked.mean(jnp.abs(past["logp"] - logp), mask, axis=-1)  # [B]
    return feedback._replace(samples=samples, drift=moved[first])


_COUNTS = ((0, "a"), (1, "b"))


def weight(rate: jax.Array) -> jax.Array:  # [N] -> [N]
  """Weights of prompts: √(φ (1 − φ)) + 0.05."""
  return jnp.sqrt(jnp.maximum(rate * (1 - rate), 0)) + _SPO_LEAST


def memory(drift: jax.Array, low: Any) -> jax.Array:  # [P] -> [P]
  """The factor of old counts: ρ = clip(2^(−D / 0.06), low, 0.96)."""
  return jnp.clip(jnp.exp2(-drift / _HALF), jnp.asarray(low), _MOST)


def start_counts(
  right: np.ndarray,  # [N]
  scored: np.ndarray,  # [N]
  memory_low: Any,
) -> np.ndarray:  # [N, 2] float32
  """Counts a and b of each prompt, of whose n earlier completions c were right.

      a = n₀ (c + ½) / (n + 1),   b = n₀ (n − c + ½) / (n + 1)

  with n₀ = 1 / (1 − ρ_low). Prompts without completions have `SPO_PRIOR`.
  """
  size = float(1 / (1 - memory_low))
  a = size * (right + 0.5) / (scored + 1)
  b = size * (scored - right + 0.5) / (scored + 1)
  counts = np.stack([a, b], axis=1)
  return np.where(scored[:, None] > 0, counts, SPO_PRIOR).astype(np.float32)
