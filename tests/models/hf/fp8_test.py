"""Matrices in eight bits: by a formula, and checkpoints with and without."""

import json
import pathlib

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import numpy as safetensors

from grpo_jax.models.hf import fp8, weights
from grpo_jax.models.hf import safetensors as safetensors_lib

SOURCE = pathlib.Path(__file__).parents[2] / "data/checkpoints/deepseek_v3"
# A matrix of the layer that predicts later tokens, which an export copies.
NOT_RUN = "model.layers.3.eh_proj.weight"
METHOD = {
  "activation_scheme": "dynamic",
  "fmt": "e4m3",
  "quant_method": "fp8",
  "weight_block_size": [128, 128],
}


def value(code: int) -> float:
  """(−1)^s · 2^(e − 7) · (1 + m / 8), or (−1)^s · 2^−6 · m / 8 if e is 0."""
  sign, exponent, fraction = code >> 7, code >> 3 & 15, code & 7
  size = (
    2.0 ** (exponent - 7) * (1 + fraction / 8)
    if exponent
    else 2.0**-6 * fraction / 8
  )
  return -size if sign else size


def reference(
  codes, scales
):  # [out, in], [⌈out / 128⌉, ⌈in / 128⌉] -> [out, in]
  """Every entry multiplied with the factor of its block."""
  values = np.array([value(code) for code in range(256)], np.float32)[codes]
  factors = scales.repeat(128, axis=0).repeat(128, axis=1)
  return values * factors[: len(codes), : codes.shape[1]]


def drawn(rng, out, inner):
  codes = rng.integers(256, size=(out, inner)).astype(np.uint8)
  codes[codes % 128 == 127] = 0  # These two are not numbers.
  blocks = -(-out // 128), -(-inner // 128)
  return codes, rng.uniform(1e-4, 2, blocks).astype(np.float32)


def written(folder, tensors):
  """Writes a file; arrays of bytes are matrices in eight bits."""
  dtypes = {np.uint8: "F8_E4M3", np.float32: "F32", np.float16: "F16"}
  outputs = [
    safetensors_lib.Output(
      name,
      dtypes[x.dtype.type],
      x.shape,
      x.nbytes,
      lambda x=x: np.ascontiguousarray(x).reshape(-1).view(np.uint8),
    )
    for name, x in tensors.items()
  ]
  safetensors_lib.write(folder, outputs, 10**9)
  return safetensors_lib.find(folder)


def a_slice(size):
  ends = st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True)
  return ends.map(lambda pair: slice(*sorted(pair)))


@pytest.mark.slow
@given(a_slice(300), a_slice(200), st.integers(0, 9))
def test_any_part_is_read_by_the_formula(tmp_path_factory, rows, columns, seed):
  codes, scales = drawn(np.random.default_rng(seed), 300, 200)
  folder = tmp_path_factory.mktemp("part")
  found = fp8.unpacked(written(folder, {"x": codes, "x_scale_inv": scales}))
  assert found.keys() == {"x"}
  assert found["x"].shape == (300, 200)
  part = found["x"].map()[rows, columns]
  np.testing.assert_array_equal(part, reference(codes, scales)[rows, columns])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """A checkpoint in eight bits, and the one that it stands for."""
  rng = np.random.default_rng(0)
  config = json.loads((SOURCE / "config.json").read_text())
  plain = dict(safetensors.load_file(SOURCE / "model.safetensors"))
  plain[NOT_RUN] = np.zeros((32, 64), np.float32)
  small = dict(plain)
  for name in plain:
    if name.endswith("_proj.weight"):
      codes, scales = drawn(rng, *plain[name].shape)
      small |= {name: codes, f"{name}_scale_inv": scales}
      plain[name] = reference(codes, scales)
  made = []
  for name, tensors, keys in (
    ("small", small, {"quantization_config": METHOD}),
    ("plain", plain, {}),
  ):
    folder = tmp_path_factory.mktemp(name)
    (folder / "config.json").write_text(json.dumps(config | keys))
    written(folder, tensors)
    made.append(folder)
  return made


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_is_the_one_that_it_stands_for(folders, dtype):
  (_, ours), (_, wanted) = (
    weights.load(folder, param_dtype=dtype) for folder in folders
  )
  jax.tree.map(np.testing.assert_array_equal, ours, wanted)


@pytest.mark.slow
def test_an_export_is_not_in_eight_bits_and_does_not_say_so(folders, tmp_path):
  config, params = weights.load(folders[0])
  weights.export(params, config, folders[0], tmp_path / "out")
  keys = json.loads((tmp_path / "out/config.json").read_text())
  assert "quantization_config" not in keys
  _, again = weights.load(tmp_path / "out")
  jax.tree.map(np.testing.assert_array_equal, again, params)
  found = safetensors_lib.find(tmp_path / "out")
  wanted = safetensors.load_file(folders[1] / "model.safetensors")
  assert found.keys() == wanted.keys()
  assert found[NOT_RUN].dtype == "BF16"
  copied = found[NOT_RUN].map().astype(np.float32)
  np.testing.assert_allclose(copied, wanted[NOT_RUN], rtol=2**-8)


X = np.zeros((130, 5), np.uint8)


@pytest.mark.parametrize(
  ("tensors", "message"),
  [
    ({"x": X}, "x in .* is F8_E4M3 and has no x_scale_inv beside it"),
    (
      {"x": X, "x_scale_inv": np.ones((1, 1), np.float32)},
      r"x in .* is \[130, 5\], and x_scale_inv F32 \[1, 1\]; FP8 "
      r"needs .*\[2, 1\]",
    ),
    (
      {"x": X, "x_scale_inv": np.ones((2, 1), np.uint8)},
      r"x_scale_inv F8_E4M3 \[2, 1\]; FP8 needs",
    ),
    (
      {"x": X[0], "x_scale_inv": np.ones(1, np.float32)},
      r"x in .* is \[5\].*; FP8 needs a matrix",
    ),
    (
      {"x": X + 127, "x_scale_inv": np.ones((2, 1), np.float32)},
      "x in .* has entries or factors that are not finite",
    ),
    (
      {"x": X, "x_scale_inv": np.full((2, 1), np.inf, np.float32)},
      "x in .* has entries or factors that are not finite",
    ),
  ],
)
def test_wrong_tensors_are_refused(tmp_path, tensors, message):
  with pytest.raises(ValueError, match=message):
    fp8.unpacked(written(tmp_path, tensors))["x"][:, :]
