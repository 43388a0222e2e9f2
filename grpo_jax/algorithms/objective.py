"""What every algorithm has in common, applied once.

An algorithm file chooses an advantage, a ratio, a surrogate and an
aggregation. This module does the rest, in this order: which tokens are
trained, sanitised inputs, the policy term, the KL term, aggregation, the
entropy term, and the metrics of the update. Every option is a field of
`CommonConfig`, from which each algorithm's config derives.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.ops import aggregation, baselines, divergences, masked
from grpo_jax.types import (
  Algorithm,
  LossOutput,
  PolicyOutputs,
  Prompts,
  PyTree,
  Rollout,
  Scored,
  TrainBatch,
  Weighted,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonConfig:
  """Options that compose with any algorithm.

  Attributes:
    kl_coef: Weight of the KL to the frozen reference in the loss, per nat.
    kl_kind: Estimator: "k1", "k2" or "k3" (`ops/divergences.py`).
    entropy_coef: Weight of the entropy bonus, per nat, token mean.
    overlong_filter: Leave completions that hit the budget out of the loss
      (DAPO, Section 3.4); they stay in the group's statistics.
    dynamic_sampling: Leave groups whose rewards are all equal out of the loss
      and of its denominators (DAPO, Section 3.2), as a mask over a fixed,
      over-sampled batch.
    max_live_groups: With dynamic sampling, train only on the first so many
      live groups of the over-sampled batch; 0 keeps all of them.
  """

  kl_coef: float = 0.0
  kl_kind: str = "k3"
  entropy_coef: float = 0.0
  overlong_filter: bool = False
  dynamic_sampling: bool = False
  max_live_groups: int = 0

  def __post_init__(self):
    who = type(self).__name__
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      number = isinstance(value, (int, float)) and not isinstance(value, bool)
      if number and not value >= 0:  # `not >=` also catches NaN.
        raise ValueError(
          f"{who}: {field.name}={value} is negative or not a number; every"
          f" width, weight and count of an algorithm is ≥ 0 (its default"
          f" is {field.default}). Set --config.algorithm.{field.name}."
        )
    if self.kl_kind not in divergences.KL_ESTIMATORS:
      raise ValueError(
        f"{who}: kl_kind={self.kl_kind!r} is unknown; choose one of"
        f" {sorted(divergences.KL_ESTIMATORS)}."
      )
    clip_low = getattr(self, "clip_low", 0.0)
    if clip_low > 1:
      raise ValueError(
        f"{who}: clip_low={clip_low} puts the lower bound 1 − clip_low of"
        " the ratio below 0; it is a width in [0, 1]."
      )


def needs(algorithm: Algorithm, config: CommonConfig) -> frozenset[str]:
  """Optional inputs that this algorithm with this config reads."""
  names = set(algorithm.needs)
  if config.kl_coef > 0:
    names.add("ref_logp")
  if config.entropy_coef > 0:
    names.add("entropy")
  unknown = names - {"old_logp", "ref_logp", "entropy"}
  if unknown:
    raise ValueError(
      f"algorithm {algorithm.name!r} needs {sorted(unknown)}, which nothing"
      " provides; known needs: entropy, old_logp, ref_logp."
    )
  return frozenset(names)


def trained_tokens(
  config: CommonConfig, rollout: Rollout, scored: Scored
) -> jax.Array:  # [B, T] bool
  """Which tokens are trained: written by the policy, scored, not filtered."""
  rows = scored.valid  # [B]
  if config.overlong_filter:
    rows &= rollout.terminated
  if config.dynamic_sampling:
    live = baselines.live_groups(
      scored.rewards, scored.valid, rollout.group_id, rollout.num_groups
    )  # [num_groups]
    if config.max_live_groups:
      live &= jnp.cumsum(live) <= config.max_live_groups
    rows &= live[rollout.group_id]
  return rollout.completion_mask & rows[:, None]


def make_train_batch(
  algorithm: Algorithm,
  config: CommonConfig,
  prompts: Prompts,
  rollout: Rollout,
  scored: Scored,
  state: PyTree,
) -> TrainBatch:
  """Joins a scored rollout with its advantages.

  Args:
    algorithm: The objective.
    config: Its config.
    prompts: P prompts.
    rollout: B completions of them.
    scored: Their rewards.
    state: The algorithm's running state, which `advantages` may read.
  """
  batch = TrainBatch(
    prompt_tokens=prompts.tokens,
    prompt_mask=prompts.mask,
    prompt_index=rollout.prompt_index,
    group_id=rollout.group_id,
    tokens=rollout.tokens,
    completion_mask=rollout.completion_mask,
    mask=trained_tokens(config, rollout, scored),
    rewards=masked.select(scored.rewards, scored.valid),
    valid=scored.valid,
    terminated=rollout.terminated,
    behavior_logp=rollout.behavior_logp,
    sampler_logp=rollout.sampler_logp,
    entropy=rollout.entropy,
    state=state,
    num_groups=rollout.num_groups,
  )
  advantages = jax.lax.stop_gradient(algorithm.advantages(config, batch))
  return dataclasses.replace(batch, advantages=advantages)


def _sanitized(x: jax.Array, mask: jax.Array) -> jax.Array:
  """At least float32, 0 where masked: garbage there must reach no gradient."""
  x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  return masked.select(x, mask)


def sanitize(
  policy: PolicyOutputs, batch: TrainBatch
) -> tuple[PolicyOutputs, TrainBatch]:
  """Upcasts every per-token input and zeroes it where it is not trained.

  A trained token with log-prob −inf (a logit masked to −inf in training but
  not in sampling) counts as not trained; NaN is left alone, so that a broken
  policy is seen and not hidden.
  """
  mask = batch.mask & ~jnp.isneginf(policy.logp)

  def clean(x):
    return None if x is None else _sanitized(x, mask)

  batch = dataclasses.replace(
    batch,
    mask=mask,
    old_logp=clean(batch.old_logp),
    ref_logp=clean(batch.ref_logp),
    behavior_logp=clean(batch.behavior_logp),
    sampler_logp=clean(batch.sampler_logp),
  )
  if batch.advantages is not None and batch.advantages.ndim == 2:
    batch = dataclasses.replace(batch, advantages=clean(batch.advantages))
  policy = dataclasses.replace(
    policy, logp=clean(policy.logp), entropy=clean(policy.entropy)
  )
  return policy, batch


def term_weights(
  algorithm: Algorithm, config: CommonConfig, batch: TrainBatch
) -> dict[str, jax.Array]:
  """Denominator of each loss term over all rows of `batch`.

  Summed over the whole minibatch (and all devices) before micro-batches are
  formed, so that each micro-batch divides by the same number. Never 0.
  """
  zeros = jnp.zeros(batch.mask.shape, jnp.float32)
  weights = {"policy": algorithm.aggregate(zeros, batch.mask).weight}
  if config.kl_coef > 0:
    weights["kl"] = weights["policy"]
  if config.entropy_coef > 0:
    weights["entropy"] = aggregation.over_tokens(zeros, batch.mask).weight
  return {name: jnp.maximum(w, 1.0) for name, w in weights.items()}


def loss(
  algorithm: Algorithm,
  config: CommonConfig,
  policy: PolicyOutputs,
  batch: TrainBatch,
) -> LossOutput:
  """The loss terms of some rows, as totals and weights.

  Args:
    algorithm: The objective.
    config: Its config.
    policy: Outputs of the policy being differentiated.
    batch: The rows; `old_logp` None where needed means that this forward pass
      is the anchor: the ratio is exactly 1 and its gradient flows.
  """
  required = needs(algorithm, config)
  policy, batch = sanitize(policy, batch)
  mask = batch.mask
  anchor = batch.old_logp
  if anchor is None:
    anchor = jax.lax.stop_gradient(policy.logp)
    if "old_logp" in required:
      batch = dataclasses.replace(batch, old_logp=anchor)

  per_token = algorithm.policy_loss(config, policy, batch)  # [B] or [B, T]
  terms: dict[str, tuple[jax.Array | float, Weighted]] = {}
  terms["policy"] = (1.0, algorithm.aggregate(per_token, mask))
  metrics = {}
  if config.kl_coef > 0:
    kl = divergences.kl(
      policy.logp, batch.ref_logp, mask, config.kl_kind
    )  # [B, T]
    terms["kl"] = (config.kl_coef, algorithm.aggregate(kl, mask))
    metrics["kl/reference"] = aggregation.over_tokens(kl, mask)
  if config.entropy_coef > 0:
    bonus = aggregation.over_tokens(policy.entropy, mask)
    terms["entropy"] = (-config.entropy_coef, bonus)
    metrics["entropy/policy"] = bonus

  maxima = {}
  if "old_logp" in required:
    metrics |= _clip_metrics(algorithm, config, policy, batch)
    log_ratio = jax.lax.stop_gradient(policy.logp) - anchor  # [B, T]
    ratio = jnp.exp(jnp.clip(log_ratio, -20.0, 20.0))
    metrics["ratio/mean"] = aggregation.over_tokens(ratio, mask)
    metrics["kl/update"] = aggregation.over_tokens(
      divergences.kl_k3(log_ratio), mask
    )
    # Over ratios of trained tokens only; a minibatch without any reads 0.
    maxima["ratio/max"] = masked.maximum(ratio, mask)
    maxima["ratio/max_deviation"] = masked.maximum(jnp.abs(ratio - 1), mask)
  if batch.sampler_logp is not None:
    gap = jnp.abs(anchor - batch.sampler_logp)
    metrics["sampler_gap/mean"] = aggregation.over_tokens(gap, mask)
    maxima["sampler_gap/max"] = masked.maximum(gap, mask)
  return LossOutput(terms, *jax.lax.stop_gradient((metrics, maxima)))


def _clip_metrics(
  algorithm: Algorithm,
  config: Any,
  policy: PolicyOutputs,
  batch: TrainBatch,
) -> dict[str, Weighted]:
  """Share of tokens that the surrogate gives no gradient, by direction.

  Measured, not re-derived: a trained token with a non-zero advantage whose
  derivative of the policy loss is exactly 0 was clipped, whatever the
  algorithm's ratio and bounds are.
  """
  fixed = jax.lax.stop_gradient((policy, batch))

  def total(logp):
    policy, batch = fixed
    outputs = dataclasses.replace(policy, logp=logp)
    return algorithm.policy_loss(config, outputs, batch).sum()

  policy, batch = fixed
  slope = jax.grad(total)(policy.logp)  # [B, T]
  advantages = batch.advantages
  if advantages.ndim == 1:
    advantages = advantages[:, None]
  clipped = (slope == 0) & (advantages != 0)
  positive = advantages > 0
  dtype = policy.logp.dtype

  def share(x):
    return aggregation.over_tokens(
      jnp.broadcast_to(x, batch.mask.shape).astype(dtype), batch.mask
    )

  return {
    "clip_fraction": share(clipped),
    # With one clip per side, a positive advantage is cut from above and a
    # negative one from below.
    "clip_fraction/high": share(clipped & positive),
    "clip_fraction/low": share(clipped & ~positive),
  }
