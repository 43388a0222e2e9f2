"""Starts the programs of `experiments` as a user does, in a process."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = f"--config={ROOT / 'tests/experiments/tiny_config.py'}"

# What the programs see; the settings of conftest.py included.
ENVIRONMENT = {
  **os.environ,
  "PYTHONPATH": str(ROOT),
  # A program of a few seconds spends most of them on trivial compilations.
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  # JAX warns if it reads a program that another process is just writing.
  "PYTHONWARNINGS": "ignore:Error reading persistent compilation cache entry",
}


def start(
  program: str,
  *arguments: str,
  cwd: pathlib.Path | None = None,
  environment: Mapping[str, str] | None = None,
) -> subprocess.Popen:
  """Starts `python -m experiments.<program>`, with both outputs as text."""
  return subprocess.Popen(
    [sys.executable, "-m", f"experiments.{program}", *arguments],
    cwd=cwd or ROOT,
    env=ENVIRONMENT | dict(environment or {}),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def start_all(
  count: int,
  devices: int,
  program: str,
  *arguments: str,
  environment: Mapping[str, str] | None = None,
  last: Sequence[str] = (),
) -> list[subprocess.Popen]:
  """Starts a run of several processes, each with so many devices of the CPU.

  The arguments `last` are those of the last process alone.
  """
  flags = ENVIRONMENT.get("XLA_FLAGS", "")
  flags += f" --xla_force_host_platform_device_count={devices}"
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  return [
    start(
      program,
      *arguments,
      *(last if process == count - 1 else ()),
      *(
        (
          f"--coordinator=localhost:{port}",
          f"--num_processes={count}",
          f"--process_id={process}",
        )
        if count > 1
        else ()
      ),
      environment={"XLA_FLAGS": flags, **(environment or {})},
    )
    for process in range(count)
  ]


def finish_all(
  processes: list[subprocess.Popen], timeout_s: float = 500
) -> list[tuple[int, str, str]]:
  """Waits for all; returns the exit status, stdout and stderr of each.

  Processes that are left after the time are killed, and the test fails by their
  status.
  """
  alarm = threading.Timer(timeout_s, lambda: [p.kill() for p in processes])
  alarm.start()
  results = []
  with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
    for process, (out, err) in zip(
      processes,
      pool.map(subprocess.Popen.communicate, processes),
      strict=True,
    ):
      results.append((process.returncode, out, err))
  alarm.cancel()
  return results


def run(
  program: str, *arguments: str, cwd: pathlib.Path | None = None
) -> tuple[int, str, str]:
  """Runs to the end; returns the exit status, stdout and stderr."""
  with start(program, *arguments, cwd=cwd) as process:
    out, err = process.communicate()
  return process.returncode, out, err


@dataclasses.dataclass(frozen=True)
class Finished:
  """Run that was trained by its command, in the folder `run` of `cwd`."""

  cwd: pathlib.Path
  status: int
  out: str
  err: str

  def copy(self, cwd: pathlib.Path) -> pathlib.Path:
    return shutil.copytree(self.cwd / "run", cwd / "run")


def finished(cwd: pathlib.Path) -> Finished:
  """Trains the small run in a new folder."""
  arguments = TINY, "--workdir=run", "--config.log.curves=True"
  return Finished(cwd, *run("train", *arguments, cwd=cwd))


def finished_once(common: pathlib.Path, cwd: pathlib.Path) -> Finished:
  """Copies the small run from a folder of several processes.

  The first of them trains it; the others wait.
  """
  said = common / "finished.json"
  with open(common / "finished.lock", "w", encoding="utf-8") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not said.exists():
      (common / "trained").mkdir()
      _, *results = dataclasses.astuple(finished(common / "trained"))
      said.write_text(json.dumps(results), encoding="utf-8")
  shutil.copytree(common / "trained", cwd, dirs_exist_ok=True)
  return Finished(cwd, *json.loads(said.read_text(encoding="utf-8")))
