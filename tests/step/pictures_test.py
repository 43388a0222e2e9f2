"""Updates and rollouts of prompts that show images."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import vision_inputs
from grpo_jax.models.policies import lora
from grpo_jax.rollout import drawing, mixing, resumed, sampling
from grpo_jax.step import models, step, update
from grpo_jax.types import Prompts, set_fields
from tests.models import drawn, vision_inputs_test
from tests.training import tiny

pytestmark = pytest.mark.slow

TOKEN = 6
SLOTS = 4
PROMPTS = ([TOKEN, 3, TOKEN], [2], [5, TOKEN, TOKEN, 4], [TOKEN, 2])
GRIDS = (((2, 2), (2, 2)), (), ((2, 4),), ((2, 2),))


@functools.lru_cache
def make_policy(dtype="float64", **fields):
  return tiny.tiny_transformer(
    num_layers=2,
    tower=vision_inputs_test.TOWER,
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
    *jax.device_put((tokens, mask, np.arange(len(PROMPTS), dtype=np.int32))),
    extras={},
    images=images or vision_inputs_test.make_images(GRIDS),
  )


def with_images(batch, prompts=None):
  """The batch, whose rows continue prompts with images."""
  prompts = prompts or make_prompts()
  return set_fields(
    batch,
    {
      "prompts.tokens": prompts.tokens,
      "prompts.mask": prompts.mask,
      "prompts.images": prompts.images,
    },
  )


def prepared(phase, seed=0):
  state = tiny.drawn_state(phase, seed)
  batch = with_images(tiny.ragged_batch(phase))
  return state, tiny.prepared(phase, state, batch, 2)


def prepared_widely(phase):
  """The same of 8 prompts of two rows each, for as many devices."""
  state, batch = prepared(phase)
  twice = jax.tree.map(
    lambda x: np.concatenate([x, x]),
    (batch.prompts.tokens, batch.prompts.mask, batch.prompts.images),
  )
  groups = np.arange(16, dtype=np.int32) // 2
  tokens, mask, images, groups = jax.device_put((*twice, groups))
  return state, set_fields(
    batch,
    {
      "prompts.tokens": tokens,
      "prompts.mask": mask,
      "prompts.images": images,
      "prompt_index": groups,
      "group_id": groups,
      "num_groups": 8,
    },
  )


def gradient_of(phase, number=0):
  """The gradient of a state and a batch, compiled once."""
  compiled = jax.jit(
    functools.partial(update.gradient, phase.update, phase.losses[number])
  )
  return lambda *of: jax.device_get(compiled(of[0].params, of[1], False))


def gradient(phase, state, batch, number=0):
  return gradient_of(phase, number)(state, batch)


def of_tower(gradients):
  return jax.tree.leaves(gradients["policy"].get("tower", {}))


def assert_close(got, want, tolerance=1e-10):
  chex.assert_trees_all_close(got, want, rtol=tolerance, atol=tolerance)


def _make_doubles(**plan):
  return tiny.make_phase(policy=make_policy(), fields={"kl_coef": 0.1}, **plan)


@functools.cache
def _of_single_rows():
  """A state, rows, and their gradients as rows that share no prompts.

  Nothing continues what was read before, so that they are those of any
  attention.
  """
  whole = _make_doubles(group_size=1, micro_batch_size=16)
  state = tiny.drawn_state(whole)
  batch = tiny.given_scores(with_images(tiny.ragged_batch(whole)))
  small = _make_doubles(group_size=1, micro_batch_size=2)
  found = [gradient(phase, state, batch) for phase in (whole, small)]
  return state, batch, *found


@pytest.mark.parametrize("attention", ["plain", "whole"])
def test_gradients_do_not_depend_on_micro_batches(attention, monkeypatch):
  if attention == "whole":  # As cuDNN's attention: rows are run in one piece.
    monkeypatch.setattr(
      "grpo_jax.models.attention.continues", lambda config: False
    )
  with jax.enable_x64(True):
    state, batch, want, small = _of_single_rows()
    assert all(np.abs(x).max() > 1e-9 for x in of_tower(want[0]))
    assert_close(small, want)
    for micro, lengths in ((2, ()), (8, (1, 3)))[attention == "whole" :]:
      phase = _make_doubles(micro_batch_size=micro, lengths=lengths)
      assert phase.plan.shares_prompts
      assert_close(gradient(phase, state, batch), want)


@pytest.mark.parametrize(
  "plan", [{"micro_batch_size": 8}, {"micro_batch_size": 2, "lengths": (1, 3)}]
)
def test_the_first_ratio_is_exactly_one(plan):
  policy = make_policy("float32")
  phase = tiny.make_phase(policy=policy, num_epochs=2, **plan)
  state, batch = prepared(phase)
  _, metrics = gradient(phase, state, batch)
  assert metrics["ratio/max_deviation"].value == 0.0
  if plan == {"micro_batch_size": 8}:
    # And it is of these images: without them it is another one.
    bare = set_fields(batch, {"prompts.images": None, "old_logp": None})
    other = tiny.prepared(phase, state, bare, 2)
    changed = np.abs(np.subtract(other.old_logp, batch.old_logp)).max(axis=1)
    some = np.asarray(batch.mask).any(axis=1)
    has_any = np.isin(batch.prompt_index, (0, 2, 3)) & some
    assert (changed[has_any] > 1e-5).all()
    # That of the prompt that shows none has the same bits.
    assert not changed[np.asarray(batch.prompt_index) == 1].any()


def test_a_frozen_tower_has_no_gradient_and_is_shared():
  frozen = tiny.make_phase(
    policy=make_policy("float32", tower_trained=False), fields={"kl_coef": 0.1}
  )
  state = tiny.drawn_state(frozen)
  batch = tiny.given_scores(with_images(tiny.ragged_batch(frozen)))
  own = state.params["policy"]
  assert "tower" not in own["trained"]
  assert "tower" not in state.params["reference"]["frozen"]
  found, _ = gradient(frozen, state, batch)
  assert not of_tower(found)
  # The same tower, trained: the other gradients are the same.
  tower = own["frozen"]["tower"]
  policy = make_policy("float32")
  trained = tiny.make_phase(policy=policy, fields={"kl_coef": 0.1})
  moved = {"trained": {**own["trained"], "tower": tower}, "frozen": {}}
  want, _ = gradient(trained, state.with_params(policy=moved), batch)
  assert all(np.abs(x).max() > 0 for x in of_tower(want))
  del want["policy"]["tower"]
  assert_close(found, want, 1e-6)


@pytest.mark.parametrize("modules", [(), ("query", "tower_query", "tower_up")])
def test_adapters_of_a_tower_are_trained_where_they_are_named(modules):
  base = make_policy("float32", tower_trained=not modules)
  config = lora.LoRAConfig(rank=2, modules=modules)
  policy = lora.lora_policy(base, config)
  phase = tiny.make_phase(policy=policy)
  state = tiny.drawn_state(phase)
  batch = tiny.given_scores(with_images(tiny.ragged_batch(phase)))
  gradients, _ = gradient(phase, state, batch)
  found = gradients["policy"].get("tower", {"layers": {}})["layers"]
  assert set(found) == {m.removeprefix("tower_") for m in modules[1:]}
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(found))
  # What merging makes of them computes the same.
  params = state.params["policy"]
  merged = jax.jit(lora.merge, static_argnums=1)(params, config)
  plain = jax.eval_shape(base.init, jax.random.key(0))
  assert jax.tree.structure(merged) == jax.tree.structure(plain)
  rows = (
    *(batch.prompts.tokens, batch.prompts.mask, batch.tokens),
    *(
      batch.completion_mask,
      batch.prompt_index,
      {"images": batch.prompts.images},
    ),
  )
  got, _ = jax.jit(base.hidden)(merged, *rows)
  want, _ = jax.jit(policy.hidden)(params, *rows)
  exists = np.asarray(batch.completion_mask)[..., None]
  np.testing.assert_allclose(
    np.where(exists, got, 0), np.where(exists, want, 0), atol=2e-5
  )


def test_reference_and_critic_see_images():
  phase = tiny.make_phase(
    "ppo", policy=make_policy("float32"), fields={"kl_coef": 0.1}
  )
  state = tiny.drawn_state(phase)
  reference = drawn.params(phase.policy, seed=1)
  # It starts as the policy, with a head of zeros.
  critic = jax.device_get(state.params["critic"])
  moved = jax.tree.map(
    lambda x: (
      x + 0.1 * np.sin(np.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    ),
    critic["trained"],
  )
  critic = {**critic, "trained": jax.device_put(moved)}
  state = state.with_params(reference=reference, critic=critic)
  prepare = jax.jit(functools.partial(step.prepare, phase=phase))

  def said(images):
    plain = with_images(tiny.ragged_batch(phase), make_prompts(images))
    return prepare(state, plain, jax.random.key(2))

  images = vision_inputs_test.make_images(GRIDS)
  patches = np.array(images.patches)
  patches[0] += 1.0
  changed = dataclasses.replace(images, patches=jax.device_put(patches))
  batch, other = said(images), said(changed)
  is_changed = np.asarray(batch.prompt_index) == 0
  for before, after in (
    (batch.reference.logp, other.reference.logp),
    (batch.critic.values, other.critic.values),
  ):
    gap = np.abs(np.where(batch.mask, after - before, 0)).max(axis=1)
    assert gap[is_changed].max() > 1e-4
    assert not gap[~is_changed].any()
  gradients, _ = gradient(phase, state, batch, 1)
  tower = gradients["critic"]["trunk"]["tower"]
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(tower))


@pytest.mark.parametrize(
  ("lanes", "mix"), [(None, None), (3, mixing.Mixing(rate=0.5))]
)
def test_the_sampler_and_the_update_agree(lanes, mix):
  policy = make_policy("float32")
  params = drawn.params(policy)
  prompts = make_prompts()
  config = sampling.SamplerConfig(
    max_new_tokens=4, end_ids=(1,), pad_id=0, lanes=lanes, mix=mix
  )
  sample = jax.jit(
    functools.partial(sampling.sample, policy, config=config, group_size=4)
  )
  rollout = sample(params, prompts, jax.random.key(3))
  phase = tiny.make_phase(policy=policy, num_epochs=2)
  batch = set_fields(
    with_images(tiny.ragged_batch(phase), prompts),
    {
      "tokens": rollout.tokens,
      "completion_mask": rollout.completion_mask,
      "mask": rollout.completion_mask,
      "sampler.mix_ids": rollout.mix_ids,
      "sampler.mix_weights": rollout.mix_weights,
    },
  )
  with_fields = functools.partial(
    models.with_fields, phase.plan, phase.models["policy"]
  )
  old_logp = jax.jit(with_fields)({"policy": params}, batch).old_logp
  gap = np.where(batch.mask, old_logp - np.asarray(rollout.sampler_logp), 0)
  assert np.abs(gap).max() < 1e-5
  assert vision_inputs.TOWER not in policy.weights(params)["trained"]


def test_a_placeholder_is_not_read_and_not_trained():
  policy = make_policy("float32", tied_embeddings=False)
  phase = tiny.make_phase(policy=policy)
  state = tiny.drawn_state(phase)
  batch = tiny.given_scores(with_images(tiny.ragged_batch(phase)))
  tokens = np.where(np.equal(batch.tokens, TOKEN), 5, batch.tokens)
  batch = dataclasses.replace(batch, tokens=jax.device_put(tokens))
  compute = gradient_of(phase)
  gradients, metrics = compute(state, batch)
  table = gradients["policy"]["embed"]["embedding"]
  assert not table[TOKEN].any()
  assert np.abs(table[2:TOKEN]).max(axis=1).min() > 0
  # Another row of it changes nothing.
  own = state.params["policy"]
  rows = np.array(own["trained"]["embed"]["embedding"])
  rows[TOKEN] += 3.0
  moved = {**own["trained"], "embed": {"embedding": jax.device_put(rows)}}
  state = state.with_params(policy={**own, "trained": moved})
  _, after = compute(state, batch)
  assert after["loss"] == metrics["loss"]


def test_rows_that_go_on_read_their_images_again():
  policy = make_policy("float32")
  params = drawn.params(policy)
  prompts = make_prompts()
  config = sampling.SamplerConfig(max_new_tokens=4, end_ids=(1,), pad_id=0)
  key = jax.random.key(3)
  sample = functools.partial(sampling.sample, policy, params, prompts, key)
  whole = jax.jit(lambda: sample(config, 2))()
  # The same, cut after two tokens.
  cut = np.arange(4) < 2
  whole = jax.device_get(whole)  # So that what cuts it compiles nothing.
  exists = whole.completion_mask & cut
  short = dataclasses.replace(
    whole,
    tokens=np.where(cut, whole.tokens, 0),
    completion_mask=exists,
    sampler_logp=np.where(cut, whole.sampler_logp, np.float32(0)),
    terminated=((whole.tokens == 1) & exists).any(axis=1),
    version=np.zeros(whole.tokens.shape, np.int32),
  )
  keys = drawing.row_keys(key, prompts.ids, 2)
  longer = jax.jit(
    lambda prompts, short: resumed.continue_rows(
      *(policy, params, prompts, keys, short, jnp.full(8, 4), jnp.int32(1)),
      config=config,
      most=2,
    )
  )
  found, _ = longer(prompts, short)
  np.testing.assert_array_equal(found.tokens, whole.tokens)
  np.testing.assert_allclose(found.sampler_logp, whole.sampler_logp, atol=1e-5)
  bare, _ = longer(dataclasses.replace(prompts, images=None), short)
  gap = np.subtract(bare.sampler_logp, found.sampler_logp)
  assert np.abs(gap).max() > 1e-4
