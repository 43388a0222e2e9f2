"""The lock of a workdir: one run at a time.

On a disk the kernel holds the lock (`flock`) and releases it when the process
dies, however it dies: a killed run can be continued at once. In a bucket an
object names the owner. It is created only if there is none, and its owner
writes it anew every `_RENEW_S`. Each write names the generation that it
replaces, so if two processes try, one succeeds. A process that finds the object
watches it: an owner that has written nothing for `_STALE_S` is dead, and so is
one whose process is known to have ended on this machine.

The lock names its owner, for the error message of a second process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import pathlib
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from grpo_jax.training.runtime import files, hosts

NAME = "lock.json"
_RENEW_S = 15.0
_STALE_S = 60.0


@contextlib.contextmanager
def held(workdir: files.Path) -> Iterator[None]:
  """Keeps every other run out of a folder, which is made if missing.

  With several processes every one makes the call, and process 0 holds the lock
  for all. Files and folders that were made for the lock are removed afterwards.

  Raises:
    ValueError: Another run has the folder; raised in all processes.
  """
  with contextlib.ExitStack() as stack:
    refusal = None
    if hosts.is_main():
      hold = _object if files.is_remote(workdir) else _file
      try:
        stack.enter_context(hold(workdir))
      except ValueError as error:
        refusal = str(error)
    (refusal, *_) = hosts.gather(refusal)
    if refusal is not None:
      raise ValueError(refusal)
    yield


@contextlib.contextmanager
def _file(workdir: pathlib.Path) -> Iterator[None]:
  """Holds the lock of a folder on a disk."""
  folders = [path for path in (workdir, *workdir.parents) if not path.exists()]
  workdir.mkdir(parents=True, exist_ok=True)
  path = workdir / NAME
  while True:
    # Not inherited by programs that this process starts.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      with open(descriptor, "rb") as file:
        raise _refusal(workdir, file.read()) from None
    except OSError as error:
      if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
        os.close(descriptor)
        raise
      logging.warning(
        "%s is on a disk without locks (%s): nothing keeps a second run of the"
        " same --workdir from writing between the lines of this one.",
        workdir,
        error.strerror,
      )
    # A former owner may have removed the file that was opened here.
    with contextlib.suppress(FileNotFoundError):
      if os.path.samestat(os.fstat(descriptor), path.stat()):
        break
    os.close(descriptor)
  try:
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(_owner()).encode())
    yield
  finally:
    path.unlink(missing_ok=True)
    os.close(descriptor)
    for folder in folders:
      with contextlib.suppress(OSError):  # Unless something was written.
        folder.rmdir()


@contextlib.contextmanager
def _object(workdir: files.Path) -> Iterator[None]:
  """Holds the lock of a folder in a bucket."""
  lock = _Object(workdir)
  lock.take()
  over = threading.Event()
  renewing = threading.Thread(target=lock.renew, args=(over,), daemon=True)
  renewing.start()
  try:
    yield
  finally:
    over.set()
    renewing.join()
    lock.give_back()


class _Object:
  """An object in a bucket that one process at a time writes."""

  def __init__(self, workdir: files.Path):
    # Installed with gcsfs; Orbax uses them too.
    from google.api_core import exceptions
    from google.cloud import storage

    self._errors = exceptions
    self._workdir = workdir
    self._owner = {**_owner(), "id": secrets.token_hex(8), "beat": 0}
    bucket, _, folder = str(workdir).removeprefix("gs://").partition("/")
    name = f"{folder.rstrip('/')}/{NAME}".lstrip("/")
    self._blob = storage.Client().bucket(bucket).blob(name)
    self._generation = 0  # Of the object as last written here; 0: none.

  def take(self) -> None:
    """Creates the object, or takes over that of a dead owner.

    Raises:
      FileNotFoundError: There is no such bucket.
      ValueError: The owner lives.
    """
    try:
      state = self._write(0)
      while state is not None:
        generation, content = state
        if not _is_gone(content):
          hosts.say(
            f"{self._workdir} has an owner; waiting {_STALE_S:.0f} s for a sign"
            " of life from it"
          )
          deadline = time.monotonic() + _STALE_S
          while state == (generation, content) and time.monotonic() < deadline:
            time.sleep(min(1.0, _STALE_S / 10))
            state = self._read()
          if state is not None and state[0] != generation:
            raise _refusal(self._workdir, state[1])
        # Nothing has changed, or it was given back.
        state = self._write(0 if state is None else generation)
    except self._errors.NotFound as error:
      raise FileNotFoundError(
        f"{self._workdir}: there is no such bucket ({error.message}). Make it,"
        " or pass another --workdir."
      ) from error

  def _write(self, generation: int) -> tuple[int, bytes] | None:
    """Replaces a generation; returns None, or what is there instead of it."""
    self._owner["beat"] += 1
    content = json.dumps(self._owner).encode()
    while True:
      try:
        self._blob.upload_from_string(content, if_generation_match=generation)
        self._generation = int(self._blob.generation)
        return None
      except self._errors.PreconditionFailed:
        state = self._read()
      if state is None:
        generation = 0  # It was removed in between.
      elif _parse(state[1]).get("id") == self._owner["id"]:
        # The answer to an earlier upload was lost: this is our own object.
        self._generation = state[0]
        return None
      else:
        return state

  def _read(self) -> tuple[int, bytes] | None:
    """Generation and content of the object; None if there is none."""
    blob = self._blob.bucket.get_blob(self._blob.name)
    if blob is None:
      return None
    try:
      content = blob.download_as_bytes(if_generation_match=blob.generation)
    except (self._errors.NotFound, self._errors.PreconditionFailed):
      return self._read()  # Written in between.
    return int(blob.generation), content

  def renew(self, over: threading.Event) -> None:
    """Writes the object until `over`; ends the process if it has lost it."""
    while not over.wait(_RENEW_S):
      try:
        state = self._write(self._generation)
      except Exception as error:  # Any error of the network.
        logging.warning("%s: the lock was not renewed: %s", NAME, error)
        continue
      if state is not None:
        _leave_to(self._workdir, state[1])

  def give_back(self) -> None:
    """Removes the object, unless another process has it."""
    try:
      self._blob.delete(if_generation_match=self._generation)
    except Exception as error:
      logging.warning("%s stays in %s: %s", NAME, self._workdir, error)


def _leave_to(workdir: files.Path, content: bytes) -> NoReturn:
  """Ends this process, which has lost its folder."""
  hosts.end_at_once(
    f"{workdir} was taken over by {_described(content)}, because this process"
    f" had not written there for {_STALE_S:.0f} s. It ends, so that one writes."
  )


def _owner() -> dict[str, Any]:
  """Fields that identify this process among all processes."""
  return {
    "host": platform.node(),
    "boot": _boot(),
    "pid": os.getpid(),
    "started": _start_ticks(os.getpid()),
    "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
  }


def _boot() -> str:
  """The boot id of this machine, with its namespace of process ids."""
  try:
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
  except OSError:
    return ""


def _start_ticks(pid: int) -> int | None:
  """Ticks from the machine's start to a process's start; None if unknown."""
  try:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
  except OSError:
    return None
  return int(stat.rpartition(")")[2].split()[19])


def _is_gone(content: bytes) -> bool:
  """Says if the owner was a process of this machine that has ended."""
  owner = _parse(content)
  return (
    bool(_boot())
    and (owner.get("host"), owner.get("boot")) == (platform.node(), _boot())
    and owner.get("started") != _start_ticks(owner["pid"])
  )


def _parse(content: bytes) -> dict[str, Any]:
  try:
    owner = json.loads(content)
  except ValueError:
    return {}  # It is being written.
  return owner if isinstance(owner, dict) else {}


def _described(content: bytes) -> str:
  owner = _parse(content)
  if not {"pid", "host", "since"} <= owner.keys():
    return "another process"
  return f"process {owner['pid']} on {owner['host']}, since {owner['since']}"


def _refusal(workdir: files.Path, content: bytes) -> ValueError:
  return ValueError(
    f"{workdir} is in use by {_described(content)}. Two runs in one folder"
    " would mix their files; nothing was changed. Wait for that process, stop"
    " it, or pass another --workdir."
  )
