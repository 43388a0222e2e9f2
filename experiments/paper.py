r"""Every number, table and figure of the project, and the appendix of a paper.

    python -m experiments.paper
    python -m experiments.paper --only=flips --records --csv=runs/records.csv

lists experiments with their records, pages and figures: config hash, commit,
date, minutes, and stale ones (`papers/origin.py` defines stale).

    python -m experiments.paper --regenerate
    python -m experiments.paper --regenerate --write --only=flips

writes pages and figures from the recorded runs, and names those whose bytes
differ from those in the repository. --write replaces the ones in the
repository.

    python -m experiments.paper --rerun=flips/grpo-40
    python -m experiments.paper --rerun=flips/grpo-40 --execute

prints the command that makes numbers anew, beside the old ones, or starts it.

    python -m experiments.paper --appendix=FOLDER --config=configs/r1.py
    python -m experiments.paper --appendix=FOLDER --runs=runs/a,runs/b

writes appendix.tex, tables of hyperparameters and of the environment, and
references.bib, the papers of the algorithms.

Exit status: 0, or 1 if a page or figure differs, or the status of the program
that was started.
"""

from __future__ import annotations

import csv
import dataclasses
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

from absl import flags

from experiments.papers import origin, registry
from experiments.papers.registry import Experiment
from grpo_jax import ranges
from grpo_jax.cli import flags as flags_lib

_ONLY = flags.DEFINE_string(
  "only", "", "Experiments whose name has a match of this regular expression."
)
_RECORDS = flags.DEFINE_bool("records", False, "List every record too.")
_CSV = flags.DEFINE_string("csv", "", "File for a line of every record.")
_REGENERATE = flags.DEFINE_bool(
  "regenerate", False, "Write pages and figures again, and compare."
)
_WRITE = flags.DEFINE_bool(
  "write", False, "With --regenerate: those that differ take their place."
)
_RERUN = flags.DEFINE_string(
  "rerun", "", "EXPERIMENT or EXPERIMENT/ARM: the command that runs it anew."
)
_EXECUTE = flags.DEFINE_bool("execute", False, "With --rerun: start it.")
_APPENDIX = flags.DEFINE_string("appendix", "", "Folder for an appendix.")
_CONFIG = flags.DEFINE_string(
  "config", "", "With --appendix: FILE or FILE:ALGORITHM."
)
_RUNS = flags.DEFINE_list("runs", [], "With --appendix: folders of runs.")


def main(argv: Sequence[str]) -> int:
  """Runs the action of the flags."""
  del argv
  asked = [bool(x.value) for x in (_REGENERATE, _RERUN, _APPENDIX)]
  if sum(asked) > 1:
    raise ValueError(
      "paper: --regenerate, --rerun and --appendix are three commands; pass one"
      " of them."
    )
  if _APPENDIX.value:
    return _write_appendix(pathlib.Path(_APPENDIX.value))
  if _RERUN.value:
    return _rerun(_RERUN.value)
  chosen = [
    one
    for one in registry.EXPERIMENTS.values()
    if re.search(_ONLY.value, one.name)
  ]
  if not chosen:
    raise ValueError(
      f"--only={_ONLY.value} is found in no experiment; they are"
      f" {', '.join(registry.EXPERIMENTS)}."
    )
  if _REGENERATE.value:
    return _regenerate(chosen)
  _list(chosen)
  return 0


def _list(chosen: Sequence[Experiment]) -> None:
  """Prints the experiments with their records, and which are stale."""
  history = origin.History.read()
  if not history.known:
    print("There is no git here: commits, and what is stale, are not known.")
  every: list[origin.Record] = []
  for experiment in chosen:
    found = list(origin.records(experiment, history))
    every += found
    minutes = sum(record.minutes or 0 for record in found)
    counts = ", ".join(
      f"{count} {'not stale' if name == 'fresh' else f'stale ({name})'}"
      for name, count in origin.summary(found).items()
    )
    dates = sorted(record.date for record in found)
    print(
      f"\n{experiment.name}: {ranges.counted(len(found), 'record')},"
      f" {minutes:.0f} min,"
      f" {' to '.join(dict.fromkeys(dates[:1] + dates[-1:]))}; {counts}"
    )
    for one in origin.outputs(experiment, history):
      tables = f", {one.tables} tables" if one.tables else ""
      behind = (
        f"; older than {len(one.behind)} of its files" if one.behind else ""
      )
      print(
        f"  {one.kind:<7} {one.path} ({one.commit}, {one.date}{tables}{behind})"
      )
    for record in found if _RECORDS.value else ():
      taken = "" if record.minutes is None else f", {record.minutes:.1f} min"
      library = (
        "" if record.library is None else f", library +{record.library} commits"
      )
      state = f": STALE, {'; '.join(record.stale)}" if record.stale else ""
      print(
        f"  {record.kind:<7} {record.path} (config {record.config},"
        f" {record.commit}, {record.date}{taken}{library}){state}"
      )
  stale = sum(bool(record.stale) for record in every)
  print(f"\n{stale} of {len(every)} records are stale.")
  if _CSV.value:
    _write_csv(pathlib.Path(_CSV.value), every)


def _write_csv(path: pathlib.Path, every: Sequence[origin.Record]) -> None:
  names = [field.name for field in dataclasses.fields(origin.Record)]
  with path.open("w", encoding="utf-8", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for record in every:
      row = [getattr(record, name) for name in names]
      writer.writerow(
        "; ".join(x) if isinstance(x, tuple) else "" if x is None else x
        for x in row
      )
  print(f"records: {path}")


def _regenerate(chosen: Sequence[Experiment]) -> int:
  """Writes outputs again; returns 1 if one differs."""
  # matplotlib takes a second.
  from experiments.papers import regenerate

  differ = total = 0
  for experiment in chosen:
    if experiment.write is None:
      print(f"{experiment.name}: not written again: {experiment.why}")
      continue
    for path, state in regenerate.again(experiment, _WRITE.value).items():
      total += 1
      differ += state != regenerate.SAME
      print(flags_lib.wrapped(f"{path}: {state}"), flush=True)
  print(f"{total - differ} of {total} pages and figures have the same bytes.")
  return int(bool(differ))


def _rerun(name: str) -> int:
  """Prints or starts the command of an experiment, or of an arm of it."""
  experiment, _, arm = name.partition("/")
  if experiment not in registry.EXPERIMENTS:
    raise ValueError(
      f"--rerun={name}: there is no experiment {experiment}; choose one of"
      f" {', '.join(registry.EXPERIMENTS)}."
    )
  found = registry.EXPERIMENTS[experiment]
  if arm and not found.arms:
    raise ValueError(
      f"--rerun={name}: {experiment} has no arms that run alone; pass"
      f" --rerun={experiment}."
    )
  command = shlex.split(registry.command(found, arm))
  print(shlex.join(command), flush=True)
  if not _EXECUTE.value:
    return 0
  return subprocess.run([sys.executable, *command[1:]], check=False).returncode


def _write_appendix(out: pathlib.Path) -> int:
  """Writes appendix.tex and references.bib."""
  from experiments.papers import appendix

  if bool(_CONFIG.value) == bool(_RUNS.value):
    raise ValueError(
      f"--appendix={out}: needs either --config=FILE:ALGORITHM or"
      " --runs=FOLDER,FOLDER."
    )
  if _CONFIG.value:
    text, bibtex = appendix.of_config(_CONFIG.value)
  else:
    text, bibtex = appendix.of_runs([pathlib.Path(x) for x in _RUNS.value])
  out.mkdir(parents=True, exist_ok=True)
  (out / "appendix.tex").write_text(text, "utf-8")
  (out / "references.bib").write_text(bibtex, "utf-8")
  print(f"appendix: {out}/appendix.tex, references.bib")
  return 0


if __name__ == "__main__":
  flags_lib.run(main, needs_config=False)
