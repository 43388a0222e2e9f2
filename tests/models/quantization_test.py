"""Codes and scales: errors, bytes, and what a policy makes of them."""

import dataclasses
import functools
import re

import jax
import ml_dtypes
import numpy as np
import pytest

from grpo_jax.models import architecture, quantization, transformer
from grpo_jax.models.policies import lora
from tests.models import transformer_test
from tests.models.policies import lora_test

SMALL = architecture.TransformerConfig(
  vocab_size=13,
  width=64,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  mlp_width=128,
)
EXPERTS = dataclasses.replace(SMALL, num_experts=3, expert_width=32)
ALL = ("qkv", "out", "gate", "up", "down")
# Largest error as a share of the largest weight of a channel or block: half of
# a step of 1 / 127, and half of the widest gap of NF4, between -1 and -0.696.
BOUND = {"int8": 0.5 / 127, "nf4": 0.5 * 0.3038072}


# Each operation outside a program would be a program of its own.
_quantize = jax.jit(quantization.quantize, static_argnums=(1, 2))
_dequantize = jax.jit(quantization.dequantize)


@functools.lru_cache
def make_base(config):
  return jax.jit(transformer.transformer_policy(config).init)(jax.random.key(0))


def num_bytes(tree):
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def by_path(tree):
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): x
    for path, x in jax.tree_util.tree_leaves_with_path(tree)
  }


def largest(name, kind, kernel):
  """Largest weight of each channel or block, in the shape of the kernel."""
  size = abs(np.asarray(kernel))
  if kind == "int8":
    axes = (-4, -3, -2) if name == "out" else (-4 if name == "qkv" else -2,)
    return np.broadcast_to(size.max(axis=axes, keepdims=True), size.shape)
  block = next(n for n in range(64, 0, -1) if size.shape[-1] % n == 0)
  blocks = size.reshape(*size.shape[:-1], -1, block).max(axis=-1)
  return np.repeat(blocks, block, axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("config", [SMALL, EXPERTS])
@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_errors_are_at_most_half_a_step(kind, config):
  base = jax.device_get(make_base(config)["trained"])
  restored = by_path(jax.device_get(_dequantize(_quantize(base, kind))))
  changed = set()
  for path, kernel in by_path(base).items():
    if (restored[path] == kernel).all():
      continue
    name = path.removesuffix("/kernel").split("/")[-1]
    changed.add(name)
    error = abs(restored[path] - kernel) / largest(name, kind, kernel)
    assert 0.8 * BOUND[kind] < error.max() <= BOUND[kind] * 1.0001, path
  assert changed == {*ALL}  # And not embeddings, norms, a router.


def test_four_bit_codes_are_the_nearest_and_hit_their_own_values():
  values = quantization._NF4
  rng = np.random.default_rng(0)
  kernel = rng.normal(size=(1, 2, 3, 64)).astype(np.float32)
  kernel[0, 0, 0] = np.tile(values, 4) * 0.3
  kernel[0, 1, 2] = 0.0
  layers = {"mlp": {"up": {"kernel": kernel}}}
  made = _quantize({"layers": layers}, "nf4", ("up",))
  restored = np.asarray(_dequantize(made)["layers"]["mlp"]["up"]["kernel"])
  np.testing.assert_array_equal(restored[0, 0, 0], kernel[0, 0, 0])
  np.testing.assert_array_equal(restored[0, 1, 2], 0.0)
  for row, got in zip(
    kernel.reshape(-1, 64), restored.reshape(-1, 64), strict=True
  ):
    scale = abs(row).max()
    nearest = [min(values, key=lambda v, x=x: abs(v * scale - x)) for x in row]
    np.testing.assert_allclose(got, np.array(nearest) * scale, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "bits"), [("int8", 8), ("nf4", 4)])
def test_bytes_are_those_of_the_codes_and_scales(kind, bits):
  base = make_base(SMALL)["trained"]
  quantized = _quantize(base, kind)
  kernels = [
    base["layers"][part][name]["kernel"]
    for part, name in (
      ("attention", "qkv"),
      ("attention", "out"),
      ("mlp", "gate"),
      ("mlp", "up"),
      ("mlp", "down"),
    )
  ]
  count = sum(x.size for x in kernels)
  saved = num_bytes(base) - num_bytes(quantized)
  scales = num_bytes(base) - saved - (num_bytes(base) - 4 * count)
  scales -= count * bits // 8
  if kind == "int8":  # One per output channel: 128 + 64, 2 · 128 and 64.
    assert scales == 2 * 4 * (128 + 64 + 2 * 128 + 64)
  else:  # One per 64 weights, or the 16 of a head in queries, keys and values.
    qkv = kernels[0].size
    assert scales == 4 * (qkv // 16 + (count - qkv) // 64)


def test_what_is_left_out_stays_as_it_is():
  base = make_base(SMALL)["trained"]
  assert quantization.quantize(base, "none") is base
  quantized = quantization.quantize(base, "int8", ("down",))
  mlp = quantized["layers"]["mlp"]
  assert {*mlp["down"]["kernel"]} == {"int8", "scale"}
  assert mlp["up"]["kernel"] is base["layers"]["mlp"]["up"]["kernel"]
  assert quantized["embed"] is base["embed"]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "kind"), [(SMALL, "int8"), (SMALL, "nf4"), (EXPERTS, "int8")]
)
def test_a_policy_over_codes_is_one_over_what_they_stand_for(config, kind):
  lora_config = lora.LoRAConfig(
    rank=2, modules=("query", "out"), quantization=kind
  )
  params = lora.wrap(make_base(config), lora_config, jax.random.key(0))
  params["trained"] = jax.tree.map(lambda x: x + 0.1, params["trained"])
  base = params["frozen"]["base"]
  floats = {**params, "frozen": {"base": _dequantize(base)}}
  batch = transformer_test.make_batch()

  @functools.partial(jax.jit, static_argnums=0)
  def logits_and_gradient(policy, params):
    def loss(trained):
      logits = transformer_test.teacher_forced(
        policy, {**params, "trained": trained}, batch
      )
      return (logits**2).mean(), logits

    return jax.grad(loss, has_aux=True)(params["trained"])

  policy = lora_test.policy_of(config, lora_config)
  plain = lora_test.policy_of(
    config, dataclasses.replace(lora_config, quantization="none")
  )
  gradient, logits = logits_and_gradient(policy, params)
  expected = logits_and_gradient(plain, floats)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5),
    (gradient, logits),
    expected,
  )
  assert min(abs(x).max() for x in jax.tree.leaves(gradient)) > 1e-6
  if config == SMALL:
    transformer_test.assert_same_logits(
      transformer_test.step_by_step(policy, params, batch), logits, 1e-5
    )


@pytest.mark.slow
def test_log_probs_move_by_little():
  # Without its blocks, the log-probs of this model move by 1.8 nats.
  base, batch = make_base(SMALL), transformer_test.make_batch()
  gaps = {}
  for kind in ("none", "int8", "nf4"):
    config = lora.LoRAConfig(rank=1, quantization=kind)
    params = lora.wrap(base, config, jax.random.key(0))
    logits = transformer_test.teacher_forced(
      lora_test.policy_of(SMALL, config), params, batch
    )
    logp = transformer_test.existing(jax.nn.log_softmax(logits))
    if kind == "none":
      exact = logp
    gaps[kind] = abs(logp - exact).mean()
  # Measured: 0.0070 and 0.105 nats.
  assert gaps["none"] == 0
  assert 0 < gaps["int8"] < 0.015
  assert gaps["int8"] < gaps["nf4"] < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_the_decode_loop_carries_codes_and_no_kernels(kind):
  lora_config = lora.LoRAConfig(rank=1, quantization=kind)
  policy = lora_test.policy_of(SMALL, lora_config)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  compiled = transformer_test.step_by_step.lower(
    policy, params, transformer_test.make_batch()
  ).compile()
  prefill, decode = (
    line.split(" while(")[0]
    for line in compiled.as_text().splitlines()
    if " while(" in line
  )
  # The kernel "down" [128, 64] of 2 layers, or of one, in floats.
  codes = {"int8": ("s8", "128,64]"), "nf4": ("u8", "128,32]")}[kind]
  for loop, axes in (prefill, "[2,"), (decode, "["):
    assert axes.join(codes) in loop
    assert "f32[128,64]" not in loop
    assert "f32[2,128,64]" not in loop


@pytest.mark.parametrize(
  ("kind", "modules", "message"),
  [
    ("int4", ALL, "'int4' is not known; use one of none, int8, nf4"),
    ("int8", ("up", "query"), "no kernel of query .* known are qkv, out"),
    ("nf4", ("up",), r"up is \[1, 4, 3\].* use int8"),
  ],
)
def test_bad_requests_raise(kind, modules, message):
  params = {"layers": {"mlp": {"up": {"kernel": np.ones((1, 4, 3))}}}}
  with pytest.raises(ValueError, match=message):
    quantization.quantize(params, kind, modules)


# ---- Kernels that a sampler rounds anew.

EIGHT_BITS = architecture.SAMPLED_DTYPES[1:]
# Axes of inputs of a stack of kernels.
STACKED = {"qkv": 1, "out": (1, 2, 3), "gate": 1, "up": 1, "down": 1}


def by_hand(kind, layers):
  """NumPy's rounding of the kernels of a stack, without codes or scales."""

  def convert(path, leaf):
    names = [key.key for key in path]
    axes = STACKED.get(names[-2] if names[-1] == "kernel" else names[-1])
    if axes is None:
      return leaf
    leaf = np.asarray(leaf, np.float32)
    if "experts" in names:
      axes = 2
    most = {"int8": 127, "float8_e4m3fn": 448}[kind]
    unit = np.abs(leaf).max(axis=axes, keepdims=True) / np.float32(most)
    if kind == "int8":
      return np.rint(leaf / unit) * unit
    codes = (leaf / unit).astype(ml_dtypes.float8_e4m3fn)
    return codes.astype(np.float32) * unit

  return jax.tree_util.tree_map_with_path(convert, layers)


def rounded_by_hand(kind, params):
  """Parameters of a transformer, or of adapters over one, so rounded."""
  has_adapters = "base" in params["frozen"]
  trained = params["frozen"]["base"] if has_adapters else params["trained"]
  trained = {**trained, "layers": by_hand(kind, trained["layers"])}
  if has_adapters:
    return {**params, "frozen": {**params["frozen"], "base": trained}}
  return {**params, "trained": trained}


@pytest.mark.slow
@pytest.mark.parametrize("kind", EIGHT_BITS)
@pytest.mark.parametrize("with_adapters", [False, True])
def test_a_rounding_policy_reads_what_numpy_rounds(kind, with_adapters):
  config = transformer_test.PLAIN  # Few weights: none is near a tie.
  policy = transformer.transformer_policy(config)
  params = transformer_test.make_params(config)
  if with_adapters:
    params = lora_test.make_params(config)
    policy = lora_test.policy_of(config)
  batch = transformer_test.make_batch()
  rounding = quantization.rounding(policy, kind)
  logits = transformer_test.step_by_step(rounding, params, batch)
  expected = transformer_test.step_by_step(
    policy, rounded_by_hand(kind, params), batch
  )
  whole = transformer_test.teacher_forced(rounding, params, batch)
  exact = transformer_test.step_by_step(policy, params, batch)
  existing = transformer_test.existing
  transformer_test.assert_same_logits(logits, expected, 1e-5)
  transformer_test.assert_same_logits(whole, expected, 1e-5)
  assert abs(existing(logits) - existing(exact)).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_a_rounding_policy_reads_rounded_experts(kind):
  policy, params = transformer.transformer_policy(EXPERTS), make_base(EXPERTS)
  batch = transformer_test.make_batch()
  logits = transformer_test.step_by_step(
    quantization.rounding(policy, kind), params, batch
  )
  expected = transformer_test.step_by_step(
    policy, rounded_by_hand(kind, params), batch
  )
  transformer_test.assert_same_logits(logits, expected, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EIGHT_BITS)
def test_the_decode_loop_of_a_rounding_policy_reads_codes(kind):
  """And they are made before it, not in each step."""
  policy = quantization.rounding(transformer.transformer_policy(SMALL), kind)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  text = (
    transformer_test.step_by_step.lower(
      policy, params, transformer_test.make_batch()
    )
    .compile()
    .as_text()
  )
  _, decode = (
    line.split(" while(")[0] for line in text.splitlines() if " while(" in line
  )
  codes = {"int8": "s8", "float8_e4m3fn": "f8e4m3fn"}[kind]
  kernels = ("64,2,4,16]", "2,2,16,64]", "64,128]", "128,64]")
  for shape in kernels:
    assert f"{codes}[{shape}" in decode
    assert f"f32[{shape}" not in decode
    assert f"f16[{shape}" not in decode
  made = re.findall(r'op_name="(\S*/rounding/\S*)"', text)
  assert made
  assert not any("while" in name for name in made)


def test_no_rounding_is_the_policy_itself():
  policy = transformer.transformer_policy(SMALL)
  assert quantization.rounding(policy, "model") is policy
  with pytest.raises(ValueError, match="'nf4' is not known; use one of model"):
    quantization.rounding(policy, "nf4")


def test_a_channel_of_zeros_stays_one():
  for encode in (quantization.to_int8, quantization.to_float8):
    made = jax.jit(encode, static_argnums=1)(np.zeros((3, 2)), (-2,))
    assert not np.asarray(_dequantize({"x": made})["x"]).any()
