"""A control group for the programs of one process, where one can be made.

It bounds what limits of a process do not count: pages of files in memory, and
what the kernel keeps for a program. Containers often mount these files
read-only; then there is no group, and nothing else depends on it.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import weakref
from collections.abc import Mapping

_ROOT = pathlib.Path("/sys/fs/cgroup")
_NAME = "grpo_jax_"


def make(memory: int) -> Group | None:
  """A group beside that of this process, or None if that is forbidden.

  Args:
    memory: Bytes.
  """
  try:
    own = _own_groups()
    if (_ROOT / "cgroup.controllers").exists():
      folder = _add(_ROOT, own[""], {"memory.max": memory, "memory.swap.max": 0})
    else:
      # Version 1 has a tree for each controller.
      limit = {"memory.limit_in_bytes": memory}
      folder = _add(_ROOT / "memory", own["memory"], limit)
  except (OSError, KeyError):
    return None
  return Group(folder)


class Group:
  """A folder of the kernel's; the group ends with this object."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self._finalizer = weakref.finalize(self, _remove, folder)

  def close(self) -> None:
    """Removes the group. May be called again."""
    self._finalizer()

  def enter(self) -> None:
    """Moves the calling process there; what it starts stays there."""
    (self.folder / "cgroup.procs").write_text("0")


def _own_groups() -> dict[str, str]:
  """Path of this process's group by controller; "": of version 2."""
  found = {}
  for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
    _, controllers, path = line.split(":", 2)
    for name in controllers.split(","):
      found[name] = path
  return found


def _add(
  root: pathlib.Path, own: str, limits: Mapping[str, int]
) -> pathlib.Path:
  """Makes a group beside our own, since one with processes has no groups."""
  parent = root / pathlib.PurePosixPath(own).parent.relative_to("/")
  for folder in parent.glob(_NAME + "*"):  # Of processes that were killed.
    pid = folder.name.removeprefix(_NAME).partition("_")[0]
    if not os.path.exists(f"/proc/{pid}"):
      _remove(folder)
  folder = parent / f"{_NAME}{os.getpid()}_{os.urandom(4).hex()}"
  folder.mkdir()
  try:
    for name, limit in limits.items():
      path = folder / name
      if path.exists() or "swap" not in name:  # A kernel may have no swap.
        path.write_text(str(limit))
  except OSError:
    _remove(folder)
    raise
  return folder


def _remove(folder: pathlib.Path) -> None:
  with contextlib.suppress(OSError):  # It has processes, or is gone.
    folder.rmdir()
