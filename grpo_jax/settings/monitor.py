"""Settings of guards against bad data and rewards, and of health rules.

`training/rules/rules.toml` has the table of the rules.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from grpo_jax import ranges
from grpo_jax.settings import groups
from grpo_jax.settings.groups import one_of
from grpo_jax.settings.phase import PhaseConfig
from grpo_jax.training.rules import rules

_WINDOW = ranges.Range(2, 2**20)  # Steps, the present step included.

if TYPE_CHECKING:
  from grpo_jax.step import guards as guards_lib


@dataclasses.dataclass(frozen=True)
class GuardsConfig:
  """Guards against bad data and bad rewards; docs/guards.md.

  Attributes:
    lint: Reaction, before training, to too few different prompts or to one
      prompt that is most of them: "warn", "refuse", or "off" for no check. If
      guards are `on`, "warn" is "refuse".
    on: Whether the guards below are on. Each is switched off by 0.
    min_distinct_prompts: Fewest different prompts of a step; with fewer the run
      halts. None: half of `num_prompts`, and at least 4.
    influence_cap: Largest share of a prompt in Σ |advantage| · tokens over a
      window of steps; a larger share is scaled down.
    influence_window: Steps of that window.
    repeat_cap: Most times that a prompt is trained on in the steps of a second
      window; further completions are left out.
    repeat_window: Steps of that window.
    canary_every: Steps between checks of the canaries. Every checkpoint is
      checked too, and saved only if it passes, so that a run which halts is
      where its last checkpoint is.
    canary_prompts: Held-out prompts of each canary.
    canaries: Scores that must not fall: components of the reward, or "correct".
      A minus before the name means that less is better. @FILE after it names
      prompts (JSON lines) that replace held-out prompts. For example:
      ("correct", "-biased", "format@probes").
    canary_fall: Fall below the mean of earlier passes that is always allowed,
      even if `canary_sigmas` allows less.
    canary_sigmas: Number of standard deviations of that difference by which a
      canary may fall.
    canary_max_kl: KL to the reference, in nats per completion of a canary's
      prompt, above which the run halts; not checked in phases without a
      reference.
  """

  lint: str = "warn"
  on: bool = False
  min_distinct_prompts: int | None = ranges.COUNT.field(None)
  influence_cap: float = ranges.SHARE.field(0.05)
  influence_window: int = _WINDOW.field(20)
  repeat_cap: int = ranges.COUNT.field(8)
  repeat_window: int = _WINDOW.field(1000)
  canary_every: int = ranges.COUNT.field(20)
  canary_prompts: int = ranges.ROWS.field(256)
  canaries: tuple[str, ...] = ("correct",)
  canary_fall: float = ranges.SHARE.field(0.05)
  canary_sigmas: float = ranges.NOT_NEGATIVE.field(3.0)
  canary_max_kl: float = ranges.NOT_NEGATIVE.field(0.5)

  def __post_init__(self):
    one_of("guards.lint", self.lint, ("off", "warn", "refuse"))
    ranges.check(self, "config.guards")

  def of_phase(self, phase: PhaseConfig) -> guards_lib.InfluenceBounds | None:
    """The guards inside the steps of a phase; None if they are off.

    Raises:
      ValueError: A step has fewer prompts than `min_distinct_prompts`.
    """
    if not (self.on and phase.samples and "policy" in phase.trains):
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
  """Reactions to alarms of health rules.

  Attributes:
    halt: Rules, by name or number ("perfect_score", "H12"), that stop the run
      after saving. Too many rows without a score always stop it, and so does a
      step short of live groups in a phase with when_short="error".
    off: Rules that give no alarm.

  Both may change when a run continues.
  """

  halt: tuple[str, ...] = ()
  off: tuple[str, ...] = ()

  def __post_init__(self):
    names = tuple(rules.BY_NAME)
    for field in ("halt", "off"):
      for name in getattr(self, field):
        if rules.find(name) is None:
          groups.one_of(f"health.{field}", name, names)
    for name, setting in rules.ALWAYS.items():
      if self.is_off(rules.BY_NAME[name]):
        raise ValueError(
          f"config.health.off={self.off}: {name} has a setting of its own; set"
          f" {setting}, with which it never warns."
        )
    for rule in rules.RULES:
      if self.is_off(rule) and self.halts(rule):
        raise ValueError(
          f"config.health.halt={self.halt} and off={self.off} both name"
          f" {rule.number} {rule.name}, which would not stop the run; leave it"
          " out of one of them."
        )

  def halts(self, rule: rules.Rule) -> bool:
    """Returns True if an alarm of the rule stops the run."""
    return rule.name in rules.ALWAYS or bool(
      {rule.name, rule.number} & {*self.halt}
    )

  def is_off(self, rule: rules.Rule) -> bool:
    """Returns True if the rule gives no alarm."""
    return bool({rule.name, rule.number} & {*self.off})
