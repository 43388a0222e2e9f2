r"""Tables and a figure of a sweep: means over seeds, with their uncertainty.

    python -m experiments.sweeps.collect --root=runs/sweeps/lr_by_clip

Cells that differ only in the seed are one group. A group has the mean of the
last value of --metric in each run, its 95 % bootstrap interval and the
interquartile mean, with the number of cells behind them as n of all its cells.
Cells without a value are listed. The program writes into the root
`results.csv`, `results.md`, `results.tex` (booktabs, siunitx) and, with the
extra `plot`, `results.png`.

The interval is that of the percentile bootstrap. With three seeds it is
practically their range, and covers the true mean less often than 95 times in a
hundred; Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", arXiv:2108.13264, show the number that is enough. One
seed has no interval. The interquartile mean leaves out a quarter of the seeds,
rounded down, at each end: below four seeds it is the mean.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import pathlib
import textwrap
from collections.abc import Mapping, Sequence

from absl import flags

from experiments.sweeps import cells as cells_lib
from experiments.sweeps import figures, pages, tables
from experiments.sweeps import groups as groups_lib
from experiments.sweeps.groups import Group
from experiments.sweeps.tables import Table
from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import terminal

_ROOT = flags.DEFINE_string("root", None, "Folder of the sweep.", required=True)
_METRIC = flags.DEFINE_string(
  "metric", "eval/accuracy", "Of result.json or metrics.jsonl."
)
_COLUMNS = 80
_MIN_LABEL = 24


def main(argv: Sequence[str]) -> int:
  """Collects, writes and prints."""
  del argv
  root, metric = cells_lib.parse_root(_ROOT.value), _METRIC.value
  groups, missing = groups_lib.collect(root, metric)
  for name, text in texts(groups, missing, metric).items():
    (root / name).write_text(text, encoding="utf-8")
  terminal.say(console(groups, metric))
  print(f"\n{_describe_missing(missing)}")
  for folder, reason in missing.items():
    print(flags_lib.wrapped(f"{folder}:\n{reason}"))
  print(f"written: {root}/results.csv, .md, .tex")
  if not any(group.values for group in groups):
    return 0
  if importlib.util.find_spec("matplotlib"):
    plot(groups, metric, root / "results.png")
    print(f"figure: {root / 'results.png'}")
  else:
    logging.warning("no figure: install grpo_jax[plot]")
  return 0


def _names(groups: Sequence[Group]) -> dict[str, str]:
  """Dotted name -> short name, for all settings that are overridden."""
  return cells_lib.short_names(
    dict.fromkeys(name for group in groups for name in group.overrides)
  )


def _count(group: Group) -> str:
  return f"{len(group.values)}/{group.num_cells}"


def table(groups: Sequence[Group], metric: str) -> Table:
  """The table of a sweep, with a row for each group."""
  names = _names(groups)
  rows = [
    [
      *(cells_lib.flag_value(group.overrides.get(name, "–")) for name in names),
      _count(group),
      *groups_lib.summarize(group.values),
    ]
    for group in groups
  ]
  caption = (
    f"{metric} at the end of a run: mean over seeds with its 95 % bootstrap"
    " interval, and interquartile mean; n of all cells of the group."
  )
  head = [*names.values(), "n", "mean", "IQM"]
  return Table("results", metric, caption, head, rows, len(names) + 1)


def console(groups: Sequence[Group], metric: str) -> str:
  """The table for a terminal; settings that are too long are wrapped."""
  rows = tables.texts(table(groups, metric))
  columns = [["n", "mean, 95 % interval", "IQM"], *(row[-3:] for row in rows)]
  widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
  room = max(_COLUMNS - sum(widths) - 2 * len(widths), _MIN_LABEL)
  names = _names(groups)
  labels = [
    textwrap.wrap(
      cells_lib.describe(group.overrides, names), room, break_on_hyphens=False
    )
    for group in groups
  ]
  width = max(len(line) for lines in [[metric], *labels] for line in lines)
  width = min(width, room)
  text = []
  for lines, numbers in zip([[metric], *labels], columns, strict=True):
    cells = (value.rjust(n) for value, n in zip(numbers, widths, strict=True))
    text.append("  ".join([lines[0].ljust(width), *cells]))
    text += lines[1:]
  return "\n".join(text)


def _describe_missing(missing: Mapping[str, str]) -> str:
  if not missing:
    return "Every cell has a value."
  return f"Cells without a value, which no number contains: {len(missing)}"


def texts(
  groups: Sequence[Group], missing: Mapping[str, str], metric: str
) -> dict[str, str]:
  """File -> the table in it; settings have their dotted names in the CSV."""
  made, count = table(groups, metric), _describe_missing(missing)
  head = [*_names(groups), *made.head[-3:]]
  reasons = {x: " ".join(why.split()) for x, why in missing.items()}
  markdown = [tables.markdown(made), f"{count}\n"]
  markdown += [f"- `{folder}`: {why}" for folder, why in reasons.items()]
  latex = [tables.PREAMBLE, f"% {count}"]
  latex += [f"% {folder}: {why}" for folder, why in reasons.items()]
  return {
    "results.csv": tables.as_csv(dataclasses.replace(made, head=head)),
    "results.md": pages.joined(markdown),
    "results.tex": pages.joined([*latex, tables.as_latex(made)]),
  }


def plot(groups: Sequence[Group], metric: str, path: pathlib.Path) -> None:
  """Draws the metric at the end of each group, and over the steps."""
  canvas = style.canvas(style.PAGE, max(2.6, 1 + 0.2 * len(groups)))
  ends, curves = canvas.subplots(1, 2, width_ratios=(1, 1.2))
  for place, group in enumerate(groups):
    mean, _ = groups_lib.summarize(group.values)
    if mean is None:
      continue
    look = style.look(place)
    ends.plot(
      *(group.values, [place] * len(group.values), look.marker),
      **{"color": look.colour, "alpha": 0.35, "ms": 3},
    )
    ends.plot([mean.value], [place], look.marker, color=look.colour)
    if mean.low is not None:
      ends.plot([mean.low, mean.high], [place] * 2, color=look.colour)
    steps, values = groups_lib.common(group.curves)
    if len(steps):
      figures.curve(curves, steps, values, look)
  names = _names(groups)
  ends.set_yticks(
    range(len(groups)),
    [f"{cells_lib.describe(g.overrides, names)}   {_count(g)}" for g in groups],
  )
  ends.set_ylim(len(groups) - 0.5, -0.5)
  style.label(ends, "Seeds, mean, 95 % interval", metric)
  style.label(
    curves, "Mean, 95 % interval; marks as on the left", "step", metric
  )
  style.save(canvas, path)


if __name__ == "__main__":
  flags_lib.run(main)
