"""Any function from tokens to logits, as a `Policy`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.types import Policy, PyTree


def policy_from_logits(
  function: Callable[[PyTree, jax.Array, jax.Array], jax.Array],
  init: Callable[[jax.Array], PyTree],
) -> Policy:
  """Adapts `function(params, tokens [B, L], mask [B, L]) -> logits [B, L, V]`.

  Nothing is cached but the tokens: each decode step calls `function` on the
  whole sequence, which is slow for long ones and always right.

  Args:
    function: Causal; `logits[:, i]` predict token i + 1. Sequences are
      left-padded prompts followed by right-padded completions; `mask` says
      which tokens exist, the others are 0. L differs between calls.
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
  ):
    if extras:
      raise ValueError(
        f"policy_from_logits: received the extra inputs {sorted(extras)}, but"
        " the adapted function reads tokens only; pass None."
      )
    tokens = jnp.concatenate([prompt_tokens[prompt_index], tokens], axis=1)
    mask = jnp.concatenate([prompt_mask[prompt_index], completion_mask], axis=1)
    logits = logits_of(params, tokens, mask)  # [B, S + T, V]
    return logits[:, prompt_tokens.shape[1] - 1 : -1], None

  def prefill(params, prompt_tokens, prompt_mask, prompt_index, num_slots):
    logits = logits_of(params, prompt_tokens, prompt_mask)[:, -1]  # [P, V]
    free = ((0, 0), (0, num_slots))
    cache = {
      "tokens": jnp.pad(prompt_tokens[prompt_index], free),  # [B, S + T]
      "mask": jnp.pad(prompt_mask[prompt_index], free),
      "num_prompt_slots": jnp.int32(prompt_tokens.shape[1]),
    }
    return logits[prompt_index], cache

  def decode(params, tokens, t, cache):
    slot = cache["num_prompt_slots"] + t
    cache = cache | {
      "tokens": cache["tokens"].at[:, slot].set(tokens),
      "mask": cache["mask"].at[:, slot].set(True),
    }
    logits = logits_of(params, cache["tokens"], cache["mask"])
    return lax.dynamic_index_in_dim(logits, slot, 1, keepdims=False), cache

  return Policy(
    init=lambda key: {"trained": init(key), "frozen": {}},
    hidden=hidden,
    head=lambda params, h: h,
    prefill=prefill,
    decode=decode,
  )
