"""The kernels of attention against the plain form, and where each is taken."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from experiments.parity import outputs
from grpo_jax.models import architecture, attention, transformer
from tests.experiments import command
from tests.models import parity_test

C, R, K = 2, 2, 16
CONFIG = architecture.TransformerConfig(
  vocab_size=7,
  width=64,
  num_layers=2,
  num_heads=C * R,
  num_kv_heads=C,
  head_dim=K,
)
# Slots of the first token and after the last one, of each row.
LEFT = ((0, 40), (23, 40), (39, 40))
BOTH = ((3, 31), (20, 21), (0, 0))  # The last row is empty.
LONG = ((140, 300), (0, 290))  # The first block of the first row is empty.
# The splash kernel is interpreted. JAX's own form stands in the place of
# cuDNN's, so that what surrounds it is tested.
KERNELS = {
  "splash": functools.partial(attention.splash, interpret=True),
  "cudnn": functools.partial(attention.cudnn, implementation="xla"),
}


@functools.cache
def make_inputs(spans, dtype):
  """(mask [B, L], q, k, v) with L of the last slot of all rows."""
  first, end = np.array(spans).T[:, :, None]
  slots = np.arange(300 if spans is LONG else 40)
  shapes = (
    (len(spans), len(slots), C, R, K),
    (len(spans), C, K, len(slots)),
    (len(spans), C, len(slots), K),
  )
  rng = np.random.default_rng(0)
  q_k_v = (2 * rng.normal(size=shape).astype(dtype) for shape in shapes)
  return jax.device_put(((first <= slots) & (slots < end), *q_k_v))


def make_plain(config, window, mask):
  """`attention.plain` for a layer with this window."""
  config = dataclasses.replace(config, sliding_window=window, attention="plain")

  def attend(*q_k_v):
    positions = jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    form = attention.over_sequences(config, mask, positions)
    return form(jnp.array(True))(*q_k_v)

  return attend


def value_and_grads(attend, mask, *q_k_v):
  """(attended on tokens, 3 gradients of a function of it), all finite."""

  def loss(*q_k_v):
    attended = attend(*q_k_v)
    tokens = jnp.where(mask[:, :, None, None, None], attended, 0)
    wave = jnp.sin(jnp.arange(tokens.size)).reshape(tokens.shape)
    return (tokens.astype(jnp.float32) * wave).sum(), (attended, tokens)

  (_, (attended, tokens)), grads = jax.device_get(
    jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*q_k_v)
  )
  assert np.isfinite(attended.astype(np.float32)).all()  # Also on padding.
  return tokens, *grads


slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kernel", "spans", "window", "softcap", "scale"),
  [
    ("splash", LONG, None, 3.0, None),
    ("splash", BOTH, 5, None, 0.4),
    ("splash", LEFT, None, None, None),
    ("splash", LONG, 150, None, None),
    ("splash", LONG, 20, 3.0, 0.4),
    ("splash", BOTH, 128, 3.0, None),
    ("cudnn", LEFT, None, None, None),
    ("cudnn", LONG, 20, None, None),
    ("cudnn", BOTH, 5, None, 0.4),
  ],
)
def test_kernels_equal_the_plain_form(kernel, spans, window, softcap, scale):
  config = dataclasses.replace(
    CONFIG, attention_softcap=softcap, attention_scale=scale
  )
  mask, *q_k_v = make_inputs(spans, "float32")
  attend = functools.partial(KERNELS[kernel], config, window, mask)
  actual = value_and_grads(attend, mask, *q_k_v)
  expected = value_and_grads(make_plain(config, window, mask), mask, *q_k_v)
  for a, e in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, e, rtol=1e-4, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_round_in_bfloat16_as_the_plain_form_does(kernel):
  mask, *q_k_v = make_inputs(LEFT, "bfloat16")
  attend = functools.partial(KERNELS[kernel], CONFIG, 5, mask)
  plain = make_plain(CONFIG, 5, mask)
  wide = (np.asarray(x).astype(np.float32) for x in q_k_v)
  for actual, rounded, exact in zip(
    value_and_grads(attend, mask, *q_k_v),
    value_and_grads(plain, mask, *q_k_v),
    value_and_grads(plain, mask, *wide),
    strict=True,
  ):
    assert actual.dtype == rounded.dtype == jnp.bfloat16
    actual, rounded = actual.astype(np.float32), rounded.astype(np.float32)
    largest = abs(rounded - exact).max()
    assert 0 < abs(actual - exact).max() < 2 * largest
    assert largest < 0.01 * abs(exact).max()


# Soft-capped scores, a scale, one of two layers sliding, padding on the left.
@pytest.mark.slow
def test_gemma_2_with_splash_gives_the_logits_of_transformers():
  config, params = parity_test.load("gemma2")
  found = outputs.compare(
    dataclasses.replace(config, attention="splash"),
    params,
    parity_test.reference("gemma2"),
  )
  assert 0 < found.largest <= parity_test.TOLERANCE
  assert found.num_agreeing == found.num_positions


def loss(config, params, tokens):  # tokens [4, 12]
  """A function of the hidden states of left-padded prompts, completed."""
  policy = transformer.transformer_policy(config)
  prompt_mask = jnp.arange(8) >= jnp.array([[0], [5]])
  mask = jnp.arange(12) < jnp.array([[12], [1], [7], [3]])
  index = jnp.array([0, 0, 1, 1])
  h, _ = policy.hidden(
    params, tokens[:2, :8], prompt_mask, tokens, mask, index, None
  )
  return jnp.where(mask[..., None], h, 0).astype(jnp.float32).std()


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["dots", "full"])
def test_gradients_of_a_model_are_those_with_the_plain_form(remat):
  config, params = parity_test.load("gemma2")
  tokens = np.random.default_rng(2).integers(0, 96, (4, 12))
  config = dataclasses.replace(config, remat=remat)
  wanted, grads = (
    jax.jit(jax.grad(functools.partial(loss, config)))(params, tokens)
    for config in (config, dataclasses.replace(config, attention="splash"))
  )
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5),
    grads,
    wanted,
  )


def made_for(platform, num_devices=1):
  """Within it programs are made for this platform, which may be absent."""
  mesh = AbstractMesh(
    (num_devices,),
    ("data",),
    axis_types=(AxisType.Auto,),
    abstract_device=AbstractDevice("any", None, platform),
  )
  return jax.sharding.use_abstract_mesh(mesh)


def lowered_gradient(config, platform):
  """The text of the gradient of `loss` for a platform, not optimised."""
  shapes = jax.eval_shape(
    transformer.transformer_policy(config).init, jax.random.key(0)
  )
  tokens = jax.ShapeDtypeStruct((4, 12), jnp.int32)
  gradient = jax.jit(jax.grad(functools.partial(loss, config)))
  traced = gradient.trace(shapes, tokens)
  return traced.lower(lowering_platforms=(platform,)).as_text()


HALF_SLIDES = dataclasses.replace(
  CONFIG, sliding_window=5, sliding_layers=(True, False), dtype="bfloat16"
)


def kernel_calls(text):
  """(kernel, rows) of each call for a TPU."""
  return re.findall(
    r'@tpu_custom_call\(.*kernel_name = "splash_mha_(\w+?)_segmented.*'
    r": \(.*?tensor<(\d)x4x128x16x",
    text,
  )


# With 4 rows on 3 devices each computes all.
@pytest.mark.slow
@pytest.mark.parametrize(("num_devices", "rows"), [(2, "2"), (3, "4")])
def test_a_gradient_for_tpus_calls_the_splash_kernels(num_devices, rows):
  with made_for("tpu", num_devices):
    text = lowered_gradient(HALF_SLIDES, "tpu")
  assert sorted(kernel_calls(text)) == [
    (name, rows) for name in ("dkv", "dq", "fwd") for _ in ("near", "far")
  ]


@pytest.mark.slow
def test_recomputed_blocks_call_the_kernels_again():
  with made_for("tpu"):
    text = lowered_gradient(
      dataclasses.replace(HALF_SLIDES, remat="full"), "tpu"
    )
  names = [name for name, _ in kernel_calls(text)]
  assert {name: names.count(name) for name in names} == {
    "fwd": 4,
    "dq": 2,
    "dkv": 2,
  }


class CudnnVersions:
  """In the place of a module of JAX's CUDA plugin: a number, and no library.

  JAX asks for it before it lowers.
  """

  @staticmethod
  def cudnn_get_version():
    return 91000


@pytest.mark.slow
def test_a_gradient_for_gpus_calls_cudnns_kernels_on_a_devices_rows(
  monkeypatch,
):
  monkeypatch.setattr(
    "jax._src.cudnn.fused_attention_stablehlo.cuda_versions", CudnnVersions
  )
  with made_for("gpu", 2):
    text = lowered_gradient(HALF_SLIDES, "cuda")
  calls = re.findall(
    r"@__cudnn\$(\w+)\(.*mask_type\\22: \\22(\w+).*"
    r"sliding_window_length\\22: (\d+).*: \(tensor<(\d+x\d+)x",
    text,
  )
  # 19 slots, in 20.
  assert sorted(calls) == [
    (name, "PADDING_CAUSAL", window, "2x20")
    for name in ("fmhaSoftmax", "fmhaSoftmaxBackward")
    for window in ("0", "5")
  ]


@pytest.mark.parametrize(
  ("platform", "change", "expected"),
  [
    ("cpu", {}, "plain"),
    ("cpu", {"attention": "splash"}, "splash"),
    ("tpu", {}, "splash"),
    ("tpu", {"attention": "plain"}, "plain"),
    ("tpu", {"attention_softcap": 5.0}, "splash"),
    ("tpu", {"dtype": "float64"}, "plain"),
    ("gpu", {"dtype": "bfloat16"}, "cudnn"),
    ("gpu", {}, "plain"),
    ("gpu", {"dtype": "bfloat16", "attention_softcap": 5.0}, "plain"),
    ("gpu", {"dtype": "bfloat16", "head_dim": 12}, "plain"),
    ("gpu", {"dtype": "bfloat16", "head_dim": 256}, "plain"),
  ],
)
def test_the_form_is_that_of_the_platform_where_it_can_serve(
  platform, change, expected
):
  with made_for(platform):
    assert attention.form(dataclasses.replace(CONFIG, **change)) == expected


@pytest.mark.parametrize(
  ("platform", "change", "message"),
  [
    ("gpu", {"attention": "splash"}, "'splash', which needs a TPU .* a gpu"),
    ("tpu", {"attention": "splash", "dtype": "float64"}, "not 'float64'"),
    ("cpu", {"attention": "cudnn"}, "'cudnn', which needs an NVIDIA GPU"),
    ("gpu", {"attention": "cudnn"}, "dtype 'bfloat16', and not 'float32'"),
    (
      "gpu",
      {"attention": "cudnn", "dtype": "bfloat16", "attention_softcap": 5.0},
      "no attention_softcap, which is 5.0",
    ),
    (
      "gpu",
      {"attention": "cudnn", "dtype": "bfloat16", "head_dim": 136},
      "at most 128 wide, and not 136",
    ),
  ],
)
def test_a_kernel_that_cannot_serve_raises(platform, change, message):
  with made_for(platform), pytest.raises(ValueError, match=message):
    attention.form(dataclasses.replace(CONFIG, **change))


def test_an_unknown_form_raises():
  with pytest.raises(ValueError, match="attention is 'flash'; use one of auto"):
    dataclasses.replace(CONFIG, attention="flash")


@pytest.mark.slow
def test_the_benchmark_runs():
  status, out, err = command.run(
    "benchmarks.attention", "--rows=1", "--tokens=8", "--measure"
  )
  assert status == 0, err
  lines = out.splitlines()
  assert max(map(len, lines)) <= 80
  form, *numbers = lines[-1].split()
  assert form == "plain"
  assert len(numbers) == 5
  assert all(float(x.replace(",", "")) > 0 for x in numbers)


@pytest.mark.slow
def test_the_benchmark_cannot_measure_absent_tpus():
  status, out, err = command.run(
    "benchmarks.attention", "--topology=v5e:2x2", "--measure"
  )
  assert (status, out) == (2, "")
  assert err.startswith("error: --measure with --topology=v5e:2x2:")


# ---- Caches.


def make_cache(num_before=3, num_own=4):
  """(q, prefix, own, mask) of 6 rows that share 2 prefixes."""
  shapes = (
    (6, 1, C, R, K),
    (2, C, K, num_before),
    (2, C, num_before, K),
    (6, C, K, num_own),
    (6, C, num_own, K),
  )
  rng = np.random.default_rng(0)
  # Of very different sizes: with one scale for all some would round to 0.
  q, *k_v = (
    rng.normal(size=shape) * np.exp(3 * rng.normal(size=shape[-2:]))
    for shape in shapes
  )
  mask = rng.random((6, 1, num_before + num_own)) < 0.7
  mask[:, :, 0] = True
  return q, tuple(k_v[:2]), tuple(k_v[2:]), mask


@pytest.mark.slow
def test_codes_in_a_cache_mean_the_numbers_that_they_stand_for():
  """Against `plain` on a copy of the cache in floats, for each row."""
  with jax.enable_x64(True):
    config = dataclasses.replace(
      CONFIG, dtype="float64", cache_dtype="int8", attention_softcap=5.0
    )
    q, *caches, mask = make_cache()

    @jax.jit
    def attend(q, caches, mask):
      held = [attention.cache_of(config, *k_v) for k_v in caches]
      return held, attention.cached(config, q, *held, mask)

    held, attended = jax.device_get(attend(q, caches, mask))
    for floats, codes, axis in zip(
      [*caches[0], *caches[1]], [*held[0], *held[1]], [-2, -1] * 2, strict=True
    ):
      assert codes["int8"].dtype == jnp.int8
      scale = np.abs(floats).max(axis, keepdims=True) / 127
      np.testing.assert_allclose(codes["scale"], scale, rtol=1e-6)
      error = np.abs(codes["int8"] - floats / scale)
      assert 0.4 < error.max() < 0.5001
    prefix, own = (
      [part["int8"] * np.asarray(part["scale"], np.float64) for part in pair]
      for pair in held
    )
    k, v = (
      np.concatenate([np.repeat(shared, 3, axis=0), x], axis=axis)
      for shared, x, axis in zip(prefix, own, (-1, -2), strict=True)
    )
    plain = jax.jit(attention.plain, static_argnums=0)
    expected = plain(config, q, k, v, mask)
    np.testing.assert_allclose(attended, expected, rtol=0, atol=1e-10)


def test_no_code_is_multiplied_by_its_scale():
  """Sizes of arrays: 6 rows of 4 slots, whose codes are the largest by far."""
  config = dataclasses.replace(CONFIG, cache_dtype="int8")
  q, *caches, mask = jax.eval_shape(make_cache)
  held = [
    jax.eval_shape(functools.partial(attention.cache_of, config), *k_v)
    for k_v in caches
  ]
  program = jax.make_jaxpr(functools.partial(attention.cached, config))(
    q, *held, mask
  )
  products = [e for e in program.eqns if e.primitive.name == "mul"]
  codes = min(x["int8"].size for pair in held for x in pair)
  assert len(products) == 5  # Scales of 2 keys and 2 values, 1 of attention.
  assert all(e.outvars[0].aval.size < codes for e in products)


def test_unknown_caches_raise():
  with pytest.raises(ValueError, match="cache_dtype is 'int4'; use one of mod"):
    dataclasses.replace(CONFIG, cache_dtype="int4")
