"""Compressed windows of DeepSeek-V4, against loops over tokens; and limits."""

import dataclasses
import pathlib
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from safetensors import numpy as safetensors

from grpo_jax.models import deepseek4, transformer
from grpo_jax.models.hf import peft, weights
from grpo_jax.training.phases import optimizers
from grpo_jax.training.runtime import sharding
from tests.models import parity_test, stacks_test

CONFIG = stacks_test.DEEPSEEK4
PUBLISHED = (
  ("model.embed_tokens", "embed"),
  ("model.hc_head.hc_", "hc_head_"),
  ("attn.norm.", "attn.kv_norm."),
  ("model.", ""),
)


def softmax(x):
  weights = np.exp(x - x.max(axis=0))
  return weights / weights.sum(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("overlaps", [False, True])
def test_windows_are_those_of_loops(overlaps):
  rng = np.random.default_rng(0)
  width, size, length = 3, 4, 11
  c, z = rng.normal(size=(2, 2, length, width * (1 + overlaps)))
  bias = rng.normal(size=(size, width * (1 + overlaps)))
  with jax.enable_x64(True):
    found = deepseek4.in_windows(*map(jnp.asarray, (c, z, bias)), width)
  assert found.shape == (2, 2, width)
  for row in range(2):
    for window in range(2):
      own = slice(window * size, (window + 1) * size)
      values, scores = c[row, own, -width:], z[row, own] + bias
      scores = scores[:, -width:]
      if overlaps and window:
        last = slice((window - 1) * size, window * size)
        before = z[row, last, :width] + bias[:, :width]
        values = np.concatenate([c[row, last, :width], values])
        scores = np.concatenate([before, scores])
      expected = (softmax(scores) * values).sum(axis=0)
      np.testing.assert_allclose(found[row, window], expected, rtol=1e-12)


def test_a_turn_back_undoes_a_turn_of_the_last_channels():
  x = np.random.default_rng(0).normal(size=(2, 6)).astype(np.float32)
  angles = np.float32([[0.5, 2.0], [1.0, 3.0]])
  rope = np.cos(angles), np.sin(angles)
  found = deepseek4.turned(x, rope)
  np.testing.assert_array_equal(found[:, :2], x[:, :2])
  # Channels 2 and 3 are a pair, and 4 and 5.
  pair = x[0, 4] + 1j * x[0, 5]
  turned = pair * np.exp(2j)
  np.testing.assert_allclose(
    found[0, 4:], [turned.real, turned.imag], rtol=1e-5
  )
  back = deepseek4.turned(found, rope, back=True)
  np.testing.assert_allclose(back, x, atol=1e-6)


def test_tokens_are_ordered_whatever_slots_they_are_in():
  # Two tokens behind padding, and a ring of three whose second slot is empty.
  mask = np.array([[False, True, True, True, False, True]])
  of_key = np.array([[0, 0, 1, 3, 4, 2]])
  visible, of_query = mask[:, None], np.array([[3]])
  found = deepseek4.places(CONFIG, mask, visible, of_query, of_key)
  np.testing.assert_array_equal(found.order[0, :4], [1, 2, 5, 3])
  # The window has two tokens.
  np.testing.assert_array_equal(np.flatnonzero(found.near), [3, 5])


@pytest.mark.slow
def test_every_parameter_has_a_place_and_mixtures_do_not_decay():
  policy = transformer.transformer_policy(CONFIG)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  mesh = AbstractMesh((2, 2, 1, 1), sharding.AXES)
  sharding.of_params(mesh, params)  # Raises for a parameter without a rule.
  decays = optimizers.decay_mask(params["trained"])
  assert not any(jax.tree.leaves(decays["stream_head"]))
  layer = decays["sparse_layers"]
  assert not any(jax.tree.leaves(layer["attention"]["indexer"]))
  assert not any(jax.tree.leaves(layer["mlp_streams"]))
  assert layer["attention"]["out_down"]
  assert layer["attention"]["compressor"]["gates"]["kernel"]


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"cache_dtype": "int8"}, "cache_dtype is 'int8', and DeepSeek-V4 needs"),
    ({"decode_attention": "paged"}, "decode_attention is 'paged'"),
    ({"split_positions": True}, "split_positions is True"),
    ({"router_bias": False}, "router_bias is False, and DeepSeek-V4 needs"),
    (
      {"num_experts": 0, "shared_width": 0, "router_bias": False},
      "num_experts",
    ),
    ({"sliding_window": None}, "sliding_window is None"),
    ({"sliding_layers": ()}, r"sliding_layers is \(\)"),
    ({"deepseek4": {"kinds": ("sliding",)}}, "for each of 4 layers"),
    ({"deepseek4": {"num_hash_layers": 5}}, "num_hash_layers is 5 of"),
    ({"deepseek4": {"num_groups": 5}}, "into num_groups 5"),
    ({"deepseek4": {"sinkhorn_steps": 0}}, "sinkhorn_steps is 0"),
  ],
)
def test_what_the_layers_lack_is_told(fields, message):
  if "deepseek4" in fields:
    part = dataclasses.replace(CONFIG.deepseek4, **fields["deepseek4"])
    fields = {"deepseek4": part}
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **fields)


@pytest.mark.slow
def test_mixed_tokens_and_files_of_adapters_are_refused():
  policy = transformer.transformer_policy(CONFIG)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  tokens, mask = np.zeros((1, 2), int), np.ones((1, 2), bool)
  mix = {"mix_ids": tokens[..., None], "mix_weights": mask[..., None]}
  with pytest.raises(ValueError, match="nothing can be mixed"):
    jax.eval_shape(
      policy.hidden, params, tokens, mask, tokens, mask, np.zeros(1, int), mix
    )
  with pytest.raises(ValueError, match="Gemma 4 and DeepSeek-V4 are neither"):
    peft.check(CONFIG)


# --- Checkpoints ---


def _copy(folder: pathlib.Path, change) -> pathlib.Path:
  """A checkpoint in `folder` whose tensors are changed by a function."""
  source = parity_test.CHECKPOINTS / "deepseek_v4"
  folder.mkdir()
  shutil.copy(source / "config.json", folder)
  tensors = safetensors.load_file(source / "model.safetensors")
  safetensors.save_file(change(tensors), folder / "model.safetensors")
  return folder


def _published(tensors):
  found = {}
  for name, tensor in tensors.items():
    for old, new in PUBLISHED:
      name = name.replace(old, new)
    found[name] = tensor
  return found


@pytest.mark.slow
def test_names_of_published_files_are_read_and_written(tmp_path):
  folder = _copy(tmp_path / "published", _published)
  config, found = weights.load(folder)
  wanted = weights.load(parity_test.CHECKPOINTS / "deepseek_v4")[1]
  jax.tree.map(np.testing.assert_array_equal, found, wanted)
  weights.export(found, config, folder, tmp_path / "out")
  names = safetensors.load_file(tmp_path / "out" / "model.safetensors").keys()
  assert {"embed.weight", "norm.weight", "hc_head_fn"} < names
  assert names == _published(dict.fromkeys(names, 0)).keys()


@pytest.mark.slow
def test_matrices_in_eight_bits_have_powers_of_two_as_factors(tmp_path):
  name = "model.layers.2.attn.wkv.weight"
  codes, factor = None, ml_dtypes.float8_e8m0fnu(0.25)

  def change(tensors):
    nonlocal codes
    codes = tensors[name].astype(ml_dtypes.float8_e4m3fn)
    scale = name.removesuffix("weight") + "scale"
    return tensors | {name: codes, scale: np.full((1, 1), factor)}

  _, params = weights.load(_copy(tmp_path / "fp8", change))
  found = params["trained"]["heavy_layers"]["attention"]["kv_down"]["kernel"]
  np.testing.assert_array_equal(found[0].T, codes.astype(np.float32) / 4)


@pytest.mark.slow
def test_a_table_of_other_experts_is_refused(tmp_path):
  def change(tensors):
    name = "model.layers.1.ffn.gate.tid2eid"
    return tensors | {name: tensors[name] + 1}

  with pytest.raises(ValueError, match=r"entries 0 to 5, .* describes 5 expe"):
    weights.load(_copy(tmp_path / "other", change))
