"""Mixed inputs: the policy reads a blend of similar tokens.

While a completion is drawn, the input after some of its tokens is not the
embedding of the token itself, but

    x = Σ_j w_j E[i_j],    i_1 = the anchor a,    i_2 … i_k its neighbours,
    w_j = p(i_j) / Σ_l p(i_l)

with p the distribution that the token was drawn from, and the neighbours the
k − 1 rows of the embedding table E that have the largest cosine with the row of
the anchor. So completions of one prompt drift apart in meaningful directions,
and their tokens are still draws of the policy. Ids and weights are recorded, so
that later passes over the completion read the same inputs.

By default the anchor is the likeliest token, as in the authors' code, and not
the drawn token: with weights near 1 the policy then continues as if it had
written its likeliest token.

Source: "N-GRPO", arXiv:2606.10768, and its code, ZJUSCL/N-GRPO.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.types import Policy, PyTree

# Folded into the key of a row, where tokens fold their positions.
_MIX = 2**31 - 2
_CHUNK = 2**24  # Cosines that exist at a time.


@dataclasses.dataclass(frozen=True)
class Mixing:
  """The settings of mixed inputs.

  Attributes:
    rate: Probability of each input to be mixed, in (0, 1].
    top_k: k ≥ 2, the anchor and its neighbours.
    anchor: "argmax", the likeliest token, or "sampled", the drawn token.
    neighbours: "nearest" by cosine; or "random", k − 1 adjacent ids that begin
      anywhere, for comparison.
    min_entropy: Entropy, in nats, that the token's distribution must exceed for
      an input to be mixed; 0: no bound.
    until: Tokens that end the mixing: the first one in a completion, and all
      tokens after it, are read as they are. May be empty.
  """

  rate: Any
  top_k: int = 2
  anchor: str = "argmax"
  neighbours: str = "nearest"
  min_entropy: Any = 0.0
  until: tuple[int, ...] = ()

  def __post_init__(self):
    def check(holds, name, need):
      if not holds:
        value = getattr(self, name)
        raise ValueError(f"Mixing: {name} is {value!r}, but must be {need}.")

    check(0 < self.rate <= 1, "rate", "in (0, 1]; leave mixing out for 0")
    check(self.top_k >= 2, "top_k", "at least 2: an anchor and a neighbour")
    is_valid = self.anchor in ("argmax", "sampled")
    check(is_valid, "anchor", "one of argmax, sampled")
    is_valid = self.neighbours in ("nearest", "random")
    check(is_valid, "neighbours", "one of nearest, random")
    check(self.min_entropy >= 0, "min_entropy", "0 or positive")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlendedInputs:
  """The inputs of W lanes after their last tokens.

  Attributes:
    ids, weights: Rows of the embedding table and their weights; a token that is
      not mixed has weight 1 and stands in all places.
    is_open: True until the row has a token of `Mixing.until`.
  """

  ids: jax.Array  # [W, k] int32
  weights: jax.Array  # [W, k] float32
  is_open: jax.Array  # [W] bool

  @property
  def mix(self) -> tuple[jax.Array, jax.Array]:
    """Ids and weights, as arguments of `Policy.decode`."""
    return self.ids, self.weights


def plain(
  tokens: jax.Array,  # [...] int32
  top_k: int,
) -> tuple[jax.Array, jax.Array]:  # [..., k] int32, [..., k] float32
  """Ids and weights of tokens that are not mixed."""
  ids = jnp.broadcast_to(tokens[..., None], (*tokens.shape, top_k))
  first = jnp.arange(top_k) == 0
  return ids, jnp.broadcast_to(first.astype(jnp.float32), ids.shape)


def is_mixed(
  tokens: jax.Array,  # [...] int32
  ids: jax.Array,  # [..., k] int32
) -> jax.Array:  # [...] bool
  """True on tokens whose inputs are mixed.

  A row is not its own neighbour, so a mixed input has at least one other id.
  """
  return (ids != tokens[..., None]).any(axis=-1)


def nearest(
  embeddings: jax.Array,  # [V, D]
  count: int,
) -> jax.Array:  # [V, count] int32
  """Finds the rows with the largest cosines to each row, in falling order.

  A row of zeros has the cosine 0 with all others. Of equal cosines the smaller
  id comes first. V² D products; `_CHUNK` of them are held at a time.

  Args:
    embeddings: The table.
    count: From 1 to V − 1.
  """
  num_rows = embeddings.shape[0]
  wide = embeddings.astype(jnp.promote_types(embeddings.dtype, jnp.float32))
  norms = jnp.linalg.norm(wide, axis=-1, keepdims=True)
  unit = wide / jnp.where(norms > 0, norms, 1)
  ids = jnp.arange(num_rows, dtype=jnp.int32)

  def of_row(row):
    cosines = jnp.where(ids == row, -jnp.inf, unit @ unit[row])  # [V]
    return lax.top_k(cosines, count)[1].astype(jnp.int32)

  return lax.map(of_row, ids, batch_size=max(1, _CHUNK // num_rows))


def table(
  mixing: Mixing,
  embeddings: jax.Array,  # [V, D]
) -> jax.Array | None:  # [V, k - 1] int32
  """The neighbours of each row; None if neighbours are drawn at random.

  Raises:
    ValueError: The table has fewer than k rows.
  """
  if mixing.top_k > len(embeddings):
    raise ValueError(
      f"Mixing: top_k is {mixing.top_k}, and the embedding table has"
      f" {len(embeddings)} rows; set config.sampling.mix_top_k to at most that."
    )
  if mixing.neighbours == "random":
    return None
  return nearest(embeddings, mixing.top_k - 1)


def of_policy(
  mixing: Mixing | None, policy: Policy, params: PyTree
) -> jax.Array | None:  # [V, k - 1] int32
  """`table` of a policy; None without mixing or without embeddings."""
  if mixing is None or policy.embeddings is None:
    return None
  with jax.named_scope("neighbours"):
    return table(mixing, policy.embeddings(params))


def after(
  mixing: Mixing,
  inputs: BlendedInputs,
  neighbours: jax.Array | None,  # [V, k - 1] int32
  logits: jax.Array,  # [W, V]
  likeliest: jax.Array,  # [W] int32
  entropy: jax.Array,  # [W]
  tokens: jax.Array,  # [W] int32
  keys: jax.Array,  # [W] keys
  positions: jax.Array,  # [W] int32
) -> BlendedInputs:
  """The inputs of lanes after the tokens that they have just drawn.

  Args:
    mixing: The settings.
    inputs: Inputs after the tokens before; only `is_open` is read.
    neighbours: Neighbours of each row, from `table`.
    logits: Logits that tokens were drawn from, after all filters.
    likeliest: Their argmax.
    entropy: Entropy of the same distribution, nats.
    tokens: The drawn tokens.
    keys: Keys of the rows.
    positions: Positions of the tokens in their rows.
  """
  ends = jnp.asarray(mixing.until, jnp.int32)
  is_open = inputs.is_open & ~(tokens[:, None] == ends).any(axis=-1)

  def uniform(key, position):
    key = jax.random.fold_in(jax.random.fold_in(key, _MIX), position)
    return jax.random.uniform(key, (2,), jnp.float32)

  chances = jax.vmap(uniform)(keys, positions)  # [W, 2]
  mixes = is_open & (chances[:, 0] < jnp.asarray(mixing.rate))
  if mixing.min_entropy:
    mixes &= entropy > jnp.asarray(mixing.min_entropy)
  anchor = likeliest if mixing.anchor == "argmax" else tokens
  if neighbours is None:
    others = logits.shape[-1] - 1
    start = (chances[:, 1:] * others).astype(jnp.int32)  # [W, 1]
    steps = 1 + (start + jnp.arange(mixing.top_k - 1)) % others
    beside = (anchor[:, None] + steps) % (others + 1)
  else:
    beside = neighbours[anchor]
  ids = jnp.concatenate([anchor[:, None], beside], axis=1).astype(jnp.int32)
  own = jnp.take_along_axis(logits, ids, axis=1)
  # A token that the filters left out has weight 0; the anchor never does.
  weights = jax.nn.softmax(own, axis=-1).astype(jnp.float32)
  as_it_is = plain(tokens, mixing.top_k)
  ids, weights = (
    jnp.where(mixes[:, None], x, y)
    for x, y in zip((ids, weights), as_it_is, strict=True)
  )
  return BlendedInputs(ids, weights, is_open)
