"""YaRN's wavelengths against loops over the equations of the paper."""

import math

import numpy as np
import pytest

from grpo_jax.models import architecture, rope


def reference(base, factor, original, width, slow, fast, truncate):
  """Peng et al., "YaRN", arXiv 2309.00071, equations 17 to 23, by pairs.

  The bounds are pairs of channels, as in the authors' code, which rounds them
  outwards.
  """

  def pair(turns):
    # The p with base^(-2 p / width) · original = 2 π turns.
    return width / 2 * math.log(original / (2 * math.pi * turns), base)

  first, last = pair(fast), pair(slow)
  if truncate:
    first, last = math.floor(first), math.ceil(last)
  found = []
  for p in range(width // 2):
    plain = base ** (-2 * p / width)
    ramp = min(max((p - first) / (last - first), 0.0), 1.0)
    found.append(plain / factor * ramp + plain * (1 - ramp))
  return np.array(found)


@pytest.mark.parametrize("truncate", [True, False])
def test_bounds_may_be_rounded_or_not(truncate):
  # The numbers of gpt-oss, which does not round.
  config = architecture.TransformerConfig(
    vocab_size=8,
    head_dim=64,
    rope_theta=150_000.0,
    rope_scaling="yarn",
    rope_factor=32.0,
    rope_low_freq=1.0,
    rope_high_freq=32.0,
    rope_original_len=4096,
    rope_truncate=truncate,
  )
  found = np.asarray(rope.frequencies(config, np.float32))
  want, other = (
    reference(150_000.0, 32.0, 4096, 64, 1.0, 32.0, rounded)
    for rounded in (truncate, not truncate)
  )
  np.testing.assert_allclose(found, want, rtol=2e-5)
  assert np.abs(found / other - 1).max() > 0.01


def test_equal_bounds_of_llama3_are_a_step():
  # The numbers of Llama 4 Scout: pairs turn once in 8192 tokens, or less.
  config = architecture.TransformerConfig(
    vocab_size=8,
    head_dim=128,
    rope_theta=500_000.0,
    rope_scaling="llama3",
    rope_factor=16.0,
    rope_low_freq=1.0,
    rope_high_freq=1.0,
    rope_original_len=8192,
  )
  found = np.asarray(rope.frequencies(config, np.float32))
  plain = 500_000.0 ** (-np.arange(64) / 64)
  is_slow = 2 * math.pi / plain > 8192
  want = np.where(is_slow, plain / 16, plain)
  assert 0 < is_slow.sum() < 64
  np.testing.assert_allclose(found, want, rtol=2e-5)
