"""A teacher in any objective: the options `opd_…` of `CommonConfig`."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import distillation, masked
from grpo_jax.types import PolicyOutputs, TrainBatch


def domain_weights(config: CommonConfig, batch: TrainBatch):
  """The factor of the teacher's signal for each row [B, 1], or 1."""
  if not config.opd_domain_weights:
    return 1.0
  return jnp.asarray(config.opd_domain_weights)[batch.domain][:, None]


def with_teacher(
  config: CommonConfig,
  batch: TrainBatch,
  advantages: jax.Array,  # [B] or [B, T]
  logp: jax.Array,  # [B, T]
) -> jax.Array:  # [B, T]
  """Adds a teacher to advantages: A_task − λ w_d sg(d̂_t).

      d̂_t = log π(y_t) − log π_teacher(y_t)

  Args:
    config: Config with λ (`opd_coef`), and w_d of the domains.
    batch: Rows with `ref_logp`, the teacher's log-probs.
    advantages: A_task.
    logp: Log-probs of the sampled tokens under the student, nats.

  Source: slime's on-policy distillation; GLM-5, arXiv:2602.15763.
  """
  gap = distillation.token_gap(
    batch.reference.logp, logp, batch.mask, config.opd_clamp
  )
  if config.opd_early:
    gap = gap * distillation.early_weights(gap, config.opd_early)
  gap = config.opd_coef * domain_weights(config, batch) * gap
  if advantages.ndim == 1:
    advantages = advantages[:, None]
  return jax.lax.stop_gradient(
    masked.select(advantages + gap.astype(advantages.dtype), batch.mask)
  )


def with_current_teacher(
  config: CommonConfig, policy: PolicyOutputs, batch: TrainBatch
) -> TrainBatch:
  """Adds the teacher's signal for the current policy, if the config asks."""
  if not (config.opd_coef > 0 and config.opd_anchor == "current"):
    return batch
  advantages = with_teacher(
    config, batch, batch.advantages, jax.lax.stop_gradient(policy.logp)
  )
  return dataclasses.replace(batch, advantages=advantages)
