"""Pass@k training: only the best completion of a group is trained.

    A_best = R_(1) − R_(2),   A_i = 0 otherwise
    L      = −(1/N) Σ_i Σ_t min(r_it A_i, clip(r_it) A_i)

On-policy and with the tokens summed, the expected gradient is that of the
expected maximum of the group, pass@G; the mean over tokens divides by a length
that depends on the samples. If the two best rewards are equal, A is 0.
`advantage_scale="group"` divides by the deviation, as verl does by default.

Source: Tang et al., arXiv:2503.19595.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class PassKConfig(ClipConfig):
  """Options of pass@k training: those of `ClipConfig`."""


def advantages(config: PassKConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return baselines.best_of_group(
    batch.rewards, batch.valid, batch.group_id, batch.num_groups
  )


PASSK = Algorithm(
  name="passk",
  config_class=PassKConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  needs=("old_logp",),
  min_group_size=2,
)
