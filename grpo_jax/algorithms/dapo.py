"""DAPO: clip-higher, dynamic sampling, token loss, overlong shaping.

    R'_i = R_i + soft_overlong(|y_i|)
    A_i  = (R'_i − mean_g R') / (std_g R' + eps)
    L    = −(1/N) Σ_i Σ_t min(r_it A_i, clip(r_it, 1 − ε_low, 1 + ε_high) A_i)

with N the trained tokens of the batch. The four parts are four options:
`clip_high`, `dynamic_sampling`, the aggregation over tokens, and
`overlong_cache` (soft punishment) with `overlong_filter` (its harder
sibling, off by default as in the paper's final recipe).

Deviations: dynamic sampling draws up to `config.rl.max_rounds` rounds until the
batch is full of live groups; with 1 round, the default, it is a mask over one
batch. Live groups are determined by rewards before the length punishment, as in
verl's reading of the paper. Trained tokens are counted over the batch, as in
TRL and verl; `token_mean_scope` = "group" counts them in each group, and takes
the mean over groups, as in Eq. 8.

Source: Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at
Scale", arXiv:2503.14476.
"""

from __future__ import annotations

import dataclasses

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True, kw_only=True)
class DAPOConfig(ClipConfig):
  clip_low: float = 0.2  # Section 4.1.
  clip_high: float = 0.28  # Section 4.1.
  advantage_scale: str = "group"  # Eq. 9.
  dynamic_sampling: bool = True  # Section 3.2.
  overlong_cache: float = 0.2  # 4096 of 20480 tokens in Section 4.1.


DAPO = Algorithm(
  name="dapo",
  config_class=DAPOConfig,
  advantages=grpo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp",),
  min_group_size=2,
)
