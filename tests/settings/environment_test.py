"""Interceptors that a config asks for: what is refused, and what is made."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.rewards.agents import interceptor
from grpo_jax.rewards.workers import sessions as workers
from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import sessions
from tests.rewards.workers import judge_server
from tests.training import host_environment_test, host_sessions
from tests.training.phases import sampler_test

TOOL = "grpo_jax.rewards.agents.python_tool"
no_processes = host_environment_test.no_processes


def get_config(**changes):
  return host_environment_test.get_config(
    **{
      "interceptor__rules": (f"{TOOL}:has_hash",),
      "interceptor__dummy": ("<obs>?</obs>",),
    }
    | changes
  )


def resolved(**changes):
  return config_lib.resolve(get_config(**changes))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"interceptor__rules": ("shel",)}, r"rules has 'shel'; choose of shell, "),
    (
      {"interceptor__rules": ()},
      r"interceptor\.dummy=.* is not read with .*\.rules=\(\)",
    ),
    (
      {"data__environment": ""},
      r"config\.data\.environment is empty; set that",
    ),
    ({"interceptor__dummy": ("a", "b")}, r"are 2 texts; give one, or three"),
    (
      {"interceptor__call": "("},
      r"call='\(' is no regular expression: missing",
    ),
    ({"interceptor__call": "(a)(b)"}, r"has 2 groups, and one can be the call"),
    (
      {"interceptor__penalty": -0.5},
      r"config\.interceptor\.penalty=-0\.5 must",
    ),
    (
      {"interceptor__judge": "service"},
      r"judge='service' is config\.judge, with service\.url=''.*needs an",
    ),
    (
      {
        "interceptor__judge": "service",
        "judge__rubric": "{completion}",
        "judge__model": "model",
        "judge__service": {"url": "http://localhost/v1"},
        "rewards__functions": ("accuracy", "judge"),
      },
      r"one rubric cannot ask both whether a call is bad and how good",
    ),
  ],
)
def test_what_cannot_be_meant_is_refused(changes, message):
  service = changes.pop("judge__service", {})
  config = get_config(**changes)
  if service:
    config.judge.service.update(service)
  if len(config.rewards.functions) == 2:
    config.rewards.weights = (1.0, 1.0)
  with pytest.raises(ValueError, match=f"(?s){message}"):
    config_lib.resolve(config)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"interceptor__rules": ("nowhere:rule",)}, "'nowhere:rule': importing"),
    ({"interceptor__judge": "nowhere:judge"}, "'nowhere:judge': importing"),
    (
      {"interceptor__dummy": ("<obs>é</obs>",)},
      r"config\.interceptor\.dummy=\('<obs>é</obs>',\): ",
    ),
  ],
)
@pytest.mark.usefixtures("no_processes")
def test_what_cannot_be_made_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    problem_lib.make_problem(resolved(**changes))


def test_sets_of_rules_and_rules_of_ones_own():
  own = sessions.rule(f"{TOOL}:has_hash")
  assert own("<tool>#</tool>")
  assert sessions.rule("shell") is interceptor.RULES["shell"]


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize("judge", ["", f"{TOOL}:is_bare_hash"])
def test_a_judge_decides_about_what_is_flagged(judge):
  config = resolved(interceptor__judge=judge, interceptor__penalty=0.5)
  guard = sessions.interceptor(config)[0]
  actions = ["<tool>1+1</tool>", "<tool>#a</tool>", "<tool>#</tool>"]
  events = guard.decide(actions, [""] * 3)
  assert [x.flagged for x in events] == [False, True, True]
  assert [x.blocked for x in events] == [False, not judge, True]
  assert (guard.dummy, guard.penalty) == ("<obs>?</obs>", 0.5)


def test_a_dummy_of_a_chat_has_three_parts():
  config = resolved(interceptor__dummy=("<a>", "no", "</a>"))
  assert config.interceptor.observation == ("<a>", "no", "</a>")


@pytest.mark.usefixtures("no_processes")
def test_a_model_over_http_judges(monkeypatch):
  monkeypatch.setenv("JUDGE_API_KEY", "sk-secret-0123456789")

  def answer(number, question):
    del number
    if "lost" in question:
      return 404, {}, "no such model"
    return judge_server.says(
      "yes" if "call: <tool>#</tool>" in question else "no"
    )

  with judge_server.serving(answer) as server:
    config = get_config(interceptor__judge="service")
    config.judge.rubric = "before: {prompt} call: {completion}"
    config.judge.model = "model"
    config.judge.service.url = server.url
    problem = problem_lib.make_problem(config_lib.resolve(config))
    assert isinstance(problem.sessions, workers.GuardedSessions)
    # Asked once before the run.
    (first,) = (body["messages"][0]["content"] for _, body in server.asked)
    assert first == "before:  call: ls"
    guard = problem.sessions._interceptor
    events = guard.decide(
      [
        "<tool>#</tool>",
        "<tool>#a</tool>",
        "<tool>#b</tool>",
        "<tool>1</tool>",
      ],
      ["abc", "def", "lost", "ghi"],
    )
    assert [x.blocked for x in events] == [True, False, True, False]
    assert [x.unjudged for x in events] == [False, False, True, False]
    asked = {body["messages"][0]["content"] for _, body in server.asked[1:]}
    assert "before: def call: <tool>#a</tool>" in asked
    assert len(asked) == 3
    problem.close()


@pytest.mark.slow
def test_a_rollout_goes_on_after_blocked_calls(monkeypatch):
  """All that the policy does is blocked, and each time it reads the dummy."""
  names = host_sessions.score_names() | {*workers.EVENTS}
  monkeypatch.setattr(host_sessions, "score_names", lambda: names)
  local = host_sessions.Local(host_sessions.calculator)
  guard = interceptor.Interceptor(
    [bool], None, dummy="<obs>?</obs>", penalty=0.5
  )
  guarded = workers.GuardedSessions(local, guard)
  _, rollout, played = sampler_test.play(guarded, sampler_test.make_batch(), 40)
  assert not local.actions
  assert not any(played.failures.values())
  blocked = rollout.scores["blocked"]
  np.testing.assert_array_equal(blocked, rollout.scores["flagged"])
  assert not rollout.scores["judged"].any()
  assert (blocked > 1).any()
  np.testing.assert_allclose(rollout.scores["return"], -0.5 * blocked)
  dummy = vocab.encode("<obs>?</obs>")
  for row in np.flatnonzero(blocked > 1):
    read = rollout.tokens[row][rollout.observed[row]].tolist()
    assert read[: len(dummy)] == dummy
