"""Advantages where a rollout is several rows, each a context of it."""

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.contract import cases
from grpo_jax.types import Traces
from tests.training import tiny

OPTIONS = {
  "kl_coef": 0.1,
  "kl_kind": "k1",
  "kl_in_reward": True,
  "overlong_filter": True,
}
TAKE_CONTEXTS = [
  name
  for name, algorithm in algorithms.ALGORITHMS.items()
  if not algorithm.whole_completions
  and not algorithm.couples_group
  and name != "sft"  # Has no advantages.
]
WHOLE = [
  name
  for name, algorithm in algorithms.ALGORITHMS.items()
  if algorithm.whole_completions
]
# Where a context ends there is no end for the estimate, and no budget.
FIELDS = {
  "ppo": {"boundary": "chain"},
  "vc_ppo": {"boundary": "chain"},
  "vapo": {"boundary": "chain"},
  "sao": {"boundary": "chain"},
  "compaction_rl": {"boundary": "chain"},
  "dapo": {"overlong_cache": 0.0},
  "gfpo": {"num_kept": 2},
}
# Tokens of a row that are in its first context; the others are in a second.
FIRST = np.where(
  np.arange(len(cases.LENGTHS)) % 2, cases.LENGTHS // 2, cases.LENGTHS - 1
)
FIRST = np.maximum(FIRST, np.minimum(cases.LENGTHS, 1))


def _in_contexts(case):
  """Each row of the case as two, and which are of one rollout."""
  size = np.stack([FIRST, cases.LENGTHS - FIRST], axis=1)  # [B, 2]
  rows = np.repeat(np.arange(len(FIRST)), 2)
  split = case.take(rows)
  slots = np.arange(cases.BUDGET)
  shift = np.stack([np.zeros_like(FIRST), FIRST], axis=1).reshape(-1, 1)
  places = np.minimum(slots + shift, cases.BUDGET - 1)
  for name in cases.SLOT_FIELDS:
    moved = np.take_along_axis(getattr(split, name), places, axis=1)
    setattr(split, name, moved)
  split.mask = slots < size.reshape(-1, 1)
  split.step_mask &= split.mask
  goes_on = size[:, 1] > 0
  traces = Traces(
    prompt_tokens=np.zeros((len(rows), 1), np.int32),
    prompt_mask=np.ones((len(rows), 1), bool),
    id=rows.astype(np.int32),
    order=np.tile(np.arange(2, dtype=np.int32), len(FIRST)),
    is_last=np.stack([~goes_on, goes_on], axis=1).ravel(),
    num_contexts=2,
  )
  return split, traces


def _of_tokens(x, mask):
  """One number for each trained token, in the order of time."""
  x = np.asarray(x)
  x = np.broadcast_to(x if x.ndim == 2 else x[:, None], mask.shape)
  return x[mask]


def _advantages(name, **fields):
  """Those of one context and of two, over trained tokens."""
  config = algorithms.make_config(name, **FIELDS.get(name, {}), **fields)
  algorithm = algorithms.get_algorithm(name)
  case = cases.make_case()
  split, traces = _in_contexts(case)
  key = jax.random.key(0)
  one = cases.prepared(algorithm, config, case, key=key)
  two = cases.prepared(algorithm, config, split, key=key, traces=traces)
  trained = _of_tokens(one.mask, case.mask)
  np.testing.assert_array_equal(_of_tokens(two.mask, split.mask), trained)
  return (
    _of_tokens(one.advantages, case.mask)[trained],
    _of_tokens(two.advantages, split.mask)[trained],
  )


@pytest.mark.parametrize("name", tiny.each(TAKE_CONTEXTS))
def test_tokens_have_the_advantages_of_one_row(name):
  one, two = _advantages(name, **OPTIONS)
  assert np.any(one != 0)
  np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-6)


def test_rollouts_weigh_the_same_whatever_their_contexts():
  """The weights of a rollout's tokens add up to those of any other."""
  algorithm = algorithms.get_algorithm("compaction_rl")
  split, traces = _in_contexts(cases.make_case())
  sums = {}
  for weight in ("context", "trace"):
    config = algorithms.make_config("compaction_rl", weight=weight)
    batch = cases.prepared(
      algorithm, config, split, key=jax.random.key(0), traces=traces
    )
    of_rows = (np.asarray(batch.policy_weight) * batch.mask).sum(axis=1)
    np.testing.assert_allclose(of_rows.sum(), batch.mask.sum(), rtol=1e-5)
    of_traces = np.bincount(traces.id, of_rows)
    sums[weight] = [
      x[x > 0] / batch.mask.sum() * (x > 0).sum() for x in (of_rows, of_traces)
    ]
  rows, _ = sums["context"]
  np.testing.assert_allclose(rows, 1, rtol=1e-5)
  rows, rollouts = sums["trace"]
  np.testing.assert_allclose(rollouts, 1, rtol=1e-5)
  assert rows.std() > 0.1


@pytest.mark.parametrize("name", tiny.each(WHOLE, ("gtpo",)))
def test_others_would_be_wrong(name):
  """Which is why `training/compatibility.py` refuses them."""
  one, two = _advantages(name)
  assert np.abs(two - one).max() > 1e-3
