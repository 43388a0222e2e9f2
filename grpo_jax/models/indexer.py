"""DeepSeek Sparse Attention: indexers choose the tokens that attention sees.

A lightning indexer with `J` small heads scores every earlier token s for the
query of token t,

    I_ts = Σ_j w_tj · ReLU(q_tj · k_s)                                   (Eq. 1)

and attention sees the `top_k` tokens with the largest scores alone. The index
queries q are made of the compressed queries of latent attention, the index keys
k and the weights w of the input of attention. Positions turn the first channels
of q and k. The heads share the keys, so that a token has one more vector in the
cache, behind its latent vector (`blocks.py`).

The choice has no gradient. The indexer learns from attention (Section 2.1.1):
with p_t the weights of attention, summed over heads and scaled to the sum 1,

    L_t = KL( p_t ‖ softmax(I_t) )   over the chosen tokens              (Eq. 4)

with p_t constant, and the inputs of the indexer detached from the model. So the
loss of the language model never reaches the indexer, nor this loss the model.

Here the choice is a mask of plain attention: it is the definition. It saves no
product and no memory, in a decode step neither.

Among equal scores, of which ReLU makes exact zeros, the earliest tokens are
chosen; `torch.topk` promises no order. Left out is the Hadamard transform of q
and k before they are rounded to FP8: it changes no product, and nothing is
rounded here.

Source: DeepSeek-AI, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language
Models", arXiv:2512.02556, Section 2.1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.models import attention, vision_parts
from grpo_jax.models.architecture import TransformerConfig
from grpo_jax.types import PyTree

# ε of the norm of keys in every model: no config.json has it.
NORM_EPS = 1e-6


class IndexVectors(NamedTuple):
  """Vectors that an indexer makes of L tokens, `I` channels a head.

  Attributes:
    queries: Index queries of each head.
    weights: Weights of the heads, with the factor of the scores.
    keys: Index keys, in the place that other models' values have in the cache.
  """

  queries: jax.Array  # [B, L, J, I]
  weights: jax.Array  # [B, L, J], at least float32
  keys: jax.Array  # [B, 1, L, I]


class Choice(NamedTuple):
  """The tokens that L queries see.

  Attributes:
    ids: Slots of the chosen tokens; -1 if a query sees fewer. None where they
      are not needed.
    loss: The loss of the indexer, nats.
    changed: Share of the tokens that the indexer would choose now and that are
      not among `ids`, which were chosen before; 0 if they are its own.
  """

  ids: jax.Array | None  # [B, L, top_k] int32
  loss: jax.Array  # [B, L]
  changed: jax.Array  # [B, L]


class Indexer(nn.Module):
  """Projections of the indexer of a layer."""

  config: TransformerConfig

  @nn.compact
  def __call__(
    self,
    x: jax.Array,  # [B, L, D]
    latent: jax.Array,  # [B, L, N]
    turn: Callable[[jax.Array], jax.Array],
  ) -> IndexVectors:
    """Makes index queries, weights and keys.

    Args:
      x: Input of attention.
      latent: Compressed queries of attention.
      turn: Turns the first channels of vectors [B, L, 1, H, I] by their
        positions.
    """
    config = self.config
    sizes = config.indexer
    assert sizes is not None
    x, latent = lax.stop_gradient((x, latent))
    dense = functools.partial(
      nn.DenseGeneral, use_bias=False, param_dtype=config.param_dtype
    )
    heads = sizes.num_heads, sizes.head_dim
    queries = dense(heads, dtype=config.dtype, name="query")(latent)
    keys = dense(sizes.head_dim, dtype=config.dtype, name="key")(x)
    dtypes = config.dtype, config.param_dtype
    keys = vision_parts.LayerNorm(NORM_EPS, *dtypes, name="key_norm")(keys)
    # Near-ties decide what is seen, as in a router.
    weights = dense(
      sizes.num_heads,
      dtype=jnp.promote_types(config.dtype, jnp.float32),
      precision=lax.Precision.HIGHEST,
      name="head_weights",
    )(x)
    return IndexVectors(
      turn(queries[:, :, None])[:, :, 0],
      weights * (sizes.num_heads * sizes.head_dim) ** -0.5,
      jnp.swapaxes(turn(keys[:, :, None, None])[:, :, 0], 1, 2),
    )


def scores(
  index: IndexVectors,  # of B rows
  keys: jax.Array,  # [P, 1, M, I], each of B / P adjacent rows
) -> jax.Array:  # [B, L, M], at least float32
  """I_ts of Eq. 1."""
  num_rows, length, *heads = index.queries.shape
  by_prefix = (len(keys), num_rows // len(keys), length)
  products = jnp.einsum(
    "prlji,pmi->prljm",
    index.queries.reshape(*by_prefix, *heads),
    keys[:, 0].astype(index.queries.dtype),
    precision=lax.Precision.HIGHEST,
    preferred_element_type=index.weights.dtype,
  )
  weights = index.weights.reshape(*by_prefix, -1)
  totals = jnp.einsum(
    "prlj,prljm->prlm",
    weights,
    nn.relu(products),
    precision=lax.Precision.HIGHEST,
  )
  return totals.reshape(num_rows, length, -1)


def choices(
  scores: jax.Array,  # [B, L, M]
  visible: jax.Array,  # [B, L, M] bool
  top_k: int,
) -> jax.Array:  # [B, L, top_k] int32
  """Numbers of the visible tokens with the largest scores, and -1 for none."""
  size = scores.shape[-1]
  if size <= top_k:  # All that are visible.
    ids = jnp.where(visible, jnp.arange(size), -1)
  else:
    best, ids = lax.top_k(jnp.where(visible, scores, -jnp.inf), top_k)
    ids = jnp.where(best > -jnp.inf, ids, -1)
  missing = [(0, 0), (0, 0), (0, max(top_k - size, 0))]
  return jnp.pad(ids.astype(jnp.int32), missing, constant_values=-1)


def marked(
  ids: jax.Array,  # [B, L, top_k] int32
  size: int,
) -> jax.Array:  # [B, L, size] bool
  """The mask of some tokens by their numbers; -1 is none."""
  rows, queries = jnp.ogrid[: ids.shape[0], : ids.shape[1]]
  ids = jnp.where(ids < 0, size, ids)
  mask = jnp.zeros((*ids.shape[:2], size), bool)
  return mask.at[rows[..., None], queries[..., None], ids].set(
    True, mode="drop"
  )


def divergence(
  weights: jax.Array,  # [B, L, M]
  scores: jax.Array,  # [B, L, M]
  is_seen: jax.Array,  # [B, L, M] bool
) -> jax.Array:  # [B, L]
  """KL(p ‖ softmax(I)) of Eq. 4, nats, over the tokens that a query sees.

  Args:
    weights: p, the mean weights of attention of all heads; constant.
    scores: I.
    is_seen: The chosen tokens. A query that sees none has the loss 0.
  """
  lowest = jnp.finfo(scores.dtype).min
  log_q = jax.nn.log_softmax(jnp.where(is_seen, scores, lowest), axis=-1)
  p = jnp.where(is_seen, lax.stop_gradient(weights), 0)
  log_p = jnp.log(jnp.where(p > 0, p, 1))
  return (p * jnp.where(is_seen, log_p - log_q, 0)).sum(axis=-1)


def over_sequences(
  config: TransformerConfig,
  mask: jax.Array,  # [B, M] bool
  num_before: int = 0,
) -> Callable:
  """`attention.over_sequences` with the choice of the indexer.

  Args:
    config: The transformer's config.
    mask: True on tokens.
    num_before: M − L, the number of slots at the start that have only keys.

  Returns:
    A function (queries [B, L, C, R, K], keys [B, C, K, M], values [B, C, M, K],
    `IndexVectors` with the keys of all M slots, slots [B, L, top_k] to see
    instead of the indexer's choice, or None) -> (attended [B, L, C, R, K],
    `Choice`).

  Raises:
    ValueError: As in `attention.form`.
  """
  attention.form(config)  # There is no other than "plain".
  sizes, num_slots = config.indexer, mask.shape[1]
  assert sizes is not None
  causal = jnp.tril(jnp.ones((num_slots, num_slots), bool))[num_before:]
  visible = causal & mask[:, None, :]  # [B, L, M]

  def attend(q, k, v, index, slots=None):
    index_scores = scores(index, index.keys)
    ids = own = choices(lax.stop_gradient(index_scores), visible, sizes.top_k)
    if slots is not None:
      ids = slots
    view = marked(ids, num_slots) & visible
    changed = jnp.zeros(ids.shape[:2])
    if slots is not None:
      own_view = marked(own, num_slots)
      num_missed = (own_view & ~view).sum(axis=-1)
      changed = num_missed / jnp.maximum(own_view.sum(axis=-1), 1)
    weights = attention.plain_weights(config, q, k, view)
    loss = divergence(weights.mean(axis=(1, 2)), index_scores, view)
    return attention.weighted(weights, v), Choice(ids, loss, changed)

  return attend


def cached(
  config: TransformerConfig,
  prefix: tuple[PyTree, PyTree],  # As in `attention.cached`, with index keys
  write: Callable[[jax.Array, jax.Array], tuple[PyTree, PyTree]],
  slots: jax.Array,  # [B, M] int32
  mask: jax.Array,  # [B, L, S + M] bool
  q: jax.Array,  # [B, L, C, R, K]
  k: jax.Array,  # [B, C, K, L]
  index: IndexVectors,
) -> tuple[jax.Array, tuple[PyTree, PyTree], jax.Array]:
  """Writes L tokens to the cache, chooses, and attends as `attention.cached`.

  Args:
    config: The transformer's config.
    prefix: Latent vectors and index keys of the prompts.
    write: (latent vectors, index keys) -> the cache of completions with them.
    slots: Slots of the tokens 0, 1, … of each completion.
    mask: True on slots that a query may see.
    q, k: Queries, and latent vectors of the tokens.
    index: Vectors that the indexer makes of the tokens.

  Returns:
    The result of `attention.cached`; the cache of completions; the chosen
    tokens [B, L, top_k], in a prompt by their slots and in a completion by S
    plus their numbers, -1 for none.
  """
  sizes = config.indexer
  assert sizes is not None
  own = write(k, index.keys)
  index_scores = jnp.concatenate(
    [scores(index, prefix[1]), scores(index, own[1])], axis=-1
  )  # [B, L, S + M]
  num_shared = prefix[1].shape[-2]
  # In the order of tokens, which decides between equal scores: in a ring the
  # order of slots depends on the lane.
  order = jnp.concatenate(
    [
      jnp.broadcast_to(jnp.arange(num_shared), (len(slots), num_shared)),
      num_shared + slots,
    ],
    axis=1,
  )[:, None]  # [B, 1, S + M]
  index_scores, visible = (
    jnp.take_along_axis(x, order, axis=-1) for x in (index_scores, mask)
  )
  ids = choices(index_scores, visible, sizes.top_k)
  places = jnp.take_along_axis(order, jnp.maximum(ids, 0), axis=-1)
  view = marked(jnp.where(ids < 0, -1, places), mask.shape[-1])
  return attention.cached(config, q, prefix, own, view), own, ids
