"""The figure: regrets of the bandit, and rewards of texts over the steps."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.objectives import bandit
from experiments.objectives.results import Results
from experiments.sweeps import figures, statistics

# Colour-blind-safe (Okabe and Ito) and told apart by the marker, too.
_ALGORITHMS = {
  "grpo": ("GRPO", "#D55E00", "^"),
  "mo_grpo": ("MO-GRPO", "#0072B2", "s"),
  "gdpo": ("GDPO", "#009E73", "D"),
}
_OF_TEXTS = {f"multi-{name}": style for name, style in _ALGORITHMS.items()} | {
  "multi-mo_grpo-empty": ("MO-GRPO, empty thoughts", "#888888", "o")
}
_OF_LANGUAGES = {
  "language-with": ("with the reward", "#0072B2", "s"),
  "language-without": ("without", "#D55E00", "^"),
}
_OF_VERIFIERS = {
  ("language-buggy", "accuracy_buggy"): ("buggy: its score", "#D55E00", "^"),
  ("language-buggy", "accuracy"): ("buggy: right answers", "#D55E00", "v"),
  ("language-honest", "accuracy"): ("right verifier", "#0072B2", "s"),
}
_Style = tuple[str, str, str]


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws whatever has ended.

  Args:
    path: PNG to write.
    results: The results of the runs.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas = figures.canvas(13, 10)
  axes = canvas.subplots(3, 3)
  for place, title in enumerate(("quiet reward", "loud reward")):
    _bandit(axes[0, place], results, place)
    axes[0, place].set_title(f"Bandit: regret of the {title}", loc="left")
  _plane(axes[0, 2], results)
  for one, metric in zip(
    axes[1], ("accuracy", "brevity", "politeness"), strict=True
  ):
    curves = {(arm, metric): style for arm, style in _OF_TEXTS.items()}
    _lines(one, results, curves)
    one.set_title(f"MULTI: {metric}", loc="left")
  for one, metric in zip(axes[2], ("language", "accuracy"), strict=False):
    curves = {(arm, metric): style for arm, style in _OF_LANGUAGES.items()}
    _lines(one, results, curves)
    one.set_ylim(-0.03, 1.03)
  axes[2, 0].set_title("LANGUAGE: share of language A", loc="left")
  axes[2, 1].set_title("LANGUAGE: right answers", loc="left")
  _lines(axes[2, 2], results, _OF_VERIFIERS)
  axes[2, 2].set_ylim(-0.03, 1.03)
  axes[2, 2].set_title("LANGUAGE: two verifiers", loc="left")
  for one in axes.flat:
    one.spines[["top", "right"]].set_visible(False)
    one.grid(alpha=0.25, lw=0.6)
    if one.get_legend_handles_labels()[0]:
      one.legend(frameon=False)
  for one in axes[1, ::2]:  # Its three have the same lines, and one has room.
    if one.get_legend():
      one.get_legend().remove()
  # Without the name of the library that drew it: the same bytes everywhere.
  canvas.savefig(path, format="png", metadata={"Software": None})


def _band(
  axes: Any,
  steps: np.ndarray,  # [N]
  values: np.ndarray,  # [S, N]
  style: _Style,
) -> None:
  label, colour, marker = style
  low, high = statistics.interval(values)
  axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
  axes.plot(
    steps,
    values.mean(axis=0),
    color=colour,
    marker=marker,
    markevery=max(len(steps) // 8, 1),
    ms=4,
    lw=1.4,
    label=label,
  )


def _bandit(axes: Any, results: Results, place: int) -> None:
  for name in results.bandits:
    steps, regrets = results.regrets(name)
    _band(axes, steps, regrets[..., place], _ALGORITHMS[name])
  axes.set_xlabel("step")
  axes.set_ylim(bottom=0)


def _plane(axes: Any, results: Results) -> None:
  """Where the seeds end, in the plane of both regrets, and the arms."""
  for arm, chances in enumerate(np.eye(bandit.NUM_ARMS)):
    place = np.asarray(bandit.regrets(chances))
    axes.plot(*place, ".", color="#888888")
    axes.annotate(
      str(arm), place, (4, 4), textcoords="offset points", color="#888888"
    )
  for name in results.bandits:
    label, colour, marker = _ALGORITHMS[name]
    _, regrets = results.regrets(name)
    axes.plot(
      *regrets[:, -1].T,
      marker,
      color=colour,
      fillstyle="none",
      ms=8 if name == "gdpo" else 5,  # They end in the same places.
      label=label,
    )
    axes.plot(*regrets[0, 0], "x", color="black", ms=8)
  axes.set_xlabel("regret of the quiet reward")
  axes.set_ylabel("regret of the loud reward")
  axes.set_title("Bandit: start (×), arms, ends of all seeds", loc="left")


def _lines(
  axes: Any, results: Results, curves: Mapping[tuple[str, str], _Style]
) -> None:
  for (arm, metric), style in curves.items():
    if arm not in results.arms:
      continue
    steps, values = results.curve(arm, f"reward/{metric}")
    first = steps.min()
    _band(axes, steps - first + 1, np.array(list(map(_smooth, values))), style)
  axes.set_xlabel("step of reinforcement learning")


def _smooth(values: np.ndarray) -> np.ndarray:
  """Means over up to five neighbours."""
  window = np.ones(min(5, len(values)))
  sums = np.convolve(values, window, mode="same")
  return sums / np.convolve(np.ones(len(values)), window, mode="same")
