"""Tests of the conclusions from differences over seeds."""

import numpy as np

from experiments.sweeps import statistics


def test_a_difference_is_seed_by_seed_and_none_while_one_is_missing():
  one, other = np.array([1.0, 2.0]), np.array([0.5, 4.0])
  assert statistics.minus(one, other).tolist() == [0.5, -2.0]
  assert statistics.minus(one, 0.5).tolist() == [0.5, 1.5]
  assert statistics.minus(one, 0.0).tolist() == [1.0, 2.0]
  assert statistics.minus(None, other) is None
  assert statistics.minus(one, None) is None
  assert statistics.minus(None, 0.5) is None


def test_each_claim_is_concluded_from_its_own_checks():
  scores = {"a": np.array([1.0, 1.1]), "b": np.array([-1.0, -1.1])}

  def rise(*names):
    def checks(of):
      for name in names:
        yield statistics.check(f"`{name}`", "above", (1, of(name)))

    return checks

  claims = {
    "A1": ("`a` rises.", rise("a")),
    "A2": ("Both rise.", rise("a", "b")),
    "A3": ("So does `c`.", rise("a", "c")),
  }
  found = statistics.conclude(claims, scores.get)
  assert [(one.name, one.claim, one.verdict) for one in found] == [
    ("A1", "`a` rises.", "confirmed"),
    ("A2", "Both rise.", "not confirmed"),
    ("A3", "So does `c`.", "undecided"),
  ]
  assert [check.text for check in found[1].checks] == ["`a`", "`b`"]
