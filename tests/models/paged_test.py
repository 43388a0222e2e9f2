"""Decode steps over pages equal those with the plain form."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import literals
from jax.experimental import pallas as pl

from grpo_jax.models import architecture, attention, meshes, paged, transformer
from grpo_jax.rollout import sampling
from grpo_jax.types import Prompts

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
  monkeypatch.setattr(meshes, "platform", lambda: "tpu")


def one_layer(config, steps, lengths=LENGTHS, dtype="float32"):
  """What rows attend to at the last step, by both forms; and the pages.

  Args:
    config: With the window of the layer as `sliding_window`.
    steps: For each token, its position in each row [B]; a row whose position
      is 0 again begins anew.
    lengths: Tokens of the prompts.
    dtype: Of all of it.
  """
  steps = np.asarray(steps)
  num_rows, num_slots = steps.shape[1], len(steps)
  group = num_rows // len(lengths)
  normal = functools.partial(jax.random.normal, dtype=dtype)
  keys = iter(jax.random.split(jax.random.key(0), 5))
  mask = jnp.arange(S) >= S - np.array(lengths)[:, None]
  k = 2 * normal(next(keys), (len(lengths), C, K, S))
  v = normal(next(keys), (len(lengths), C, S, K))
  of_tokens = [
    normal(next(keys), (num_slots, *shape))
    for shape in (
      (num_rows, 1, C, R, K),
      (num_rows, C, K, 1),
      (num_rows, C, 1, K),
    )
  ]
  prefix = architecture.Prefix((paged.held(config, mask, k, v),), mask)
  (cache,) = paged.allocate(num_rows, num_slots, prefix)
  attend = jax.jit(
    functools.partial(paged.attend, config), static_argnums=(2, 3)
  )
  for t, q_k_v in zip(steps, zip(*of_tokens, strict=True), strict=True):
    got, cache = attend(
      mask.sum(axis=1),
      jnp.asarray(t),
      prefix.layers[0].shape[1],
      config.sliding_window,
      *q_k_v,
      cache,
    )
  expected = []
  for row in range(num_rows):
    prompt = row // group
    # The tokens that the last one sees: those since the row began.
    first = len(steps) - 1 - steps[-1, row]
    own_k, own_v = (x[first:, row] for x in of_tokens[1:])
    length = lengths[prompt]
    keys_seen = jnp.concatenate(
      [k[prompt, ..., S - length :], jnp.moveaxis(own_k[..., 0], 0, -1)], -1
    )
    values = jnp.concatenate(
      [v[prompt, :, S - length :], jnp.moveaxis(own_v[:, :, 0], 0, 1)], 1
    )
    age = jnp.arange(keys_seen.shape[-1])[::-1]
    seen = age < (config.sliding_window or len(age))
    expected.append(
      attention.plain(
        config,
        of_tokens[0][-1, row : row + 1],
        keys_seen[None],
        values[None],
        seen[None, None],
      )[0]
    )
  return got, jnp.stack(expected), cache


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
  params = jax.tree.map(lambda x: 4 * x, policy.init(jax.random.key(1)))
  lengths = np.array([1, 33, 6, 32])
  prompts = Prompts(
    tokens=jax.random.randint(jax.random.key(2), (4, 34), 0, 29),
    mask=jnp.arange(34) >= 34 - lengths[:, None],
    ids=jnp.arange(4),
    extras={},
  )
  sample = functools.partial(
    sampling.sample,
    policy,
    config=sampling.SamplingConfig(
      max_new_tokens=40, end_ids=(3,), pad_id=0, lanes=lanes
    ),
    group_size=4,
  )
  return jax.jit(sample)(params, prompts, jax.random.key(3))


@pytest.mark.slow
def test_rollouts_equal_those_with_the_plain_form(interpreted, monkeypatch):
  """With refilled lanes, layers of which one slides, and caches that grow."""
  monkeypatch.setattr(sampling, "_SMALLEST", 5)
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


def test_prompts_begin_their_pages():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(meshes, "platform", lambda: "tpu")
    mask = jnp.arange(S) >= S - np.array(LENGTHS)[:, None]
    k = jnp.broadcast_to(jnp.arange(S) + 1.0, (3, C, K, S))
    pages = paged.held(CONFIG, mask, k, -jnp.swapaxes(k, -2, -1))
  tokens = pages.reshape(3, -1, C, 2, 128)
  for length, of_prompt in zip(LENGTHS, tokens, strict=True):
    slots = np.arange(S - length, S) + 1.0
    np.testing.assert_array_equal(of_prompt[:length, 1, 0, K - 1], slots)
    np.testing.assert_array_equal(of_prompt[:length, 0, 1, 0], -slots)
  assert not tokens[..., K:].any()


@pytest.mark.slow
def test_rows_begin_with_what_does_not_fill_a_page():
  mask = jnp.arange(S) >= S - np.array(LENGTHS)[:, None]
  pages = jax.random.normal(jax.random.key(0), (3, 3, paged.PAGE, 2 * C, 128))
  prefix = architecture.Prefix((pages,), mask)
  (cache,) = paged.allocate(3 * G, 0, prefix)
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
  (again,) = paged.admit(prefix, (cache + 1,), 3 * G)
  np.testing.assert_array_equal(again[0, 3:, 5:], 1)
  np.testing.assert_array_equal(again[0, 3:, :5], own[0, :, :5])


@pytest.mark.parametrize(
  ("platform", "change", "message"),
  [
    ("cpu", {}, "needs a TPU, and not a cpu"),
    ("tpu", {"dtype": "float64"}, "and not 'float64'"),
    ("tpu", {"cache_dtype": "int8"}, "and not 'int8'"),
    (
      "tpu",
      {"num_heads": 6, "num_kv_heads": 3},
      "and not 6 .2 · num_kv_heads",
    ),
  ],
)
def test_what_the_kernel_cannot_serve_raises(
  monkeypatch, platform, change, message
):
  monkeypatch.setattr(meshes, "platform", lambda: platform)
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
  mask = jnp.arange(34) >= 34 - lengths[:, None]
  prompts = jax.random.randint(jax.random.key(2), (4, 34), 0, 29)
  tokens = jax.random.randint(jax.random.key(3), (8, 12), 0, 29)
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
  params = transformer.transformer_policy(config).init(jax.random.key(1))
  got = read(config, params)
  expected = read(dataclasses.replace(config, decode_attention="plain"), params)
  np.testing.assert_allclose(
    np.asarray(got)[pieces > 0],
    np.asarray(expected)[pieces > 0],
    rtol=1e-4,
    atol=1e-4,
  )
