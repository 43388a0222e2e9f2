"""Optimal token baseline: a baseline for every position.

    w_it = 1 − 2 π_old(y_it) + Σ_v π_old(v)²,   W_it = Σ_{s ≤ t} w_is
    A_it = R_i − Σ_{j ∈ g} W_jt R_j / Σ_{j ∈ g} W_jt
    L    = −(1/N) Σ_i Σ_t min(r_it A_it, clip(r_it) A_it)

w is the squared norm of the score with respect to the logits, so the baseline
has the least variance among those that depend on the position. The equations
are those of verl's `optimal_token_baseline`, with its `handle_zero_tail` as
`zero_tail`; token loss and clip range are its defaults, and its dual clip is
off. Sums over j are over the rows of the group that have a trained token t.
Deviation: if all of these have the same R, as a row that continues alone, A is
exactly 0; in verl eps in the quotient leaves a remainder.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines, returns
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class OTBConfig(ClipConfig):
  """Options of the optimal token baseline.

  Attributes:
    zero_tail: True if the baseline is 0 where one row of a group continues
      alone.
  """

  zero_tail: bool = False  # If True, A = R where a row continues alone.


def advantages(config: OTBConfig, batch: TrainBatch) -> jax.Array:  # [B, T]
  rewards = returns.outcome_rewards(batch.rewards, batch.mask)
  return baselines.optimal_token(
    returns.returns_to_go(rewards, batch.mask),
    batch.old_logp,
    batch.anchor.sum_pi_squared,
    batch.mask,
    batch.group_id,
    batch.num_groups,
    config.zero_tail,
  )


OTB = Algorithm(
  name="otb",
  config_class=OTBConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp", "sum_pi_squared"),
  whole_completions=True,
  min_group_size=2,
)
