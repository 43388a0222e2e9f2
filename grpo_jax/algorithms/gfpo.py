"""GFPO: sample more completions, train on a chosen few (2508.09726).

    S_g = the k completions of the group with the best metric
    A_i = 1[i ∈ S_g] (R_i − mean_S R) / (std_S R + eps)
    L   = −(1/N) Σ_i Σ_t [min(r_it A_i, clip(r_it) A_i) − β k3_it + c H_it]

| `metric`       | are kept                                                |
|----------------|---------------------------------------------------------|
| "length"       | the shortest                                            |
| "efficiency"   | those with the most reward per token                    |
| "adaptive"     | the shortest, fewer of them where a prompt is easy      |
| "max_variance" | those whose rewards vary most (PODS, arXiv:2504.13818)  |

Lengths count the tokens of the policy. Ties are broken by the order of rows.
With "adaptive" a group's mean reward over all its completions is compared with
the quartiles q of the mean rewards of past groups:

    k = num_kept · (1 below q25, 1 below q50, 3/4 below q75, 1/2 above)

With `num_kept` 8, k is 8, 8, 6, 4, the paper's numbers for 16 completions; k is
never below 2. N counts the tokens of all completions (Eq. 2), or with `denom`
"kept" those of kept completions alone. The deviation is the population's. The
paper's excess length reduction compares two runs, so it is not a metric of one
run: compute it from `length/mean` of both.

Deviations: the paper prints the KL against π_old; `kl_coef` weighs the KL to
the reference, and `kl_old_coef` the printed KL. Quartiles are exact, over the
last 8192 groups, instead of those of a t-digest.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import grpo
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, baselines, divergences, selection
from grpo_jax.types import Algorithm, PolicyOutputs, Term, TrainBatch

METRICS = ("length", "efficiency", "adaptive", "max_variance")
_REMEMBERED = 8192  # groups


@dataclasses.dataclass(frozen=True, kw_only=True)
class GFPOConfig(ClipConfig):
  """Options of GFPO: the choice of completions that are kept.

  Attributes:
    num_kept: Completions of a group that are trained, at least 2; with
      "adaptive", those of a hard group.
    metric: Metric of the choice: "length", "efficiency", "adaptive" or
      "max_variance".
    efficiency_shift: True if "efficiency" measures rewards from the least
      reward of the group. Otherwise, if rewards are negative, long completions
      have the most reward per token.
    adaptive_warmup: Groups that "adaptive" sees before it keeps fewer than
      `num_kept`.
    denom: Completions whose tokens the mean of the loss counts, and to which
      KL and entropy apply: "all", or "kept".
    kl_old_coef: Weight of the KL to the policy at the start of the update, per
      nat.
  """

  num_kept: int = 8  # Section 4: k ≤ 8 of 8, 16 or 24.
  metric: str = "length"
  efficiency_shift: bool = False
  adaptive_warmup: int = 64  # A batch of the paper's, Section 4.
  denom: str = "all"  # Eq. 2.
  kl_old_coef: float = 0.0
  kl_coef: float = 1e-3  # Section 4.
  entropy_coef: float = 1e-3  # Section 4.
  scale_free = True  # Standardised here.

  def __post_init__(self):
    super().__post_init__()
    if self.metric not in METRICS:
      self.complain("metric", f"is unknown; choose one of {', '.join(METRICS)}")
    if self.denom not in ("all", "kept"):
      self.complain("denom", "is neither all nor kept")
    if self.num_kept < 2:
      self.complain("num_kept", "leaves nothing to compare; at least 2")
    if self.efficiency_shift and self.metric != "efficiency":
      self.complain(
        "efficiency_shift", "is about metric='efficiency'; set one or the other"
      )


def init(config: GFPOConfig):
  if config.metric != "adaptive":
    return {}, {}
  return {}, {"difficulties": selection.empty_memory(_REMEMBERED)}


def _statistics(batch: TrainBatch) -> baselines.GroupStatistics:
  return baselines.group_statistics(
    batch.rewards, batch.valid, batch.group_id, batch.num_groups
  )


def _most(config: GFPOConfig, batch: TrainBatch) -> jax.Array | int:
  """The number of kept rows of each row's group [B], or of all groups []."""
  if config.metric != "adaptive":
    return config.num_kept
  past = batch.state["difficulties"]
  quartiles = selection.quantiles(past, jnp.array([0.25, 0.5, 0.75]))
  above = (_statistics(batch).mean[:, None] >= quartiles).sum(axis=-1)
  above = jnp.where(past.num_seen >= config.adaptive_warmup, above, 0)
  counts = [round(config.num_kept * share) for share in (1, 1, 0.75, 0.5)]
  return jnp.array([max(x, 2) for x in counts])[above][batch.group_id]


def row_mask(config: GFPOConfig, batch: TrainBatch) -> jax.Array:  # [B] bool
  """True on the rows that are trained."""
  groups = batch.valid, batch.group_id
  if config.metric == "max_variance":
    return selection.most_varied(
      batch.rewards, *groups, batch.num_groups, config.num_kept
    )
  cost = batch.sampler.lengths.astype(batch.rewards.dtype)  # [B]
  if config.metric == "efficiency":
    rewards = batch.rewards
    if config.efficiency_shift:
      rewards = rewards - _statistics(batch).least[batch.group_id]
    cost = -rewards / jnp.maximum(cost, 1)
  rank = baselines.rank_in_group(cost, *groups)
  return batch.valid & (rank < _most(config, batch))


def advantages(config: GFPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  return baselines.group_standardized(
    batch.rewards,
    row_mask(config, batch),
    batch.group_id,
    batch.num_groups,
    ddof=0,
    eps=config.advantage_eps,
  )


def prepare(config: GFPOConfig, batch: TrainBatch) -> TrainBatch:
  if config.denom == "all":
    return batch
  rows = row_mask(config, batch)[:, None]
  return dataclasses.replace(batch, mask=batch.mask & rows)


def _kl_old(policy: PolicyOutputs, batch: TrainBatch) -> jax.Array:  # [B, T]
  return divergences.kl(policy.logp, batch.old_logp, batch.mask, "k3")


def terms(config: GFPOConfig) -> dict[str, Term]:
  if not config.kl_old_coef:
    return {}
  return {
    "kl_old": Term(
      lambda batch: config.kl_old_coef, _kl_old, aggregation.over_tokens
    )
  }


def update_state(config: GFPOConfig, state, metrics, batch: TrainBatch):
  del metrics
  if config.metric != "adaptive":
    return state
  groups = _statistics(batch)
  past = selection.remember(
    state["difficulties"], groups.mean, groups.num_valid > 0
  )
  return {"difficulties": past}


GFPO = Algorithm(
  name="gfpo",
  config_class=GFPOConfig,
  advantages=advantages,
  policy_loss=grpo.policy_loss,
  aggregate=aggregation.over_tokens,
  init=init,
  prepare=prepare,
  terms=terms,
  update_state=update_state,
  needs=("old_logp", "lengths"),
  whole_completions=True,
  min_group_size=2,
)
