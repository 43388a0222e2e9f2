"""GAGPO: visited states as the critic of several turns (arXiv:2605.13217).

    G_τ = r_τ + γ G_{τ+1},   V(s) = mean of G over visits of s in the group
    δ_τ = r_τ + γ V(s_{τ+1}) − V(s_τ),   Â_τ = δ_τ + γ λ Â_{τ+1}
    ρ_τ = exp( (1/|a_τ|) Σ_{t in a_τ} log π_θ − log π_old )
    L   = −(1/#actions) Σ min(ρ_τ A_τ, clip(ρ_τ) A_τ)

τ counts turns, and A is Â standardised over all actions of a group. The reward
of a turn is the environment's, without the weights of `config.rewards`. γ and λ
are not stated; 0.95 and 0.9 are our choice, and 0.01 is the paper's β.

Deviation: #actions is that of the batch. A minibatch with longer actions than
the batch has a weight that is smaller by the same factor.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import actions, aggregation, baselines
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GAGPOConfig(ClipConfig):
  """Options of GAGPO: estimation over turns.

  Attributes:
    gamma: Discount per turn, in [0, 1].
    lam: λ of the advantages over turns, in [0, 1].
  """

  gamma: float = 0.95
  lam: float = 0.9
  kl_coef: float = 0.01
  scale_free = True  # Standardised here.
  reads_rewards = False  # Rewards of turns are read.

  def __post_init__(self):
    super().__post_init__()
    for name in ("gamma", "lam"):
      if getattr(self, name) > 1:
        self.complain(name, "must be in [0, 1]")
    if self.token_mean_scope != "batch":
      self.complain(
        "token_mean_scope",
        "weighs tokens by those of their group, and every action weighs as"
        " much here; set 'batch'",
      )


def advantages(config: GAGPOConfig, batch: TrainBatch) -> jax.Array:  # [B, T]
  raw = actions.grouped_state_advantages(
    batch.turns.rewards,
    batch.turns.index,
    batch.turns.state_id,
    batch.mask,
    batch.group_id,
    batch.num_groups,
    config.gamma,
    config.lam,
  )
  first = actions.first(batch.turns.index, batch.mask)  # One token per action.
  group = jnp.broadcast_to(batch.group_id[:, None], raw.shape)
  standard = baselines.group_standardized(
    raw.ravel(), first.ravel(), group.ravel(), batch.num_groups
  ).reshape(raw.shape)
  return actions.spread(standard, batch.turns.index, batch.mask)


def prepare(config: GAGPOConfig, batch: TrainBatch) -> TrainBatch:
  """Gives equal weights to actions, however many tokens they have."""
  del config
  first = actions.first(batch.turns.index, batch.mask)
  tokens_per_action = batch.mask.sum() / jnp.maximum(first.sum(), 1)
  weight = tokens_per_action / actions.lengths(batch.turns.index, batch.mask)
  return dataclasses.replace(batch, policy_weight=weight)


def policy_loss(
  config: GAGPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  ratio = actions.ratio(
    policy.logp,
    batch.old_logp,
    batch.turns.index,
    batch.mask,
    config.log_ratio_clamp,
  )  # [B, T]
  return grpo.clipped_loss(config, ratio, batch)


GAGPO = Algorithm(
  name="gagpo",
  config_class=GAGPOConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_tokens,
  prepare=prepare,
  needs=("old_logp", "turns", "state_id"),
  whole_completions=True,
  min_group_size=2,
)
