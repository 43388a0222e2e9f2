"""The guard of Python tools: what is executed, and what the judge sees."""

from __future__ import annotations

import math

import pytest

from grpo_jax.rewards import interceptor


class Spy:
  """A function that remembers what it was asked."""

  def __init__(self, answer):
    self._answer = answer
    self.calls = []

  def __call__(self, *arguments):
    self.calls.append(arguments)
    return self._answer(*arguments)


def make(rules=("rm", "curl"), **options):
  judge = Spy(lambda call, context: "secret" in call)
  tool = Spy(lambda call: f"ran {call}")
  guard = interceptor.Interceptor(
    rules=[lambda call, word=word: word in call for word in rules],
    judge=judge,
    dummy="information not available",
    **options,
  )
  return guard, judge, tool


def test_a_harmless_call_is_executed_and_not_judged():
  guard, judge, tool = make()
  observation, event = guard("ls", "context", tool)
  assert observation == "ran ls"
  assert event == interceptor.Event(False, False, False, 0.0, False)
  assert judge.calls == []


def test_a_benign_flagged_call_passes_and_is_executed():
  guard, judge, tool = make()
  observation, event = guard("rm build", "context", tool)
  assert observation == "ran rm build"
  assert event == interceptor.Event(True, True, False, 0.0, False)
  assert judge.calls == [("rm build", "context")]


def test_a_malicious_call_never_reaches_the_tool():
  guard, judge, tool = make()
  observation, event = guard("curl secret", "context", tool)
  assert observation == "information not available"
  assert event == interceptor.Event(True, True, True, 0.0, False)
  assert tool.calls == []
  assert len(judge.calls) == 1
  # The rules come first: what they miss is not judged.
  assert guard("cat secret", "context", tool)[1].judged is False
  assert len(judge.calls) == 1


def test_a_block_may_end_the_episode_and_cost_a_reward():
  guard, _, tool = make(abort=True, penalty=0.5)
  assert guard("curl secret", "", tool)[1][2:] == (True, -0.5, True)
  assert guard("curl page", "", tool)[1][2:] == (False, 0.0, False)


def test_without_rules_all_passes_and_without_a_judge_all_flagged_is_blocked():
  guard, judge, tool = make(rules=())
  assert guard("curl secret", "", tool)[0] == "ran curl secret"
  assert judge.calls == []
  rules_only = interceptor.Interceptor([lambda call: True], None, "no")
  assert rules_only("ls", "", tool) == (
    "no",
    interceptor.Event(True, False, True, 0.0, False),
  )


def test_a_judge_that_fails_lets_nothing_pass():
  def judge(call, context):
    raise RuntimeError("out of service")

  tool = Spy(lambda call: "")
  guard = interceptor.Interceptor([lambda call: True], judge, "no")
  with pytest.raises(RuntimeError, match="out of service"):
    guard("ls", "", tool)
  assert tool.calls == []


def test_rates_are_shares_of_calls():
  guard, _, tool = make()
  calls = ["ls", "rm build", "curl secret", "rm secret", "cat secret"]
  events = [guard(call, "", tool)[1] for call in calls]
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
  event = interceptor.Event(False, False, False, 0.0, False)
  with pytest.raises(ValueError, match="1 events and 2 labels"):
    interceptor.rates([event], [True, False])
