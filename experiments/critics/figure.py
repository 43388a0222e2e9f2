"""The figures of the replication: curves, discounts, sizes of groups."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments.critics import environments, training
from experiments.critics.protocol import HORIZONS, Cell, Profile
from experiments.critics.results import Record
from experiments.critics.settings import Setting
from experiments.sweeps import figures, statistics
from grpo_jax.training.monitor import style

_LOOKS = style.looks(("ppo", "grpo", "none", "rstats", "batch_mean", "ema"))
_GAMMA_LOOKS = style.looks((0.99, 1.0))
_TITLES = {128: "rollouts of 128 steps", 0: "whole episodes"}


def plot(
  profile: Profile,
  cells: Sequence[Cell],
  records: Mapping[Setting, Record],
  out: pathlib.Path,
) -> list[pathlib.Path]:
  """Draws the results of the trained cells, and returns the paths.

  An environment is drawn when all of its cells of that part are there. With the
  start `out`, FOLDER/NAME, the first figure is FOLDER/NAME_curves.png.
  """
  drawn = []
  for part, name, draw, horizons in (
    ("D1", "curves", _curves, HORIZONS),
    ("D2", "gamma", _discounts, profile.sweep_horizons),
    ("D3", "groups", _groups, profile.group_horizons),
  ):
    missing = {
      cell.setting.environment
      for cell in cells
      if part in cell.parts and cell.setting not in records
    }
    names = [x for x in environments.NAMES if x not in missing]
    if names:
      path = out.with_name(f"{out.name}_{name}.png")
      _save(functools.partial(draw, profile, records), names, horizons, path)
      drawn.append(path)
  return drawn


def _save(
  draw: Callable[..., None],
  names: Sequence[str],
  horizons: Sequence[int],
  path: pathlib.Path,
) -> None:
  """Environments are rows and horizons are columns."""
  canvas, grid = style.panels(
    len(names), len(horizons), style.PAGE, 1.5, sharey="row"
  )
  for row, name in zip(grid, names, strict=True):
    for axes, horizon in zip(row, horizons, strict=True):
      draw(axes, name, horizon)
    row[0].set_ylabel(f"{name}\nreturn")
  for axes, horizon in zip(grid[0], horizons, strict=True):
    axes.set_title(_TITLES[horizon])
  for axes in grid[:-1].flat:
    axes.set_xlabel("")
  canvas.align_ylabels()
  style.shared_legend(canvas, grid.flat)
  style.save(canvas, path)


def _curves(profile, records, axes, name, horizon) -> None:
  """Mean over seeds against steps, and the 95 % interval of the mean."""
  steps = (np.arange(training.NUM_BINS) + 0.5) / training.NUM_BINS
  steps *= profile.total_steps / 1e6
  for baseline in profile.baselines:
    setting = profile.setting(name, baseline, horizon)
    curves = records[setting].curves()  # [S, NUM_BINS]
    figures.curve(axes, steps, curves, _LOOKS[baseline], baseline)
  axes.locator_params(axis="x", nbins=5)
  axes.set_xlabel("environment steps (millions)")


def _line(
  axes,
  records: Mapping[Setting, Record],
  settings: Sequence[Setting],
  look: style.FigureStyle,
  label: str,
  shift: float,
) -> None:
  """Interquartile means of final scores with their intervals, side by side."""
  scores = [records[setting].final_scores() for setting in settings]
  means = np.array([statistics.interquartile_mean(x) for x in scores])
  low, high = np.transpose(
    [statistics.interval(x, statistics.interquartile_mean) for x in scores]
  )
  axes.errorbar(
    np.arange(len(settings)) + shift,
    means,
    # A mean of the middle half may fall outside by round-off alone.
    yerr=np.maximum([means - low, high - means], 0),
    **look.line(capsize=2, ms=3.5, label=label),
  )


def _name_places(axes, names: Sequence[object], label: str) -> None:
  axes.set_xticks(range(len(names)), names)
  axes.set_xlim(-0.4, len(names) - 0.6)
  axes.set_xlabel(label)


def _discounts(profile, records, axes, name, horizon) -> None:
  gammas = profile.sweep_gammas
  for i, baseline in enumerate(("ppo", "grpo")):
    settings = [profile.setting(name, baseline, horizon, x) for x in gammas]
    look = _LOOKS[baseline]
    _line(axes, records, settings, look, baseline, shift=0.12 * i - 0.06)
  _name_places(axes, [f"{gamma:g}" for gamma in gammas], "discount γ")


def _groups(profile, records, axes, name, horizon) -> None:
  middle = (len(profile.group_gammas) - 1) / 2
  for i, gamma in enumerate(profile.group_gammas):
    settings = [
      profile.setting(name, "grpo", horizon, gamma, num_envs)
      for num_envs in profile.groups
    ]
    look, label = _GAMMA_LOOKS[gamma], f"grpo, γ = {gamma:g}"
    _line(axes, records, settings, look, label, shift=0.12 * (i - middle))
  _name_places(axes, profile.groups, "environments in a group")
