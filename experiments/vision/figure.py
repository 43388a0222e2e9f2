"""The figure: right answers and overlap of each domain, arm by arm."""

from __future__ import annotations

import pathlib

from experiments.sweeps import figures, statistics
from experiments.vision import arms
from experiments.vision.results import Results

# Colour-blind-safe (Okabe and Ito).
_COLOURS = {
  arms.BASE: "#999999",
  arms.GRPO: "#000000",
  arms.SAME_UPDATES: "#0072B2",
  arms.SAME_EXAMPLES: "#E69F00",
}
_LABELS = {arms.BASE: "warm start", **arms.SHOWN}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(12, 4)
  panels = canvas.subplots(1, 2, sharey=True)
  panels[0].set_ylabel("mean over held-out prompts")
  for axes, what in zip(panels, ("accuracy", "overlap"), strict=True):
    axes.set_title(what, loc="left", fontsize=10)
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
          fmt="o",
          ms=5,
          color=_COLOURS[name],
          label=_LABELS[name],
        )
    axes.axvline(len(arms.IN_DOMAIN) - 0.5, color="#CCCCCC", lw=1)
    axes.set_xticks(range(len(arms.DOMAINS)), arms.DOMAINS, fontsize=8)
    axes.set_ylim(-0.02, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.6, axis="y")
  panels[0].legend(frameon=False, fontsize=9)
  canvas.savefig(path)
