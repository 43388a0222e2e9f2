"""Settings of a cell, and the readings of the paper behind them.

Horizon 128 plays rollouts of 128 steps, in which episodes end and begin.
Horizon 0 plays one whole episode in each copy of the environment.

| baseline     | advantage of a step with the return-to-go G                   |
|--------------|---------------------------------------------------------------|
| `ppo`        | generalised advantage estimation, the only one with a critic  |
| `none`       | G                                                             |
| `rstats`     | G − (m + s ε), ε Gaussian, m and s of all G of the batch      |
| `batch_mean` | G − m                                                         |
| `grpo`       | (G − m) / (s + 1e-8)                                          |
| `ema`        | G − EMA of m (0.9, bias-corrected, this batch included)       |

Readings where the paper leaves a choice:

- The learning rate falls linearly to 0 over the number of iterations. With
horizon 0 that number is unknown. The paper's code takes the number of steps
in its place, so the rate stays almost constant. The code here does the same.
- Horizon 128 bootstraps: a critic's value stands for the return after the last
  step of a row and after a time-out; after a termination the return is 0.
  Without a critic there is nothing to bootstrap with: G ends with the row, as
  it ends with an episode.
- Horizon 0 does not bootstrap: a time-out is an end like any other.
- `mean_of="episodes"`: m is the mean of the undiscounted sum of rewards of the
  episodes in the batch (or of their parts, with horizon 128), as in the first
  version of the paper's code; "steps", the default, is that of the second. s
  is the deviation over steps (ddof 0) in both.
- Time, budget and learning curves count environment steps of live copies. An
  iteration that begins below the budget is finished.
- Continuous actions use the same settings as discrete ones, entropy bonus
  included; the observation and reward wrappers are in `environments.py`.
"""

from __future__ import annotations

import dataclasses

BASELINES = ("ppo", "none", "rstats", "batch_mean", "grpo", "ema")
MEANS = ("steps", "episodes")


@dataclasses.dataclass(frozen=True)
class Setting:
  """Settings of one cell."""

  environment: str  # One of `environments.NAMES`.
  baseline: str  # One of `BASELINES`.
  gamma: float = 0.99  # Discount per step, in [0, 1].
  horizon: int = 128  # 128, or any number of steps > 0; 0 for whole episodes.
  num_envs: int = 8  # Copies of the environment: the size of the group.
  # Clip range of the critic's loss, in units of return, or None.
  value_clip: float | None = 0.2
  mean_of: str = "steps"  # One of `MEANS`.
  total_steps: int = 1_100_000  # Budget, environment steps.

  def __post_init__(self):
    for name, known in (("baseline", BASELINES), ("mean_of", MEANS)):
      if getattr(self, name) not in known:
        raise ValueError(
          f"settings.Setting: {name}={getattr(self, name)!r} is unknown; choose"
          f" one of {list(known)}."
        )

  @property
  def has_critic(self) -> bool:
    return self.baseline == "ppo"

  @property
  def whole_episodes(self) -> bool:
    return self.horizon == 0
