"""Checksums see every bit and no device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.training.runtime import checkpoints


def of(x) -> str:
  return checkpoints.of_leaves({"x": x})["x"]


def arrays():
  rng = np.random.default_rng(0)
  for name in ("float32", "bfloat16", "int8", "uint32", "bool", "float8_e4m3"):
    dtype = jnp.dtype(getattr(jnp, name + "fn" * name.startswith("float8")))
    for shape in ((), (7,), (3, 0), (3, 4, 5)):
      yield (rng.normal(size=shape) * 100).astype(dtype)
  yield np.arange(6, dtype=np.float64).reshape(2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("x", arrays(), ids=lambda x: f"{x.dtype}{x.shape}")
def test_devices_and_numpy_agree(x):
  with jax.enable_x64(True):
    on_devices = [int(part) for part in checkpoints._on_devices(x)]
  assert of(x) == "".join(f"{part:08x}" for part in on_devices)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sums_do_not_depend_on_blocks(monkeypatch, dtype, more):
  size = checkpoints._BLOCK + more
  x = np.arange(size).astype(jnp.dtype(dtype))
  found = of(x)
  assert found != of(np.append(x, x[-1:]))
  monkeypatch.setattr(checkpoints, "_TINY", 2 * checkpoints._BLOCK + 2)
  assert found == of(x)


def test_both_sums_are_one_reduction():
  # Two take six times as long on a CPU.
  x = jnp.zeros((8, 4))
  text = checkpoints._on_devices.lower(x).as_text()
  assert text.count("stablehlo.reduce(") == 1


def test_a_known_sum():
  # fmix32 of MurmurHash3 at two places; the sum of one element is its hash.
  def mix(x: int) -> int:
    x = (x ^ (x >> 16)) * 0x85EBCA6B % 2**32
    x = (x ^ (x >> 13)) * 0xC2B2AE35 % 2**32
    return x ^ (x >> 16)

  assert mix(1) == 0x514E28B7  # The known value of MurmurHash3.
  words, salts = (5, 9), checkpoints._SALTS
  expected = [
    sum(mix(w ^ mix((i + s) % 2**32)) for i, w in enumerate(words)) % 2**32
    for s in salts
  ]
  assert of(np.array(words, np.uint32)) == "".join(f"{e:08x}" for e in expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_every_flipped_bit_is_seen(dtype):
  x = np.zeros((4, 3), jnp.dtype(dtype))
  found = {of(x)}
  for byte in range(x.nbytes):
    for bit in range(8):
      data = bytearray(x.tobytes())
      data[byte] ^= 1 << bit
      found.add(of(np.frombuffer(bytes(data), x.dtype).reshape(x.shape)))
  assert len(found) == 1 + 8 * x.nbytes


def test_changes_do_not_cancel():
  x = np.arange(64, dtype=np.float32).reshape(8, 8) + 1
  signs = x.copy()
  signs[0, 1:3] *= -1  # Two flips of the highest bit.
  rows = x[::-1]
  swapped = x.copy()
  swapped[2, [3, 5]] = swapped[2, [5, 3]]
  found = [of(y) for y in (x, signs, rows, swapped, x.T, x.ravel()[:-1], -x)]
  assert len(set(found)) == len(found)
