"""The sessions of an environment on the host, behind an interceptor."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from grpo_jax.rewards import registry
from grpo_jax.rewards.agents import interceptor as interceptor_lib
from grpo_jax.rewards.workers import judge_service
from grpo_jax.rewards.workers import sessions as sessions_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import environment as environment_lib
from grpo_jax.training.problem import rewards as rewards_lib

_BAD = 0.5  # Smallest value of a verdict that marks a call as bad.


def with_sessions(
  config: config_lib.RunConfig, problem: Any, starts: bool = True
) -> Any:
  """Adds the config's environment on the host to a problem.

  It replaces an environment of the problem, and takes over its sizes of turns
  if the config does not set others.

  Args:
    problem: A `Problem`: prompts and rewards.
    starts: True if the sessions of the environment are started.

  Raises:
    KeyError: A reward is not among the scores of its sessions.
    ValueError: A size or token is missing, or there is no such environment.
  """
  environment = environment_lib.environment(
    config, problem.tokenizer, problem.environment
  )
  compaction = environment_lib.compaction(
    *(config, problem.tokenizer, environment),
    *(problem.max_prompt_len, problem.max_new_tokens),
    of_task=problem.compaction,
  )
  base = dataclasses.replace(
    problem,
    environment=None,
    host_environment=environment,
    compaction=compaction,
    reward=rewards_lib.make(
      config,
      rewards_lib.InGraph(rewards_lib.of_episodes),
      config.rewards.correct or "accuracy",
      problem.domains,
    ),
    provides=(problem.provides | {"turns", "state_id"}) - {"step_rewards"},
  )
  if not starts:  # The names that the sessions would report.
    scores = {*config.rewards.names, config.rewards.correct or "accuracy"}
    return dataclasses.replace(base, score_names=frozenset(scores - {"return"}))
  rewards = config.rewards
  # Errors are raised here, before a process exists.
  guard, service = interceptor(config)
  if service is not None:
    service.check("", "ls", {})  # Else it might block all calls.
  sessions = sessions_lib.HostSessions(
    environment.path,
    row_timeout_s=rewards.row_timeout_s,
    step_timeout_s=rewards.step_timeout_s,
    num_workers=rewards.num_workers,
    variables=rewards.variables,
    options=config.environment.options,
    concurrency=config.environment.concurrency,
  )
  workers: sessions_lib.Sessions = sessions
  if guard.rules:
    close = [] if service is None else [service.close]
    workers = sessions_lib.GuardedSessions(sessions, guard, *close)
  try:
    first = problem.train[0]
    (prompt,) = problem.prompt_texts([first])
    names = workers.score_names(prompt, rewards_lib.plain_extras(first))
    components = sorted({*names, "return"})
    rewards_lib.check_names(
      f"the environment {environment.path!r}", config, components
    )
  except BaseException:
    workers.close()
    raise
  return dataclasses.replace(
    base,
    sessions=workers,
    score_names=frozenset(names),
    components=frozenset(components),
  )


def interceptor(
  config: config_lib.RunConfig,
) -> tuple[interceptor_lib.Interceptor, judge_service.JudgeService | None]:
  """Makes the interceptor of a config, and the model over HTTP that it asks.

  Without rules it blocks nothing. The model is None if no rule asks one.

  Raises:
    ValueError: A rule or its judge cannot be imported.
  """
  settings = config.interceptor
  service: judge_service.JudgeService | None = None
  judge: interceptor_lib.Judge | None = None
  if settings.asks_service:
    service = rewards_lib.service(config)
    judge = _by_service(service, config.rewards.step_timeout_s)
  elif settings.judge:
    judge = _one_by_one(
      registry.load(settings.judge, "judge of config.interceptor", {})
    )
  guard = interceptor_lib.Interceptor(
    tuple(map(rule, settings.rules)),
    judge,
    settings.observation,
    settings.abort,
    settings.penalty,
    re.compile(settings.call) if settings.call else None,
  )
  return guard, service


def rule(name: str) -> interceptor_lib.Rule:
  """Finds a set of rules by its name, or a user's rule by its import path.

  Raises:
    ValueError: There is no such rule.
  """
  if name in interceptor_lib.RULES:
    return interceptor_lib.RULES[name]
  return registry.load(name, "rule of config.interceptor", {})


def _one_by_one(function: Any) -> interceptor_lib.Judge:
  def judge(calls: Sequence[str], contexts: Sequence[str]) -> list[bool | None]:
    return [bool(function(*pair)) for pair in zip(calls, contexts, strict=True)]

  return judge


def _by_service(
  service: judge_service.JudgeService, timeout_s: float
) -> interceptor_lib.Judge:
  def judge(calls: Sequence[str], contexts: Sequence[str]) -> list[bool | None]:
    no_fields: list[dict[str, Any]] = [{} for _ in calls]
    scores = service.score("interceptor", contexts, calls, no_fields, timeout_s)
    (values,) = scores.components.values()
    return [
      None if failed else bool(value >= _BAD)
      for value, failed in zip(values, scores.failed, strict=True)
    ]

  return judge
