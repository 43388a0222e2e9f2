"""DAPO: clip-higher, dynamic sampling, token loss, overlong shaping.

    R'_i = R_i + soft_overlong(|y_i|)
    A_i  = (R'_i − mean_g R') / (std_g R' + eps)
    L    = −(1/N) Σ_i Σ_t min(r_it A_i, clip(r_it, 1 − ε_low, 1 + ε_high) A_i)

with N the trained tokens of the batch. The four parts are four fields:
`clip_high`, `dynamic_sampling`, the aggregation over tokens, and
`overlong_cache` (soft punishment) with `overlong_filter` (its harder
sibling, off by default as in the paper's final recipe).

Deviations: dynamic sampling is a mask over a fixed, over-sampled batch: ask
for more prompts than `max_live_groups` and the rest is left out. A group is
live by its rewards before the length punishment, as verl's reading of the
paper has it. Trained tokens are counted over the batch, not per group.

Source: Yu et al., "DAPO: An Open-Source LLM Reinforcement Learning System at
Scale", arXiv:2503.14476.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo, objective
from grpo_jax.ops import aggregation, baselines, shaping
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class DAPOConfig(objective.CommonConfig):
  clip_low: float = 0.2  # Section 4.1.
  clip_high: float = 0.28  # Section 4.1.
  log_ratio_clamp: float = 20.0  # Nats, before exp.
  dynamic_sampling: bool = True  # Section 3.2.
  # Share of the budget over which the punishment grows: 4096 of 20480 tokens
  # in Section 4.1. 0 switches it off.
  overlong_cache: float = 0.2


def advantages(config: DAPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  rewards = batch.rewards
  budget = batch.tokens.shape[-1]
  cache = round(config.overlong_cache * budget)  # tokens
  if cache:
    lengths = batch.completion_mask.sum(axis=-1)  # [B]
    rewards += shaping.soft_overlong(lengths, budget, cache)
  return baselines.group_standardized(
    rewards, batch.valid, batch.group_id, batch.num_groups
  )


DAPO = Algorithm(
  name="dapo",
  config_class=DAPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp",),
  min_group_size=2,
)
