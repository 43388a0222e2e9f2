"""The interpreter keeps names, and whatever a block does is only text."""

import contextlib
import os
import signal
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from grpo_jax.rewards.sandbox import box, interpreter
from grpo_jax.rewards.workers import processes

NEW = interpreter._NEW


@contextlib.contextmanager
def started(**limits):
  python = interpreter.Interpreter(
    **{"call_s": 60.0, "total_s": 600.0, **limits}
  )
  try:
    yield python
  finally:
    python.close()


@pytest.fixture(scope="module")
def python():
  with started(max_calls=10**6) as made:
    yield made


def test_names_stay_and_an_expression_is_shown(python):
  assert python.run("x = 27 + 45") == ("done", "")
  assert python.run("x - 8") == ("done", "64")
  assert python.run("print('a')\nprint('é', end='')\nx\n") == ("done", "a\né72")
  assert python.call("import math\ndef f(n):\n  return math.factorial(n)") == ""
  assert python.call("[f(n) for n in range(5)]") == "[1, 1, 2, 6, 24]"
  assert python.call("None") == ""
  assert python.call("") == ""
  assert python.call("_") == "[1, 1, 2, 6, 24]"  # As at a prompt.
  python.call("open('kept', 'w').write('here')")
  assert python.call("open('kept').read()") == "'here'"


def test_errors_are_short_and_say_where(python):
  python.call("def f(x):\n  return 1 / x")
  (kept,) = python.call("import sys; print(len(sys.argv))")
  assert kept == "1"
  status, said = python.run("y = 3\nf(0)")
  assert status == "raised"
  first, second, third = said.split("\n")
  assert first == "line 2: f(0)"
  assert second.startswith("call ")
  assert second.endswith(", line 2, in f: return 1 / x")
  assert third == "ZeroDivisionError: division by zero"
  assert python.call("y") == "3"  # What came before the error has happened.
  assert python.run("a b") == (
    "raised",
    "line 1: a b\nSyntaxError: invalid syntax",
  )
  assert python.call("print(1)\nexit(3)") == "1\nline 2: exit(3)\nSystemExit: 3"
  assert python.call("input()") == (
    "line 1: input()\nEOFError: EOF when reading a line"
  )
  said = python.call("def g(): g()\ng()")
  assert said.count("in g") == 3
  assert said.endswith("RecursionError: maximum recursion depth exceeded")
  assert python.call("import json\njson.loads('{')").count("\n") == 1
  assert python.call("x = 'a' * 2**31").endswith("MemoryError")
  odd = "class E(Exception):\n  def __str__(self): return 1\nraise E"
  assert python.call(odd) == "line 3: raise E\nE: TypeError"
  assert python.run("1\0") == (
    "raised",
    "SyntaxError: source code string cannot contain null bytes",
  )


def test_the_same_block_says_the_same_in_another_box():
  block = "print({str(i) for i in range(9)})\nprint(object(), min)\nlambda: 0"
  said = set()
  for _ in range(2):
    with started() as python:
      said.add(python.call(block))
  (one,) = said
  assert one.count(" at 0x…>") == 2
  assert "{'" in one


def test_long_output_loses_its_middle():
  with started(max_bytes=100) as python:
    whole = "a" * 80 + "b" * 40 + "\nline 2: 1 / 0\n"
    whole += "ZeroDivisionError: division by zero"
    said = python.call("print('a' * 80 + 'b' * 40)\n1 / 0")
    note = f"\n[{len(whole) - 100} bytes left out]\n"
    assert said == whole[:75] + note + whole[-25:]
    assert python.call("'x' * 98") == repr("x" * 98)[:75] + (
      # With the end of its line.
      "\n[1 bytes left out]\n" + "x" * 23 + "'"
    )


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(st.lists(st.binary(max_size=40)), st.integers(1, 60))
def test_what_is_kept_is_the_first_and_the_last(parts, most):
  output = interpreter._Output(most)
  for part in parts:
    output.add(part)
  whole = b"".join(parts)
  kept = bytes(output._first + output._last)
  assert output.size == len(whole)
  if len(whole) <= most:
    assert kept == whole
  else:
    assert len(kept) == most
    assert whole.startswith(bytes(output._first))
    assert whole.endswith(bytes(output._last))
    assert f"[{len(whole) - most} bytes left out]" in output.text()


@pytest.mark.parametrize("kind", box.KINDS)
def test_a_block_that_hangs_is_killed_and_the_next_one_is_told(kind):
  with started(sandbox=kind, call_s=0.5) as python:
    assert python.call("x = 1") == ""
    pid = python._process.pid
    start = time.monotonic()
    assert python.run("print('first')\nwhile True: pass") == (
      "late",
      "first\n[killed: no answer in 0.5 s]",
    )
    assert 0.4 < time.monotonic() - start < 10.0
    with pytest.raises(ProcessLookupError):
      os.kill(pid, 0)
    python._call_s = 60.0
    assert python.call("x") == (
      NEW + "line 1: x\nNameError: name 'x' is not defined"
    )
    assert python.call("2") == "2"  # It is said once.


@pytest.mark.parametrize(
  "block",
  [
    "import os; os._exit(0)",
    "import os; os.kill(os.getpid(), 9)",
    "import ctypes; ctypes.string_at(0)",
    "import os; os.closerange(0, 32)",
    "import os; os.execv('/bin/true', ['true'])",
    # The memory that is left does not even do for the next call.
    "import resource; resource.setrlimit(resource.RLIMIT_CPU, (0, 0))\n"
    "while True: pass",
  ],
)
def test_an_interpreter_that_ends_is_replaced(block):
  with started() as python:
    python.call("x = 1")
    status, said = python.run(f"print('so far', flush=True)\n{block}")
    assert status == "ended"
    assert said == "so far\n[the interpreter has ended]"
    assert python.call("1 + 1") == NEW + "2"


def test_a_flood_is_stopped():
  with started() as python:
    start = time.monotonic()
    status, said = python.run("while True: print('x' * 1000)")
    assert time.monotonic() - start < 20.0
    assert status == "flood"
    assert said.endswith("\n[killed: it wrote more than 1048576 bytes]")
    assert len(said) < 4096 + 200
    assert python.call("1") == NEW + "1"
    # As much at once, of which the end is not lost in the pipe.
    assert python.run("print('x' * (1 << 20))").status == "flood"
    assert python.run("print('x' * (1 << 19))").status == "done"


@pytest.mark.parametrize(
  "block",
  [
    *("import os; os.fork()", "import subprocess; subprocess.run(['true'])"),
    "import threading; threading.Thread(target=print).start()",
    *("import socket; socket.socket()", "open('/etc/passwd')"),
    "import os; os.kill(1, 9); os.listdir('/proc/1/fd')",
    "open('large', 'wb').write(b'x' * (2 << 20))",
  ],
)
def test_the_box_holds(python, block):
  assert python.run(block).status == "raised"


# Reads the number of its own call out of the frames below it.
_TAKES_OVER = """
import os, sys
frame = sys._getframe()
while "nonce" not in frame.f_locals: frame = frame.f_back
channel, asks = frame.f_locals["channel"], frame.f_locals["asks"]
nonce = frame.f_locals.get("nonce")
"""


@pytest.mark.parametrize(
  ("block", "status"),
  [
    # Ends of calls that are none.
    ("os.write(channel, b'.')", "ended"),
    ("os.write(channel, bytes(16) + b'.')", "ended"),
    ("os.write(channel, nonce[:9])", "ended"),
    ("os.write(channel, nonce + b'?')", "ended"),
    ("os.write(channel, b'x' * 60000)", "ended"),
    # Its own end, before it is over, and with more behind it.
    ("os.write(channel, nonce + b'.' + nonce + b'.')", "done"),
    ("os.write(channel, nonce + b'.')", "done"),
    ("os.write(channel, nonce + b'.'); os.write(1, b'7'); os._exit(0)", "done"),
    ("os.write(channel, nonce + b'.'); os.read(asks, 99); os._exit(0)", "done"),
    ("os.write(channel, nonce + b'.'); os.close(channel)", "done"),
    ("os.write(channel, nonce + b'!')", "raised"),
    # Where answers go, and calls come from.
    ("os.dup2(1, channel)", "late"),
    ("os.dup2(channel, 1); print('x')", "ended"),
    ("os.close(channel)", "ended"),
    ("os.close(asks)", "done"),
    ("os.dup2(0, asks)", "done"),
  ],
)
def test_no_end_that_is_written_counts_for_a_later_call(block, status):
  with started(call_s=60.0) as python:
    # The number of a call is not in the frames before it is read.
    python.call("1")
    if status == "late":
      python._call_s = 0.5
    assert python.run(_TAKES_OVER + block).status == status
    python._call_s = 60.0
    if status in ("done", "raised"):
      # It may end in the middle of this call, or have ended before it.
      time.sleep(0.05)
      answer = python.run("6 * 7")
      assert answer in (
        ("ended", "[the interpreter has ended]"),
        ("done", NEW + "42"),
        ("late", "[killed: no answer in 60 s]"),
      )
      expected = NEW + "42" if answer.status != "done" else "42"
    else:
      expected = NEW + "42"
    assert python.call("6 * 7") == expected


# Says that it has ended, and speaks during the next call.
_SPEAKS_LATER = (
  _TAKES_OVER
  + """
import time
os.write(channel, nonce + b'.')
time.sleep(0.3)
os.write(1, b'forged')
"""
)


def test_what_a_block_says_after_its_end_is_not_the_next_answer():
  with started() as python:
    assert python.run(_SPEAKS_LATER) == ("done", "")
    assert python.run("6 * 7").status == "ended"
    assert python.call("6 * 7") == NEW + "42"


def test_one_that_reads_nothing_does_not_hold_the_host_up():
  with started(call_s=1.0) as python:
    block = _TAKES_OVER + "os.write(channel, nonce + b'.')\nwhile True: pass"
    assert python.run(block).status == "done"
    start = time.monotonic()
    assert python.run("1" * 2**20).status == "late"  # More than a pipe holds.
    assert time.monotonic() - start < 10.0
    assert python.call("2") == NEW + "2"


def test_threads_of_a_plain_process_that_write_for_ever():
  with started(sandbox="process", call_s=10.0) as python:
    block = (
      "import os, threading\n"
      "def write():\n"
      "  while True: os.write(1, b'x' * 1000)\n"
      "threading.Thread(target=write, daemon=True).start()"
    )
    status = python.run(block).status
    if status == "done":  # It may have written enough already.
      status = python.run("import time; time.sleep(5)").status
    assert status == "flood"
    assert python.call("2") == NEW + "2"


def test_one_that_was_killed_between_calls_is_replaced():
  with started() as python:
    assert python.call("x = 1") == ""
    os.kill(python._process.pid, signal.SIGKILL)
    python._process.wait()
    assert python.run("2") == ("done", NEW + "2")


def test_calls_and_seconds_are_limited():
  with started(max_calls=2) as python:
    assert python.call("1") == "1"
    assert python.call("2") == "2"
    assert python.run("3") == ("refused", "[refused: 2 calls were made]")
  with started(call_s=0.4, total_s=0.5) as python:
    assert python.run("import time; time.sleep(60)").status == "late"
    assert python.run("import time; time.sleep(60)") == (
      "late",
      NEW + "[killed: 0.5 s are used up]",
    )
    assert python.run("1") == ("refused", "[refused: 0.5 s are used up]")
    assert python._process is None


@pytest.mark.slow
def test_cpu_time_is_limited_over_all_calls():
  with started(cpu_s=1) as python:
    burn = "import time\nend = time.process_time() + 0.4\n"
    burn += "while time.process_time() < end: pass"
    statuses = [python.run(burn).status for _ in range(4)]
    assert "ended" in statuses
    assert statuses[0] == "done"


@pytest.mark.parametrize(
  ("limits", "said"),
  [
    ({"sandbox": "docker"}, "'docker'; choose one of"),
    ({"call_s": 0}, "call_s=0; needs a number from 0.001"),
    ({"total_s": float("nan")}, "total_s=nan"),
    ({"max_calls": 1.5}, "max_calls=1.5; needs a whole number from 1 on"),
    ({"memory": 1 << 20}, "memory=1048576"),
    ({"max_bytes": 1 << 30}, "max_bytes=1073741824"),
    ({"cpu_s": True}, "cpu_s=True"),
  ],
)
def test_limits_that_are_none(limits, said):
  with pytest.raises(ValueError, match=said):
    interpreter.Interpreter(**limits)


def test_a_box_that_cannot_be_made_raises(monkeypatch):
  broken = box.Box("bwrap", "/bin/false")
  monkeypatch.setattr(box, "require", lambda kind: broken)
  with started() as python, pytest.raises(RuntimeError, match="could not be"):
    python.call("1")
  broken.close()
  slow = box.Box("bwrap", "/bin/false")
  monkeypatch.setattr(slow, "_command", lambda *_: ["/bin/sleep", "60"])
  monkeypatch.setattr(box, "require", lambda kind: slow)
  with started() as python:
    python._limits = box.BoxLimits(wall_s=0.2)
    with pytest.raises(TimeoutError, match="not begun"):
      python.call("1")
  slow.close()


def test_nothing_is_left():
  box.require("bwrap")
  before = set(os.listdir("/proc/self/fd")), processes.below(os.getpid())
  for block in ("1", "while True: pass", "import os; os._exit(0)"):
    with started(call_s=0.5) as python:
      python.call(block)
  after = set(os.listdir("/proc/self/fd")), processes.below(os.getpid())
  assert after == before
