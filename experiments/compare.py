r"""Compares algorithms on tasks: tables and figures for a paper.

    python -m experiments.compare --config=configs/quickstart.py \
        --algorithms=grpo,dr_grpo,rloo --tasks=sort,copy --seeds=5 \
        --root=runs/compare

trains every algorithm on every task with seeds 0 to 4, in as few programs as
possible, and estimates the time that is left. Runs that have ended are left
alone: the same command continues, and more seeds or algorithms are added by
naming them. An algorithm or a task may have settings:
--algorithms=grpo,grpo:clip_high=0.4, --tasks=sort:max_len=5:min_len=5.
--config.name=value is for all cells.

    python -m experiments.compare --runs=runs/a,runs/b
    python -m experiments.compare --runs runs/*

reads runs of `experiments.train` or of a sweep instead, and trains nothing.

Into --out it writes `compare.md`, `compare.tex` (booktabs, siunitx), a CSV file
for each table and one of all runs, and figures in each --format, of which all
but png can be scaled. Intervals and tests are those of `comparison/`: the
interquartile mean with a stratified bootstrap, profiles, the probability of
improvement over --baseline, and paired differences by seed with Holm's
correction.

Exit status: 0, or 1 if a run has no value, 2 after a mistake, 143 stopped.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from absl import flags
from ml_collections import config_flags

from experiments.comparison import grid as grid_lib
from experiments.comparison import options, output
from experiments.comparison import runs as runs_lib
from experiments.comparison.scores import Comparison
from experiments.sweeps import cells as cells_lib
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import log

_CONFIG = flags_lib.define_config()
_ALGORITHMS = flags.DEFINE_list(
  "algorithms", [], "NAME or NAME:SETTING=VALUE, of config.algorithm."
)
_TASKS = flags.DEFINE_list(
  "tasks",
  [],
  "NAME or NAME:SETTING=VALUE, of config.data.task_options; none: that of the"
  " config.",
)
_SEEDS = flags.DEFINE_integer("seeds", 5, "Seeds 0, 1, …, of each cell.", 1)
_ROOT = flags.DEFINE_string(
  "root", "runs/compare", "Folder of what is trained."
)
_LAUNCHER = flags.DEFINE_enum(
  "launcher",
  "vmap",
  ["vmap", "local"],
  "vmap: few programs; local: a process for each run, also for verifiers on the"
  " host.",
)
_RUNS = flags.DEFINE_list(
  "runs", [], "Folders of runs, which are read; nothing is trained."
)
_OUT = flags.DEFINE_string(
  "out",
  None,
  "Folder of tables and figures; by default ROOT/tables, or tables.",
)
_METRIC = flags.DEFINE_string(
  "metric", "eval/accuracy", "Of result.json or metrics.jsonl."
)
_BASELINE = flags.DEFINE_string(
  "baseline", "", "Algorithm that others are compared with; the first."
)
_NAMES = flags.DEFINE_list(
  "names", [], "INTERNAL=PRINTED names, or a .json file of them."
)
_RANGES = flags.DEFINE_list(
  "ranges", [], "TASK=LOW:HIGH: scores that count as 0 and 1 over all tasks."
)
_X = flags.DEFINE_enum(
  "x", "step", list(runs_lib.X_LABELS), "What curves are drawn over."
)
_FORMAT = flags.DEFINE_list(
  "format", ["pdf", "png"], f"Of figures: {', '.join(style.FORMATS)}."
)
_WIDTH = flags.DEFINE_enum(
  "width", "page", ["page", "column"], "6.75 or 3.25 inches."
)


def main(argv: Sequence[str]) -> int:
  """Trains missing runs, or reads runs, and writes tables and figures."""
  names = options.names(_NAMES.value)
  ranges = options.ranges(_RANGES.value)
  formats = options.formats(_FORMAT.value)
  folders = [pathlib.Path(x) for x in (*_RUNS.value, *argv[1:])]
  if bool(folders) == bool(_ALGORITHMS.value):
    raise ValueError(
      "compare: needs either --runs=FOLDER, to read runs, or --config and"
      " --algorithms=NAME,NAME, to train them; received"
      f" {'both' if folders else 'neither'}."
    )
  if folders:
    found = runs_lib.read(runs_lib.find(folders), _METRIC.value)
    out = pathlib.Path(_OUT.value or "tables")
  else:
    root = cells_lib.parse_root(_ROOT.value)
    grid = _grid(root)
    if grid_lib.train(root, grid, _LAUNCHER.value):
      print("Stopped by a signal; the same command continues.")
      return 143
    found = _of_grid(grid)
    out = pathlib.Path(_OUT.value or root / "tables")
  comparison = Comparison(found, _METRIC.value, _BASELINE.value, names, ranges)
  width = style.PAGE if _WIDTH.value == "page" else style.COLUMN
  return output.write(comparison, out, formats, _X.value, width)


def _grid(root: pathlib.Path) -> list[grid_lib.GridCell]:
  """Cells that the flags ask for."""
  flag = flags.FLAGS["config"]
  if not flag.present:
    raise ValueError(
      "--config is missing; pass a config file that takes an algorithm, for"
      " example --config=configs/quickstart.py."
    )
  file = config_flags.get_config_filename(flag)
  if ":" in file:
    raise ValueError(
      f"--config={file}: the algorithms are those of --algorithms; leave"
      f" {file[file.index(':') :]} out."
    )
  return grid_lib.cells(
    file,
    config_flags.get_override_values(flag),
    [grid_lib.parse(text) for text in _ALGORITHMS.value],
    [grid_lib.parse(text) for text in _TASKS.value],
    range(_SEEDS.value),
    root,
  )


def _of_grid(grid: Sequence[grid_lib.GridCell]) -> list[runs_lib.Run]:
  """Runs of a grid in its order, those that have not begun included."""
  begun = [x.workdir for x in grid if (x.workdir / log.CONFIG).exists()]
  read = {run.workdir: run for run in runs_lib.read(begun, _METRIC.value)}
  found = []
  for one in grid:
    run = read.get(one.workdir)
    if run is None:
      why = cells_lib.why_missing(one.workdir)
      run = runs_lib.Run(
        one.workdir, one.algorithm, one.task, "", one.seed, None, why, {}
      )
    base = one.config.algorithm.name
    found.append(dataclasses.replace(run, base=base))
  return found


if __name__ == "__main__":
  flags_lib.run(main, needs_config=False, takes_arguments=True)
