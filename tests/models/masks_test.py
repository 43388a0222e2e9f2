"""Masks whose blocks are computed once are those of JAX."""

import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask_info as mask_info,
)

from grpo_jax.models import attention

SHAPE, BEFORE = (512, 768), 256


def theirs(window):
  if window is None:
    return splash_attention.CausalMask(SHAPE, BEFORE)
  return splash_attention.LocalMask(SHAPE, (window - 1, 0), BEFORE)


@pytest.mark.parametrize("window", [None, 1, 100, 300])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("process", ["process_mask", "process_mask_dkv"])
def test_the_kernel_visits_the_blocks_of_jax(window, shards, process):
  ours = attention.of_distance(SHAPE, window, BEFORE)
  found = []
  for mask in (theirs(window), ours):
    heads = splash_attention.MultiHeadMask([mask] * 3)
    info, _ = getattr(mask_info, process)(
      heads, (128, 128), q_seq_shards=shards
    )
    found.append(info)
  for one, other in zip(*found, strict=True):
    assert (one is None) == (other is None)
    if one is not None:
      np.testing.assert_array_equal(other, one)
      assert other.dtype == one.dtype
  q, k = np.ogrid[: SHAPE[0], : SHAPE[1]]
  seen = (k <= q + BEFORE) & (window is None or k > q + BEFORE - window)
  np.testing.assert_array_equal(
    ours[slice(0, SHAPE[0]), slice(0, SHAPE[1])], seen
  )


def test_equal_masks_are_processed_once():
  """The kernel looks them up by what they are equal to."""
  one, other = (attention.of_distance(SHAPE, 9, BEFORE) for _ in range(2))
  assert one == other
  assert hash(one) == hash(other)
  assert one != attention.of_distance(SHAPE, 8, BEFORE)


def test_few_blocks_are_kept():
  mask = attention.of_distance((128 * 64, 128 * 64), None, 0)
  heads = splash_attention.MultiHeadMask([mask])
  mask_info.process_mask(heads, (128, 128))
  assert len({id(block) for block in mask.blocks.values()}) == 3
