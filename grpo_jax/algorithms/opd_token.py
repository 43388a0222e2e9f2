"""On-policy distillation from the sampled tokens alone.

    A_it = log π_teacher(y_it) − log π_old(y_it)
    L    = −(1/N) Σ_i Σ_t min(r_it A_it, clip(r_it) A_it)

The student samples, and the teacher scores each token. On-policy and with the
tokens summed, the expected gradient is that of Σ_t KL(π_θ ‖ π_teacher) with
fixed prefixes; the published mean over tokens divides by a length that depends
on the samples. The teacher is the frozen reference: set `reference_workdirs` of
the phase to its run. The task's reward is not used: this is the term that
`opd_coef` adds to any algorithm, alone. With `opd_anchor` "current" A is
computed from π_θ in each gradient step, as in GLM-5 (arXiv:2602.15763).
Deviation: A is clamped at ±20 nats.

Source: Lu et al., "On-Policy Distillation", Thinking Machines, 2025; TRL 1.16.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class OPDTokenConfig(ClipConfig):
  """Options of token distillation: those of `ClipConfig`."""

  opd_coef: float = 1.0
  scale_free = True  # The teacher judges.
  reads_rewards = False

  def __post_init__(self):
    super().__post_init__()
    if self.opd_coef == 0:
      self.complain("opd_coef", "would train nothing; set it above 0")


def advantages(config: OPDTokenConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config  # The teacher judges, not the verifier.
  return jnp.zeros_like(batch.rewards)


OPD_TOKEN = Algorithm(
  name="opd_token",
  config_class=OPDTokenConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp",),
)
