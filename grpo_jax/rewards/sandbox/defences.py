"""What the box of a program consists of, as data; `boxes.py` makes it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Limits:
  """Limits of one program.

  Attributes:
    cpu_s: Seconds of a core; whole.
    wall_s: Seconds, with those that the box takes to start.
    memory: Bytes of address space.
    file_size: Bytes of a file.
    open_files: Descriptors.
    output: Bytes that are read of what it writes.
    tmp_size: Bytes in /tmp.
    shm_size: Bytes in /dev/shm.
  """

  cpu_s: int = 2
  wall_s: float = 4.0
  memory: int = 512 << 20
  file_size: int = 1 << 20
  open_files: int = 32
  output: int = 64 << 10
  tmp_size: int = 8 << 20
  shm_size: int = 1 << 20


LIMITS = Limits()


class Defence(NamedTuple):
  """One part of the box.

  Attributes:
    name: For tests and the documentation.
    holds: What it prevents.
    options: Of bwrap; in braces, what only the machine or the limits say.
    instead: Options where the defence is left out.
    limit: An RLIMIT_* and the field of `Limits`, or the number, for it.
  """

  name: str
  holds: str
  options: tuple[str, ...] = ()
  instead: tuple[str, ...] = ()
  limit: tuple[str, str | int] | None = None


# The order of the options is that in which bwrap mounts.
DEFENCES = (
  Defence(
    "user",
    "rights of the user who trains, and of root",
    ("{become nobody}", "--cap-drop", "ALL", "{may become nobody}"),
    (
      *("--unshare-user", "--uid", "0", "--gid", "0"),
      *("--cap-drop", "ALL", "--cap-add", "ALL"),
    ),
  ),
  Defence(
    "files",
    "reading files of the host",
    ("--ro-bind", "/usr", "/usr", "{system}", "{python}"),
    ("--ro-bind", "/", "/"),
  ),
  Defence(
    "processes",
    "seeing and signalling processes of the host",
    ("--unshare-pid", "--proc", "/proc"),
    ("--bind", "/proc", "/proc"),
  ),
  Defence(
    "small files",
    "filling the memory with files in /tmp and /dev/shm",
    (
      *("--dev", "/dev"),
      *("--size", "{shm_size}", "--perms", "1777", "--tmpfs", "/dev/shm"),
      *("--size", "{tmp_size}", "--perms", "1777", "--tmpfs", "/tmp"),
    ),
    (
      *("--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm"),
      *("--perms", "1777", "--tmpfs", "/tmp"),
    ),
  ),
  Defence(
    "read-only",
    "writing anywhere else, also to settings of the kernel",
    ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"),
  ),
  Defence("network", "network interfaces", ("--unshare-net",)),
  Defence("ipc", "System V objects of the host", ("--unshare-ipc",)),
  Defence(
    "names",
    "the host's name",
    ("--unshare-uts", "--hostname", "box", "--unshare-cgroup-try"),
  ),
  Defence("session", "the terminal", ("--new-session",)),
  Defence("parent", "outliving the trainer", ("--die-with-parent",)),
  Defence("environment", "variables, such as keys", ("--clearenv",)),
  Defence("descriptors", "open files of the trainer"),
  Defence(
    "system calls",
    "sockets, processes, and calls that few programs need",
    ("--seccomp", "{seccomp}"),
  ),
  Defence("CPU time", "loops", limit=("RLIMIT_CPU", "cpu_s")),
  Defence("memory", "large memory", limit=("RLIMIT_AS", "memory")),
  Defence("file size", "large files", limit=("RLIMIT_FSIZE", "file_size")),
  Defence("open files", "many files", limit=("RLIMIT_NOFILE", "open_files")),
  Defence("no core", "dumps of memory", limit=("RLIMIT_CORE", 0)),
  Defence("no forks", "more processes", limit=("RLIMIT_NPROC", 1)),
  Defence("wall time", "sleeping"),
  Defence("output", "filling the trainer's memory"),
)
# Those of a plain process.
OF_A_PROCESS = (
  *("environment", "descriptors", "CPU time", "memory", "file size"),
  *("open files", "no core", "no forks", "wall time", "output"),
)
