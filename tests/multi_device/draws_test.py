"""Random draws do not depend on how many devices make them."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from grpo_jax.models import transformer
from grpo_jax.rollout import hints as hints_lib
from grpo_jax.rollout import mixing, sampling
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Prompts, Scored
from tests.models import transformer_test


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


@pytest.mark.slow
@pytest.mark.parametrize(
  ("lanes", "cache_dtype"), [(5, "model"), (8, "model"), (5, "int8")]
)
def test_eight_devices_sample_the_rows_of_one(lanes, cache_dtype, rows):
  """In float64, where round-off decides no draw."""
  with jax.enable_x64(True):
    config = transformer_test.float64(transformer_test.PLAIN)
    config = dataclasses.replace(config, cache_dtype=cache_dtype)
    policy = transformer.transformer_policy(config)
    params = transformer_test.make_params(config)
    tokens = jax.random.randint(jax.random.key(4), (8, 3), 1, 13)
    prompts = Prompts(tokens, tokens > 0, jnp.arange(8), {})
    sample = jax.jit(
      functools.partial(
        sampling.sample,
        policy,
        config=sampling.SamplerConfig(
          6, (0,), 0, lanes=lanes, mix=mixing.Mixing(rate=0.5, until=(5,))
        ),
        group_size=4,
      )
    )
    key = jax.random.key(5)
    one = sample(params, prompts, key)
    whole = NamedSharding(rows.mesh, PartitionSpec())
    params, key = jax.device_put((params, key), whole)
    with jax.set_mesh(rows.mesh):
      eight = sample(params, jax.device_put(prompts, rows), key)
  assert len(np.unique(one.completion_mask.sum(1))) > 3
  for name in ("tokens", "completion_mask", "terminated", "mix_ids"):
    np.testing.assert_array_equal(
      getattr(eight, name), getattr(one, name), err_msg=name
    )
  np.testing.assert_allclose(eight.sampler_logp, one.sampler_logp, atol=1e-6)


@pytest.mark.slow
def test_eight_devices_correct_the_rows_of_one(rows):
  """In float64; all completions are wrong."""
  with jax.enable_x64(True):
    config = transformer_test.float64(transformer_test.PLAIN)
    policy = transformer.transformer_policy(config)
    params = transformer_test.make_params(config)
    tokens = jax.random.randint(jax.random.key(4), (8, 3), 1, 13)
    hints = jnp.tile(jnp.array([9, 9, 1, -1], jnp.int32), (8, 1))
    extras = {hints_lib.ANSWER: hints, hints_lib.REFERENCE: hints}
    prompts = Prompts(tokens, tokens > 0, jnp.arange(8), extras)
    sampler = sampling.SamplerConfig(8, (0, 1, 2), 0)
    settings = hints_lib.Correction(0.5, 0.2, 0.2, (11,), 3, 3)

    @jax.jit
    def run(params, prompts, key):
      draft = sampling.sample(policy, params, prompts, key, sampler, 4)
      wrong = jnp.zeros(32, bool)
      scored = Scored(jnp.zeros(32), ~wrong, wrong, {}, {})
      return hints_lib.correct(
        *(policy, params, prompts, key, draft, scored),
        config=sampler,
        correction=settings,
      )

    key = jax.random.key(5)
    one = run(params, prompts, key)
    whole = NamedSharding(rows.mesh, PartitionSpec())
    params, key = jax.device_put((params, key), whole)
    with jax.set_mesh(rows.mesh):
      eight = run(params, jax.device_put(prompts, rows), key)
  assert {*np.asarray(one.corrections.kind).tolist()} == {0, 1, 2, 3}
  for name in ("tokens", "completion_mask", "terminated", "observed"):
    np.testing.assert_array_equal(
      getattr(eight, name), getattr(one, name), err_msg=name
    )
  np.testing.assert_allclose(eight.sampler_logp, one.sampler_logp, atol=1e-6)


@pytest.mark.slow
def test_a_mesh_gathers_codes_and_samples_the_rows_of_one_device():
  """In float64; each device rounds its own part, and sends bytes."""
  with jax.enable_x64(True):
    config = transformer_test.float64(
      dataclasses.replace(transformer_test.PLAIN, vocab_size=14)
    )
    params = transformer_test.make_params(config)
    tokens = jax.random.randint(jax.random.key(4), (8, 3), 1, 13)
    prompts = Prompts(tokens, tokens > 0, jnp.arange(8), {})
    key = jax.random.key(5)
    found, texts = [], []
    for devices, sizes in ((1, {}), (8, {"fsdp": 4, "tensor": 2})):
      mesh = sharding.make_mesh(**sizes, devices=jax.devices()[:devices])
      policy = sharding.on_mesh(transformer.transformer_policy(config), mesh)
      sample = functools.partial(
        sampling.sample,
        policy_lib.sampling_policy(policy, "int8", mesh),
        config=sampling.SamplerConfig(6, (0,), 0),
        group_size=4,
      )
      with jax.set_mesh(mesh):
        inputs = (
          jax.device_put(params, sharding.of_params(mesh, params)),
          jax.device_put(prompts, sharding.by_rows(mesh)),
          jax.device_put(key, sharding.replicated(mesh)),
        )
        program = jax.jit(sample).lower(*inputs).compile()
        found.append(program(*inputs))
        texts.append(program.as_text())
  one, eight = found
  assert len(np.unique(one.completion_mask.sum(1))) > 3
  for name in ("tokens", "completion_mask", "terminated"):
    np.testing.assert_array_equal(getattr(eight, name), getattr(one, name))
  np.testing.assert_allclose(eight.sampler_logp, one.sampler_logp, atol=1e-6)
  # "down" is [F = 12, D = 8], of which a device has [6, 2].
  gathers = re.findall(r" = (\w+)\[1,6,8\]\S* all-gather\(", texts[1])
  assert gathers
  assert {*gathers} == {"s8"}
