"""λ-GRPO: a learned weight of completions by length (arXiv:2510.06870).

    z_i = (|y_i| − mean_g) / (std_g + eps),   h_i = 1 + ρ z_i
    f_i = G softmax_i(h_i^λ)
    L   = −(1/N) Σ_i f_i Σ_t min(r_it A_i, clip(r_it) A_i)

Lengths count trained tokens, G counts the completions of the group with trained
tokens, and std is the population's. λ is one trained number with the policy's
optimizer. λ = 0 is DAPO's token mean; with λ < 0 short completions count more
(GRPO-like), with λ > 0 long ones.

Deviations: N counts the tokens of the batch, not of each group; h ≥ 1e-3, so
that the power is real. ρ = 1/9 and λ = 0 at the start are those of the public
replication. The plain loss rewards weight on rows of low loss, whatever their
length: `learn_lambda=False` keeps λ at 0.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class LambdaGRPOConfig(ClipConfig):
  """Options of the length weights.

  Attributes:
    rho: ρ of the equation: change of h for a length one deviation from the
      mean.
    learn_lambda: True if λ is trained; otherwise it stays 0.
  """

  clip_high: float = 0.28  # DAPO's.
  advantage_scale: str = "group"
  rho: float = 1 / 9
  learn_lambda: bool = True


def init(config: LambdaGRPOConfig):
  del config
  return {"lam": jnp.zeros(())}, {}


def policy_loss(
  config: LambdaGRPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  lam = policy.trainable["lam"]
  if not config.learn_lambda:
    lam = jax.lax.stop_gradient(lam)
  weight = baselines.length_preference(
    batch.mask.sum(axis=-1).astype(policy.logp.dtype),
    batch.mask.any(axis=-1),
    lam,
    batch.group_id,
    batch.num_groups,
    config.rho,
  )  # [B]
  return weight[:, None] * grpo.policy_loss(config, policy, batch)


LAMBDA_GRPO = Algorithm(
  name="lambda_grpo",
  config_class=LambdaGRPOConfig,
  advantages=grpo.advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  init=init,
  needs=("old_logp",),
  couples_group=True,
  min_group_size=2,
)
