"""Rules, and the claims that they decide."""

import numpy as np

from experiments.science import claims


def test_each_claim_is_concluded_from_its_own_rules():
  scores = {"a": np.array([1.0, 1.1]), "b": np.array([-1.0, -1.1])}

  def rises(name):
    return claims.rule(f"`{name}`", "above", (name,))

  found = claims.conclude(
    {
      "A1": ("`a` rises.", rises("a")),
      "A2": ("Both rise.", rises("a"), rises("b")),
      "A3": ("So does `c`.", rises("a"), rises("c")),
    },
    scores.get,
  )
  assert [(one.name, one.claim, one.verdict) for one in found] == [
    ("A1", "`a` rises.", "confirmed"),
    ("A2", "Both rise.", "not confirmed"),
    ("A3", "So does `c`.", "undecided"),
  ]
  assert [check.text for check in found[1].checks] == ["`a`", "`b`"]


def test_a_difference_is_of_two_arms_or_to_a_number():
  ends = {("a", "x"): np.array([1.0, 2.0]), ("b", "x"): np.array([0.5, 1.0])}

  def of(*key):
    return ends.get(key)

  check = claims.difference("x", "a", "b")(of)
  assert (check.text, check.needed) == ("x, `a` − `b`", "above")
  assert check.contrast.estimate == 0.75
  shown = claims.difference("x", "a", "b", "below", "shown")(of)
  assert (shown.text, shown.needed) == ("shown, `a` − `b`", "below")
  bound = claims.rule("a − 1", "above", ("a", "x"), 1.0)(of)
  assert bound.contrast.estimate == 0.5
  assert claims.difference("x", "a", "c")(of).holds is None
