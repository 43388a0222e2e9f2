"""The gated delta rule and its convolution against loops in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import delta
from tests.references import delta as reference

_SIZES = {"B": 2, "G": 2, "R": 2, "K": 5, "V": 3}


def _drawn(length, seed=0, **equal):
  """q, k, v, log_decay, beta of L slots, and a memory."""
  b, g, r, k, v = _SIZES.values()
  rng = np.random.default_rng(seed)
  q, keys = rng.normal(size=(2, b, length, g, k))
  if equal:
    keys[:] = keys[:, :1]  # The system is then as badly scaled as it can be.
  q, keys = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, keys))
  arrays = (
    q * k**-0.5,
    keys,
    rng.normal(size=(b, length, g, r, v)),
    -(rng.exponential(size=(b, length, g, r)) ** 3),
    rng.uniform(size=(b, length, g, r)),
    rng.normal(size=(b, g * r, k, v)),
  )
  return tuple(np.float32(x) for x in arrays)


def _masked(arrays, mask):
  *vectors, log_decay, beta, memory = arrays
  seen = mask[..., None, None]
  return *vectors, np.where(seen, log_decay, 0), np.where(seen, beta, 0), memory


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 7, 64, 150])
def test_chunks_equal_the_recurrence(length):
  arrays, mask = _drawn(length), np.ones((2, length), bool)
  mask[1, : length // 3] = False
  y, memory = jax.jit(delta.chunked)(*_masked(arrays, mask))
  expected, last = reference.outputs(*arrays, mask)
  np.testing.assert_allclose(
    np.where(mask[..., None, None, None], y, 0), expected, rtol=0, atol=1e-5
  )
  np.testing.assert_allclose(memory, last, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_equal_keys_do_not_spoil_the_system():
  *arrays, log_decay, beta, memory = _drawn(128, equal=True)
  arrays = *arrays, 0.01 * log_decay, 0.9 + 0.1 * beta, memory
  y, memory = jax.jit(delta.chunked)(*arrays)
  expected, last = reference.outputs(*arrays, np.ones((2, 128), bool))
  np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)
  np.testing.assert_allclose(memory, last, rtol=0, atol=1e-5)


def test_steps_equal_the_recurrence():
  *arrays, memory = _drawn(9)
  expected, last = reference.outputs(*arrays, memory, np.ones((2, 9), bool))
  step = jax.jit(delta.step)
  for t in range(9):
    y, memory = step(*(x[:, t] for x in arrays), memory)
    np.testing.assert_allclose(y, expected[:, t], rtol=0, atol=1e-5)
  np.testing.assert_allclose(memory, last, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_gradients_of_chunks_equal_those_of_steps():
  arrays, rng = _drawn(70), np.random.default_rng(1)
  of_y, of_memory = (
    rng.normal(size=x.shape) for x in jax.eval_shape(delta.chunked, *arrays)
  )

  def stepwise(*arrays):
    *arrays, memory = arrays

    def body(memory, inputs):
      y, memory = delta.step(*inputs, memory)
      return memory, y

    inputs = tuple(jnp.moveaxis(x, 1, 0) for x in arrays)
    memory, y = jax.lax.scan(body, memory, inputs)
    return jnp.moveaxis(y, 0, 1), memory

  def loss(form, arrays):
    y, memory = form(*arrays)
    return (of_y * y).sum() + (of_memory * memory).sum()

  found, expected = (
    jax.jit(jax.grad(functools.partial(loss, form)))(arrays)
    for form in (delta.chunked, stepwise)
  )
  for x, y in zip(found, expected, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_convolution_sees_tokens_and_nothing_else():
  rng = np.random.default_rng(0)
  kernel, x = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 9, 2, 3))
  mask = np.ones((3, 9), bool)
  mask[1, :4] = False  # A prompt.
  mask[2, :7] = False
  expected = reference.convolved(kernel, x, mask)
  x[~mask] = np.nan
  recent = np.zeros((3, 2, 3, 3))
  with jax.enable_x64():
    whole, last = delta.convolved(kernel, x, mask, recent)
    # In pieces, of which the second one begins where the first one ended.
    first, recent = delta.convolved(kernel, x[:, :5], mask[:, :5], recent)
    second, again = delta.convolved(kernel, x[:, 5:], mask[:, 5:], recent)
    # Slots behind the tokens do not count either.
    longer = np.concatenate([x, x[:, :2]], axis=1)
    behind = np.pad(mask, ((0, 0), (0, 2)))
    _, same = delta.convolved(kernel, longer, behind, np.zeros((3, 2, 3, 3)))
  pieces = np.concatenate([first, second], axis=1)
  for found in (whole, pieces):
    np.testing.assert_allclose(found[mask], expected[mask], atol=1e-12)
  np.testing.assert_array_equal(again, last)
  np.testing.assert_array_equal(same, last)
  np.testing.assert_array_equal(last[0], np.moveaxis(x[0, -3:], 0, -1))
  np.testing.assert_array_equal(last[2, ..., 0], 0)


def test_the_gated_norm_by_hand():
  # Mean square 12.5 − ε: (3, 4) / √12.5 · (1, 2) · silu(0, ∞).
  y = delta.gated_norm(
    jnp.array([3.0, 4.0]), jnp.array([0.0, 50.0]), jnp.array([1.0, 2.0]), 0.0
  )
  np.testing.assert_allclose(y, [0, 50 * 8 / 12.5**0.5], rtol=1e-6)


def test_decay_and_unit_vectors_by_hand():
  # exp(ln 2) · softplus(0) = 2 ln 2.
  found = delta.log_decay(jnp.log(2.0), jnp.array(1.0), jnp.array(-1.0))
  np.testing.assert_allclose(found, -2 * np.log(2), rtol=1e-6)
  np.testing.assert_allclose(
    delta.unit(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-6
  )
  np.testing.assert_array_equal(delta.unit(jnp.zeros(2)), 0)
