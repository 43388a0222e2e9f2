"""Things for `two_processes_test.py`: good ones and others."""

import time

from experiments.rewards import two_processes


def attempt(name):
  print("It talks.")
  if name == "raises":
    raise OSError("it | fell\nover")
  if name == "hangs":
    time.sleep(600)
  return {"digest": hash("text") if name == "differs" else name}


def report(timeout_s):
  names = ("good", "raises", "hangs", "differs")
  two_processes.report(names, attempt, timeout_s)
