"""Compiles steps one after another, each in a process of its own.

A step of a large model takes minutes and 1 to 5 GB of memory. Only the end of a
process gives all of this memory back.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence


def compile_all(
  rows: Mapping[str, Sequence[str]],
  folder: pathlib.Path,
  endings: Sequence[str] = (".json", ".md"),
) -> list[str]:
  """Reports on each row, and writes FOLDER/ROW.json and FOLDER/ROW.md.

  Args:
    rows: Name -> arguments of `experiments.pods.report`.
    folder: Folder to write to; a row that breaks off leaves the old files.
    endings: Endings of the files that are kept.

  Returns:
    The names of the rows that broke off.
  """
  failed = []
  for name, arguments in rows.items():
    print(f"{name} ...", flush=True)
    with tempfile.TemporaryDirectory() as made:
      command = [
        *(sys.executable, "-m", "experiments.pods.report"),
        *arguments,
        f"--save={made}/{name}",
      ]
      status = subprocess.run(command, check=False).returncode
      files = list(pathlib.Path(made).iterdir())
      # 1: it does not fit, which is a result too; also the status of a defect.
      if status not in (0, 1) or not files:
        failed.append(name)
        continue
      folder.mkdir(parents=True, exist_ok=True)
      for file in files:
        if file.suffix in endings:
          shutil.copy(file, folder)
  if failed:
    print(f"not compiled: {', '.join(failed)}", file=sys.stderr)
  return failed
