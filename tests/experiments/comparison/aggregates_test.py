"""Statistics of many runs, against numbers that were worked out by hand."""

import itertools

import numpy as np
import pytest

from experiments.comparison import aggregates


def test_the_interquartile_mean_is_over_all_runs_of_all_tasks():
  # Sorted: 0 1 2 | 3 4 5 6 7 8 | 9 10 90: 12 runs, three are left out at
  # each end; (3 + 4 + 5 + 6 + 7 + 8) / 6 = 5.5.
  scores = np.array([[0, 9, 3], [10, 1, 4], [5, 90, 2], [6, 7, 8]], float)
  assert aggregates.interquartile_mean(scores) == 5.5
  # Of five, ⌊5 / 4⌋ = 1 at each end: (1 + 2 + 6) / 3.
  five = np.array([[0.0], [1.0], [2.0], [6.0], [99.0]])
  assert aggregates.interquartile_mean(five) == 3.0


def test_mean_median_and_gap_by_hand():
  scores = np.array([[0.2, 1.0, 0.5], [0.4, 1.4, 0.9]])
  # Means of tasks: 0.3, 1.2, 0.7.
  assert aggregates.mean(scores) == pytest.approx(2.2 / 3)
  assert aggregates.median(scores) == pytest.approx(0.7)
  # 1.4 counts as 1: 1 − (0.2 + 0.4 + 1 + 1 + 0.5 + 0.9) / 6.
  assert aggregates.optimality_gap(scores) == pytest.approx(1 - 4.0 / 6)


def test_a_profile_is_the_share_of_runs_above_each_threshold():
  scores = np.array([[0.1, 0.6], [0.5, 0.7]])
  found = aggregates.performance_profile(scores, np.array([0, 0.1, 0.5, 0.7]))
  assert found.tolist() == [1.0, 0.75, 0.5, 0.0]  # Above, and not at, τ.


def test_the_probability_of_improvement_counts_ties_as_half():
  one, other = np.array([[1.0], [2.0]]), np.array([[1.0], [0.0], [3.0]])
  # 1 against 1, 0, 3: ½, 1, 0; 2 against them: 1, 1, 0.
  expected = (0.5 + 1 + 0 + 1 + 1 + 0) / 6
  found = aggregates.probability_of_improvement(one, other)
  assert found == pytest.approx(expected)
  # A second task in which `one` never wins: the mean over tasks.
  one, other = np.c_[one, [0.0, 0.0]], np.c_[other, [1.0, 1.0, 1.0]]
  found = aggregates.probability_of_improvement(one, other)
  assert found == pytest.approx(expected / 2)


def resamples(scores):
  """All equally likely draws of seeds, apart for each task."""
  seeds, tasks = scores.shape
  draws = list(itertools.product(range(seeds), repeat=seeds))
  for chosen in itertools.product(draws, repeat=tasks):
    yield np.stack([scores[list(d), m] for m, d in enumerate(chosen)], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
  "statistic", [aggregates.mean, aggregates.interquartile_mean]
)
def test_the_interval_is_that_of_all_stratified_resamples(statistic):
  scores = np.array([[0.1, 5.0], [0.4, 5.5], [0.9, 7.0]])
  # 27 draws of each task, so 729 of both.
  every = [statistic(x) for x in resamples(scores)]
  assert len(every) == 729
  expected = np.percentile(every, [2.5, 97.5])
  low, high = aggregates.interval([scores], statistic)
  np.testing.assert_allclose([low, high], expected, atol=0.02)
  assert aggregates.interval([scores], statistic) == (low, high)


def test_strata_stay_apart():
  # Were runs drawn across tasks, the mean would vary by thousands.
  scores = np.array([[0.0, 1000.0], [1.0, 1001.0]])
  low, high = aggregates.interval([scores], aggregates.mean, 500)
  assert (low, high) == (500.0, 501.0)


def test_two_samples_are_drawn_independently():
  one, other = np.array([[0.0], [1.0]]), np.array([[0.0], [1.0]])
  # By enumeration: P is 0.5 on average, and 0 and 1 have 1/16 each.
  low, high = aggregates.interval(
    [one, other], aggregates.probability_of_improvement, 4000
  )
  assert (low, high) == (0.0, 1.0)


def test_an_interval_of_profiles_has_one_entry_for_each_threshold():
  scores = np.array([[0.2, 0.4], [0.3, 0.8]])
  thresholds = np.array([0.0, 0.25, 0.9])
  low, high = aggregates.interval(
    [scores],
    lambda x: aggregates.performance_profile(x, thresholds),
    200,
  )
  assert low.shape == high.shape == (3,)
  assert (low[0], high[0], high[2]) == (1.0, 1.0, 0.0)
  assert low[1] < 0.75 < high[1]


def test_scores_that_are_not_finite_are_refused():
  with pytest.raises(ValueError, match="finite numbers"):
    aggregates.interval([np.array([[np.nan]])], aggregates.mean)
  with pytest.raises(ValueError, match=r"shape \(0, 2\)"):
    aggregates.interval([np.zeros((0, 2))], aggregates.mean)


def test_holm_by_hand():
  # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04;
  # never below the one before: 0.04, 0.06, 0.06, 0.06.
  found = aggregates.holm([0.04, 0.01, 0.03, 0.02])
  np.testing.assert_allclose(found, [0.06, 0.04, 0.06, 0.06])
  np.testing.assert_allclose(aggregates.holm([0.7, 0.6]), [1.0, 1.0])
  np.testing.assert_allclose(aggregates.holm([0.02]), [0.02])
  assert aggregates.holm([]).tolist() == []
