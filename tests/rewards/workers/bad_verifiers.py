"""Reward functions that misbehave as real verifiers do, for `host_test.py`.

Each row's completion says what happens, so that one batch holds all of it.
"""

import contextlib
import json
import os
import pathlib
import pickle
import signal
import stat
import struct
import subprocess
import sys
import threading
import time


def parent_of_keeper():
  """Id of the process that has started this worker, or a session's worker."""
  line = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
  return int(line.rpartition(")")[2].split()[1])


def daemon():
  """Starts a process that leaves its group."""
  return subprocess.Popen(["sleep", "600"], start_new_session=True)


# What a worker or session says besides its answer, given that and its number.
SAID = {
  "twice": lambda number, content: _frame([number, content, None]),
  "ahead": lambda number, content: _frame([number + 1, content, None]),
  "wrong number": lambda number, content: _frame([-1, content, None]),
  "true": lambda number, content: _frame([True, content, None]),
  "no content": lambda number, content: _frame([number, None, None]),
  "two contents": lambda number, content: _frame([number, content * 2, None]),
  "words": lambda number, content: _frame([number, ["1.0"] * 4, None]),
  "not a number": lambda number, content: _frame(
    [number, [float("nan")] * len(content), None]
  ),
  "kind": lambda number, content: _frame([number, content, ["fun", "x"]]),
  "greeting": lambda number, content: _frame(["ready", ""]),
  "nested": lambda number, content: _length(10**5) + b"[" * 10**5,
  "digits": lambda number, content: _length(10**5) + b"1" * 10**5,
  "no json": lambda number, content: _length(3) + b"abc",
  "too long": lambda number, content: _length(2**31),
  "pickle": lambda number, content: (
    _length(len(_PICKLE)) + _PICKLE + _PICKLE  # Also as a whole message.
  ),
}


class _Bomb:
  def __reduce__(self):
    return os._exit, (3,)


_PICKLE = pickle.dumps(_Bomb())


def _length(size):
  return struct.pack(">I", size)


def _frame(message):
  body = json.dumps(message).encode()
  return _length(len(body)) + body


def say(what, content):
  """Writes past the worker, or the session, into its pipe."""
  frame = sys._getframe()
  while "number" not in frame.f_locals:
    frame = frame.f_back
  os.write(_socket(), SAID[what](frame.f_locals["number"], content))


def _socket():
  for fd in range(3, 256):
    with contextlib.suppress(OSError):
      if stat.S_ISSOCK(os.fstat(fd).st_mode):
        return fd
  raise AssertionError("no pipe")


def by_completion(prompts, completions, ids, extras):
  """A number is returned as the score; a word names a misbehaviour."""
  del prompts, ids
  (word,), (extra,) = completions, extras
  if word == "loop":
    while True:
      pass
  elif word == "sleep":
    time.sleep(600)
  elif word == "sleep with child":
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path(extra["pid_file"]).write_text(str(child.pid))
    time.sleep(600)
  elif word == "sleep with daemon":
    pathlib.Path(extra["pid_file"]).write_text(str(daemon().pid))
    time.sleep(600)
  elif word == "crash with daemon":
    pathlib.Path(extra["pid_file"]).write_text(str(daemon().pid))
    os._exit(0)
  elif word == "fork":
    return [float(os.fork() > 0)]
  elif word == "fork and speak":
    fd = os.dup(_socket())
    if not os.fork():
      time.sleep(0.3)
      os.write(fd, SAID["wrong number"](0, [9.0]))
      os._exit(0)
    return [0.5]
  elif word == "half":
    os.write(_socket(), _length(100) + b"[1, ")
    time.sleep(600)
  elif word.startswith("slow "):
    time.sleep(float(word.removeprefix("slow ")))
    return [0.25]
  elif word in SAID:
    say(word, [9.0, 9.0])
    return [0.5]
  elif word == "raise":
    raise ValueError("no such answer")
  elif word == "raise timeout":
    raise TimeoutError("its own deadline")
  elif word == "sys.exit":
    sys.exit(0)
  elif word == "os._exit":
    os._exit(0)
  elif word == "crash":
    os.kill(os.getpid(), signal.SIGKILL)
  elif word == "nan":
    return [float("nan")]
  elif word == "none":
    return [None]
  elif word == "two":
    return [1.0, 1.0]
  elif word == "empty":
    return []
  elif word == "text":
    return ["1.0"]
  elif word == "leave alarm":
    signal.alarm(1)
    return [0.5]
  return [float(word)]


def length(prompts, completions, ids, extras):
  del prompts, ids, extras
  return [float(len(text)) for text in completions]


def logged_length(prompts, completions, ids, extras):
  """The length; the file $SCORED gets the process of the run, and the row."""
  del prompts, extras
  line = f"{parent_of_keeper()} {ids[0]} {completions[0]!r}\n"
  with open(os.environ["SCORED"], "a", encoding="utf-8") as file:
    file.write(line)
  return [float(len(completions[0]))]


def exact(prompts, completions, ids, extras):
  """The third of a number, which no short text has."""
  del prompts, completions, ids
  return [extras[0]["x"] / 3]


def variable(prompts, completions, ids, extras):
  """1.0 if there is an environment variable of this name."""
  del prompts, ids, extras
  return [float(completions[0] in os.environ)]


def pid(prompts, completions, ids, extras):
  del prompts, completions, ids, extras
  return [float(os.getpid())]


def surroundings(prompts, completions, ids, extras):
  """Scores 1.0 in a main thread without jax and the program that started it."""
  del prompts, completions, ids, extras
  return [
    float(
      threading.current_thread() is threading.main_thread()
      and "jax" not in sys.modules
      and "numpy" not in sys.modules
      and "tests.rewards.workers.host_test" not in sys.modules
    )
  ]


def slow_import(prompts, completions, ids, extras):
  del prompts, ids, extras
  return [float(text) for text in completions]


slow_import.warm_up = lambda: time.sleep(1.0)


def broken_import(prompts, completions, ids, extras):
  del prompts, completions, ids, extras
  return [1.0]


def starts_badly(prompts, completions, ids, extras):
  return by_completion(prompts, completions, ids, extras)


def _count_starts():
  """Fails from the second start on, as often as $BAD_STARTS says."""
  file = pathlib.Path(os.environ["STARTS"])
  with open(file, "a", encoding="utf-8") as f:
    f.write("x")
  if 1 < file.stat().st_size <= 1 + int(os.environ["BAD_STARTS"]):
    raise ImportError("a file system is gone")


starts_badly.warm_up = _count_starts


def _missing():
  raise ImportError("needs a package that is not installed")


broken_import.warm_up = _missing
