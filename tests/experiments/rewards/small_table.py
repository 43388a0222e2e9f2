"""Things for `two_processes_test.py`: good ones and others."""

import time


def attempt(name):
  print("It talks.")
  if name == "raises":
    raise OSError("it | fell\nover")
  if name == "hangs":
    time.sleep(600)
  return {"digest": hash("text") if name == "differs" else name}


def names():
  return ("good", "raises", "hangs", "differs")
