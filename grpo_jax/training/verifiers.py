"""From the settings of rewards to the judges of a run."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_jax.rewards import derived, host
from grpo_jax.rewards import functions as functions_lib
from grpo_jax.training import config as config_lib
from grpo_jax.training import judges
from grpo_jax.training.reward_settings import REWARD_MODEL


def judge(
  config: config_lib.RunConfig,
  verifier: judges.InGraph | judges.OnHost | None,
  correct: str | None = None,
) -> judges.Sum:
  """The verdict of a run.

  Args:
    config: Of the run.
    verifier: Of completions alone; None for a problem that is played in
      sessions, before they are there.
    correct: The component that marks right answers; None: as the config says.
  """
  rewards = config.rewards
  found: list[Any] = [] if verifier is None else [verifier]
  if REWARD_MODEL in rewards.functions:
    found.append(judges.ByMember(REWARD_MODEL, "reward"))
  for name in rewards.names:
    if name in derived.DERIVED:
      options = rewards.arguments(name)
      derived.check_options(name, options)
      function = functools.partial(derived.DERIVED[name], **options)
      source = str(options.get("source", ""))
      found.append(judges.Derived(name, function, source))
  schedules: dict[str, Any] = {
    name: tuple(zip(*points, strict=True))
    for name, points in rewards.schedules.items()
  }
  return judges.Sum(
    tuple(found),
    dict(zip(rewards.names, rewards.weights, strict=True)),
    rewards.right if correct is None else correct,
    schedules,
    {name: tuple(domains) for name, domains in rewards.domains.items()},
  )


def on_host(
  config: config_lib.RunConfig, tokenizer: tuple[str, list, dict]
) -> judges.OnHost:
  """The config's functions of text, in processes of their own.

  Args:
    config: Of the run.
    tokenizer: How functions that ask for it make the tokenizer.
  """
  rewards = config.rewards
  functions = of_text(config)
  context = functions_lib.Context(
    tokenizer=tokenizer,
    answer_after=rewards.answer_after,
    sandbox=rewards.sandbox,
  )
  weights = dict(zip(rewards.names, rewards.weights, strict=True))
  return judges.OnHost(
    host.HostScorer(
      functions,
      {name: weights[name] for name in functions},
      row_timeout_s=rewards.row_timeout_s,
      step_timeout_s=rewards.step_timeout_s,
      num_workers=rewards.num_workers,
      variables=rewards.variables,
      options={name: rewards.arguments(name) for name in functions},
      steps=rewards.steps,
      context=context,
    )
  )


def of_text(config: config_lib.RunConfig) -> dict[str, str]:
  """The rewards that read text: name -> import path or built-in name.

  Raises:
    ValueError: There is none.
  """
  others = {REWARD_MODEL, *derived.DERIVED}
  names = zip(config.rewards.names, config.rewards.functions, strict=True)
  found = {name: path for name, path in names if path not in others}
  if not found:
    raise ValueError(
      f"config.rewards.functions={config.rewards.functions}: none of them reads"
      " what was written; add a verifier, with a weight of 0 if it is only to"
      f" say what is right: {', '.join(functions_lib.BUILTIN)}, or an import"
      " path."
    )
  return found


def check_names(
  who: str, config: config_lib.RunConfig, known: Sequence[str]
) -> None:
  """Raises KeyError if a reward is none of the components of a verifier."""
  others = {REWARD_MODEL, *derived.DERIVED}
  if unknown := {*config.rewards.functions} - {*known, *others}:
    raise KeyError(
      f"config.rewards.functions: {who} has no component {sorted(unknown)}; it"
      f" has {sorted(known)}. Made of these and of the tokens:"
      f" {sorted(derived.DERIVED)}."
    )


def plain_extras(record: Mapping[str, Any]) -> dict[str, Any]:
  """What verifiers and sessions are told, readable without NumPy."""
  extras = {**record["extras"], "answer": record["answer"]}
  return {
    name: value.tolist() if hasattr(value, "tolist") else value
    for name, value in extras.items()
  }
