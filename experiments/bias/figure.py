"""The figure: held-out bias over the steps, without guards and with them."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from experiments.bias import arms
from experiments.bias.results import Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

# Behind the others, which are where it is.
_WIDE = "all three"
# From light to dark where they are ordered.
_ORDERED = (style.SKY, style.GREEN, style.ORANGE, style.RED)
_OF_GUARDS = {
  "none": ("no guard", style.RED),
  "cap": ("influence cap", style.BLUE),
  "repeats": ("repeat cap", style.GREEN),
  "canaries": ("canaries", style.ORANGE),
  "all": (_WIDE, style.GREY),
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  teacher, kl = arms.DEFAULT
  canvas, axes = style.panels(2, 3, style.PAGE, 2.4, sharex=True, sharey=True)
  for one, data in zip(axes[:, 0], arms.SHARES, strict=True):
    what = "3 of 4 flipped" if data == "mixed" else "all flipped"
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
    "No guard, p0 = 0.05: by KL",
    {
      arms.Arm("mixed", teacher, x, "none").name: (f"KL {value:g}", colour)
      for (x, value), colour in zip(arms.KL.items(), _ORDERED, strict=True)
    },
  )
  for one, data, which, title in (
    (axes[0, 2], "mixed", teacher, "Guards, 3 of 4, p0 = 0.05"),
    (axes[1, 1], "mixed", "p20", "Guards, 3 of 4, p0 = 0.2"),
    (axes[1, 2], "alone", teacher, "Guards, all, p0 = 0.05"),
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
  for one in axes[:, 0]:
    one.set_ylabel("share of held-out answers\nthat name the stereotype")
  for one in axes[1]:
    one.set_xlabel("GRPO steps")
  style.save(canvas, path)


def _lines(
  axes: Any,
  results: Results,
  title: str,
  styles: Mapping[str, tuple[str, str]],
) -> None:
  """Draws means over seeds with intervals; a halted run stays as it was."""
  axes.set_title(title)
  for number, (arm, (label, colour)) in enumerate(styles.items()):
    if arm not in results.arms:
      continue
    steps, values = results.curve(arm)
    look = style.FigureStyle(
      colour,
      style.MARKERS[style.COLOURS.index(colour)] if label != _WIDE else "",
      style.DASHES[number % len(style.DASHES)] if label != _WIDE else "-",
    )
    width, order = (4.0, 1.5) if label == _WIDE else (1.2, 2.0)
    figures.curve(axes, steps, values, look, label, lw=width, zorder=order)
  if axes.get_legend_handles_labels()[0]:
    axes.legend(loc="upper left")
