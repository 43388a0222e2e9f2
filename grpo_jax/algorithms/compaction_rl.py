"""CompactionRL: PPO over contexts that summaries connect (arXiv:2607.05378).

    A_{s,i} = (γ λ)^{N_{>s}} Â_{s,i},   N_{>s} = tokens of later contexts
    L       = −(1/N) Σ over tokens of all contexts min(r A, clip(r) A)

Every context is a row; Â is estimated within it, with the outcome of the
rollout as its terminal reward and nothing beyond. One completion per prompt,
and λ = 1 − 1 / (α |y|) over the tokens of the rollout, α = 1.5. The critic has
λ = 1; the paper trains it twice as often as the policy and pre-trains it for 50
steps (`config.critic.num_updates`, phase "value"): `compaction_rl.py` of the
recipes.

`weight` = "context" is the paper's ablation "without token-level loss": all
contexts have equal weights, however many tokens they have. With "trace" all
rollouts have equal weights. The ablation without the cross-segment discount is
`boundary` = "outcome".

The paper leaves four points open:
- The tokens that λ counts: here all tokens of the rollout; those of a context
  with `length_adaptive_unit` = "context".
- The end of a context: here it does not have the value of the next context;
  with `boundary` = "compaction_rl_bootstrap" that value takes the place of R.
- γ: here 1.
- Standardised advantages: here they are.

`reward` = "split" pays a context its share of R.
"""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from grpo_jax.algorithms import grpo, ppo
from grpo_jax.algorithms.options import ClipConfig, CriticOptions
from grpo_jax.ops import aggregation
from grpo_jax.types import Algorithm, TrainBatch

WEIGHTS = ("token", "context", "trace")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompactionRLConfig(ClipConfig, CriticOptions):
  """PPO's options, and the unit of equal weight.

  Attributes:
    weight: Unit of equal weight in the loss: a "token", a whole "context", or a
      "trace", which is a rollout with all its contexts.
  """

  lam_critic: float = 1.0
  length_adaptive_alpha: float = 1.5
  boundary: str = "compaction_rl"  # Eq. 14.
  value_clip: float = 0.0
  weight: str = "token"  # The unit of equal weight.

  def __post_init__(self):
    super().__post_init__()
    if self.weight not in WEIGHTS:
      self.complain("weight", f"is unknown; choose one of {', '.join(WEIGHTS)}")
    if self.weight != "token" and self.token_mean_scope != "batch":
      self.complain(
        "weight",
        f"and token_mean_scope={self.token_mean_scope!r} both say what weighs"
        " as much as any other; set weight='token' or"
        " token_mean_scope='batch'",
      )


def prepare(config: CompactionRLConfig, batch: TrainBatch) -> TrainBatch:
  """Weighs tokens by the unit `weight`."""
  if config.weight == "token":
    return batch
  num_rows = len(batch.mask)
  unit = jnp.arange(num_rows)
  if config.weight == "trace" and batch.traces.id is not None:
    unit = batch.traces.id
  weight = aggregation.equal_weights(batch.mask, unit, num_rows)  # [B, 1]
  weight = jnp.broadcast_to(weight, batch.mask.shape)
  return dataclasses.replace(batch, policy_weight=weight)


COMPACTION_RL = Algorithm(
  name="compaction_rl",
  config_class=CompactionRLConfig,
  advantages=ppo.advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  returns=ppo.returns,
  critic_loss=ppo.critic_loss,
  prepare=prepare,
  needs=("old_logp", "token_rewards", "values"),
  max_group_size=1,
)
