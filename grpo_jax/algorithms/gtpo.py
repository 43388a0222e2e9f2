"""GTPO: token rewards shaped by the policy's entropy (arXiv:2508.04349).

    right:  r̃_it =  α_1 + α_2 d_t H_it / Σ_{k right, alive} H_kt
    wrong:  r̃_it = −α_1 − α_2 h_t (1/H_it) / Σ_{k wrong, alive} (1/H_kt)
    A_it  = (r̃_it − mean) / (std + eps),   over the tokens of the group
    L     = −(1/N) Σ_i Σ_t min(r_it A_it, clip(r_it) A_it)

d_t and h_t count the right and wrong completions of the group that have a token
t; 1e-6 is added to an H that divides. The deviation is the population's. The
paper does not settle the set of the normalisation: "joint" is the group,
"split" separates right and wrong tokens (which removes the outcome's sign), and
"none" leaves r̃ unchanged. Another method is also called GTPO
(arXiv:2508.03772).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, shaping
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GTPOConfig(ClipConfig):
  """Options of GTPO: rewards of tokens.

  Attributes:
    alpha1: α_1 of the equation: reward of a token from the outcome alone.
    alpha2: α_2: mean reward of a token from the entropy.
    normalization: Tokens over which r̃ is standardised: "joint" (the group),
      "split" (right and wrong tokens separately) or "none".
  """

  clip_high: float = 0.28  # DAPO's.
  alpha1: float = 1.0  # Section 4.
  alpha2: float = 0.1
  normalization: str = "joint"
  scale_free = True  # Computed from right answers and entropies.
  reads_rewards = False  # Only the correctness of answers is read.

  def __post_init__(self):
    super().__post_init__()
    if self.normalization not in ("joint", "split", "none"):
      self.complain("normalization", "is none of joint, split, none")


def shaped_advantages(
  config: GTPOConfig,
  batch: TrainBatch,
  shape: Callable[..., jax.Array],
  present: jax.Array,  # [B] or [B, T] bool
) -> jax.Array:  # [B] or [B, T]
  """Normalises the rewards of `shape` over those that are present."""
  shaped = shape(
    batch.correct,
    batch.sampler.entropy,
    batch.mask,
    batch.group_id,
    batch.num_groups,
    batch.valid,
    config.alpha1,
    config.alpha2,
  )
  return shaping.normalized_over_group(
    shaped,
    present,
    batch.group_id,
    batch.num_groups,
    batch.correct,
    config.normalization,
  )


def advantages(config: GTPOConfig, batch: TrainBatch) -> jax.Array:  # [B, T]
  present = batch.mask & batch.valid[:, None]
  return shaped_advantages(config, batch, shaping.gtpo_rewards, present)


GTPO = Algorithm(
  name="gtpo",
  config_class=GTPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp", "behavior_entropy"),
  whole_completions=True,
  min_group_size=2,
)
