"""Eight devices attend, each in rows and heads of its own, as one does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.models import attention
from grpo_jax.types import ROW_AXES
from tests.models import attention_test, paged_test

interpreted = paged_test.interpreted


def make_mesh(**sizes):
  axis_types = (AxisType.Auto,) * len(sizes)
  return jax.make_mesh(
    tuple(sizes.values()), tuple(sizes), axis_types=axis_types
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("sizes", "shards"),
  [
    ({"data": 2, "fsdp": 2, "tensor": 2}, (4, 2)),
    ({"data": 8}, (8, 1)),
    ({"data": 4, "expert": 2}, (8, 1)),
    # Two key/value heads do not divide.
    ({"data": 2, "tensor": 4}, (2, 1)),
  ],
)
def test_devices_share_the_rows_and_heads_of_a_kernel(sizes, shards):
  spans = tuple((i, 40 - i) for i in range(8))
  mask, *q_k_v = attention_test.make_inputs(spans, "float32")
  mesh = make_mesh(**sizes)
  rows = tuple(name for name in ROW_AXES if name in sizes)
  heads = "tensor" if shards[1] > 1 else None
  specs = P(rows), P(rows, None, heads), P(rows, heads), P(rows, heads)
  with jax.set_mesh(mesh):
    mask, *q_k_v = jax.device_put(
      (mask, *q_k_v), tuple(NamedSharding(mesh, spec) for spec in specs)
    )
    results = []
    for form in ("plain", "splash"):
      config = dataclasses.replace(attention_test.CONFIG, attention=form)

      def gradients(mask, *q_k_v, config=config):
        positions = jnp.cumsum(mask, axis=1)
        of_layer = attention.over_sequences(config, mask, positions)
        attend = of_layer(jnp.array(False))

        def loss(*q_k_v):
          attended = jnp.where(mask[..., None, None, None], attend(*q_k_v), 0)
          return (attended**2).sum()

        return jax.grad(loss, (0, 1, 2))(*q_k_v)

      compiled = jax.jit(gradients).lower(mask, *q_k_v).compile()
      results.append(compiled(mask, *q_k_v))
  for plain, splash in zip(*results, strict=True):
    np.testing.assert_allclose(splash, plain, rtol=1e-4, atol=1e-4)
  for gradient, axis in zip(results[1], (2, 1, 1), strict=True):
    shape = gradient.sharding.shard_shape(gradient.shape)
    assert (shape[0], shape[axis]) == (8 // shards[0], 2 // shards[1])
  assert "all-gather" not in compiled.as_text()


@pytest.mark.slow
def test_devices_share_the_prompts_and_heads_of_pages(interpreted):
  with jax.set_mesh(make_mesh(data=2, expert=2, tensor=2)):
    got, expected, cache = paged_test.one_layer(
      dataclasses.replace(paged_test.CONFIG, sliding_window=7),
      np.arange(30)[:, None] - np.array([0, 4] * 4),
      lengths=(*paged_test.LENGTHS, 33),
    )
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
  shape = cache.sharding.shard_shape(cache.shape)
  assert (shape[0], shape[3]) == (1, 2)  # A prompt, and a key with its value.
