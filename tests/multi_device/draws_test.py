"""Random draws do not depend on how many devices make them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec


@pytest.fixture
def rows() -> NamedSharding:
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  return NamedSharding(mesh, PartitionSpec("data"))


def _draw_from_one_key(seed: jax.Array) -> jax.Array:  # [16, 5]
  return jax.random.bits(jax.random.key(seed), (16, 5))


def _draw_from_row_keys(seed: jax.Array) -> jax.Array:  # [16, 5]
  fold_in = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
  keys = fold_in(jax.random.key(seed), jnp.arange(16))  # [16]
  return jax.vmap(lambda key: jax.random.bits(key, (5,)))(keys)


def test_eight_devices_are_visible():
  assert jax.device_count() == 8


@pytest.mark.parametrize("draw", [_draw_from_one_key, _draw_from_row_keys])
def test_sharded_draws_are_those_of_one_device(draw, rows):
  one_device = jax.jit(draw)(jnp.uint32(3))
  sharded = jax.jit(draw, out_shardings=rows)(jnp.uint32(3))
  assert len(one_device.devices()) == 1
  assert len(sharded.devices()) == 8
  assert not sharded.is_fully_replicated
  np.testing.assert_array_equal(sharded, one_device)
  other_seed = jax.jit(draw, out_shardings=rows)(jnp.uint32(4))
  assert (np.asarray(other_seed) != np.asarray(sharded)).mean() > 0.99
