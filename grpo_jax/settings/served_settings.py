"""Settings of environments that ask the policy over HTTP."""

from __future__ import annotations

import dataclasses
from typing import Any

from grpo_jax import ranges
from grpo_jax.rewards.agents import call_formats
from grpo_jax.rewards.workers import verifiers_process
from grpo_jax.settings import settings

SOURCE = "environment"  # Of prompts: the environment has its own.
PREFIX = verifiers_process.PREFIX
# What the environment itself decides.
_ITS_OWN = ("max_turns", "max_observation_len", "action_ends")


def is_served(environment: str) -> bool:
  """Whether an environment of this name asks over HTTP."""
  return environment.startswith(PREFIX)


@dataclasses.dataclass(frozen=True)
class ServedConfig:
  """How an environment of the package `verifiers` is run.

  It is named by data.environment="verifiers:module", and its arguments are
  environment.options.

  Attributes:
    calls: How the policy writes calls of tools, a name of
      `rewards/agents/call_formats.py`; empty: calls are text.
    python: Interpreter with the package, of a virtual environment of its own
      if its versions do not go with those here; empty: this one.
    num_rows: Requests that are answered at a time, at most; None: as many as
      there are completions in a step.
    pause_s: Requests that come within so many seconds of each other are
      answered together.
  """

  calls: str = ""
  python: str = ""
  num_rows: int | None = None
  pause_s: float = 0.005

  def __post_init__(self):
    ranges.check(
      self,
      "config.served",
      num_rows=ranges.ROWS,
      pause_s=ranges.Range(1e-4, 60.0),
    )
    if self.calls:
      settings.one_of("served.calls", self.calls, tuple(call_formats.FORMATS))

  def check(self, data: Any, environment: Any, interceptor: Any) -> None:
    """Raises ValueError for settings that nobody would read.

    Args:
      data, environment, interceptor: Sections of the same config.
    """
    named = is_served(data.environment)
    if named and data.source != SOURCE:
      raise ValueError(
        f"config.data.source={data.source!r} and"
        f" config.data.environment={data.environment!r}: an environment of the"
        f" package verifiers has prompts of its own; set the source to"
        f" {SOURCE!r}."
      )
    usual = ServedConfig()
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not named and value != getattr(usual, field.name):
        raise ValueError(
          f"config.served.{field.name}={value!r}, and config.data.environment"
          f" is not '{PREFIX}MODULE': nobody asks over HTTP. Leave"
          " config.served as it is."
        )
    if not named:
      return
    for name in _ITS_OWN:
      if value := getattr(environment, name):
        raise ValueError(
          f"config.environment.{name}={value!r}: the environment"
          f" {data.environment!r} decides that by itself; set what it takes in"
          " config.environment.options."
        )
    if environment.compaction.compacts:
      raise ValueError(
        "config.environment.compaction.context_len="
        f"{environment.compaction.context_len}: the messages of"
        f" {data.environment!r} are its own, and none of them can be replaced;"
        " leave it out, or use an environment of sessions."
      )
    if interceptor.rules:
      raise ValueError(
        f"config.interceptor.rules={interceptor.rules}: calls are executed by"
        f" {data.environment!r}, in its process, and nothing stands between;"
        " leave the rules empty."
      )
