"""On-policy distillation on the teacher's K likeliest tokens and a rest.

    L = (1/N) Σ_i Σ_t Σ_{k ∈ top K, rest} π_k log(π_k / π_teacher,k)

This is the KL of distributions that keep the teacher's K tokens apart and merge
all others. It is a lower bound of the full KL, for vocabularies whose teacher
log-probs are too large to keep. The teacher is the frozen reference
(`reference_workdirs` of the phase).

Source: Qwen3 and DeepSeek-V4 (arXiv:2606.19348) distil like this without
printing K; 64 is ours.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import distillation, opd_full
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, divergences
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class OPDTopKConfig(CommonConfig):
  """Options of top-K distillation.

  Attributes:
    topk: K of the equation: tokens of the teacher that are kept apart; all if
      the vocabulary is smaller.
  """

  topk: int = 64  # Tokens of the teacher; at most the vocabulary.
  scale_free = True  # Rewards are not read.
  reads_rewards = False

  def __post_init__(self):
    super().__post_init__()
    if self.topk == 0:
      self.complain("topk", "must be at least 1")


def policy_loss(
  config: OPDTopKConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  distance = divergences.topk_kl(policy.topk_logp, batch.reference.topk_logp)
  return distillation.domain_weights(config, batch) * distance


OPD_TOPK = Algorithm(
  name="opd_topk",
  config_class=OPDTopKConfig,
  advantages=opd_full.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("ref_topk",),
  token_advantages=False,
)
