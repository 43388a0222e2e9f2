"""SPO: one completion per prompt, against a tracked baseline (2509.13232).

    A_i = (R_i − φ_i − mean) / (std + 1e-8),   over the completions of the batch
    L   = −(1/N) Σ_i Σ_t min(r_it A_i, clip(r_it) A_i)

φ estimates the probability that a completion of the prompt is right, from its
completions in earlier steps. A schedule that tracks prompts computes φ
(`step/prompts.py`); the schedule "spo" forgets as in the paper. φ counts right
answers, so rewards should be 1 for these and 0 for others.

Clip range, dual clip, the mean over tokens and the sample deviation are those
of verl's recipe `spo`. Deviation: if all R − φ are equal, A is 0.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class SPOConfig(ClipConfig):
  clip_high: float = 0.28  # recipe/spo/run_spo.sh, and dual_clip.
  dual_clip: float = 10.0
  scale_free = True  # Standardised here.


def advantages(config: SPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return baselines.batch_standardized(
    batch.rewards - batch.scores.expected, batch.valid, eps=1e-8
  )


SPO = Algorithm(
  name="spo",
  config_class=SPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp", "expected"),
  max_group_size=1,
)
