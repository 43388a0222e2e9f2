"""Asks the health rules after each step, and reports their alarms.

A rule warns once a phase: on the console, as the metric `alarm/NAME` in the
line of the step, in TensorBoard and W&B, and in `result.json`. Rules read
nothing but the lines of metrics.jsonl. So a run that continues reads these
lines again, and goes on as if it had never stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_jax.settings import config as config_lib
from grpo_jax.settings.monitor import HealthConfig
from grpo_jax.training.problem import unscored
from grpo_jax.training.rules import rules
from grpo_jax.training.rules.rules import History, Stage
from grpo_jax.training.runtime import hosts

_FIELDS = frozenset(("step", "phase"))


class Halted(RuntimeError):
  """A rule or a guard has stopped a run."""


class HealthHalt(Halted):
  """A rule that `config.health.halt` names has stopped a run; it is saved."""


def stages_of(
  config: config_lib.RunConfig, correct: str = ""
) -> tuple[Stage, ...]:
  """The settings of the phases of a run that rules read.

  Args:
    correct: The component that marks right completions.
  """
  rewards = config.rewards
  stages: list[Stage] = []
  last = 0
  for name, phase in zip(config.phases, config.stages, strict=True):
    weights = phase.reward_weights or rewards.weights
    weighted = zip(rewards.names, weights, strict=True)
    rewarded = {component for component, weight in weighted if weight}
    if not phase.reward_weights:
      rewarded |= {*rewards.schedules}
    last += phase.steps
    stages.append(
      Stage(
        name=name,
        kind=phase.kind,
        steps=phase.steps,
        last=last,
        group_size=phase.group_size,
        num_rows=phase.num_rows,
        max_unscored=rewards.max_unscored,
        correct=correct,
        rewarded=tuple(sorted(rewarded)),
        num_eval=config.eval.num_prompts,
        ends_short=phase.when_short == "error",
      )
    )
  return tuple(stages)


def of_step(line: Mapping[str, Any]) -> dict[str, Any] | None:
  """The metrics in a line of metrics.jsonl.

  Returns:
    None for an evaluation before a phase, which is not a step of it.
  """
  metrics = {name: x for name, x in line.items() if name not in _FIELDS}
  of_evaluation = ("eval/", "canary/")
  return None if all(x.startswith(of_evaluation) for x in metrics) else metrics


def has_alarm(metrics: Mapping[str, Any]) -> bool:
  """Says if the metrics of a step have an alarm."""
  return any(name.startswith(rules.PREFIX) for name in metrics)


class Monitor:
  """Watches a run.

  Attributes:
    alarms: Alarms so far, in their order.
    halted: The alarm that stops the run, if one does.
  """

  def __init__(
    self,
    stages: Sequence[Stage],
    settings: HealthConfig | None = None,
    samples: str = "samples.jsonl",
  ):
    """Watches from the first step on.

    Args:
      stages: The phases of the run; see `stages_of`.
      settings: Consequences of alarms; None: warnings.
      samples: File in which a person can look at completions.
    """
    self.alarms: list[rules.Alarm] = []
    self.halted: rules.Alarm | None = None
    self._settings = settings or HealthConfig()
    self._stages = tuple(stages)
    self._samples = samples
    self._enter(0)

  def _enter(self, index: int) -> None:
    """Clears the history, for the phase `index`."""
    self._index = index
    self._history = History(self._stages[index])
    self._in_a_row: dict[str, int] = {}
    self._warned: set[str] = set()

  def step(self, step: int, metrics: Mapping[str, Any]) -> list[rules.Alarm]:
    """Looks at the metrics of a step; returns the alarms that it has raised.

    Args:
      step: Step over all phases.
      metrics: Metrics of the step's line, without the alarms.
    """
    holds = self._look(step, metrics)
    alarms = [
      self._alarm(rule, holds[rule.name])
      for rule in rules.RULES
      if rule.name in holds and not self._settings.is_off(rule)
    ]
    for alarm in alarms:
      self._note(alarm)
      if self.halted is None and self._settings.halts(alarm.rule):
        self.halted = alarm
      if hosts.is_main():
        text = alarm.text().replace("samples.jsonl", self._samples)
        logging.warning("%s", text)
    return alarms

  def replay(self, lines: Iterable[Mapping[str, Any]], last: int) -> None:
    """Reads the lines up to the point where a run continues, without warnings.

    Args:
      last: Step of the checkpoint; lines of later steps are ignored.
    """
    for line in lines:
      metrics = of_step(line)
      if metrics is None or line["step"] > last:
        continue
      holds = self._look(line["step"], metrics)
      warned = [rule for rule in rules.RULES if rule.key in line]
      for rule in warned:
        self._note(self._alarm(rule, holds.get(rule.name, {})))
      if any(self._settings.halts(rule) for rule in warned):
        # A person who starts it again has seen the alarm: it may come again.
        self._enter(self._index)

  def failure(
    self, complaints: unscored.Complaints, last_step: int | None
  ) -> ValueError | HealthHalt | None:
    """The exception for a run that a rule has stopped early, or None.

    Args:
      complaints: Messages of verifiers, which explain rows without a score.
      last_step: The step of its last checkpoint; None if there is no
        checkpoint. Steps that canaries have not looked at are not saved.
    """
    if self.halted is None:
      return None
    rule = self.halted.rule
    last = "No checkpoint has been saved yet."
    if last_step is not None:
      last = f"The last checkpoint is of step {last_step}."
    if rule.name == rules.UNSCORED:
      share = self._history.stage.max_unscored
      reason = complaints.commonest()
      return ValueError(
        unscored.too_many(self.halted.numbers, share, reason, last)
      )
    if rule.name == rules.SHORT:
      return HealthHalt(
        f"{self.halted.text()} The run stops here because"
        f" config.{self.halted.phase}.when_short is 'error'. {last} Start again"
        " in another --workdir with other settings; or go on with the same"
        " command, which draws the next prompts."
      )
    return HealthHalt(
      f"{self.halted.text()} The run stops here because config.health.halt"
      f" names this rule. {last} Change what is wrong and start again in"
      " another --workdir; or continue with the same command and a"
      f" --config.health.halt without {rule.name!r}."
    )

  def _look(
    self, step: int, metrics: Mapping[str, Any]
  ) -> dict[str, dict[str, float]]:
    """Adds the metrics of a step to the history, and asks the rules.

    Returns:
      Rules that have not warned yet and whose patience has ended, with the
      numbers of this step.
    """
    while step > self._history.stage.last:
      self._enter(self._index + 1)
    history = self._history
    history.add(step, metrics)
    holds = {}
    for rule in rules.RULES:
      if history.num_steps % rule.every or rule.name in self._warned:
        continue
      numbers = rule.check(history)
      if numbers is None:
        self._in_a_row[rule.name] = 0
        continue
      self._in_a_row[rule.name] = self._in_a_row.get(rule.name, 0) + 1
      if self._in_a_row[rule.name] >= rule.patience:
        holds[rule.name] = numbers
    return holds

  def _alarm(self, rule: rules.Rule, numbers: dict[str, float]) -> rules.Alarm:
    return rules.Alarm(
      self._history.step, self._history.stage.name, rule, numbers
    )

  def _note(self, alarm: rules.Alarm) -> None:
    self.alarms.append(alarm)
    self._warned.add(alarm.rule.name)
