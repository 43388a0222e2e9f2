"""The advantages of RREDCoT, by hand."""

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import rredcot
from grpo_jax.types import AnswerFields, PromptFields, TrainBatch

ENDS = np.array([[0, 1, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0]], bool)
UTILITY = np.array([[0.3, 0.3, 0.6, 0.6, 0.6, 0.2], [0.3] * 3 + [0.5] * 3])
MASK = np.array([[True] * 6, [True] * 4 + [False] * 2])


_compiled = jax.jit(rredcot.advantages, static_argnums=0)


def _advantages(ends=ENDS, rewards=(1.0, 0.0), **fields):
  rows = np.ones(2, bool)
  arrays = {
    "prompts": PromptFields(np.zeros((1, 1), np.int32), np.ones((1, 1), bool)),
    "prompt_index": np.zeros(2, np.int32),
    "group_id": np.zeros(2, np.int32),
    "tokens": np.zeros((2, 6), np.int32),
    "completion_mask": MASK,
    "mask": MASK,
    "rewards": np.array(rewards),
    "valid": rows,
    "terminated": rows,
    "correct": rows,
    "answers": AnswerFields(segment_end=ends, prefix_utility=UTILITY),
  }
  config = algorithms.make_config("rredcot", **fields)
  return np.asarray(_compiled(config, TrainBatch(**arrays, num_groups=1)))


def test_the_return_is_what_the_prefix_did_not_expect():
  got = _advantages(mode="return")
  wanted = [[0.7, 0.7, 0.4, 0.4, 0.4, 0.8], [-0.3] * 3 + [-0.5, 0, 0]]
  np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.slow
def test_segments_are_standardised_over_the_group():
  # Credits 0.3, −0.4, 0.8 and 0.5 − 0.3, 0 − 0.5: of five segments.
  credits = np.array([0.3, -0.4, 0.8, 0.2, -0.5])
  z = (credits - credits.mean()) / (credits.std(ddof=1) + 0.1)
  wanted = np.array([z[[0, 0, 1, 1, 1, 2]], [*z[[3, 3, 3, 4]], 0, 0]])
  got = _advantages(mode="rudder", advantage_eps=0.1)
  np.testing.assert_allclose(got, wanted, atol=1e-5)
  # GRPO's: (1 − 0.5) / (0.7071 + 0.1), of rows.
  whole = np.where(MASK, 0.5 * np.array([[1], [-1]]) / (0.5**0.5 + 0.1), 0)
  mixed = _advantages(mode="mix", mix_weight=0.25, advantage_eps=0.1)
  np.testing.assert_allclose(mixed, 0.25 * whole + 0.75 * wanted, atol=1e-5)


def test_one_segment_is_compared_with_the_start():
  got = _advantages(np.zeros_like(ENDS), mode="return", rewards=(1.0, 0.5))
  np.testing.assert_allclose(got[0], 1 - UTILITY[0], atol=1e-6)
  one = _advantages(np.zeros_like(ENDS), mode="rudder", advantage_eps=0.0)
  # Two credits, 1 − 0.3 and 0 − 0.3: half a unit apart from their mean.
  np.testing.assert_allclose(
    one, np.where(MASK, [[0.5**0.5], [-(0.5**0.5)]], 0), atol=1e-5
  )


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"mode": "credit"}, "mode='credit' is unknown; choose one of mix, rudder"),
    ({"mix_weight": 1.5}, r"mix_weight=1.5 must be in \[0, 1\]"),
    ({"entropy_quantile": 2.0}, r"entropy_quantile=2.0 must be in \[0, 1\]"),
    ({"max_segments": 0}, "max_segments=0 must be at least 1"),
    ({"opener": ""}, "opener='' is empty"),
    ({"advantage_scale": "group"}, "would divide by the deviation"),
  ],
)
def test_what_means_nothing_is_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    algorithms.make_config("rredcot", **fields)
