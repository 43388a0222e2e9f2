"""A source of JSON lines that stay on disk: many records need no memory.

An index has the byte at which each line begins. It is made once, in one pass
over the file, and kept beside the file:

    data.jsonl          the lines
    data.jsonl.index    64 bytes that identify the file, with a checksum of the
                        rest: one int64 for each line that is not empty, the
                        byte at which the line begins

A line is read, parsed and checked when its record is requested.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import pathlib
import struct
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from etils import epath

from grpo_jax.data import formats, sources
from grpo_jax.data.formats import Format, Record

_BLOCK = 2**22  # Bytes that are read at once.
_ENDS = 2**16  # Bytes of the head, and of the tail, in the mark's checksum.
_VERSION = b"grpolns2"
# 64 bytes: version, number of lines, `_Mark`, checksum of what follows.
_HEADER = struct.Struct("<8sqqqII24x")


class _Mark(NamedTuple):
  """Identity of a file, which changes if the file changes.

  Attributes:
    size: Size of the file, bytes.
    changed: Time of its last change, nanoseconds.
    checksum: Checksum of its first and last bytes.
  """

  size: int
  changed: int
  checksum: int


class StreamedJsonlSource:
  """JSON objects, one a line, read from the disk one at a time.

  Attributes:
    starts: (0,), a single part; see `sources.starts`.
  """

  starts = (0,)

  def __init__(
    self,
    path: epath.PathLike,
    format: Format = None,
    fields: Mapping[str, Any] | None = None,
    domain_key: str = "",
    images: Sequence[str] = (),
  ):
    """Opens the index, or makes it in one pass over the file.

    Args:
      path: Local file as for `sources.JsonlSource`; it must not change while
        it is read. The first line is checked now, and other lines when they are
        read.
      format, fields, domain_key, images: As in `formats.conversion`.

    Raises:
      FileNotFoundError: There is no such file.
      OSError: The index cannot be written to any folder.
      ValueError: The file is in a bucket, or has no records; the first record
        is malformed; or the format is unknown.
    """
    self._convert = formats.conversion(format, fields, domain_key, images)
    if "://" in os.fspath(path):
      raise ValueError(
        f"config.data.streaming=True: {path} is not on a disk of this"
        " machine, where lines could be read one at a time. Copy it here, as"
        " `gcloud storage cp` does, and set config.data.train_path (and"
        " eval_path) to the copy; or set config.data.streaming=False, which"
        " holds it in memory."
      )
    full_path = sources.existing(path, "a .jsonl file")
    self._path = pathlib.Path(full_path).absolute()
    if not self._path.is_file():
      raise ValueError(
        f"config.data.streaming=True: {path} is a pipe or a device, of"
        " which no line can be read twice; write it into a file, or set"
        " config.data.streaming=False."
      )
    mark = _mark(self._path)
    index = _usable_index(self._path, mark) or _new_index(self._path, mark)
    self._size = mark.size
    num_lines = (index.stat().st_size - _HEADER.size) // 8
    if not num_lines:
      raise ValueError(f"{path} has no records; need at least 1.")
    self._begins = np.memmap(
      index, "<i8", mode="r", offset=_HEADER.size, shape=(num_lines,)
    )
    self._file = os.open(self._path, os.O_RDONLY)
    # Not `__del__`, which may run after the module `os` is gone.
    weakref.finalize(self, os.close, self._file)
    self._has_domain: bool | None = None
    self._has_domain = formats.has_domain(self[0])

  def __len__(self) -> int:
    return len(self._begins)

  def __getitem__(self, index: int) -> Record:
    begin = int(self._begins[index])
    last = index + 1 == len(self._begins)
    end = self._size if last else int(self._begins[index + 1])
    # Empty lines may follow; the index has no entry for them.
    line = os.pread(self._file, end - begin, begin).partition(b"\n")[0]
    try:
      record = sources.record_of(line, self._convert)
      if record is None:
        raise ValueError("found an empty line; has the file changed?")
      if self._has_domain not in (None, formats.has_domain(record)):
        raise ValueError(
          "found a 'domain' in 'extras' of this record or of the first one, and"
          " not in both; need all or none."
        )
    except ValueError as error:
      number = _line_number(self._path, begin)
      raise ValueError(f"{self._path}:{number}: {error}") from error
    return record


def _mark(path: pathlib.Path) -> _Mark:
  stat = path.stat()
  with path.open("rb") as file:
    checksum = zlib.crc32(file.read(_ENDS))
    file.seek(max(stat.st_size - _ENDS, 0))
    checksum = zlib.crc32(file.read(_ENDS), checksum)
  return _Mark(stat.st_size, stat.st_mtime_ns, checksum)


def _places(path: pathlib.Path) -> list[pathlib.Path]:
  """Paths of an index: beside the file, or else in the user's cache."""
  cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
  name = hashlib.sha256(os.fspath(path).encode()).hexdigest()[:32]
  return [
    path.with_name(path.name + ".index"),
    pathlib.Path(cache) / "grpo_jax" / f"{name}.index",
  ]


def _usable_index(path: pathlib.Path, mark: _Mark) -> pathlib.Path | None:
  """Path of an existing, complete index of exactly this file, or None."""
  for place in _places(path):
    if not place.is_file():  # Not a folder, nor a pipe without a writer.
      continue
    try:
      content = place.read_bytes()
    except OSError:
      continue
    rest = memoryview(content)[_HEADER.size :]
    if len(content) >= _HEADER.size and len(rest) % 8 == 0:
      header = _HEADER.unpack_from(content)
      if header == (_VERSION, len(rest) // 8, *mark, zlib.crc32(rest)):
        return place
  return None


def _new_index(path: pathlib.Path, mark: _Mark) -> pathlib.Path:
  """Makes the index in the first place that can be written."""
  complaints = []
  for place in _places(path):
    name = ""
    try:
      place.parent.mkdir(parents=True, exist_ok=True)
      # Written under another name until it is complete: a killed process leaves
      # no index that looks complete, and several processes may make one each.
      descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".index-")
      logging.info("%s: making the index of lines %s", path, place)
      os.fchmod(descriptor, 0o644)  # Other users of the file may read it.
      with os.fdopen(descriptor, "wb") as file:
        _write_index(file, path, mark)
      os.replace(name, place)
    except BaseException as error:
      if name:
        os.unlink(name)
      if not isinstance(error, OSError):
        raise
      complaints.append(str(error))
    else:
      return place
  raise OSError(
    f"config.data.streaming=True: no place for the index of {path}:"
    f" {'; '.join(complaints)}. Make its folder writable, or set the"
    " environment variable XDG_CACHE_HOME to a folder that is."
  )


def _write_index(file: Any, path: pathlib.Path, mark: _Mark) -> None:
  file.write(bytes(_HEADER.size))
  count = checksum = 0
  for begins in _begins(path):
    content = begins.astype("<i8").tobytes()
    file.write(content)
    checksum = zlib.crc32(content, checksum)
    count += len(begins)
  file.seek(0)
  file.write(_HEADER.pack(_VERSION, count, *mark, checksum))
  file.flush()
  os.fsync(file.fileno())


def _begins(path: pathlib.Path) -> Iterator[np.ndarray]:
  """Offsets at which the lines that are not empty begin, in order."""
  with path.open("rb") as file:
    at = len(codecs.BOM_UTF8) * (file.read(3) == codecs.BOM_UTF8)
    file.seek(at)
    rest = b""
    while block := file.read(_BLOCK):
      block = rest + block
      lines, newline, rest = block.rpartition(b"\n")
      yield at + _of_block(lines + newline)
      at += len(lines) + len(newline)
    yield at + _of_block(rest + b"\n")


def _of_block(block: bytes) -> np.ndarray:
  """Finds such offsets in a block of whole lines; see `_begins`."""
  ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
  begins = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
  # Nearly all lines begin with a brace: only other lines are read one by one.
  data = np.frombuffer(block, np.uint8)
  is_line = data[begins] == ord("{")
  for i in np.flatnonzero(~is_line):
    line = block[begins[i] : ends[i]]
    is_line[i] = bool(line.decode("utf-8", "replace").strip())
  return begins[is_line]


def _line_number(path: pathlib.Path, begin: int) -> int:
  """Number, from 1 on, of the line that begins at this byte."""
  count, num_bytes = 1, begin
  with path.open("rb") as file:
    while num_bytes and (block := file.read(min(num_bytes, _BLOCK))):
      count += block.count(b"\n")
      num_bytes -= len(block)
  return count
