"""Resources that sessions with an interpreter leave, some of which misbehave.

    python -m experiments.benchmarks.interpreters --sessions=10000

Each session has two calls and an answer. The second call needs a name of the
first. In one session of twenty the first call hangs, ends, floods, forks or
closes its descriptors. A policy would go on after that, and so do these
sessions. The table compares the state before the first session with that after
the last: the processes, the open descriptors and the resident memory of this
process with all below it, and the files of the folders in which a session could
leave some.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile
import time
from typing import NamedTuple

BLOCKS = (
  "while True: pass",
  "import os; os._exit(1)",
  "while True: print('x' * 1000)",
  "import os; os.fork()",
  "import os; os.closerange(0, 32)",
  "import ctypes; ctypes.string_at(0)",
  "x = 'x' * 2**31",
)
ENDS = (0, 1, 2, 4, 5)  # Faults after which names are lost.
_EVERY = 20
_BURIED_S = 3.0  # Idle workers look after what has ended once a second.
_SETTLED_S = 30.0


class Left(NamedTuple):
  """Resources in use at a moment.

  Attributes:
    processes: Number of processes below this one.
    descriptors: Open file descriptors of this process and of those below it.
    temporary: Names in the folder for temporary files, which is a new one.
    shared: Names in /dev/shm.
    memory: Resident bytes of this process and those below it.
  """

  processes: int
  descriptors: int
  temporary: frozenset[str]
  shared: frozenset[str]
  memory: int


class Report(NamedTuple):
  """Results of the sessions, and the resources in use around them.

  Attributes:
    sessions, failed, wrong: Numbers of sessions: of all, of those without a
      score, and of those with an unexpected score or answer.
    seconds: Seconds of all sessions together.
    before, after, closed: Resources after the start of the workers, after the
      last session, and after the workers have ended.
  """

  sessions: int
  failed: int
  wrong: int
  seconds: float
  before: Left
  after: Left
  closed: Left


def left() -> Left:
  """Measures this process, those below it, and their folders."""
  from grpo_jax.rewards.workers import processes

  pids = [os.getpid(), *sorted(processes.below(os.getpid()))]
  descriptors, pages = 0, 0
  for pid in pids:
    try:
      descriptors += len(os.listdir(f"/proc/{pid}/fd"))
      statm = pathlib.Path(f"/proc/{pid}/statm").read_text()
      pages += int(statm.split()[1])
    except OSError:  # The process has ended.
      continue
  return Left(
    len(pids) - 1,
    descriptors,
    frozenset(os.listdir(tempfile.gettempdir())),
    frozenset(os.listdir("/dev/shm")),
    pages * os.sysconf("SC_PAGE_SIZE"),
  )


def _settled(expected: Left) -> Left:
  """Measures until no more than expected is in use, or some time is over."""
  end = time.monotonic() + _SETTLED_S
  while True:
    found = left()
    if found[:3] == expected[:3] or time.monotonic() > end:
      return found
    time.sleep(0.1)


def _play(workers, first: int, count: int) -> tuple[int, int]:
  """Plays one rollout; returns the numbers of failed and of wrong sessions."""
  numbers = range(first, first + count)
  episodes = workers.begin(
    [""] * count, [{"answer": str(n + 1)} for n in numbers], list(numbers)
  )
  bad = {
    row: n // _EVERY % len(BLOCKS)
    for row, n in enumerate(numbers)
    if n % _EVERY == _EVERY - 1
  }
  blocks = {
    row: f"x = {n}\n{BLOCKS[bad[row]] if row in bad else ''}"
    for row, n in enumerate(numbers)
  }
  calls = {row: f"<tool>{block}</tool>" for row, block in blocks.items()}
  episodes.step(calls, False)
  said = episodes.step(dict.fromkeys(calls, "<tool>x + 1</tool>"), False)
  end = {row: f"<answer>{first + row + 1}</answer>" for row in said}
  answers = episodes.step(end, True)
  wrong = 0
  for row, answer in answers.items():
    text = said[row].observation[1]
    is_lost = row in bad and bad[row] in ENDS
    right = "a new interpreter" in text and "NameError" in text
    if not is_lost:
      # A name keeps its value where the new one is refused.
      right = text == str(first + row + 1)
    wrong += not right or answer.reward != 1.0
  return int(episodes.failures.failed.sum()), wrong


def run(sessions: int, at_once: int = 100, num_workers: int = 2) -> Report:
  """Plays the given number of sessions, in rollouts of some at once."""
  from grpo_jax.rewards.workers import sessions as sessions_lib

  workers = sessions_lib.HostSessions(
    "grpo_jax.rewards.agents.python_session:make",
    row_timeout_s=60.0,
    step_timeout_s=3600.0,
    num_workers=num_workers,
    options={"call_s": 2.0, "max_bytes": 200},
  )
  failed, wrong = 0, 0
  with workers:
    _play(workers, 0, num_workers)  # Imports.
    time.sleep(_BURIED_S)
    before = left()
    start = time.perf_counter()
    for first in range(0, sessions, at_once):
      now = _play(workers, first, min(at_once, sessions - first))
      failed, wrong = failed + now[0], wrong + now[1]
    seconds = time.perf_counter() - start
    after = _settled(before)
  closed = left()
  return Report(sessions, failed, wrong, seconds, before, after, closed)


def main() -> None:
  """Prints the table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--sessions", type=int, default=1000)
  parser.add_argument("--at_once", type=int, default=100)
  parser.add_argument("--workers", type=int, default=2)
  options = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    report = run(options.sessions, options.at_once, options.workers)
    tempfile.tempdir = None
  rate = report.sessions / report.seconds
  print(
    f"{report.sessions} sessions in {report.seconds:.0f} s, {rate:.1f} a"
    f" second; {report.failed} unscored, {report.wrong} with a wrong answer\n"
  )
  print("| | processes | descriptors | files | in /dev/shm | MiB |")
  print("|---|---|---|---|---|---|")
  for name in ("before", "after", "closed"):
    found: Left = getattr(report, name)
    print(
      f"| {name} | {found.processes} | {found.descriptors} |"
      f" {len(found.temporary)} | {len(found.shared)} |"
      f" {found.memory / 2**20:.0f} |"
    )


if __name__ == "__main__":
  main()
