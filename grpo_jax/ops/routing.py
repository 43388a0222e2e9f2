"""The load of experts, and the loss that balances it."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax.scipy import special

from grpo_jax.ops import masked
from grpo_jax.types import Weighted


def load(
  ids: jax.Array,  # [B, T, layers, k] int32
  mask: jax.Array,  # [B, T] bool
  num_experts: int,
) -> Weighted:  # ([layers, E], [])
  """The share of each expert in the choices of tokens, as total and weight.

      f_e = (1 / (k · tokens)) Σ_t Σ_j 1[ e_tj = e ]

  Args:
    ids: Experts of each token in each layer.
    mask: True on tokens that count.
    num_experts: E.

  Returns:
    Total and weight (the number of tokens); their quotient adds up to 1 in each
    layer, and is 0 if no token counts.

  Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, Eq.
  18, without its factor E.
  """
  chex.assert_rank([ids, mask], [4, 2])
  chex.assert_equal_shape_prefix([ids, mask], 2)
  is_choice = ids[..., None] == jnp.arange(num_experts)  # [B, T, layers, k, E]
  counts = (is_choice & mask[..., None, None, None]).sum(axis=(0, 1, 3))
  weight = mask.sum().astype(jnp.float32)
  return Weighted(counts.astype(jnp.float32) / ids.shape[-1], weight)


def balance(
  probs: jax.Array,  # [B, T, layers, E]
  shares: jax.Array,  # [layers, E]
) -> jax.Array:  # [B, T]
  """The load-balance loss of each token, mean over layers.

      (1 / layers) Σ_l E Σ_e f_le p_tle

  The mean over tokens is E Σ_e f_e P_e of the papers: 1 if either the choices
  or the probabilities are spread evenly, E at worst. It is linear in p and the
  shares f are constants, so that micro-batches add up.

  Args:
    probs: The routers' distributions.
    shares: f, of all tokens of the batch.

  Source: Fedus et al., "Switch Transformers", arXiv:2101.03961, Eq. 4 to 6;
  with k > 1 experts f is a share of the choices (DeepSeek-V3), so that this is
  1 / k of the loss in Transformers, which divides by tokens and pools layers.
  """
  chex.assert_rank([probs, shares], [4, 2])
  num_layers, num_experts = shares.shape
  shares = jax.lax.stop_gradient(shares)
  total = jnp.einsum("btle,le->bt", masked.wide(probs), shares)
  return num_experts / num_layers * total


def entropy(probs: jax.Array) -> jax.Array:  # [B, T, layers, E] -> [B, T]
  """Entropy of the routers' distributions, nats, mean over layers."""
  return special.entr(masked.wide(probs)).sum(axis=-1).mean(axis=-1)
