"""Sessions that misbehave as real tools do; an action says what happens."""

import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from tests.rewards.workers import bad_verifiers


class Session:
  """Counts its actions; "accuracy" is 1 after an action "right"."""

  def __init__(self, prompt, extras, seed):
    if prompt == "no session":
      raise ValueError("cannot begin")
    self.prompt, self.extras, self.seed = prompt, extras, seed
    self.turns, self.right = 0, 0.0

  def step(self, action):
    self.turns += 1
    if action == "loop":
      while True:
        pass
    elif action == "sleep with child":
      child = subprocess.Popen(["sleep", "600"])
      pathlib.Path(self.extras["pid_file"]).write_text(str(child.pid))
      time.sleep(600)
    elif action == "leave a child":
      return str(subprocess.Popen(["sleep", "600"]).pid), 0.0, False
    elif action == "leave a daemon":
      return str(bad_verifiers.daemon().pid), 0.0, False
    elif action == "fork":
      os.fork()
    elif action == "speak twice":
      bad_verifiers.say("twice", ["x", 1.0, False, None])
    elif action in bad_verifiers.SAID:
      bad_verifiers.say(action, ["x", 1.0, True, {"accuracy": 1.0}])
    elif action == "token":
      return os.environ.get("HF_TOKEN", "none"), 0.0, False
    elif action == "long":
      return "x" * 2**25, 0.0, False
    elif action == "chat":
      return ("<tool>", self.prompt, "</tool>"), 0.0, False
    elif action == "two tools":
      return ["<tool>", "1", "</tool><tool>", "2", "</tool>"], 0.0, False
    elif action == "two texts":
      return ("a", "b"), 0.0, False
    elif action == "surrogate":
      return "\ud800", 1 / 3, False
    elif action == "hold the lock":
      re.match("(a+)+$", "a" * 64 + "b")
    elif action == "nap":
      time.sleep(1.0)
    elif action.startswith("wait for six in "):
      folder = pathlib.Path(action.removeprefix("wait for six in "))
      tempfile.mkstemp(dir=folder)
      while len([*folder.iterdir()]) < 6:
        time.sleep(0.01)
    elif action == "raise":
      raise ValueError("no such tool")
    elif action == "sys.exit":
      sys.exit(0)
    elif action == "os._exit":
      os._exit(0)
    elif action == "kill the worker":
      os.kill(bad_verifiers.parent_of_keeper(), signal.SIGKILL)
      time.sleep(600)
    elif action == "kill the keeper":
      os.kill(os.getppid(), signal.SIGKILL)
      time.sleep(600)
    elif action == "nan":
      return "x", float("nan"), False
    elif action == "1e39":
      return "x", 1e39, False
    elif action == "text":
      return "x", "1.0", False
    elif action == "bytes":
      return b"x", 0.0, False
    elif action == "pid":
      return str(os.getpid()), 0.0, False
    elif action == "random":
      return f"{random.random()} {np.random.random()}", 0.0, False
    elif action == "right":
      self.right = 1.0
      return "", 1.0, True
    return f"{self.prompt}{self.turns}:{action}", 0.5, False

  def scores(self):
    return {"accuracy": self.right, "turns": self.turns, "none": None}

  def close(self):
    if "closed" in self.extras:
      pathlib.Path(self.extras["closed"]).touch()


def make(prompt, extras, seed):
  return Session(prompt, extras, seed)


def alone(prompt, extras, seed, tool=""):
  return Session(prompt, extras, seed)


alone.serial = True


def with_return(prompt, extras, seed):
  session = Session(prompt, extras, seed)
  session.scores = lambda: {"accuracy": 0.0, "return": 0.0}
  return session


def without_accuracy(prompt, extras, seed):
  session = Session(prompt, extras, seed)
  session.scores = lambda: {"turns": 0.0}
  return session


def with_few_files(prompt, extras, seed):
  return Session(prompt, extras, seed)


def _limit_files():
  _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard))


with_few_files.warm_up = _limit_files


def without_a_tool(prompt, extras, seed):
  return Session(prompt, extras, seed)


def _fail():
  raise ValueError("no tool for this session")


without_a_tool.before_session = _fail


class Greeting(Session):
  def __init__(self, said):
    self._said = said

  def step(self, action):
    return f"{self._said}, {action}", 0.0, False

  def scores(self):
    return {"accuracy": 0.0}


_greetings = []


def greet(prompt, extras, seed, *, word, times=1):
  del prompt, extras, seed
  assert _greetings == [word, times]  # As in the worker's warm-up.
  return Greeting(" ".join([word] * times))


greet.warm_up = lambda **options: _greetings.extend(
  (options["word"], options["times"])
)
