"""REINFORCE++: no critic, no groups, one normalisation (arXiv:2501.03262).

    r_it = −β k1_it + 1[t last] R_i
    A_it = (Σ_{s ≥ t} γ^{s−t} r_is − mean) / std,   over all tokens
    L    = −(1/N) Σ_i Σ_t min(r_it A_it, clip(r_it) A_it)

Mean and deviation are over the trained tokens of the batch, as in verl, so long
completions weigh more; with `normalize_over` = "sequences" all completions have
equal weights. Tokens that are not trained are skipped; verl's return stops at
them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, masked, returns
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class REINFORCEPPConfig(ClipConfig):
  """Options of REINFORCE++: a discount, and the KL in the reward.

  Attributes:
    gamma: Discount per trained token, in [0, 1].
    normalize_over: Units of equal weight in the mean and the deviation of the
      advantages: "tokens", or "sequences".
  """

  gamma: float = 1.0
  normalize_over: str = "tokens"
  kl_coef: float = 1e-3
  kl_kind: str = "k1"
  kl_in_reward: bool = True
  scale_free = True  # Standardised here.

  def __post_init__(self):
    super().__post_init__()
    check_normalize_over(self)


def check_normalize_over(config: Any) -> None:
  """Raises ValueError if `normalize_over` is unknown."""
  if config.normalize_over not in ("tokens", "sequences"):
    config.complain(
      "normalize_over", "is unknown; choose one of tokens, sequences"
    )


def advantages(
  config: REINFORCEPPConfig, batch: TrainBatch
) -> jax.Array:  # [B, T]
  rewards = batch.scores.token_rewards + returns.outcome_rewards(
    batch.rewards, batch.mask
  )
  to_go = returns.returns_to_go(rewards, batch.mask, config.gamma)
  by_rows = config.normalize_over == "sequences"
  return masked.whiten(to_go, batch.mask, by_rows)


REINFORCE_PP = Algorithm(
  name="reinforce_pp",
  config_class=REINFORCEPPConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp", "token_rewards"),
  whole_completions=True,
)
