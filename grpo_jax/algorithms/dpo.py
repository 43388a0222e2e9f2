"""DPO on the best and the worst completion of each group.

    x_i = Σ_t [log π_θ(y_it) − log π_ref(y_it)],   d = x_chosen − x_rejected
    L   = −(1/K) Σ_pairs log σ(β d)

`kind` replaces log σ by other losses of d. `label_smoothing` is the share of
pairs that the rewards order wrongly. `f_divergence` replaces x in d by a
function of x (`ops/preferences.py`). With `length_normalized`, and for "ipo",
x_i / |y_i| takes the place of x_i.

There are K pairs: one per group whose rewards are not all equal, of its first
best and its first worst row. The other rows are not trained. If pairs come from
data, a group is two rows with rewards 1 and 0; else the policy samples the
group (online DPO).

The paper's KL to the reference is in x: `kl_coef` is 0. Above 0 it adds a
penalty, which neither the paper nor TRL has: a mean over the completions of
pairs, each of which counts as much whatever its length, as in L.

Source: Rafailov et al., "Direct Preference Optimization", arXiv:2305.18290,
Eq. 7; normalised by length: Lambert et al., "Tülu 3", arXiv:2411.15124, Eq. 6;
the other sources are in `ops/preferences.py`.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import aggregation, baselines, masked, preferences, ratios
from grpo_jax.types import Algorithm, PolicyOutputs, Term, TrainBatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairConfig(CommonConfig):
  """Options of DPO's loss of the difference d.

  Attributes:
    beta: β of the equation: weight of d, per nat.
    kind: "sigmoid" (DPO), "hinge", "ipo" or "robust".
    label_smoothing: Share of pairs that the rewards order wrongly, below 0.5.
    f_divergence: "reverse_kl" (DPO), "forward_kl" or "js_divergence".
    length_normalized: True if log-ratios are means over tokens, as they always
      are for "ipo". β is then per nat and token: Tülu 3 has 5.
  """

  beta: float = 0.1  # Section 6.
  kind: str = "sigmoid"  # Or "hinge", "ipo", "robust".
  label_smoothing: float = 0.0
  f_divergence: str = "reverse_kl"  # Or "forward_kl", "js_divergence".
  length_normalized: bool = False

  def __post_init__(self):
    super().__post_init__()
    for name, choices in (
      ("kind", preferences.DPO_KINDS),
      ("f_divergence", preferences.F_DIVERGENCES),
    ):
      if getattr(self, name) not in choices:
        self.complain(name, f"is unknown; choose one of {', '.join(choices)}")
    if self.beta == 0:
      self.complain("beta", "must be greater than 0")
    if self.label_smoothing >= 0.5:
      self.complain("label_smoothing", "is a share of wrong labels below 0.5")
    if self.label_smoothing and self.kind in ("hinge", "ipo"):
      self.complain("label_smoothing", f"is not used by kind={self.kind!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPOConfig(PairConfig):
  """Options of DPO alone."""

  scale_free = True  # Rewards only order completions.

  def __post_init__(self):
    super().__post_init__()
    if self.singleton != "zero":
      self.complain("singleton", "is about advantages, and here are pairs")
    if self.count_empty:
      self.complain("count_empty", "counts completions that are in no pair")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithPairsConfig(PairConfig):
  """Options of DPO beside another loss.

  Attributes:
    dpo_coef: α, the weight of DPO's loss. Its other settings are those of DPO.
  """

  dpo_coef: float = 0.1


def pair_roles(batch: TrainBatch) -> jax.Array:  # [B]
  """Roles in pairs: +1 for the first best and −1 for the first worst row.

  The role is 0 for other rows of a group, for rows that were not scored or have
  no tokens, and in groups whose rewards are all equal.
  """
  rows = batch.valid & batch.mask.any(axis=-1)  # [B]
  group = batch.group_id, batch.num_groups
  live = baselines.live_groups(batch.rewards, rows, *group)[group[0]]  # [B]
  statistics = baselines.group_statistics(batch.rewards, rows, *group)

  def first(extreme):  # [num_groups] -> [B] bool
    candidates = rows & live & (batch.rewards == extreme[group[0]])
    places = jnp.where(candidates, jnp.arange(len(rows)), len(rows))
    earliest = jax.ops.segment_min(places, *group)
    return candidates & (places == earliest[group[0]])

  best, worst = first(statistics.greatest), first(statistics.least)
  return best.astype(batch.rewards.dtype) - worst


def advantages(config: DPOConfig, batch: TrainBatch) -> jax.Array:  # [B]
  del config
  return pair_roles(batch)


def prepare(config: DPOConfig, batch: TrainBatch) -> TrainBatch:
  del config
  roles = pair_roles(batch)
  return dataclasses.replace(
    batch,
    pair_role=roles,
    advantages=roles,  # Roles of the remaining rows.
    mask=batch.mask & (roles != 0)[:, None],
  )


def pair_loss(
  config: PairConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B]
  """The loss of the pair that a row belongs to; 0 for the other rows."""
  log_ratio = ratios.log_ratio(policy.logp, batch.reference.logp, batch.mask)
  if config.length_normalized or config.kind == "ipo":
    x = masked.mean(log_ratio, batch.mask, axis=-1)  # [B]
  else:
    x = log_ratio.sum(axis=-1)  # [B]
  score = batch.pair_role * preferences.dpo_score(x, config.f_divergence)
  margin = jax.ops.segment_sum(score, batch.group_id, batch.num_groups)
  loss = preferences.dpo(
    margin, config.beta, config.kind, config.label_smoothing
  )  # [num_groups]
  return masked.select(loss[batch.group_id], batch.pair_role != 0)


def with_roles(config: PairConfig, batch: TrainBatch) -> TrainBatch:
  """Adds roles to the rows of pairs; all rows stay in the batch."""
  del config
  return dataclasses.replace(batch, pair_role=pair_roles(batch))


def pair_term(config: WithPairsConfig) -> dict[str, Term]:
  """DPO on the pairs of a batch as a term of another loss."""
  return {
    "dpo": Term(
      lambda batch: config.dpo_coef,
      lambda policy, batch: pair_loss(config, policy, batch),
      aggregation.over_sequences,
      lambda batch: batch.mask & (batch.pair_role != 0)[:, None],
    )
  }


def policy_loss(
  config: DPOConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B]
  # Both rows of a pair carry its loss: their mean is the mean over pairs.
  return pair_loss(config, policy, batch)


DPO = Algorithm(
  name="dpo",
  config_class=DPOConfig,
  advantages=advantages,
  policy_loss=policy_loss,
  aggregate=aggregation.over_sequences,
  prepare=prepare,
  needs=("ref_logp",),
  couples_group=True,
  min_group_size=2,
  token_advantages=False,
)
