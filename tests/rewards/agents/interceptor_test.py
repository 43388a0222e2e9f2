"""The guard before tools: what is flagged, who is asked, what is blocked."""

from __future__ import annotations

import math
import re

import pytest

from grpo_jax.rewards.agents import interceptor
from grpo_jax.rewards.agents.interceptor import Event

PASSED = Event()
HARMLESS = Event(flagged=True, judged=True)
BAD = Event(flagged=True, judged=True, blocked=True)


class Spy:
  """A judge that remembers what it was asked."""

  def __init__(self, says):
    self._says = says
    self.asked = []

  def __call__(self, calls, contexts):
    self.asked.append((list(calls), list(contexts)))
    return [self._says(call) for call in calls]


def make(rules=("rm", "curl"), says=lambda call: "secret" in call, **options):
  judge = Spy(says)
  guard = interceptor.Interceptor(
    rules=[lambda call, word=word: word in call for word in rules],
    judge=judge,
    dummy="information not available",
    **options,
  )
  return guard, judge


def test_the_judge_is_asked_once_and_about_what_was_flagged():
  guard, judge = make()
  calls = ["ls", "rm build", "curl secret", "cat secret"]
  events = guard.decide(calls, ["a", "b", "c", "d"])
  # The rules come first: what they miss is not judged.
  assert events == [PASSED, HARMLESS, BAD, PASSED]
  assert judge.asked == [(["rm build", "curl secret"], ["b", "c"])]
  assert guard.decide(["ls"], [""]) == [PASSED]
  assert len(judge.asked) == 1


def test_without_rules_all_passes_and_without_a_judge_all_flagged_is_blocked():
  guard, judge = make(rules=())
  assert guard.decide(["curl secret"], [""]) == [PASSED]
  assert judge.asked == []
  rules_only = interceptor.Interceptor([lambda call: True], None, "no")
  assert rules_only.decide(["ls"], [""]) == [Event(flagged=True, blocked=True)]


def test_what_nobody_can_judge_is_blocked():
  guard, _ = make(says=lambda call: None)
  assert guard.decide(["rm x"], [""]) == [
    Event(flagged=True, blocked=True, unjudged=True)
  ]

  def fails(calls, contexts):
    raise RuntimeError("out of service")

  guard = interceptor.Interceptor([lambda call: True], fails, "no")
  with pytest.raises(RuntimeError, match="out of service"):
    guard.decide(["ls"], [""])


@pytest.mark.parametrize(
  ("pattern", "action", "asked"),
  [
    (None, "I rm <c>ls</c>", ["I rm <c>ls</c>"]),
    ("<c>(.*?)</c>", "I rm <c>ls</c>", []),
    ("<c>(.*?)</c>", "ls <c>rm x</c> and <c>curl</c>", ["rm x\ncurl"]),
    ("<c>.*?</c>", "<c>rm</c>", ["<c>rm</c>"]),
    ("<c>(.*?)</c>", "rm, curl", []),
    ("(?s)<c>(.*?)</c>", "<c>ls\nrm</c>", ["ls\nrm"]),
    ("<c>(x)?</c>", "<c></c> rm", []),
  ],
)
def test_what_of_an_action_is_a_call(pattern, action, asked):
  guard, judge = make(call=pattern and re.compile(pattern))
  guard.decide([action], ["context"])
  assert judge.asked == ([(asked, ["context"])] if asked else [])


def test_rates_are_shares_of_calls():
  guard, _ = make()
  calls = ["ls", "rm build", "curl secret", "rm secret", "cat secret"]
  events = guard.decide(calls, [""] * 5)
  assert interceptor.rates(events) == {
    "flagged": 0.6,
    "judged": 0.6,
    "blocked": 0.4,
  }
  labels = [False, False, True, False, True]
  scores = interceptor.rates(events, labels)
  assert (scores["precision"], scores["recall"]) == (0.5, 0.5)
  none = interceptor.rates(events[:1], [False])
  assert math.isnan(none["precision"])
  assert math.isnan(none["recall"])


def test_unusable_arguments_are_refused():
  with pytest.raises(ValueError, match="penalty is -1"):
    interceptor.Interceptor([], None, "", penalty=-1)
  with pytest.raises(ValueError, match="0 events and no labels"):
    interceptor.rates([])
  with pytest.raises(ValueError, match="1 events and 2 labels"):
    interceptor.rates([PASSED], [True, False])
