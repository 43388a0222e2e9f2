"""Draws the results of `step.py`: the time of each part, and lengths.

    python -m experiments.benchmarks.figure --output=runs/figure.png \
        --results=T.json,S.json,fixed.json,geometric.json,lognormal.json

The left panel has the parts of the step for each file, under the file's name.
The right panel has, for files made with --lanes, useful completion tokens per
second against the spread of lengths.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.training.monitor import style

_RESULTS = flags.DEFINE_list(
  "results", None, "Files of benchmark's --json.", required=True
)
_OUTPUT = flags.DEFINE_string("output", None, "PNG to write.", required=True)

_PARTS = {
  "prefill": style.SKY,
  "decode": style.BLUE,
  "verifier": style.GREEN,
  "update": style.ORANGE,
}
_MARKERS = "o", "s", "^"


def _parts(axes: Any, results: dict[str, Any]) -> None:
  """Draws stacked bars with the share of the step of each part alone."""
  for y, of in enumerate(results.values()):
    seconds = {name: of["phases"][name]["median_s"] for name in _PARTS}
    total, left = sum(seconds.values()), 0.0
    for name, colour in _PARTS.items():
      share = 100 * seconds[name] / total
      axes.barh(
        y, share, left=left, color=colour, label=name if y == 0 else None
      )
      if share > 8:
        axes.text(
          left + share / 2,
          y,
          f"{share:.0f} %",
          ha="center",
          va="center",
          fontsize=7,
          color="white",
        )
      left += share
  labels = [
    f"{name}\n{of['phases']['step']['median_s']:.3g} s a step"
    for name, of in results.items()
  ]
  axes.set_yticks(range(len(labels)), labels)
  axes.invert_yaxis()
  axes.set_xlim(0, 100)
  axes.set_xlabel("share of the parts, each timed alone (%)")
  axes.set_title("Where the time goes")
  axes.legend(
    ncols=2,
    loc="upper left",
    bbox_to_anchor=(0, -0.16),
  )


def _lengths(axes: Any, results: dict[str, Any]) -> None:
  """Draws completion tokens per second of each way to sample, by the spread."""
  drawn = []
  for of in results.values():
    if of["rollouts"]:
      rows = np.asarray(of["lengths"]["rows"])
      name = of["work"]["length_distribution"]
      drawn.append((rows.std() / rows.mean(), name, of))
  drawn.sort(key=lambda point: point[0])
  if drawn:
    spread = [x for x, *_ in drawn]
    lines = {
      f"rollout, {way}": [
        of["rollouts"][way]["tokens_per_s"] for *_, of in drawn
      ]
      for way in drawn[0][2]["rollouts"]
    }
    for (label, values), marker in zip(lines.items(), _MARKERS, strict=True):
      axes.plot(spread, values, marker + "-", label=label)
    steps = [of["tokens_per_s"] for *_, of in drawn]
    axes.plot(spread, steps, "D--", color="0.4", label="whole step, in lanes")
    for i, (x, name, _) in enumerate(drawn):
      axes.annotate(
        name,
        (x, 0),
        (0, 4 + 11 * (i % 2)),  # Neighbours may be near.
        textcoords="offset points",
        ha="center",
        fontsize=7,
        color="0.3",
      )
    axes.legend()
  axes.margins(x=0.15)
  axes.set_ylim(bottom=0)
  axes.set_xlabel("spread of the lengths (deviation / mean)")
  axes.set_ylabel("completion tokens per second, without padding")
  axes.set_title("Completions that end early")


def plot(results: dict[str, Any], path: pathlib.Path) -> None:
  """Draws files' contents by their names.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(1, 2, style.PAGE, 2.9)
  left, right = grid[0]
  _parts(left, results)
  _lengths(right, results)
  style.save(canvas, path)


def main(argv: Sequence[str]) -> int:
  """Reads the files and writes the picture."""
  del argv
  paths = [pathlib.Path(path) for path in _RESULTS.value]
  results = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths
  }
  plot(results, pathlib.Path(_OUTPUT.value))
  return 0


if __name__ == "__main__":
  flags_lib.run(main)
