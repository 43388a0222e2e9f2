"""HostSessions: an episode that fails neither ends others nor is rewarded."""

import contextlib
import fcntl
import os
import signal
import sys
import termios
import time

import numpy as np
import pytest

from grpo_jax.rewards.workers import pool, sessions
from tests.rewards.workers import bad_verifiers, host_test

PATH = "tests.rewards.workers.host_sessions"


@pytest.fixture(scope="module")
def workers():
  with sessions.HostSessions(f"{PATH}:make", row_timeout_s=60.0) as made:
    yield made


@pytest.fixture(scope="module")
def impatient():
  """Sessions with a deadline that is to pass, and no other if busy."""
  with sessions.HostSessions(f"{PATH}:make", row_timeout_s=2.0) as made:
    yield made


def begin(workers, size, **extras):
  prompts = [chr(ord("a") + row) for row in range(size)]
  return workers.begin(prompts, [extras] * size, range(size))


def test_a_row_is_answered_by_its_own_session_turn_after_turn(workers):
  episodes = begin(workers, 20)
  for turn in (1, 2, 3):
    answers = episodes.step({row: f"go {row}" for row in range(20)}, False)
    for row, answer in answers.items():
      letter = chr(ord("a") + row)
      assert answer == (f"{letter}{turn}:go {row}", 0.5, False, None)
    assert len(answers) == 20
  scores = episodes.end(range(20))
  expected = {"accuracy": 0.0, "turns": 3.0, "none": None}
  assert scores == {row: expected for row in range(20)}
  assert not episodes.failures.failed.any()


def test_done_ends_an_episode_with_its_scores(workers, tmp_path):
  closed = tmp_path / "closed"
  episodes = begin(workers, 1, closed=str(closed))
  (answer,) = episodes.step({0: "right"}, False).values()
  assert (answer.reward, answer.done) == (1.0, True)
  assert episodes.scores[0]["accuracy"] == 1.0
  assert host_test.wait_until(closed.exists)


def test_the_last_action_brings_the_scores_along(workers):
  episodes = begin(workers, 2)
  episodes.step({0: "x", 1: "y"}, False)
  answers = episodes.step({0: "x", 1: "y"}, True)
  assert answers[1].scores["turns"] == 2.0
  assert episodes.scores.keys() == {0, 1}


@pytest.mark.slow
def test_others_go_on_whatever_a_row_does(impatient):
  kinds = {
    "raise": "raised",
    "sys.exit": "raised",
    "bytes": "raised",
    "nan": "nan",
    "1e39": "nan",
    "text": "raised",
    "os._exit": "worker_died",
    "loop": "timeout",
  }
  episodes = begin(impatient, 2 * len(kinds))
  rows = range(2 * len(kinds))
  episodes.step({row: "first" for row in rows}, False)
  start = time.monotonic()
  answers = episodes.step(
    {2 * i: kind for i, kind in enumerate(kinds)}
    | {2 * i + 1: "second" for i in range(len(kinds))},
    False,
  )
  assert time.monotonic() - start < 20.0
  assert sorted(answers) == list(rows)[1::2]
  assert all(x.observation.endswith("2:second") for x in answers.values())
  counts = dict.fromkeys(pool.FAILURE_KINDS, 0)
  for kind in kinds.values():
    counts[kind] += 1
  assert episodes.failures.counts == counts
  np.testing.assert_array_equal(
    np.flatnonzero(episodes.failures.failed), rows[::2]
  )
  scores = episodes.end(list(rows)[1::2])
  assert {x["turns"] for x in scores.values()} == {2.0}
  assert len(episodes.failures.errors) == 3
  assert "host_sessions.py:" in episodes.failures.messages[0]


def test_a_worker_that_dies_takes_its_own_sessions_and_is_replaced(workers):
  episodes = begin(workers, 6)
  episodes.step({row: "first" for row in range(6)}, False)
  actions = {row: "second" for row in range(6)} | {2: "kill the worker"}
  answers = episodes.step(actions, False)
  # Rows of one parity share a worker; of these some were answered.
  assert {1, 3, 5} <= answers.keys() <= {0, 1, 3, 4, 5}
  later = episodes.step({row: "third" for row in answers}, True)
  assert {1, 3, 5} == later.keys()
  assert episodes.failures.counts["worker_died"] == 3
  again = begin(workers, 6)
  assert len(again.step({row: "x" for row in range(6)}, True)) == 6


def test_a_session_whose_keeper_is_killed_ends_alone(workers):
  episodes = begin(workers, 4)
  actions = {row: "x" for row in range(4)} | {2: "kill the keeper"}
  assert episodes.step(actions, False).keys() == {0, 1, 3}
  assert episodes.failures.counts["worker_died"] == 1
  assert episodes.step({0: "x", 1: "x", 3: "x"}, True).keys() == {0, 1, 3}


def test_what_nobody_asked_for_ends_its_episode_and_no_other(workers):
  said = list(bad_verifiers.SAID)
  # These say what any session may say.
  said.remove("twice")
  episodes = begin(workers, len(said) + 1)
  answers = episodes.step({**dict(enumerate(said)), len(said): "x"}, False)
  assert answers.keys() == {len(said)}
  assert episodes.failures.counts["worker_died"] == len(said)
  assert episodes.end([len(said)])[len(said)]["turns"] == 1.0


def test_a_session_that_answers_twice_fails_at_its_next_turn(workers):
  episodes = begin(workers, 2)
  said = episodes.step({0: "speak twice", 1: "x"}, False)
  assert said[0].observation == "x"
  assert episodes.step({0: "x", 1: "x"}, False).keys() == {1}
  assert episodes.failures.counts["worker_died"] == 1


def test_a_process_that_a_session_forks_does_not_answer(workers):
  episodes = begin(workers, 1)
  episodes.step({0: "fork"}, False)
  for turn in (2, 3):
    (answer,) = episodes.step({0: "x"}, False).values()
    assert answer.observation == f"a{turn}:x"


def test_a_session_takes_processes_that_left_its_group(workers):
  episodes = begin(workers, 4)
  said = episodes.step(dict.fromkeys(range(4), "leave a daemon"), False)
  pids = {row: int(answer.observation) for row, answer in said.items()}
  ends = {0: "os._exit", 1: "right", 2: "raise"}
  episodes.step(ends, False)
  for row in ends:
    assert host_test.wait_until(lambda pid=pids[row]: host_test.is_gone(pid))
  assert not host_test.is_gone(pids[3])
  begin(workers, 4).step(dict.fromkeys(range(4), "x"), True)
  assert host_test.is_gone(pids[3])


def test_text_and_numbers_arrive_as_they_are(workers):
  episodes = begin(workers, 2)
  answers = episodes.step({0: "\ud800", 1: "surrogate"}, False)
  assert answers[0].observation == "a1:\ud800"
  assert answers[1] == ("\ud800", 1 / 3, False, None)


def test_an_observation_is_text_or_text_in_a_chat(workers):
  episodes = begin(workers, 3)
  answers = episodes.step({0: "chat", 1: "two texts", 2: "two tools"}, False)
  assert answers.keys() == {0, 2}
  assert answers[0].observation == ("<tool>", "a", "</tool>")
  said = ("<tool>", "1", "</tool><tool>", "2", "</tool>")
  assert answers[2].observation == said
  assert "needs a str, or three of them" in episodes.failures.errors[0]


def test_an_observation_of_megabytes_ends_its_episode(workers):
  episodes = begin(workers, 2)
  assert episodes.step({0: "long", 1: "x"}, False).keys() == {1}
  assert episodes.failures.counts["raised"] == 1
  assert "a message of 335" in episodes.failures.errors[0]


def test_sessions_get_no_secrets(monkeypatch):
  monkeypatch.setenv("HF_TOKEN", "secret")
  with sessions.HostSessions(f"{PATH}:make", num_workers=1) as workers:
    (answer,) = begin(workers, 1).step({0: "token"}, True).values()
  assert answer.observation == "none"


@pytest.mark.slow
def test_a_killed_session_takes_its_subprocesses_with_it(impatient, tmp_path):
  pid_file = tmp_path / "pid"
  episodes = begin(impatient, 1, pid_file=str(pid_file))
  assert episodes.step({0: "sleep with child"}, False) == {}
  assert episodes.failures.counts["timeout"] == 1
  child = int(pid_file.read_text())
  assert host_test.wait_until(lambda: host_test.is_gone(child))


def test_sessions_of_the_rollout_before_are_gone(workers):
  before = begin(workers, 2)
  pids = [
    int(x.observation)
    for x in before.step({0: "pid", 1: "pid"}, False).values()
  ]
  begin(workers, 2).step({0: "x", 1: "x"}, False)
  assert all(map(host_test.is_gone, pids))


def test_random_numbers_are_those_of_the_seed(workers):
  def drawn():
    episodes = begin(workers, 3)
    answers = episodes.step({row: "random" for row in range(3)}, True)
    return [answers[row].observation for row in range(3)]

  assert drawn() == drawn()
  assert len(set(" ".join(drawn()).split())) == 6  # Python's, and NumPy's.


@pytest.mark.slow
def test_the_step_deadline_is_over_all_turns():
  with sessions.HostSessions(
    f"{PATH}:make", row_timeout_s=60.0, step_timeout_s=2.0
  ) as workers:
    episodes = begin(workers, 4)
    assert len(episodes.step({row: "x" for row in range(4)}, False)) == 4
    answers = episodes.step({0: "loop", 1: "x", 2: "x", 3: "x"}, False)
    assert answers.keys() == {1, 2, 3}
    assert episodes.failures.counts["step_timeout"] == 1
    assert "the 2.0 s for all" in episodes.failures.errors[0]
    assert "config.rewards.step_timeout_s" in episodes.failures.errors[0]
    # None of these would answer soon; an answer that is there is taken.
    assert episodes.step(dict.fromkeys((1, 2, 3), "loop"), False) == {}
    assert episodes.failures.failed.all()
    workers.step_timeout_s = 60.0
    again = begin(workers, 4)
    assert len(again.step({row: "x" for row in range(4)}, True)) == 4


def test_names_of_scores_are_known_before_any_action(workers):
  assert workers.score_names("a", {}) == ["accuracy", "none", "turns"]
  with pytest.raises(ValueError, match="cannot begin"):
    workers.score_names("no session", {})


def test_a_factory_that_is_not_there_raises():
  with pytest.raises(
    ValueError, match=r"environment 'tests.rewards.*has no function 'mak'"
  ):
    sessions.HostSessions(f"{PATH}:mak")


@pytest.mark.parametrize(
  ("name", "names"),
  [
    ("without_accuracy", r"\['turns'\]"),
    ("with_return", r"\['accuracy', 'return'\]"),
  ],
)
def test_sessions_without_the_scores_that_are_needed_raise(name, names):
  with (
    sessions.HostSessions(f"{PATH}:{name}", num_workers=1) as workers,
    pytest.raises(ValueError, match=f"has the scores {names}.*'accuracy'"),
  ):
    workers.score_names("a", {})


def test_sessions_end_with_their_owner():
  with sessions.HostSessions(f"{PATH}:make") as workers:
    episodes = begin(workers, 1)
    pid = int(episodes.step({0: "pid"}, False)[0].observation)
  assert host_test.wait_until(lambda: host_test.is_gone(pid))
  with pytest.raises(RuntimeError, match="closed"):
    begin(workers, 1)


def test_what_an_idle_session_has_started_ends_with_its_owner():
  with sessions.HostSessions(f"{PATH}:make") as workers:
    episodes = begin(workers, 2)
    answers = episodes.step(dict.fromkeys(range(2), "leave a child"), False)
    children = [int(answer.observation) for answer in answers.values()]
    assert not any(map(host_test.is_gone, children))
  for child in children:
    assert host_test.wait_until(lambda pid=child: host_test.is_gone(pid))


@pytest.mark.slow
def test_a_session_that_holds_the_lock_ends_after_its_worker():
  with sessions.HostSessions(
    f"{PATH}:make", row_timeout_s=2.0, step_timeout_s=1.5, num_workers=1
  ) as workers:
    episodes = begin(workers, 1)
    pid = int(episodes.step({0: "pid"}, False)[0].observation)
    assert episodes.step({0: "hold the lock"}, False) == {}
    assert episodes.failures.counts["step_timeout"] == 1
  try:
    assert host_test.wait_until(lambda: host_test.is_gone(pid), seconds=30.0)
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)


def test_too_many_sessions_fail_with_a_reason_and_the_others_go_on():
  with sessions.HostSessions(
    f"{PATH}:with_few_files", num_workers=1
  ) as workers:
    episodes = begin(workers, 20)
    answers = episodes.step(dict.fromkeys(range(20), "x"), False)
    assert 0 < len(answers) < 20
    assert episodes.failures.counts["raised"] == 20 - len(answers)
    assert "Too many open files; raise" in episodes.failures.errors[0]
    assert "ulimit -n" in episodes.failures.errors[0]
    assert len(episodes.step(dict.fromkeys(answers, "y"), True)) == len(answers)
    again = begin(workers, 2)
    assert len(again.step({0: "x", 1: "x"}, True)) == 2


def test_what_fails_before_a_session_is_its_failure():
  with sessions.HostSessions(
    f"{PATH}:without_a_tool", num_workers=1
  ) as workers:
    episodes = begin(workers, 1)
    assert episodes.step({0: "x"}, True) == {}
    assert episodes.failures.counts["raised"] == 1
    assert "no tool for this session" in episodes.failures.errors[0]


def test_options_reach_the_factory_and_its_warm_up():
  with sessions.HostSessions(
    f"{PATH}:greet", num_workers=1, options={"word": "hey", "times": 2}
  ) as workers:
    answers = begin(workers, 1).step({0: "Ann"}, False)
  assert answers[0].observation == "hey hey, Ann"


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({}, "missing a required argument: 'word'; .* takes word, times"),
    ({"word": "hey", "tims": 2}, "unexpected keyword argument 'tims'"),
    ({"word": "hey", "prompt": "x"}, "multiple values for argument 'prompt'"),
  ],
)
def test_options_that_the_factory_does_not_take(options, said):
  with pytest.raises(ValueError, match=said):
    sessions.HostSessions(f"{PATH}:greet", options=options)


def test_nobody_waits_for_the_slowest(workers, tmp_path):
  episodes = begin(workers, 6)
  wait = f"wait for six in {tmp_path}"
  episodes.ask(dict.fromkeys(range(6), (wait, False)) | {4: ("x", False)})
  assert episodes.pending == {*range(6)}
  # Those of its own worker are asked before it, and answer after it.
  assert episodes.poll(60.0).keys() == {4}
  assert episodes.pending == {0, 1, 2, 3, 5}
  assert episodes.poll(0.0) == {}
  episodes.ask({4: ("y", False)})
  assert episodes.poll(60.0)[4].observation == "e2:y"
  (tmp_path / "the sixth").touch()
  found = {}
  while episodes.pending:
    found |= episodes.poll(60.0)
  # Each has waited for the others: together, and not one after another.
  assert found.keys() == {0, 1, 2, 3, 5}
  assert {x.observation for x in found.values()} == {
    f"{name}1:{wait}" for name in "abcdf"
  }


def test_time_in_which_nobody_listens_is_not_that_of_the_sessions(
  workers, monkeypatch
):
  """As while a device decodes: answers wait that one look does not read."""
  episodes = begin(workers, 4)
  long = "x" * 40_000
  episodes.ask({row: (long, False) for row in range(4)})

  def have_come():
    counts = [
      fcntl.ioctl(worker.channel.fileno(), termios.FIONREAD, b"\0" * 4)
      for worker in workers.pool._workers
    ]
    return min(int.from_bytes(x, sys.byteorder) for x in counts) > 2 * len(long)

  assert host_test.wait_until(have_come, 60.0)
  clock = time.monotonic
  monkeypatch.setattr(time, "monotonic", lambda: clock() + 1000.0)
  answers = {}
  while episodes.pending:
    answers |= episodes.poll(1.0)
  assert not episodes.failures.failed.any(), episodes.failures.errors
  assert [answers[row].observation for row in range(4)] == [
    f"{letter}1:{long}" for letter in "abcd"
  ]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "concurrency", "options"),
  [("make", 1, {}), ("alone", 8, {}), ("alone", 8, {"tool": "bell"})],
)
def test_sessions_that_share_a_tool_are_asked_one_after_another(
  name, concurrency, options
):
  with sessions.HostSessions(
    f"{PATH}:{name}", num_workers=1, concurrency=concurrency, options=options
  ) as workers:
    assert workers.concurrency == 1
    episodes = begin(workers, 2)
    start = time.monotonic()
    answers = episodes.step(dict.fromkeys(range(2), "nap"), True)
    assert time.monotonic() - start > 2.0
    assert len(answers) == 2


def test_without_a_session_at_work_nothing_would_come():
  with pytest.raises(ValueError, match="concurrency is 0; needs"):
    sessions.HostSessions(f"{PATH}:make", concurrency=0)


@pytest.mark.slow
def test_a_row_that_fails_is_said_to_have_failed_once(workers):
  episodes = begin(workers, 2)
  episodes.ask({0: ("raise", False), 1: ("x", False)})
  found = {}
  while episodes.pending:
    found |= episodes.poll(60.0)
  assert found[0] is None
  assert found[1].observation == "b1:x"
  # Whoever asks a failed row once more is told so at once.
  episodes.ask({0: ("x", False)})
  assert episodes.poll(60.0) == {0: None}
  assert episodes.failures.counts["raised"] == 1
