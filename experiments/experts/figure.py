"""The figure: accuracy of each domain over what was drawn, and by arm."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.experts import arms
from experiments.experts.results import Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito).
_COLOURS = {
  "base": "#999999",
  "mixed": "#0072B2",
  "sequential": "#E69F00",
  "opd-full": "#009E73",
  "opd-token": "#56B4E9",
  "sft-experts": "#D55E00",
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(12, 6.5)
  axes = canvas.subplots(2, len(arms.DOMAINS), sharey=True)
  for place, domain in enumerate(arms.DOMAINS):
    over, end = axes[0, place], axes[1, place]
    for arm in ("mixed", "sequential", "opd-full", "opd-token"):
      if arm not in results.arms:
        continue
      steps, values = results.curve(arm, domain)
      low, high = statistics.interval(values)
      style = {"color": _COLOURS[arm], "lw": 1.5}
      over.plot(steps, values.mean(axis=0), label=arm, **style)
      over.fill_between(steps, low, high, color=_COLOURS[arm], alpha=0.15, lw=0)
    shown = [arm for arm in _COLOURS if arm in results.arms]
    for row, arm in enumerate(shown):
      values = results.accuracy(arm, domain)
      low, high = statistics.interval(values)
      end.bar(row, values.mean(), color=_COLOURS[arm], width=0.7)
      end.plot([row, row], [low, high], color="black", lw=1)
      end.plot(
        np.full(len(values), row), values, ".", color="black", ms=3, alpha=0.6
      )
    expert = f"expert-{domain}"
    if expert in results.arms:
      mean = results.accuracy(expert, domain).mean()
      end.axhline(mean, color="black", ls="--", lw=1)
    over.set_title(domain, loc="left", fontsize=10)
    over.set_xlabel("steps of the arm")
    end.set_xticks(range(len(shown)), shown, rotation=60, ha="right")
    for one in (over, end):
      one.set_ylim(0, 1.02)
      one.spines[["top", "right"]].set_visible(False)
      one.grid(alpha=0.25, lw=0.6)
  axes[0, 0].set_ylabel("held-out accuracy")
  axes[1, 0].set_ylabel("at the end (dashed: the expert)")
  if axes[0, 0].get_legend_handles_labels()[0]:
    axes[0, 0].legend(frameon=False, fontsize=9)
  canvas.savefig(path)
