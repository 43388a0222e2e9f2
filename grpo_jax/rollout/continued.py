"""Contexts that are continued together, each with settings of its own.

Rows have nothing in common: each has its context, its key, the position of its
first draw, its limit, and its own temperature and top_p, all of which are
arrays. So one program of fixed shape serves any requests. As in `sampling`, a
row's draws depend on its key and its positions alone, never on what else is in
the batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import logprobs
from grpo_jax.rollout import drawing, filters, sampling
from grpo_jax.types import Policy, PyTree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Contexts:
  """What is to be continued.

  Attributes:
    tokens: Left-padded, as prompts are.
    mask: True on the tokens that exist.
    keys: Data of the key of each row, as `jax.random.key_data` gives it.
    first: Position of the first draw: 0, or the tokens of a completion that
      are in the context already.
    limits: Most tokens to draw, at least 1.
    exists: Rows that are drawn at all.
    temperature: Of each row; 0 takes the most likely token. Not read where the
      config decides.
    top_p: Of each row, in (0, 1]; the same.
  """

  tokens: jax.Array  # [B, C] int32
  mask: jax.Array  # [B, C] bool
  keys: jax.Array  # [B, ...] uint32
  first: jax.Array  # [B] int32
  limits: jax.Array  # [B] int32
  exists: jax.Array  # [B] bool
  temperature: jax.Array  # [B] float32
  top_p: jax.Array  # [B] float32


@dataclasses.dataclass(frozen=True)
class _Each(sampling.Decoder):
  """A decoder whose rows have a temperature and a top_p of their own."""

  contexts: Contexts | None = None

  def drawn(self, state, logits, keys, positions):  # [W, V], [W], [W]
    """Draws as `drawing.draw`."""
    assert self.contexts is not None
    return draw_each(
      logits,
      keys,
      positions,
      self.in_lanes(self.contexts.temperature, state.row),
      self.in_lanes(self.contexts.top_p, state.row),
    )


def draw_each(
  logits: jax.Array,  # [B, V]
  keys: jax.Array,  # [B] keys
  positions: jax.Array,  # [B] int32
  temperature: jax.Array,  # [B] float32
  top_p: jax.Array,  # [B] float32
) -> tuple[jax.Array, dict[str, jax.Array], None, jax.Array]:
  """Draws with a temperature and a top_p for each row.

  Where the temperature is 0, what is recorded is 0 and the log-prob at
  temperature 1, as there. No kept ids are recorded.
  """
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  drawn = (temperature > 0)[:, None]  # [B, 1]
  scaled = logits / jnp.where(drawn, temperature[:, None], 1.0)

  def filtered_by_mass():
    p = top_p[:, None]  # [B, 1]
    return jnp.where(drawn & (p < 1), filters.top_p(scaled, p), scaled)

  # A sort of the vocabulary, in which most requests have no interest.
  filtered = lax.cond((top_p < 1).any(), filtered_by_mass, lambda: scaled)

  noises = drawing.noise(logits, keys, positions)  # [B, V]
  tokens = drawing.argmax(filtered + jnp.where(drawn, noises, 0.0))  # [B]
  drawn = drawn[:, 0]
  values = (
    jnp.where(drawn, logprobs.token_logprobs(filtered, tokens), 0.0),
    logprobs.token_logprobs(scaled, tokens),
    jnp.where(drawn, logprobs.entropy_from_logits(filtered), 0.0),
  )
  records = dict(zip(drawing.RECORDS, values, strict=True))
  return tokens, records, None, filtered


def draw(
  policy: Policy,
  params: PyTree,
  contexts: Contexts,
  config: sampling.SamplingConfig,
  is_own: bool,
) -> dict[str, jax.Array]:  # each [B, T]
  """Continues every context.

  Args:
    policy: What to sample from.
    params: Its parameters.
    contexts: The rows.
    config: How many tokens, which of them end a row, and, unless `is_own`, how
      they are drawn. Static; without lanes.
    is_own: Whether rows have temperatures and a top_p of their own.

  Returns:
    "tokens", "completion_mask" and `drawing.RECORDS`, as in a `Rollout`.
  """
  with jax.named_scope("prefill"):
    first_h, prefix, routing = policy.prefill(
      params, contexts.tokens, contexts.mask
    )
  fields: dict[str, Any] = {
    "policy": policy,
    "weights": policy.weights(params),
    "config": config,
    "keys": jax.random.wrap_key_data(contexts.keys),
    "first_h": first_h,
    "prefix": prefix,
    "limits": jnp.clip(contexts.limits, 1, config.max_new_tokens),
    "offsets": contexts.first,
  }
  decoder = (
    _Each(**fields, contexts=contexts) if is_own else sampling.Decoder(**fields)
  )
  with jax.named_scope("decode"):
    state = decoder.run_from_start(routing, busy=contexts.exists)
  return state.written
