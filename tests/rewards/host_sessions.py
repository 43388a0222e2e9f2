"""Sessions that misbehave as real tools do; an action says what happens."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time


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
    elif action == "raise":
      raise ValueError("no such tool")
    elif action == "sys.exit":
      sys.exit(0)
    elif action == "os._exit":
      os._exit(0)
    elif action == "kill the worker":
      os.kill(os.getppid(), signal.SIGKILL)
      time.sleep(600)
    elif action == "nan":
      return "x", float("nan"), False
    elif action == "bytes":
      return b"x", 0.0, False
    elif action == "pid":
      return str(os.getpid()), 0.0, False
    elif action == "random":
      return f"{self.seed} {random.random()}", 0.0, False
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


def with_return(prompt, extras, seed):
  session = Session(prompt, extras, seed)
  session.scores = lambda: {"accuracy": 0.0, "return": 0.0}
  return session


def without_accuracy(prompt, extras, seed):
  session = Session(prompt, extras, seed)
  session.scores = lambda: {"turns": 0.0}
  return session
