"""Commands of bash, each in a box of its own, on files that outlive it.

    job = shell.Job("sort names > sorted", folder="/app", folders=("/app",),
                    keeps=("/app",), steps=[("lay", files, None)])
    ran = shell.run(box, job)
    files = ran.files  # For the next command.

A box of `box.py` has one process. A box of this module may have `_PROCESSES`,
in the same namespaces and with the same filter of system calls but for those
that start processes. When its command has ended, or its time is over, all of
its processes are ended, and the box goes. So no command leaves a process
behind. Between commands the files are a tar in the memory of the host, which
never opens it: a policy may have forged it.

The programs are those of the host's /usr and of its Python, read-only. There is
neither a network nor a folder /etc.
"""

from __future__ import annotations

import dataclasses
import io
import json
import marshal
import math
import pathlib
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax.rewards.sandbox import box as box_lib
from grpo_jax.rewards.sandbox import in_the_shell

PATH = (
  "/python/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)
MAX_FILES = 16 << 20  # Bytes of the tar of all files.
_MAX_SAID = 1 << 18  # Bytes of the output that are read, and of a file.
_PROCESSES = 32
_START_S = 20.0  # For the box, and to lay and to pack files.
_PROGRAM = pathlib.Path(in_the_shell.__file__).read_text(encoding="utf-8")


class File(NamedTuple):
  """A file's content, and True if it is a program."""

  data: bytes
  is_program: bool = False


def packed(files: Mapping[str, File]) -> bytes:
  """Returns a tar of files by their absolute paths."""
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode="w") as tar:
    for path, file in files.items():
      member = tarfile.TarInfo(path.lstrip("/"))
      member.size, member.mode = len(file.data), 0o644 + 0o111 * file.is_program
      tar.addfile(member, io.BytesIO(file.data))
  return buffer.getvalue()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """A command, and what is around it.

  Attributes:
    line: The command, for `bash -c`.
    steps: What is done before it, in this order: ("lay", TAR, None) writes the
      files of a tar; ("lay", TAR, PATHS) those plain files of it that are at or
      below one of the paths; ("empty", FOLDER) removes what a folder has.
    folder: The working directory.
    folders: Folders that are empty and writable, beside /tmp.
    variables: Of the environment.
    seconds: Most seconds of the command.
    memory: Bytes of address space of each process.
    keeps: Folders whose files the result has.
    reads: Paths of files that the result has.
  """

  line: str
  steps: Sequence[tuple[Any, ...]] = ()
  folder: str = "/tmp"
  folders: Sequence[str] = ()
  variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
  seconds: float = 5.0
  memory: int = 512 << 20
  keeps: Sequence[str] = ()
  reads: Sequence[str] = ()


class ShellResult(NamedTuple):
  """The result of a command.

  Attributes:
    status: "done"; "late": it was ended after its time; "lost": the box has
      ended, as after `kill -9 -1`, and nothing is known.
    code: Exit status, below 0 the number of a signal; None unless "done".
    output: The beginning of what it wrote.
    reads: Contents of `Job.reads`, None where there is no plain file.
    files: A tar of `Job.keeps`; None if it is larger than `MAX_FILES`.
  """

  status: str
  code: int | None = None
  output: bytes = b""
  reads: tuple[bytes | None, ...] = ()
  files: bytes | None = None


def run(box: box_lib.Box, job: Job) -> ShellResult:
  """Runs a command in a new box.

  Raises:
    RuntimeError: The box has failed before the command began.
    TimeoutError: The box had not begun in time.
  """
  limits = box_lib.BoxLimits(
    cpu_s=math.ceil(job.seconds) + 1,
    wall_s=job.seconds + _START_S,
    memory=job.memory,
    file_size=MAX_FILES,
    open_files=256,
    output=MAX_FILES + (2 + len(job.reads)) * _MAX_SAID,
    tmp_size=MAX_FILES,
    processes=_PROCESSES,
    folders=tuple(job.folders),
  )
  request = {
    **{"line": job.line, "folder": job.folder, "seconds": job.seconds},
    **{"steps": list(job.steps), "reads": list(job.reads)},
    **{"keeps": list(job.keeps), "most_kept": MAX_FILES},
    "variables": {"PATH": PATH, "HOME": "/tmp", **job.variables},
    "most_said": _MAX_SAID,
  }
  outcome = box.run(_PROGRAM, marshal.dumps(request), limits=limits)
  if outcome.status != "done":
    return ShellResult("lost")
  head, _, rest = outcome.output.partition(b"\n")
  try:
    match json.loads(head):
      case {"code": None | int() as code, "lengths": [*lengths]} if all(
        x is None or (type(x) is int and x >= 0) for x in lengths
      ):
        parts: list[bytes | None] = []
        for length in lengths:
          parts.append(None if length is None else rest[:length])
          rest = rest[length or 0 :]
        output, *reads, files = parts
        if len(reads) == len(job.reads):
          status = "late" if code is None else "done"
          return ShellResult(status, code, output or b"", tuple(reads), files)
  except (ValueError, RecursionError):
    pass  # Also one part, or none.
  return ShellResult("lost")


def check(box: box_lib.Box) -> None:
  """Tries a command that starts another one.

  Raises:
    RuntimeError: It fails, so that no command can be trusted to run here.
  """
  ran = run(box, Job(line="echo $(echo works)", seconds=60.0))
  if ran.output != b"works\n":
    raise RuntimeError(
      f"sandbox: bash does not run in a box here ({ran.status}):"
      f" {ran.output!r:.200}. Needed are bash in /usr, and Linux 5.14, which"
      " counts the processes of each box by themselves."
    )
