"""Which prompts of a pool a step draws: a function of what became of others.

    state = enter(schedule, key, step=0)   # state["places"]: of the first step
    state, metrics = advance(schedule, state, feedback, key, 1, 1)

The pool is the N prompts that a phase may draw; a place is a number below N. A
schedule has no memory of its own: what it knows is arrays, which are part of
`TrainState`, and so are the places of the step that comes next. A run that was
killed therefore goes on with the same prompts, and all processes have them
without asking each other.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from grpo_jax.types import Metrics, PyTree, Rollout, Scored

# Folded into the key of a step for what a schedule draws of it.
_DRAW = 11
# a and b of every prompt before anybody has tried it.
PRIOR = 1.0
# Weight of a prompt that is always solved, or never, beside φ(1 − φ).
_LEAST = 1e-3


class Samples(NamedTuple):
  """A completion of each prompt, and how likely the policy was to write it.

  Attributes:
    tokens: Token ids.
    completion_mask: Tokens that exist.
    mask: Those of them that the policy wrote.
    logp: Of each token at the temperature of training when it was written, 0
      where there is none, nats.
  """

  tokens: jax.Array  # [P, T] int32
  completion_mask: jax.Array  # [P, T] bool
  mask: jax.Array  # [P, T] bool
  logp: jax.Array  # [P, T] float32


class Feedback(NamedTuple):
  """What became of the prompts of a step.

  Attributes:
    right: Completions of each prompt that are right.
    scored: Completions of each prompt that could be scored.
    samples: One completion of each; None unless the schedule keeps them.
    drift: How far the policy has moved since the one that was kept of each
      before, nats per token; 0 if there is none. None with `samples`.
  """

  right: jax.Array  # [P] float32
  scored: jax.Array  # [P] float32
  samples: Samples | None = None
  drift: jax.Array | None = None  # [P] float32


class Schedule(Protocol):
  """Draws P different places of a pool of N.

  Attributes:
    tracks: Whether its state says of each prompt how likely a completion is
      right; see `success`.
    keeps_samples: Whether it asks for `Feedback.samples`.
  """

  tracks: ClassVar[bool]
  keeps_samples: ClassVar[bool]

  def init(self) -> dict[str, jax.Array]:
    """What is known before the first step."""

  def draw(
    self, state: PyTree, key: jax.Array, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], jax.Array]:
    """The state, and the places [P] of a step of the phase, counted from 0."""

  def update(
    self, state: PyTree, feedback: Feedback, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], Metrics]:
    """The state after the step whose prompts were at `state["places"]`."""


def enter(schedule: Schedule, key: jax.Array, step: Any) -> PyTree:
  """The state of a schedule at the start of a phase.

  Args:
    schedule: Of the phase.
    key: Of the run.
    step: Steps of all phases before.
  """
  return _with_places(schedule, schedule.init(), key, step, 0)


def advance(
  schedule: Schedule,
  state: PyTree,
  feedback: Feedback,
  key: jax.Array,
  step: jax.Array,
  phase_step: jax.Array,
) -> tuple[PyTree, Metrics]:
  """The state after a step, with the places of the next one.

  Args:
    schedule: Of the phase.
    state: Before the step.
    feedback: Of the prompts at `state["places"]`.
    key: Of the run.
    step, phase_step: Steps done, this one included: of all phases, of this one.
  """
  state, metrics = schedule.update(state, feedback, phase_step - 1)
  return _with_places(schedule, state, key, step, phase_step), metrics


def _with_places(schedule, state, key, step, phase_step) -> PyTree:
  own = jax.random.fold_in(jax.random.fold_in(key, step), _DRAW)
  state, places = schedule.draw(state, own, phase_step)
  return state | {"places": places.astype(jnp.int32)}


def feedback_of(rollout: Rollout, scored: Scored, num_prompts: int) -> Feedback:
  """Counts right and scored completions of each prompt.

  A completion in several rows counts once; one that nobody could score not at
  all. Of one that was corrected the draft counts, which the policy has written
  by itself.
  """
  valid, correct = scored.valid, scored.correct
  if rollout.corrections is not None:
    valid, correct = rollout.corrections.valid, rollout.corrections.correct
  counted = valid & rollout.is_last  # [B]

  def total(rows):
    count = jnp.zeros(num_prompts, jnp.float32)
    return count.at[rollout.prompt_index].add(rows.astype(jnp.float32))

  return Feedback(total(counted & correct), total(counted))


def success(state: PyTree) -> jax.Array:  # [N]
  """φ = a / (a + b): how likely a completion of each prompt is right."""
  return state["a"] / (state["a"] + state["b"])


def expected(state: PyTree, rollout: Rollout) -> jax.Array:  # [B]
  """φ of the prompt of each row, of a schedule that tracks."""
  return success(state)[state["places"][rollout.prompt_index]]


def track(
  state: PyTree,
  feedback: Feedback,
  step: jax.Array | int,
  decay: Any,  # [] or [P]
) -> dict[str, jax.Array]:
  """Counts what became of the prompts at `state["places"]`.

      a ← g a + right,   b ← g b + (scored − right)

  Prompts without a scored completion stay as they are.

  Args:
    state: "a", "b", "visits" and "last_step" of N prompts.
    feedback: Of the step.
    step: Of the phase, from 0.
    decay: g: what earlier completions still count.
  """
  places = state["places"]
  seen = feedback.scored > 0  # [P]

  def changed(name, value):
    old = state[name][places]
    value = jnp.where(seen, value, old).astype(old.dtype)
    return state[name].at[places].set(value)

  wrong = feedback.scored - feedback.right
  return dict(state) | {
    "a": changed("a", decay * state["a"][places] + feedback.right),
    "b": changed("b", decay * state["b"][places] + wrong),
    "visits": changed("visits", state["visits"][places] + 1),
    "last_step": changed("last_step", jnp.asarray(step)),
  }


def untried(size: int, prior: float) -> dict[str, jax.Array]:
  """What is known of N prompts before anybody has tried them."""
  return {
    "a": jnp.full(size, prior, jnp.float32),
    "b": jnp.full(size, prior, jnp.float32),
    "visits": jnp.zeros(size, jnp.int32),
    "last_step": jnp.full(size, -1, jnp.int32),
  }


def without_replacement(
  key: jax.Array, probabilities: jax.Array, count: int
) -> jax.Array:  # [N] -> [count]
  """Different places, drawn one after another in proportion to what is left.

  Places of probability 0 come last, in random order.

  Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
  2006, in its form with Gumbel noise.
  """
  noise = jax.random.gumbel(key, probabilities.shape)
  # Far below every float32 probability of a pool.
  logits = jnp.log(jnp.maximum(probabilities, 1e-30))
  return jax.lax.top_k(logits + noise, count)[1]


@dataclasses.dataclass(frozen=True)
class Curriculum:
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

  with q = min(1, q₀ + (1 − q₀) step / pace). Prompts that are as easy as the
  last of these belong to them: before any has been tried, all do.

  Attributes:
    rule: One of these.
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

  tracks: ClassVar[bool] = True
  keeps_samples: ClassVar[bool] = False

  def init(self) -> dict[str, jax.Array]:
    """See `Schedule`."""
    return untried(self.size, PRIOR)

  def draw(
    self, state: PyTree, key: jax.Array, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], jax.Array]:
    """See `Schedule`."""
    p = self.probabilities(success(state), step)
    return dict(state), without_replacement(key, p, self.num_prompts)

  def update(
    self, state: PyTree, feedback: Feedback, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], Metrics]:
    """See `Schedule`."""
    following = track(state, feedback, step, self.decay)
    return following, metrics(state, following)

  def probabilities(
    self, rate: jax.Array, step: jax.Array | int
  ) -> jax.Array:  # [N] -> [N]
    """p(x) of the class, from φ."""
    weights = WEIGHTS[self.rule](self, rate, step)
    weights = weights / weights.sum()
    share = self.uniform_share
    return (1 - share) * weights + share / self.size

  def easiest(
    self, rate: jax.Array, step: jax.Array | int
  ) -> jax.Array:  # [N] -> [N] float32
    """1 on the easiest share q of prompts."""
    start = self.start_share
    pace = jnp.asarray(step, jnp.float32) / self.pace_steps
    share = jnp.minimum(1.0, start + (1 - start) * pace)
    # 0.2 · 10 is a bit above 2 in float32, and 2 prompts are meant.
    count = jnp.ceil(share * self.size - 1e-3).astype(jnp.int32)
    return _least(1 - rate, jnp.clip(count, 1, self.size))


def _least(x: jax.Array, count: Any) -> jax.Array:  # [N] -> [N] float32
  """1 where x is among the `count` least, or equal to the last of them."""
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
  """What a tracker says of a step.

  Args:
    before: The state that drew the prompts.
    after: The state that has seen what became of them.

  Returns:
    `schedule/success` over the pool, `schedule/expected` of the prompts that
    were drawn, before they were tried, `schedule/seen`, the share of the pool
    that has been tried, and `schedule/most_visits` of a prompt.
  """
  return {
    "schedule/success": success(after).mean(),
    "schedule/expected": success(before)[before["places"]].mean(),
    **coverage(after["visits"]),
  }


def coverage(visits: jax.Array) -> Metrics:  # [N]
  """`schedule/seen` and `schedule/most_visits`, from how often each came."""
  return {
    "schedule/seen": (visits > 0).mean(dtype=jnp.float32),
    "schedule/most_visits": visits.max().astype(jnp.float32),
  }
