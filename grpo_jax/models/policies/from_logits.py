"""A `Policy` made from any function from tokens to logits."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from grpo_jax.types import Policy, PyTree


def policy_from_logits(
  function: Callable[[PyTree, jax.Array, jax.Array], jax.Array],
  init: Callable[[jax.Array], PyTree],
) -> Policy:
  """Adapts `function(params, tokens [B, L], mask [B, L]) -> logits [B, L, V]`.

  Only tokens are cached: each decode step calls `function` on the whole
  sequence, which is exact, and slow for long sequences.

  Args:
    function: A causal function; `logits[:, i]` predict token i + 1. Sequences
      are left-padded prompts followed by right-padded completions. `mask` is
      True on tokens that exist; the others are 0. L differs between calls.
    init: (key) -> params, any tree; all of it is trained.

  Returns:
    A policy whose `h` are logits and whose head is the identity.
  """

  def logits_of(params, tokens, mask):
    return function(params["trained"], jnp.where(mask, tokens, 0), mask)

  def hidden(
    params,
    prompt_tokens,  # [P, S]
    prompt_mask,  # [P, S]
    tokens,  # [B, T]
    completion_mask,  # [B, T]
    prompt_index,  # [B]
    extras=None,
    prefix=None,
  ):
    assert prefix is None
    if extras:
      raise ValueError(
        f"policy_from_logits: received the extra inputs {sorted(extras)}, but"
        " the adapted function reads tokens only; pass None."
      )
    tokens = jnp.concatenate([prompt_tokens[prompt_index], tokens], axis=1)
    mask = jnp.concatenate([prompt_mask[prompt_index], completion_mask], axis=1)
    logits = logits_of(params, tokens, mask)  # [B, S + T, V]
    return logits[:, prompt_tokens.shape[1] - 1 : -1], None

  def prefill(params, prompt_tokens, prompt_mask, images=None):
    if images is not None:
      raise ValueError(
        "policy_from_logits: received images, but the adapted function reads"
        " tokens only; leave them out of the prompts."
      )
    logits = logits_of(params, prompt_tokens, prompt_mask)[:, -1]  # [P, V]
    return logits, (prompt_tokens, prompt_mask), None

  def allocate(num_rows, num_slots, prefix=None):
    del prefix
    return jnp.zeros((num_rows, num_slots), jnp.int32)

  def decode(params, tokens, t, slot, prefix, cache):
    cache = cache.at[:, slot].set(tokens)  # [B, T]
    num_rows, num_slots = cache.shape
    # Rotates the ring so that each row begins with its first token.
    slots = (slot - t[:, None] + jnp.arange(num_slots)) % num_slots
    own = (
      jnp.take_along_axis(cache, slots, axis=1),
      (jnp.arange(num_slots) <= t[:, None]),
    )
    tokens, mask = (
      jnp.concatenate([jnp.repeat(x, num_rows // len(x), axis=0), y], axis=1)
      for x, y in zip(prefix, own, strict=True)
    )
    logits = logits_of(params, tokens, mask)  # [B, S + T, V]
    last = prefix[0].shape[1] + t[:, None, None]
    return jnp.take_along_axis(logits, last, axis=1)[:, 0], cache, None

  def extend(params, tokens, t, count, prefix, cache):  # [B, L], [B], [B]
    num_rows, num_slots = cache.shape
    offsets = jnp.arange(tokens.shape[1])
    place = jnp.where(offsets < count[:, None], t[:, None] + offsets, num_slots)
    rows = jnp.arange(num_rows)[:, None]
    cache = cache.at[rows, place].set(tokens, mode="drop")
    size = t + count
    own = cache, jnp.arange(num_slots) < size[:, None]
    tokens, mask = (
      jnp.concatenate([jnp.repeat(x, num_rows // len(x), axis=0), y], axis=1)
      for x, y in zip(prefix, own, strict=True)
    )
    logits = logits_of(params, tokens, mask)  # [B, S + T, V]
    last = prefix[0].shape[1] + size[:, None, None] - 1
    return jnp.take_along_axis(logits, last, axis=1)[:, 0], cache, None

  return Policy(
    init=lambda key: {"trained": init(key), "frozen": {}},
    hidden=hidden,
    head=lambda params, h: h,
    prefill=prefill,
    allocate=allocate,
    decode=decode,
    extend=extend,
  )
