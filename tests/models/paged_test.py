"""Decode steps over pages equal those with the plain form."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import literals
from jax.experimental import pallas as pl

from grpo_jax.models import architecture, attention, mesh, paged, transformer
from grpo_jax.rollout import sampling
from grpo_jax.types import Prompts
from tests.models import drawn

C, R, K = 2, 2, 16
CONFIG = architecture.TransformerConfig(
  vocab_size=29,
  width=32,
  num_layers=2,
  num_heads=C * R,
  num_kv_heads=C,
  head_dim=K,
  attention="plain",
  decode_attention="paged",
)
# Tokens of prompts: less than a page, whole pages, and pages with a rest.
LENGTHS = 5, 64, 69
S, G = 70, 2


@pytest.fixture
def interpreted(monkeypatch):
  """Runs the kernel, which takes no argument for it, on a CPU.

  The interpreter of JAX 0.10.2 asks the numbers of an index for a shape, which
  only arrays have.
  """
  monkeypatch.setattr(literals.TypedInt, "shape", (), raising=False)
  monkeypatch.setattr(
    pl, "pallas_call", functools.partial(pl.pallas_call, interpret=True)
  )
  monkeypatch.setattr(mesh, "platform", lambda: "tpu")


def one_layer(config, steps, lengths=LENGTHS, dtype="float32"):
  """Attention of rows at the last step, by both forms; and the pages.

  Args:
    config: With the window of the layer as `sliding_window`.
    steps: For each token, its position in each row [B]; a row whose position
      is 0 again begins anew.
    lengths: Tokens of the prompts.
    dtype: Type of all arrays.
  """
  steps = np.asarray(steps)
  num_rows, num_slots = steps.shape[1], len(steps)
  group = num_rows // len(lengths)
  rng = np.random.default_rng(0)

  def normal(*shape):
    return rng.normal(size=shape).astype(dtype)

  lengths = np.array(lengths)
  mask = np.arange(S) >= S - lengths[:, None]
  k = 2 * normal(len(lengths), C, K, S)
  v = normal(len(lengths), C, S, K)
  of_tokens = [
    normal(num_slots, *shape)
    for shape in (
      (num_rows, 1, C, R, K),
      (num_rows, C, K, 1),
      (num_rows, C, 1, K),
    )
  ]

  @jax.jit
  def begin(mask, k, v):
    pages = paged.pages_of(config, mask, k, v)
    prefix = architecture.Prefix((pages,), mask)
    return pages, paged.allocate(num_rows, num_slots, prefix)

  pages, (cache,) = begin(mask, k, v)
  attend = jax.jit(
    functools.partial(paged.attend, config), static_argnums=(2, 3)
  )
  for t, q_k_v in zip(steps, zip(*of_tokens, strict=True), strict=True):
    got, cache = attend(
      lengths, t, pages.shape[1], config.sliding_window, *q_k_v, cache
    )
  # Slots of a row's prompt, and of the tokens that the last one sees: those
  # since the row began.
  q, own_k, own_v = of_tokens
  prompt = np.arange(num_rows) // group
  first = num_slots - 1 - steps[-1][:, None]
  exists = np.concatenate([mask[prompt], np.arange(num_slots) >= first], axis=1)
  age = exists[:, ::-1].cumsum(axis=1)[:, ::-1] - 1
  seen = exists & (age < (config.sliding_window or S + num_slots))
  expected = jax.jit(attention.plain, static_argnums=0)(
    config,
    q[-1],
    np.concatenate([k[prompt], np.moveaxis(own_k[..., 0], 0, -1)], axis=-1),
    np.concatenate([v[prompt], np.moveaxis(own_v[..., 0, :], 0, -2)], axis=-2),
    seen[:, None],
  )
  return got, expected, cache


@pytest.mark.slow
@pytest.mark.parametrize(
  ("window", "softcap", "scale"),
  [(7, 3.0, 0.4), (None, None, None), (66, None, None)],
)
def test_a_step_equals_the_plain_form(interpreted, window, softcap, scale):
  """With the rows of a group apart in time, and across a page's end."""
  config = dataclasses.replace(
    CONFIG,
    sliding_window=window,
    attention_softcap=softcap,
    attention_scale=scale,
  )
  steps = np.arange(30)[:, None] - np.array([0, 0, 0, 4, 0, 0])
  got, expected, cache = one_layer(config, steps)
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
  # Three pages of each prompt, once, and two of each row.
  assert cache.shape == (3, 3 + G * 2, paged.PAGE, 2 * C, 128)


def rollout(config, lanes):
  """16 completions of up to 40 tokens of four prompts."""
  policy = transformer.transformer_policy(config)
  # Sharp enough that no draw is near a tie.
  params = drawn.params(policy, spread=0.7)
  lengths = np.array([1, 33, 6, 32])
  tokens = np.random.default_rng(2).integers(0, 29, (4, 34), np.int32)
  mask = np.arange(34) >= 34 - lengths[:, None]
  prompts = Prompts(tokens, mask, np.arange(4, dtype=np.int32), {})
  sample = functools.partial(
    sampling.sample,
    policy,
    config=sampling.SamplerConfig(
      max_new_tokens=40, end_ids=(3,), pad_id=0, lanes=lanes, num_cache_sizes=2
    ),
    group_size=4,
  )
  return jax.jit(sample)(params, prompts, jax.random.key(3))


@pytest.mark.slow
def test_rollouts_equal_those_with_the_plain_form(interpreted, monkeypatch):
  """With refilled lanes, layers of which one slides, and caches that grow."""
  monkeypatch.setattr(sampling, "_SMALLEST", 10)
  config = dataclasses.replace(
    CONFIG,
    sliding_window=9,
    sliding_layers=(True, False),
    cache_dtype="bfloat16",
  )
  got = rollout(config, 8)
  expected = rollout(dataclasses.replace(config, decode_attention="plain"), 8)
  np.testing.assert_array_equal(got.tokens, expected.tokens)
  np.testing.assert_allclose(
    got.sampler_logp, expected.sampler_logp, rtol=1e-4, atol=1e-4
  )
  lengths = expected.completion_mask.sum(axis=1)
  assert lengths.min() < 10
  assert lengths.max() > 32


@pytest.mark.slow
def test_prompts_begin_their_pages():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(mesh, "platform", lambda: "tpu")
    mask = jnp.arange(S) >= S - np.array(LENGTHS)[:, None]
    k = jnp.broadcast_to(jnp.arange(S) + 1.0, (3, C, K, S))
    pages = paged.pages_of(CONFIG, mask, k, -jnp.swapaxes(k, -2, -1))
  tokens = pages.reshape(3, -1, C, 2, 128)
  for length, of_prompt in zip(LENGTHS, tokens, strict=True):
    slots = np.arange(S - length, S) + 1.0
    np.testing.assert_array_equal(of_prompt[:length, 1, 0, K - 1], slots)
    np.testing.assert_array_equal(of_prompt[:length, 0, 1, 0], -slots)
  assert not tokens[..., K:].any()


@pytest.mark.slow
def test_rows_begin_with_what_does_not_fill_a_page():
  mask = np.arange(S) >= S - np.array(LENGTHS)[:, None]
  rng = np.random.default_rng(0)
  pages = rng.normal(size=(3, 3, paged.PAGE, 2 * C, 128)).astype(np.float32)
  prefix = jax.device_put(architecture.Prefix((pages,), mask))
  allocate = jax.jit(paged.allocate, static_argnums=(0, 1))
  cache = np.asarray(allocate(3 * G, 0, prefix)[0])
  np.testing.assert_array_equal(cache[:, :3], pages)
  own = cache[:, 3:]  # One page of each row.
  assert own.shape[1] == G
  for prompt, (length, last) in enumerate(zip(LENGTHS, (0, 2, 2), strict=True)):
    rest = length % paged.PAGE
    for row in range(G):
      np.testing.assert_array_equal(
        own[prompt, row, :rest], pages[prompt, last, :rest]
      )
    assert not own[prompt, :, rest:].any()
  # What rows wrote stays when prompts are copied again.
  admit = jax.jit(paged.admit, static_argnums=2)
  again = np.asarray(admit(prefix, (cache + 1,), 3 * G)[0])
  np.testing.assert_array_equal(again[0, 3:, 5:], 1)
  np.testing.assert_array_equal(again[0, 3:, :5], own[0, :, :5])


@pytest.mark.parametrize(
  ("platform", "change", "message"),
  [
    ("cpu", {}, "needs a TPU, and not a cpu"),
    pytest.param(
      *("tpu", {"dtype": "float64"}, "and not 'float64'"),
      marks=pytest.mark.slow,
    ),
    ("tpu", {"cache_dtype": "int8"}, "and not 'int8'"),
    pytest.param(
      "tpu",
      {"num_heads": 6, "num_kv_heads": 3},
      "and not 6 .2 · num_kv_heads",
      marks=pytest.mark.slow,
    ),
  ],
)
def test_what_the_kernel_cannot_serve_raises(
  monkeypatch, platform, change, message
):
  monkeypatch.setattr(mesh, "platform", lambda: platform)
  config = dataclasses.replace(CONFIG, **change)
  policy = transformer.transformer_policy(config)
  shape = jax.ShapeDtypeStruct
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(
      policy.prefill,
      jax.eval_shape(policy.init, jax.random.key(0)),
      shape((2, 8), jnp.int32),
      shape((2, 8), bool),
    )


def test_an_unknown_form_raises():
  with pytest.raises(ValueError, match="decode_attention is 'pages'"):
    dataclasses.replace(CONFIG, decode_attention="pages")


@pytest.mark.slow
def test_pieces_are_read_as_by_the_plain_form(interpreted):
  """Rows at different places, across a page's end, and one that reads none."""
  lengths = np.array([1, 33, 6, 32])
  rng = np.random.default_rng(2)
  mask, prompts, tokens = jax.device_put(
    (
      np.arange(34) >= 34 - lengths[:, None],
      rng.integers(0, 29, (4, 34)),
      rng.integers(0, 29, (8, 12)),
    )
  )
  pieces = np.array([[3, 1, 0, 2, 3, 0, 1, 3], [2, 3, 0, 3, 0, 1, 1, 3]])

  @functools.partial(jax.jit, static_argnums=0)
  def read(config, params):
    policy = transformer.transformer_policy(config)
    _, prefix, _ = policy.prefill(params, prompts, mask)
    cache, found, t = policy.allocate(8, 12, prefix), [], jnp.zeros(8, int)
    for count in jnp.asarray(pieces):
      piece = jnp.take_along_axis(tokens, t[:, None] + jnp.arange(3), axis=1)
      h, cache, _ = policy.extend(
        policy.weights(params), piece, t, count, prefix, cache
      )
      found.append(policy.head(params, h))
      t += count
    return jnp.stack(found)

  config = dataclasses.replace(
    CONFIG, sliding_window=9, sliding_layers=(True, False)
  )
  params = drawn.params(transformer.transformer_policy(config))
  got = read(config, params)
  expected = read(dataclasses.replace(config, decode_attention="plain"), params)
  np.testing.assert_allclose(
    np.asarray(got)[pieces > 0],
    np.asarray(expected)[pieces > 0],
    rtol=1e-4,
    atol=1e-4,
  )
