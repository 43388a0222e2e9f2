"""Adapters: an exact start, what is trained, merging, and PEFT's files."""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors

from grpo_jax.models import transformer
from grpo_jax.models.hf import peft
from grpo_jax.models.policies import lora
from tests.models import transformer_test
from tests.training import tiny

ALL = ("query", "key", "value", "out", "gate", "up", "down")
CONFIG = lora.LoRAConfig(rank=2, alpha=3.0)
SOME = lora.LoRAConfig(rank=3, alpha=6.0, modules=("down", "value", "out"))
RICH = transformer_test.RICH
teacher_forced = transformer_test.teacher_forced
step_by_step = transformer_test.step_by_step


def policy_of(config, lora_config=CONFIG):
  return lora.lora_policy(transformer.transformer_policy(config), lora_config)


# Each operation outside a program would be a program of its own.
merge = jax.jit(lora.merge, static_argnums=1)
wrap = jax.jit(lora.wrap, static_argnums=1)


@functools.lru_cache
def make_params(config, lora_config=CONFIG, spread=0.3):
  """Adapters over a base in which every weight matters, moved by `spread`."""
  params = wrap(
    transformer_test.make_params(config), lora_config, jax.random.key(2)
  )
  rng = np.random.default_rng(3)
  trained = jax.tree.map(
    lambda x: (x + spread * rng.normal(size=x.shape)).astype(x.dtype),
    jax.device_get(params["trained"]),
  )
  return {**params, "trained": jax.device_put(trained)}


def assert_same(tree, other):
  jax.tree.map(np.testing.assert_array_equal, tree, other)


def assert_merged_is_the_same(config, adapters, atol=1e-9):
  """Adapters over a base give the logits of one that they are merged into."""
  params, batch = make_params(config, adapters), transformer_test.make_batch()
  without = jax.tree.map(np.zeros_like, params["trained"])
  merged, base = (
    teacher_forced(config, merge({**params, "trained": x}, adapters), batch)
    for x in (params["trained"], without)
  )
  for run in (teacher_forced, step_by_step):
    found = run(policy_of(config, adapters), params, batch)
    transformer_test.assert_same_logits(found, merged, atol)
  gap = transformer_test.existing(merged) - transformer_test.existing(base)
  assert abs(gap).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [CONFIG, SOME])
def test_merged_and_unmerged_give_the_same_logits(adapters):
  with jax.enable_x64(True):
    assert_merged_is_the_same(transformer_test.float64(RICH), adapters)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("config", "run"),
  [
    (RICH, teacher_forced),
    (RICH, step_by_step),
    (transformer_test.PLAIN, teacher_forced),
    (dataclasses.replace(RICH, cache_dtype="int8"), step_by_step),
  ],
)
def test_fresh_adapters_change_no_bit(config, run):
  plain = transformer.transformer_policy(config)
  base, batch = (
    transformer_test.make_params(config),
    transformer_test.make_batch(),
  )
  params = lora.wrap(base, CONFIG, jax.random.key(0))
  np.testing.assert_array_equal(
    run(policy_of(config), params, batch), run(plain, base, batch)
  )


@pytest.mark.slow
def test_wrapping_shares_the_arrays_of_the_base():
  base = transformer_test.make_params(RICH)
  params = lora.wrap(base, CONFIG, jax.random.key(0))
  frozen = jax.tree.leaves(params["frozen"]["base"])
  kept = jax.tree.leaves(base["trained"])
  assert all(x is y for x, y in zip(frozen, kept, strict=True))
  params = make_params(RICH)
  off = jax.tree.map(np.zeros_like, params["trained"])
  reference = {**params, "trained": off}
  assert_same(
    teacher_forced(policy_of(RICH), reference, transformer_test.make_batch()),
    transformer_test.teacher_forced(RICH, base, transformer_test.make_batch()),
  )


@pytest.mark.slow
def test_adapters_are_drawn_as_peft_draws_them():
  config = dataclasses.replace(transformer_test.PLAIN, width=64, mlp_width=100)
  policy = policy_of(config, dataclasses.replace(CONFIG, rank=32))
  trained = jax.jit(policy.init)(jax.random.key(0))["trained"]
  assert {*trained} == {*ALL}
  for name, inputs in (("query", 64), ("out", 64), ("down", 100)):
    a = trained[name]["a"] * inputs**0.5  # Uniform in [-1, 1].
    assert 0.99 < abs(a).max() <= 1
    assert abs(a).mean() == pytest.approx(0.5, abs=0.03)
    assert not trained[name]["b"].any()
  assert abs(trained["gate"]["a"] - trained["up"]["a"]).max() > 0.1


@pytest.mark.slow
def test_merging_returns_what_was_wrapped():
  base = transformer_test.make_params(RICH)
  base = {**base, "frozen": {"router_bias": np.ones(3, np.float32)}}
  merged = merge(lora.wrap(base, SOME, jax.random.key(0)), SOME)
  assert_same(merged, base)


def test_merging_adds_the_scaled_product():
  base = transformer_test.make_params(RICH)["trained"]
  params = make_params(RICH, SOME)
  a, b = (np.asarray(params["trained"]["down"][which]) for which in "ab")
  merged = merge(params, SOME)["trained"]
  before, after = (
    np.asarray(tree["layers"]["mlp"]["down"]["kernel"])
    for tree in (base, merged)
  )
  np.testing.assert_allclose(after, before + 6 / 3 * a @ b, 1e-5, 1e-6)


@pytest.mark.slow
def test_bfloat16_bases_have_float32_adapters():
  config = dataclasses.replace(RICH, dtype="bfloat16", param_dtype="bfloat16")
  params = make_params(config)
  assert {x.dtype.name for x in jax.tree.leaves(params["trained"])} == {
    "float32"
  }
  merged = jax.tree.leaves(merge(params, CONFIG))
  assert {x.dtype.name for x in merged} == {"bfloat16"}
  policy, batch = policy_of(config), transformer_test.make_batch()
  logits = teacher_forced(policy, params, batch)
  wide = jax.tree.map(lambda x: x.astype(jnp.float32), params)
  exact = teacher_forced(policy_of(RICH), wide, batch)
  error = abs(transformer_test.existing(logits - exact)).max()
  assert 0 < error < 0.05 * abs(exact).max()


@pytest.mark.slow
def test_only_the_adapters_are_trained():
  config = dataclasses.replace(
    transformer_test.PLAIN, vocab_size=tiny.VOCAB, num_layers=1
  )
  policy = policy_of(config)
  phase = tiny.make_phase(
    "grpo", policy=policy, fields={"kl_coef": 0.01}, learning_rate=0.05
  )
  state = tiny.make_state(phase)
  before = jax.tree.map(np.array, state.params["policy"])
  trained = jax.tree.structure(before["trained"])
  moments = [
    x
    for x in jax.tree.leaves(
      state.models["policy"].opt_state,
      is_leaf=lambda x: jax.tree.structure(x) == trained,
    )
    if jax.tree.structure(x) == trained
  ]
  assert len(moments) == 2  # Adam's, and none for the base.
  count = sum(x.size for x in jax.tree.leaves(before["trained"]))
  stored = sum(
    x.size for x in jax.tree.leaves(state.models["policy"].opt_state)
  )
  assert 2 * count <= stored < 2 * count + 10  # Beside counters.

  advance = tiny.fused(phase, donate_argnums=0)
  rewards = []
  for i in range(20):
    state, metrics, _ = advance(state, tiny.make_prompts(first=4 * i))
    rewards.append(metrics["reward/mean"])
  after = state.params["policy"]
  assert_same(after["frozen"], before["frozen"])
  for name, adapter in after["trained"].items():
    for which, x in adapter.items():
      assert abs(x - before["trained"][name][which]).max() > 0, (name, which)
  assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.2


def saved(tmp_path, lora_config=SOME):
  params = make_params(RICH, lora_config)
  peft.save(tmp_path / "adapter", params, lora_config, "some/base")
  return params, tmp_path / "adapter"


def change_settings(directory, **fields):
  path = directory / "adapter_config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_files_have_the_names_and_shapes_of_peft(tmp_path):
  # What PEFT 0.21 writes for such a model: width 8, 4 query heads of width 6,
  # 1 key/value head, MLP width 12.
  _, directory = saved(tmp_path)
  tensors = safetensors.load_file(directory / "adapter_model.safetensors")
  shapes = {
    "self_attn.v_proj.lora_A": (3, 8),
    "self_attn.v_proj.lora_B": (6, 3),
    "self_attn.o_proj.lora_A": (3, 24),
    "self_attn.o_proj.lora_B": (8, 3),
    "mlp.down_proj.lora_A": (3, 12),
    "mlp.down_proj.lora_B": (8, 3),
  }
  assert {name: x.shape for name, x in tensors.items()} == {
    f"base_model.model.model.layers.{layer}.{name}.weight": shape
    for layer in (0, 1)
    for name, shape in shapes.items()
  }
  settings = json.loads((directory / "adapter_config.json").read_text())
  assert settings["base_model_name_or_path"] == "some/base"
  assert (settings["r"], settings["lora_alpha"]) == (3, 6.0)
  assert {*settings["target_modules"]} == {"down_proj", "v_proj", "o_proj"}


@pytest.mark.slow
def test_the_files_mean_what_peft_makes_of_them(tmp_path):
  # PEFT: W + α / r · B A, on W [outputs, inputs] of each projection alone.
  config = dataclasses.replace(RICH, num_kv_heads=2)
  params = make_params(config)
  peft.save(tmp_path, params, CONFIG)
  tensors = safetensors.load_file(tmp_path / "adapter_model.safetensors")

  def projections(params):
    layers = jax.tree.map(np.asarray, params["trained"]["layers"])
    qkv = layers["attention"]["qkv"]["kernel"]  # [layers, D, C, R + 2, K]
    kernels = {
      "self_attn.q_proj": qkv[..., :2, :].reshape(2, 8, -1),
      "self_attn.k_proj": qkv[..., 2, :].reshape(2, 8, -1),
      "self_attn.v_proj": qkv[..., 3, :].reshape(2, 8, -1),
      "self_attn.o_proj": layers["attention"]["out"]["kernel"].reshape(
        2, -1, 8
      ),
    }
    for name in ("gate", "up", "down"):
      kernels[f"mlp.{name}_proj"] = layers["mlp"][name]["kernel"]
    return {name: np.moveaxis(x, 1, 2) for name, x in kernels.items()}

  merged = projections(merge(params, CONFIG))
  for name, base in projections(transformer_test.make_params(config)).items():
    for layer in range(2):
      prefix = f"base_model.model.model.layers.{layer}.{name}"
      a = tensors[f"{prefix}.lora_A.weight"]
      b = tensors[f"{prefix}.lora_B.weight"]
      expected = base[layer] + 3.0 / 2 * b @ a
      np.testing.assert_allclose(merged[name][layer], expected, atol=1e-6)
      assert abs(expected - base[layer]).max() > 0.01


def test_files_are_read_back_bit_by_bit(tmp_path, monkeypatch):
  """Without the package of their format, in any dtype that it has floats of."""
  monkeypatch.setitem(sys.modules, "safetensors", None)
  params, directory = saved(tmp_path)
  fresh = make_params(RICH, SOME, spread=0.1)
  assert_same(peft.load(directory, fresh, SOME), params)
  path = directory / "adapter_model.safetensors"
  tensors = safetensors.load_file(path)
  for dtype in (np.float16, jnp.bfloat16):
    narrow = {name: x.astype(dtype) for name, x in tensors.items()}
    safetensors.save_file(narrow, path)
    expected = jax.tree.map(
      lambda x, to=dtype: np.asarray(x).astype(to).astype(np.float32),
      params["trained"],
    )
    assert_same(peft.load(directory, fresh, SOME)["trained"], expected)
  whole = {name: x.astype(np.int8) for name, x in tensors.items()}
  safetensors.save_file(whole, path)
  with pytest.raises(ValueError, match=r"is I8; supported are F64, F32"):
    peft.load(directory, fresh, SOME)


@pytest.mark.slow
def test_an_mlp_without_a_gate_has_the_names_of_nanochat(tmp_path):
  config = dataclasses.replace(transformer_test.PLAIN, gate=False, norm="plain")
  some = dataclasses.replace(SOME, modules=("query", "up", "down"))
  params = make_params(config, some)
  peft.save(tmp_path, params, some)
  tensors = safetensors.load_file(tmp_path / "adapter_model.safetensors")
  names = ("self_attn.q_proj", "mlp.fc1", "mlp.fc2")
  assert {name.removesuffix(".lora_A.weight") for name in tensors} >= {
    f"base_model.model.model.layers.{layer}.{name}"
    for layer in (0, 1)
    for name in names
  }
  assert {*peft.config_of(tmp_path).modules} == {*some.modules}
  fresh = make_params(config, some, spread=0.1)
  assert_same(peft.load(tmp_path, fresh, some), params)


def test_within_a_model_with_images_modules_have_longer_names(tmp_path):
  # As in transformers 5.24, where modules of the tower have the same ends.
  params = make_params(RICH, SOME)
  peft.save(tmp_path, params, SOME, nested=True)
  modules = {
    f"model.language_model.layers.{layer}.{name}"
    for layer in (0, 1)
    for name in ("self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj")
  }
  settings = json.loads((tmp_path / "adapter_config.json").read_text())
  assert {*settings["target_modules"]} == modules
  tensors = safetensors.load_file(tmp_path / "adapter_model.safetensors")
  assert tensors.keys() == {
    f"base_model.model.{module}.lora_{name}.weight"
    for module in modules
    for name in "AB"
  }
  assert {*peft.config_of(tmp_path).modules} == {*SOME.modules}
  fresh = make_params(RICH, SOME, spread=0.1)
  assert_same(peft.load(tmp_path, fresh, SOME, nested=True), params)
  with pytest.raises(ValueError, match=r"24 tensors .* do not fit"):
    peft.load(tmp_path, fresh, SOME)


def test_files_are_not_replaced(tmp_path):
  params, directory = saved(tmp_path)
  with pytest.raises(ValueError, match=r"adapter_model.safetensors exists"):
    peft.save(directory, params, SOME)


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"r": 8}, "r is 8, needs 3"),
    ({"lora_alpha": 16}, "lora_alpha is 16, needs 6.0"),
    ({"use_rslora": True}, "use_rslora is True, needs False"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
  ],
)
def test_adapters_that_mean_something_else_raise(tmp_path, fields, message):
  params, directory = saved(tmp_path)
  change_settings(directory, **fields)
  with pytest.raises(ValueError, match=message):
    peft.load(directory, params, SOME)


@pytest.mark.slow
def test_adapters_of_another_model_raise(tmp_path):
  _, directory = saved(tmp_path)
  other = dataclasses.replace(SOME, modules=("down", "value", "query"))
  with pytest.raises(ValueError, match=r"8 tensors .*o_proj.* absent here"):
    peft.load(directory, make_params(RICH, other), other)
  other_base = make_params(transformer_test.PLAIN, SOME)
  with pytest.raises(ValueError, match=r"\(3, 24\) in the file and \(3, 8\)"):
    peft.load(directory, other_base, SOME)
  path = directory / "adapter_model.safetensors"
  path.write_bytes(path.read_bytes()[:-8])
  with pytest.raises(ValueError, match=r"safetensors is damaged .*truncated"):
    peft.load(directory, make_params(RICH, SOME), SOME)
  path.unlink()
  with pytest.raises(FileNotFoundError, match=r"adapter_model.safetensors is"):
    peft.load(directory, make_params(RICH, SOME), SOME)


def test_a_config_is_read_back(tmp_path):
  _, directory = saved(tmp_path)
  found = peft.config_of(directory, "nf4")
  assert {*found.modules} == {*SOME.modules}
  expected = dataclasses.replace(
    SOME, modules=found.modules, quantization="nf4"
  )
  assert found == expected
  # In an order that does not depend on the file.
  change_settings(directory, target_modules=["o_proj", "down_proj", "v_proj"])
  assert peft.config_of(directory, "nf4") == found
  change_settings(directory, target_modules="all-linear")
  assert peft.config_of(directory).modules == ()


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"r": 10**20}, r"adapter_config\.json: lora: rank is 1000"),
    ({"r": 0}, r"rank is 0"),
    ({"r": True}, r"has r True and lora_alpha 6\.0"),
    ({"r": 3.0}, r"has r 3\.0"),
    ({"r": None}, r"has r None"),
    ({"lora_alpha": float("nan")}, r"alpha is nan"),
    ({"lora_alpha": 10**400}, r"alpha is 1000"),
    ({"lora_alpha": "6"}, r"lora_alpha '6'"),
    ({"target_modules": None}, r"target_modules None; needs 'all-linear'"),
    ({"target_modules": ".*proj"}, r"target_modules '\.\*proj'"),
    ({"target_modules": ["lm_head"]}, r"target_modules \['lm_head'\]"),
    ({"target_modules": [5]}, r"target_modules \[5\]"),
    ({"alora_invocation_tokens": [1, 2]}, r"alora_invocation_tokens is \[1"),
    ({"peft_type": "IA3"}, r"peft_type is 'IA3'"),
  ],
)
def test_a_config_that_says_something_else_raises(tmp_path, fields, message):
  _, directory = saved(tmp_path)
  change_settings(directory, **fields)
  with pytest.raises(ValueError, match=message):
    peft.config_of(directory)


@pytest.mark.parametrize("text", ["{", "[]", "5", "[" * 99_999, "\xff"])
def test_a_config_that_is_no_object_raises(tmp_path, text):
  params, directory = saved(tmp_path)
  (directory / "adapter_config.json").write_text(text, encoding="latin-1")
  for read in (
    lambda: peft.config_of(directory),
    lambda: peft.load(directory, params, SOME),
  ):
    with pytest.raises(ValueError, match=r"adapter_config\.json (is no|holds)"):
      read()


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"rank": 0}, "rank is 0"),
    ({"alpha": 0.0}, "alpha is 0.0"),
    ({"modules": ("qkv", "up")}, "known are query, key, value"),
    ({"modules": ("up", "up")}, "each once"),
    ({"quantization": "int4"}, "'int4'; use one of none, int8, nf4"),
  ],
)
def test_impossible_configs_raise(fields, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **fields)


@pytest.mark.slow
def test_wrapping_twice_raises():
  with pytest.raises(ValueError, match="adapters already"):
    lora.wrap(make_params(RICH), CONFIG, jax.random.key(0))


def test_experts_have_no_adapters():
  config = dataclasses.replace(RICH, num_experts=3, expert_width=4)
  params = jax.eval_shape(policy_of(config).init, jax.random.key(0))
  assert {*params["trained"]} == {"query", "key", "value", "out"}
  policy = policy_of(config, SOME)
  with pytest.raises(ValueError, match="has down, which the layers do"):
    jax.eval_shape(policy.init, jax.random.key(0))
