"""Settings to train, summaries of cells, and the conditions of a conclusion.

The rules below were written before any cell of the grid was trained. All of
them compare final scores, one number per seed: the mean return of the episodes
that ended in the last tenth of the budget. A comparison is a contrast of means
over seeds with a 95 % interval by Welch's approximation; "below" and "above"
mean that the whole interval is below or above 0. A conclusion is confirmed if
*every* one of its checks holds (an intersection: no correction for their number
is needed), and not confirmed if one fails. Unless a rule says otherwise, it is
about the cells of γ = 0.99 and 8 environments, each horizon by itself.

C1  Without a critic, results are below PPO on long tasks; only CartPole is
    comparable.
    Every critic-free baseline is below `ppo` on every environment but CartPole,
    and on CartPole `grpo` is not below `ppo`.
C2  γ = 0.99 is best, except where episodes do not end early, where 0.9 is good;
    γ = 1 hurts.
    For `ppo` and for `grpo`: with early termination, no γ of the sweep is above
    0.99; without, 0.9 is not below 0.99; γ = 1 is below 0.99 everywhere.
C3  Small groups beat large ones at equal environment steps.
    `grpo` with 8 environments is above `grpo` with the most, everywhere.
C4  Environments without early termination profit least from GRPO.
    (`grpo` − `ppo`) / span of Pendulum is below that of every other
    environment; `SPANS` makes returns comparable.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from experiments.critics import environments, settings
from experiments.critics.settings import Setting
from experiments.sweeps.statistics import Check, Conclusion, check

VERSION = (
  1  # Raise it when training changes: cells of another one do not count.
)
# How far a good policy is from an untrained one, in return: 22 to 500, −500 to
# −80, −40 to 95, −1200 to −150.
SPANS = {
  "CartPole-v1": 478.0,
  "Acrobot-v1": 420.0,
  "MountainCarContinuous-v0": 135.0,
  "Pendulum-v1": 1050.0,
}
_EASY = "CartPole-v1"


@dataclasses.dataclass(frozen=True)
class Profile:
  """Grid of settings, in the parts D1, D2 and D3."""

  total_steps: int  # Budget of a cell, environment steps per seed.
  baselines: tuple[str, ...]  # Baselines of D1.
  gammas: tuple[float, ...]  # Discounts of D1.
  sweep_gammas: tuple[float, ...]  # Discounts of D2.
  sweep_horizons: tuple[int, ...]  # Horizons of D2.
  groups: tuple[int, ...]  # Numbers of environments, of D3.
  group_gammas: tuple[float, ...]  # Discounts of D3.
  group_horizons: tuple[int, ...]  # Horizons of D3.
  # True if PPO without a value clip and means over episodes are trained too.
  variants: bool

  def setting(
    self,
    environment: str,
    baseline: str,
    horizon: int,
    gamma: float = 0.99,
    num_envs: int = 8,
    **others: Any,
  ) -> Setting:
    """The setting of a cell of this budget."""
    return Setting(
      environment=environment,
      baseline=baseline,
      gamma=gamma,
      horizon=horizon,
      num_envs=num_envs,
      total_steps=self.total_steps,
      **others,
    )


HORIZONS = (128, 0)
PROFILES = {
  "smoke": Profile(
    total_steps=200_000,
    baselines=("ppo", "none", "grpo"),
    gammas=(0.99,),
    sweep_gammas=(0.9, 0.99, 1.0),
    sweep_horizons=(128,),
    groups=(8, 32),
    group_gammas=(0.99,),
    group_horizons=(0,),
    variants=False,
  ),
  "full": Profile(
    total_steps=1_100_000,
    baselines=settings.BASELINES,
    gammas=(0.99, 1.0),
    sweep_gammas=(0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0),
    sweep_horizons=HORIZONS,
    groups=(8, 16, 32, 64, 128),
    group_gammas=(0.99, 1.0),
    group_horizons=HORIZONS,
    variants=True,
  ),
}


@dataclasses.dataclass(frozen=True)
class Cell:
  """Setting with its seeds and the parts of the protocol that it belongs to."""

  setting: Setting
  num_seeds: int
  parts: tuple[str, ...]

  @property
  def name(self) -> str:
    return f"{' '.join(self.parts)} {describe(self.setting)}"

  @property
  def key(self) -> str:
    """Ten hexadecimal digits of all settings that the result depends on."""
    content = [VERSION, self.num_seeds, dataclasses.asdict(self.setting)]
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def describe(setting: Setting) -> str:
  """A setting in one line."""
  return (
    f"{setting.environment} {variant(setting)} gamma={setting.gamma:g}"
    f" horizon={setting.horizon} envs={setting.num_envs}"
  )


def variant(setting: Setting) -> str:
  """Name of the baseline, with its differences from the usual form."""
  text = setting.baseline
  if setting.has_critic and setting.value_clip is None:
    text += "-without-clip"
  if setting.mean_of != "steps":
    text += f"-of-{setting.mean_of}"
  return text


def cells(profile: Profile, num_seeds: int) -> list[Cell]:
  """Cells of a profile, each once, D1 first."""
  parts: dict[Setting, list[str]] = {}

  def add(part, environment, baseline, gamma, horizon, num_envs=8, **others):
    setting = profile.setting(
      environment, baseline, horizon, gamma, num_envs, **others
    )
    parts.setdefault(setting, []).append(part)

  names = tuple(environments.NAMES)
  for combination in itertools.product(
    names, profile.baselines, profile.gammas, HORIZONS
  ):
    add("D1", *combination)
  if profile.variants:
    for name, horizon in itertools.product(names, HORIZONS):
      add("variants", name, "ppo", 0.99, horizon, value_clip=None)
      for baseline in ("batch_mean", "grpo"):
        add("variants", name, baseline, 0.99, horizon, mean_of="episodes")
  for combination in itertools.product(
    names, ("ppo", "grpo"), profile.sweep_gammas, profile.sweep_horizons
  ):
    add("D2", *combination)
  for combination in itertools.product(
    names,
    ("grpo",),
    profile.group_gammas,
    profile.group_horizons,
    profile.groups,
  ):
    add("D3", *combination)
  return [Cell(x, num_seeds, tuple(found)) for x, found in parts.items()]


Scores = Callable[..., np.ndarray | None]


def _without_critic(profile: Profile, of: Scores) -> Iterator[Check]:
  for horizon, name in itertools.product(HORIZONS, environments.NAMES):
    place = f"{name}, horizon {horizon}"
    ppo = (-1, of(name, "ppo", horizon))
    for baseline in profile.baselines:
      if baseline == "ppo" or (name == _EASY and baseline != "grpo"):
        continue
      yield check(
        f"`{baseline}` − `ppo`, {place}",
        "not below" if name == _EASY else "below",
        (1, of(name, baseline, horizon)),
        ppo,
      )


def _discounts(profile: Profile, of: Scores) -> Iterator[Check]:
  for horizon, method, (name, ends_early) in itertools.product(
    profile.sweep_horizons, ("ppo", "grpo"), environments.NAMES.items()
  ):
    for gamma in profile.sweep_gammas:
      if gamma == 1.0:
        needed = "below"
      elif ends_early and gamma != 0.99:
        needed = "not above"
      elif not ends_early and gamma == 0.9:
        needed = "not below"
      else:
        continue
      yield check(
        f"γ = {gamma:g} − γ = 0.99, `{method}`, {name}, horizon {horizon}",
        needed,
        (1, of(name, method, horizon, gamma)),
        (-1, of(name, method, horizon)),
      )


def _groups(profile: Profile, of: Scores) -> Iterator[Check]:
  few, many = min(profile.groups), max(profile.groups)
  for horizon, name in itertools.product(
    profile.group_horizons, environments.NAMES
  ):
    yield check(
      f"{few} − {many} environments, `grpo`, {name}, horizon {horizon}",
      "above",
      (1, of(name, "grpo", horizon, num_envs=few)),
      (-1, of(name, "grpo", horizon, num_envs=many)),
    )


def _early_termination(profile: Profile, of: Scores) -> Iterator[Check]:
  def gap(sign, name, horizon):
    weight = sign / SPANS[name]
    yield weight, of(name, "grpo", horizon)
    yield -weight, of(name, "ppo", horizon)

  late = [name for name, early in environments.NAMES.items() if not early]
  early = [name for name in environments.NAMES if name not in late]
  for horizon, name, other in itertools.product(HORIZONS, late, early):
    yield check(
      f"gap of {name} − gap of {other}, horizon {horizon}",
      "below",
      *gap(1, name, horizon),
      *gap(-1, other, horizon),
    )


_CONCLUSIONS = {
  "C1": (
    "Without a critic, results are below PPO on long tasks; only CartPole is"
    " comparable.",
    _without_critic,
  ),
  "C2": (
    "γ = 0.99 is best, except where episodes do not end early (0.9 is good"
    " there); γ = 1 hurts.",
    _discounts,
  ),
  "C3": ("Small groups beat large ones at equal environment steps.", _groups),
  "C4": (
    "Environments without early termination profit least from GRPO.",
    _early_termination,
  ),
}


def conclusions(
  profile: Profile, scores: Mapping[Setting, np.ndarray]
) -> list[Conclusion]:
  """Conclusions C1 to C4 from the final scores [S] of the trained cells."""

  def of(*key, **others):
    return scores.get(profile.setting(*key, **others))

  return [
    Conclusion(name, claim, tuple(checks(profile, of)))
    for name, (claim, checks) in _CONCLUSIONS.items()
  ]
