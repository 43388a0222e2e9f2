"""Tries cases of a package in two processes whose strings hash differently.

    tried("experiments.rewards.gym_table", 60.0)["gcd"]  # [{…}, {…}]

A difference between the two would also be one between workers of a run, or
between a run and its resumption. The named module has the functions `names()`,
of the cases, and `attempt(name)`, whose results JSON can write.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

# A process that imports the package once and has a child for each case.
_REPORT = """
import sys
from experiments.rewards import two_processes
two_processes.report(sys.argv[1], float(sys.argv[2]))
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


def report(module: str, timeout_s: float) -> None:
  """Prints the results of a module's cases by name, as JSON, or the errors."""
  found = {}
  context = multiprocessing.get_context("fork")
  table = importlib.import_module(module)
  for name in table.names():
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
      target=_send, args=(sender, table.attempt, name), daemon=True
    )
    child.start()
    if receiver.poll(timeout_s):
      found[name] = receiver.recv()
    else:
      found[name] = {"error": f"takes more than {timeout_s:g} s"}
    child.kill()
    child.join()
  print("\n" + json.dumps(found))


def _send(
  sender: Any, attempt: Callable[[str], dict[str, Any]], name: str
) -> None:
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
