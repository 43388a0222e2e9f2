"""The box runs programs, holds what matters most, and fails with a reason."""

import subprocess
import sys
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from experiments.rewards import attempts, box_attacks
from grpo_jax.rewards.sandbox import box as box_lib
from grpo_jax.rewards.workers import processes

_SHORT = box_lib.BoxLimits(wall_s=20.0, cpu_s=1)


@pytest.fixture(scope="module")
def box():
  return box_lib.require("bwrap")


@pytest.fixture(scope="module")
def host():
  with attempts.host() as of:
    yield of


@pytest.mark.slow
@pytest.mark.parametrize("kind", box_lib.KINDS)
def test_known_outcomes(kind):
  box = box_lib.Box(kind)

  def run(program, data=b"", calls=None, **limits):
    limits = {"wall_s": 20.0, "cpu_s": 1, **limits}
    return box.run(program, data, calls, box_lib.BoxLimits(**limits))

  assert run("print(2 * int(input()))", b"4") == ("done", b"8\n")
  calls = ["f(4)", "1 / 0", "f('é')", "exit()", "f(1)"]
  outcome = run("f = lambda x: 2 * x\nprint('noise')", calls=calls)
  found = box_lib.answers(outcome, len(calls))
  assert found == ["8", None, "'éé'", None, "2"]
  assert run("print(1, flush=True); 1 / 0") == ("failed", b"1\n")
  assert run("exit(3)").status == "failed"
  assert run("import os; os.kill(os.getpid(), 9)").status == "killed"
  assert run("print('x' * 101)", output=100) == ("flood", b"x" * 100)
  assert run("print('x' * 99)", output=100) == ("done", b"x" * 99 + b"\n")
  assert run("import time; time.sleep(60)", wall_s=2.0).status == "late"
  assert run("import json, re, math, collections").status == "done"
  # So that a set of texts is written in the same order.
  assert run("print(hash('a'))") == run("print(hash('a'))")


def test_calls_end_with_the_program():
  """Answers of earlier calls stay."""
  box = box_lib.Box("process")
  outcome = box.run("import os", calls=["1", "os._exit(0)", "2"], limits=_SHORT)
  assert box_lib.answers(outcome, 3) == ["1", None, None]


@pytest.mark.slow
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(st.lists(st.none() | st.text()), st.binary(), st.data())
def test_answers_are_read_as_far_as_they_are_whole(answers, rest, data):
  texts = [x and x.encode("utf-8", "replace").decode() for x in answers]
  said = b"".join(
    b"-:"
    if x is None
    else b"%d:%s" % (len(x.encode("utf-8", "replace")), x.encode())
    for x in texts
  )
  outcome = box_lib.ProgramResult("done", said + rest)
  assert box_lib.answers(outcome, len(texts)) == texts
  assert len(box_lib.answers(outcome, len(texts) + 3)) == len(texts) + 3
  cut = data.draw(st.integers(0, len(said)))
  found = box_lib.answers(box_lib.ProgramResult("late", said[:cut]), len(texts))
  whole = next((i for i, x in enumerate(found) if x != texts[i]), len(texts))
  assert all(x is None for x in found[whole:])


_MOST_IMPORTANT = (
  *("read a file of the host", "be root", "see processes of the host"),
  *("read variables", "fork", "reach the host's loopback"),
  *("make a file in memory", "write into the root folder"),
  "take 1 GB of memory",
)


@pytest.mark.parametrize("name", _MOST_IMPORTANT)
def test_the_most_important_attacks_are_held_by_what_is_said(name, box, host):
  (attack,) = (x for x in box_attacks.ATTACKS if x.name == name)
  assert not attempts.has_won(box, attack, host)
  bare = box_lib.Box(without=attack.held_by)
  # On a busy machine its time may be over before it has begun.
  assert any(attempts.has_won(bare, attack, host) for _ in range(3))


def test_the_variables_of_bwrap_itself_are_out_of_reach(host):
  """Also where the program has the rights of the box's first process."""
  (attack,) = (
    x
    for x in box_attacks.ATTACKS
    if x.name == "read variables of the first process"
  )
  assert not attempts.has_won(box_lib.Box(without=("user",)), attack, host)
  bare = box_lib.Box(without=("user", "environment"))
  assert attempts.has_won(bare, attack, host)


@pytest.mark.parametrize(
  ("without", "said"),
  [
    (("files",), "read a file of the host: canary"),
    (("processes",), "saw processes"),
    (("system calls", "no forks"), "started a process"),
    (("system calls", "network"), "reached the host's loopback"),
  ],
)
def test_the_self_test_notices_what_is_missing(without, said):
  with pytest.raises(RuntimeError, match=said):
    box_lib.self_test(box_lib.Box(without=without))


def test_what_cannot_be_made_is_an_error_with_a_reason(monkeypatch, tmp_path):
  require = box_lib.require.__wrapped__
  broken = tmp_path / "bwrap"
  broken.write_text("#!/bin/sh\necho 'No permissions to create' >&2\nexit 1\n")
  broken.chmod(0o755)
  monkeypatch.setattr(box_lib, "bwraps", lambda: [str(broken)])
  with pytest.raises(RuntimeError, match=r"No permissions.*unconfined"):
    require("bwrap")
  monkeypatch.setattr(box_lib, "bwraps", lambda: [])
  with pytest.raises(RuntimeError, match=r"grpo-jax\[code\]"):
    require("bwrap")
  with pytest.raises(ValueError, match="'docker'"):
    require("docker")
  with pytest.raises(ValueError, match="'doors'"):
    box_lib.Box(without=("doors",))


def test_one_bwrap_that_works_is_enough(monkeypatch):
  found = ["/bin/false", *box_lib.bwraps()]
  monkeypatch.setattr(box_lib, "bwraps", lambda: found)
  box = box_lib.require.__wrapped__("bwrap")
  assert box.run("print(1)", limits=_SHORT).output == b"1\n"


def test_a_plain_process_says_what_it_does_not_hold():
  with pytest.warns(RuntimeWarning, match="read and write this user's files"):
    assert box_lib.require.__wrapped__("process").kind == "process"


def _ran(program, *arguments):
  return [sys.executable, "-c", program, *arguments]


# A process with a terminal, in which a program tries to open it.
_IN_A_TERMINAL = """
import os, pty, sys
from grpo_jax.rewards.sandbox import box
pid, fd = pty.fork()
if not pid:
  program = "import os; os.open('/dev/tty', os.O_RDWR); print('opened')"
  outcome = box.Box(without=sys.argv[1:]).run(program)
  print("[", outcome.output.decode().strip(), "]")
  sys.exit()
said = b""
try:
  while part := os.read(fd, 1000): said += part
except OSError:
  pass
os.waitpid(pid, 0)
print(said.decode())
"""


@pytest.mark.parametrize(
  ("without", "said"), [((), "[  ]"), (("session",), "[ opened ]")]
)
def test_the_terminal_is_out_of_reach(without, said):
  done = subprocess.run(
    _ran(_IN_A_TERMINAL, *without), capture_output=True, text=True, check=True
  )
  assert said in done.stdout, done


_WAITING = """
import sys
from grpo_jax.rewards.sandbox import box
sandbox = box.Box(without=sys.argv[1:])
print(flush=True)
limits = box.BoxLimits(wall_s=600.0)
sandbox.run("import time; time.sleep(600)", limits=limits)
"""


def _until(is_so):
  end = time.monotonic() + 30.0
  while not is_so() and time.monotonic() < end:
    time.sleep(0.01)
  return is_so()


def _alive(pids):
  return {p for p in pids if (processes._stat(p) or "Z")[0] not in "ZX"}


@pytest.mark.parametrize("without", [(), ("parent",)])
def test_a_program_ends_with_the_trainer(without):
  trainer = subprocess.Popen(
    _ran(_WAITING, *without), stdout=subprocess.PIPE, text=True
  )
  with trainer:
    trainer.stdout.readline()
    # bwrap, the first process of the box, and the program.
    assert _until(lambda: len(processes.below(trainer.pid)) == 3)
    started = processes.below(trainer.pid)
    trainer.kill()
    trainer.wait()
  if without:
    assert len(_alive(started)) == 3
    for pid in started:
      processes._kill(pid, 9)
  assert _until(lambda: not _alive(started))
