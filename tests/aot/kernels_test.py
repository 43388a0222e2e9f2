"""The kernels, compiled under `shard_map` for four TPUs that are not there.

Nothing of it is run. What a CPU cannot show: that Mosaic takes the kernels at
these sizes, that nothing falls back to a form without them, and what travels.
"""

import dataclasses
import math
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.models import architecture, attention, experts, paged
from grpo_jax.models import mesh as mesh_lib
from grpo_jax.types import ROW_AXES
from tests.models import experts_test

# Gemma 2 in small, with a window and a soft-cap.
CONFIG = architecture.TransformerConfig(
  vocab_size=7,
  width=512,
  num_layers=2,
  num_heads=8,
  num_kv_heads=4,
  head_dim=128,
  sliding_window=200,
  sliding_layers=(True, False),
  attention_softcap=50.0,
  dtype="bfloat16",
  decode_attention="paged",
)


@pytest.fixture(scope="module")
def devices():
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  topology = topologies.get_topology_desc(
    platform="tpu", topology_name="v5e:2x2"
  )
  return np.array(topology.devices)


def make_mesh(devices, **sizes):
  return Mesh(
    devices.reshape(tuple(sizes.values())),
    tuple(sizes),
    axis_types=(AxisType.Auto,) * len(sizes),
  )


def compiled(mesh, function, *inputs):
  """The program of function(*inputs), each input (shape, dtype, spec)."""
  arrays = [
    jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))
    for shape, dtype, spec in inputs
  ]
  with jax.set_mesh(mesh):
    assert mesh_lib.platform() == "tpu"
    return jax.jit(function).lower(*arrays).compile()


def num_kernels(text, name=""):
  """Number of calls of Mosaic kernels of this name."""
  calls = re.findall(r'^.*custom_call_target="tpu_custom_call".*$', text, re.M)
  return sum(name in call for call in calls)


def collectives(text):
  return set(
    re.findall(
      r" (all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)",
      text,
    )
  )


def test_splash_attention_and_its_gradient(devices):
  """The default on TPUs."""
  config = CONFIG
  num_rows, slots, heads = 4, 384, 4
  queries = config.num_heads // heads
  mesh = make_mesh(devices, fsdp=2, tensor=2)

  def gradients(mask, slides, *q_k_v):
    of_layer = attention.over_sequences(config, mask, jnp.cumsum(mask, axis=1))

    def loss(*q_k_v):
      return of_layer(slides)(*q_k_v).astype(jnp.float32).sum()

    return jax.value_and_grad(loss, (0, 1, 2))(*q_k_v)

  rows, width = P(ROW_AXES[1]), config.head_width
  program = compiled(
    mesh,
    gradients,
    ((num_rows, slots), bool, rows),
    ((), bool, P()),
    (
      (num_rows, slots, heads, queries, width),
      jnp.bfloat16,
      P(*rows, None, "tensor"),
    ),
    ((num_rows, heads, width, slots), jnp.bfloat16, P(*rows, "tensor")),
    ((num_rows, heads, slots, width), jnp.bfloat16, P(*rows, "tensor")),
  )
  text = program.as_text()
  # A sliding layer and another, each: forward, dq, and dk with dv.
  assert num_kernels(text) == 2 * 3
  assert num_kernels(text, "splash") == 2 * 3
  # The sum of the loss, and nothing within the kernels.
  assert collectives(text) == {"all-reduce"}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_decode_steps_over_pages(devices, dtype):
  """A loop of them, whose cache stays where it is."""
  config = dataclasses.replace(CONFIG, dtype=dtype)
  prompts, group, slots, num_tokens = 4, 4, 300, 64
  num_rows = prompts * group
  mesh = make_mesh(devices, data=2, tensor=2)
  width, heads = config.head_width, config.num_kv_heads
  queries = config.num_heads // heads

  def loop(mask, pages, q, k, v):
    prefix = architecture.Prefix((pages,), mask)

    def step(carry):
      t, q, cache = carry
      attended, cache = paged.attend(
        config,
        mask.sum(axis=1),
        jnp.full(num_rows, t),
        pages.shape[1],
        config.sliding_window,
        q,
        k,
        v,
        cache,
      )
      return t + 1, attended, cache

    (cache,) = paged.allocate(num_rows, num_tokens, prefix)
    return jax.lax.while_loop(
      lambda carry: carry[0] < num_tokens, step, (0, q, cache)
    )[1]

  rows = P("data")
  pages = -(-slots // paged.PAGE)
  program = compiled(
    mesh,
    loop,
    ((prompts, slots), bool, rows),
    (
      (prompts, pages, paged.PAGE, 2 * heads, width),
      dtype,
      P("data", None, None, "tensor"),
    ),
    ((num_rows, 1, heads, queries, width), dtype, P("data", None, "tensor")),
    ((num_rows, heads, width, 1), dtype, P("data", "tensor")),
    ((num_rows, heads, 1, width), dtype, P("data", "tensor")),
  )
  text = program.as_text()
  assert num_kernels(text, "ragged_paged_attention") == 1
  assert not collectives(text)
  # No step copies the cache of a device, 2 prompts with 4 rows each.
  cache = prompts // 2 * (pages + group * 3) * paged.PAGE * heads * width
  copies = re.findall(r"= \w+\[([\d,]*)\]\S* copy(?:-start)?\(", text)
  assert copies
  assert max(math.prod(map(int, x.split(",") if x else [])) for x in copies) < (
    cache / 10
  )


@pytest.mark.parametrize(
  ("sizes", "moved"),
  [
    ({"data": 2, "expert": 2}, {"all-gather", "reduce-scatter", "all-reduce"}),
    ({"fsdp": 2, "tensor": 2}, {"all-gather", "all-reduce"}),
  ],
)
def test_grouped_products_and_their_gradients(devices, sizes, moved):
  mesh = make_mesh(devices, **sizes)
  # With `tensor` 2 each device has a width that is no multiple of 128.
  num_tokens, num_experts, chosen, width, inner = 1024, 8, 2, 512, 384
  axes = tuple(name for name in ROW_AXES if name in sizes)
  at = {name: name if name in sizes else None for name in ("fsdp", "tensor")}
  parts = "expert" if "expert" in sizes else None

  def gradients(x, ids, weights, *kernels):
    def loss(x, weights, kernels):
      y = experts.mix(x, ids, weights, kernels, experts_test.swiglu)
      return y.astype(jnp.float32).sum()

    return jax.value_and_grad(loss, (0, 1, 2))(
      x, weights, experts.Kernels(*kernels)
    )

  spread = P(parts, at["fsdp"], at["tensor"])
  program = compiled(
    mesh,
    gradients,
    ((num_tokens, width), jnp.bfloat16, P(axes)),
    ((num_tokens, chosen), jnp.int32, P(axes)),
    ((num_tokens, chosen), jnp.float32, P(axes)),
    ((num_experts, width, inner), jnp.bfloat16, spread),
    ((num_experts, width, inner), jnp.bfloat16, spread),
    (
      (num_experts, inner, width),
      jnp.bfloat16,
      P(parts, at["tensor"], at["fsdp"]),
    ),
  )
  text = program.as_text()
  # Three products, each: forward, by the tokens, by the parameters.
  assert num_kernels(text, "gmm") == 3 * 3
  assert "convolution(" not in text
  assert collectives(text) == moved
  if "fsdp" in sizes:
    # Each of three arrays of parameters once, for both passes.
    assert len(re.findall(r" all-gather(?:-start)?\(", text)) == 3
