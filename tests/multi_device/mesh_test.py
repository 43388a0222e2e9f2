"""Meshes of several axes compute what one device computes."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

from grpo_jax.step import step
from grpo_jax.training.phases import executors
from grpo_jax.training.runtime import sharding
from tests.training import tiny

EXPERTS = {
  "model": {"num_experts": 4, "experts_per_token": 2, "expert_width": 8},
  "fields": {"keep_routing": True, "balance_coef": 0.1, "kl_coef": 0.1},
}
LINEAR = {"model": tiny.LINEAR}
SPARSE = {
  "model": {**tiny.SPARSE, "num_kv_heads": 4},
  "fields": {**EXPERTS["fields"], "indexer_coef": 0.1},
}
OPTIONS = {"dense": {}, "experts": EXPERTS, "linear": LINEAR}
OPTIONS |= {"sparse": SPARSE}


def _run(mesh, num_steps=2, model=None, **options):
  """Parameters, metrics and samples after each of a few steps."""
  mesh = sharding.make_mesh(**mesh)
  sizes = {"vocab_size": 8, "width": 16, "num_layers": 2, "num_heads": 4}
  sizes |= {"num_kv_heads": 2, "mlp_width": 16}
  sizes |= {"dtype": "float64", "param_dtype": "float64"}
  policy = tiny.tiny_transformer(**sizes | (model or {}))
  phase = tiny.make_phase(
    policy=sharding.on_mesh(policy, mesh),
    micro_batch_size=8,
    num_shards=sharding.num_row_shards(mesh),
    max_new_tokens=5,
    **options,
  )
  phase = dataclasses.replace(
    phase,
    constrain_rows=sharding.row_constraint(mesh),
    constrain_trained=sharding.trained_constraint(mesh),
  )
  history = []
  with jax.set_mesh(mesh):
    state = tiny.make_state(phase)
    places = sharding.of_state(mesh, state)
    state = jax.device_put(state, places)
    advance = executors.jit_step(mesh, step.fused_step, phase)
    for number in range(num_steps):
      prompts = tiny.make_prompts(8, first=8 * number)
      prompts = jax.device_put(prompts, sharding.by_rows(mesh))
      state, metrics, written = advance(state, prompts)
      batch = written.batch
      assert batch.tokens.sharding == sharding.by_rows(mesh)
      samples = {"tokens": batch.tokens, "mask": batch.mask}
      history.append(jax.tree.map(np.array, (state.params, metrics, samples)))
      # The new state lies where the old one did.
      jax.tree.map(_assert_at, state, places)
  return history


def _assert_at(x, place):
  assert x.sharding == place


# Experts: their balance is a mean over all rows, and their routing is kept.
# Linear: the two heads of keys, and states, are split along `tensor`.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "mesh"),
  [
    ("dense", {"fsdp": 2, "tensor": 2, "data": 2}),
    ("experts", {"fsdp": 2, "expert": 2, "tensor": 2}),
    ("linear", {"fsdp": 2, "tensor": 2, "data": 2}),
    ("sparse", {"fsdp": 2, "expert": 2, "tensor": 2}),
  ],
)
def test_fused_steps_are_those_of_one_device(kind, mesh):
  with jax.enable_x64(True):
    one, many = (_run(x, **OPTIONS[kind]) for x in ({"data": 1}, mesh))
  for (params, metrics, samples), (others, other_metrics, rows) in zip(
    one, many, strict=True
  ):
    np.testing.assert_array_equal(rows["tokens"], samples["tokens"])
    # Advantages are float32, and Adam makes large steps of small gradients:
    # 0.1 · (1e-7 / the gradient) of each.
    chex.assert_trees_all_close(others, params, rtol=1e-4, atol=1e-5)
    assert other_metrics.keys() == metrics.keys()
    assert ("loss/balance" in metrics) == (kind in ("experts", "sparse"))
    assert ("indexer/changed" in metrics) == (kind == "sparse")
    for name, value in metrics.items():
      np.testing.assert_allclose(
        other_metrics[name], value, 1e-4, 1e-6, err_msg=name
      )
