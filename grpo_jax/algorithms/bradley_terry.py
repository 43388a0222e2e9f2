"""A reward model from preferences (Bradley and Terry, 1952).

    L = (1/K) Σ_pairs [ −log σ(r_chosen − r_rejected − margin)
                        + c (r_chosen + r_rejected)² ]

r is the score of a reward model after a completion's last token; the K pairs
are those of `dpo.py`. The second part keeps scores centred (Eisenstein et al.,
arXiv:2312.09244); by default c = 0. A policy is not trained: this is for phases
of the kind "preference".

Source: Ouyang et al., "Training language models to follow instructions with
human feedback", arXiv:2203.02155, Eq. 1.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import dpo
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, masked, preferences, returns
from grpo_jax.types import Algorithm, TrainBatch, Weighted


@dataclasses.dataclass(frozen=True, kw_only=True)
class BradleyTerryConfig(CommonConfig):
  """Options of the loss of pairs.

  Attributes:
    margin: Least difference of the chosen and the rejected score that the loss
      asks for.
    center_coef: c of the equation: weight of the part that keeps scores
      centred.
  """

  margin: float = 0.0
  center_coef: float = 0.0  # 0.01 in arXiv:2312.09244.
  scale_free = True  # Rewards only order completions.


def _pairs(
  values: jax.Array, batch: TrainBatch
) -> tuple[jax.Array, jax.Array]:  # [num_groups] each
  """Scores of the better and of the worse row of each group."""
  ones = jnp.ones_like(values[:, 0])
  is_last = returns.outcome_rewards(ones, batch.mask) > 0  # [B, T]
  score = masked.sum(values, is_last, axis=-1)  # [B]

  def of(role):
    scores = masked.select(score, batch.pair_role == role)
    return jax.ops.segment_sum(scores, batch.group_id, batch.num_groups)

  return of(1), of(-1)


def critic_loss(
  config: BradleyTerryConfig, values: jax.Array, batch: TrainBatch
) -> jax.Array:  # [B]
  chosen, rejected = _pairs(values, batch)
  loss = preferences.bradley_terry(
    chosen, rejected, config.margin, config.center_coef
  )  # [num_groups]
  return masked.select(loss[batch.group_id], batch.pair_role != 0)


def critic_metrics(
  config: BradleyTerryConfig, values: jax.Array, batch: TrainBatch
) -> dict[str, Weighted]:
  """The share of pairs ranked right, and the calibration of σ(r_w − r_l)."""
  del config
  chosen, rejected = _pairs(values, batch)
  rows = jnp.abs(batch.pair_role) * batch.mask.any(axis=-1)  # [B]
  pairs = jax.ops.segment_sum(rows, batch.group_id, batch.num_groups) == 2
  margin = chosen - rejected  # [num_groups]
  return preferences.of_ranking(margin, pairs) | {
    "margin": Weighted(masked.sum(margin, pairs), pairs.sum())
  }


BRADLEY_TERRY = Algorithm(
  name="bradley_terry",
  config_class=BradleyTerryConfig,
  advantages=dpo.advantages,
  policy_loss=None,
  aggregate=aggregation.over_sequences,
  prepare=dpo.prepare,
  critic_loss=critic_loss,
  critic_metrics=critic_metrics,
  couples_group=True,
  min_group_size=2,
  token_advantages=False,
)
