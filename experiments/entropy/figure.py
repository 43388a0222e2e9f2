"""The figure: entropy, accuracy and dead groups over steps; pass@16."""

from __future__ import annotations

import pathlib

import numpy as np

from experiments.entropy import arms
from experiments.entropy.results import Results, windows
from experiments.sweeps import figures
from grpo_jax.training.monitor import style

_ARMS = (
  *("grpo", "clip-higher", "gtpo", "grpo_s", "edge", "edge-gec"),
  *("edge-gec-trained", "bonus"),
)
_SHOWN = {
  "entropy": ("Entropy of what tokens are drawn from", "nats per token"),
  "held_out": ("pass@1, held out", "share of right answers"),
  "dead": ("Groups without a signal, before corrections", "share of groups"),
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the results of the arms that have ended.

  Raises:
    ImportError: matplotlib is not installed.
  """
  canvas, grid = style.panels(2, 2, style.PAGE, 2.3)
  looks = {
    arm: look for arm, look in style.looks(_ARMS).items() if arm in results.arms
  }
  steps = arms.SIZES["full"].steps
  every = grid.ravel()
  for axes, (what, (title, y)) in zip(every[:3], _SHOWN.items(), strict=True):
    style.label(axes, title, "step", y)
    for arm, look in looks.items():
      values = results.logged(arm, what)
      assert values is not None
      if what != "held_out":
        values = windows(values)
        x = (np.arange(values.shape[1]) + 0.5) / values.shape[1] * steps
      else:
        x = np.linspace(0, steps, values.shape[1])
      figures.curve(axes, x, values, look, arm)
  style.label(every[3], "pass@16, held out", "step", "share of problems")
  for arm, look in looks.items():
    values = results.passes(arm, "pass@16")
    figures.curve(every[3], np.array([0, steps / 2, steps]), values, look, arm)
  style.shared_legend(canvas, every)
  style.save(canvas, path)
