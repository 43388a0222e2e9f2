"""REINFORCE: the score-function gradient, with an optional running baseline.

    L = −(1/S) Σ_i (R_i − b) Σ_t log π_θ(y_it)

b is an exponential moving average of the mean of R in past steps. R is the
reward of the advantages: if a length punishment or a KL is part of the reward,
it is part of b, too. b is 0 in the first step, and with `baseline_decay` 0. A
ratio does not correct staleness, so use one update per rollout.

Source: Williams, "Simple statistical gradient-following algorithms for
connectionist reinforcement learning", Machine Learning 8, 1992.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, masked, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class REINFORCEConfig(CommonConfig):
  """Options of REINFORCE: the running baseline.

  Attributes:
    baseline_decay: Decay of the average of the mean reward, per step, in
      [0, 1); 0: no baseline.
  """

  baseline_decay: float = 0.9  # 0: no baseline. Williams, Section 4.

  def __post_init__(self):
    super().__post_init__()
    if self.baseline_decay >= 1:
      self.complain(
        "baseline_decay", "would never move; it is a decay per step in [0, 1)"
      )


def init(config: REINFORCEConfig):
  del config
  return {}, {"reward_sum": jnp.zeros(()), "weight": jnp.zeros(())}


def advantages(config: REINFORCEConfig, batch: TrainBatch) -> jax.Array:
  baseline = 0.0
  if config.baseline_decay:
    # Weighted sums instead of a mean: unbiased from the first step on.
    state = batch.state
    baseline = state["reward_sum"] / jnp.maximum(state["weight"], 1e-6)
  return masked.select(batch.rewards - baseline, batch.valid)  # [B]


def policy_loss(
  config: REINFORCEConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  del config
  return -surrogates.reinforce(policy.logp, batch.advantages)


def update_state(config: REINFORCEConfig, state, metrics, batch: TrainBatch):
  del metrics
  decay = config.baseline_decay
  compared = batch.valid
  if (
    batch.traces.is_last is not None
  ):  # One row of each rollout, as in advantages.
    compared &= batch.traces.is_last
  # If no row was scored, the baseline does not change.
  expected = state["reward_sum"] / jnp.maximum(state["weight"], 1e-6)
  reward = masked.mean(batch.rewards, compared)
  reward = jnp.where(compared.any(), reward, expected)
  return {
    "reward_sum": decay * state["reward_sum"] + (1 - decay) * reward,
    "weight": decay * state["weight"] + (1 - decay),
  }


REINFORCE = Algorithm(
  name="reinforce",
  config_class=REINFORCEConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequence_sums,
  init=init,
  update_state=update_state,
)
