"""Tests that known mutations are as stated, and the page as measured."""

import fractions
import random

import numpy as np
import pytest

from experiments.rewards import agreement_page, mutations, verdicts
from grpo_jax.rewards import answers, math_accuracy

GOLDS = ["18", "5", "-7", "1200", "70000"]


def host(cases):
  return math_accuracy.math_accuracy(
    [""] * len(cases),
    [case.text for case in cases],
    [0] * len(cases),
    [{"answer": case.gold} for case in cases],
  )


def test_mutations_are_what_they_are_called():
  cases = mutations.mutated(GOLDS, 2000, seed=0)
  assert cases == mutations.mutated(GOLDS, 2000, seed=0)
  assert cases != mutations.mutated(GOLDS, 2000, seed=1)
  assert {case.kind for case in cases} == {*mutations.MUTATIONS}
  # The host reads what it reads exactly: it refuses right answers in other
  # digits, and never rewards a wrong one.
  refused = {
    case.kind
    for case, score in zip(cases, host(cases), strict=True)
    if case.right is not None and score != float(case.right)
  }
  assert refused == {"full-width digits", "Arabic-Indic digits"}


def test_right_and_wrong_numbers_by_fractions():
  rng = random.Random(0)
  for gold in (18, 7, -7, 1200):
    for kind, right in (("fraction", True), ("one digit wrong", False)):
      text, known = mutations.MUTATIONS[kind](gold, rng)
      value = answers.quantity(answers.final_answer(text)).value
      assert (value == fractions.Fraction(gold)) == right == known


@pytest.mark.slow
def test_the_program_says_what_the_host_does():
  cases = mutations.plain(GOLDS) + mutations.mutated(GOLDS, 800, seed=2)
  found = verdicts.in_program(cases)
  assert found.scores.tolist() == host(cases)
  assert found.rows_per_s > 0


def test_the_page_counts_and_quotes():
  cases = [
    mutations.Case("plain", "18", "<answer>18</answer>", True),
    mutations.Case("plain", "19", "<answer>19</answer>", True),
    mutations.Case("unit", "18", "18|m", None),
    mutations.Case("chain", "18", "1 = 18", False),
  ]
  scores = {
    "program": np.array([1.0, 1.0, 0.0, 0.0], np.float32),
    "host": np.array([1.0, 1.0, 0.0, 0.0], np.float32),
    "math-verify": np.array([1.0, np.nan, 1.0, 1.0], np.float32),
  }
  speed = {"program": 1000.4, "host": 20.0, "math-verify": 3.0}
  page = agreement_page.markdown(cases, scores, speed)
  assert "agree on 4 of 4 rows" in page
  assert "| plain | right | 2 | 2 | 2 | 1 | 2 | 1 |" in page
  assert r"| unit | 1 | 0 | 0 | 1 | a matter of rules | `` 18\|m ``" in page
  assert "| chain | 1 | 0 | 0 | 1 | 0: program, host |" in page
  assert "| plain | 1 | 1 | 1 | failed | 1: program, host |" in page
  assert "| math-verify | 3 | 1 | 1 | 1 |" in page
  assert "| program | 1000 |" in page
