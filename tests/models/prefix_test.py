"""Rows that share the forward pass of their prompt, and rows in one piece."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import delta, transformer
from tests.models import (
  attention_test,
  experts_test,
  mixtures_test,
  transformer_test,
)

pytestmark = pytest.mark.slow

G, S, T = 3, 5, 4
SLIDING = dataclasses.replace(
  transformer_test.RICH,
  sliding_window=3,
  sliding_layers=(True, False),
  local_rope_theta=50.0,
  attention_softcap=3.0,
  post_norm=True,
)
CONFIGS = {
  "plain": transformer_test.PLAIN,
  "sliding": SLIDING,
  "experts": experts_test.MOE,
  "linear": transformer_test.LINEAR,
}


def make_rows(slots=S):
  """Three prompts of different lengths with G rows each, some of them empty."""
  prompts, mask, *_ = transformer_test.make_batch(slots)
  rng = np.random.default_rng(0)
  index = np.arange(len(prompts) * G) // G
  lengths = rng.integers(0, T + 1, len(index))
  lengths[:3] = T, 0, 1
  tokens = rng.integers(0, 13, (len(index), T))
  exists = np.arange(T) < lengths[:, None]
  return prompts, mask, *jax.device_put((tokens, exists, index))


@functools.partial(jax.jit, static_argnums=(0, 3))
def value_and_gradients(policy, params, rows, shared, extras=None):
  """(h and aux of tokens that exist, gradient of a function of both)."""
  prompts, prompt_mask, _, mask, index = rows

  def loss(trained):
    every = {**params, "trained": trained}
    prefix, of_rows, more = None, rows, extras
    if shared:
      prefix = policy.prefix(every, prompts, prompt_mask, extras)
      assert prefix is not None
      prefix = jax.tree.map(lambda x: x[:, index], prefix)
      of_rows = prompts[index], prompt_mask[index], *rows[2:]
      if extras:
        kept = extras["prompt_routing"][index]
        more = {**extras, "prompt_routing": kept}
    outputs = policy.hidden(every, *of_rows, more, prefix)
    seen = jax.tree.map(
      lambda x: jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, 0),
      outputs,
    )
    wave = [jnp.sin(jnp.arange(x.size)) for x in jax.tree.leaves(seen)]
    leaves = zip(jax.tree.leaves(seen), wave, strict=True)
    return sum((x.ravel() * w).sum() for x, w in leaves), seen

  (_, seen), gradients = jax.value_and_grad(loss, has_aux=True)(
    params["trained"]
  )
  return seen, gradients


def assert_shared_is_whole(policy, params, rows, extras=None, atol=1e-11):
  shared, whole = (
    value_and_gradients(policy, params, rows, way, extras)
    for way in (True, False)
  )
  assert all(np.abs(x).max() > 1e-3 for x in jax.tree.leaves(whole[0]))
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=atol, atol=atol),
    shared,
    whole,
  )


@pytest.mark.parametrize(
  ("name", "remat"),
  [
    *(("sliding", "none"), ("plain", "full"), ("experts", "none")),
    *(("linear", "none"), ("linear", "dots")),
  ],
)
def test_values_and_gradients_are_those_in_one_piece(name, remat):
  with jax.enable_x64(True):
    config = transformer_test.float64(CONFIGS[name])
    config = dataclasses.replace(config, remat=remat)
    policy = transformer.transformer_policy(config)
    params = transformer_test.make_params(config)
    assert_shared_is_whole(policy, params, make_rows())


def test_experts_may_be_given():
  with jax.enable_x64(True):
    config = transformer_test.float64(experts_test.MOE)
    policy = transformer.transformer_policy(config)
    rows, rng = make_rows(), np.random.default_rng(1)
    prompts, _, tokens, *_ = rows
    extras = {
      name: rng.integers(0, 5, (*x.shape, config.num_layers, 2))
      for name, x in (("prompt_routing", prompts), ("routing", tokens))
    }
    params = transformer_test.make_params(config)
    assert_shared_is_whole(policy, params, rows, jax.device_put(extras))


@pytest.mark.parametrize("window", [None, 4])
def test_splash_continues_a_prompt(window):
  config = dataclasses.replace(
    attention_test.CONFIG, vocab_size=13, sliding_window=window
  )
  params = transformer_test.make_params(config)
  rows = make_rows()
  splash = dataclasses.replace(config, attention="splash")
  shared, whole = (
    value_and_gradients(
      transformer.transformer_policy(one), params, rows, one is splash
    )
    for one in (splash, config)
  )
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3),
    shared,
    whole,
  )


@pytest.mark.parametrize(
  ("config", "cache_dtype"),
  [
    (SLIDING, "model"),
    (transformer_test.PLAIN, "int8"),
    (experts_test.MOE, "model"),
    (mixtures_test.LATENT, "model"),
    (transformer_test.LINEAR, "int8"),
  ],
)
def test_prompts_in_chunks_are_those_in_one_piece(config, cache_dtype):
  """Prompts of 5 slots, in pieces of 2, 2 and 1."""
  with jax.enable_x64(True):
    config = dataclasses.replace(
      transformer_test.float64(config), cache_dtype=cache_dtype
    )
    prompts, mask, *_ = make_rows()
    params = transformer_test.make_params(config)

    def prefill(size):
      policy = transformer.transformer_policy(
        dataclasses.replace(config, prefill_chunk=size)
      )
      return jax.device_get(jax.jit(policy.prefill)(params, prompts, mask))

    in_chunks, whole = prefill(2), prefill(0)
  assert jax.tree.structure(in_chunks) == jax.tree.structure(whole)
  np.testing.assert_allclose(in_chunks[0], whole[0], rtol=0, atol=1e-10)
  exists = np.asarray(mask)  # Slots of the padding are read by nobody.

  def assert_same(x, y, axis):
    x, y = (np.moveaxis(z, axis, 1)[exists].astype(np.float64) for z in (x, y))
    assert np.abs(y).max() > 5e-3
    # Scales of codes are float32.
    np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-10)

  for pair, expected in zip(in_chunks[1].layers, whole[1].layers, strict=True):
    if isinstance(expected, delta.State):
      close = functools.partial(np.testing.assert_allclose, atol=1e-10)
      jax.tree.map(close, pair, expected)
      continue
    for x, y, axis in zip(pair, expected, (-1, -2), strict=True):
      jax.tree.map(functools.partial(assert_same, axis=axis), x, y)
  if config.num_experts:
    assert_same(in_chunks[2], whole[2], axis=1)


def test_nothing_is_shared_where_there_is_nothing_to_share():
  config = transformer_test.PLAIN
  params = transformer_test.make_params(config)
  policy = transformer.transformer_policy(config)
  prompts, mask, *_ = make_rows()
  assert policy.prefix(params, prompts[:, -1:], mask[:, -1:]) is None
  with attention_test.made_for("gpu"):  # cuDNN's kernel cannot continue.
    narrow = dataclasses.replace(attention_test.CONFIG, dtype="bfloat16")
    policy = transformer.transformer_policy(narrow)
    assert policy.prefix(params, prompts, mask) is None
    plain = dataclasses.replace(narrow, attention="plain")
    policy = transformer.transformer_policy(plain)
    params = jax.eval_shape(policy.init, jax.random.key(0))
    assert jax.eval_shape(policy.prefix, params, prompts, mask) is not None
