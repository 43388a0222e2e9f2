"""Compares kept rows with all subsets, and remembered ones with a deque."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import selection
from tests.references import gfpo

_most_varied = jax.jit(selection.most_varied, static_argnums=(3, 4))


@functools.cache
def _rewards(kind):
  """200 groups of ten rewards, of which some are not valid."""
  rng = np.random.default_rng(0)
  rewards = rng.normal(size=(200, 10))
  if kind == "binary":
    rewards = (rewards > 0.5).astype(float)
  return rewards.astype(np.float32), rng.random((200, 10)) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "binary"])
def test_no_other_subset_varies_more(kind):
  rewards, valid = _rewards(kind)
  groups = np.repeat(np.arange(200), 10)
  order = np.random.default_rng(1).permutation(2000)
  kept = np.zeros(2000, bool)
  kept[order] = _most_varied(
    rewards.ravel()[order], valid.ravel()[order], groups[order], 200, 4
  )
  kept = kept.reshape(200, 10)
  assert not (kept & ~valid).any()
  np.testing.assert_array_equal(
    kept.sum(axis=1), np.minimum(valid.sum(axis=1), 4)
  )
  for x, ok, mine in zip(rewards, valid, kept, strict=True):
    best = x[ok][list(gfpo.most_varied(x[ok], 4))]
    np.testing.assert_allclose(np.var(x[mine]), np.var(best), 1e-5)


def test_most_varied_by_hand():
  """Rewards 0, 0, 0, 5, 6: {0, 0, 6} has variance 8, {0, 5, 6} has 6.9."""
  rewards = np.float32([5, 0, 0, 0, 6, 1, 1, 1, 0, 0])
  kept = _most_varied(rewards, np.ones(10, bool), np.arange(10) // 5, 2, 3)
  np.testing.assert_array_equal(
    kept, [False, True, True, False, True, False, True, True, True, False]
  )


def test_the_last_values_are_remembered():
  """More at once than there is room for, and none of what does not count."""
  rng = np.random.default_rng(0)
  memory, past = selection.empty_memory(7), collections.deque(maxlen=7)
  shares = np.float32([0.25, 0.5, 0.75])
  remember = jax.jit(selection.remember)
  assert np.isnan(selection.quantiles(memory, shares)).all()
  total = 0
  for number in (3, 3, 10, 3, 10, 10):
    x = rng.normal(size=number).astype(np.float32)
    present = rng.random(number) < 0.8
    past.extend(x[present])
    total += present.sum()
    memory = remember(memory, jnp.asarray(x), jnp.asarray(present))
    assert memory.num_seen == total
    np.testing.assert_allclose(
      selection.quantiles(memory, shares), np.quantile(past, shares), 1e-6, 1e-7
    )
