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
from experiments.sweeps import pages, statistics
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
  lines = [
    f"# Learning without critics, on classical control: profile `{name}`",
    "",
    f"**{len(records)} of {len(cells)} cells** have been trained"
    f" ({' to '.join([dates[0], *dates[1:][-1:]])}). A cell is an algorithm"
    f" with its settings in an environment, with {cells[0].num_seeds} seeds of"
    f" {profile.total_steps:,} environment steps each. These cells took"
    f" {hours:.1f} hours on {some.cores} virtual CPU cores."
    + (
      f" All cells take about {all_hours:.0f} hours on two cores."
      if len(records) < len(cells)
      else ""
    ),
    "",
    "```",
    command,
    "```",
    "",
    "This page replicates de Oliveira et al., *Learning Without Critics?*"
    " ([arXiv:2511.03527](https://arxiv.org/abs/2511.03527)), with the losses"
    " of [grpo_jax/ops](../../grpo_jax/ops). The rules that decide are in"
    " [protocol.py](../../experiments/critics/protocol.py). They were written"
    " before the first cell was trained. Where the paper leaves a choice,"
    " [settings.py](../../experiments/critics/settings.py) says what was"
    " chosen. Gymnax has neither HalfCheetah nor Humanoid, so Pendulum stands"
    " in for HalfCheetah.",
    "",
    *pages.table(
      ("", "published conclusion", "verdict", "checks that hold"),
      map(_summary, found),
    ),
    "",
    f"A verdict is about this budget of {profile.total_steps:,} steps per seed."
    " A conclusion is *confirmed* if all of its checks hold. If one environment"
    " disagrees, the conclusion is not confirmed. The checks are listed below."
    " If a check needs a difference and the interval of the difference contains"
    " 0, the check is *open*: these seeds and steps are too few to tell. "
    + statistics.WHAT_DECIDES,
    "",
  ]
  lines += [f"![{path.stem}]({path.name})\n" for path in figures]
  lines += [
    "A final score is the mean return of the episodes that ended in the last"
    " tenth of the budget. In the figures, a curve is the mean over seeds, and"
    " a point is the interquartile mean of final scores. Both have 95 %"
    " bootstrap intervals.",
    "",
    "## PPO and GRPO",
    "",
    "All cells of this table have γ = 0.99 and 8 environments. The columns"
    " `ppo` and `grpo` have the interquartile mean of the final scores with its"
    " 95 % bootstrap interval. The column `grpo` − `ppo` has the difference of"
    " the means with Welch's 95 % interval.",
    "",
    *_comparison(profile, scores),
    "",
  ]
  if profile.variants:
    lines += ["## Variants", "", *_variants(profile, scores), ""]
  for conclusion in found:
    if any(check.contrast for check in conclusion.checks):
      lines += [*_checks(conclusion), ""]
  lines += ["## Cells", "", *_table(cells, records)]
  return "\n".join(lines) + "\n"


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
  yield (
    "The table has the final scores over seeds, the area under the learning"
    " curve (the mean return over the budget), and the seconds of training and"
    " of compilation. If a cell shares the program of another cell, the seconds"
    " of compilation are 0. The hash is the hash of the configuration. The file"
    " of a cell in the folder `cells` has the hash as its name."
  )
  yield ""
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
  yield from pages.table((*head, "compile s"), rows)
