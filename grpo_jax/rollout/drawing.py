"""Draws of tokens from logits: logit filters, row keys, and records.

Logit filters are functions [B, V] -> [B, V] with -inf outside the kept set.
Each keeps the most likely token of a row. A threshold decides, so tokens that
tie with the least likely kept token are kept too: the result does not depend on
the order of ids, and `top_k` may keep more than k.

The draws of a row depend on the row's key alone. `config` is a
`sampling.SamplerConfig`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import logprobs, threefry


def temperature(logits: jax.Array, value: float) -> jax.Array:  # [B, V]
  """Divides logits by a positive temperature; below 1 sharpens."""
  return logits / value


def top_k(logits: jax.Array, k: int) -> jax.Array:  # [B, V]
  """Keeps the k most likely tokens; all of them if k ≥ V."""
  largest, _ = lax.top_k(logits, min(k, logits.shape[-1]))  # [B, k]
  return jnp.where(logits >= largest[:, -1:], logits, -jnp.inf)


def top_p(
  logits: jax.Array,  # [B, V]
  p: float | jax.Array,  # or [B, 1]
) -> jax.Array:  # [B, V]
  """Keeps the likeliest tokens until the mass before the next one reaches p.

  The smallest set with mass of at least p, up to ties and rounding. At p = 1
  all tokens are kept, also those beyond which the sum rounds to 1.

  Source: Holtzman et al., "The Curious Case of Neural Text Degeneration",
  arXiv:1904.09751, Section 3.1.
  """
  descending = -jnp.sort(-logits, axis=-1)  # [B, V]
  probs = jax.nn.softmax(descending, axis=-1)
  mass_before = jnp.cumsum(probs, axis=-1) - probs
  # The first token has no mass before it, up to rounding: keep it regardless.
  keep = (mass_before < p).at[:, 0].set(True)
  threshold = jnp.where(keep, descending, jnp.inf).min(axis=-1, keepdims=True)
  threshold = jnp.where(jnp.asarray(p) < 1, threshold, -jnp.inf)
  return jnp.where(logits >= threshold, logits, -jnp.inf)


def min_p(logits: jax.Array, p: float) -> jax.Array:  # [B, V]
  """Keeps tokens with at least p times the probability of the most likely.

  Source: Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and
  Coherent LLM Outputs", arXiv:2407.01082.
  """
  threshold = logits.max(axis=-1, keepdims=True) + jnp.log(p)
  return jnp.where(logits >= threshold, logits, -jnp.inf)


# Records of `draw` for each token, by names of `Rollout`.
RECORDS = ("behavior_logp", "sampler_logp", "entropy")


def row_keys(
  key: jax.Array,  # [] key of (seed, step)
  ids: jax.Array,  # [P] int32
  group_size: int,
  turn: jax.Array | int = 0,
) -> jax.Array:  # [P * G] keys
  """The keys of rows b = p · G + g, from (key, ids[p], g, turn).

  `turn` counts the rows of one rollout, of which there are several if contexts
  are compacted. Turns within a row differ by their positions.
  """

  def row_key(prompt_id, sample_index):
    folded = (prompt_id, sample_index, turn)
    return functools.reduce(jax.random.fold_in, folded, key)

  samples = jnp.tile(jnp.arange(group_size), len(ids))  # [B]
  return jax.vmap(row_key)(jnp.repeat(ids, group_size), samples)


def _filtered(logits, config):  # [B, V] -> [B, V], at temperature 1
  for function, value in (
    (top_k, config.top_k),
    (top_p, config.top_p),
    (min_p, config.min_p),
  ):
    if value is not None:
      logits = function(logits, value)
  return logits


def _only_top(logits, count):  # [B, V] -> [B, V], [B, K]
  """Keeps the K largest logits, and returns their ids; -1 for -inf logits.

  `top_k` keeps ties, so it may keep more than K.
  """
  largest, ids = lax.top_k(logits, count)  # [B, K]
  rows = jnp.arange(logits.shape[0])[:, None]
  logits = jnp.full_like(logits, -jnp.inf).at[rows, ids].set(largest)
  return logits, jnp.where(jnp.isneginf(largest), -1, ids).astype(jnp.int32)


def argmax(x):  # [B, V] -> [B] int32
  """The first of the largest, as `jnp.argmax`; the last id if there is a NaN.

  This is two reductions of numbers. XLA:CPU runs a reduction of pairs (number,
  index) one by one, and draws the noise within it, which takes three times as
  long.
  """
  ids = jnp.arange(x.shape[-1], dtype=jnp.int32)
  is_largest = x == x.max(axis=-1, keepdims=True)
  return jnp.where(is_largest, ids, ids[-1]).min(axis=-1)


def draw(logits, keys, positions, config):  # [B, V], [B], [B]
  """Draws a token for each row.

  Returns:
    Tokens [B]; their `RECORDS` by name, each [B]; the kept ids, or None; and
    the logits [B, V] after all filters, from which the tokens were drawn.
  """
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  if config.temperature == 0.0:
    tokens = argmax(logits)  # [B]
    zero = jnp.zeros(tokens.shape, logits.dtype)
    records = zero, logprobs.token_logprobs(logits, tokens), zero
    kept_ids = tokens[:, None] if config.record_kept else None
    return tokens, _by_name(records), kept_ids, logits
  scaled = temperature(logits, config.temperature)
  filtered, kept_ids = _filtered(scaled, config), None
  if config.record_kept:
    filtered, kept_ids = _only_top(filtered, num_kept(config, logits))
  tokens = argmax(filtered + noise(logits, keys, positions))  # [B]
  records = (
    logprobs.token_logprobs(filtered, tokens),
    logprobs.token_logprobs(scaled, tokens),
    logprobs.entropy_from_logits(filtered),
  )
  return tokens, _by_name(records), kept_ids, filtered


def _by_name(records: tuple[jax.Array, ...]) -> dict[str, jax.Array]:
  return dict(zip(RECORDS, records, strict=True))


def noise(logits, keys, positions):  # [B, V], [B], [B] -> [B, V]
  """Gumbel noise: the argmax of logits plus noise is a draw."""

  def of_row(row_key, position):
    # Always float32, so that the bits do not depend on the model's dtype.
    token_key = jax.random.fold_in(row_key, position)
    return jax.random.gumbel(token_key, logits.shape[-1:], jnp.float32)

  of_rows = jax.vmap(of_row)
  return lax.platform_dependent(
    keys,
    positions,
    cpu=lambda keys, positions: of_rows(threefry.unrolled(keys), positions),
    default=of_rows,
  )


def nothing(
  config: Any,
  num_rows: int,
  logits: jax.Array | jax.ShapeDtypeStruct,  # [..., V]
  prompt_routing: jax.Array | None,
) -> dict[str, jax.Array]:  # each [B, T, ...]
  """Empty records of rows, by names of `Rollout`, before the first draw.

  Args:
    config: Settings of records, and T.
    num_rows: B.
    logits: Logits that tokens are drawn from, for their shape.
    prompt_routing: As in `Rollout`, for its shape; read if routing is recorded.
  """
  shape = num_rows, config.max_new_tokens
  buffers = {
    "tokens": jnp.full(shape, config.pad_id, jnp.int32),
    "completion_mask": jnp.zeros(shape, bool),
    **{name: jnp.zeros(shape, jnp.float32) for name in RECORDS},
  }
  if config.record_kept:
    ids_shape = *shape, num_kept(config, logits)
    buffers["kept_ids"] = jnp.full(ids_shape, -1, jnp.int32)
  if config.record_routing:
    assert prompt_routing is not None
    of_tokens = *shape, *prompt_routing.shape[2:]  # [B, T, layers, k]
    buffers["routing"] = jnp.zeros(of_tokens, jnp.int32)
  return buffers


def num_kept(config: Any, logits: jax.Array | jax.ShapeDtypeStruct) -> int:
  """K, the size of `Rollout.kept_ids`."""
  assert config.top_k is not None
  return 1 if config.temperature == 0 else min(config.top_k, logits.shape[-1])


def is_end(tokens: jax.Array, config: Any) -> jax.Array:
  """True on tokens, of any shape, that end a completion."""
  end_ids = jnp.asarray(config.end_ids, jnp.int32)
  return (tokens[..., None] == end_ids).any(axis=-1)
