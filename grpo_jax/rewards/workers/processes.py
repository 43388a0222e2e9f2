"""The environment of workers and sessions, and the way in which they are ended.

Each runs under a keeper, a process that does nothing else. On Linux a keeper
adopts the orphans below it. So whatever a worker starts stays in the tree under
its keeper, also in a session or group of its own (`setsid`), and is found there
and killed when the worker ends, in whatever way. On other systems the process
group is killed, which a process with its own group has left.

Some attacks remain possible: a process of the same user may kill a keeper, read
the files and the memory of the user's other processes, and ask a service of the
system (cron, systemd, a container engine) to start something. This is not a
sandbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterable

# Environment variables that workers get, and all that begin with LC_. Tokens
# and passwords are not among them.
VARIABLES = (
  *("HOME", "USER", "LOGNAME", "PATH", "SHELL", "TERM", "TZ"),
  *("LANG", "LANGUAGE", "TMPDIR", "TMP", "TEMP"),
  *("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONUTF8"),
  *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONWARNINGS"),
  *("VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
  *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
  *("SSL_CERT_FILE", "SSL_CERT_DIR", "CUDA_VISIBLE_DEVICES"),
)

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0  # Between two looks of a keeper for its parent.
_GONE_S = 5.0  # For the end of processes that were killed.
MAX_PRINTED = 20_000  # Bytes of printed text that a keeper passes on.
_PRINT_S = 0.2  # For the last of them, after the child has ended.


def environment(more: Iterable[str] = ()) -> dict[str, str]:
  """Returns the variables of a worker: `VARIABLES`, and those in `more`."""
  names = {*VARIABLES, *more}
  return {
    **{
      name: value
      for name, value in os.environ.items()
      if name in names or name.startswith("LC_")
    },
    # A verifier whose module imports jax must not claim the accelerator.
    "JAX_PLATFORMS": "cpu",
  }


def keep(parent: int, fds: Iterable[int], is_brief: bool = False) -> None:
  """Forks, and returns in the child; this process becomes its keeper.

  The keeper ends, with all that is below it, when the child has ended or the
  parent is gone.

  Args:
    parent: Process id of the parent of this process.
    fds: File descriptors that are for the child alone.
    is_brief: If True, the keeper passes on what the child and all below it
      write to descriptors 1 and 2, up to `MAX_PRINTED` bytes of each.
  """
  _prctl(_PR_SET_CHILD_SUBREAPER, 1)
  keeper = os.getpid()
  pipes = {fd: os.pipe() for fd in ((1, 2) if is_brief else ())}
  child = os.fork()
  if not child:
    for fd, (reader, writer) in pipes.items():
      os.dup2(writer, fd)
      os.close(reader)
      os.close(writer)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # A keeper may be killed.
    if os.getppid() != keeper:  # It ended before the line above.
      os._exit(1)
    return

  def look(*_) -> None:
    # Checked again and again: the end of a pipe does not show the parent's
    # death, because whatever the parent forked holds the pipe open as well.
    if os.getppid() != parent:
      _leave()

  for fd, (reader, writer) in pipes.items():
    os.close(writer)
    _passing.append(
      threading.Thread(target=_pass_on, args=(reader, fd), daemon=True)
    )
    _passing[-1].start()
  try:
    for fd in fds:
      os.close(fd)
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
    while os.waitpid(-1, 0)[0] != child:  # Others were orphans.
      pass
  finally:
    _leave()


_passing: list[threading.Thread] = []  # Threads of a keeper.


def _pass_on(source: int, target: int) -> None:
  """Passes on printed text, up to a limit: a run has many rows."""
  room = MAX_PRINTED
  with contextlib.suppress(OSError):
    while data := os.read(source, 1 << 16):
      if room > 0:
        _write(target, data[:room])
        room -= len(data)
        if room <= 0:
          warning = (
            f"\nwarning: reward functions have printed {MAX_PRINTED} bytes in"
            " this process; it prints no more.\n"
          )
          _write(target, warning.encode())


def _write(fd: int, data: bytes) -> None:
  while data:
    data = data[os.write(fd, data) :]


def _leave() -> None:
  """Ends this process and all below it, without Python's exit handlers."""
  if _reap():
    end_below(os.getpid())
    _reap()
  for thread in _passing:
    thread.join(_PRINT_S)
  with contextlib.suppress(OSError):
    os.killpg(os.getpid(), signal.SIGKILL)  # For systems without /proc.
  os._exit(0)


def _reap() -> bool:
  """Waits for children that have ended; returns True if others are left."""
  try:
    while os.waitpid(-1, os.WNOHANG)[0]:
      pass
  except ChildProcessError:
    return False
  return True


def end_tree(pid: int) -> None:
  """Kills a keeper, which is a child of this process, and all below it.

  It may not have become a keeper yet. The caller reaps it with a wait.
  """
  _kill(pid, signal.SIGSTOP)  # The keeper stays, to adopt orphans.
  end_below(pid)
  if below(pid, "ZX"):
    # The keeper waits for the killed processes. Without it they would stay in
    # the process table if the system's first process does not wait for orphans.
    _kill(pid, signal.SIGCONT)
    end = time.monotonic() + _LOOK_S
    flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while not os.waitid(os.P_PID, pid, flags) and time.monotonic() < end:
      time.sleep(0.0005)
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(pid, signal.SIGKILL)
  _kill(pid, signal.SIGKILL)  # The process may not lead a group yet.


def end_below(pid: int) -> None:
  """Kills all descendants of a process, and waits until they are gone."""
  stopped: set[int] = set()
  end = time.monotonic() + _GONE_S
  while (running := below(pid)) and time.monotonic() < end:
    # All stand still before the first is killed, so that none of them sees it
    # and starts another.
    if new := running - stopped:
      for child in new:
        _kill(child, signal.SIGSTOP)
      stopped |= new
      continue
    for child in running:
      _kill(child, signal.SIGKILL)
    time.sleep(0.0005)


def below(pid: int, states: str = "") -> set[int]:
  """Returns the descendants of a process; none on a system without /proc.

  They have one of the `states`, as in /proc; "": the living.
  """
  descendants: set[int] = set()
  waiting = [pid]
  with contextlib.suppress(FileNotFoundError):
    table = None if _says_children(pid) else _all_children()
    while waiting:
      parent = waiting.pop()
      for child in table.get(parent, ()) if table else _children(parent):
        state = (_stat(child) or "X")[0]
        if state in states if states else state not in "ZX":
          descendants.add(child)
          waiting.append(child)
  return descendants


def memory(pid: int) -> int:
  """Returns the bytes of memory that a process's descendants hold alone.

  Memory that a process shares with a fork counts for both. The result is 0 on a
  system without /proc.
  """
  pages = 0
  for child in below(pid):
    with contextlib.suppress(OSError):
      with open(f"/proc/{child}/statm", "rb") as file:
        _, resident, shared, *_ = map(int, file.read().split())
      pages += resident - shared
  return pages * os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int | str) -> list[str] | None:
  """Returns state, parent and so on; None if the process does not exist."""
  try:
    with open(f"/proc/{pid}/stat", "rb") as file:
      # pid (name) state parent …; a name may have spaces and parentheses.
      return file.read().rpartition(b")")[2].decode().split()
  except OSError:
    return None


def _says_children(pid: int) -> bool:
  """Returns True if the process exists, and the kernel lists its children."""
  return os.path.exists(f"/proc/{pid}/task/{pid}/children")


def _children(pid: int) -> list[int]:
  children: list[int] = []
  with contextlib.suppress(OSError):
    for thread in os.listdir(f"/proc/{pid}/task"):
      with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
        children += map(int, file.read().split())
  return children


def _all_children() -> dict[int, list[int]]:
  """Returns the children of all processes, by parent."""
  children: dict[int, list[int]] = {}
  for name in filter(str.isdecimal, os.listdir("/proc")):
    if stat := _stat(name):
      children.setdefault(int(stat[1]), []).append(int(name))
  return children


def _kill(pid: int, number: int) -> None:
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
  with contextlib.suppress(AttributeError):  # Only Linux has `prctl`.
    _LIBC.prctl(option, value, 0, 0, 0)
