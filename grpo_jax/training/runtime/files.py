"""Paths of a run: a folder of this machine, or `gs://bucket/folder`.

An object store is not a disk: an object appears whole or not at all, cannot be
appended to, and is not renamed but copied. This module and `log.py` handle
these differences; Orbax handles them for checkpoints.

`escaped` makes text of a model or a verifier safe for a terminal and a log.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import tempfile
from typing import TypeAlias

from etils import epath

Path: TypeAlias = pathlib.Path | epath.Path
_REMOTE = "gs://"


def parse(path: str | os.PathLike) -> Path:
  """Returns a `pathlib.Path`, or of gs://BUCKET/… the path of a bucket.

  Raises:
    ValueError: It is an address of another kind, as `s3://…`, or names no
      bucket.
    ImportError: It is remote, and the library that reads it is not installed.
  """
  text = os.fspath(path)
  if not re.match(r"[A-Za-z][\w+.-]+:/", text):
    return pathlib.Path(text)
  if not re.match(rf"{_REMOTE}[^/]+", text):
    # pathlib turns an address into `gs:/bucket`, and that into a folder `gs:`.
    raise ValueError(
      f"{text!r} is neither a local folder nor gs://BUCKET/FOLDER; pass one of"
      " these."
    )
  if importlib.util.find_spec("gcsfs") is None:
    raise ImportError(
      f"{text}: gcsfs is not installed, which reads and writes gs:// addresses;"
      " run `pip install 'grpo_jax[gcs]'`."
    )
  return epath.Path(text)


def is_remote(path: Path) -> bool:
  """Says if files of this path are objects in a bucket."""
  return not isinstance(path, pathlib.Path)


def write(path: Path, content: bytes) -> None:
  """Replaces a file as a whole: a kill leaves the old content or the new."""
  if is_remote(path):
    path.write_bytes(content)
    return
  temporary = path.with_name(path.name + ".tmp")
  with temporary.open("wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  temporary.replace(path)


def scratch(path: Path) -> pathlib.Path:
  """A local folder for the files that `publish` moves to `path`.

  It serves programs that write to disks only. A local path is its own scratch.
  """
  if isinstance(path, pathlib.Path):
    return path
  return pathlib.Path(tempfile.mkdtemp()) / path.name


def publish(source: pathlib.Path, path: Path) -> None:
  """Moves the files of a scratch folder to their path."""
  if source == path:
    return
  for file in sorted(source.rglob("*")):
    if file.is_file():
      target = path / file.relative_to(source).as_posix()
      with file.open("rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer)
  shutil.rmtree(source.parent)


def escaped(text: str) -> str:
  r"""The text on one line, without characters that a terminal would act upon.

  Characters that are not printed are written as in a Python string: a new line
  as \n, the escape that begins a colour as \x1b, one that reverses the order of
  writing as \u202e. Backslashes stay: there are too many in formulas.
  """
  return "".join(
    c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
  )
