"""Sessions behind an interceptor: what they are told, and what comes back."""

from __future__ import annotations

import pytest

from grpo_jax.rewards.agents import interceptor
from grpo_jax.rewards.workers import sessions
from grpo_jax.rewards.workers.session_worker import SessionAnswer

PATH = "tests.rewards.workers.host_sessions"
COUNTS = {"flagged": 0.0, "judged": 0.0, "blocked": 0.0, "unjudged": 0.0}


@pytest.fixture(scope="module")
def workers():
  with sessions.HostSessions(f"{PATH}:make", row_timeout_s=60.0) as made:
    yield made


def begin(workers, size, judge=None, **options):
  """Sessions that count their turns, behind a guard against "bad"."""
  guard = interceptor.Interceptor(
    [lambda call: "bad" in call], judge, "<none>", **options
  )
  made = sessions.GuardedSessions(workers, guard)
  prompts = [chr(ord("a") + row) for row in range(size)]
  return made.begin(prompts, [{}] * size, range(size))


def test_a_blocked_call_never_reaches_the_session_and_the_episode_goes_on(
  workers,
):
  episodes = begin(workers, 2, penalty=0.25)
  answers = episodes.step({0: "bad", 1: "go"}, False)
  assert answers == {
    0: SessionAnswer("<none>", -0.25, False, None),
    1: SessionAnswer("b1:go", 0.5, False, None),
  }
  # It is the first that this session is told.
  assert episodes.step({0: "go"}, False)[0].observation == "a1:go"
  scores = episodes.end([0, 1])
  assert scores[0] == {
    **{"accuracy": 0.0, "turns": 1.0, "none": None},
    **COUNTS,
    **{"flagged": 1.0, "blocked": 1.0},
  }
  assert scores[1] == {"accuracy": 0.0, "turns": 1.0, "none": None} | COUNTS
  assert scores == episodes.scores


def test_a_blocked_last_call_ends_the_episode_with_its_scores(workers):
  episodes = begin(workers, 2)
  episodes.step({0: "go", 1: "go"}, False)
  answers = episodes.step({0: "bad", 1: "go"}, True)
  assert answers[0][:3] == ("", 0.0, True)
  assert {row: x["turns"] for row, x in episodes.scores.items()} == {0: 1, 1: 2}
  assert episodes.scores[0]["blocked"] == 1.0


def test_a_block_may_end_the_episode(workers):
  episodes = begin(workers, 3, abort=True, penalty=1.0)
  answers = episodes.step({0: "bad", 1: "go", 2: "raise"}, False)
  assert answers[0][:3] == ("", -1.0, True)
  assert answers[1].done is False
  assert episodes.scores.keys() == {0}
  assert episodes.failures.failed.tolist() == [False, False, True]


def test_the_judge_reads_what_came_before(workers):
  asked = []

  def judge(calls, contexts):
    asked.extend(zip(calls, contexts, strict=True))
    return ["very" in call for call in calls]

  episodes = begin(workers, 1, judge)
  for action in ("go", "bad", "very bad", "bad " * 2000, "bad"):
    episodes.step({0: action}, False)
  assert [x[1] for x in asked[:3]] == [
    "ago" + "a1:go",
    "ago" + "a1:go" + "bad" + "a2:bad",
    "ago" + "a1:go" + "bad" + "a2:bad" + "very bad" + "<none>",
  ]
  assert len(asked[-1][1]) == 4096
  counts = episodes.end([0])[0]
  assert (counts["flagged"], counts["judged"], counts["blocked"]) == (4, 4, 1)


def test_a_row_that_has_failed_has_no_scores(workers):
  episodes = begin(workers, 1)
  episodes.step({0: "go"}, False)
  episodes.end([0])
  episodes.fail(0, "its scores are others")
  assert episodes.scores == {}
  assert episodes.failures.failed[0]


def test_names_of_scores_are_those_of_both(workers):
  guard = interceptor.Interceptor([], None, "")
  made = sessions.GuardedSessions(workers, guard)
  assert set(COUNTS) < set(made.score_names("a", {}))

  class Same:
    path = "package:make"

    def score_names(self, prompt, extras):
      return ["accuracy", "blocked"]

  made = sessions.GuardedSessions(Same(), guard)
  with pytest.raises(ValueError, match=r"package:make' has scores \['blocked'"):
    made.score_names("", {})


def test_both_are_closed():
  closed = []

  class Inner:
    def close(self):
      closed.append("sessions")

  guard = interceptor.Interceptor([], None, "")
  sessions.GuardedSessions(
    Inner(), guard, lambda: closed.append("judge")
  ).close()
  assert closed == ["sessions", "judge"]
