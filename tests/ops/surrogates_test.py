"""Clipping by regions, and its slope where the regions meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import surrogates

LOW, HIGH = 0.2, 0.28


@pytest.mark.parametrize(
  ("ratio", "advantage", "value", "slope"),
  [
    # Inside [0.8, 1.28]: r A with slope A.
    (1.0, 2.0, 2.0, 2.0),
    (1.1, -2.0, -2.2, -2.0),
    # A > 0: cut above 1.28, alive however far below.
    (1.5, 2.0, 2.56, 0.0),
    (0.5, 2.0, 1.0, 2.0),
    # A < 0: cut below 0.8, alive however far above.
    (0.5, -2.0, -1.6, 0.0),
    (1.5, -2.0, -3.0, -2.0),
    (9.0, -2.0, -18.0, -2.0),
    (1.5, 0.0, 0.0, 0.0),
  ],
)
def test_regions_of_the_clip(ratio, advantage, value, slope):
  def surrogate(ratio):
    return surrogates.clipped(
      ratio[None], jnp.array([advantage]), LOW, HIGH
    ).sum()

  found, gradient = jax.value_and_grad(surrogate)(jnp.float32(ratio))
  np.testing.assert_allclose(found, value, rtol=1e-6)
  np.testing.assert_allclose(gradient, slope, rtol=1e-6)


@pytest.mark.parametrize("width", [0.0, 0.2])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_slope_at_ratio_one_is_the_advantage_even_without_width(
  width, advantage
):
  """`jnp.clip` with equal bounds would leave a quarter of it."""
  slope = jax.grad(
    lambda r: surrogates.clipped(r, jnp.array([advantage]), width, width).sum()
  )(jnp.ones(1))
  np.testing.assert_array_equal(slope, [advantage])


def test_advantages_per_row_weigh_every_token():
  ratio = jnp.array([[1.0, 1.1], [0.9, 1.2]])
  advantages = jnp.array([1.0, -1.0])
  by_row = surrogates.clipped(ratio, advantages, LOW, HIGH)
  by_token = surrogates.clipped(
    ratio, jnp.broadcast_to(advantages[:, None], (2, 2)), LOW, HIGH
  )
  np.testing.assert_array_equal(by_row, by_token)
  np.testing.assert_array_equal(by_row, ratio * advantages[:, None])
  logp = jnp.log(ratio)
  np.testing.assert_array_equal(
    surrogates.reinforce(logp, advantages), logp * advantages[:, None]
  )


def test_token_advantages_do_not_fit_a_sequence_ratio():
  with pytest.raises(ValueError, match="needs one advantage per completion"):
    surrogates.clipped(jnp.ones(2), jnp.ones((2, 3)), LOW, HIGH)


@pytest.mark.parametrize(
  "function",
  [lambda x, a: surrogates.clipped(x, a, LOW, HIGH), surrogates.reinforce],
)
def test_advantages_are_constants(function):
  x, advantages = jnp.array([[0.9, 1.1]]), jnp.array([2.0])
  slope = jax.grad(lambda x, a: function(x, a).sum(), (0, 1))(x, advantages)
  np.testing.assert_array_equal(slope[0], [[2.0, 2.0]])
  assert not slope[1].any()
