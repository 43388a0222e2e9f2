"""Eight devices that share the rows compute what one device computes."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from grpo_jax.models.policies import critic
from grpo_jax.rollout import drawing
from grpo_jax.step import dynamic_sampling, step, update
from grpo_jax.training.runtime import sharding
from grpo_jax.types import row_arrays, set_fields
from tests.step import pictures_test
from tests.training import compaction_test, tiny, turns_test

MICRO = 8  # Rows; one for each device.


def _phase(mesh, *arguments, **options):
  phase = tiny.make_phase(*arguments, **{"micro_batch_size": MICRO, **options})
  return dataclasses.replace(
    phase, constrain_rows=sharding.row_constraint(mesh)
  )


def _gradient(mesh, phase, state, batch, arrays):
  """The compiled text, and the gradient of rows with these split arrays."""
  whole = sharding.replicated(mesh)
  arrays = jax.device_put(arrays, sharding.by_rows(mesh))
  tokens = arrays["tokens"]
  (shape,) = {x.data.shape for x in tokens.addressable_shards}
  assert shape == (len(tokens) // mesh.size, tokens.shape[1])
  batch = set_fields(jax.device_put(batch, whole), arrays)
  inputs = jax.device_put(state, whole).params, batch, False
  function = jax.jit(
    functools.partial(update.gradient, phase.update, phase.losses[0]),
    out_shardings=whole,
  )
  compiled = function.lower(*inputs).compile()
  return compiled.as_text(), jax.device_get(compiled(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "opd_topk", "ppo"])
def test_gradients_are_those_of_one_device(name):
  """On a batch with empty, truncated, filtered and unscored rows.

  Losses of all others are in contract_test.py, as functions of log-probs.
  """
  results = []
  for devices in (1, 8):
    mesh = sharding.make_mesh(devices)
    phase = _phase(mesh, name, fields={"kl_coef": 0.1, "entropy_coef": 0.01})
    state, batch = tiny.off_policy(phase)
    text, found = _gradient(mesh, phase, state, batch, row_arrays(batch))
    # Rows that a device does not hold reach it as sums, and only so.
    assert ("all-reduce" in text) == (devices > 1)
    results.append(found)
  (one, metrics), (eight, others) = results
  assert max(np.abs(x).max() for x in jax.tree.leaves(one)) > 1e-3
  chex.assert_trees_all_close(eight, one, rtol=1e-5, atol=1e-7)
  assert metrics.keys() == others.keys()
  for key, value in metrics.items():
    np.testing.assert_allclose(others[key], value, 1e-5, 1e-6, err_msg=key)


@pytest.mark.slow
def test_gradients_of_a_tower_are_those_of_one_device():
  """Prompts of a device, and their images, stay where their rows are."""
  results = []
  policy = pictures_test.make_policy("float32")
  for devices in (1, 8):
    mesh = sharding.make_mesh(fsdp=devices, devices=jax.devices()[:devices])
    phase = _phase(mesh, policy=policy, group_size=2, num_shards=devices)
    state, batch = pictures_test.prepared_widely(phase)
    whole, rows = sharding.replicated(mesh), sharding.by_rows(mesh)
    arrays = jax.device_put(row_arrays(batch), rows)
    images = jax.device_put(batch.prompts.images, rows)
    batch = set_fields(
      jax.device_put(batch, whole), arrays | {"prompts.images": images}
    )
    params = jax.device_put(
      state.params,
      {name: sharding.of_params(mesh, x) for name, x in state.params.items()},
    )
    function = jax.jit(
      functools.partial(update.gradient, phase.update, phase.losses[0]),
      out_shardings=whole,
    )
    results.append(jax.device_get(function(params, batch, False)))
  (one, metrics), (eight, others) = results
  assert all(
    np.abs(x).max() > 1e-7 for x in jax.tree.leaves(one["policy"]["tower"])
  )
  chex.assert_trees_all_close(eight, one, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(others["loss"], metrics["loss"], 1e-5, 1e-6)


def _run(
  devices, phase, num_steps=3, num_prompts=8, make_prompts=tiny.make_prompts
):
  """Metrics and changes of steps, made as the loop makes them."""
  mesh = sharding.make_mesh(devices)
  phase = dataclasses.replace(
    phase, constrain_rows=sharding.row_constraint(mesh)
  )
  whole, rows = sharding.replicated(mesh), sharding.by_rows(mesh)
  advance = jax.jit(
    functools.partial(step.fused_step, phase=phase),
    donate_argnums=0,
    out_shardings=whole,
  )
  state = jax.device_put(tiny.make_state(phase), whole)
  history = []
  for number in range(num_steps):
    prompts = make_prompts(num_prompts, first=num_prompts * number)
    state, metrics, written = advance(state, jax.device_put(prompts, rows))
    samples = {
      "tokens": written.batch.tokens,
      "mask": written.batch.completion_mask,
      "reward": written.rewards,
      "prompt_id": written.prompt_id,
    }
    history.append(jax.tree.map(np.array, (state.params, metrics, samples)))
    assert all(
      leaf.sharding.is_fully_replicated and len(leaf.devices()) == devices
      for leaf in jax.tree.leaves(state)
    )
  return history


def _transformer(dtype):
  return tiny.tiny_transformer(dtype=dtype, param_dtype=dtype)


def _assert_alike(one, other):
  """Two steps of `_run`: the same samples, the rest up to round-off."""
  (params, metrics, samples), (others, other_metrics, other_samples) = (
    one,
    other,
  )
  for name, value in samples.items():
    np.testing.assert_array_equal(other_samples[name], value, err_msg=name)
  chex.assert_trees_all_close(others, params, rtol=1e-9, atol=1e-12)
  for name, value in metrics.items():
    # Deviations of a ratio from 1 are round-off themselves.
    np.testing.assert_allclose(
      other_metrics[name], value, 1e-5, 1e-6, err_msg=name
    )


@pytest.mark.slow
def test_fused_steps_are_those_of_one_device(caplog):
  """In float64 no draw is close enough to a tie for round-off to decide it.

  Each device has half of a group of a minibatch, and a row of it at a time.
  Below, rounds have whole groups.
  """
  num_prompts, group_parts = 8, 2
  with jax.enable_x64(True):
    make = functools.partial(
      tiny.make_phase,
      policy=_transformer("float64"),
      micro_batch_size=MICRO,
      num_minibatches=2,
    )
    one = _run(1, make(), num_prompts=num_prompts)
    phase = make(num_shards=8, group_parts=group_parts)
    with jax.log_compiles():
      eight = _run(8, phase, num_prompts=num_prompts)
  # Three steps, one program: the new state lies where the old one did.
  messages = [record.getMessage() for record in caplog.records]
  assert sum("Compiling jit(fused_step)" in text for text in messages) == 1
  lengths = set()
  for of_one, of_eight in zip(one, eight, strict=True):
    *_, samples = of_one
    assert samples["tokens"].shape == (4 * num_prompts, 4)
    lengths.update(samples["mask"].sum(1).tolist())
    _assert_alike(of_one, of_eight)
  assert lengths == {1, 2, 3, 4}
  # Three steps did move the policy.
  first, last = one[0][0]["policy"]["trained"], one[-1][0]["policy"]["trained"]
  assert (
    max(
      np.abs(a - b).max()
      for a, b in zip(
        jax.tree.leaves(first), jax.tree.leaves(last), strict=True
      )
    )
    > 0.01
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("trunk", "module"), [("own", compaction_test), ("shared", turns_test)]
)
def test_agents_with_a_critic_are_those_of_one_device(trunk, module):
  """Contexts, turns, values, and two updates of the critic for each step."""
  with jax.enable_x64(True):
    policy = _transformer("float64")
    phase = module.make_phase(
      "ppo",
      policy=policy,
      critic=critic.make_critic(policy, trunk),
      num_critic_updates=2,
      micro_batch_size=MICRO,
    )
    one = _run(1, phase, make_prompts=module.make_prompts)
    eight = _run(8, phase, make_prompts=module.make_prompts)
  for of_one, of_eight in zip(one, eight, strict=True):
    _assert_alike(of_one, of_eight)
  first, last = one[0][0]["critic"]["trained"], one[-1][0]["critic"]["trained"]
  moved = first["value_head"]["kernel"] - last["value_head"]["kernel"]
  assert np.abs(moved).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("micro", "lengths"), [(8, (2,)), (32, ())])
def test_devices_share_prompts_with_rows_of_their_own(micro, lengths):
  """1 of 4 rows of a group, or a whole group, on each device at a time."""
  results = []
  for devices in (1, 8):
    mesh = sharding.make_mesh(devices)
    phase = tiny.make_phase(
      policy=_transformer("float32"),
      micro_batch_size=micro,
      num_shards=devices,
      lengths=lengths,
    )
    state, batch = tiny.off_policy(phase)
    # Twice the rows: a group for each device, whose prompts it has too.
    arrays = jax.tree.map(
      lambda x: jnp.concatenate([x, x]), row_arrays(batch)
    ) | {"prompt_index": jnp.arange(32) // 4}
    arrays |= {
      "prompts.tokens": jnp.tile(batch.prompts.tokens, (2, 1)),
      "prompts.mask": jnp.tile(batch.prompts.mask, (2, 1)),
    }
    text, found = _gradient(mesh, phase, state, batch, arrays)
    results.append(found)
  # Neither rows nor prompts travel, nor states of them.
  for name in ("all-gather", "all-to-all", "collective-permute"):
    assert name not in text
  for one, eight in zip(*map(jax.tree.leaves, results), strict=True):
    np.testing.assert_allclose(eight, one, 1e-4, 1e-5)


@pytest.mark.slow
def test_rounds_keep_the_groups_that_one_device_keeps():
  """Eight live groups of up to sixteen, from other devices than keep them.

  And those that wait for a later step, recycled or replayed.
  """

  def score(prompts, rollout):
    scored = tiny.count_token(prompts, rollout)
    # Of each question of three, all rows have the same reward.
    dead = (prompts.ids % 3 == 0)[rollout.prompt_index]
    return dataclasses.replace(
      scored, rewards=jnp.where(dead, 1.0, scored.rewards)
    )

  with jax.enable_x64(True):
    phase = tiny.make_phase(
      policy=_transformer("float64"),
      micro_batch_size=MICRO,
      fields={"dynamic_sampling": True, "importance_mode": "truncate"},
      score=score,
      num_shards=8,
    )
    phase = dataclasses.replace(
      phase,
      max_rounds=3,
      waiting_groups=dynamic_sampling.Buffers(
        tiny.make_prompts(8), recycles=True, replay=dynamic_sampling.Replay(8)
      ),
    )
    one, eight = (
      _run(devices, phase, num_steps=2, num_prompts=24) for devices in (1, 8)
    )
  for of_one, of_eight in zip(one, eight, strict=True):
    _, metrics, _ = of_one
    assert metrics["drawn/rounds"] > 1
    _assert_alike(of_one, of_eight)
  # Ten of the sixteen of the first step live, and it trains eight.
  assert metrics["drawn/recycled"] == 2


def test_noise_of_the_sampler_has_the_same_bits():
  """Row keys and the noise drawn from them, on rows split over the mesh."""

  def noise(key, ids):
    keys = drawing.row_keys(key, ids, 4)  # [B]
    draw = jax.vmap(lambda k: jax.random.gumbel(k, (tiny.VOCAB,), jnp.float32))
    return draw(jax.vmap(jax.random.fold_in, (0, None))(keys, 2))

  mesh = sharding.make_mesh(8)
  ids, key = jnp.arange(8, dtype=jnp.int32), jax.random.key(3)
  one = np.asarray(jax.jit(noise)(key, ids))
  split = jax.jit(noise, out_shardings=sharding.by_rows(mesh))(
    jax.device_put(key, sharding.replicated(mesh)),
    jax.device_put(ids, sharding.by_rows(mesh)),
  )
  assert split.sharding.spec == P("data")
  np.testing.assert_array_equal(
    np.asarray(split).view(np.uint32), one.view(np.uint32)
  )
  assert len(np.unique(one, axis=0)) == 32  # No two rows share their noise.


def test_rows_stay_split_inside_the_step():
  """Without the constraint a device may compute the rows of all of them."""
  mesh = sharding.make_mesh(8)
  constrained = _phase(mesh)

  def rows_of(phase):
    def probe(batch):
      return phase.constrain_rows(row_arrays(batch))["tokens"] * 2

    batch = tiny.ragged_batch(constrained)
    batch = jax.device_put(batch, sharding.replicated(mesh))
    out = jax.jit(probe)(batch)
    return out.addressable_shards[0].data.shape

  assert rows_of(constrained) == (2, 4)
  assert rows_of(tiny.make_phase()) == (16, 4)


def test_mesh_takes_the_devices_it_is_told():
  assert sharding.make_mesh(None).size == 8
  assert sharding.make_mesh(2).devices.flatten().tolist() == jax.devices()[:2]
  with pytest.raises(ValueError, match=r"there are 8 cpu .*from 1 to 8"):
    sharding.make_mesh(9)
