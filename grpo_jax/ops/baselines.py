"""Advantages of completions relative to the group that shares a prompt.

`group_id` names the groups, in any order and of any size. Rows that are not
`valid` were not scored: statistics leave them out, and they get advantage 0. A
group of one, or with equal rewards, has no signal and gets exactly 0. (The
float32 mean of equal numbers can be one unit in the last place off, which
divided by eps = 1e-6 would be visible.) All results are constants of the loss.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked

SCALES = ("none", "group", "batch")


class GroupStatistics(NamedTuple):
  """Statistics of the valid rewards of each group."""

  num_valid: jax.Array  # [num_groups]
  mean: jax.Array  # [num_groups]
  variance: jax.Array  # [num_groups], ddof as asked; 0 below ddof + 1 rows
  least: jax.Array  # [num_groups], +inf where empty
  greatest: jax.Array  # [num_groups], -inf where empty


def group_statistics(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  ddof: int = 1,
) -> GroupStatistics:
  """Count, mean, variance and range of each group's valid rewards."""
  chex.assert_rank([rewards, valid, group_id], 1)
  chex.assert_equal_shape([rewards, valid, group_id])
  values = masked.wide(masked.select(rewards, valid))

  def total(x):
    return jax.ops.segment_sum(x, group_id, num_groups)

  count = total(valid.astype(values.dtype))
  mean = total(values) / jnp.maximum(count, 1)
  deviation = masked.select(values - mean[group_id], valid)
  variance = total(jnp.square(deviation)) / jnp.maximum(count - ddof, 1)
  return GroupStatistics(
    num_valid=count,
    mean=mean,
    variance=variance,
    least=jax.ops.segment_min(
      jnp.where(valid, values, jnp.inf), group_id, num_groups
    ),
    greatest=jax.ops.segment_max(
      jnp.where(valid, values, -jnp.inf), group_id, num_groups
    ),
  )


def live_groups(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  min_std: float = 0.0,
) -> jax.Array:  # [num_groups] bool
  """True for groups whose valid rewards are not all equal.

  With `min_std` above 0 their deviation, with n − 1 in the denominator, must
  also be above it: rewards that differ by round-off then count as equal.
  """
  statistics = group_statistics(rewards, valid, group_id, num_groups)
  live = statistics.greatest > statistics.least
  if min_std:
    live &= jnp.sqrt(statistics.variance) > min_std
  return live


def without_round_off(
  x: jax.Array,  # [B]
  size: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> jax.Array:  # [B]
  """Makes x equal in groups whose entries differ only by round-off.

  Sums of the same terms in another order differ in their last digits, which a
  deviation would make as large as any other difference.

  Args:
    x: Sums.
    size: Sums of the absolute values of the terms of `x`.
    valid: True on rows that take part.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.

  Returns:
    The least x of the group if the group's range is at most 1e-5 of its largest
    size, otherwise x; 0 for rows that are not valid.
  """
  chex.assert_rank([x, size, valid, group_id], 1)
  chex.assert_equal_shape([x, size, valid, group_id])
  statistics = group_statistics(x, valid, group_id, num_groups)
  largest = jax.ops.segment_max(
    masked.select(size, valid), group_id, num_groups
  )
  equal = statistics.greatest - statistics.least <= 1e-5 * largest
  level = jnp.where(equal[group_id], statistics.least[group_id], x)
  return jax.lax.stop_gradient(masked.select(level, valid))


def group_centered(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> jax.Array:  # [B]
  """A_i = R_i − mean of the group; 0 for invalid rows and equal rewards.

  Source: Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO),
  arXiv:2503.20783, Section 3.2.
  """
  statistics = group_statistics(rewards, valid, group_id, num_groups)
  live = statistics.greatest > statistics.least
  centered = masked.select(rewards, valid) - statistics.mean[group_id]
  return jax.lax.stop_gradient(masked.select(centered, valid & live[group_id]))


def scaled(
  advantages: jax.Array,  # [B] or [B, T]
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  scale: str,
  ddof: int = 1,
  eps: float = 1e-6,
  compared: jax.Array | None = None,  # [B] bool
) -> jax.Array:  # shape of advantages
  """Scales advantages: A / (std of the rewards + eps), or A unchanged.

  Args:
    advantages: Advantages of any estimator.
    rewards: Scalar reward of each completion.
    valid: Rows that were scored.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    scale: "group" divides by the deviation of the group's valid rewards,
      "batch" by that of all valid rewards, "none" leaves `advantages` alone.
    ddof: 1 for the sample deviation, 0 for the population's.
    eps: Added to the deviation.
    compared: Valid rows over which the deviation is taken; None: all of them.

  Returns:
    Scaled advantages; under "group" and "batch" 0 for invalid rows and where
    the rewards are all equal, which have no scale.

  Raises:
    ValueError: If `scale` is not one of `SCALES`.

  Source: "batch": Hugging Face TRL, GRPOConfig `scale_rewards`; "none": Liu
  et al. (Dr. GRPO), arXiv:2503.20783, Section 3.2.
  """
  if scale not in SCALES:
    raise ValueError(
      f"scaled: scale={scale!r} is unknown; choose one of {list(SCALES)}."
    )
  if scale == "none":
    return jax.lax.stop_gradient(advantages)
  if scale == "batch":
    group_id, num_groups = jnp.zeros_like(group_id), 1
  counted = valid if compared is None else compared
  statistics = group_statistics(rewards, counted, group_id, num_groups, ddof)
  live = statistics.greatest > statistics.least
  keep = valid & live[group_id]  # [B]
  spread = jnp.sqrt(statistics.variance[group_id]) + eps  # [B]
  if advantages.ndim == 2:
    keep, spread = keep[:, None], spread[:, None]
  return jax.lax.stop_gradient(masked.select(advantages, keep) / spread)


def group_standardized(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:  # [B]
  """A_i = (R_i − mean of the group) / (std of the group + eps).

  Args:
    rewards: Scalar reward of each completion.
    valid: Rows that were scored.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    ddof: 1 for the sample deviation (TRL, verl), 0 for the population's; the
      paper does not say which.
    eps: Added to the deviation.

  Returns:
    Advantages; 0 for invalid rows, equal rewards and groups of one.

  Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, Section 4.1.2.
  """
  centered = group_centered(rewards, valid, group_id, num_groups)
  return scaled(
    centered, rewards, valid, group_id, num_groups, "group", ddof, eps
  )


def leave_one_out(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> jax.Array:  # [B]
  """A_i = R_i − mean of the *other* rewards = G / (G − 1) · (R_i − mean).

  Args:
    rewards: Scalar reward of each completion.
    valid: Rows that were scored; G counts those of the group.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.

  Returns:
    Advantages; 0 for invalid rows, equal rewards and groups of one.

  Source: Ahmadian et al., "Back to Basics" (RLOO), arXiv:2402.14740.
  """
  count = group_statistics(rewards, valid, group_id, num_groups).num_valid
  factor = count / jnp.maximum(count - 1, 1)  # [num_groups]
  centered = group_centered(rewards, valid, group_id, num_groups)
  return jax.lax.stop_gradient(centered * factor[group_id])


def length_weighted(
  rewards: jax.Array,  # [B]
  lengths: jax.Array,  # [B] int, tokens
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> jax.Array:  # [B]
  """A_i = R_i − Σ_j n_j R_j / Σ_j n_j over the group.

  This is the baseline of least variance if the squared gradient of a
  completion's log-prob grows like its number of tokens n.

  Args:
    rewards: Scalar reward of each completion.
    lengths: Number of tokens of each completion that the policy wrote.
    valid: Rows that were scored.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.

  Returns:
    Advantages; 0 for invalid rows and groups of one. The baseline of a group
    without tokens is 0.

  Source: Hao et al., "On-Policy RL with Optimal Reward Baseline" (OPO),
  arXiv:2505.23585.
  """
  counted = valid & (lengths > 0)
  rewards = masked.wide(masked.select(rewards, valid))
  statistics = group_statistics(rewards, counted, group_id, num_groups)
  # Measured from the least reward, so that equal rewards give exactly 0.
  least = masked.select(statistics.least, statistics.num_valid > 0)[group_id]
  weights = masked.select(lengths.astype(rewards.dtype), counted)
  excess = jax.ops.segment_sum(
    weights * (rewards - least), group_id, num_groups
  )
  total = jax.ops.segment_sum(weights, group_id, num_groups)
  baseline = least + (excess / jnp.maximum(total, 1))[group_id]
  return jax.lax.stop_gradient(masked.select(rewards - baseline, valid))


def _leaders(
  x: jax.Array,  # [B]
  present: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> tuple[jax.Array, jax.Array]:  # [B] bool, [B]
  """True on the only row with the greatest x of a group, and x of the second.

  The second x is −inf in groups of one.
  """
  x = jnp.where(present, masked.wide(x), -jnp.inf)
  top = jax.ops.segment_max(x, group_id, num_groups)
  leads = present & (x == top[group_id])
  count = jax.ops.segment_sum(leads.astype(jnp.int32), group_id, num_groups)
  others = jnp.where(leads, -jnp.inf, x)
  second = jax.ops.segment_max(others, group_id, num_groups)
  return leads & (count == 1)[group_id], second[group_id]


def best_of_group(
  rewards: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
) -> jax.Array:  # [B]
  """Advantage of the best of a group: its lead over the second; others: 0.

      A_i = R_(1) − R_(2)  for i = argmax R

  The gradient is that of E[max of G rewards], the reward of pass@G.

  Args:
    rewards: Scalar reward of each completion.
    valid: Rows that were scored.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.

  Returns:
    Advantages ≥ 0; all 0 where the best is tied, in groups of one and for
    invalid rows.

  Source: Tang et al., "Optimizing Language Models for Inference Time
  Objectives using Reinforcement Learning", arXiv:2503.19595.
  """
  alone, second = _leaders(rewards, valid, group_id, num_groups)
  leads = alone & jnp.isfinite(second)
  return jax.lax.stop_gradient(
    masked.select(rewards, leads) - masked.select(second, leads)
  )


def optimal_token(
  returns: jax.Array,  # [B, T]
  logp: jax.Array,  # [B, T]
  sum_pi_squared: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  zero_tail: bool = False,
) -> jax.Array:  # [B, T]
  """The return minus the group's baseline of least variance at that token.

      A_it = G_it − Σ_j W_jt G_jt / (Σ_j W_jt + 1e-8),   W_t = Σ_{s ≤ t} w_s
      w_t  = 1 − 2 π(y_t) + Σ_v π(v)²

  w is the squared gradient of log π(y_t) with respect to the logits; sums
  over j are over the rows of the group that have a trained token t.

  Args:
    returns: Return to go of each token.
    logp: Log-probs of the tokens, of the policy that wrote them, nats.
    sum_pi_squared: Σ_v π(v)² of the same policy, in [0, 1].
    mask: True on trained tokens of scored rows.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    zero_tail: No baseline (A = G) on the tail of a group's longest row: the
      slots after the last token of all others.

  Returns:
    Advantages; 0 where masked and where the returns of a group's rows at that
    slot are all equal, which includes a slot that only one row reaches. With
    `zero_tail`, such slots have A = G on a tail.

  Source: Li et al., "The Optimal Token Baseline", arXiv:2602.07078; as verl's
  `compute_optimal_token_baseline_advantage`, except for the equal returns.
  """
  chex.assert_rank([returns, logp, sum_pi_squared, mask], 2)
  chex.assert_equal_shape([returns, logp, sum_pi_squared, mask])
  returns, logp, sum_pi_squared = (
    masked.wide(masked.select(x, mask)) for x in (returns, logp, sum_pi_squared)
  )
  # Round-off can make the energy of a certain token negative, and
  # Σ W + 1e-8 then 0.
  energy = jnp.maximum(1 - 2 * jnp.exp(logp) + sum_pi_squared, 0.0)
  energy = jnp.cumsum(masked.select(energy, mask), axis=-1)
  weight = masked.select(energy, mask)  # [B, T]
  weighted = jax.ops.segment_sum(weight * returns, group_id, num_groups)
  total = jax.ops.segment_sum(weight, group_id, num_groups)
  baseline = weighted / (total + 1e-8)  # [num_groups, T]
  least = jax.ops.segment_min(
    jnp.where(mask, returns, jnp.inf), group_id, num_groups
  )
  greatest = jax.ops.segment_max(
    jnp.where(mask, returns, -jnp.inf), group_id, num_groups
  )
  live = mask & (greatest > least)[group_id]
  advantages = masked.select(returns - baseline[group_id], live)
  if zero_tail:
    ends = jnp.arange(1, mask.shape[1] + 1)  # [T]
    last = jnp.max(masked.select(ends, mask), axis=-1)  # [B]
    longest, second = _leaders(last, last > 0, group_id, num_groups)
    tail = mask & longest[:, None] & (ends > second[:, None])
    advantages = jnp.where(tail, returns, advantages)
  return jax.lax.stop_gradient(advantages)


def process_supervision(
  step_rewards: jax.Array,  # [B, T]
  step_mask: jax.Array,  # [B, T] bool
  mask: jax.Array,  # [B, T] bool
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  eps: float = 1e-6,
  ddof: int = 1,
) -> jax.Array:  # [B, T]
  """The sum of the standardised rewards of the steps that end at t or later.

      ρ̃_ij = (ρ_ij − mean) / (std + eps),   A_it = Σ_{j: e_ij ≥ t} ρ̃_ij

  Mean and deviation are over *all* steps of the group together.

  Args:
    step_rewards: Score of the step that ends at a token.
    step_mask: True where a step ends (e_ij).
    mask: True on trained tokens.
    valid: Rows that were scored.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    eps: Added to the deviation.
    ddof: 1 for the sample deviation, 0 for the population's.

  Returns:
    Advantages; 0 where masked, after a row's last step, for invalid rows and
    in groups whose step rewards are equal or fewer than two.

  Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, Section 4.1.3.
  """
  chex.assert_rank([step_rewards, step_mask, mask], 2)
  chex.assert_equal_shape([step_rewards, step_mask, mask])
  steps = step_mask & valid[:, None]
  standardized = group_standardized(
    step_rewards.reshape(-1),
    steps.reshape(-1),
    jnp.repeat(group_id, mask.shape[1]),
    num_groups,
    ddof,
    eps,
  ).reshape(mask.shape)
  to_come = jax.lax.cumsum(standardized, axis=1, reverse=True)
  return jax.lax.stop_gradient(masked.select(to_come, mask))


def objectives_standardized(
  components: jax.Array,  # [B, K]
  applicable: jax.Array,  # [B, K] bool
  weights: jax.Array,  # [K]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
  num_groups: int,
  eps: float = 1e-6,
) -> jax.Array:  # [B]
  """A_i = Σ_k w_k (r_ik − mean_k) / (std_k + eps), each objective by itself.

  Every objective has the same influence, whatever the scale of its rewards. In
  a standardised sum the objective with the largest variance dominates.

  Args:
    components: Each reward before weights.
    applicable: False where a reward does not apply to a row; it then adds
      nothing to that row and is left out of its own statistics.
    weights: The weights of the objectives.
    valid: Rows that were scored.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    eps: Added to the deviations.

  Returns:
    Advantages; an objective that is constant in a group adds 0 there. GDPO is
    `batch_standardized` of them.

  Source: Ichihara et al., "MO-GRPO", arXiv:2509.22047; GDPO: Liu et al.,
  arXiv:2601.05242.
  """
  chex.assert_rank([components, applicable], 2)
  chex.assert_equal_shape([components, applicable])

  def objective(rewards, applies):  # [B], [B]
    return group_standardized(
      rewards, valid & applies, group_id, num_groups, eps=eps
    )

  z = jax.vmap(objective, in_axes=1, out_axes=1)(components, applicable)
  return jax.lax.stop_gradient((z * weights).sum(axis=-1))


def batch_standardized(
  x: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  eps: float = 1e-6,
) -> jax.Array:  # [B]
  """(x − mean) / (std + eps) over all valid rows; 0 if they are all equal."""
  everyone = jnp.zeros(x.shape, jnp.int32)
  return group_standardized(x, valid, everyone, 1, eps=eps)


def length_preference(
  lengths: jax.Array,  # [B] int, tokens
  mask_rows: jax.Array,  # [B] bool
  lam: jax.Array,  # []
  group_id: jax.Array,  # [B] int
  num_groups: int,
  rho: float = 1 / 9,
) -> jax.Array:  # [B]
  """Weights of completions by length, with a learned exponent λ.

      z_i = (n_i − mean n) / (std n + 1e-6),   h_i = max(1 + ρ z_i, 1e-3)
      f_i = G softmax_i( h_i^λ )

  over the group, std with ddof 0. λ = 0 gives equal weights, λ > 0 prefers long
  completions and λ < 0 short ones.

  Args:
    lengths: Trained tokens of each completion.
    mask_rows: Rows that take part; G counts those of the group.
    lam: λ; the weights can be differentiated with respect to it.
    group_id: Group of each row, in [0, num_groups).
    num_groups: Static.
    rho: Size of the preference; |z| ≤ √(G − 1), so that 1/9 keeps h above 0
      for groups of up to 81.

  Returns:
    Positive weights with mean 1 over the rows of each group that take part;
    0 for the others.

  Source: Wang et al., "λ-GRPO", arXiv:2510.06870; ρ and the bound are those
  of a public replication.
  """
  lam = masked.wide(jnp.asarray(lam))
  z = group_standardized(
    lengths.astype(lam.dtype), mask_rows, group_id, num_groups, ddof=0
  )
  log_h = jnp.log(jnp.maximum(1 + rho * z, 1e-3))  # constants
  # exp overflows float32 at 88; softmax has long saturated at e^20.
  power = jnp.exp(jnp.clip(lam * log_h, -20.0, 20.0))  # h^λ
  top = jax.ops.segment_max(
    jnp.where(mask_rows, power, -jnp.inf), group_id, num_groups
  )
  above = power - jax.lax.stop_gradient(top)[group_id]
  share = masked.select(jnp.exp(masked.select(above, mask_rows)), mask_rows)
  total = jax.ops.segment_sum(share, group_id, num_groups)
  count = jax.ops.segment_sum(
    mask_rows.astype(share.dtype), group_id, num_groups
  )
  # The total of a group that has rows is at least 1.
  return (count / jnp.maximum(total, 1))[group_id] * share


def rank_in_group(
  cost: jax.Array,  # [B]
  valid: jax.Array,  # [B] bool
  group_id: jax.Array,  # [B] int
) -> jax.Array:  # [B] int32
  """Number of valid rows of the group that come before each row.

  Rows are ordered by cost, rows of equal cost by place. Rows that are not valid
  come last. Advantages need another rank, `rewards.derived.ranks`, since equal
  rewards must have equal ones.
  """
  chex.assert_rank([cost, valid, group_id], 1)
  chex.assert_equal_shape([cost, valid, group_id])
  order = jnp.lexsort((masked.select(cost, valid), ~valid, group_id))
  places = jnp.arange(len(order), dtype=jnp.int32)
  group = group_id[order]
  is_first = jnp.concatenate([jnp.ones(1, bool), group[1:] != group[:-1]])
  start = jax.lax.cummax(jnp.where(is_first, places, 0))
  return jnp.zeros_like(places).at[order].set(places - start)
