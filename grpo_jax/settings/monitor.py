"""What a run does against data and rewards that would spoil its policy.

Settings of the rules of health; `alarms.py` has their table.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from grpo_jax import ranges
from grpo_jax.settings import groups
from grpo_jax.settings.groups import one_of
from grpo_jax.settings.phase import PhaseConfig
from grpo_jax.training.rules import rules

_WINDOW = ranges.Range(2, 2**20)  # Steps; one of them is the present one.

if TYPE_CHECKING:
  from grpo_jax.step import guards as guards_lib


@dataclasses.dataclass(frozen=True)
class GuardsConfig:
  """Guards against bad data and bad rewards; docs/guards.md.

  Attributes:
    lint: What becomes of too few prompts, or one that is most of them, before
      training: "warn", "refuse", or "off", which does not look. Where guards
      are `on`, a warning is a refusal.
    on: Switch all of what follows on. Each is switched off by 0.
    min_distinct_prompts: Different prompts that a step must have, or the run
      halts; None: half of `num_prompts`, and at least 4.
    influence_cap: Largest share that a prompt has of Σ |advantage| · tokens
      over a window of steps; what is above is scaled down.
    influence_window: Steps of that window.
    repeat_cap: How often a prompt is trained on in the steps of a second
      window; later ones are left out.
    repeat_window: Steps of that window.
    canary_every: Steps between looks at the canaries. Every checkpoint is
      looked at as well, and saved only if it passes, so that a run which halts
      is where its last checkpoint is.
    canary_prompts: Held-out prompts of each canary.
    canaries: What must not fall: components of the reward, or "correct". A
      minus says that less is better, and @FILE which prompts (JSON lines) are
      asked instead of held-out ones: ("correct", "-biased", "format@probes").
    canary_fall: By how much, below the mean of what has passed, a canary may
      fall if its standard deviation allows less.
    canary_sigmas: By how many standard deviations of that difference.
    canary_max_kl: KL to the reference in nats per completion of a canary's
      prompt that halts the run; not looked at in phases without a reference.
  """

  lint: str = "warn"
  on: bool = False
  min_distinct_prompts: int | None = None
  influence_cap: float = 0.05
  influence_window: int = 20
  repeat_cap: int = 8
  repeat_window: int = 1000
  canary_every: int = 20
  canary_prompts: int = 256
  canaries: tuple[str, ...] = ("correct",)
  canary_fall: float = 0.05
  canary_sigmas: float = 3.0
  canary_max_kl: float = 0.5

  def __post_init__(self):
    one_of("guards.lint", self.lint, ("off", "warn", "refuse"))
    ranges.check(
      self,
      "config.guards",
      min_distinct_prompts=ranges.COUNT,
      influence_cap=ranges.SHARE,
      influence_window=_WINDOW,
      repeat_cap=ranges.COUNT,
      repeat_window=_WINDOW,
      canary_every=ranges.COUNT,
      canary_prompts=ranges.ROWS,
      canary_fall=ranges.SHARE,
      canary_sigmas=ranges.NOT_NEGATIVE,
      canary_max_kl=ranges.NOT_NEGATIVE,
    )

  def of_phase(self, phase: PhaseConfig) -> guards_lib.InfluenceBounds | None:
    """The guards inside the steps of a phase; None where they are off.

    Raises:
      ValueError: A step has fewer prompts than are to be different.
    """
    if not (self.on and phase.plays and "policy" in phase.trains):
      return None
    distinct = self.min_distinct_prompts
    if distinct is None:
      distinct = min(max(4, phase.num_prompts // 2), phase.num_prompts)
    if distinct > phase.num_prompts:
      raise ValueError(
        f"config.guards.min_distinct_prompts={distinct}: a step of this phase"
        f" has num_prompts={phase.num_prompts}, so each would be refused; lower"
        " it."
      )
    from grpo_jax.step import guards as guards_lib

    return guards_lib.InfluenceBounds(
      num_prompts=phase.num_prompts,
      min_distinct=distinct,
      cap=self.influence_cap,
      window=self.influence_window,
      repeats=self.repeat_cap,
      repeat_window=self.repeat_window,
    )


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
    known = tuple(rules.BY_NAME)
    for field in ("halt", "off"):
      for name in getattr(self, field):
        if rules.find(name) is None:
          groups.one_of(f"health.{field}", name, known)
    for name, setting in rules.ALWAYS.items():
      if self.is_off(rules.BY_NAME[name]):
        raise ValueError(
          f"config.health.off={self.off}: {name} has a setting of its own; set"
          f" {setting}, with which it never warns."
        )

  def halts(self, rule: rules.Rule) -> bool:
    """Whether an alarm of the rule stops the run."""
    return rule.name in rules.ALWAYS or bool(
      {rule.name, rule.number} & {*self.halt}
    )

  def is_off(self, rule: rules.Rule) -> bool:
    """Whether the rule says nothing."""
    return bool({rule.name, rule.number} & {*self.off})
