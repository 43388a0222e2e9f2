"""Eight devices attend, each in its own rows, as one device does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.models import attention
from grpo_jax.training import sharding
from tests.models import attention_test


def test_devices_share_the_rows_of_a_kernel():
  spans = tuple((i, 40 - i) for i in range(8))
  mask, *q_k_v = attention_test.make_inputs(spans, "float32")
  mesh = sharding.make_mesh(8)
  with jax.set_mesh(mesh):
    mask, *q_k_v = jax.device_put((mask, *q_k_v), sharding.by_rows(mesh))
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
    assert splash.sharding.shard_shape(splash.shape)[0] == 1
  assert "all-gather" not in compiled.as_text()
