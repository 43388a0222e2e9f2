"""Writes a comparison: tables, figures, and notes for the reader."""

from __future__ import annotations

import importlib.util
import json
import logging
import pathlib
from collections.abc import Sequence

from experiments.comparison import runs as runs_lib
from experiments.comparison import tables
from experiments.comparison.scores import Comparison
from experiments.sweeps import pages
from experiments.sweeps import tables as forms
from grpo_jax import ranges
from grpo_jax.training.runtime import log, terminal


def write(
  found: Comparison,
  out: pathlib.Path,
  formats: Sequence[str],
  x: str,
  width: float,
) -> int:
  """Writes everything, and prints the tables; returns 1 if a run has no value.

  `out` is made if missing; `formats`, `x` and `width` are for `figure.write`.
  """
  out.mkdir(parents=True, exist_ok=True)
  every = list(tables.every(found))
  notes = list(notes_of(found))
  text = [forms.markdown(table) for table in every]
  page = "\n".join(["# Comparison", "", *text, *notes])
  (out / "compare.md").write_text(page.rstrip("\n") + "\n", "utf-8")
  latex = [
    forms.PREAMBLE,
    f"% Made from runs of commit {', '.join(_commits(found))}.",
    *(forms.as_latex(table) for table in every),
  ]
  (out / "compare.tex").write_text("\n".join(latex), "utf-8")
  for table in every:
    (out / f"{table.name}.csv").write_text(forms.as_csv(table), "utf-8")
  (out / "runs.csv").write_text(tables.runs_csv(found), "utf-8")
  for one in text:
    terminal.say(one)
  print("\n".join(notes))
  print(f"tables: {out}/compare.md, compare.tex, *.csv")
  if not importlib.util.find_spec("matplotlib"):
    logging.warning("no figures: install grpo_jax[plot]")
  else:
    # matplotlib takes a second, and reading its flags none.
    from experiments.comparison import figure

    for path in figure.write(found, out, formats, x, width):
      print(f"figure: {path}")
  return int(bool(found.missing))


def _commits(found: Comparison) -> list[str]:
  """Commits of the runs, each once."""
  commits: dict[str, None] = {}
  for run in found.runs:
    path = pathlib.Path(run.workdir) / log.ENVIRONMENT
    lasts = json.loads(path.read_text("utf-8"))[-1:] if path.exists() else []
    for git in (x["git"] for x in lasts):
      dirty = " with changes" if git and git["dirty"] else ""
      commits[git["commit"][:12] + dirty if git else "unknown"] = None
  return list(commits) or ["unknown"]


def notes_of(found: Comparison) -> list[str]:
  """Notes that a reader needs beside the tables."""
  notes = []
  if found.missing:
    notes.append("## Runs without a value\n")
    for run in found.missing:
      notes.append(f"- `{run.workdir}`: {' '.join(run.why.split())}")
    notes.append("")
  ended = [run for run in found.runs if run.value is not None]
  if differing := runs_lib.differing(ended):
    notes.append(
      pages.paragraph(
        "Runs that are compared with each other also differ in settings that"
        " belong to no algorithm: "
        + "; ".join(f"`{k}` ({', '.join(v)})" for k, v in differing.items())
        + "."
      )
    )
  few = {
    len(found.seeds(x, y)) for x in found.algorithms for y in found.tasks
  } - {0}
  if few and min(few) < 5:
    notes.append(
      pages.paragraph(
        f"Some cells have {ranges.counted(min(few), 'seed')}. Of so few, a"
        " bootstrap interval is"
        " little more than their range, and covers less often than 95 times in"
        " a hundred."
      )
    )
  return notes
