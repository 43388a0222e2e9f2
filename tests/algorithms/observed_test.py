"""Advantages where an environment writes between the policy's tokens."""

import dataclasses

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms.contract import cases

# Tokens that the environment writes after the first one of each row: the
# shortest completions become the longest rows.
INSERTED = np.where(cases.LENGTHS > 1, 2 * (cases.BUDGET - cases.LENGTHS), 0)
BUDGET = cases.BUDGET + 2 * cases.BUDGET
BY_LENGTH = [
  ("opo", {}),
  ("tic_grpo", {"length_corrected": True}),
  ("gfpo", {"num_kept": 2}),
  ("gfpo", {"num_kept": 2, "metric": "efficiency"}),
  ("gfpo", {"num_kept": 2, "metric": "adaptive"}),
]
# The budget is of all tokens there are, and groups of four keep two.
ELSEWHERE = {"dapo": {"overlong_cache": 0.0}, "gfpo": {"num_kept": 2}}
# They compare the tokens of a group that are in the same place of their rows.
BY_PLACE = "gtpo", "otb"


def _observing(case):
  """The case with an environment's tokens, and where they are."""
  slots = np.arange(BUDGET)[None]
  inserted = INSERTED[:, None]
  observed = (slots >= 1) & (slots < 1 + inserted)
  places = np.where(slots < 1, slots, np.maximum(slots - inserted, 0))
  places = np.where(observed, 0, np.minimum(places, cases.BUDGET - 1))
  longer = dataclasses.replace(
    case,
    **{
      name: np.take_along_axis(getattr(case, name), places, axis=1)
      for name in cases.SLOT_FIELDS
    },
  )
  longer.mask = slots < cases.LENGTHS[:, None] + inserted
  longer.step_mask = longer.step_mask & longer.mask & ~observed
  longer.segment_end = longer.segment_end & longer.mask & ~observed
  return longer, observed


def _of_trained(batch):
  """The advantage of each trained token, in the order of time."""
  advantages, mask = np.asarray(batch.advantages), np.asarray(batch.mask)
  if advantages.ndim == 1:
    advantages = np.broadcast_to(advantages[:, None], mask.shape)
  return advantages[mask]


@pytest.mark.parametrize(
  ("name", "fields"),
  [
    *BY_LENGTH,
    *(
      pytest.param(name, ELSEWHERE.get(name, {}), marks=pytest.mark.slow)
      for name in algorithms.ALGORITHMS
      if name != "sft" and name not in BY_PLACE  # sft has no advantages.
    ),
  ],
)
def test_an_environments_tokens_change_no_advantage(name, fields):
  algorithm = algorithms.get_algorithm(name)
  config = algorithms.make_config(name, **fields)
  case = cases.make_case()
  # The shorter a completion is, the more reward it has per token.
  case.rewards = np.linspace(1.0, 1.5, len(case.rewards), dtype=np.float32)
  longer, observed = _observing(case)
  key = jax.random.key(0)
  plain = _of_trained(cases.prepared(algorithm, config, case, key=key))
  among = cases.prepared(algorithm, config, longer, key=key, observed=observed)
  assert not np.any(np.asarray(among.mask) & observed)
  assert np.any(plain != 0)
  np.testing.assert_allclose(_of_trained(among), plain, rtol=1e-4, atol=1e-6)


def test_rows_that_are_not_trained_keep_their_lengths():
  """OPO weighs a completion of one turn by all its tokens, trained or not."""
  config = algorithms.make_config("opo", overlong_filter=True)
  case = cases.make_case()
  assert not case.terminated.all()
  batch = cases.prepared(algorithms.get_algorithm("opo"), config, case)
  np.testing.assert_array_equal(batch.sampler.lengths, cases.LENGTHS)
  assert not np.array_equal(batch.mask.sum(axis=1), cases.LENGTHS)
