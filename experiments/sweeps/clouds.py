r"""Cells of a sweep on other machines: GKE, SkyPilot, SLURM.

A cell is started by the launcher that a single run has, in a process that waits
for its end, --parallel of them at a time. So no more slices are asked for than
that. Its workdir is in a bucket. When it has ended, its files other than
checkpoints are copied to the root, where `collect` reads them.

SLURM gets one array of jobs, of which it runs --parallel at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import pathlib
import re
import shlex
import sys
from collections.abc import Sequence

from experiments.launch import job
from experiments.sweeps.cells import Cell

CLOUDS = ("xpk", "skypilot")
_SCRIPT = "slurm.sh"
# Of a run, what is large or changes all the time.
_LEFT_OUT = r"^(checkpoints|profile)/.*"


def name_of(prefix: str, cell: Cell) -> str:
  """The name of a cell's run, the same each time; at most 28 characters."""
  digest = hashlib.sha256(cell.workdir.name.encode()).hexdigest()[:8]
  fitting = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-")
  if not fitting[:1].isalpha():
    fitting = f"sweep-{fitting}".rstrip("-")
  return f"{fitting[:19].rstrip('-')}-{digest}"


class Cloud:
  """Commands of a launcher for the cells of a sweep.

  Args:
    launcher: A name of `CLOUDS`.
    prefix: Beginning of the names of runs.
    bucket: gs://BUCKET/FOLDER, where each cell has a folder.
    flags: Flags of the launcher, as on a command line.

  Raises:
    ValueError: Names or flags cannot be used.
  """

  def __init__(self, launcher: str, prefix: str, bucket: str, flags: str):
    if not bucket.startswith("gs://"):
      raise ValueError(
        f"sweep: --workdirs={bucket}: --launcher={launcher} needs"
        " gs://BUCKET/FOLDER, which the machines of all cells write to."
      )
    self._launcher, self._prefix = launcher, prefix
    self._bucket = bucket.rstrip("/")
    self._flags = shlex.split(flags)

  def start(self, cell: Cell) -> list[str]:
    """Command that starts a cell and waits for its end."""
    config, *overrides = cell.arguments
    return [
      *(sys.executable, "-m", f"experiments.launch.{self._launcher}", "run"),
      f"--name={name_of(self._prefix, cell)}",
      "--wait",  # They return when the job is in a queue.
      f"--workdir={self._workdir(cell)}",
      config,
      *self._flags,
      "--",
      *overrides,
    ]

  def finish(self, cell: Cell) -> list[str]:
    """Command that fetches the results of an ended cell."""
    return [
      *("gcloud", "storage", "rsync", "--recursive"),
      *(f"--exclude={_LEFT_OUT}", self._workdir(cell), str(cell.workdir)),
    ]

  def check(self, cells: Sequence[Cell]) -> None:
    """Has the launcher check each cell, before anything is started.

    Raises:
      ValueError: The launcher would refuse a cell, or two cells have the same
        name.
    """
    names = {name_of(self._prefix, cell) for cell in cells}
    if len(names) != len(cells):
      raise ValueError("sweep: two cells have one name; pass another --root.")
    main = importlib.import_module(f"experiments.launch.{self._launcher}").main
    for cell in cells:
      _, _, _, *arguments = self.start(cell)
      end = arguments.index("--")
      said = io.StringIO()
      with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main(
          [self._launcher, *arguments[:end], "--dry_run", *arguments[end:]]
        )
      if status:
        raise ValueError(
          f"sweep: --launcher={self._launcher}, cell {cell.workdir.name}:"
          f" {said.getvalue().strip()}"
        )

  def ended(self, cell: Cell) -> None:
    """Runs `finish`; prints its failure, and the sweep goes on."""
    cell.workdir.mkdir(parents=True, exist_ok=True)
    try:
      job.execute([self.finish(cell)])
    except (job.CommandError, FileNotFoundError) as error:
      print(f"sweep: {error}", file=sys.stderr, flush=True)

  def _workdir(self, cell: Cell) -> str:
    return f"{self._bucket}/{cell.workdir.name}"


def slurm(
  root: pathlib.Path, cells: Sequence[Cell], parallel: int, flags: str
) -> tuple[pathlib.Path, str, list[str]]:
  """The script of an array of jobs, its text, and the command that submits it.

  The root is on a disk that all nodes have, and `flags` are those of sbatch.
  """
  cases = "\n".join(
    f"  {number}) exec {shlex.join(cell.command)} ;;"
    for number, cell in enumerate(cells)
  )
  text = (
    "#!/usr/bin/env bash\n"
    f"# {len(cells)} cells of the sweep in {root}, a job of the array each.\n"
    "set -euo pipefail\n"
    f"cd {shlex.quote(str(pathlib.Path.cwd()))}\n"
    f"case $SLURM_ARRAY_TASK_ID in\n{cases}\nesac\n"
  )
  command = [
    "sbatch",
    f"--array=0-{len(cells) - 1}%{parallel}",
    f"--job-name={root.absolute().name}",
    f"--output={root / 'slurm-%A_%a.txt'}",
    *shlex.split(flags),
    str(root / _SCRIPT),
  ]
  return root / _SCRIPT, text, command
