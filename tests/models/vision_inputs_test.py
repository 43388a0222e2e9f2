"""Images in prompts: what a policy with a tower reads, and what it does not."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import transformer, vision_parts, vision_towers
from grpo_jax.types import Images
from tests.models import transformer_test

pytestmark = pytest.mark.slow

TOKEN = 11  # The placeholder.
TOWER = vision_towers.TowerConfig(
  width=8, num_layers=2, num_heads=2, mlp_width=12, patch_size=2, side=3
)
CONFIG = dataclasses.replace(
  transformer_test.PLAIN, tower=TOWER, image_token=TOKEN
)
# Two images of 1 and 2 tokens; none; one of 1 token, at the prompt's end.
PROMPTS = ([3, TOKEN, 4, TOKEN, TOKEN], [9, 1], [2, 6, TOKEN])
GRIDS = (((2, 2), (2, 4)), (), ((2, 2),))
SLOTS, PATCHES, IMAGES = 6, 16, 3


def places(rows, columns, merge=2):
  """Places of an image's patches in the order of a tower, [rows·columns, 2]."""
  order = np.stack(
    np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), axis=-1
  )
  blocks = order.reshape(rows // merge, merge, columns // merge, merge, 2)
  return blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2)


def make_images(grids=GRIDS, seed=0, junk=0.0):
  rng = np.random.default_rng(seed)
  num = len(grids)
  patches = np.full((num, PATCHES, TOWER.patch_width), junk, np.float32)
  image = np.full((num, PATCHES), -1, np.int32)
  place = np.zeros((num, PATCHES, 2), np.int32)
  grid = np.zeros((num, IMAGES, 2), np.int32)
  for p, of_prompt in enumerate(grids):
    start = 0
    for i, (rows, columns) in enumerate(of_prompt):
      stop = start + rows * columns
      patches[p, start:stop] = rng.normal(
        size=(stop - start, TOWER.patch_width)
      )
      image[p, start:stop] = i
      place[p, start:stop] = places(rows, columns)
      grid[p, i] = rows, columns
      start = stop
  return jax.device_put(Images(patches, image, place, grid))


def make_batch():
  tokens = np.zeros((len(PROMPTS), SLOTS), np.int32)
  mask = np.zeros(tokens.shape, bool)
  for row, prompt in enumerate(PROMPTS):
    tokens[row, -len(prompt) :] = prompt
    mask[row, -len(prompt) :] = True
  _, _, *rest = transformer_test.make_batch()
  return (*jax.device_put((tokens, mask)), *rest)


@functools.partial(jax.jit, static_argnums=0)
def logits(config, params, batch, images):
  """[B, T, V] of rows in one piece."""
  policy = transformer.transformer_policy(config)
  h, _ = policy.hidden(params, *batch, {"images": images})
  return policy.head(params, h)


@functools.partial(jax.jit, static_argnums=0)
def of_prefix(config, params, batch, images):
  """The same, given what the rows read of their prompts."""
  policy = transformer.transformer_policy(config)
  prompts, mask, tokens, completion_mask, index = batch
  extras = {"images": images}
  prefix = policy.prefix(params, prompts, mask, extras)
  prefix = jax.tree.map(lambda x: x[:, index], prefix)
  images = jax.tree.map(lambda x: x[index], images)
  own = jnp.arange(len(index))
  h, _ = policy.hidden(
    params,
    *(prompts[index], mask[index], tokens, completion_mask, own),
    {"images": images},
    prefix,
  )
  return policy.head(params, h)


@functools.partial(jax.jit, static_argnums=0)
def step_by_step(config, params, batch, images):
  """The same with a cache, and the tokens given one at a time."""
  policy = transformer.transformer_policy(config)
  prompts, mask, tokens, _, index = batch
  h, prefix, _ = policy.prefill(params, prompts, mask, images)
  h, prefix = jax.tree.map(lambda x: x[index], (h, prefix))
  weights = policy.weights(params)
  assert "tower" not in {**weights["trained"], **weights["frozen"]}
  cache, found = policy.allocate(len(tokens), tokens.shape[1]), [h]
  for t in range(tokens.shape[1] - 1):
    at = jnp.full(len(tokens), t)
    h, cache, _ = policy.decode(weights, tokens[:, t], at, t, prefix, cache)
    found.append(h)
  return policy.head(params, jnp.stack(found, axis=1))


@pytest.mark.parametrize("function", [of_prefix, step_by_step])
def test_prompts_with_images_are_read_alike_in_every_form(function):
  params = transformer_test.make_params(CONFIG)
  batch, images = make_batch(), make_images()
  mask = batch[3][..., None]
  whole = np.where(mask, logits(CONFIG, params, batch, images), 0)
  other = np.where(mask, function(CONFIG, params, batch, images), 0)
  np.testing.assert_allclose(other, whole, atol=2e-5)
  assert np.abs(whole).max() > 0.1


def test_an_image_matters_and_an_empty_place_does_not():
  params = transformer_test.make_params(CONFIG)
  batch, images = make_batch(), make_images()
  before = logits(CONFIG, params, batch, images)
  same = logits(CONFIG, params, batch, make_images(junk=7.0))
  np.testing.assert_array_equal(same, before)
  # Of prompt 0 another second image: rows 0 has it, rows 1 to 3 do not.
  patches = images.patches.at[0, 4:12].add(1.0)
  changed = dataclasses.replace(images, patches=patches)
  after = logits(CONFIG, params, batch, changed)
  assert np.abs(after[0] - before[0]).max() > 1e-3
  np.testing.assert_array_equal(after[1:], before[1:])


def test_attention_in_blocks_is_that_of_all_queries(monkeypatch):
  rng = np.random.default_rng(1)
  q, k, v = jnp.asarray(rng.normal(size=(3, 2, PATCHES, 2, 4)), jnp.float32)
  mask = vision_parts.visible(make_images(GRIDS[::2]))

  def value(q, k, v):
    return jnp.sin(vision_parts.attend(q, k, v, mask)).sum()

  found = []
  for size in (PATCHES, 4):
    monkeypatch.setattr(vision_parts, "_BLOCK", size)
    found.append(jax.jit(jax.value_and_grad(value, (0, 1, 2)))(q, k, v))
    jax.clear_caches()
  jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), *found)


def test_an_image_sees_itself_only():
  params = transformer_test.make_params(CONFIG)["trained"]["tower"]
  images = make_images()
  alone = make_images((((2, 2),), (), ((2, 2),)))
  both = vision_towers.encode(TOWER, params, images).features
  one = vision_towers.encode(TOWER, params, alone).features
  assert both.shape == (3, PATCHES // 4, CONFIG.width)
  np.testing.assert_allclose(both[0, 0], one[0, 0], atol=1e-6)
  # The two of the second image see each other.
  patches = images.patches.at[0, 4:8].add(1.0)
  changed = dataclasses.replace(images, patches=patches)
  after = vision_towers.encode(TOWER, params, changed).features
  np.testing.assert_array_equal(after[0, 0], both[0, 0])
  assert np.abs(after[0, 2] - both[0, 2]).max() > 1e-3
