"""Settings of a guard between a policy and the tools of an environment."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from grpo_jax import ranges
from grpo_jax.rewards import functions as functions_lib
from grpo_jax.rewards.agents import call_rules, interceptor
from grpo_jax.rewards.workers import judge_service

SERVICE = "service"
_BAD = 0.5  # Worth of a verdict from which on a call is bad.
_PENALTY = ranges.Range(0.0, 1e6)


@dataclasses.dataclass(frozen=True)
class InterceptorConfig:
  """Which calls of an environment on the host are not executed.

  Attributes:
    rules: Sets of `rewards/agents/call_rules.py`: "shell", "files", "network",
      "tests", "golds"; or rules of yours, (call) -> bool, as
      "package.module:function". A call that one of them flags is judged. Empty:
      there is no interceptor.
    call: Regular expression of a call in an action, as
      "(?s)<tool_call>(.*?)</tool_call>": what its group matches is looked at.
      Empty: the whole action is.
    judge: Whether a flagged call is bad. Empty: all of them are. "service": a
      model over HTTP says so, by config.judge, whose rubric gets the call as
      {completion} and the last 4096 characters before it as {prompt}; a verdict
      worth 0.5 or more means bad. Otherwise a function (call, context) -> bool,
      as "package.module:function".
    dummy: What the policy reads after a blocked call: one text, or three
      (before, text, after) as the observations of a chat.
    abort: Whether a block ends the episode instead.
    penalty: λ >= 0, taken from the reward of a blocked call.
  """

  rules: tuple[str, ...] = ()
  call: str = ""
  judge: str = ""
  dummy: tuple[str, ...] = ("information not available",)
  abort: bool = False
  penalty: float = 0.0

  def __post_init__(self):
    ranges.check(self, "config.interceptor", penalty=_PENALTY)
    if len(self.dummy) not in (1, 3):
      raise ValueError(
        f"config.interceptor.dummy={self.dummy} are {len(self.dummy)} texts;"
        " give one, or three: before the text, the text, after it."
      )
    try:
      found = re.compile(self.call)
    except re.error as error:
      raise ValueError(
        f"config.interceptor.call={self.call!r} is no regular expression:"
        f" {error}."
      ) from None
    if found.groups > 1:
      raise ValueError(
        f"config.interceptor.call={self.call!r} has {found.groups} groups, and"
        " one can be the call; write (?:…) for the others."
      )
    for name in self.rules:
      if name not in call_rules.RULES and ":" not in name:
        raise ValueError(
          f"config.interceptor.rules has {name!r}; choose of"
          f" {', '.join(call_rules.RULES)}, or give 'package.module:function'."
        )

  @property
  def asks_service(self) -> bool:
    """Whether the judge is a model over HTTP."""
    return self.judge == SERVICE

  @property
  def in_vain(self) -> list[str]:
    """Names of what was set although there are no rules."""
    if self.rules:
      return []
    return [
      field.name
      for field in dataclasses.fields(self)
      if getattr(self, field.name) != field.default
    ]

  @property
  def observation(self) -> interceptor.Observation:
    """What the policy reads after a blocked call."""
    if len(self.dummy) == 3:
      return self.dummy[0], self.dummy[1], self.dummy[2]
    return self.dummy[0]

  def make(
    self, service: judge_service.JudgeService | None, timeout_s: float
  ) -> interceptor.Interceptor:
    """The interceptor that is meant.

    Args:
      service: Who is asked if `asks_service`.
      timeout_s: For the verdicts on all calls of a turn.

    Raises:
      ValueError: A rule or the judge cannot be imported.
    """
    judge: interceptor.Judge | None = None
    if self.asks_service:
      assert service is not None
      judge = _by_service(service, timeout_s)
    elif self.judge:
      judge = _one_by_one(
        functions_lib.load(self.judge, "judge of config.interceptor", {})
      )
    return interceptor.Interceptor(
      tuple(map(rule, self.rules)),
      judge,
      self.observation,
      self.abort,
      self.penalty,
      re.compile(self.call) if self.call else None,
    )


def rule(name: str) -> call_rules.Rule:
  """A set of rules by its name, or somebody's own by its import path.

  Raises:
    ValueError: There is none.
  """
  if name in call_rules.RULES:
    return call_rules.RULES[name]
  return functions_lib.load(name, "rule of config.interceptor", {})


def _one_by_one(function: Any) -> interceptor.Judge:
  def judge(calls: Sequence[str], contexts: Sequence[str]) -> list[bool | None]:
    return [bool(function(*both)) for both in zip(calls, contexts, strict=True)]

  return judge


def _by_service(
  service: judge_service.JudgeService, timeout_s: float
) -> interceptor.Judge:
  def judge(calls: Sequence[str], contexts: Sequence[str]) -> list[bool | None]:
    no_fields: list[dict[str, Any]] = [{} for _ in calls]
    said = service.score("interceptor", contexts, calls, no_fields, timeout_s)
    (worth,) = said.components.values()
    return [
      None if failed else bool(value >= _BAD)
      for value, failed in zip(worth, said.failed, strict=True)
    ]

  return judge
