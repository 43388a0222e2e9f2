"""The page about a profile, in Markdown."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import scipy  # It imports its parts when they are read: stats takes 2 s.

from experiments.critics import environments, protocol
from experiments.critics.protocol import HORIZONS, Cell, Profile
from experiments.critics.results import Record
from experiments.critics.settings import Setting
from experiments.science import pages
from experiments.sweeps import statistics
from experiments.sweeps.statistics import Conclusion

_NONE = "–"


def markdown(
  name: str,
  command: str,
  cells: Sequence[Cell],
  records: Mapping[Setting, Record],
  figures: Sequence[pathlib.Path],
  all_hours: float,
) -> str:
  """The page about the trained cells; `all_hours` are expected of all cells."""
  profile = protocol.PROFILES[name]
  scores = {x: record.final_scores() for x, record in records.items()}
  found = protocol.conclusions(profile, scores)
  some = next(iter(records.values()))
  dates = sorted({record.date for record in records.values()})
  hours = sum(x.seconds + x.compile_seconds for x in records.values()) / 3600
  values = {
    "name": name,
    "num_trained": len(records),
    "num_cells": len(cells),
    "dates": " to ".join([dates[0], *dates[1:][-1:]]),
    "num_seeds": cells[0].num_seeds,
    "steps": profile.total_steps,
    "hours": hours,
    "cores": some.cores,
    "expected": f" All cells take about {all_hours:.0f} hours on two cores."
    if len(records) < len(cells)
    else "",
    "command": command,
    "conclusions": pages.table(
      ("", "published conclusion", "verdict", "checks that hold"),
      map(_summary, found),
    ),
    "what_decides": statistics.WHAT_DECIDES,
    "figures": [f"![{path.stem}]({path.name})\n" for path in figures],
    "comparison": _comparison(profile, scores),
    "variants": _variants(profile, scores) if profile.variants else (),
    "checks": (
      line
      for conclusion in found
      if any(check.contrast for check in conclusion.checks)
      for line in (*_checks(conclusion), "")
    ),
    "table": _table(cells, records),
  }
  template = pathlib.Path(__file__).with_name("page.md").read_text("utf-8")
  return pages.filled(template, values, wrap=str)


def _summary(conclusion: Conclusion) -> list[str]:
  holds = [check.holds for check in conclusion.checks]
  others = {
    "open": sum(check.is_open for check in conclusion.checks),
    "not trained yet": holds.count(None),
  }
  rest = "".join(f"; {n} {text}" for text, n in others.items() if n)
  count = f"{holds.count(True)} of {len(holds)}{rest}"
  verdict = f"**{conclusion.verdict}**"
  return [conclusion.name, conclusion.claim, verdict, count]


def _iqm(scores: np.ndarray | None) -> str:
  if scores is None:
    return _NONE
  low, high = statistics.interval(scores, statistics.interquartile_mean)
  mean = float(statistics.interquartile_mean(scores))
  return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _comparison(
  profile: Profile, scores: Mapping[Setting, np.ndarray]
) -> Iterator[str]:
  head = ("environment", "horizon", "`ppo`", "`grpo`", "`grpo` − `ppo`")
  rows = []
  for name, horizon in itertools.product(environments.NAMES, HORIZONS):
    ppo, grpo = (
      scores.get(profile.setting(name, baseline, horizon))
      for baseline in ("ppo", "grpo")
    )
    if ppo is None and grpo is None:
      continue
    difference, welch, rank = _NONE, _NONE, _NONE
    if ppo is not None and grpo is not None:
      found = statistics.contrast([(1, grpo), (-1, ppo)])
      difference = statistics.text(found, 1)
      welch = statistics.p_text(found.p)
      rank = statistics.p_text(scipy.stats.mannwhitneyu(grpo, ppo).pvalue)
    iqms = _iqm(ppo), _iqm(grpo)
    rows.append([name, str(horizon), *iqms, difference, welch, rank])
  return pages.table((*head, "Welch p", "Mann-Whitney p"), rows)


def _variants(
  profile: Profile, scores: Mapping[Setting, np.ndarray]
) -> Iterator[str]:
  variants = {
    "ppo": {"value_clip": None},
    "batch_mean": {"mean_of": "episodes"},
    "grpo": {"mean_of": "episodes"},
  }
  yield "## Variants\n"
  yield (
    "There are two variants: PPO without the clip of the value loss, and the"
    " mean over episodes that the first version of the paper's code takes. The"
    " table has the mean ± the standard deviation over seeds."
  )
  yield ""
  rows = []
  for (baseline, others), name, horizon in itertools.product(
    variants.items(), environments.NAMES, HORIZONS
  ):
    cell = name, baseline, horizon
    settings = profile.setting(*cell), profile.setting(*cell, **others)
    names = [protocol.variant(x) for x in settings]
    values = [_spread(scores.get(x)) for x in settings]
    if values[1] == _NONE:
      continue
    usual, variant = (f"`{x}`" for x in names)
    cells = [f"{usual} {values[0]}", values[1], variant]
    rows.append([name, str(horizon), *cells])
  head = ("environment", "horizon", "as published", "variant", "")
  yield from pages.table(head, rows)


def _spread(scores: np.ndarray | None) -> str:
  if scores is None:
    return _NONE
  return f"{scores.mean():.1f} ± {scores.std(ddof=1):.1f}"


def _checks(conclusion: Conclusion) -> Iterator[str]:
  yield f"## {conclusion.name}: {conclusion.verdict}"
  yield ""
  yield conclusion.claim
  yield ""
  # Gaps are in spans, of the order of 1; all else in returns.
  digits = 2 if conclusion.name == "C4" else 1
  yield from statistics.table(conclusion.checks, digits)


def _table(
  cells: Iterable[Cell], records: Mapping[Setting, Record]
) -> Iterator[str]:
  head = ("hash", "cell", "mean ± sd", "IQM [95 %]", "area ± sd", "s")
  rows = (
    [
      f"`{cell.key}`",
      cell.name,
      _spread(record.final_scores()),
      _iqm(record.final_scores()),
      _spread(record.areas()),
      f"{record.seconds:.0f}",
      f"{record.compile_seconds:.0f}",
    ]
    for cell in cells
    if (record := records.get(cell.setting)) is not None
  )
  return pages.table((*head, "compile s"), rows)
