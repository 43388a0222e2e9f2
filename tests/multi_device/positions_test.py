"""Devices of `tensor` that share positions compute what one device computes."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest

from grpo_jax.step import update
from grpo_jax.training.runtime import sharding
from grpo_jax.types import row_arrays, set_fields
from tests.training import tiny

MESH = {"data": 2, "fsdp": 2, "tensor": 2}
LAYERS, WIDTH = 3, 16
# What layers hand on, kept for the backward pass of a row of 4 slots.
WHOLE, HALF = (f"f32[{LAYERS},1,{slots},{WIDTH}]" for slots in (4, 2))


def gradient(mesh, split, **model):
  """Gradient and metrics of 16 rows, and the text of the program."""
  mesh = sharding.make_mesh(**mesh)
  policy = tiny.tiny_transformer(
    vocab_size=8,
    width=WIDTH,
    **{"num_layers": LAYERS, **model},
    num_heads=4,
    num_kv_heads=2,
    mlp_width=32,
    remat="full",
    split_positions=split,
  )
  phase = tiny.make_phase(
    policy=sharding.on_mesh(policy, mesh),
    fields={"kl_coef": 0.1, "entropy_coef": 0.01},
    micro_batch_size=4,
    num_shards=sharding.num_row_shards(mesh),
  )
  phase = dataclasses.replace(
    phase,
    constrain_rows=sharding.row_constraint(mesh),
    constrain_trained=sharding.trained_constraint(mesh),
  )
  with jax.set_mesh(mesh):
    state, batch = tiny.off_policy(phase)
    state = jax.device_put(state, sharding.of_state(mesh, state))
    rows = jax.device_put(row_arrays(batch), sharding.by_rows(mesh))
    batch = jax.device_put(batch, sharding.replicated(mesh))
    batch = set_fields(batch, rows)
    function = functools.partial(update.gradient, phase.update, phase.losses[0])
    program = jax.jit(function).lower(state.params, batch, False).compile()
    found = jax.device_get(program(state.params, batch, False))
  return found, program.as_text()


@pytest.mark.slow
def test_values_and_gradients_are_those_of_one_device():
  """At float32; and a device keeps half of the positions of its row."""
  one, _ = gradient({"data": 1}, split=False)
  half, text = gradient(MESH, split=True)
  assert (WHOLE in text, HALF in text) == (False, True)
  assert max(np.abs(x).max() for x in jax.tree.leaves(one[0])) > 1e-3
  chex.assert_trees_all_close(half, one, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_layers_with_the_delta_rule_see_all_positions():
  fields = {**tiny.LINEAR, "num_layers": 2}
  one, _ = gradient({"data": 1}, split=False, **fields)
  half, _ = gradient(MESH, split=True, **fields)
  assert max(np.abs(x).max() for x in jax.tree.leaves(one[0])) > 1e-3
  chex.assert_trees_all_close(half, one, rtol=1e-5, atol=1e-6)
