"""The figure: right answers and overlap of each domain, arm by arm."""

from __future__ import annotations

import pathlib

from experiments.sweeps import statistics
from experiments.vision import arms
from experiments.vision.results import Results
from grpo_jax.training.monitor import style

_LOOKS = {
  arms.BASE: style.FigureStyle(style.GREY, "X"),
  **style.looks((arms.GRPO, arms.SAME_UPDATES, arms.SAME_EXAMPLES)),
}
_LABELS = {arms.BASE: "warm start", **arms.SHOWN}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, 2, style.PAGE, 2.5, sharey=True)
  panels = grid[0]
  names = [domain.replace("_", "\n") for domain in arms.DOMAINS]
  panels[0].set_ylabel("mean over held-out prompts")
  for axes, what in zip(panels, ("accuracy", "overlap"), strict=True):
    axes.set_title(what)
    for shift, name in enumerate(arms.ARMS):
      places, means, lows, highs = [], [], [], []
      for place, domain in enumerate(arms.DOMAINS):
        values = results.scores(name, (domain,), what)
        if values is None:
          continue
        low, high = statistics.interval(values)
        places.append(place + 0.15 * (shift - 1.5))
        means.append(values.mean())
        lows.append(values.mean() - low)
        highs.append(high - values.mean())
      if places:
        axes.errorbar(
          *(places, means, [lows, highs]),
          fmt=_LOOKS[name].marker,
          color=_LOOKS[name].colour,
          label=_LABELS[name],
        )
    axes.axvline(len(arms.IN_DOMAIN) - 0.5, color="#CCCCCC", lw=1)
    axes.set_xticks(range(len(arms.DOMAINS)), names)
    axes.set_ylim(bottom=-0.02)
    axes.grid(visible=False, axis="x")
  style.shared_legend(canvas, panels)
  style.save(canvas, path)
