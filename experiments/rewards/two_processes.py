"""Tries cases of a package in two processes whose strings hash differently.

    tried("experiments.rewards.gym_table", 60.0)["gcd"]  # [{…}, {…}]

A difference between the two would also be one between workers of a run, or
between a run and its resumption. The named module has a function
`report(timeout_s)`, which calls `report` of this module.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

# (name of a thing) -> what it does, as JSON can write it.
Attempt = Callable[[str], dict[str, Any]]

# A process that imports the package once and has a child for each thing.
_REPORT = """
import importlib, sys
importlib.import_module(sys.argv[1]).report(float(sys.argv[2]))
"""


def tried(
  module: str, timeout_s: float, stderr: int | None = None
) -> dict[str, list[dict[str, Any]]]:
  """Reports of both processes, by name.

  Args:
    module: Its import path.
    timeout_s: Seconds for each case.
    stderr: Target of errors and warnings, as in `subprocess.run`.
  """
  found: dict[str, list[dict[str, Any]]] = {}
  for hash_seed in ("1", "2"):
    done = subprocess.run(
      [sys.executable, "-c", _REPORT, module, str(timeout_s)],
      env={**os.environ, "PYTHONHASHSEED": hash_seed},
      stdout=subprocess.PIPE,
      stderr=stderr,
      text=True,
      check=True,
    )
    said = json.loads(done.stdout.strip().rpartition("\n")[2])
    for name, result in said.items():
      found.setdefault(name, []).append(result)
  return found


def report(names: Iterable[str], attempt: Attempt, timeout_s: float) -> None:
  """Prints the results of `attempt` by name, as JSON, or its errors."""
  found = {}
  context = multiprocessing.get_context("fork")
  for name in names:
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
      target=_send, args=(sender, attempt, name), daemon=True
    )
    child.start()
    if receiver.poll(timeout_s):
      found[name] = receiver.recv()
    else:
      found[name] = {"error": f"takes more than {timeout_s:g} s"}
    child.kill()
    child.join()
  print("\n" + json.dumps(found))


def _send(sender: Any, attempt: Attempt, name: str) -> None:
  try:
    with contextlib.redirect_stdout(io.StringIO()):  # Some talk.
      result = attempt(name)
  except Exception as error:  # Of any kind: the table says which.
    result = {"error": described(error)}
  sender.send(result)


def described(error: Exception) -> str:
  """Text of an error in a result."""
  return f"{error} ({type(error).__name__})"


def in_a_cell(error: str, most: int) -> str:
  """First characters of an error, as the cell of a Markdown table."""
  return " ".join(error.split())[:most].replace("|", "/")
