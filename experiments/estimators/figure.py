"""The figure about estimators: bias, noise, and their dependences."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.estimators import measurements
from experiments.estimators.measurements import (
  BASELINE,
  GROUP_SIZES,
  MAIN_SIZE,
  Row,
)
from grpo_jax.training.monitor import style

_CUT = 36.0  # Degrees; what is farther away is named at the edge.
_KINDS = {
  "exact": (style.BLUE, "o", "points along ∇J"),
  "linear": (style.RED, "s", "biased, linear in the reward"),
  "invariant": (style.GREEN, "^", "biased, does not see the reward's scale"),
}


def _kind(row: Row) -> str:
  if row.verdict != "no":
    return "exact"
  return "linear" if row.exponent > 0.5 else "invariant"


def _label(family: Sequence[Row], width: int = 30) -> str:
  names = ", ".join(row.name for row in family)
  return textwrap.fill(names.replace(", b = J", " (b = J)"), width)


def _place(axes: Any, points: np.ndarray, labels: Sequence[str]) -> None:
  """Writes labels beside points where they cover nothing, the near first."""
  from matplotlib.transforms import Bbox

  figure = axes.figure
  figure.get_figure(root=True).draw_without_rendering()
  dots = axes.transData.transform(points)  # pixels
  frame = axes.get_window_extent()
  taken = [Bbox.from_extents(x - 6, y - 6, x + 6, y + 6) for x, y in dots]
  pixels = figure.dpi / 72
  for i in np.argsort([-len(label) for label in labels], kind="stable"):
    candidates = (
      (radius, angle)
      for radius in range(7, 130, 6)
      for angle in (0, 180, 30, -30, 150, -150, 60, -60, 120, -120, 90, -90)
    )
    for radius, degrees in candidates:
      dx = radius * np.cos(np.radians(degrees))
      dy = radius * np.sin(np.radians(degrees))
      across = "left" if dx > 1 else "right" if dx < -1 else "center"
      text = axes.annotate(
        labels[i],
        points[i],
        (dx, dy),
        textcoords="offset points",
        ha=across,
        va="center",
        fontsize=8,
        color="0.15",
        linespacing=1.05,
        arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.6, "shrinkB": 3}
        if radius > 12
        else None,
      )
      box = text.get_window_extent()
      # The line from the dot must cross no other label.
      line = [
        (dots[i] + s * np.array([dx, dy]) * pixels) for s in (0.3, 0.6, 0.9)
      ]
      others = taken[:i] + taken[i + 1 :]
      if (
        frame.contains(box.x0, box.y0)
        and frame.contains(box.x1, box.y1)
        and not box.count_overlaps(others)
        and not any(x.contains(*point) for x in others for point in line)
      ):
        taken.append(box)
        break
      text.remove()


def _scatter(axes: Any, groups: Sequence[list[Row]], reference: float) -> None:
  near = [family for family in groups if family[0].angle <= _CUT]
  far = [family for family in groups if family[0].angle > _CUT]
  points = []
  for family in near:
    first = family[0]
    colour, marker, _ = _KINDS[_kind(first)]
    points.append((first.angle, first.variance / reference))
    axes.plot(*points[-1], marker, color=colour, ms=7, zorder=3)
  for colour, marker, label in _KINDS.values():
    axes.plot([], [], marker, color=colour, ms=7, label=label)
  axes.set_yscale("log")
  found = np.array(points).reshape(-1, 2)
  axes.set_xlim(-2, max(found[:, 0].max(initial=0.0) + 5, 10))
  heights = found[:, 1] if near else np.ones(1)
  axes.set_ylim(heights.min() / 1.25, heights.max() * 1.25)
  low, high = axes.get_ylim()
  ticks = (0.5, 0.7, 1, 1.4, 2, 3, 4, 6)
  axes.set_yticks([x for x in ticks if low < x < high])
  axes.yaxis.set_major_formatter("{x:g}")
  axes.yaxis.minorticks_off()
  axes.set_xlabel("angle between the expected gradient and ∇J (degrees)")
  axes.set_ylabel("variance, relative to REINFORCE")
  axes.set_title(
    f"Bias and noise, groups of {MAIN_SIZE}, graded rewards",
    loc="left",
  )
  axes.legend(fontsize=9, loc="upper left")
  outside = "\n".join(
    f"{_label(x)}: {x[0].angle:.0f}°, {x[0].variance / reference:.1f} →"
    for x in far
  )
  axes.text(
    0.995, 0.02, outside, transform=axes.transAxes, ha="right", fontsize=8
  )
  _place(axes, found, [_label(family) for family in near])


def _by_size(axes: Any, groups: Sequence[list[Row]]) -> None:
  lines = [
    family
    for family in groups
    if len(family[0].graded) == len(GROUP_SIZES)
    and max(map(measurements.angle_of, family[0].graded.values())) <= _CUT
  ]
  exact = [x for x in lines if _kind(x[0]) == "exact"]
  lines = [x for x in lines if _kind(x[0]) != "exact"]
  if exact:  # One line for all of them: it is 0.
    lines.append([row for family in exact for row in family])
  ends = []
  for family in lines:
    first = family[0]
    colour, marker, _ = _KINDS[_kind(first)]
    angles = [measurements.angle_of(first.graded[size]) for size in GROUP_SIZES]
    axes.plot(GROUP_SIZES, angles, marker + "-", color=colour, lw=1.2, ms=4)
    ends.append(angles[-1])
  last = GROUP_SIZES[-1]
  low, high = axes.get_ylim()
  places = style.spread(ends, 0.042 * (high - low))
  for family, end, place in zip(lines, ends, places, strict=True):
    name = family[0].name
    more = f" and {len(family) - 1} more" if len(family) > 1 else ""
    if _kind(family[0]) == "exact":
      name, more = "all that point along ∇J", ""
    axes.annotate(
      name + more,
      (last, end),
      (last + 0.35, place),
      va="center",
      fontsize=8,
      color="0.15",
      annotation_clip=False,
      arrowprops={"arrowstyle": "-", "color": "0.7", "lw": 0.5, "shrinkB": 2},
    )
  axes.set_xticks(GROUP_SIZES)
  axes.set_xlim(GROUP_SIZES[0] - 0.2, last + 2.6)
  axes.set_xlabel("completions per group, G")
  axes.set_ylabel("angle to ∇J (degrees)")
  axes.set_title("Bias against group size", loc="left")


def _sensitivity(axes: Any, rows: Sequence[Row]) -> None:
  bands = (
    ("less", lambda length: length < 0.3),
    ("shared", lambda length: 0.3 <= length < 0.9),
    ("alike", lambda length: length >= 0.9),
  )
  ticks = []
  for y, (band, inside) in enumerate(bands):
    listed = [row for row in rows if inside(row.length)]
    found = sorted({f"{row.length:.2f}" for row in listed})
    ticks.append("\n".join([band, "–".join(found[:1] + found[1:][-1:])]))
    for x in (0, 1):
      names = [row.name for row in listed if (row.exponent > 0.5) == x]
      text = ", ".join(name for name in names if name != BASELINE)
      axes.text(
        x,
        y,
        textwrap.fill(text, 27, break_on_hyphens=False),
        ha="center",
        va="center",
        fontsize=9,
        linespacing=1.2,
      )
  axes.set_xlim(-0.5, 1.5)
  axes.set_ylim(-0.5, len(bands) - 0.5)
  axes.set_xticks((0, 1), ("invariant", "linear"))
  axes.set_yticks(range(len(bands)), ticks)
  axes.set_xticks((0.5,), minor=True)
  axes.set_yticks((0.5, 1.5), minor=True)
  axes.grid(visible=False, which="major")
  axes.grid(which="minor", color="0.8", lw=0.8)
  axes.tick_params(which="both", length=0)
  axes.set_xlabel("gradient when all rewards are scaled")
  axes.set_ylabel("weight of the tokens of long and short completions")
  axes.set_title("Scale of the rewards and length", loc="left")


def plot(rows: Sequence[Row], reference: float, path: pathlib.Path) -> None:
  """Draws the estimators of ∇J; those of other targets are in the table."""
  on_j = [row for row in measurements.ordered(rows) if row.target == "J"]
  groups = measurements.families(
    [x for x in on_j if x.group_size == MAIN_SIZE], up_to_scale=True
  )
  # Of two pages' width: names stand beside their points.
  canvas = style.canvas(11, 11, dpi=110)
  top, bottom = canvas.subfigures(2, 1, height_ratios=(1, 1.05))
  left, right = bottom.subplots(1, 2)
  scatter = top.subplots()
  _by_size(left, groups)
  _sensitivity(right, on_j)
  if groups:
    _scatter(scatter, groups, reference)
  style.save(canvas, path, dpi=110)
