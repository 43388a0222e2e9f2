"""Pairs of a policy's own completions: the direction of their gradients."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms.contract import cases

# Groups of two: of 6 and 1, 2 and 4, 5 and 3 tokens.
ROWS = np.array([0, 1, 4, 6, 7, 8])


@functools.cache
def evaluated(name, **fields):
  """The loss at π_θ = π_old = π_ref; the last group has no signal."""
  case = cases.make_case(dtype=np.float64).take(ROWS)
  case.old_logp = case.ref_logp = case.logp
  case.rewards = np.array([0.3, 0.9, 1.0, -2.0, 0.5, 0.5])
  config = algorithms.make_config(name, **fields)
  with jax.enable_x64(True):
    return cases.evaluate(algorithms.get_algorithm(name), config, case)


@pytest.mark.slow
def test_two_grpo_has_the_direction_of_dpo_normalised_by_length():
  """arXiv:2510.00977: c = 1 / √2 against β, whatever the gaps are.

  Pairs of equal rewards are in the mean over completions, and in no pair.
  """
  grpo = evaluated("two_grpo").gradient
  dpo = evaluated("dpo", beta=0.4, length_normalized=True).gradient
  np.testing.assert_allclose(grpo / 0.5**0.5, dpo / 0.4 * 2 / 3, atol=1e-5)
  assert (dpo[:4] != 0).any(axis=1).all()
  assert (dpo[4:] == 0).all()


@pytest.mark.slow
def test_sums_over_tokens_point_elsewhere():
  grpo, dpo = evaluated("two_grpo").gradient, evaluated("dpo").gradient
  cosine = (grpo * dpo).sum() / np.sqrt((grpo**2).sum() * (dpo**2).sum())
  assert 0 < cosine < 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "alone"), [("two_grpo_dpo", "two_grpo"), ("ppo_dpo", "ppo")]
)
def test_hybrids_add_the_gradient_of_dpo(name, alone):
  fields = {"kl_coef": 0.0} | ({"kl_in_reward": False} if "ppo" in name else {})
  both = evaluated(name, dpo_coef=0.7, length_normalized=True, **fields)
  one = evaluated(alone, **fields)
  dpo = evaluated("dpo", length_normalized=True)
  np.testing.assert_allclose(
    both.gradient, one.gradient + 0.7 * dpo.gradient, atol=1e-9
  )


def test_of_dpo_what_no_kind_reads_is_refused():
  for fields, message in (
    ({"kind": "exo"}, "is unknown; choose one of sigmoid"),
    ({"label_smoothing": 0.2, "kind": "ipo"}, "not used by kind='ipo'"),
    ({"beta": 0.0}, "greater than 0"),
  ):
    for name in ("dpo", "two_grpo_dpo", "ppo_dpo"):
      with pytest.raises(ValueError, match=message):
        algorithms.make_config(name, **fields)
