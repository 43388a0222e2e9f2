"""Updates and rollouts of prompts that show images."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.learning import members, stages, update
from grpo_jax.models import lora, pictures
from grpo_jax.rollout import drawing, mixing, resumed, sampling
from grpo_jax.types import Prompts
from tests.models import pictures_test
from tests.training import tiny

TOKEN = 6
SLOTS = 4
PROMPTS = ([TOKEN, 3, TOKEN], [2], [5, TOKEN, TOKEN, 4], [TOKEN, 2])
GRIDS = (((2, 2), (2, 2)), (), ((2, 4),), ((2, 2),))


@functools.lru_cache
def make_policy(dtype="float64", **fields):
  return tiny.tiny_transformer(
    num_layers=2,
    tower=pictures_test.TOWER,
    image_token=TOKEN,
    dtype=dtype,
    param_dtype=dtype,
    **fields,
  )


def make_prompts(images=None):
  tokens = np.zeros((len(PROMPTS), SLOTS), np.int32)
  mask = np.zeros(tokens.shape, bool)
  for row, prompt in enumerate(PROMPTS):
    tokens[row, -len(prompt) :] = prompt
    mask[row, -len(prompt) :] = True
  return Prompts(
    tokens=jnp.asarray(tokens),
    mask=jnp.asarray(mask),
    ids=jnp.arange(len(PROMPTS), dtype=jnp.int32),
    extras={},
    images=images or pictures_test.make_images(GRIDS),
  )


def with_images(batch, prompts=None):
  """The batch, whose rows continue prompts with images."""
  prompts = prompts or make_prompts()
  return dataclasses.replace(
    batch,
    prompt_tokens=prompts.tokens,
    prompt_mask=prompts.mask,
    images=prompts.images,
  )


def spread(params):
  """Parameters of which every one matters."""
  return jax.tree.map(
    lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size)).reshape(x.shape), params
  )


def prepared(parts, seed=0):
  state = tiny.make_state(parts, seed)
  policy = state.params["policy"]
  moved = {**policy, "trained": spread(policy["trained"])}
  state = state.with_params(policy=moved)
  batch = with_images(tiny.ragged_batch(parts))
  prepare = jax.jit(functools.partial(stages.prepare, parts=parts))
  return state, prepare(state, batch, jax.random.key(2))


def prepared_widely(parts):
  """The same of 8 prompts of two rows each, for as many devices."""
  state, batch = prepared(parts)
  twice = jax.tree.map(
    lambda x: jnp.concatenate([x, x]),
    (batch.prompt_tokens, batch.prompt_mask, batch.images),
  )
  groups = jnp.arange(16, dtype=jnp.int32) // 2
  tokens, mask, images = twice
  return state, dataclasses.replace(
    batch,
    prompt_tokens=tokens,
    prompt_mask=mask,
    images=images,
    prompt_index=groups,
    group_id=groups,
    num_groups=8,
  )


def gradient(parts, state, batch, number=0):
  function = functools.partial(
    update.gradient, parts.update, parts.losses[number]
  )
  return jax.device_get(jax.jit(function)(state.params, batch, False))


def of_tower(gradients):
  return jax.tree.leaves(gradients["policy"].get("tower", {}))


def assert_close(got, want, tolerance=1e-10):
  jax.tree.map(
    functools.partial(
      np.testing.assert_allclose, rtol=tolerance, atol=tolerance
    ),
    got,
    want,
  )


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["plain", "whole"])
def test_gradients_do_not_depend_on_micro_batches(attention, monkeypatch):
  if attention == "whole":  # As cuDNN's attention: rows are run in one piece.
    monkeypatch.setattr(
      "grpo_jax.models.attention.continues", lambda config: False
    )
  with jax.enable_x64(True):
    make = functools.partial(
      tiny.make_parts, policy=make_policy(), fields={"kl_coef": 0.1}
    )
    whole = make(group_size=1, micro_batch_size=16)
    state, batch = prepared(whole)
    batch = dataclasses.replace(batch, old_logp=batch.sampler_logp)
    want = gradient(whole, state, batch)
    assert all(np.abs(x).max() > 1e-9 for x in of_tower(want[0]))
    small = make(group_size=1, micro_batch_size=2)
    assert_close(gradient(small, state, batch), want)
    for micro, lengths in ((2, ()), (8, (1, 3))):
      parts = make(micro_batch_size=micro, lengths=lengths)
      assert parts.plan.shares_prompts
      assert_close(gradient(parts, state, batch), want)


@pytest.mark.slow
@pytest.mark.parametrize(
  "plan",
  [
    {"micro_batch_size": 8},
    {"micro_batch_size": 2, "lengths": (1, 3)},
    {"micro_batch_size": 4, "group_size": 1},
  ],
)
def test_the_first_ratio_is_exactly_one(plan):
  policy = make_policy("float32")
  parts = tiny.make_parts(policy=policy, num_epochs=2, **plan)
  state, batch = prepared(parts)
  _, metrics = gradient(parts, state, batch)
  assert metrics["ratio/max_deviation"] == 0.0
  if plan == {"micro_batch_size": 8}:
    # And it is of these images: without them it is another one.
    prepare = jax.jit(functools.partial(stages.prepare, parts=parts))
    bare = dataclasses.replace(batch, images=None, old_logp=None)
    other = prepare(state, bare, jax.random.key(2))
    changed = np.abs(other.old_logp - batch.old_logp).max(axis=1)
    has_any = np.isin(batch.prompt_index, (0, 2, 3)) & batch.mask.any(axis=1)
    assert (changed[has_any] > 1e-5).all()
    # That of the prompt that shows none has the same bits.
    assert not changed[np.asarray(batch.prompt_index) == 1].any()


@pytest.mark.slow
def test_a_frozen_tower_has_no_gradient_and_is_shared():
  frozen = tiny.make_parts(
    policy=make_policy("float32", tower_trained=False),
    fields={"kl_coef": 0.1},
  )
  state, batch = prepared(frozen)
  own = state.params["policy"]
  assert "tower" not in own["trained"]
  assert "tower" not in state.params["reference"]["frozen"]
  found, _ = gradient(frozen, state, batch)
  assert not of_tower(found)
  # The same tower, trained: the other gradients are the same.
  tower = own["frozen"]["tower"]
  policy = make_policy("float32")
  trained = tiny.make_parts(policy=policy, fields={"kl_coef": 0.1})
  moved = {"trained": {**own["trained"], "tower": tower}, "frozen": {}}
  want, _ = gradient(trained, state.with_params(policy=moved), batch)
  assert all(np.abs(x).max() > 0 for x in of_tower(want))
  del want["policy"]["tower"]
  assert_close(found, want, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("modules", [(), ("query", "tower_query", "tower_up")])
def test_adapters_of_a_tower_are_trained_where_they_are_named(modules):
  base = make_policy("float32", tower_trained=not modules)
  config = lora.LoRAConfig(rank=2, modules=modules)
  policy = lora.lora_policy(base, config)
  parts = tiny.make_parts(policy=policy)
  state, batch = prepared(parts)
  gradients, _ = gradient(parts, state, batch)
  found = gradients["policy"].get("tower", {"layers": {}})["layers"]
  assert set(found) == {m.removeprefix("tower_") for m in modules[1:]}
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(found))
  # What merging makes of them computes the same.
  params = state.params["policy"]
  merged = lora.merge(params, config)
  plain = base.init(jax.random.key(0))
  assert jax.tree.structure(merged) == jax.tree.structure(plain)
  rows = (
    *(batch.prompt_tokens, batch.prompt_mask, batch.tokens),
    *(batch.completion_mask, batch.prompt_index, {"images": batch.images}),
  )
  got, _ = jax.jit(base.hidden)(merged, *rows)
  want, _ = jax.jit(policy.hidden)(params, *rows)
  exists = np.asarray(batch.completion_mask)[..., None]
  np.testing.assert_allclose(
    np.where(exists, got, 0), np.where(exists, want, 0), atol=2e-5
  )


@pytest.mark.slow
def test_reference_and_critic_see_images():
  parts = tiny.make_parts(
    "ppo", policy=make_policy("float32"), fields={"kl_coef": 0.1}
  )
  state, batch = prepared(parts)
  reference = parts.policy.init(jax.random.key(1))
  critic = state.params["critic"]
  critic = {**critic, "trained": spread(critic["trained"])}
  state = state.with_params(reference=reference, critic=critic)
  prepare = jax.jit(functools.partial(stages.prepare, parts=parts))

  def said(images):
    plain = with_images(tiny.ragged_batch(parts), make_prompts(images))
    found = prepare(state, plain, jax.random.key(2))
    return found.ref_logp, found.values

  images = pictures_test.make_images(GRIDS)
  changed = dataclasses.replace(images, patches=images.patches.at[0].add(1.0))
  is_changed = np.asarray(batch.prompt_index) == 0
  for before, after in zip(said(images), said(changed), strict=True):
    gap = np.abs(np.where(batch.mask, after - before, 0)).max(axis=1)
    assert gap[is_changed].max() > 1e-4
    assert not gap[~is_changed].any()
  gradients, _ = gradient(parts, state, batch, 1)
  tower = gradients["critic"]["trunk"]["tower"]
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(tower))


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("mix", [None, mixing.Mixing(rate=0.5)])
def test_the_sampler_and_the_update_agree(lanes, mix):
  policy = make_policy("float32")
  params = spread(policy.init(jax.random.key(0)))
  prompts = make_prompts()
  config = sampling.SamplingConfig(
    max_new_tokens=4, end_ids=(1,), pad_id=0, lanes=lanes, mix=mix
  )
  sample = jax.jit(
    functools.partial(sampling.sample, policy, config=config, group_size=4)
  )
  rollout = sample(params, prompts, jax.random.key(3))
  parts = tiny.make_parts(policy=policy, num_epochs=2)
  state = tiny.make_state(parts).with_params(policy=params)
  batch = dataclasses.replace(
    with_images(tiny.ragged_batch(parts), prompts),
    tokens=rollout.tokens,
    completion_mask=rollout.completion_mask,
    mask=rollout.completion_mask,
    mix_ids=rollout.mix_ids,
    mix_weights=rollout.mix_weights,
  )
  found = members.with_fields(
    parts.plan, parts.members["policy"], state.params, batch
  )
  gap = np.where(batch.mask, found.old_logp - rollout.sampler_logp, 0)
  assert np.abs(gap).max() < 1e-5
  assert pictures.TOWER not in policy.weights(params)["trained"]


@pytest.mark.slow
def test_a_placeholder_is_not_read_and_not_trained():
  policy = make_policy("float32", tied_embeddings=False)
  parts = tiny.make_parts(policy=policy)
  state, batch = prepared(parts)
  batch = dataclasses.replace(
    batch, tokens=jnp.where(batch.tokens == TOKEN, 5, batch.tokens)
  )
  gradients, metrics = gradient(parts, state, batch)
  table = gradients["policy"]["embed"]["embedding"]
  assert not table[TOKEN].any()
  assert np.abs(table[2:TOKEN]).max(axis=1).min() > 0
  # Another row of it changes nothing.
  own = state.params["policy"]
  rows = own["trained"]["embed"]["embedding"].at[TOKEN].add(3.0)
  moved = {**own["trained"], "embed": {"embedding": rows}}
  state = state.with_params(policy={**own, "trained": moved})
  _, after = gradient(parts, state, batch)
  assert after["loss"] == metrics["loss"]


@pytest.mark.slow
def test_rows_that_go_on_read_their_images_again():
  policy = make_policy("float32")
  params = spread(policy.init(jax.random.key(0)))
  prompts = make_prompts()
  config = sampling.SamplingConfig(max_new_tokens=4, end_ids=(1,), pad_id=0)
  key = jax.random.key(3)
  sample = functools.partial(sampling.sample, policy, params, prompts, key)
  whole = jax.jit(lambda: sample(config, 2))()
  # The same, cut after two tokens.
  cut = jnp.arange(4) < 2
  short = dataclasses.replace(
    whole,
    tokens=jnp.where(cut, whole.tokens, 0),
    completion_mask=whole.completion_mask & cut,
    sampler_logp=jnp.where(cut, whole.sampler_logp, 0),
    terminated=((whole.tokens == 1) & whole.completion_mask & cut).any(axis=1),
    version=jnp.zeros(whole.tokens.shape, jnp.int32),
  )
  keys = drawing.row_keys(key, prompts.ids, 2)
  longer = jax.jit(
    lambda prompts: resumed.goes_on(
      *(policy, params, prompts, keys, short, jnp.full(8, 4), jnp.int32(1)),
      config=config,
      most=2,
    )
  )
  found, _ = longer(prompts)
  np.testing.assert_array_equal(found.tokens, whole.tokens)
  np.testing.assert_allclose(found.sampler_logp, whole.sampler_logp, atol=1e-5)
  bare, _ = longer(dataclasses.replace(prompts, images=None))
  assert np.abs(bare.sampler_logp - found.sampler_logp).max() > 1e-4
