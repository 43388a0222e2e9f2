"""GFPO beyond its reference: what is kept, by hand, and by difficulty."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import gfpo, objective
from grpo_jax.algorithms.contract import cases
from grpo_jax.ops import selection
from tests.references import gfpo as reference

# Eight completions of one prompt.
REWARDS = np.float32([1, 1, 0, 1, 0, 0, 1, 0])
LENGTHS = np.array([5, 12, 3, 8, 20, 6, 30, 9])
LENGTH = [1, 0, -1, 1, 0, -1, 0, 0]  # 0, 2, 3 and 5 are kept: two are right.


def _batch(rewards=REWARDS, lengths=LENGTHS, num_groups=1, **fields):
  """A prepared batch's arrays, as far as the advantages read them."""
  rows = len(rewards)
  case = cases.make_case().take(np.zeros(rows, int))
  mask = np.arange(32) < lengths[:, None]
  case = dataclasses.replace(
    case,
    **{
      field.name: np.resize(getattr(case, field.name), mask.shape)
      for field in dataclasses.fields(case)
      if np.ndim(getattr(case, field.name)) == 2 and field.name != "components"
    },
  )
  case.rewards, case.mask = rewards, mask
  case.valid = np.ones(rows, bool)
  case.group_id = np.arange(rows) * num_groups // rows
  config = algorithms.make_config("gfpo", num_kept=4, kl_coef=0.0, **fields)
  return config, case


@functools.partial(jax.jit, static_argnums=0)
def _compiled(config, arrays):
  batch = cases.prepared(gfpo.GFPO, config, cases.Case(**arrays))
  return (
    batch,
    gfpo.row_mask(config, batch),
    objective.term_weights(gfpo.GFPO, config, batch),
  )


def _prepared(config, case):
  """The batch, the rows that are kept, and the weights of the loss's terms."""
  return jax.device_get(_compiled(config, vars(case)))


@pytest.mark.parametrize(
  ("metric", "expected"),
  [
    ("length", LENGTH),
    ("efficiency", [0] * 8),  # Right ones alone.
    ("max_variance", [1, 1, 0, 0, 0, -1, 0, -1]),
  ],
)
def test_advantages_by_hand(metric, expected):
  config, case = _batch(metric=metric)
  advantages = _prepared(config, case)[0].advantages
  if metric == "max_variance":  # Which of the equal ones is kept is no matter.
    np.testing.assert_allclose(np.sort(advantages), np.sort(expected), 1e-5)
    return
  np.testing.assert_allclose(advantages, expected, 1e-5, 1e-6)


@pytest.mark.slow
def test_negative_rewards_are_measured_from_the_least():
  """−1 in 30 tokens is more per token than −1 in 3, unless it is the least."""
  rewards = 2 * REWARDS - 1
  kept = {}
  for shift in (False, True):
    config, case = _batch(
      rewards - 1, metric="efficiency", efficiency_shift=shift
    )
    # Right ones have 0 per token and are kept; that is no question here.
    config = dataclasses.replace(config, num_kept=5)
    _, rows, _ = _prepared(config, case)
    kept[shift] = np.flatnonzero(rows).tolist()
  assert kept == {False: [0, 1, 3, 4, 6], True: [0, 1, 2, 3, 6]}


@pytest.mark.parametrize("denom", ["all", "kept"])
def test_the_mean_counts_what_denom_says(denom):
  config, case = _batch(denom=denom, entropy_coef=0.0)
  batch, _, weights = _prepared(config, case)
  trained = np.ones(8, bool) if denom == "all" else np.array(LENGTH) != 0
  np.testing.assert_array_equal(batch.mask, case.mask & trained[:, None])
  assert weights["policy"] == LENGTHS[trained].sum()


@pytest.mark.slow
def test_easy_groups_keep_fewer():
  """Four groups by difficulty, after sixteen whose quartiles are known."""
  rng = np.random.default_rng(0)
  past = rng.permutation(np.arange(16) / 16).astype(np.float32)
  right = np.array([1, 2, 5, 7])  # Of eight; quartiles 0.23, 0.47, 0.70.
  rewards = (np.arange(8) < right[:, None]).astype(np.float32).ravel()
  lengths = rng.permuted(np.tile(np.arange(1, 9), (4, 1)), axis=1).ravel()
  config, case = _batch(rewards, lengths, 4)
  batch, _, _ = _prepared(config, case)
  config = dataclasses.replace(config, metric="adaptive", adaptive_warmup=16)
  empty = gfpo.init(config)[1]["difficulties"]
  kept = jax.jit(gfpo.row_mask, static_argnums=0)
  remember = jax.jit(selection.remember)
  counts = []
  for number in (0, 15, 16):
    memory = remember(empty, past, np.arange(16) < number)
    batch = dataclasses.replace(batch, state={"difficulties": memory})
    rows = np.asarray(kept(config, batch))
    counts.append(rows.reshape(4, 8).sum(axis=1).tolist())
    expected = reference.kept_rows(
      *(rewards, case.valid, case.group_id, lengths, 4, "adaptive"),
      past=past[:number],
      adaptive_warmup=16,
    )
    assert sorted(expected) == np.flatnonzero(rows).tolist()
  assert counts == [[4, 4, 4, 4], [4, 4, 4, 4], [4, 4, 3, 2]]
  update = jax.jit(gfpo.update_state, static_argnums=0)
  after = update(config, batch.state, {}, batch)["difficulties"]
  assert after.num_seen == 20
  np.testing.assert_allclose(after.values[16:20], right / 8)
