"""Eight devices route, balance and keep routing as one device does."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from grpo_jax.models import experts
from grpo_jax.training import sharding, step
from tests.training import router_test, tiny


def test_fused_steps_with_experts_are_those_of_one_device():
  results = []
  for devices in (1, 8):
    mesh = sharding.make_mesh(devices)
    parts = dataclasses.replace(
      router_test.make_parts(
        {"keep_routing": True, "balance_coef": 0.1, "kl_coef": 0.1},
        micro_batch_size=8,
        learning_rate=0.01,
      ),
      constrain_rows=sharding.row_constraint(mesh),
    )
    whole, rows = sharding.replicated(mesh), sharding.by_rows(mesh)
    advance = jax.jit(
      functools.partial(step.fused_step, parts=parts), out_shardings=whole
    )
    with jax.set_mesh(mesh):
      state = jax.device_put(router_test.make_state(parts), whole)
      prompts = jax.device_put(tiny.make_prompts(8), rows)
      state, metrics, samples = advance(state, prompts)
    results.append(jax.device_get((state.params, metrics, samples)))
  (params, metrics, samples), (others, values, rows) = results
  np.testing.assert_array_equal(rows["tokens"], samples["tokens"])
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
    others,
    params,
  )
  assert values.keys() == metrics.keys()
  assert "loss/balance" in metrics
  for key, value in metrics.items():
    np.testing.assert_allclose(values[key], value, 1e-4, 1e-5, err_msg=key)


def test_each_device_computes_its_own_tokens():
  mesh = sharding.make_mesh(8)
  rng = np.random.default_rng(0)
  x, gate, up, down = (
    jnp.asarray(rng.normal(size=shape), jnp.float32)
    for shape in ((256, 8), (4, 8, 16), (4, 8, 16), (4, 16, 8))
  )
  kernels = experts.Kernels(gate, up, down)
  routed = experts.route(x[:, :4], 2, normalize=True)

  def loss(x, ids, weights, kernels):
    y = experts.mix(x, ids, weights, kernels, jax.nn.silu)
    return jnp.sin(y).sum()

  gradient = jax.grad(loss, (0, 2, 3))
  inputs = x, routed.ids, routed.weights, kernels
  alone = jax.jit(gradient).lower(*inputs).compile()
  rows = sharding.by_rows(mesh)
  with jax.set_mesh(mesh):
    inputs = (
      *jax.device_put(inputs[:3], rows),
      jax.device_put(kernels, sharding.replicated(mesh)),
    )
    together = jax.jit(gradient).lower(*inputs).compile()
  flops = [c.cost_analysis()["flops"] for c in (alone, together)]
  assert flops[1] < flops[0] / 4, flops  # Blocks fill worse with few tokens.
  got = together(*inputs)
  assert got[0].sharding.spec == P("data")
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4),
    jax.device_get(got),
    jax.device_get(alone(x, routed.ids, routed.weights, kernels)),
  )
