"""TIC-GRPO: the ratio of whole trajectories, clipped from above.

    w_i = Π_t r_it
    L   = −(1/S) Σ_i min(w_i A_i, min(w_i, 1 + ε_high) A_i)

With the trajectory's ratio the estimator is one of the current policy's
gradient, also off-policy; with GRPO's token ratios it is not. Advantages are
GRPO's, of R_i / |y_i| with `length_corrected` (later versions of the paper).

Deviations: log w is clamped at ±20 nats. The printed aggregation and clip could
not be checked against the paper's text; the mean over completions is our
reading, and the width of 0.28 is DAPO's.

Source: arXiv:2508.02833.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, baselines, ratios, surrogates
from grpo_jax.types import Algorithm, PolicyOutputs, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class TICGRPOConfig(CommonConfig):
  """Options of TIC-GRPO: the upper bound, and the length correction.

  Attributes:
    clip_high: Width of the range above 1: the trajectory's ratio is clipped to
      at most 1 + high.
    log_ratio_clamp: Largest |log w| of a whole trajectory, nats.
    length_corrected: True if advantages are those of R_i / |y_i|, where |y_i|
      counts the tokens of the policy.
  """

  clip_high: float = 0.28
  log_ratio_clamp: float = 20.0  # Nats, of the whole trajectory.
  length_corrected: bool = False
  scale_free = True  # Standardised here.


def advantages(config: TICGRPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  rewards = batch.rewards
  if config.length_corrected:
    rewards /= jnp.maximum(batch.sampler.lengths, 1)
  return baselines.group_standardized(
    rewards,
    batch.valid,
    batch.group_id,
    batch.num_groups,
    eps=config.advantage_eps,
  )


def policy_loss(
  config: TICGRPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B]
  ratio = ratios.trajectory_ratio(
    policy.logp, batch.old_logp, batch.mask, config.log_ratio_clamp
  )  # [B]
  return -surrogates.upper_clipped(ratio, batch.advantages, config.clip_high)


TIC_GRPO = Algorithm(
  name="tic_grpo",
  config_class=TICGRPOConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp", "lengths"),
  whole_completions=True,
  min_group_size=2,
  token_advantages=False,
)
