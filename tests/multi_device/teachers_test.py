"""Heads of several teachers, each split over the devices."""

import functools
import types

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from grpo_jax.ops import logprobs
from grpo_jax.step import models

B, T, D, V = 8, 8, 32, 4096
HEAD_BYTES = D * V * 4


def temporary_bytes(num_teachers):
  """Temporary bytes of a device for the gradient of KLs to so many teachers."""
  mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
  split = NamedSharding(mesh, P("fsdp"))
  policy = types.SimpleNamespace(head=lambda kernel, h: h @ kernel)
  known = [
    models.Teacher(policy, f"reference{n}", D) for n in range(num_teachers)
  ]

  def total(kernel, params, h, ref_h, tokens, domain):
    rows = types.SimpleNamespace(domain=domain)
    return logprobs.token_outputs(
      lambda h: h @ kernel,
      h,
      tokens,
      temperature=1.0,
      reference=(models.head_of_domains(known, params, rows), ref_h),
      chunk_bytes=B * V * 4,
    ).ref_kl.sum()

  shape = functools.partial(jax.ShapeDtypeStruct, sharding=split)
  kernel = shape((D, V), jnp.float32)
  states = shape((B, T, D), jnp.float32)
  arguments = (
    *(kernel, {teacher.name: kernel for teacher in known}, states, states),
    *(shape((B, T), jnp.int32), shape((B,), jnp.int32)),
  )
  gradient = jax.jit(jax.grad(total), out_shardings=split)
  program = gradient.lower(*arguments).compile()
  return program.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_one_head_at_a_time_is_whole_on_a_device():
  two, four = temporary_bytes(2), temporary_bytes(4)
  assert four - two < 0.1 * HEAD_BYTES
