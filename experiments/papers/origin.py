"""Origin of each recorded number: its commit, and whether it is stale.

A record is a file of numbers of an arm or a cell, or a page that is itself the
only record. The field "made" of a record names the code and config that made it
(`sweeps/made.py`). A record that is older than this field is dated by git: its
commit is the last one that changed the file. It is stale for "code" if a file
that makes numbers of the experiment has other statements now than in that
commit. Its config hash is unknown, and is shown as unknown.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from experiments.papers.registry import Experiment
from experiments.sweeps import made
from grpo_jax.settings import overrides

UNKNOWN = "–"


@dataclasses.dataclass(frozen=True)
class Record:
  """Record with its origin."""

  experiment: str  # Name of its experiment.
  path: str
  kind: str  # "numbers", or "page" if a page is the only record.
  config: str  # Hash of its config, or `UNKNOWN`.
  commit: str  # Commit in which it was made, or the one that last changed it.
  date: str  # Day, YYYY-MM-DD.
  minutes: float | None  # Minutes that it took; None if not recorded.
  stale: tuple[str, ...]  # Reasons why it is stale; empty if none is known.
  # Number of commits to `grpo_jax/` since; None if unknown.
  library: int | None


class History:
  """History of the repository: the last commit of each file, and later ones.

  Args:
    log: Lines "@COMMIT DATE", newest first, each with the files that it
      changed below; None without git.
    changed: Files that differ from the last commit.
  """

  def __init__(self, log: str | None, changed: Iterable[str]):
    self.known = log is not None
    self.changed = set(changed)
    self._commits: list[tuple[str, str]] = []
    self._last: dict[str, int] = {}
    self._library: list[int] = []
    self._statements: dict[tuple[str, str], str | None] = {}
    for line in (log or "").splitlines():
      if line.startswith("@"):
        commit, date = line[1:].split()
        self._commits.append((commit, date))
      elif line:
        number = len(self._commits) - 1
        self._last.setdefault(line, number)
        in_library = line.startswith("grpo_jax/")
        if in_library and self._library[-1:] != [number]:
          self._library.append(number)

  @classmethod
  def read(cls) -> History:
    """Reads the history of the repository."""
    log = made.git("log", "--format=@%h %as", "--name-only", "--no-renames")
    status = made.git("status", "--porcelain") or ""
    return cls(log, (line[3:] for line in status.splitlines()))

  def last(self, path: str) -> tuple[str, str]:
    """Commit and date of the last change of a file."""
    number = self._last.get(path)
    return (UNKNOWN, UNKNOWN) if number is None else self._commits[number]

  def place(self, commit: str) -> int | None:
    """Number of commits after a commit; None for an unknown one."""
    for number, (name, _) in enumerate(self._commits):
      if name.startswith(commit) or commit.startswith(name):
        return number
    return None

  def since(self, place: int, files: Iterable[str]) -> list[str]:
    """Returns the files that changed after a place of the history."""
    return [
      file
      for file in files
      if file in self.changed or self._last.get(file, place) < place
    ]

  def differing(self, commit: str, files: Iterable[str]) -> list[str]:
    """Returns the files that have other statements now than in a commit."""
    found = []
    for file in files:
      now = made.ROOT / file
      if (commit, file) not in self._statements:
        then = made.git("show", f"{commit}:{file}")
        self._statements[commit, file] = then and made.code(now, then)
      then = self._statements[commit, file]
      if then is None or then != made.code(now, now.read_text("utf-8")):
        found.append(file)
    return found

  def library_since(self, place: int) -> int:
    """Number of later commits that changed the library."""
    return sum(number < place for number in self._library)


def records(experiment: Experiment, history: History) -> Iterator[Record]:
  """Yields all records of an experiment."""
  code = [
    str(path.relative_to(made.ROOT))  # As git names them.
    for name in experiment.code
    for path in made.code_files(made.ROOT / name)
  ]
  for pattern in experiment.records:
    for path in sorted(made.ROOT.glob(pattern)):
      content = json.loads(path.read_text("utf-8"))
      yield _record(experiment, path, "numbers", content, code, history)
  if not experiment.records:
    for name in experiment.outputs:
      yield _record(experiment, made.ROOT / name, "page", {}, code, history)


def _record(
  experiment: Experiment,
  path: pathlib.Path,
  kind: str,
  content: Mapping[str, Any],
  code: list[str],
  history: History,
) -> Record:
  """A record by its field "made", or else by what git knows."""
  name = str(path.relative_to(made.ROOT))
  about = content.get("made")
  if about is None:
    commit, date = history.last(name)
    place = history.place(commit)
    # Files that no later commit has touched are the same.
    files = [] if place is None else history.since(place, code)
    touched = history.differing(commit, files)
    names = ", ".join(pathlib.Path(x).name for x in touched)
    stale = [f"code: {names}"] if touched else []
    about = {"config": UNKNOWN, "dirty": False}
    about["date"] = content.get("date", date)
  else:
    commit = about["commit"] or UNKNOWN
    place = history.place(commit)
    stale = list(_stale(experiment, path, about))
  return Record(
    experiment.name,
    name,
    kind,
    about["config"],
    commit + ("+" if about["dirty"] else ""),
    about["date"],
    _minutes(content),
    tuple(stale),
    None if place is None else history.library_since(place),
  )


def _stale(
  experiment: Experiment, path: pathlib.Path, about: Mapping[str, Any]
) -> Iterator[str]:
  """Reasons why a record with the field "made" is stale."""
  source = made.ROOT / experiment.code[0]
  if experiment.arms:
    try:
      now = made.config_hash(f"{source}:{path.stem}")
    except ValueError as error:  # The arm is gone.
      yield f"config: {overrides.text_of(error)}"
    else:
      if now != about["config"]:
        yield f"config: it is {now} now"
  if made.code_hash(source) != about["code"]:
    yield "code: the experiment's files have other contents"


def _minutes(content: Mapping[str, Any]) -> float | None:
  if "minutes" in content:
    return float(content["minutes"])
  seconds = content.get("seconds")
  if isinstance(seconds, int | float):
    return (seconds + content.get("compile_seconds", 0.0)) / 60
  return None


@dataclasses.dataclass(frozen=True)
class Output:
  """Page or figure in the repository."""

  path: str
  kind: str  # "page" or "figure".
  tables: int  # Tables of a page.
  # Commit and date of its last change.
  commit: str
  date: str
  # Its source files that changed later; `--regenerate` tells whether the output
  # would differ.
  behind: tuple[str, ...]


def outputs(experiment: Experiment, history: History) -> Iterator[Output]:
  """Existing pages and figures of an experiment."""
  for name in experiment.outputs:
    path = made.ROOT / name
    if not path.exists():
      continue
    is_page = path.suffix == ".md"
    commit, date = history.last(name)
    place = history.place(commit)
    behind: list[str] = []
    if place is not None and experiment.records:
      code = pathlib.PurePath(experiment.code[0])
      readers = [
        str(code / reader)
        for reader in made.READERS
        if reader != ("figure.py" if is_page else "page.py")
      ]
      if code.suffix:  # The code is there too, and the text of the page.
        readers = [str(code), *([str(code.with_suffix(".md"))] * is_page)]
      sources = (
        str(x.relative_to(made.ROOT))
        for pattern in experiment.records
        for x in made.ROOT.glob(pattern)
      )
      behind = history.since(place, [*readers, *sources])
    tables = _tables(path) if is_page else 0
    kind = "page" if is_page else "figure"
    yield Output(name, kind, tables, commit, date, tuple(behind))


def _tables(path: pathlib.Path) -> int:
  """The tables of a Markdown page."""
  lines = path.read_text("utf-8").splitlines()
  return sum(line.startswith("|--") or line.startswith("|:-") for line in lines)


def summary(found: Iterable[Record]) -> dict[str, int]:
  """Number of stale records for each reason, and of fresh ones."""
  counts: dict[str, int] = collections.Counter()
  for record in found:
    for reason in record.stale or ("fresh",):
      counts[reason.partition(":")[0]] += 1
  return dict(counts)
