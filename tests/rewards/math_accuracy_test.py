"""math_accuracy: which answer is read, and when it equals the gold."""

import itertools
import sys
import threading
import time

import numpy as np
import pytest

from grpo_jax.rewards import host
from grpo_jax.rewards import math_accuracy as lib


def score(completion, answer):
  (value,) = lib.math_accuracy([""], [completion], [0], [{"answer": answer}])
  return value


@pytest.mark.parametrize(
  ("completion", "expected"),
  [
    (r"\boxed{5}", "5"),
    (r"\boxed{4} then \boxed{5}", "5"),
    (r"<answer>4</answer> \boxed{5} <answer>6</answer>", "5"),
    (r"<answer>4</answer> <answer> 5 </answer>", "5"),
    (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
    (r"\boxed{\{1,2\}}", r"\{1,2\}"),
    (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
    (r"\boxed{\boxed{5}}", "5"),
    (r"x = 5 \\\boxed {5}", "5"),
    (r"\boxed{5} and \boxed{6", "5"),
    (r"\boxed{}", ""),
    (r"\boxed{5", None),
    ("<answer>5", None),
    ("5</answer>", None),
    ("5", None),
    ("", None),
  ],
)
def test_final_answer(completion, expected):
  assert lib.final_answer(completion) == expected


@pytest.mark.parametrize(
  ("answer", "gold", "expected"),
  [
    (r"\frac{1}{2}", ".5", 1.0),
    ("1/2", "0.5", 1.0),
    (r"\{2,1\}", r"\{1,2\}", 1.0),
    (r"\{1,3\}", r"\{1,2\}", 0.0),
    ("(1,2)", "(1,2)", 1.0),
    ("(2,1)", "(1,2)", 0.0),
    ("3", "x=3", 1.0),
    ("x=3", "3", 1.0),
    (r"50\%", "0.5", 1.0),
    ("1+x^2", "x^2+1", 1.0),
    (r"\$18", "18", 1.0),
    ("1,234", "1234", 1.0),
    ("18", r"so it is \boxed{18}", 1.0),
    ("18", r"$18$", 1.0),
    ("18.0", 18, 1.0),
    ("17", "18", 0.0),
    ("", "18", 0.0),
    (r"\frac{1}{", "18", 0.0),
    ("1e400", "18", 0.0),
    ("18", r"\frac{1}{", None),
    ("18", "", None),
  ],
)
def test_known_answers_in_a_box_and_in_tags(answer, gold, expected):
  assert score(rf"so \boxed{{{answer}}}.", gold) == expected
  assert score(f"so <answer>{answer}</answer>", gold) == expected


def test_prose_with_formulas_in_answer_tags_is_read():
  assert score("<answer>It is $\\frac{36}{2}$.</answer>", "18") == 1.0


def test_no_answer_scores_0_unless_the_gold_cannot_be_read():
  assert score("18", "18") == 0.0
  assert score("18", r"\frac{1}{") is None


def test_an_explosive_answer_times_out_and_gets_no_score():
  # In workers, where it has to hold. In this process hypothesis listens to
  # the garbage collector, and an alarm that strikes there is lost.
  nested = "(" * 50 + "5" + ")" * 50
  answers = ["9^{9^{9^9}}", nested, "5"]
  with host.HostScorer({"a": "math_accuracy"}, {"a": 1.0}) as scorer:
    start = time.monotonic()
    scores = scorer.score(
      [""] * 3,
      [rf"\boxed{{{answer}}}" for answer in answers],
      [0, 1, 2],
      [{"answer": "5"}] * 3,
    )
    assert time.monotonic() - start < 25.0
  np.testing.assert_array_equal(scores.failed, [True, True, False])
  np.testing.assert_array_equal(scores.components["a"], [np.nan, np.nan, 1.0])
  assert scores.failures["timeout"] == 2


@pytest.mark.parametrize(
  "completion",
  [
    r"\boxed{9**9**9**9}",
    r"\boxed{" + "(" * 9000 + "5" + ")" * 9000 + "}",
    r"\boxed{" * 30_000,
    r"\boxed{" * 30_000 + "}" * 30_000,
    "{" * 100_000 + "}" * 100_000,
    "<answer>" * 30_000,
    r"\boxed{" + "1" * 100_000 + "}",
  ],
)
def test_hostile_text_scores_0_fast(completion):
  start = time.monotonic()
  assert score(completion, "5") == 0.0
  assert time.monotonic() - start < 3.0


NUMBERS = (
  *("0", "-0", "0.0", "7", "-7", "07", "1,234", "1234", "1234.0", "-1,234"),
  *("1,234,567.50", "1234567.5", "0.3333333", "0.3333334", "0.5", "1.50"),
  *("100000000000000000000", "100000000000000000001", "1,23", "0,123"),
)


def test_comparing_plain_numbers_exactly_gives_math_verifys_verdict(
  monkeypatch,
):
  pairs = list(itertools.product(NUMBERS, NUMBERS))
  fast = [lib._accuracy(*pair) for pair in pairs]
  monkeypatch.setattr(lib, "_plain_number", lambda text: None)
  slow = [lib._accuracy(*pair) for pair in pairs]
  assert fast == slow
  assert 1.0 in fast
  assert 0.0 in fast


def test_plain_integers_need_no_math_verify(monkeypatch):
  def unused(*args, **kwargs):
    raise AssertionError("math-verify was called")

  monkeypatch.setattr(lib, "_parse", unused)
  assert score(r"\boxed{1,234}", "1234") == 1.0
  assert score(r"\boxed{1235}", "1234") == 0.0


def test_a_row_without_gold_answer_raises():
  with pytest.raises(KeyError, match="answer"):
    lib.math_accuracy([""], ["5"], [0], [{}])


def test_a_thread_raises_rather_than_scoring_0():
  raised = []

  def run():
    try:
      score(r"\boxed{5}", "5")
    except RuntimeError as error:
      raised.append(str(error))

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert "main thread" in raised[0]


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "math_verify", None)
  with pytest.raises(ImportError, match=r"grpo-jax\[math\]"):
    score(r"\boxed{5}", "5")
