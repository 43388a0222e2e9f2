"""The figure: regrets of the bandit, and rewards of texts over the steps."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.objectives import bandit
from experiments.objectives.results import Results
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_ALGORITHMS = {
  "grpo": ("GRPO", style.RED, "^"),
  "mo_grpo": ("MO-GRPO", style.BLUE, "s"),
  "gdpo": ("GDPO", style.GREEN, "D"),
}
_OF_TEXTS = {f"multi-{name}": how for name, how in _ALGORITHMS.items()} | {
  "multi-mo_grpo-empty": ("MO-GRPO, empty thoughts", style.GREY, "o")
}
_OF_LANGUAGES = {
  "language-with": ("with the reward", style.BLUE, "s"),
  "language-without": ("without", style.RED, "^"),
}
_OF_VERIFIERS = {
  ("language-buggy", "accuracy_buggy"): ("buggy: its score", style.RED, "^"),
  ("language-buggy", "accuracy"): ("buggy: right answers", style.RED, "v"),
  ("language-honest", "accuracy"): ("right verifier", style.BLUE, "s"),
}
_Style = tuple[str, str, str]


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Args:
    path: PNG to write.
    results: The results of the runs.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, axes = style.panels(3, 3, style.PAGE, 2.2)
  for place, title in enumerate(("quiet reward", "loud reward")):
    _bandit(axes[0, place], results, place)
    axes[0, place].set_title(f"Bandit: regret of the {title}")
  _plane(axes[0, 2], results)
  for one, metric in zip(
    axes[1], ("accuracy", "brevity", "politeness"), strict=True
  ):
    curves = {(arm, metric): how for arm, how in _OF_TEXTS.items()}
    _lines(one, results, curves)
    one.set_title(f"MULTI: {metric}")
  for one, metric in zip(axes[2], ("language", "accuracy"), strict=False):
    curves = {(arm, metric): how for arm, how in _OF_LANGUAGES.items()}
    _lines(one, results, curves)
    one.set_ylim(-0.03, 1.03)
  axes[2, 0].set_title("LANGUAGE: share of language A")
  axes[2, 1].set_title("LANGUAGE: right answers")
  _lines(axes[2, 2], results, _OF_VERIFIERS)
  axes[2, 2].set_ylim(-0.03, 1.03)
  axes[2, 2].set_title("LANGUAGE: two verifiers")
  for one in axes.flat:
    if one.get_legend_handles_labels()[0]:
      one.legend()
  for one in axes[1, ::2]:  # Its three have the same lines, and one has room.
    if one.get_legend():
      one.get_legend().remove()
  style.save(canvas, path)


def _band(
  axes: Any,
  steps: np.ndarray,  # [N]
  values: np.ndarray,  # [S, N]
  how: _Style,
) -> None:
  label, colour, marker = how
  figures.curve(axes, steps, values, style.FigureStyle(colour, marker), label)


def _bandit(axes: Any, results: Results, place: int) -> None:
  for name in results.bandits:
    steps, regrets = results.regrets(name)
    _band(axes, steps, regrets[..., place], _ALGORITHMS[name])
  axes.set_xlabel("step")
  axes.set_ylim(bottom=0)


def _plane(axes: Any, results: Results) -> None:
  """Draws the arms and the seeds' final regrets in the plane of regrets."""
  for arm, chances in enumerate(np.eye(bandit.NUM_ARMS)):
    place = np.asarray(bandit.regrets(chances))
    axes.plot(*place, ".", color=style.GREY)
    axes.annotate(
      str(arm), place, (4, 4), textcoords="offset points", color=style.GREY
    )
  for name in results.bandits:
    label, colour, marker = _ALGORITHMS[name]
    _, regrets = results.regrets(name)
    axes.plot(
      *regrets[:, -1].T,
      marker,
      color=colour,
      fillstyle="none",
      ms=6 if name == "gdpo" else 3.5,  # They end in the same places.
      label=label,
    )
    axes.plot(*regrets[0, 0], "x", color=style.BLACK, ms=6)
  axes.set_xlabel("regret of the quiet reward")
  axes.set_ylabel("regret of the loud reward")
  axes.set_title("Bandit: start (×), arms, ends of all seeds")


def _lines(
  axes: Any, results: Results, curves: Mapping[tuple[str, str], _Style]
) -> None:
  for (arm, metric), how in curves.items():
    if arm not in results.arms:
      continue
    steps, values = results.curve(arm, f"reward/{metric}")
    first = steps.min()
    _band(axes, steps - first + 1, np.array(list(map(_smooth, values))), how)
  axes.set_xlabel("step of reinforcement learning")


def _smooth(values: np.ndarray) -> np.ndarray:
  """Means over up to five neighbours."""
  window = np.ones(min(5, len(values)))
  sums = np.convolve(values, window, mode="same")
  return sums / np.convolve(np.ones(len(values)), window, mode="same")
