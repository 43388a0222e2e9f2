"""Experts in four bits: against a table, and checkpoints with and without."""

import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding
from safetensors import numpy as safetensors

from grpo_jax.models.hf import mxfp4, weights
from grpo_jax.models.hf import safetensors as safetensors_lib

SOURCE = pathlib.Path(__file__).parents[2] / "data/checkpoints/gpt_oss"
EXPERTS = "model.layers.{}.mlp.experts.{}_proj"
SIZES = {"gate_up": (128, 32), "down": (32, 64)}  # out, in


def value(code: int) -> float:
  """Value of four bits: (−1)^s · 2^(e − 1) · (1 + m / 2), or (−1)^s · m / 2."""
  sign, exponent, fraction = code >> 3, code >> 1 & 3, code & 1
  size = (
    2.0 ** (exponent - 1) * (1 + fraction / 2) if exponent else fraction / 2
  )
  return -size if sign else size


def reference(blocks, scales):  # [E, out, G, 16], [E, out, G] -> [E, in, out]
  """Value by value."""
  experts, outer, groups, _ = blocks.shape
  out = np.zeros((experts, groups * 32, outer), np.float32)
  for e, o, g, b in itertools.product(*map(range, blocks.shape)):
    byte = int(blocks[e, o, g, b])
    for half, code in enumerate((byte % 16, byte // 16)):
      factor = 2.0 ** (int(scales[e, o, g]) - 127)
      out[e, g * 32 + 2 * b + half, o] = value(code) * factor
  return out


def drawn(rng, out, inner, low=120, high=130):
  shape = (4, out, inner // 32)
  blocks = rng.integers(256, size=(*shape, 16), dtype=np.uint8)
  return blocks, rng.integers(low, high, size=shape, dtype=np.uint8)


def written(folder, tensors):
  safetensors.save_file(tensors, folder / "model.safetensors")
  return safetensors_lib.find(folder)


def test_every_byte_and_every_scale_is_read_by_the_table(tmp_path):
  blocks = np.arange(256, dtype=np.uint8).reshape(1, 8, 2, 16)
  blocks = np.tile(blocks, (2, 8, 1, 1))  # [2, 64, 2, 16]
  scales = np.resize(np.arange(253, dtype=np.uint8), (2, 64, 2))
  found = written(tmp_path, {"x_blocks": blocks, "x_scales": scales})
  x = mxfp4.unpacked(found)["x"]
  wanted = reference(blocks, scales)
  assert x.shape == wanted.shape == (2, 64, 64)
  whole = x.map()[:, :, :]
  assert whole.dtype == jnp.bfloat16
  same = whole.astype(np.float32)
  np.testing.assert_array_equal(same.view(np.uint32), wanted.view(np.uint32))
  # A part, as a device has it: some inputs, and every second output.
  part = (slice(1, 2), slice(5, 40), slice(3, 60, 2))
  np.testing.assert_array_equal(x[part].astype(np.float32), wanted[part])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """A checkpoint with packed experts, and the same without."""
  rng = np.random.default_rng(0)
  config = json.loads((SOURCE / "config.json").read_text())
  config["intermediate_size"] = 64
  plain = dict(safetensors.load_file(SOURCE / "model.safetensors"))
  small = dict(plain)
  for layer, (name, (out, inner)) in itertools.product(range(2), SIZES.items()):
    whole = EXPERTS.format(layer, name)
    del small[whole]
    blocks, scales = drawn(rng, out, inner)
    small |= {f"{whole}_blocks": blocks, f"{whole}_scales": scales}
    plain[whole] = reference(blocks, scales)
    bias = rng.normal(size=(4, out)).astype(np.float32)
    small[f"{whole}_bias"] = plain[f"{whole}_bias"] = bias
  made = []
  method = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
  for name, tensors, keys in (
    ("packed", small, {"quantization_config": method}),
    ("plain", plain, {}),
  ):
    folder = tmp_path_factory.mktemp(name)
    (folder / "config.json").write_text(json.dumps(config | keys))
    written(folder, tensors)
    made.append(folder)
  return made


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_packed_checkpoint_is_the_one_that_it_stands_for(folders, dtype):
  device = SingleDeviceSharding(jax.devices()[0])
  (config, ours), (_, wanted) = (
    weights.load(folder, param_dtype=dtype, shardings=device)
    for folder in folders
  )
  assert config.expert_width == 64
  jax.tree.map(np.testing.assert_array_equal, ours, wanted)
  kernel = ours["trained"]["layers"]["mlp"]["experts"]["gate"]
  assert kernel.dtype == dtype
  assert len(np.unique(np.asarray(kernel, np.float32))) > 15


@pytest.mark.slow
def test_an_export_is_not_packed_and_does_not_say_so(folders, tmp_path):
  config, params = weights.load(folders[0])
  weights.export(params, config, folders[0], tmp_path / "out")
  keys = json.loads((tmp_path / "out/config.json").read_text())
  assert "quantization_config" not in keys
  _, again = weights.load(tmp_path / "out")
  jax.tree.map(np.testing.assert_array_equal, again, params)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"x_scales": None}, "x_blocks in .* has no x_scales beside it"),
    (
      {"x_scales": np.zeros((1, 2, 3), np.uint8)},
      r"x_scales U8 \[1, 2, 3\]; needs bytes",
    ),
    ({"x_scales": np.zeros((1, 2, 1), np.int8)}, r"x_scales I8 \[1, 2, 1\]"),
    (
      {"x_scales": np.full((1, 2, 1), 255, np.uint8)},
      r"x_scales in .* has a scale of 255 \(expert 0\), which is not a number",
    ),
  ],
)
def test_what_is_no_packed_tensor_is_refused(tmp_path, change, message):
  tensors = {
    "x_blocks": np.zeros((1, 2, 1, 16), np.uint8),
    "x_scales": np.zeros((1, 2, 1), np.uint8),
  } | change
  found = written(tmp_path, {k: x for k, x in tensors.items() if x is not None})
  with pytest.raises(ValueError, match=message):
    mxfp4.unpacked(found)["x"][:, :, :]
