"""Contexts that are continued together, each with settings of its own.

Rows have nothing in common: each has its context, its key, the position of its
first draw, its limit, and its own temperature and top_p, all of which are
arrays. So one program of fixed shape serves any requests. As in `sampling`, a
row's draws depend on its key and its positions alone, never on what else is in
the batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.ops import chunks, logprobs
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


class Alternatives(NamedTuple):
  """Log-probs of tokens and of the likeliest ones in their places, nats.

  Slot t is about token t + 1 of a row, which begins with its context.
  """

  logp: jax.Array  # [B, C + T - 1]
  ids: jax.Array  # [B, C + T - 1, k] int32
  top_logp: jax.Array  # [B, C + T - 1, k]


def alternatives(
  policy: Policy,
  params: PyTree,
  contexts: Contexts,
  drawn: dict[str, jax.Array],  # each [B, T]
  k: int,
  chunk_bytes: int = 2**26,
) -> Alternatives:
  """Runs contexts and what was drawn after them once more, whole.

  Tokens of a context have the distribution at temperature 1. Tokens that were
  drawn have the one that they were drawn from; of a greedy row, the one at
  temperature 1.

  Args:
    policy, params, contexts: As in `draw`, with settings of each row.
    drawn: What `draw` returned.
    k: Likeliest tokens of each place; all of them where V is smaller.
    chunk_bytes: Bytes of float32 logits that are computed at a time.

  Returns:
    Log-probs; -inf of what top_p leaves out. Slots after the last token of a
    row hold anything.
  """
  num_rows = contexts.tokens.shape[0]
  tokens = jnp.concatenate([contexts.tokens, drawn["tokens"]], axis=1)  # [B, L]
  size = contexts.mask.sum(axis=1) + drawn["completion_mask"].sum(axis=1)  # [B]
  # From slot 0 on: the first token is the prompt of all others.
  places = jnp.arange(tokens.shape[1]) + contexts.mask.argmax(axis=1)[:, None]
  tokens = jnp.take_along_axis(tokens, places % tokens.shape[1], axis=1)
  mask = jnp.arange(tokens.shape[1]) < size[:, None]  # [B, L]
  h, _ = policy.hidden(
    params,
    tokens[:, :1],
    jnp.ones((num_rows, 1), bool),
    tokens[:, 1:],
    mask[:, 1:],
    jnp.arange(num_rows),
  )
  num_slots = h.shape[1]
  size_of_context = contexts.mask.sum(axis=1)[:, None]  # [B, 1]
  is_drawn = jnp.arange(1, num_slots + 1) >= size_of_context
  is_drawn &= (contexts.temperature > 0)[:, None]  # [B, L - 1]
  temperature = jnp.where(is_drawn, contexts.temperature[:, None], 1.0)
  top_p = jnp.where(is_drawn, contexts.top_p[:, None], 1.0)

  def head(h):
    logits = policy.head(params, h)
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))

  size = logprobs.chunk_size(head, h, chunk_bytes)
  logits = jax.eval_shape(head, chunks.positions(h, 1))  # [B, 1, V]
  k = min(k, logits.shape[-1])

  def write(start, is_new, buffers):
    del is_new
    h_, tokens_, temperature_, p = chunks.take(
      (h, tokens[:, 1:], temperature, top_p), start, size
    )
    logits = head(h_) / temperature_[..., None]  # [B, size, V]

    def filtered():
      rows = logits.reshape(-1, logits.shape[-1])
      kept = filters.top_p(rows, p.reshape(-1, 1)).reshape(logits.shape)
      return jnp.where(p[..., None] < 1, kept, logits)

    logits = lax.cond((p < 1).any(), filtered, lambda: logits)
    total = jax.nn.logsumexp(logits, axis=-1)  # [B, size]
    values, ids = logprobs.top_k(logits, k)  # [B, size, k]
    own = jnp.take_along_axis(logits, tokens_[..., None], axis=-1)
    # All by one formula: the likeliest token has the largest number, exactly.
    written = Alternatives(
      (own - total[..., None])[..., 0], ids, values - total[..., None]
    )
    return chunks.put(buffers, written, start)

  shape = (num_rows, num_slots)
  buffers = Alternatives(
    jnp.zeros(shape, logits.dtype),
    jnp.zeros((*shape, k), jnp.int32),
    jnp.zeros((*shape, k), logits.dtype),
  )
  return chunks.fold(write, buffers, num_slots, size)
