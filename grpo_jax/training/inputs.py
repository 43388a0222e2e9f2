"""Digests of the files that a run reads, to find those that have changed.

A stream of prompts is a function of its records, so a run that is continued
with other records is another run. `inputs.json` in the workdir has a digest of
each file that a setting names: data, tokenizers, folders of checkpoints,
datasets of TFDS, and modules of one's own.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.machinery
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging
from etils import epath

from grpo_jax.data import sources
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import groups
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import files as files_lib
from grpo_jax.training.runtime import log

_FILE = "inputs.json"
# The files that are read in the folder of a tokenizer, a checkpoint, and a run.
_OF_TOKENIZER = ("*.json", "*.jinja", "additional_chat_templates/*.jinja")
_OF_CHECKPOINT = (*_OF_TOKENIZER, "*.safetensors")
_OF_RUN = (log.CONFIG,)
# A larger file is read in part: as many bytes, at places spread over the file.
# The weights of a large model would take minutes.
_WHOLE, _NUM_PLACES = 2**30, 1024
_BLOCK = _WHOLE // _NUM_PLACES
# Sources whose images are files.
_WITH_PATHS = ("jsonl", "datasets", "mixture")
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[\w.]+")
_PACKAGE = pathlib.Path(__file__).parents[2]


def digests(
  config: config_lib.RunConfig, problem: problem_lib.Problem | None = None
) -> dict[str, str]:
  """Returns a digest of each file that a run reads, by its path.

  Args:
    config: Settings of the run, which name files.
    problem: The problem, whose records may name images; None: images do not
      count. If records are read one by one (`config.data.streaming`), their
      images do not count either.
  """
  groups_of_files = dataclasses.asdict(config)
  del groups_of_files["log"]  # The name of a run may be that of its folder.
  files = [path for value in _texts(groups_of_files) for path in _files(value)]
  checkpoint = config.model.checkpoint
  # It may be a name on the hub, and not a path. A GGUF file is in `files`.
  if checkpoint and not pathlib.Path(checkpoint).expanduser().is_file():
    files += _of_folder(config.model.directory())
  data = config.data
  if problem is not None and data.images and data.source in _WITH_PATHS:
    files += _images(config, problem)
  is_mixture = data.source == "mixture"
  for part in groups.parts(data).values() if is_mixture else ():
    files += _of_dataset(part.data)
  return {
    os.fspath(path): _digest(path) for path in [*files, *_of_dataset(data)]
  }


def check(workdir: files_lib.Path, now: Mapping[str, str]) -> None:
  """Compares files with those that the run has read before.

  Only a warning names modules that have changed, since code may be corrected.

  Args:
    workdir: Folder of the run; one without a record passes.

  Raises:
    ValueError: A file that is not a module has changed, has gone or was added.
  """
  path = workdir / _FILE
  if not path.exists():
    return
  before = log.read_json(path, dict)
  changed = sorted(
    name
    for name in before.keys() | now.keys()
    if before.get(name) != now.get(name)
  )
  code = [name for name in changed if name.endswith(".py")]
  if code:
    logging.warning(
      "%s is continued with other code than it was started with: %s",
      workdir,
      ", ".join(code),
    )
  if data := [name for name in changed if name not in code]:
    changes = "; ".join(
      f"{name} "
      + (
        "was not there"
        if name not in before
        else "is not there any more"
        if name not in now
        else "has another content"
      )
      for name in data
    )
    raise ValueError(
      f"{workdir} was started with other files than there are now: {changes}. A"
      " run that is continued reads what it was started with. Put the files"
      " back; or pass another --workdir, and"
      f" --config.start_workdir={workdir} to begin with what was learnt."
    )


def save(workdir: files_lib.Path, now: Mapping[str, str]) -> None:
  """Writes the digests into the folder of a run."""
  log.write_json(workdir / _FILE, dict(sorted(now.items())))


def _images(
  config: config_lib.RunConfig, problem: problem_lib.Problem
) -> Iterator[pathlib.Path]:
  """Yields the image files that records in memory name."""
  folder = pathlib.Path(groups.folder(config.data))
  for source in (problem.train, problem.held_out):
    for number in range(0 if config.data.streaming else len(source)):
      for kind, *values in source[number].get("pictures", ()):
        path = folder / str(values[0]) if kind == "path" else None
        if path is not None and path.is_file():
          yield path


def _texts(value: Any) -> Iterator[str]:
  if isinstance(value, str):
    yield value
  elif hasattr(value, "values"):  # Options stay a ConfigDict.
    for inner in value.values():
      yield from _texts(inner)
  elif isinstance(value, list | tuple):
    for inner in value:
      yield from _texts(inner)


def _files(value: str) -> Iterator[files_lib.Path]:
  """Yields the files that a setting names; none if it means something else."""
  if _IMPORT_PATH.fullmatch(value):
    yield from _module(value.partition(":")[0])
    return
  try:
    path = files_lib.parse(value)
    is_file, is_folder = path.is_file(), path.is_dir()
  except (ValueError, OSError, ImportError):
    return
  if is_file and re.search(r"[/.]", value):  # Other texts are names.
    yield path
  elif is_folder and value:
    yield from _of_folder(path)


def _of_folder(folder: files_lib.Path) -> Iterator[files_lib.Path]:
  """Yields the files that a run reads of a folder.

  The folder is a checkpoint, a run or a tokenizer; of another one there are
  none.
  """
  described = folder / "config.json"
  patterns: tuple[str, ...] = ()
  if described.exists():
    content = log.read_json(described, dict)
    patterns = _OF_CHECKPOINT if "model_type" in content else _OF_RUN
  elif (folder / "tokenizer.json").exists():
    patterns = _OF_TOKENIZER
  for pattern in patterns:
    yield from sorted(folder.glob(pattern))


def _module(name: str) -> Iterator[pathlib.Path]:
  """Yields the file of a module outside this package, without importing it."""
  places, spec = None, None
  for number, _ in enumerate(parts := name.split("."), start=1):
    spec = importlib.machinery.PathFinder.find_spec(
      ".".join(parts[:number]), places
    )
    if spec is None:
      return
    places = spec.submodule_search_locations
  origin = pathlib.Path(spec.origin) if spec and spec.origin else None
  if origin is not None and not origin.is_relative_to(_PACKAGE):
    yield origin


def _of_dataset(data: groups.DataConfig) -> list[files_lib.Path]:
  """Returns the files in the folders of a dataset; none for another source."""
  folders: list[Any] = []
  if data.source == "tfds":
    folders = [sources.tfds_folder(data.name)]
  elif data.source == "datasets":
    paths = {data.train_path, data.eval_path} - {""}
    folders = [pathlib.Path(path).expanduser() for path in sorted(paths)]
  return [
    folder / at / name
    for folder in map(files_lib.parse, folders)
    for at, _, names in epath.Path(folder).walk()
    for name in names
  ]


def _digest(path: files_lib.Path) -> str:
  """The digest of a file, 16 hexadecimal digits."""
  if files_lib.is_remote(path):
    return _read.__wrapped__(path, None)
  info = path.stat()
  return _read(path, (info.st_size, info.st_mtime_ns))


@functools.lru_cache(maxsize=1024)  # Many runs of one process read the same.
def _read(path: files_lib.Path, state: tuple[int, int] | None) -> str:
  del state
  digest = hashlib.sha256()
  with path.open("rb") as file:
    size = file.seek(0, os.SEEK_END)
    digest.update(str(size).encode())
    last = max(size - _BLOCK, 0)
    num_places = min(_NUM_PLACES, -(-size // _BLOCK))
    for number in range(num_places):
      file.seek(last * number // max(num_places - 1, 1))
      digest.update(file.read(_BLOCK))
  return digest.hexdigest()[:16]
