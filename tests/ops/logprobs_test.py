"""Log-probs and entropies of tokens."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import logprobs

B, T, D, V = 3, 7, 4, 11


@pytest.fixture(scope="module")
def case():
  rng = np.random.default_rng(0)
  h = rng.normal(size=(B, T, D))
  kernel = rng.normal(size=(D, V))
  tokens = rng.integers(V, size=(B, T))
  return h, kernel, tokens


def numpy_outputs(logits, tokens, temperature):
  logp = np.zeros(tokens.shape)
  entropy = np.zeros(tokens.shape)
  for index in np.ndindex(tokens.shape):
    weights = [float(np.exp(z / temperature)) for z in logits[index]]
    probs = [w / sum(weights) for w in weights]
    logp[index] = np.log(probs[tokens[index]])
    entropy[index] = -sum(p * np.log(p) for p in probs if p > 0)
  return logp, entropy


@pytest.mark.parametrize("chunk_tokens", [4096, 6, 1])
def test_equals_the_definition(case, chunk_tokens):
  h, kernel, tokens = case
  expected = numpy_outputs(h @ kernel, tokens, 0.7)
  with jax.enable_x64(True):
    actual = logprobs.token_outputs(
      lambda h: h @ kernel,
      jnp.asarray(h),
      jnp.asarray(tokens),
      temperature=0.7,
      with_entropy=True,
      chunk_tokens=chunk_tokens,
    )
    for got, want in zip(actual, expected, strict=True):
      assert got.dtype == jnp.float64
      np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_entropy_is_none_unless_asked_for(case):
  h, kernel, tokens = case
  _, entropy = logprobs.token_outputs(
    lambda h: h @ kernel,
    jnp.asarray(h),
    jnp.asarray(tokens),
    temperature=1.0,
    with_entropy=False,
  )
  assert entropy is None


def test_chunks_change_neither_values_nor_gradients(case):
  with jax.enable_x64(True):
    h, kernel, tokens = (jnp.asarray(x) for x in case)
    weights = jnp.linspace(-1, 1, B * T).reshape(B, T)

    def loss(kernel, h, chunk_tokens):
      logp, entropy = logprobs.token_outputs(
        lambda h: h @ kernel,
        h,
        tokens,
        temperature=0.7,
        with_entropy=True,
        chunk_tokens=chunk_tokens,
      )
      return ((logp + 0.3 * entropy) * weights).sum()

    both = jax.jit(jax.value_and_grad(loss, (0, 1)), static_argnums=2)
    whole, chunked = both(kernel, h, 4096), both(kernel, h, 6)
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-12),
      chunked,
      whole,
    )
    assert abs(whole[1][0]).max() > 0.1


def largest_array(function, *args):
  shapes = re.findall(r"f32\[([\d,]+)\]", str(jax.make_jaxpr(function)(*args)))
  return max(int(np.prod([int(n) for n in s.split(",")])) for s in shapes)


def test_chunked_logits_never_exist_whole(case):
  h, kernel, tokens = case
  h, kernel = jnp.float32(h), jnp.float32(kernel)

  def loss(h, chunk_tokens):
    return logprobs.token_outputs(
      lambda h: h @ kernel,
      h,
      tokens,
      temperature=1.0,
      with_entropy=True,
      chunk_tokens=chunk_tokens,
    )[0].sum()

  whole = largest_array(jax.grad(lambda h: loss(h, 4096)), h)
  chunked = largest_array(jax.grad(lambda h: loss(h, 6)), h)
  assert whole == B * T * V
  assert chunked < B * T * V / 2


def test_same_bits_with_and_without_gradient(case):
  h, kernel, tokens = case
  h, kernel = jnp.float32(h), jnp.float32(kernel)

  def logp(h):
    return logprobs.token_outputs(
      lambda h: h @ kernel, h, tokens, temperature=0.9, with_entropy=False
    )[0]

  plain = jax.jit(logp)(h)
  with_gradient, _ = jax.jit(lambda h: jax.vjp(logp, h)[0:2])(h)
  np.testing.assert_array_equal(plain, with_gradient)


def test_filtered_tokens_contribute_nothing_and_gradients_are_finite():
  logits = jnp.array([[2.0, -jnp.inf, 1.0, -jnp.inf], [0.5] + 3 * [-jnp.inf]])
  tokens = jnp.array([2, 0])

  def total(logits):
    logp = logprobs.token_logprobs(logits, tokens)
    return logp.sum() + logprobs.entropy_from_logits(logits).sum()

  p = 1 / (1 + np.exp(-1))  # Of the first token of the first row.
  entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
  np.testing.assert_allclose(
    logprobs.entropy_from_logits(logits), [entropy, 0.0], atol=1e-6
  )
  np.testing.assert_allclose(
    logprobs.token_logprobs(logits, tokens), [np.log(1 - p), 0.0], atol=1e-6
  )
  # ∂H/∂z = −p (log p + H), ∂ log p_y / ∂z = 1[y] − p.
  expected = np.zeros((2, 4))
  for v, (prob, chosen) in {0: (p, 0), 2: (1 - p, 1)}.items():
    expected[0, v] = -prob * (np.log(prob) + entropy) + chosen - prob
  np.testing.assert_allclose(jax.grad(total)(logits), expected, atol=1e-6)


def test_a_filtered_token_has_log_prob_minus_infinity():
  logits = jnp.array([0.0, -jnp.inf])
  assert logprobs.token_logprobs(logits, jnp.array(1)) == -jnp.inf


def test_uniform_logits_have_entropy_log_v_at_any_offset():
  for offset in (0.0, 1e4, -1e4):
    np.testing.assert_allclose(
      logprobs.entropy_from_logits(jnp.full((2, V), offset)),
      np.log(V),
      rtol=1e-6,
    )


def test_bfloat16_is_widened_before_the_softmax():
  logits = jax.random.normal(jax.random.key(0), (5, V), jnp.bfloat16)
  tokens = jnp.arange(5)
  logp = logprobs.token_logprobs(logits, tokens, 0.5)
  assert logp.dtype == jnp.float32
  expected, _ = numpy_outputs(np.float64(logits), np.asarray(tokens), 0.5)
  np.testing.assert_allclose(logp, expected, atol=1e-5)


def test_temperature_must_be_positive():
  with pytest.raises(ValueError, match=r"temperature is 0.*use 1\.0"):
    logprobs.token_logprobs(jnp.zeros(3), jnp.array(0), 0)
