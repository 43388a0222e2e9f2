"""Peaks of resident memory, and time of processors, as Linux counts them."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

from grpo_jax.rewards.workers import processes


class Growth:
  """Growth of the resident memory of this process, in bytes.

  Attributes:
    before: Bytes at the beginning.
    peak: Largest growth so far, bytes; 0 until the block has ended.
  """

  def __init__(self):
    # The highest value so far is forgotten, and not what a parent has left.
    with contextlib.suppress(OSError):
      pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    self.before = resident("VmRSS")
    self.peak = 0


@contextlib.contextmanager
def growth() -> Iterator[Growth]:
  """Measures the growth until the end of the block."""
  found = Growth()
  yield found
  found.peak = max(resident("VmHWM") - found.before, 0)


def resident(name: str, pid: int | str = "self") -> int:
  """A line of /proc/PID/status, in bytes: VmRSS, or VmHWM for the peak."""
  text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
  (line,) = (line for line in text.splitlines() if line.startswith(name))
  return int(line.split()[1]) * 1024


def largest_below() -> int:
  """The highest peak of a process below this one, in bytes; 0 without one."""
  peaks = [0]
  for pid in processes.below(os.getpid()):
    with contextlib.suppress(OSError, ValueError):  # It has ended.
      peaks.append(resident("VmHWM", pid))
  return max(peaks)


def processor_s() -> float:
  """Seconds of processors of this process and of those that are below it."""
  ticks = 0
  for pid in (os.getpid(), *processes.below(os.getpid())):
    with contextlib.suppress(OSError):
      text = pathlib.Path(f"/proc/{pid}/stat").read_text()
      # pid (name) state …; user and system, and those of ended children.
      ticks += sum(map(int, text.rpartition(")")[2].split()[11:15]))
  return ticks / os.sysconf("SC_CLK_TCK")
