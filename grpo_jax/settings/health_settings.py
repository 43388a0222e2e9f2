"""Settings of the rules of health; `alarms.py` has their table."""

from __future__ import annotations

import dataclasses

from grpo_jax.settings import settings
from grpo_jax.training.rules import alarms


@dataclasses.dataclass(frozen=True)
class HealthConfig:
  """What follows from an alarm.

  Attributes:
    halt: Rules, by name or number ("perfect_score", "H12"), that stop the run
      after saving. Too many rows without a score always do, and so does a step
      short of live groups in a phase with when_short="error".
    off: Rules that say nothing.

  Both may change when a run continues.
  """

  halt: tuple[str, ...] = ()
  off: tuple[str, ...] = ()

  def __post_init__(self):
    known = tuple(alarms.BY_NAME)
    for field in ("halt", "off"):
      for name in getattr(self, field):
        if alarms.find(name) is None:
          settings.one_of(f"health.{field}", name, known)
    for name, setting in alarms.ALWAYS.items():
      if self.is_off(alarms.BY_NAME[name]):
        raise ValueError(
          f"config.health.off={self.off}: {name} has a setting of its own; set"
          f" {setting}, with which it never warns."
        )

  def halts(self, rule: alarms.Rule) -> bool:
    """Whether an alarm of the rule stops the run."""
    return rule.name in alarms.ALWAYS or bool(
      {rule.name, rule.number} & {*self.halt}
    )

  def is_off(self, rule: alarms.Rule) -> bool:
    """Whether the rule says nothing."""
    return bool({rule.name, rule.number} & {*self.off})
