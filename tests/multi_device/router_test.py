"""Eight devices share experts; mesh_test.py balances and keeps routing."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.models import experts
from grpo_jax.training.runtime import sharding
from grpo_jax.types import ROW_AXES
from tests.models import experts_test

MESH_AXES = (*ROW_AXES, "tensor")


@pytest.mark.slow
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
    y = experts.mix(x, ids, weights, kernels, experts_test.swiglu)
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
    # Of gradients up to 40, in float32.
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3),
    jax.device_get(got),
    jax.device_get(alone(x, routed.ids, routed.weights, kernels)),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "sizes", "num_tokens"),
  [
    ("blocked", {"data": 2, "expert": 2, "tensor": 2}, 64),
    ("blocked", {"data": 2, "expert": 4}, 64),
    ("blocked", {"data": 2, "expert": 4}, 62),  # Tokens that do not divide.
    ("blocked", {"fsdp": 2, "expert": 2, "tensor": 2}, 64),
    ("blocked", {"data": 2, "fsdp": 2, "tensor": 2}, 64),
    ("ragged", {"data": 2, "expert": 2, "tensor": 2}, 64),
    ("megablox", {"data": 2, "expert": 2, "tensor": 2}, 64),
    ("megablox", {"data": 1, "expert": 4, "tensor": 2}, 62),
  ],
)
def test_devices_share_the_experts_and_their_width(name, sizes, num_tokens):
  mesh = jax.make_mesh(
    tuple(sizes.values()),
    tuple(sizes),
    axis_types=(jax.sharding.AxisType.Auto,) * len(sizes),
  )
  rng = np.random.default_rng(0)
  x, gate, up, down = (
    jnp.asarray(0.3 * rng.normal(size=shape), jnp.float32)
    for shape in ((num_tokens, 8), (8, 8, 16), (8, 8, 16), (8, 16, 8))
  )
  kernels = experts.Kernels(gate, up, down)
  routed = experts.route(x[:, :8] * 10, 2, normalize=True)  # Uneven loads.

  def loss(form, x, ids, weights, kernels):
    return jnp.sin(form(x, ids, weights, kernels, experts_test.swiglu)).sum()

  inputs = x, routed.ids, routed.weights, kernels
  expected = jax.jit(
    jax.value_and_grad(functools.partial(loss, experts.dense), (0, 2, 3))
  )(*inputs)
  rows = tuple(axis for axis in ROW_AXES if axis in sizes)
  at = {axis: axis if axis in sizes else None for axis in MESH_AXES}
  spread = P(at["expert"], at["fsdp"], at["tensor"])
  specs = experts.Kernels(
    spread, spread, P(at["expert"], at["tensor"], at["fsdp"])
  )
  placed = jax.tree.map(
    functools.partial(NamedSharding, mesh),
    (*(P(rows if num_tokens % 8 == 0 else None),) * 3, specs),
  )
  with jax.set_mesh(mesh):
    mixed = functools.partial(experts.mix, name=name)
    together = (
      jax.jit(
        jax.value_and_grad(functools.partial(loss, mixed), (0, 2, 3)),
        out_shardings=(None, (placed[0], placed[2], placed[3])),
      )
      .lower(*jax.device_put(inputs, placed))
      .compile()
    )
    got = together(*jax.device_put(inputs, placed))
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
    jax.device_get(got),
    jax.device_get(expected),
  )
  # No device ever has all of a kernel, of no two axes.
  text = together.as_text()
  assert not re.search(r"f32\[8,(8,16|16,8)\]", text)
  if at["expert"] and at["tensor"]:
    assert not re.search(r"f32\[8,(8,8)\]", text)


def test_experts_that_do_not_split_over_the_devices_raise():
  mesh = jax.make_mesh(
    (2, 4), ("data", "expert"), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  shape = jax.ShapeDtypeStruct
  kernels = experts.Kernels(*(shape((6, 4, 4), jnp.float32),) * 3)
  with jax.set_mesh(mesh), pytest.raises(ValueError, match="6 experts do not"):
    jax.eval_shape(
      lambda x, ids, w, kernels: experts.mix(
        x, ids, w, kernels, experts_test.swiglu
      ),
      shape((8, 4), jnp.float32),
      shape((8, 2), jnp.int32),
      shape((8, 2), jnp.float32),
      kernels,
    )
