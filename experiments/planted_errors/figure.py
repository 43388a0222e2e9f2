"""The figure: located errors, correlations of credits, speeds of learning."""

from __future__ import annotations

import pathlib

from experiments.planted_errors import arms
from experiments.planted_errors.results import Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_LEARNERS = ("grpo", "mix", "rudder", "return", "ppo", "grpo_ps")
_LOCATED = {"first\nstep": "located/0", "second\nstep": "located/1"}
_WITH = {
  "credits": "r/credits",
  "outcome,\nby entropy": "r/entropy",
  "outcome": "r/outcome",
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, 3, style.PAGE, 2.5, width_ratios=(2, 3, 4.2))
  located, goes, learns = grid[0]
  _bars(located, results, _LOCATED)
  located.axhline(1 / (arms.LEVEL + 1), color=style.GREY, ls=":", lw=1)
  style.label(located, "Located errors", y="share; dotted: chance")
  located.set_ylim(0, 1.02)
  _bars(goes, results, _WITH)
  style.label(goes, "With sampled values", y="Pearson's r over segments")
  goes.set_ylim(-0.02, 1.02)
  looks = style.looks(_LEARNERS)
  for name in results.learners:
    x, values = results.completions(name), results.accuracy(name)
    figures.curve(learns, x, values, looks[name], name)
  learns.locator_params(axis="x", nbins=4)
  style.label(
    learns, "Right answers, held out", "completions drawn", "accuracy"
  )
  style.name_lines(canvas, learns)
  style.save(canvas, path)


def _bars(axes, results: Results, shown: dict[str, str]) -> None:
  """Means over seeds of `taught`, and a dot for each seed."""
  known = [results.scores(arms.MEASURED, what) for what in shown.values()]
  samples = [values for values in known if values is not None]
  if len(samples) == len(shown):
    figures.bars(axes, samples, [style.SKY] * len(samples))
  axes.set_xticks(range(len(shown)), list(shown))
