"""Starts the programs of `experiments` as a user does, in a process."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = f"--config={ROOT / 'tests/experiments/tiny_config.py'}"

# What the programs see; the settings of conftest.py included.
ENVIRONMENT = {
  **os.environ,
  "PYTHONPATH": str(ROOT),
  # A program of a few seconds spends most of them on trivial compilations.
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}


def start(
  program: str, *arguments: str, cwd: pathlib.Path | None = None
) -> subprocess.Popen:
  """`python -m experiments.<program>`, with both outputs as text."""
  return subprocess.Popen(
    [sys.executable, "-m", f"experiments.{program}", *arguments],
    cwd=cwd or ROOT,
    env=ENVIRONMENT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def run(
  program: str, *arguments: str, cwd: pathlib.Path | None = None
) -> tuple[int, str, str]:
  """Runs to the end; returns the exit status, stdout and stderr."""
  with start(program, *arguments, cwd=cwd) as process:
    out, err = process.communicate()
  return process.returncode, out, err
