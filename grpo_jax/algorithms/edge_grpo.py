"""EDGE-GRPO: confident completions get larger advantages (2507.21848).

    A'_i = A_i · clip( mean_j H_j / H_i, 0.1, 10 )
    L    = GRPO's, with A' and by default without its KL

H_i is the mean entropy of the completion's tokens when it was sampled. j counts
all scored completions of the batch, except groups that `dynamic_sampling`
leaves out. If the rewards of a group are equal, A' is 0, as A is.

Deviations from the authors' code: there is no mean over padding and no gradient
through H_i, and the bounds are on, which the authors' code has commented out.
The guided correction of wrong completions changes the rollout, and is a setting
of the rollout: `config.rl.correction`, docs/correction.md.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, shaping
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class EDGEGRPOConfig(ClipConfig):
  """Options of EDGE-GRPO: bounds of the factor.

  Attributes:
    factor_min, factor_max: Bounds to which the factor of an advantage is
      clipped.
  """

  advantage_scale: str = "group"
  factor_min: float = 0.1  # grpo_aha_trainer.py, commented out.
  factor_max: float = 10.0


def advantages(config: EDGEGRPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  factor = shaping.edge_factor(
    batch.sampler.entropy, batch.mask, config.factor_min, config.factor_max
  )  # [B]
  return factor * grpo.advantages(config, batch)


EDGE_GRPO = Algorithm(
  name="edge_grpo",
  config_class=EDGEGRPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp", "behavior_entropy"),
  whole_completions=True,
  min_group_size=2,
)
