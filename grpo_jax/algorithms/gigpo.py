"""GiGPO: compares episodes, and actions in a state (arXiv:2505.10978).

    A^E_i  = (R_i − mean R) / F,  R_i = Σ_τ r_iτ,  over the group's episodes
    A^S_iτ = (G_iτ − mean G) / F,  G_τ = r_τ + γ G_{τ+1},  over all actions of
             the group that were taken in the same state
    A_iτ   = A^E_i + ω A^S_iτ,  at all tokens of action τ
    L      = GRPO's

F is the deviation + eps, or 1 without `normalize`: then R_i − mean R is
(n − 1) / n times the difference to a mean without R_i. An action that is alone
in its state has A^S = 0. The reward of a turn is the environment's, without the
weights of `config.rewards`. ω, γ and β are the paper's.

Deviations: the paper has one ratio for a whole action; here each token has its
own, as in the authors' code. In the paper the actions of an episode have equal
weights; here its tokens have. A group whose R, or G, differ only by round-off
has advantage 0.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import actions, aggregation, baselines, masked
from grpo_jax.types import Algorithm, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GiGPOConfig(ClipConfig):
  """Options of GiGPO: advantages of episodes and of states.

  Attributes:
    gamma: Discount per turn, in [0, 1].
    omega: ω of the equation: weight of the advantage among actions of a state.
    normalize: True if F is the deviation; False: F is 1.
  """

  gamma: float = 0.95
  omega: float = 1.0
  normalize: bool = True  # F is the deviation.
  kl_coef: float = 0.01
  reads_rewards = False  # Rewards of turns are read.

  def __post_init__(self):
    super().__post_init__()
    if self.gamma > 1:
      self.complain("gamma", "must be in [0, 1]")

  @property
  def scale_free(self) -> bool:
    return self.normalize


def advantages(config: GiGPOConfig, batch: TrainBatch) -> jax.Array:  # [B, T]
  def relative(sums, counted, group, num_groups):
    """Advantages of sums of turn rewards, which may differ by round-off."""
    x, size = sums(batch.turns.rewards), sums(jnp.abs(batch.turns.rewards))
    x = baselines.without_round_off(x, size, counted, group, num_groups)
    if not config.normalize:
      return baselines.group_centered(x, counted, group, num_groups)
    return baselines.group_standardized(
      x, counted, group, num_groups, eps=config.advantage_eps
    )

  def outcomes(rewards):  # [B]
    return masked.sum(rewards, batch.mask, axis=-1)

  def to_go(rewards):  # [B * T], at the first token of each action
    return actions.returns_to_go(
      rewards, batch.turns.index, batch.mask, config.gamma
    ).ravel()

  played = batch.valid & batch.mask.any(axis=-1)
  episode = relative(outcomes, played, batch.group_id, batch.num_groups)  # [B]
  first = actions.first(batch.turns.index, batch.mask)
  anchor = actions.anchors(batch.turns.state_id, first, batch.group_id)
  step = relative(to_go, first.ravel(), anchor.ravel(), first.size)
  joint = episode[:, None] + config.omega * step.reshape(first.shape)
  return actions.spread(joint, batch.turns.index, batch.mask)


GIGPO = Algorithm(
  name="gigpo",
  config_class=GiGPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_sequences,
  needs=("old_logp", "turns", "state_id"),
  whole_completions=True,
  min_group_size=2,
)
