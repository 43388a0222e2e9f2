"""Reward functions that misbehave as real verifiers do, for `host_test.py`.

Each row's completion says what happens, so that one batch holds all of it.
"""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time


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
  """The length; $SCORED says which process of the run asked, and for what."""
  del prompts, extras
  line = f"{os.getppid()} {ids[0]} {completions[0]!r}\n"
  with open(os.environ["SCORED"], "a", encoding="utf-8") as file:
    file.write(line)
  return [float(len(completions[0]))]


def pid(prompts, completions, ids, extras):
  del prompts, completions, ids, extras
  return [float(os.getpid())]


def surroundings(prompts, completions, ids, extras):
  """1.0 in a main thread without jax, without the program that started it."""
  del prompts, completions, ids, extras
  return [
    float(
      threading.current_thread() is threading.main_thread()
      and "jax" not in sys.modules
      and "numpy" not in sys.modules
      and "tests.rewards.host_test" not in sys.modules
    )
  ]


def slow_import(prompts, completions, ids, extras):
  del prompts, ids, extras
  return [float(text) for text in completions]


slow_import.warm_up = lambda: time.sleep(1.0)


def broken_import(prompts, completions, ids, extras):
  del prompts, completions, ids, extras
  return [1.0]


def _missing():
  raise ImportError("needs a package that is not installed")


broken_import.warm_up = _missing
