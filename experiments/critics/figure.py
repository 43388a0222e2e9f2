"""The figures of the replication: curves, discounts, sizes of groups."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from experiments.critics import environments, protocol, training
from experiments.critics.protocol import HORIZONS, Profile, Record
from experiments.critics.training import Setting

# Colour-blind-safe (Okabe and Ito) and told apart by the marker, too.
_STYLES = {
  "ppo": ("#000000", "o"),
  "grpo": ("#0072B2", "s"),
  "none": ("#D55E00", "^"),
  "rstats": ("#CC79A7", "v"),
  "batch_mean": ("#009E73", "D"),
  "ema": ("#E69F00", "P"),
}
_GAMMA_STYLES = {0.99: ("#0072B2", "s"), 1.0: ("#D55E00", "^")}
_TITLES = {128: "rollouts of 128 steps", 0: "whole episodes"}


def plot(
  profile: Profile, records: Mapping[Setting, Record], out: pathlib.Path
) -> list[pathlib.Path]:
  """Draws what was trained.

  Args:
    profile: The grid.
    records: By setting; those that are missing are left out.
    out: Start of the paths: FOLDER/NAME becomes FOLDER/NAME_curves.png.

  Returns:
    The paths of the figures.
  """
  drawn = []
  for name, draw in (
    ("curves", _curves),
    ("gamma", _discounts),
    ("groups", _groups),
  ):
    path = out.with_name(f"{out.name}_{name}.png")
    _save(draw, profile, records, path)
    drawn.append(path)
  return drawn


def _save(
  draw: Callable[..., None],
  profile: Profile,
  records: Mapping[Setting, Record],
  path: pathlib.Path,
) -> None:
  """Environments are rows and horizons are columns."""
  try:
    from matplotlib import figure
  except ImportError as error:
    raise ImportError(
      "report: matplotlib is not installed; run `pip install 'grpo_jax[plot]'`."
    ) from error
  canvas = figure.Figure(figsize=(9, 11), dpi=110, layout="constrained")
  grid = canvas.subplots(
    len(environments.NAMES), len(HORIZONS), sharey="row", squeeze=False
  )
  for row, name in zip(grid, environments.NAMES, strict=True):
    for axes, horizon in zip(row, HORIZONS, strict=True):
      draw(axes, profile, records, name, horizon)
      axes.spines[["top", "right"]].set_visible(False)
      axes.grid(alpha=0.25, lw=0.6)
    row[0].set_ylabel(f"{name}\nreturn")
  for axes, horizon in zip(grid[0], HORIZONS, strict=True):
    axes.set_title(_TITLES[horizon])
  handles: dict[str, Any] = {}
  for axes in grid.flat:
    found, labels = axes.get_legend_handles_labels()
    handles |= dict(zip(labels, found, strict=True))
  canvas.legend(
    handles.values(),
    handles.keys(),
    loc="outside lower center",
    ncols=6,
    frameon=False,
  )
  # Without the name of the library that drew it: the same bytes everywhere.
  canvas.savefig(path, format="png", metadata={"Software": None})


def _setting(profile: Profile, name: str, horizon: int, **others) -> Setting:
  return Setting(
    environment=name,
    horizon=horizon,
    total_steps=profile.total_steps,
    **others,
  )


def _curves(axes, profile, records, name, horizon) -> None:
  """Mean over seeds against steps, and the 95 % interval of the mean."""
  steps = (np.arange(training.NUM_BINS) + 0.5) / training.NUM_BINS
  steps *= profile.total_steps / 1e6
  for baseline in profile.baselines:
    setting = _setting(profile, name, horizon, baseline=baseline)
    if setting not in records:
      continue
    curves = records[setting].curves()  # [S, NUM_BINS]
    low, high = np.transpose([protocol.interval(x, np.mean) for x in curves.T])
    colour, marker = _STYLES[baseline]
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
    axes.plot(
      steps,
      curves.mean(axis=0),
      marker=marker,
      markevery=10,
      ms=5,
      color=colour,
      lw=1.4,
      label=baseline,
    )
  axes.set_xlabel("environment steps (millions)")


def _line(
  axes,
  records: Mapping[Setting, Record],
  points: Iterable[tuple[float, Setting]],
  style: tuple[str, str],
  label: str,
  shift: float,
) -> None:
  """Interquartile means of final scores with their intervals."""
  found = [
    (x + shift, records[setting].final_scores())
    for x, setting in points
    if setting in records
  ]
  if not found:
    return
  places = [x for x, _ in found]
  means = np.array([protocol.interquartile_mean(scores) for _, scores in found])
  low, high = np.transpose([protocol.interval(scores) for _, scores in found])
  colour, marker = style
  axes.errorbar(
    places,
    means,
    # A mean of the middle half may fall outside by round-off alone.
    yerr=np.maximum([means - low, high - means], 0),
    marker=marker,
    color=colour,
    lw=1.4,
    ms=5,
    capsize=3,
    label=label,
  )


def _discounts(axes, profile, records, name, horizon) -> None:
  gammas = profile.sweep_gammas
  for i, baseline in enumerate(("ppo", "grpo")):
    points = [
      (x, _setting(profile, name, horizon, baseline=baseline, gamma=gamma))
      for x, gamma in enumerate(gammas)
    ]
    _line(
      axes, records, points, _STYLES[baseline], baseline, shift=0.12 * i - 0.06
    )
  axes.set_xticks(range(len(gammas)), [f"{gamma:g}" for gamma in gammas])
  axes.set_xlim(-0.4, len(gammas) - 0.6)
  axes.set_xlabel("discount γ")


def _groups(axes, profile, records, name, horizon) -> None:
  for i, gamma in enumerate(profile.group_gammas):
    points = [
      (
        x,
        _setting(
          profile,
          name,
          horizon,
          baseline="grpo",
          gamma=gamma,
          num_envs=num_envs,
        ),
      )
      for x, num_envs in enumerate(profile.groups)
    ]
    _line(
      axes,
      records,
      points,
      _GAMMA_STYLES[gamma],
      f"grpo, γ = {gamma:g}",
      shift=0.12 * i - 0.06,
    )
  axes.set_xticks(range(len(profile.groups)), profile.groups)
  axes.set_xlim(-0.4, len(profile.groups) - 0.6)
  axes.set_xlabel("environments in a group")
