"""Log-probabilities and entropies of tokens from logits, in chunks.

Only this module combines tokens with the logits that predict them. Everything
is at least float32: a log-prob near -1 rounds by up to 4e-3 in bfloat16, which
is more than the clip range of sequence-level objectives.

Logits are computed a few positions at a time (`fold`). Arrays are [B, T, ...];
a chunk is `size` positions of every row. Positions are split and rows are not,
because a mesh shards rows.

tokamax's `linear_softmax_cross_entropy_loss`, which fuses head and loss too,
cannot be used: it returns one sum or mean instead of a value per token,
supports one matrix and neither temperature nor entropy nor -inf logits, and on
a CPU it computes the logits whole. Source: github.com/openxla/tokamax,
tokamax/_src/ops/linear_softmax_cross_entropy_loss/api.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax


def positions(h, size):
  """Shape and dtype of `size` positions of every row."""
  return jax.ShapeDtypeStruct((h.shape[0], size, *h.shape[2:]), h.dtype)


def hoisted(function, h, size):
  """Turns the arrays that `function` closes over into arguments.

  A custom rule must not close over traced values. `jax.closure_convert` would
  hoist those of float type only, and leave an integer one (quantised
  weights) to leak into the backward pass.

  Returns:
    (weights, others, h) -> function(h), the float arrays and the others.
  """
  closed = jax.make_jaxpr(function)(positions(h, size))
  is_weight = [
    jnp.issubdtype(jnp.result_type(c), jnp.inexact) for c in closed.consts
  ]
  weights = [c for c, w in zip(closed.consts, is_weight, strict=True) if w]
  others = [c for c, w in zip(closed.consts, is_weight, strict=True) if not w]

  def call(weights, others, h):
    sources = {True: iter(weights), False: iter(others)}
    constants = [next(sources[w]) for w in is_weight]
    return jax.core.eval_jaxpr(closed.jaxpr, constants, h)[0]

  return call, weights, others


def fold(body, carry, num_slots, size):
  """Folds body(start, is_new [size], carry) over chunks of positions.

  The last chunk begins early instead of being padded, so that no array is
  copied and no head sees states that do not exist; `is_new` is False on the
  positions that it shares with the chunk before.
  """

  def step(i, carry):
    start = jnp.minimum(i * size, num_slots - size)
    return body(start, start + jnp.arange(size) >= i * size, carry)

  num_chunks = -(-num_slots // size)
  if num_chunks == 1:
    return body(0, jnp.ones(size, bool), carry)
  return lax.fori_loop(0, num_chunks, step, carry)


def take(tree, start, size):  # each [B, T, ...] -> [B, size, ...]
  """Slices `size` positions from `start` on, of every array."""
  return jax.tree.map(
    lambda x: lax.dynamic_slice_in_dim(x, start, size, axis=1), tree
  )


def put(tree, chunks, start):  # each [B, T, ...], [B, size, ...]
  """Writes `chunks` over the positions of arrays from `start` on."""
  return jax.tree.map(
    lambda x, chunk: lax.dynamic_update_slice_in_dim(x, chunk, start, axis=1),
    tree,
    chunks,
  )


def _scaled_and_shifted(
  logits: jax.Array,  # [..., V]
  temperature: float | jax.Array,
) -> tuple[jax.Array, jax.Array]:  # [..., V], [...]
  """Logits over temperature with maximum 0, and their log-sum-exp."""
  # Upcast before anything else: the rounding of bfloat16 cannot be undone.
  scaled = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  scaled = scaled / temperature
  # Log-probs and entropies do not change with a shift, so the maximum does not
  # need a gradient. After the shift exp cannot overflow, and the sum is ≥ 1.
  shifted = scaled - lax.stop_gradient(scaled.max(axis=-1, keepdims=True))
  return shifted, jnp.log(jnp.exp(shifted).sum(axis=-1))


def token_logprobs(
  logits: jax.Array,  # [..., V]
  tokens: jax.Array,  # [...] int
  temperature: float | jax.Array = 1.0,
) -> jax.Array:  # [...]
  """Log-probability of each token under softmax(logits / temperature).

      log p(y) = z_y − log Σ_v exp(z_v),   z = logits / temperature

  Args:
    logits: Unnormalised; -inf where a token was filtered out.
    tokens: Ids in [0, V).
    temperature: Positive.

  Returns:
    Nats, float32 (float64 for float64 logits); -inf for a token whose logit
    is -inf.
  """
  chex.assert_equal_shape_prefix([logits, tokens], tokens.ndim)
  chex.assert_rank(logits, tokens.ndim + 1)
  shifted, log_sum = _scaled_and_shifted(logits, temperature)
  # A select instead of a gather: it fuses into the sum, its gradient is a
  # select too (not a scatter, slow on CPU and TPU), and it stays local when
  # the vocabulary is sharded.
  is_token = tokens[..., None] == jnp.arange(logits.shape[-1])  # [..., V]
  return jnp.where(is_token, shifted, 0.0).sum(axis=-1) - log_sum


def entropy_from_logits(
  logits: jax.Array,  # [..., V]
  temperature: float | jax.Array = 1.0,
) -> jax.Array:  # [...]
  """Entropy of softmax(logits / temperature).

      H = log Σ_v exp(z_v) − Σ_v p_v z_v

  Args:
    logits: Unnormalised; -inf where a token was filtered out (it then
      contributes 0, with a gradient of 0).
    temperature: Positive.

  Returns:
    Nats, in [0, log V].
  """
  shifted, log_sum = _scaled_and_shifted(logits, temperature)
  # Masked before the product: 0 · (-inf) is NaN. If the product were discarded
  # afterwards, its gradient would still be NaN.
  finite = jnp.where(jnp.isfinite(shifted), shifted, 0.0)
  # Divided afterwards: the sum of weights is known, and exp is computed once.
  moment = (jnp.exp(shifted) * finite).sum(axis=-1)
  return log_sum - moment * jnp.exp(-log_sum)


class TokenOutputs(NamedTuple):
  """Outputs of a distribution over the vocabulary; None if not requested.

  Attributes:
    logp: Log-prob of the token, nats; -inf where the token is excluded.
    entropy: Entropy of the distribution that `logp` is taken from, nats.
    sum_pi_squared: Σ_v π(v)², in [1/V, 1]: the chance that two draws agree.
    topk_logp: Log-probs of `topk_ids`, nats.
    ref_kl: Divergence from the reference over the whole vocabulary, nats.
  """

  logp: jax.Array  # [B, T]
  entropy: jax.Array | None  # [B, T]
  sum_pi_squared: jax.Array | None  # [B, T]
  topk_logp: jax.Array | None  # [B, T, K]
  ref_kl: jax.Array | None  # [B, T]


class _Plan(NamedTuple):
  """Static arguments of the chunked computation."""

  call: Callable[..., jax.Array]  # (weights, others, h) -> logits
  ref_call: Callable[..., jax.Array] | None
  with_entropy: bool
  with_sum_pi_squared: bool
  beta: float
  size: int  # Positions per chunk.


class _Slots(NamedTuple):
  """Arrays that are cut into chunks along with `h`, without gradient."""

  tokens: jax.Array  # [B, T]
  kept_ids: jax.Array | None  # [B, T, K]
  topk_ids: jax.Array | None  # [B, T, K']
  ref_h: jax.Array | None  # [B, T, D']


class _Saved(NamedTuple):
  """Numbers per position that save the backward pass reductions over V."""

  shift: jax.Array  # [B, T]
  log_sum: jax.Array  # [B, T]
  ref_shift: jax.Array | None = None  # [B, T]
  ref_log_sum: jax.Array | None = None  # [B, T]
  student_kl: jax.Array | None = None  # [B, T] KL(π ‖ mixture)


def token_outputs(
  head: Callable[[jax.Array], jax.Array],
  h: jax.Array,  # [B, T, D]
  tokens: jax.Array,  # [B, T] int
  *,
  temperature: float | jax.Array,
  with_entropy: bool = False,
  with_sum_pi_squared: bool = False,
  kept_ids: jax.Array | None = None,  # [B, T, K] int
  topk_ids: jax.Array | None = None,  # [B, T, K'] int
  reference: tuple[Callable[[jax.Array], jax.Array], jax.Array] | None = None,
  reference_beta: float = 1.0,
  chunk_bytes: int = 2**26,
) -> TokenOutputs:
  """Log-probs, entropies and divergences from the states that predict tokens.

      π = softmax(z), z = head(h) / temperature, over all v or the kept ones
      logp = log π(y)      H = −Σ_v π log π      Σ_v π²
      ref_kl = β KL(q ‖ m) + (1 − β) KL(π ‖ m),  m = (1 − β) π + β q
             = KL(π ‖ q) for β = 1,  KL(q ‖ π) for β = 0

  The head runs over a few positions of every row at a time, and again in the
  backward pass, which forms the gradient of z in closed form:

      ∂ logp / ∂z_v = 1[v = y] − π_v       ∂H / ∂z_v = −π_v (log π_v + H)
      ∂ Σπ² / ∂z_v = 2 π_v (π_v − Σπ²)
      ∂ ref_kl / ∂z_v = (1 − β) π_v (log π_v − log m_v − KL(π ‖ m))
                        (β = 1: without the factor; β = 0: π_v − q_v)

  Reverse mode only. Positions are split and rows are not, because a mesh shards
  rows.

  Args:
    head: States [..., D] to logits [..., V], any float dtype. It may close
      over parameters; those it uses get gradients, summed over the chunks in
      at least float32.
    h: `h[:, t]` predicts `tokens[:, t]`.
    tokens: Ids in [0, V).
    temperature: Positive.
    with_entropy: True to compute `entropy`.
    with_sum_pi_squared: True to compute `sum_pi_squared`.
    kept_ids: Ids that sampling kept, in any order, -1 in unused slots. All
      outputs, and the reference, are renormalised on this set; the gradient
      of every other logit is exactly 0. None keeps everything.
    topk_ids: Ids in [0, V) for `topk_logp`.
    reference: Head and states [B, T, D'] of a frozen policy q with the same
      vocabulary, at the same temperature; gives `ref_kl`.
    reference_beta: β in [0, 1].
    chunk_bytes: Bytes that the logits of one chunk may take at float32 (at
      float64 for float64 logits), summed over the mesh; at least one position
      of every row is computed at once. A few arrays of this size live at the
      same time. Each chunk adds to the whole gradient of the head, so on an
      accelerator chunks of many tokens are faster.

  Returns:
    Outputs in at least float32; None if not requested. `logp` and `topk_logp`
    are -inf for excluded ids. `ref_kl` is +inf if the second distribution
    excludes an id that the first does not. Such entries do not pass gradients
    on. If no id is kept, entropy, Σπ² and ref_kl are 0.

  Raises:
    ValueError: If `reference_beta` is not in [0, 1].

  Source: `kept_ids`: DeepSeek-AI, "DeepSeek-V3.2", arXiv:2512.02556 (keep
  sampling mask); `ref_kl`: Agarwal et al., "On-Policy Distillation of Language
  Models", arXiv:2306.13649 (generalised JSD), with the ends as in TRL.
  """
  chex.assert_rank([h, tokens], [3, 2])
  chex.assert_equal_shape_prefix([h, tokens], 2)
  for ids in (kept_ids, topk_ids):
    if ids is not None:
      chex.assert_rank(ids, 3)
      chex.assert_equal_shape_prefix([h, ids], 2)
  if not 0 <= reference_beta <= 1:
    raise ValueError(
      f"token_outputs: reference_beta is {reference_beta}; needs a number"
      " from 0 (forward KL) to 1 (reverse KL)."
    )
  head = _scaled(head, temperature)
  size = chunk_size(head, h, chunk_bytes)
  call, weights, others = hoisted(head, h, size)
  ref_call, ref_h, ref_arrays = None, None, None
  if reference is not None:
    ref_head, ref_h = reference
    chex.assert_rank(ref_h, 3)
    chex.assert_equal_shape_prefix([h, ref_h], 2)
    ref_call, *ref_arrays = hoisted(_scaled(ref_head, temperature), ref_h, size)
  return _outputs(
    _Plan(
      call, ref_call, with_entropy, with_sum_pi_squared, reference_beta, size
    ),
    h,
    weights,
    _Slots(tokens, kept_ids, topk_ids, ref_h),
    (others, ref_arrays),
  )


def reference_topk(
  head: Callable[[jax.Array], jax.Array],
  h: jax.Array,  # [B, T, D]
  k: int,
  *,
  temperature: float | jax.Array,
  kept_ids: jax.Array | None = None,  # [B, T, K] int
  chunk_bytes: int = 2**26,
) -> tuple[jax.Array, jax.Array]:  # [B, T, k] int32, [B, T, k]
  """The k likeliest ids of a frozen policy, and their log-probs.

  Args:
    head: States [..., D] to logits [..., V].
    h: `h[:, t]` predicts token t.
    k: From 1 to V.
    temperature: Positive.
    kept_ids: As for `token_outputs`; other ids come last, with −inf.
    chunk_bytes: Largest size of a chunk of logits, as for `token_outputs`.

  Returns:
    Ids from the likeliest on (ties in any order), and their log-probs over the
    whole vocabulary or over the kept ids, in nats, at least float32. They are
    constants without gradient.
  """
  chex.assert_rank(h, 3)
  num_rows, num_slots, _ = h.shape
  head = _scaled(head, temperature)
  h = lax.stop_gradient(h)
  size = chunk_size(head, h, chunk_bytes)
  dtype = jax.eval_shape(head, positions(h, size)).dtype

  def write(start, is_new, buffers):
    del is_new
    logits = lax.stop_gradient(head(take(h, start, size)))
    if kept_ids is not None:
      logits = _keep(logits, take(kept_ids, start, size))
    shift, log_sum = _normalizer(logits)
    values, ids = top_k(logits, k)  # [B, size, k]
    logp = values - shift[..., None] - log_sum[..., None]
    return put(buffers, (ids, logp), start)

  shape = (num_rows, num_slots, k)
  buffers = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, dtype))
  return fold(write, buffers, num_slots, size)


def _scaled(head, temperature):
  """Logits over temperature, at least float32."""

  def scaled(h):
    logits = head(h)
    # Upcast before anything else: the rounding of bfloat16 cannot be undone.
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    return logits.astype(dtype) / temperature

  return scaled


def chunk_size(head, h, chunk_bytes):
  """Number of positions of every row in a chunk of `token_outputs`."""
  logits = jax.eval_shape(head, positions(h, 1))  # [B, 1, V]
  num_slots = h.shape[1]
  size = max(1, chunk_bytes // (logits.size * logits.dtype.itemsize))
  # Chunks as equal as possible: the last one repeats as little as possible.
  num_chunks = -(-num_slots // size)
  return -(-num_slots // num_chunks)


def _keep(logits, kept_ids):  # [B, T, V], [B, T, K]
  """Sets logits of ids that are not listed to -inf."""
  num_ids = logits.shape[-1]
  # Negative indices would count from the end: send them past it.
  ids = jnp.where(kept_ids < 0, num_ids, kept_ids)

  def mark(ids):  # [K] -> [V]
    return jnp.zeros(num_ids, bool).at[ids].set(True, mode="drop")

  keep = jax.vmap(jax.vmap(mark))(ids)
  return jnp.where(keep, logits, -jnp.inf)


def _normalizer(logits):  # [..., V] -> [...], [...]
  """The largest logit, and the log-sum-exp of the logits minus it."""
  # Two numbers: in their sum a large shift would round the log away.
  shift = logits.max(axis=-1)
  empty = shift == -jnp.inf
  shift = jnp.where(empty, 0.0, shift)
  total = jnp.exp(logits - shift[..., None]).sum(axis=-1)
  return shift, jnp.log(jnp.where(empty, 1.0, total))


def top_k(x, k):  # [..., V] -> [..., k], [..., k] int32
  """The k largest entries and their ids, from the largest of each block.

  If the vocabulary is sharded, a device finds the largest of its own blocks,
  and only these are communicated.
  """
  # At a recall of 1 the result is exact. `lax.top_k` would gather rows and
  # vocabulary on every device: the compiler splits sorts over a mesh, but not
  # top-k.
  largest = functools.partial(lax.approx_max_k, recall_target=1.0)
  num_blocks = math.gcd(x.shape[-1], 16)
  blocks = x.reshape(*x.shape[:-1], num_blocks, -1)
  size = blocks.shape[-1]
  values, ids = largest(blocks, min(k, size))  # [..., blocks, k]
  ids = ids + size * jnp.arange(num_blocks, dtype=jnp.int32)[:, None]
  values, ids = (a.reshape(*x.shape[:-1], -1) for a in (values, ids))
  values, places = largest(values, k)
  return values, jnp.take_along_axis(ids, places, axis=-1)


def _finite(x):
  """Replaces -inf by 0, so that a product with 0 is 0; NaN stays."""
  return jnp.where(x == -jnp.inf, 0.0, x)


def _gap(logp, other):
  """Log-ratio log p − log q where p > 0, else 0; +inf where only q is 0."""
  return jnp.where(jnp.exp(logp) > 0, logp - other, 0.0)


def _kl(logp, other):  # [..., V], [..., V] -> [...]
  return (jnp.exp(logp) * _gap(logp, other)).sum(axis=-1)


def _mixture(logp, ref_logp, beta):
  """Log-probs of the mixture, log((1 − β) p + β q)."""
  if beta == 1:
    return ref_logp
  return jnp.logaddexp(logp + math.log1p(-beta), ref_logp + math.log(beta))


def _logits(plan, h, weights, slots, others):  # [B, size, V]
  logits = plan.call(weights, others[0], h)
  return logits if slots.kept_ids is None else _keep(logits, slots.kept_ids)


def _ref_logits(plan, slots, others):  # [B, size, V] or None
  if plan.ref_call is None:
    return None
  logits = plan.ref_call(*others[1], slots.ref_h)
  return logits if slots.kept_ids is None else _keep(logits, slots.kept_ids)


def _measures(
  plan,
  logits,  # [B, size, V]
  ref_logits,  # [B, size, V] or None
  slots,
):
  """The outputs of one chunk, and the numbers that their gradient needs."""
  shift, log_sum = _normalizer(logits)
  saved = _Saved(shift, log_sum)
  shifted = logits - shift[..., None]
  # A select instead of a gather: it fuses into the sum and stays local when
  # the vocabulary is sharded.
  is_token = slots.tokens[..., None] == jnp.arange(logits.shape[-1])
  logp = jnp.where(is_token, shifted, 0.0).sum(axis=-1) - log_sum
  entropy = sum_pi_squared = topk_logp = ref_kl = None
  # Sums of weights, divided afterwards, avoid a second pass over V.
  weights = jnp.exp(shifted)
  if plan.with_entropy:
    moment = (weights * _finite(shifted)).sum(axis=-1)
    entropy = log_sum - moment * jnp.exp(-log_sum)
  if plan.with_sum_pi_squared:
    sum_pi_squared = jnp.square(weights).sum(axis=-1) * jnp.exp(-2 * log_sum)
  if slots.topk_ids is not None:
    topk_logp = (
      jnp.take_along_axis(shifted, slots.topk_ids, axis=-1) - log_sum[..., None]
    )
  if ref_logits is not None:
    ref_shift, ref_log_sum = _normalizer(ref_logits)
    log_pi = shifted - log_sum[..., None]
    log_q = ref_logits - ref_shift[..., None] - ref_log_sum[..., None]
    beta, student_kl = plan.beta, None
    if beta == 0:
      ref_kl = _kl(log_q, log_pi)
    else:
      log_m = _mixture(log_pi, log_q, beta)
      ref_kl = student_kl = _kl(log_pi, log_m)
      if beta < 1:
        ref_kl = beta * _kl(log_q, log_m) + (1 - beta) * student_kl
    saved = _Saved(shift, log_sum, ref_shift, ref_log_sum, student_kl)
  return (
    TokenOutputs(logp, entropy, sum_pi_squared, topk_logp, ref_kl),
    saved,
  )


def _logit_gradient(
  plan,
  logits,  # [B, size, V]
  ref_logits,  # [B, size, V] or None
  slots,
  outputs,
  saved,
  gradient,
):  # [B, size, V]
  """The gradient of the logits: Σ_outputs gradient · ∂ output / ∂ logits."""
  log_pi = logits - saved.shift[..., None] - saved.log_sum[..., None]
  pi = jnp.exp(log_pi)
  d_logp = jnp.where(outputs.logp == -jnp.inf, 0.0, gradient.logp)
  is_token = slots.tokens[..., None] == jnp.arange(logits.shape[-1])
  total = jnp.where(is_token, d_logp[..., None], 0.0)
  inner = -d_logp[..., None]  # The factor of π_v.
  if outputs.topk_logp is not None:
    d_topk = jnp.where(
      outputs.topk_logp == -jnp.inf, 0.0, gradient.topk_logp
    )  # [B, T, K]
    total = jax.vmap(jax.vmap(lambda row, ids, d: row.at[ids].add(d)))(
      total, slots.topk_ids, d_topk
    )
    inner = inner - d_topk.sum(axis=-1, keepdims=True)
  if outputs.entropy is not None:
    inner = inner - gradient.entropy[..., None] * (
      _finite(log_pi) + outputs.entropy[..., None]
    )
  if outputs.sum_pi_squared is not None:
    inner = inner + 2 * gradient.sum_pi_squared[..., None] * (
      pi - outputs.sum_pi_squared[..., None]
    )
  if outputs.ref_kl is not None:
    infinite = outputs.ref_kl == jnp.inf
    d_kl = jnp.where(infinite, 0.0, gradient.ref_kl)[..., None]
    log_q = (
      ref_logits - saved.ref_shift[..., None] - saved.ref_log_sum[..., None]
    )
    if plan.beta == 0:
      total = total - d_kl * jnp.exp(log_q)
      inner = inner + d_kl
    else:
      log_m = _mixture(log_pi, log_q, plan.beta)
      gap = _gap(log_pi, log_m) - saved.student_kl[..., None]
      gap = jnp.where(infinite[..., None], 0.0, gap)  # Not 0 · inf.
      scale = 1.0 if plan.beta == 1 else 1 - plan.beta
      inner = inner + scale * d_kl * gap
  return total + pi * inner


def _forward(plan, h, weights, slots, others):
  """The outputs of all chunks, and the numbers that their gradient needs."""

  def chunk(start):
    h_chunk, slots_chunk = take((h, slots), start, plan.size)
    return _measures(
      plan,
      _logits(plan, h_chunk, weights, slots_chunk, others),
      _ref_logits(plan, slots_chunk, others),
      slots_chunk,
    )

  def write(start, is_new, buffers):
    del is_new  # Positions that are computed twice have the same results.
    return put(buffers, chunk(start), start)

  num_slots = h.shape[1]
  buffers = jax.tree.map(
    lambda x: jnp.zeros((x.shape[0], num_slots, *x.shape[2:]), x.dtype),
    jax.eval_shape(chunk, 0),
  )
  return fold(write, buffers, num_slots, plan.size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _outputs(plan, h, weights, slots, others):
  return _forward(plan, h, weights, slots, others)[0]


def _outputs_forward(plan, h, weights, slots, others):
  outputs, saved = _forward(plan, h, weights, slots, others)
  return outputs, (h, weights, slots, others, outputs, saved)


def _outputs_backward(plan, residuals, gradient):
  h, weights, slots, others, outputs, saved = residuals

  def add(start, is_new, sums):
    h_chunk, slots_chunk, outputs_chunk, saved_chunk, gradient_chunk = take(
      (h, slots, outputs, saved, gradient), start, plan.size
    )
    logits, pull_back = jax.vjp(
      lambda h, weights: _logits(plan, h, weights, slots_chunk, others),
      h_chunk,
      weights,
    )
    d_logits = _logit_gradient(
      plan,
      logits,
      _ref_logits(plan, slots_chunk, others),
      slots_chunk,
      outputs_chunk,
      saved_chunk,
      gradient_chunk,
    )
    d_h, d_weights = pull_back(jnp.where(is_new[:, None], d_logits, 0.0))
    h_sum, weight_sums = sums
    d_h = d_h + take(h_sum, start, plan.size)
    return (
      put(h_sum, d_h, start),
      jax.tree.map(jnp.add, weight_sums, d_weights),
    )

  # float32: sums over hundreds of chunks would lose digits in bfloat16.
  weight_sums = jax.tree.map(
    lambda w: jnp.zeros(w.shape, jnp.promote_types(w.dtype, jnp.float32)),
    weights,
  )
  d_h, d_weights = fold(
    add, (jnp.zeros_like(h), weight_sums), h.shape[1], plan.size
  )
  d_weights = jax.tree.map(lambda d, w: d.astype(w.dtype), d_weights, weights)
  return d_h, d_weights, None, None


_outputs.defvjp(_outputs_forward, _outputs_backward)
