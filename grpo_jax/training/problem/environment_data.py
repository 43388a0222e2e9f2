"""Records of a run whose environment makes its own prompts."""

from __future__ import annotations

from typing import Any

from grpo_jax.data import environments
from grpo_jax.rewards.workers import session_worker
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import opening
from grpo_jax.types import HostEnvironment


def open_sources(
  config: config_lib.RunConfig, text: Any, environment: HostEnvironment
) -> opening.Opened:
  """What the environment shows first, and what a teacher plays in it.

  Args:
    config: Its data are those of the source "environment".
    text: The tokenizer.
    environment: As the config means it.

  Raises:
    ValueError: The factory cannot be imported, does not take the options, or
      makes no prompts.
  """
  factory = session_worker.load_factory(
    environment.path, config.environment.options
  )
  if not hasattr(factory, "problem"):
    raise ValueError(
      "config.data.source='environment': the environment"
      f" {environment.path!r} has no attribute `problem`, a function (seed,"
      " **options) -> (prompt, extras), which makes prompts; add one, or name"
      " another source of prompts."
    )
  train = environments.EnvironmentSource(factory.problem, "train", config.seed)
  # Its own seed: held-out episodes differ between no two runs.
  held_out = environments.EnvironmentSource(factory.problem, "test", 0)
  lesson = getattr(factory, "lesson", None)
  if lesson is None:
    return opening.Opened(train, held_out, train)
  ends = list(environment.action_ends)
  played = environments.PlayedSource(
    train,
    lesson,
    text,
    # An action that says nothing of its end is ended by an end token.
    sorted(ends, key=lambda x: x not in text.end_ids),
    environment.max_turns,
    environment.max_observation_len,
  )
  return opening.Opened(train, held_out, played)
