r"""Plants bugs one at a time, and reports which of them the tests notice.

  python scripts/mutate.py --out=/tmp/mutations.json
  python scripts/mutate.py --only='rollout/|filters'

The bugs are those of `tests/mutations.txt`. The command copies the tree into a
temporary folder once. There it applies one bug at a time, runs the tests that
are named beside it, and takes the bug back. A line has the result of each bug:

  killed    A test has failed, as it should.
  survived  All tests have passed, so the bug is not noticed.
  broken    Nothing is known: no test was found, a module could not be imported,
            or the tests did not end.

The exit status is 1 if fewer than the share --required are killed. --only takes
those whose path, sentence or tests match a regular expression. With --out the
results are written after each bug, and bugs that the file has as killed are not
run again. So the command goes on where it was stopped, and after a test was
made stronger it runs only the other bugs.

Tests run one after the other, on the CPU, and all of them take about a quarter
of an hour on one core. Compiled programs are those of `.cache/jax`. The tests
must pass without any bug: --unchanged runs them so, and expects that each
survives.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_TIMEOUT_S = 300.0  # Of the tests of one bug.
# What pytest ends with; everything else is about files that it cannot read,
# tests that it does not find, or about itself.
_STATUS = {0: "survived", 1: "killed"}


@dataclasses.dataclass(frozen=True)
class Result:
  """Result of the tests for a bug.

  Attributes:
    status: "killed", "survived" or "broken".
    seconds: Seconds of its tests.
    said: The failed test with the reason, or the end of pytest's output.
  """

  status: str
  seconds: float
  said: str


def planted(source: str, old: str, new: str) -> str:
  """Returns the source of a file with one bug.

  Raises:
    ValueError: `old` does not occur exactly once, or is equal to `new`.
  """
  count = source.count(old)
  if count != 1 or old == new:
    raise ValueError(
      f"mutate: {old!r} occurs {count} times and becomes {new!r}; needs one"
      " place and a change. Correct the entry of tests/mutations.txt."
    )
  return source.replace(old, new)


class Tree:
  """Copy of the files that git tracks, or would track, in another folder."""

  def __init__(self, root: pathlib.Path, folder: pathlib.Path):
    listed = subprocess.run(
      ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
      cwd=root,
      check=True,
      capture_output=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
      path, copy = root / name, folder / name
      if path.is_file() or path.is_symlink():  # It may have been removed.
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy, follow_symlinks=False)
    self.folder = folder
    self._environment = {
      "JAX_COMPILATION_CACHE_DIR": str(root / ".cache" / "jax"),
      **os.environ,
      "JAX_PLATFORMS": "cpu",
      "PYTHONPATH": str(folder),
      "COLUMNS": "300",  # So that pytest says why a test has failed.
    }
    # Compiled modules are told apart by whole seconds.
    self._time = int(time.time())

  def write(self, path: str, source: str) -> None:
    (self.folder / path).write_text(source, encoding="utf-8")
    self._time += 2
    os.utime(self.folder / path, (self._time, self._time))

  def run(self, tests: str) -> Result:
    """Runs tests, and stops at the first that fails."""
    # An entry names its tests, whether they are slow or not.
    command = [sys.executable, "-m", "pytest", "-x", "-m", ""]
    command += ["-p", "no:cacheprovider"]
    started = time.monotonic()
    try:
      done = subprocess.run(
        [*command, *shlex.split(tests)],
        cwd=self.folder,
        env=self._environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_TIMEOUT_S,
      )
    except subprocess.TimeoutExpired:
      said = f"no end after {_TIMEOUT_S:.0f} s"
      return Result("broken", time.monotonic() - started, said)
    said = _said(done.stdout.decode(errors="replace"))
    status = _STATUS.get(done.returncode, "broken")
    if status == "killed" and "::" not in said:
      status = "broken"  # It is about a file, and not about a test.
    return Result(status, time.monotonic() - started, said)


def _said(output: str) -> str:
  lines = output.strip().splitlines() or [""]
  failed = (x for x in lines if x.startswith(("FAILED ", "ERROR ")))
  return next(failed, lines[-1])[:300]


def results(
  tree: Tree, mutations: Iterable[Any], unchanged: bool = False
) -> Iterator[tuple[Any, Result]]:
  """Plants one bug after the other; yields the result of each."""
  for mutation in mutations:
    path, *change = mutation.path, mutation.old, mutation.new
    source = (tree.folder / path).read_text(encoding="utf-8")
    with_bug = planted(source, *change)
    tree.write(path, source if unchanged else with_bug)
    try:
      yield mutation, tree.run(mutation.tests)
    finally:
      tree.write(path, source)


def _name(mutation: Any) -> str:
  """Key of a result; any change of an entry makes another one."""
  return json.dumps(mutation)


def mutate(
  root: pathlib.Path,
  mutations: list[Any],
  out: pathlib.Path | None,
  required: float,
  unchanged: bool = False,
) -> int:
  """Runs the bugs without a result; returns the exit status of the command."""
  expected = "survived" if unchanged else "killed"
  known: dict[str, Any] = {}
  if out is not None and out.exists():
    known = json.loads(out.read_text(encoding="utf-8"))
  waiting = [
    mutation
    for mutation in mutations
    if known.get(_name(mutation), {}).get("status") != expected
  ]
  print(f"{len(mutations) - len(waiting)} of {len(mutations)} are known.")
  seconds = 0.0
  with tempfile.TemporaryDirectory() as folder:
    tree = Tree(root, pathlib.Path(folder))
    for mutation, result in results(tree, waiting, unchanged):
      known[_name(mutation)] = dataclasses.asdict(result)
      seconds += result.seconds
      print(
        f"{result.status:8} {result.seconds:6.1f} s  {mutation.path}:"
        f" {mutation.bug}",
        flush=True,
      )
      if result.status != expected:
        print(f"{'':19}{mutation.tests}\n{'':19}{result.said}", flush=True)
      if out is not None:
        partial = out.with_name(f"{out.name}.tmp")
        partial.write_text(json.dumps(known, indent=1), encoding="utf-8")
        partial.replace(out)
  found = [known[_name(mutation)]["status"] for mutation in mutations]
  share = found.count(expected) / max(len(found), 1)
  counts = ", ".join(
    f"{found.count(status)} {status}"
    for status in ("killed", "survived", "broken")
  )
  print(f"{counts} in {seconds:.0f} s: {share:.1%}, needed {required:.0%}.")
  return int(share < required)


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--only", default="", metavar="REGEX")
  parser.add_argument("--out", type=pathlib.Path, metavar="FILE")
  parser.add_argument("--required", type=float, default=0.95, metavar="SHARE")
  parser.add_argument("--unchanged", action="store_true")
  options = parser.parse_args()
  listed = runpy.run_path(str(_ROOT / "tests" / "mutations.py"))["MUTATIONS"]
  chosen = [
    x for x in listed if re.search(options.only, f"{x.path} {x.bug} {x.tests}")
  ]
  return mutate(_ROOT, chosen, options.out, options.required, options.unchanged)


if __name__ == "__main__":
  sys.exit(main())
