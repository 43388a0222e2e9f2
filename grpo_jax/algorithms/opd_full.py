"""On-policy distillation with the teacher's whole distribution.

    L = (1/N) Σ_i Σ_t KL( π_θ(·|y_i<t) ‖ π_teacher(·|y_i<t) )

The student samples. Both distributions are compared over the vocabulary, in
chunks, so that logits never exist whole. `jsd_beta` chooses the divergence: 1
as above, 0 KL(π_teacher ‖ π_θ), between them generalised Jensen-Shannon. The
teacher is the frozen reference (`reference_workdirs` of the phase).

Source: Agarwal et al., "On-Policy Distillation of Language Models" (GKD),
arXiv:2306.13649, Section 3; DeepSeek-V4, arXiv:2606.19348, Eq. 29.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import distillation
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class OPDFullConfig(CommonConfig):
  """Options of full distillation: the common ones."""

  scale_free = True  # Rewards are not read.
  reads_rewards = False


def advantages(config: OPDFullConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config  # The teacher judges, not the verifier.
  return batch.valid.astype(batch.rewards.dtype)


def policy_loss(
  config: OPDFullConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  return distillation.domain_weights(config, batch) * policy.ref_kl


OPD_FULL = Algorithm(
  name="opd_full",
  config_class=OPDFullConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("ref_kl",),
  token_advantages=False,
)
