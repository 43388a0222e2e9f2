"""Returns and generalised advantages of tokens.

A token's successor t⁺ is the next *trained* token: tool output and other
holes in the mask are not decisions, so they are skipped and do not discount.
Each recurrence y_t = x_t + d_t y_t⁺ is run as an associative scan: a hole is
its neutral element (x = 0, d = 1), and its depth is log T. All results are
constants of the loss and 0 where masked.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import masked

HOLES = ("skip", "reset")
BOUNDARIES = (
  *("outcome", "chain", "bootstrap"),
  *("compaction_rl", "compaction_rl_bootstrap"),
)
REWARDS = ("terminal", "split")


@jax.jit  # A scan is dozens of operations: slow one by one outside of jit.
def recurrence(x: jax.Array, decay: jax.Array) -> jax.Array:
  """Solves y_t = x_t + decay_t · y_{t+1} along the last axis; 0 at its end."""

  def join(later, earlier):
    later_decay, later_x = later
    decay, x = earlier
    return decay * later_decay, x + decay * later_x

  _, y = jax.lax.associative_scan(
    join, (jnp.broadcast_to(decay, x.shape), x), reverse=True, axis=x.ndim - 1
  )
  return y


def successor(
  x: jax.Array,  # [..., T]
  mask: jax.Array,  # [..., T] bool
  beyond: jax.Array,  # [...]
) -> jax.Array:  # [..., T]
  """The value of x at the next True slot after t; `beyond` without one."""
  x = jnp.concatenate([masked.select(x, mask), beyond[..., None]], axis=-1)
  stop = jnp.concatenate(
    [mask, jnp.ones_like(mask, shape=(*mask.shape[:-1], 1))], axis=-1
  )
  return recurrence(x, 1.0 - stop.astype(x.dtype))[..., 1:]


def _check(name: str, value: str, choices: tuple[str, ...]) -> None:
  if value not in choices:
    raise ValueError(
      f"{name}={value!r} is unknown; choose one of {list(choices)}."
    )


def _last(mask: jax.Array) -> jax.Array:  # [B, T] bool
  """True on the last True slot of each row."""
  to_come = jax.lax.cumsum(mask.astype(jnp.int32), axis=1, reverse=True)
  return mask & (to_come == 1)


def _per_row(x: jax.Array | float, dtype) -> jax.Array:  # [] or [B, 1]
  x = jnp.asarray(x, dtype)
  return x[:, None] if x.ndim else x


def _cut(x: jax.Array, ends: jax.Array | None) -> jax.Array:  # [B, T]
  """Sets x to 0 where `ends`, so that nothing is carried over an end."""
  return x if ends is None else masked.select(x, ~ends)


def _prepared(mask: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
  """Converts arrays [B, T] to at least float32, 0 where masked."""
  chex.assert_rank([mask, *arrays], 2)
  chex.assert_equal_shape([mask, *arrays])
  return [masked.wide(masked.select(x, mask)) for x in arrays]


def outcome_rewards(
  rewards: jax.Array,  # [B]
  mask: jax.Array,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """The reward of each completion on its last trained token, 0 elsewhere."""
  chex.assert_rank([rewards, mask], [1, 2])
  return masked.select(masked.wide(rewards)[:, None], _last(mask))


def returns_to_go(
  token_rewards: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  gamma: float | jax.Array = 1.0,
  holes: str = "skip",
  ends: jax.Array | None = None,  # [B, T] bool
) -> jax.Array:  # [B, T]
  """Discounted returns from token t on: G_t = r_t + γ G_t⁺.

  Args:
    token_rewards: Reward of each token.
    mask: True on trained tokens.
    gamma: Discount per trained token, in [0, 1].
    holes: "skip" passes over holes; "reset" starts anew at each hole, so that a
      later reward does not reach the tokens before it (verl's REINFORCE++).
    ends: True on tokens that end an episode, after which another one follows in
      the row; G⁺ is 0 there. None: a row is one episode.

  Returns:
    Returns, 0 where masked.

  Raises:
    ValueError: If `holes` is not one of `HOLES`.
  """
  _check("returns_to_go: holes", holes, HOLES)
  (rewards,) = _prepared(mask, token_rewards)
  at_hole = 1.0 if holes == "skip" else 0.0
  decay = jnp.where(mask, jnp.asarray(gamma, rewards.dtype), at_hole)
  returns = recurrence(rewards, _cut(decay, ends))
  return jax.lax.stop_gradient(masked.select(returns, mask))


def generalized_advantages(
  token_rewards: jax.Array,  # [B, T]
  values: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  gamma: float | jax.Array,
  lam: float | jax.Array,  # [] or [B]
  bootstrap_value: jax.Array | None = None,  # [B]
  ends: jax.Array | None = None,  # [B, T] bool
) -> tuple[jax.Array, jax.Array]:  # [B, T], [B, T]
  """Generalised advantage estimation.

      δ_t = r_t + γ V_t⁺ − V_t,   A_t = δ_t + γ λ A_t⁺

  Args:
    token_rewards: Reward of each token.
    values: Value of the state *before* each token.
    mask: True on trained tokens.
    gamma: Discount per trained token, in [0, 1].
    lam: λ in [0, 1]; 1 gives return minus value, 0 the one-step error.
    bootstrap_value: Value of the state after the last token of rows that were
      cut off; None for 0.
    ends: True on tokens that end an episode, after which another one follows in
      the row; V⁺ and A⁺ are 0 there. If an episode was cut off, add the value
      of its last state to the reward: r + γ V. None: a row is one episode.

  Returns:
    Advantages, and the targets A + V of the critic. 0 where masked.

  Source: Schulman et al., "High-Dimensional Continuous Control Using
  Generalized Advantage Estimation", arXiv:1506.02438, Eq. 16; one λ per row:
  `length_adaptive_lambda`.
  """
  rewards, values = _prepared(mask, token_rewards, values)
  if bootstrap_value is None:
    bootstrap_value = jnp.zeros(mask.shape[0])
  beyond = bootstrap_value.astype(values.dtype)
  successors = _cut(successor(values, mask, beyond), ends)
  errors = rewards + gamma * successors - values
  decay = jnp.where(mask, gamma * _per_row(lam, values.dtype), 1.0)
  advantages = recurrence(masked.select(errors, mask), _cut(decay, ends))
  return jax.lax.stop_gradient(
    (masked.select(advantages, mask), masked.select(advantages + values, mask))
  )


def length_adaptive_lambda(
  lengths: jax.Array,  # [B] int, tokens
  alpha: float,
) -> jax.Array:  # [B]
  """Returns λ_i = clip(1 − 1 / (α n_i), 0, 1), larger for long completions.

  Args:
    lengths: Trained tokens of each completion.
    alpha: α > 0; 0.05 in VAPO, 1.5 in SAO and CompactionRL. Completions of
      fewer than 1 / α tokens get 0 instead of a negative λ.

  Source: Yue et al., "VAPO", arXiv:2504.05118.
  """
  return jnp.clip(1.0 - 1.0 / (alpha * jnp.maximum(lengths, 1)), 0.0, 1.0)


def over_traces(
  x: jax.Array,  # [B]
  trace_id: jax.Array,  # [B] int, in [0, B)
) -> jax.Array:  # [B]
  """The sum of x over the rows of each row's rollout."""
  return jax.ops.segment_sum(x, trace_id, len(x))[trace_id]


def _one_sequence(mask: jax.Array, trace_id: jax.Array, order: jax.Array):
  """Returns functions from [B, T] to one sequence [B · T], and back.

  It is rollout by rollout, with the rows of each in their time order.
  """
  rows = jnp.lexsort((order, trace_id))
  places = jnp.argsort(rows)

  def flat(x):
    return x[rows].reshape(-1)

  def unflat(x):
    return x.reshape(mask.shape)[places]

  return flat, unflat


def subtrace_advantages(
  token_rewards: jax.Array,  # [B, T]
  outcome: jax.Array,  # [B]
  values: jax.Array,  # [B, T]
  mask: jax.Array,  # [B, T] bool
  trace_id: jax.Array,  # [B] int
  order: jax.Array,  # [B] int
  gamma: float | jax.Array,
  lam: float | jax.Array,  # [] or [B]
  boundary: str = "outcome",
  reward: str = "terminal",
  bootstrap_value: jax.Array | None = None,  # [B]
) -> tuple[jax.Array, jax.Array]:  # [B, T], [B, T]
  """Generalised advantages of rollouts that were compacted into several rows.

  The rows of one `trace_id`, in ascending `order`, are one rollout with one
  outcome R. `boundary` sets the meaning of the end of a row:

  | boundary                  | R is paid at the end of | V_t⁺ there  | A_t⁺  |
  |---------------------------|-------------------------|-------------|-------|
  | "outcome"                 | every row               | 0           | 0     |
  | "chain"                   | the last row            | of next row | there |
  | "bootstrap"               | the last row            | of next row | 0     |
  | "compaction_rl"           | every row               | 0           | 0     |
  | "compaction_rl_bootstrap" | the last row            | of next row | 0     |

  The last two then multiply the advantages of a row by (γ λ)^N, with N the
  number of trained tokens in later rows of its rollout and λ of the row. So
  without values, "compaction_rl" gives token i of the n_s of row s

      A_{s,i} = R (γ λ)^{N_{>s} + n_s − i}

  as in one long row. "chain" is plain estimation on the concatenation of the
  rows. With `reward` "split", each of the K rows with a trained token is paid
  R / K at its end instead, whatever the boundary.

  Args:
    token_rewards: Rewards beside the outcome; all zeros if there are none.
    outcome: R, the same in every row of a rollout.
    values: Value of the state before each token.
    mask: True on trained tokens; rows without any are skipped.
    trace_id: Rollout of each row, any numbers.
    order: Time order of the rows in a rollout, distinct.
    gamma: Discount per trained token, in [0, 1].
    lam: λ in [0, 1].
    boundary: One of `BOUNDARIES`.
    reward: One of `REWARDS`.
    bootstrap_value: V⁺ at the last trained token of a rollout that was cut off,
      in the row of this token; 0 in other rows. None: 0.

  Returns:
    Advantages, and the targets of the critic: A + V, with the A before the
    factor (γ λ)^N. 0 where masked.

  Raises:
    ValueError: If `boundary` or `reward` is unknown.

  Source: "outcome", "chain", "bootstrap": own definitions after the GLM-5.2
  release notes; "compaction_rl": "CompactionRL", arXiv:2607.05378, Eq. 14 and
  15, which leaves open whether a row ends with the value of the next one;
  "split": slime, which divides a reward by the samples of its rollout.
  """
  _check("subtrace_advantages: boundary", boundary, BOUNDARIES)
  _check("subtrace_advantages: reward", reward, REWARDS)
  rewards, values = _prepared(mask, token_rewards, values)
  discount = gamma * _per_row(lam, values.dtype)  # [] or [B, 1]
  is_same = trace_id == trace_id[:, None]  # [B, B]
  is_later = is_same & (order > order[:, None])
  num_later = jnp.where(is_later, mask.sum(axis=-1), 0).sum(axis=-1)  # [B]
  row_ends = _last(mask)
  trace_ends = row_ends & (num_later == 0)[:, None]
  joined = boundary not in ("outcome", "compaction_rl")
  ends = pays = trace_ends if joined else row_ends
  cuts = trace_ends if boundary == "chain" else row_ends

  flat, unflat = _one_sequence(mask, trace_id, order)
  end = jnp.zeros((), values.dtype)
  successors = unflat(successor(flat(values), flat(mask), end))
  payment = masked.wide(outcome)  # [B]
  if reward == "split":
    num_rows = jnp.where(is_same, mask.any(axis=-1), 0).sum(axis=-1)  # K
    payment, pays = payment / jnp.maximum(num_rows, 1), row_ends
  rewards += masked.select(payment[:, None], pays)
  following = masked.select(successors, ~ends)
  if bootstrap_value is not None:
    beyond = bootstrap_value.astype(values.dtype)[:, None]
    following = jnp.where(trace_ends, beyond, following)
  errors = rewards + gamma * following - values
  decay = jnp.where(mask, jnp.where(cuts, 0.0, discount), 1.0)
  advantages = unflat(
    recurrence(flat(masked.select(errors, mask)), flat(decay))
  )
  returns = masked.select(advantages + values, mask)
  if boundary.startswith("compaction_rl"):
    advantages = advantages * discount ** num_later[:, None]
  return jax.lax.stop_gradient((masked.select(advantages, mask), returns))
