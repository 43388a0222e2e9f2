"""Random bits without a loop are those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.ops import threefry

WORD = st.integers(0, 2**32 - 1)


@jax.jit
def both(data, folded):  # Data of keys [B, 2], [B] -> what is drawn, twice
  keys = jax.random.wrap_key_data(data)

  def of_row(key, number):
    key = jax.random.fold_in(key, number)
    return (
      jax.random.bits(key, (3, 5)),
      jax.random.uniform(key, (7,)),
      jax.random.gumbel(key, (11,), jnp.float32),
      jax.random.key_data(key),
    )

  return tuple(
    jax.vmap(of_row)(x, folded) for x in (keys, threefry.unrolled(keys))
  )


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(WORD, WORD, WORD), min_size=4, max_size=4))
def test_numbers_are_those_of_jax(rows):
  rows = np.asarray(rows, np.uint32)
  jax.tree.map(np.testing.assert_array_equal, *both(rows[:, :2], rows[:, 2]))


@pytest.mark.slow
def test_negative_numbers_are_folded_in_as_by_jax():
  rows = np.asarray([[1, 2], [3, 4]], np.uint32)
  numbers = np.asarray([-1, -(2**31)], np.int32)
  jax.tree.map(np.testing.assert_array_equal, *both(rows, numbers))


def test_there_is_no_loop():
  keys = jax.random.split(jax.random.key(0), 4)

  def text(of):
    draw = jax.vmap(lambda key: jax.random.gumbel(key, (16,)))
    return jax.jit(lambda keys: draw(of(keys))).lower(keys).as_text()

  assert "while" in text(lambda keys: keys)
  assert "while" not in text(threefry.unrolled)


def test_keys_of_another_generator_stay_as_they_are():
  keys = jax.random.key(0, impl="rbg")
  assert threefry.unrolled(keys) is keys


def test_other_widths_are_refused():
  keys = threefry.unrolled(jax.random.key(0))
  with pytest.raises(ValueError, match="threefry: 16 bits; only 32"):
    jax.random.bits(keys, (2,), jnp.uint16)
