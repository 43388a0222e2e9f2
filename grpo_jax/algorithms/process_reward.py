"""A process reward model: the probability that a step of reasoning is right.

    L = −(1/N) Σ_ij [ ρ_ij log σ(r_ij) + (1 − ρ_ij) log(1 − σ(r_ij)) ]

r_ij is the model's score after the last token of step j of completion i, and
ρ_ij in [0, 1] is the score of a verifier of steps; N counts all steps. A policy
is not trained: this is the objective of phases of the kind "process".

Source: Lightman et al., "Let's Verify Step by Step", arXiv:2305.20050; with
labels between 0 and 1 Wang et al., "Math-Shepherd", arXiv:2312.08935, Eq. 2.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, masked
from grpo_jax.ops import values as values_lib
from grpo_jax.types import Algorithm, TrainBatch, Weighted


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessRewardConfig(CommonConfig):
  """Options of a process reward model: the common ones."""

  scale_free = True  # Labels are probabilities.


def advantages(config: ProcessRewardConfig, batch: TrainBatch) -> jax.Array:
  """Zeros, because a policy is not trained."""
  del config
  return jnp.zeros_like(batch.rewards)  # [B]


def prepare(config: ProcessRewardConfig, batch: TrainBatch) -> TrainBatch:
  """Restricts training to the tokens that end steps."""
  del config
  return dataclasses.replace(batch, mask=batch.mask & batch.scores.step_mask)


def critic_loss(
  config: ProcessRewardConfig, values: jax.Array, batch: TrainBatch
) -> jax.Array:  # [B, T]
  del config
  label = jnp.clip(batch.scores.step_rewards, 0.0, 1.0)
  right, wrong = jax.nn.log_sigmoid(values), jax.nn.log_sigmoid(-values)
  return masked.select(-label * right - (1 - label) * wrong, batch.mask)


def critic_metrics(
  config: ProcessRewardConfig, values: jax.Array, batch: TrainBatch
) -> dict[str, Weighted]:
  """The share of steps on the right side of ½, and the calibration error."""
  del config
  label = jnp.clip(batch.scores.step_rewards, 0.0, 1.0)
  agrees = (values > 0) == (label >= 0.5)
  return {
    "accuracy": aggregation.over_tokens(agrees.astype(jnp.float32), batch.mask),
    "calibration_error": values_lib.gaps(
      jax.nn.sigmoid(values), label, batch.mask
    ),
  }


PROCESS_REWARD = Algorithm(
  name="process_reward",
  config_class=ProcessRewardConfig,
  advantages=advantages,
  policy_loss=None,
  aggregate=aggregation.over_tokens,
  prepare=prepare,
  critic_loss=critic_loss,
  critic_metrics=critic_metrics,
  needs=("step_rewards",),
)
