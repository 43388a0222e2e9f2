"""The figure: accuracy of each domain over drawn completions, and by arm."""

from __future__ import annotations

import pathlib

from experiments.experts import arms
from experiments.experts.results import Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_LEARNING = ("mixed", "sequential", "opd-full", "opd-token")
_LOOKS = {
  "base": style.FigureStyle(style.GREY, ""),
  **style.looks((*_LEARNING, "sft-experts")),
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, axes = style.panels(
    2, len(arms.DOMAINS), style.PAGE, 2.3, sharey=True
  )
  for place, domain in enumerate(arms.DOMAINS):
    over, end = axes[0, place], axes[1, place]
    for arm in _LEARNING:
      if arm in results.arms:
        steps, values = results.curve(arm, domain)
        figures.curve(over, steps, values, _LOOKS[arm], arm)
    shown = [arm for arm in _LOOKS if arm in results.arms]
    samples = [results.accuracy(arm, domain) for arm in shown]
    figures.bars(end, samples, [_LOOKS[arm].colour for arm in shown])
    expert = f"expert-{domain}"
    if expert in results.arms:
      mean = results.accuracy(expert, domain).mean()
      end.axhline(mean, color="black", ls="--", lw=1)
    style.label(over, domain, "steps of the arm")
    over.locator_params(axis="x", nbins=4)
    end.set_xticks(range(len(shown)), shown, rotation=60, ha="right")
    for one in (over, end):
      one.set_ylim(0, 1.02)
  axes[0, 0].set_ylabel("held-out accuracy")
  axes[1, 0].set_ylabel("at the end\n(dashed: the expert)")
  style.shared_legend(canvas, axes[0])
  style.save(canvas, path)
