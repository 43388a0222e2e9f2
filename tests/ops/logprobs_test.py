"""Log-probs, entropies and divergences of tokens."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.ops import logprobs
from tests.training import tiny

B, T, D, V, K = 3, 7, 4, 11, 5
SLOT = B * V * 4  # Bytes of one position's float32 logits.
WHOLE = 2**26


def make_case(num_rows=B, num_slots=T, width=D, num_ids=V, seed=0):
  """Inputs of every option, as float64 NumPy arrays."""
  rng = np.random.default_rng(seed)
  positions = (num_rows, num_slots)
  tokens = rng.integers(num_ids, size=positions)
  kept = rng.random((*positions, num_ids)).argsort(-1)[..., :K]
  kept[..., 1:] = np.where(rng.random(kept.shape) < 0.3, -1, kept)[..., 1:]
  kept[..., 0] = tokens
  return {
    "params": {
      "kernel": rng.normal(size=(width, num_ids)),
      "bias": rng.normal(size=num_ids),
      "unused": rng.normal(size=(width, num_ids)),
    },
    "h": rng.normal(size=(*positions, width)),
    "ref_kernel": rng.normal(size=(width + 1, num_ids)),
    "ref_h": rng.normal(size=(*positions, width + 1)),
    "tokens": tokens,
    "kept_ids": kept,
    "topk_ids": rng.integers(num_ids, size=(*positions, 3)),
  }


def as_arrays(case, dtype):
  return jax.tree.map(
    lambda x: x.astype(dtype if x.dtype == np.float64 else np.int32), case
  )


def head(params, h):
  return h @ params["kernel"] + params["bias"]


def chunked(case, temperature=0.7, chunk_bytes=WHOLE, **options):
  """`token_outputs`, with True for an option that takes an array."""
  for name in ("kept_ids", "topk_ids"):
    options[name] = case[name] if options.get(name) else None
  if options.get("reference"):
    options["reference"] = (lambda h: h @ case["ref_kernel"], case["ref_h"])
  return logprobs.token_outputs(
    functools.partial(head, case["params"]),
    case["h"],
    case["tokens"],
    temperature=temperature,
    chunk_bytes=chunk_bytes,
    **options,
  )


def dense(
  case,
  temperature=0.7,
  with_entropy=False,
  with_sum_pi_squared=False,
  kept_ids=False,
  topk_ids=False,
  reference=False,
  reference_beta=1.0,
):
  """The same from whole logits, differentiated by JAX."""
  logits = head(case["params"], case["h"]) / temperature
  keep = jnp.ones(logits.shape, bool)
  if kept_ids:
    ids = jnp.arange(logits.shape[-1])
    keep = (case["kept_ids"][..., None] == ids[:, None].T).any(-2)
  p, log_p = softmax(logits, keep)

  def at(ids):
    return jnp.take_along_axis(jnp.where(keep, log_p, -jnp.inf), ids, -1)

  ref_kl = None
  if reference:
    q, log_q = softmax(case["ref_h"] @ case["ref_kernel"] / temperature, keep)
    q, log_q = jax.lax.stop_gradient((q, log_q))
    if reference_beta == 1:
      ref_kl = (p * (log_p - log_q)).sum(-1)
    elif reference_beta == 0:
      ref_kl = (q * (log_q - log_p)).sum(-1)
    else:
      m = reference_beta * q + (1 - reference_beta) * p
      log_m = jnp.log(jnp.where(keep, m, 1.0))
      ref_kl = (reference_beta * q * (log_q - log_m)).sum(-1) + (
        (1 - reference_beta) * p * (log_p - log_m)
      ).sum(-1)
  return logprobs.TokenOutputs(
    logp=at(case["tokens"][..., None])[..., 0],
    entropy=-(p * log_p).sum(-1) if with_entropy else None,
    sum_pi_squared=(p * p).sum(-1) if with_sum_pi_squared else None,
    topk_logp=at(case["topk_ids"]) if topk_ids else None,
    ref_kl=ref_kl,
  )


def softmax(logits, keep):
  """Probabilities and their logs, 0 where not kept."""
  log_p = jax.nn.log_softmax(jnp.where(keep, logits, -jnp.inf))
  log_p = jnp.where(keep, log_p, 0.0)
  return jnp.where(keep, jnp.exp(log_p), 0.0), log_p


def value_and_gradients(outputs_of, case, **options):
  """Outputs, and gradients of a sum of them with different weights."""

  def loss(trained):
    params, h, temperature = trained
    outputs = outputs_of(
      case | {"params": params, "h": h}, temperature, **options
    )
    total = 0.0
    for number, x in enumerate(jax.tree.leaves(outputs)):
      weights = jnp.sin(1.0 + number + jnp.arange(x.size)).reshape(x.shape)
      # As in a loss: entries that are -inf are selected away.
      total += (weights * jnp.where(jnp.isfinite(x), x, 0.0)).sum()
    return total, outputs

  temperature = np.asarray(0.7, case["h"].dtype)
  trained = (case["params"], case["h"], temperature)
  return jax.device_get(jax.jit(jax.grad(loss, has_aux=True))(trained))


def assert_close(actual, expected, tolerance):
  jax.tree.map(
    functools.partial(
      np.testing.assert_allclose, rtol=tolerance, atol=tolerance
    ),
    actual,
    expected,
  )


EVERYTHING = {
  "with_entropy": True,
  "with_sum_pi_squared": True,
  "topk_ids": True,
  "reference": True,
  "reference_beta": 0.3,
}
COMBINATIONS = {
  "logp": {},
  "entropy": {"with_entropy": True},
  "sum_pi_squared": {"with_sum_pi_squared": True},
  "topk": {"topk_ids": True},
  "reverse": {"reference": True, "reference_beta": 1.0},
  "forward": {"reference": True, "reference_beta": 0.0},
  "kept": {"kept_ids": True},
  "kept reverse": {"kept_ids": True, "reference": True, "with_entropy": True},
  "kept forward": {"kept_ids": True, "reference": True, "reference_beta": 0.0},
  "everything": EVERYTHING,
  "everything kept": EVERYTHING | {"kept_ids": True},
}


@pytest.mark.parametrize(
  "name", tiny.each(COMBINATIONS, ("logp", "reverse", "everything kept"))
)
def test_values_and_gradients_are_those_of_whole_logits(name):
  options = COMBINATIONS[name]
  with jax.enable_x64(True):
    case = as_arrays(make_case(), jnp.float64)
    # Chunks of 3, 3 and 1 positions: the last one shares two.
    got = value_and_gradients(
      chunked, case, chunk_bytes=2 * 3 * SLOT, **options
    )
    want = value_and_gradients(dense, case, **options)
    assert_close(got, want, 1e-10)
    (gradients, _), outputs = got[0][:2], got[1]
    assert abs(gradients["kernel"]).max() > 0.1
    np.testing.assert_array_equal(gradients["unused"], 0.0)
    assert outputs.logp.dtype == jnp.float64


@pytest.mark.slow
def test_float32_in_chunks_of_any_size():
  case = as_arrays(make_case(), jnp.float32)
  options = EVERYTHING | {"kept_ids": True}
  want = value_and_gradients(dense, case, **options)
  for slots in (1, 4, 7):
    got = value_and_gradients(
      chunked, case, chunk_bytes=slots * SLOT, **options
    )
    assert_close(got, want, 1e-5)


@given(
  shape=st.tuples(*[st.integers(1, n) for n in (3, 9, 4, 12)]),
  slots=st.integers(0, 10),
  beta=st.sampled_from([0.0, 0.5, 1.0]),
  seed=st.integers(0, 99),
)
@settings(max_examples=5, deadline=None, derandomize=True)
@pytest.mark.slow
def test_any_shape(shape, slots, beta, seed):
  with jax.enable_x64(True):
    case = as_arrays(make_case(*shape, seed), jnp.float64)
    options = EVERYTHING | {"kept_ids": seed % 2 == 0, "reference_beta": beta}
    chunk_bytes = slots * shape[0] * shape[3] * 8
    got = value_and_gradients(
      chunked, case, chunk_bytes=max(1, chunk_bytes), **options
    )
    assert_close(got, value_and_gradients(dense, case, **options), 1e-10)


def test_only_what_is_asked_for_is_returned():
  case = as_arrays(make_case(), jnp.float32)
  assert jax.eval_shape(lambda: chunked(case))[1:] == (None,) * 4
  full = jax.eval_shape(lambda: chunked(case, **EVERYTHING))
  assert all(x.shape[:2] == (B, T) for x in full)
  assert full.topk_logp.shape == (B, T, 3)


def numpy_divergence(p, q, beta):
  """Generalised JSD from its definition, one id after the other."""

  def kl(a, b):
    return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)

  if beta == 1:
    return kl(p, q)
  if beta == 0:
    return kl(q, p)
  m = [(1 - beta) * x + beta * y for x, y in zip(p, q, strict=True)]
  return beta * kl(q, m) + (1 - beta) * kl(p, m)


@pytest.mark.parametrize("beta", tiny.each((0.0, 0.25, 1.0), (0.25,)))
def test_outputs_equal_their_definitions(beta):
  case = make_case()

  def probabilities(logits, keep):
    pairs = zip(logits, keep, strict=True)
    weights = [math.exp(z / 0.7) if kept else 0.0 for z, kept in pairs]
    return [w / sum(weights) for w in weights]

  want = np.zeros((4, B, T))
  logits = head(case["params"], case["h"])
  ref_logits = case["ref_h"] @ case["ref_kernel"]
  for i in np.ndindex(B, T):
    keep = [v in case["kept_ids"][i] for v in range(V)]
    p, q = probabilities(logits[i], keep), probabilities(ref_logits[i], keep)
    want[(0, *i)] = math.log(p[case["tokens"][i]])
    want[(1, *i)] = -sum(x * math.log(x) for x in p if x > 0)
    want[(2, *i)] = sum(x * x for x in p)
    want[(3, *i)] = numpy_divergence(p, q, beta)
  with jax.enable_x64(True):
    options = EVERYTHING | {"kept_ids": True, "reference_beta": beta}
    outputs_of = functools.partial(chunked, chunk_bytes=4 * SLOT, **options)
    got = jax.jit(outputs_of)(as_arrays(case, jnp.float64))
    for actual, expected in zip(
      (got.logp, got.entropy, got.sum_pi_squared, got.ref_kl), want, strict=True
    ):
      np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_keeping_everything_changes_nothing():
  with jax.enable_x64(True):
    case = as_arrays(make_case(), jnp.float64)
    order = np.random.default_rng(1).permutation(V)
    # In any order, with an unused slot, and with an id named twice.
    ids = np.array([*order[:4], -1, *order[4:], order[2]])
    case["kept_ids"] = np.broadcast_to(ids, (B, T, V + 2))
    kept = value_and_gradients(chunked, case, kept_ids=True, **EVERYTHING)
    plain = value_and_gradients(chunked, case, **EVERYTHING)
    assert_close(kept, plain, 1e-14)


@functools.partial(jax.jit, static_argnames="reference_beta")
def _outputs_of_logits(logits, tokens, ref=None, **options):
  def total(logits):
    outputs = logprobs.token_outputs(
      lambda h: h,
      logits[None],
      tokens[None],
      temperature=1.0,
      with_entropy=True,
      with_sum_pi_squared=True,
      reference=None if ref is None else (lambda h: h, ref[None]),
      **options,
    )
    finite = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0.0), outputs)
    return sum(x.sum() for x in jax.tree.leaves(finite)), outputs

  return jax.grad(total, has_aux=True)(logits)


def outputs_of_logits(logits, tokens, **options):
  """All outputs of logits [T, V] given as states; gradients of their sum."""
  result = _outputs_of_logits(logits, np.array(tokens), **options)
  gradient, outputs = jax.device_get(result)
  return jax.tree.map(lambda x: x[0], outputs), gradient


LOGITS, REFERENCE = np.random.default_rng(0).normal(size=(2, 1, V))
LOGITS, REFERENCE = np.float32(LOGITS), np.float32(REFERENCE)


@pytest.mark.slow
def test_dropped_logits_get_no_gradient_at_all():
  for beta in (0.0, 0.5, 1.0):
    _, gradient = outputs_of_logits(
      LOGITS,
      [4],
      kept_ids=np.array([[[1, 4, -1, 6]]]),
      topk_ids=np.array([[[4, 5]]]),
      ref=REFERENCE,
      reference_beta=beta,
    )
    dropped = np.delete(gradient[0], [1, 4, 6])
    np.testing.assert_array_equal(dropped, 0.0)
    assert np.abs(gradient[0][[1, 4, 6]]).min() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_infinite_logits_equal_kept_ids(beta):
  """One support said in two ways; 0 · (-inf) is 0 in all sums."""
  case = make_case(num_rows=1, num_slots=1)
  logits = case["params"]["bias"][None]
  ref = case["ref_h"][0] @ case["ref_kernel"]
  excluded = [0, 3, 7]
  kept = np.delete(np.arange(V), excluded)
  masked, ref_masked = logits.copy(), ref.copy()
  masked[:, excluded] = ref_masked[:, excluded] = -np.inf
  with jax.enable_x64(True):
    got = outputs_of_logits(masked, [4], ref=ref_masked, reference_beta=beta)
    want = outputs_of_logits(
      logits, [4], kept_ids=kept[None, None], ref=ref, reference_beta=beta
    )
    assert_close(got, want, 1e-14)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))


def test_a_token_outside_the_kept_set_is_minus_infinity_and_has_no_gradient():
  kept = np.array([[[1, 4, 6]]])
  outputs, gradient = outputs_of_logits(LOGITS, [2], kept_ids=kept)
  assert outputs.logp == -np.inf
  assert 0 < outputs.entropy < math.log(3)
  assert np.isfinite(gradient).all()

  def logp(logits):  # Not selected away, unlike in a loss.
    return logprobs.token_outputs(
      lambda h: h, logits[None], np.array([[2]]), temperature=1.0, kept_ids=kept
    ).logp.sum()

  np.testing.assert_array_equal(jax.jit(jax.grad(logp))(LOGITS), 0.0)


@pytest.mark.slow
def test_nothing_kept_is_empty_and_not_nan():
  """The kept set of a slot that holds no token."""
  for beta in (0.0, 0.5, 1.0):
    outputs, gradient = outputs_of_logits(
      LOGITS,
      [2],
      kept_ids=np.full((1, 1, 4), -1),
      topk_ids=np.array([[[2, 5]]]),
      ref=np.zeros((1, V), np.float32),
      reference_beta=beta,
    )
    assert outputs.logp == -np.inf
    assert (outputs.topk_logp == -np.inf).all()
    assert outputs.entropy == outputs.sum_pi_squared == outputs.ref_kl == 0
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.slow
def test_divergence_from_a_smaller_support_is_infinite_without_gradient():
  logits = np.zeros((1, 3), np.float32)
  smaller = np.array([[0.0, -np.inf, 0.0]], np.float32)
  outputs, gradient = outputs_of_logits(logits, [0], ref=smaller)
  assert outputs.ref_kl == np.inf
  assert np.isfinite(gradient).all()
  for beta in (0.0, 0.5):  # A mixture has both supports.
    outputs, gradient = outputs_of_logits(
      logits, [0], ref=smaller, reference_beta=beta
    )
    assert np.isfinite(outputs.ref_kl)
    assert np.isfinite(gradient).all()
  outputs, gradient = outputs_of_logits(
    smaller, [0], ref=logits, reference_beta=0.0
  )
  assert outputs.ref_kl == np.inf
  assert np.isfinite(gradient).all()


def test_a_logit_that_is_not_a_number_stays_visible():
  logits = np.array([[0.0, np.nan, 1.0]], np.float32)
  outputs, gradient = outputs_of_logits(logits, [0])
  assert np.isnan(outputs.logp)
  assert np.isnan(outputs.entropy)
  assert np.isnan(gradient).any()


def numpy_log_softmax(logits):
  logits = np.float64(logits)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("chunk_bytes", [WHOLE, 2 * SLOT])
def test_topk_of_the_reference(chunk_bytes):
  with jax.enable_x64(True):
    case = as_arrays(make_case(), jnp.float64)

    @functools.partial(jax.jit, static_argnums=0)
    def topk(k):
      return logprobs.reference_topk(
        lambda h: h @ case["ref_kernel"],
        case["ref_h"],
        k,
        temperature=0.7,
        chunk_bytes=chunk_bytes,
      )

    ids, log_q = jax.device_get(topk(V))
    whole = numpy_log_softmax(case["ref_h"] @ case["ref_kernel"] / 0.7)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(np.sort(ids), np.arange(V) + 0 * ids)
    np.testing.assert_allclose(log_q, -np.sort(-whole), atol=1e-12)
    np.testing.assert_allclose(
      np.take_along_axis(whole, ids, -1), log_q, atol=1e-12
    )
    # All ids of the student at the reference's ids are all of the divergence.
    case["topk_ids"] = ids
    outputs_of = functools.partial(chunked, topk_ids=True, reference=True)
    outputs = jax.device_get(jax.jit(outputs_of)(case))
    log_p = outputs.topk_logp
    np.testing.assert_allclose(np.exp(log_p).sum(-1), 1.0, atol=1e-12)
    np.testing.assert_allclose(
      (np.exp(log_p) * (log_p - log_q)).sum(-1), outputs.ref_kl, atol=1e-12
    )
    assert_close(topk(2), (ids[..., :2], log_q[..., :2]), 1e-14)


def test_topk_over_several_blocks_of_the_vocabulary_with_equal_logits():
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 3, 96)).round(1).astype(np.float32)

  @functools.partial(jax.jit, static_argnums=0)
  def topk(k):
    return logprobs.reference_topk(lambda h: h, logits, k, temperature=1.0)

  whole = numpy_log_softmax(logits)
  for k in (1, 9, 96):
    ids, logp = jax.device_get(topk(k))
    np.testing.assert_allclose(logp, -np.sort(-whole)[..., :k], atol=1e-5)
    np.testing.assert_allclose(
      np.take_along_axis(whole, ids, -1), logp, atol=1e-5
    )
    assert all(len(set(row)) == k for row in ids.reshape(6, k))


def test_the_reference_and_its_topk_are_constants():
  case = as_arrays(make_case(), jnp.float32)

  def total(ref_kernel, ref_h):
    inputs = case | {"ref_kernel": ref_kernel, "ref_h": ref_h}
    _, logp = logprobs.reference_topk(
      lambda h: h @ ref_kernel, ref_h, 2, temperature=1.0
    )
    return chunked(inputs, reference=True).ref_kl.sum() + logp.sum()

  gradients = jax.jit(jax.grad(total, (0, 1)))
  for gradient in gradients(case["ref_kernel"], case["ref_h"]):
    np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.slow
def test_a_head_may_close_over_integers():
  """Quantised weights, say, of a frozen part; in either order of jit, grad."""
  case = as_arrays(make_case(), jnp.float32)
  order = np.arange(V)[::-1]

  def loss(kernel, order):
    return logprobs.token_outputs(
      lambda h: (h @ kernel)[..., order],
      case["h"],
      case["tokens"],
      temperature=1.0,
      reference=(lambda h: h[..., order], np.zeros((B, T, V), np.float32)),
      chunk_bytes=SLOT,
    ).logp.sum()

  kernel = case["params"]["kernel"]
  outside = jax.grad(jax.jit(loss))(kernel, order)
  inside = jax.jit(jax.grad(loss))(kernel, order)
  np.testing.assert_allclose(outside, inside, atol=1e-6)
  want = jax.jit(jax.grad(lambda k: loss(k[:, ::-1], np.arange(V))))(kernel)
  np.testing.assert_allclose(inside, want, atol=1e-5)


def test_bfloat16_states_lose_nothing_before_their_gradients():
  case = as_arrays(make_case(), jnp.bfloat16)

  def total(h, kernel, chunk_bytes):
    outputs = logprobs.token_outputs(
      lambda h: jnp.matmul(h, kernel, preferred_element_type=jnp.float32),
      h,
      case["tokens"],
      temperature=0.7,
      with_entropy=True,
      chunk_bytes=chunk_bytes,
    )
    return sum(x.sum() for x in jax.tree.leaves(outputs)), outputs

  gradients_of = jax.jit(
    jax.grad(total, (0, 1), has_aux=True), static_argnums=2
  )
  h, kernel = case["h"], case["params"]["kernel"]
  gradients, outputs = gradients_of(h, kernel, 2 * SLOT)
  exact, want = gradients_of(np.float32(h), np.float32(kernel), WHOLE)
  assert outputs.logp.dtype == outputs.entropy.dtype == jnp.float32
  assert_close(outputs, want, 1e-5)
  assert [x.dtype for x in gradients] == [jnp.bfloat16] * 2
  # Each chunk's products are rounded to 8 bits.
  assert_close(jax.tree.map(np.float32, gradients), exact, 2e-2)


def test_gradients_of_bfloat16_parameters_add_up_in_float32():
  """512 equal terms; a bfloat16 sum of them stops growing at 256."""
  kernel = np.zeros((1, 2), jnp.bfloat16)

  def loss(kernel):
    return logprobs.token_outputs(
      lambda h: h @ kernel,
      np.ones((1, 512, 1), jnp.bfloat16),
      np.zeros((1, 512), int),
      temperature=1.0,
      chunk_bytes=1,
    ).logp.sum()

  gradient = jax.jit(jax.grad(loss))(kernel)
  assert gradient.dtype == jnp.bfloat16
  np.testing.assert_array_equal(np.float32(gradient), [[256.0, -256.0]])


def test_same_bits_with_and_without_gradient():
  case = as_arrays(make_case(), jnp.float32)

  def logp(h):
    return chunked(case | {"h": h}, chunk_bytes=2 * SLOT).logp

  plain = jax.jit(logp)(case["h"])
  with_gradient, _ = jax.jit(lambda h: jax.vjp(logp, h)[0:2])(case["h"])
  np.testing.assert_array_equal(plain, with_gradient)


def arrays_of(jaxpr):
  """Shapes of all arrays of a program, those of inner programs included."""
  for equation in jaxpr.eqns:
    for variable in (*equation.invars, *equation.outvars):
      yield getattr(variable.aval, "shape", ())
    for parameter in jax.tree.leaves(
      equation.params, is_leaf=lambda x: hasattr(x, "jaxpr") or is_jaxpr(x)
    ):
      if hasattr(parameter, "jaxpr"):
        parameter = parameter.jaxpr
      if is_jaxpr(parameter):
        yield from arrays_of(parameter)


def is_jaxpr(x):
  return hasattr(x, "eqns") and hasattr(x, "invars")


def large_case(num_slots, width=4):
  case = make_case(num_rows=2, num_slots=num_slots, width=width, num_ids=256)
  return as_arrays(case, jnp.float32)


def trained_loss(case, chunk_bytes):
  def loss(params, h):
    outputs = chunked(
      case | {"params": params, "h": h},
      chunk_bytes=chunk_bytes,
      kept_ids=True,
      **EVERYTHING,
    )
    return sum(x.sum() for x in jax.tree.leaves(outputs))

  return loss


def test_no_array_is_larger_than_the_logits_of_a_chunk():
  case = large_case(num_slots=64)
  chunk = 2 * 4 * 256  # Four positions.
  assert case["h"].size < chunk
  assert case["params"]["kernel"].size < chunk
  shapes = {}
  for name, chunk_bytes in {"chunks": 4 * chunk, "whole": WHOLE}.items():
    function = jax.value_and_grad(trained_loss(case, chunk_bytes), (0, 1))
    jaxpr = jax.make_jaxpr(function)(case["params"], case["h"])
    shapes[name] = list(arrays_of(jaxpr.jaxpr))
  assert max(map(math.prod, shapes["chunks"])) == chunk
  assert (2, 4, 256) in shapes["chunks"]
  assert max(map(math.prod, shapes["whole"])) == 2 * 64 * 256


def temp_bytes(function, *args):
  compiled = jax.jit(function).lower(*args).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_grows_with_tokens_by_scalars_and_states_only():
  small, large = (large_case(num_slots=n, width=8) for n in (64, 256))
  chunk_bytes = 2 * 4 * 256 * 4
  few, many = (
    temp_bytes(
      jax.value_and_grad(trained_loss(case, chunk_bytes), (0, 1)),
      case["params"],
      case["h"],
    )
    for case in (small, large)
  )
  new_tokens = 2 * (256 - 64)
  # Outputs, saved scalars and their gradients, 3 top-k log-probs; d h.
  assert few <= many <= few + 4 * new_tokens * (2 * (10 + 3) + 8)
  # Far below one more position of every row.
  assert many - few < 0.2 * 4 * new_tokens * 256


@pytest.mark.slow
def test_a_frozen_head_costs_no_gradient():
  case = large_case(num_slots=64, width=64)
  loss = trained_loss(case, 2 * 256 * 4)
  kernel_bytes = 4 * case["params"]["kernel"].size
  frozen = temp_bytes(jax.grad(loss, 1), case["params"], case["h"])
  assert frozen < kernel_bytes


def test_beta_is_checked():
  case = as_arrays(make_case(), jnp.float32)
  with pytest.raises(ValueError, match=r"reference_beta is 2.*from 0"):
    chunked(case, reference=True, reference_beta=2)


def test_filtered_tokens_contribute_nothing_and_gradients_are_finite():
  logits = np.full((2, 4), -np.inf, np.float32)
  logits[0, [0, 2]], logits[1, 0] = [2.0, 1.0], 0.5
  tokens = np.array([2, 0])

  def total(logits):
    logp = logprobs.token_logprobs(logits, tokens)
    entropy = logprobs.entropy_from_logits(logits)
    return logp.sum() + entropy.sum(), (logp, entropy)

  slope, (logp, found) = jax.jit(jax.grad(total, has_aux=True))(logits)
  p = 1 / (1 + np.exp(-1))  # Of the first token of the first row.
  entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
  np.testing.assert_allclose(found, [entropy, 0.0], atol=1e-6)
  np.testing.assert_allclose(logp, [np.log(1 - p), 0.0], atol=1e-6)
  # ∂H/∂z = −p (log p + H), ∂ log p_y / ∂z = 1[y] − p.
  expected = np.zeros((2, 4))
  for v, (prob, chosen) in {0: (p, 0), 2: (1 - p, 1)}.items():
    expected[0, v] = -prob * (np.log(prob) + entropy) + chosen - prob
  np.testing.assert_allclose(slope, expected, atol=1e-6)


def test_a_filtered_token_has_log_prob_minus_infinity():
  logits = np.array([0.0, -np.inf], np.float32)
  logp = jax.jit(logprobs.token_logprobs)(logits, np.array(1))
  assert float(logp) == -np.inf


def test_uniform_logits_have_entropy_log_v_at_any_offset():
  entropy = jax.jit(logprobs.entropy_from_logits)
  for offset in (0.0, 1e4, -1e4):
    np.testing.assert_allclose(
      entropy(np.full((2, V), offset, np.float32)), np.log(V), rtol=1e-6
    )


def test_bfloat16_is_widened_before_the_softmax():
  logits = np.random.default_rng(0).normal(size=(5, V)).astype(jnp.bfloat16)
  tokens = np.arange(5)
  logp = jax.jit(logprobs.token_logprobs, static_argnums=2)(logits, tokens, 0.5)
  assert logp.dtype == jnp.float32
  expected = numpy_log_softmax(np.float64(logits) / 0.5)
  np.testing.assert_allclose(logp, expected[np.arange(5), tokens], atol=1e-5)
