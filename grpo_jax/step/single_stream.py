"""SPO's choice of prompts: a tracker that forgets by how far the policy moved.

Of each prompt a and b count right and wrong completions, φ = a / (a + b). With
D the mean of abs(log π_then − log π_now) over the tokens of its previous
completion,

    ρ ← clip(2^(−D / 0.06), ρ_low, 0.96)
    a ← ρ a + right,   b ← ρ b + (scored − right)
    weight of a prompt = √(φ (1 − φ)) + 0.05

each time that it is drawn; D is 0 where there was no completion before. The
previous completion of every prompt of the pool is part of the state, and a pass
of the policy over those of the prompts of a step, before its update, gives D.

Source: Xu and Ding, "Single-stream Policy Optimization", arXiv:2509.13232, and
verl's recipe `spo`. There D is taken after the update, of both policies: as
many updates lie between. The recipe draws from a batch that it has loaded; here
the whole pool is that batch.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.ops import masked
from grpo_jax.step import members, passes, schedules
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.types import (
  Metrics,
  Policy,
  PyTree,
  Rollout,
  TrainBatch,
  TrainState,
)

# a and b of every prompt before anybody has tried it.
PRIOR = 0.5
# D at which half of what was counted is forgotten, nats per token.
_HALF = 0.06
# What is remembered at most: a + b is at most 1 / (1 − 0.96) = 25 completions.
_MOST = 0.96
# Weight of a prompt that is always solved, or never.
_LEAST = 0.05


@dataclasses.dataclass(frozen=True, eq=False)
class SingleStream:
  """A `schedules.Schedule` of N prompts.

  Attributes:
    size: N.
    num_prompts: P.
    num_slots: T of completions.
    memory_low: ρ_low.
    counts: a and b of each prompt at the start; None: `PRIOR`.
  """

  size: int
  num_prompts: int
  num_slots: int
  memory_low: Any = 0.875
  counts: np.ndarray | None = None  # [N, 2] float32

  tracks: ClassVar[bool] = True
  keeps_samples: ClassVar[bool] = True

  def init(self) -> dict[str, jax.Array]:
    """See `schedules.Schedule`."""
    state = schedules.untried(self.size, PRIOR)
    if self.counts is not None:
      state |= {name: jnp.asarray(self.counts[:, i]) for i, name in _COUNTS}
    shape = self.size, self.num_slots
    return state | {
      "tokens": jnp.zeros(shape, jnp.int32),
      "completion_mask": jnp.zeros(shape, bool),
      "mask": jnp.zeros(shape, bool),
      "logp": jnp.zeros(shape, jnp.float32),
    }

  def draw(
    self, state: PyTree, key: jax.Array, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], jax.Array]:
    """See `schedules.Schedule`."""
    del step
    weights = weight(schedules.success(state))
    p = weights / weights.sum()
    return dict(state), schedules.without_replacement(key, p, self.num_prompts)

  def update(
    self, state: PyTree, feedback: schedules.Feedback, step: jax.Array | int
  ) -> tuple[dict[str, jax.Array], Metrics]:
    """See `schedules.Schedule`."""
    assert feedback.samples is not None
    assert feedback.drift is not None
    rho = memory(feedback.drift, self.memory_low)  # [P]
    following = schedules.track(state, feedback, step, rho)
    places = state["places"]
    seen = feedback.scored > 0
    for name, value in feedback.samples._asdict().items():
      old = state[name]
      value = jnp.where(seen[:, None], value, old[places])
      following[name] = old.at[places].set(value)
    again = state["visits"][places] > 0
    return following, schedules.metrics(state, following) | {
      "schedule/drift": masked.mean(feedback.drift, again),
      "schedule/memory": rho.mean(),
    }


_COUNTS = ((0, "a"), (1, "b"))


def weight(rate: jax.Array) -> jax.Array:  # [N] -> [N]
  """√(φ (1 − φ)) + 0.05."""
  return jnp.sqrt(jnp.maximum(rate * (1 - rate), 0)) + _LEAST


def memory(drift: jax.Array, low: Any) -> jax.Array:  # [P] -> [P]
  """ρ = clip(2^(−D / 0.06), low, 0.96)."""
  return jnp.clip(jnp.exp2(-drift / _HALF), jnp.asarray(low), _MOST)


def start_counts(
  right: np.ndarray,  # [N]
  scored: np.ndarray,  # [N]
  memory_low: Any,
) -> np.ndarray:  # [N, 2] float32
  """a and b from completions that were drawn before: c of n are right.

      a = n₀ (c + ½) / (n + 1),   b = n₀ (n − c + ½) / (n + 1)

  with n₀ = 1 / (1 − ρ_low). Prompts without any have `PRIOR`.
  """
  size = float(1 / (1 - memory_low))
  a = size * (right + 0.5) / (scored + 1)
  b = size * (scored - right + 0.5) / (scored + 1)
  both = np.stack([a, b], axis=1)
  return np.where(scored[:, None] > 0, both, PRIOR).astype(np.float32)


def with_samples(
  plan: UpdatePlan,
  policy: Policy,
  state: TrainState,
  rollout: Rollout,
  batch: TrainBatch,
  feedback: schedules.Feedback,
) -> schedules.Feedback:
  """The feedback with a completion of each prompt, and the policy's drift.

  Args:
    plan: How rows become micro-batches.
    policy: The model.
    state: Before the update.
    rollout: B completions; the first of a prompt is kept.
    batch: The rows made of it.
    feedback: Of the P prompts.
  """
  num_rows = len(rollout.prompt_index)
  num_prompts = len(feedback.scored)
  rows = jnp.arange(num_rows, dtype=jnp.int32)
  first = jnp.full(num_prompts, num_rows, jnp.int32)
  first = first.at[rollout.prompt_index].min(rows)  # [P]
  samples = schedules.Samples(
    rollout.tokens[first],
    rollout.completion_mask[first],
    rollout.written[first],
    rollout.sampler_logp[first],
  )
  # As many rows as the batch has, of which the others are not run.
  places = state.schedule["places"][rollout.prompt_index]  # [B]
  is_first = first[rollout.prompt_index] == rows
  past = {name: state.schedule[name][places] for name in samples._fields}
  mask = past["mask"] & is_first[:, None]
  own: dict[str, Any] = {
    "tokens": past["tokens"],
    "completion_mask": past["completion_mask"],
    "mask": mask,
    "kept_ids": None,
  }
  view = members.policy_view(policy, state.params)
  # A completion of another time takes the experts that it takes today.
  view = view._replace(trunk=view.trunk._replace(is_free=True))
  with jax.named_scope("drift"):
    now = passes.fields(
      plan,
      view.trunk,
      dataclasses.replace(batch, **own),
      functools.partial(members.anchor_fields, plan, frozenset(), view),
      couples_group=False,
    )["old_logp"]
  moved = masked.mean(jnp.abs(past["logp"] - now), mask, axis=-1)  # [B]
  return feedback._replace(samples=samples, drift=moved[first])
