"""Runs of `experiments.train`, a few processes at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

from experiments.sweeps import cells as cells_lib
from experiments.sweeps.cells import Cell

_POLL_SECONDS = 0.1


def run(
  root: pathlib.Path,
  next_cell: Callable[[], Cell | None],
  ended: Callable[[Cell, int], None],
  parallel: int,
  command: Callable[[Cell], list[str]] | None = None,
) -> bool:
  """Runs cells until none is left, or SIGTERM or Ctrl-C comes.

  The signal is passed on, so that the runs save and leave; a second one kills
  them. The output of a run goes to the end of its `log.txt`.

  Args:
    root: Folder of the sweep.
    next_cell: Function that returns the cell to start next, or None.
    ended: Function that is called with a cell that has ended, and its exit
      status; a negative status is the signal that ended it. It is not called
      for a run that was stopped.
    parallel: Number of processes at a time.
    command: Command that runs a cell; None: `experiments.train`, here.

  Returns:
    Whether a signal stopped it.

  Raises:
    ValueError: Runs of this root are still under way.
  """
  running: dict[subprocess.Popen, Cell] = {}
  with _signals() as received, lock(root) as lock_file:
    try:
      num_passed_on = 0
      while True:
        while not received and len(running) < parallel:
          cell = next_cell()
          if cell is None:
            break
          arguments = command(cell) if command else cell.command
          running[_start(cell, lock_file, arguments)] = cell
        if not running:
          return bool(received)
        if len(received) > num_passed_on:
          num_passed_on = len(received)
          for process in running:
            process.send_signal(
              signal.SIGTERM if num_passed_on == 1 else signal.SIGKILL
            )
        for process in [p for p in running if p.poll() is not None]:
          cell, status = running.pop(process), process.returncode
          stopped = status in (143, -signal.SIGTERM, -signal.SIGKILL)
          if not (received and stopped):
            ended(cell, status)
        time.sleep(_POLL_SECONDS)
    finally:
      for process in running:  # After an error of ours.
        process.terminate()
        process.wait()


def _start(cell: Cell, lock_file: int, command: list[str]) -> subprocess.Popen:
  cell.workdir.mkdir(parents=True, exist_ok=True)
  with (cell.workdir / cells_lib.LOG).open("ab") as log:
    return subprocess.Popen(
      command,
      # So that both outputs are in order, and there when it is killed.
      env={**os.environ, "PYTHONUNBUFFERED": "1"},
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      # Ctrl-C reaches a whole group of processes, and would not let it save.
      start_new_session=True,
      pass_fds=[lock_file],
    )


@contextlib.contextmanager
def lock(root: pathlib.Path) -> Iterator[int]:
  """Locks a file for as long as this process or a run of it lives.

  A sweep that was killed leaves its runs behind, and two processes must not
  write to one workdir.

  Raises:
    ValueError: The file is locked already.
  """
  with (root / ".lock").open("w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise ValueError(
        f"sweep: another sweep, or a run that one left behind, is under way in"
        f" {root}; wait for it, or end it (`ps` shows its --workdir)."
      ) from error
    yield file.fileno()


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
  """Signals that ask to stop, as they come."""
  received: list[int] = []
  previous = {
    number: signal.signal(number, lambda number, _: received.append(number))
    for number in (signal.SIGINT, signal.SIGTERM)
  }
  try:
    yield received
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)
