"""The figure: held-out bias over the steps, without guards and with them."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.bias import arms
from experiments.bias.results import Results
from experiments.sweeps import figures, statistics

# Behind the others, which are where it is.
_WIDE = "all three"
# Colour-blind-safe (Okabe and Ito), from light to dark where they are ordered.
_ORDERED = ("#56B4E9", "#009E73", "#E69F00", "#D55E00")
_OF_GUARDS = {
  "none": ("no guard", "#D55E00"),
  "cap": ("influence cap", "#0072B2"),
  "repeats": ("repeat cap", "#009E73"),
  "canaries": ("canaries", "#E69F00"),
  "all": (_WIDE, "#999999"),
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  teacher, kl = arms.DEFAULT
  canvas = figures.canvas(12, 7)
  axes = canvas.subplots(2, 3, sharex=True)
  for one, data in zip(axes[:, 0], arms.SHARES, strict=True):
    what = (
      "3 of 4 prompts flipped" if data == "mixed" else "all prompts flipped"
    )
    _lines(
      one,
      results,
      f"No guard, {what}: by p0",
      {
        arms.Arm(data, x, kl, "none").name: (f"p0 = {share:g}", colour)
        for (x, share), colour in zip(
          arms.TEACHERS.items(), _ORDERED, strict=True
        )
      },
    )
  _lines(
    axes[0, 1],
    results,
    "No guard, p0 = 0.05: by KL coefficient",
    {
      arms.Arm("mixed", teacher, x, "none").name: (f"KL {value:g}", colour)
      for (x, value), colour in zip(arms.KL.items(), _ORDERED, strict=True)
    },
  )
  for one, data, which, title in (
    (axes[0, 2], "mixed", teacher, "Guards, 3 of 4 flipped, p0 = 0.05"),
    (axes[1, 1], "mixed", "p20", "Guards, 3 of 4 flipped, p0 = 0.2"),
    (axes[1, 2], "alone", teacher, "Guards, all flipped, p0 = 0.05"),
  ):
    _lines(
      one,
      results,
      title,
      {
        arms.Arm(data, which, kl, guard).name: style
        for guard, style in _OF_GUARDS.items()
      },
    )
  for one in axes.flat:
    one.set_ylim(-0.02, 0.62)
    one.spines[["top", "right"]].set_visible(False)
    one.grid(alpha=0.25, lw=0.6)
  for one in axes[:, 0]:
    one.set_ylabel("share of held-out answers\nthat name the stereotype")
  for one in axes[1]:
    one.set_xlabel("GRPO steps")
  canvas.savefig(path)


def _lines(
  axes: Any,
  results: Results,
  title: str,
  styles: Mapping[str, tuple[str, str]],
) -> None:
  """Means over seeds with their interval; a halted run stays as it is kept."""
  axes.set_title(title, loc="left", fontsize=10)
  for number, (arm, (label, colour)) in enumerate(styles.items()):
    if arm not in results.arms:
      continue
    steps, values = results.curve(arm)
    low, high = statistics.interval(values)
    style = ("-", "--", "-.", ":", "-")[number]
    width, order = (5.0, 1.5) if label == _WIDE else (1.5, 2.0)
    axes.plot(
      *(steps, values.mean(axis=0), style),
      **{"color": colour, "label": label, "lw": width, "zorder": order},
    )
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
  if axes.get_legend_handles_labels()[0]:
    axes.legend(frameon=False, loc="upper left", fontsize=9)
