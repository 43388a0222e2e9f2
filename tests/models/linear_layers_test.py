"""Layers with the gated delta rule: adapters, codes, meshes, and limits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from grpo_jax.models import delta, transformer
from grpo_jax.models.hf import peft
from grpo_jax.models.policies import lora
from grpo_jax.training.phases import optimizers
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.runtime import sharding
from tests.models import transformer_test
from tests.models.policies import lora_test

LINEAR = transformer_test.LINEAR
ADAPTERS = lora.LoRAConfig(rank=2, alpha=3.0)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_adapters_are_those_merged(quantization):
  adapters = dataclasses.replace(ADAPTERS, quantization=quantization)
  with jax.enable_x64(True):
    config = transformer_test.float64(LINEAR)
    params = lora_test.make_params(config, adapters)
    assert {*params["trained"]["linear_layers"]} == {
      *("delta_inputs", "delta_out", "gate", "up", "down")
    }
    # Codes are float32.
    atol = 1e-9 if quantization == "none" else 1e-4
    lora_test.assert_merged_is_the_same(config, adapters, atol)


def test_files_of_adapters_are_refused(tmp_path):
  policy = lora_test.policy_of(LINEAR, ADAPTERS)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  with pytest.raises(ValueError, match="gated delta rule have one adapter"):
    peft.save(tmp_path, params, ADAPTERS)


def _places(config, adapters=None):
  policy = policy_lib.policy_of(config, adapters)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  mesh = AbstractMesh((2, 2, 1, 2), sharding.AXES)
  places = sharding.of_params(mesh, params)
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): place.spec
    for path, place in jax.tree_util.tree_leaves_with_path(places)
  }


def test_heads_of_keys_are_split_along_tensor():
  config = dataclasses.replace(LINEAR, vocab_size=14)
  found = _places(config)
  start = "trained/linear_layers/delta/"
  for name, spec in {
    "inputs/kernel": P(None, "fsdp", "tensor"),
    "rates/kernel": P(None, "fsdp", "tensor"),
    "taps": P(None, "tensor"),
    "log_rate": P(None, "tensor"),
    "rate_bias": P(None, "tensor"),
    "out/kernel": P(None, "tensor", None, None, "fsdp"),
    "scale": P(),
  }.items():
    assert found[start + name] == spec, name
  found = _places(config, ADAPTERS)
  start = "trained/linear_layers/"
  assert found[start + "delta_inputs/b"] == P(None, None, "tensor")
  assert found[start + "delta_out/a"] == P(None, "tensor")
  cache = transformer.transformer_policy(LINEAR).allocate(4, 8)
  mesh = AbstractMesh((2, 1, 1, 2), sharding.AXES)
  state = sharding.of_cache(mesh, cache)[0]
  assert state.memory.spec == state.recent.spec == P("data", "tensor")


def test_matrices_of_the_rule_are_those_of_an_optimizer():
  policy = transformer.transformer_policy(LINEAR)
  params = jax.eval_shape(policy.init, jax.random.key(0))["trained"]
  decayed = optimizers.decay_mask(params)["linear_layers"]["delta"]
  assert decayed == {
    "inputs": {"kernel": True},
    "log_rate": False,
    "out": {"kernel": True},
    "rate_bias": False,
    "rates": {"kernel": True},
    "scale": False,
    "taps": False,
  }
  axes = optimizers.muon_axes(params)["linear_layers"]["delta"]
  assert axes["taps"] is axes["log_rate"] is None
  # The heads of keys are a batch; those of values are inputs of the output.
  inputs, out = axes["inputs"]["kernel"], axes["out"]["kernel"]
  assert (inputs.reduction_axis, inputs.output_axis) == (1, 3)
  assert (out.reduction_axis, out.output_axis) == ((1, 2, 3), 4)


def test_a_state_has_the_same_size_for_any_number_of_slots():
  policy = transformer.transformer_policy(LINEAR)
  few, many = (
    jax.eval_shape(lambda n=n: policy.allocate(6, n)) for n in (0, 99)
  )
  # Layers 0 and 2 have a state, 1 and 3 keys and values.
  assert few[0] == many[0]
  assert many[0].memory.shape == (6, 4, 5, 3)
  assert many[0].recent.shape == (6, 2, 16, 2)
  assert [x.shape for x in many[1]] == [(6, 2, 6, 99), (6, 2, 99, 6)]


@pytest.mark.slow
def test_pieces_of_long_rows_have_the_gradients_of_whole_rows(monkeypatch):
  """Rows of 8 slots, with padding on both sides, in 3 pieces of 3."""
  with jax.enable_x64(True):
    config = transformer_test.float64(LINEAR)
    params = transformer_test.make_params(config)
    batch = transformer_test.make_batch()
    logits_of = transformer_test.teacher_forced.__wrapped__

    def loss(trained):
      logits = logits_of(config, {**params, "trained": trained}, batch)
      return jnp.where(batch[3][..., None], jnp.sin(logits), 0).sum()

    whole = jax.jit(jax.value_and_grad(loss))(params["trained"])
    monkeypatch.setattr(delta, "_PIECE", 3)
    jax.clear_caches()
    pieces = jax.jit(jax.value_and_grad(loss))(params["trained"])
    jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-9),
      *(pieces, whole),
    )
