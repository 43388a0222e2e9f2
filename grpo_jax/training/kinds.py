"""Kinds of phases: where batches come from, and which members a loss trains.

A config lists the names of its phases; each name is a section of the config
with a `kind` and settings of its own, so that stages may alternate freely:

    config.phases = ("sft", "rl", "sft2", "rl2")
    config.rl2 = phase_config("rl", steps=50)

| kind         | completions             | trains                            |
|--------------|-------------------------|-----------------------------------|
| `supervised` | come with the data      | the policy, by their likelihood   |
| `rl`         | are drawn and judged    | the policy, and a critic          |
| `value`      | are drawn and judged    | the critic alone, on returns      |
| `preference` | are drawn and judged    | a reward model, on pairs of them  |
| `pairs`      | come with the data, two | the policy, by the run's          |
|              | for each prompt         | algorithm, as `dpo`               |
| `comparison` | the same                | a reward model                    |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from grpo_jax import algorithms
from grpo_jax.types import Algorithm

Metrics = Mapping[str, float]


def _check_nothing(name: str, section: Any) -> None:
  """Any settings will do."""
  del name, section


def _show_loss(metrics: Metrics) -> dict[str, float]:
  return {"loss": metrics["loss"]} | _found(
    metrics, {"held-out": "eval/accuracy"}
  )


def _found(metrics: Metrics, names: Mapping[str, str]) -> dict[str, float]:
  """What the display calls it -> value, of those metrics that there are."""
  return {
    label: metrics[name] for label, name in names.items() if name in metrics
  }


@dataclasses.dataclass(frozen=True)
class Kind:
  """One row of the table above.

  Attributes:
    name: What a config calls it.
    num_given: Completions of each prompt that come with the data: 1, or 2 of
      which the first is preferred; 0 where they are drawn and judged.
    trains: Members that it may train, of "policy", "critic", "reward".
    objective: (the run's algorithm and its config) -> those of the phase.
    evaluates: Whether held-out prompts are completed before, during and after.
    shows: (metrics of a step) -> what the display has of them.
    check: (name of the section, its settings); raises ValueError.
  """

  name: str
  num_given: int
  trains: tuple[str, ...]
  objective: Callable[[Algorithm, Any], tuple[Algorithm, Any]]
  evaluates: bool = False
  shows: Callable[[Metrics], dict[str, float]] = _show_loss
  check: Callable[[str, Any], None] = _check_nothing

  @property
  def plays(self) -> bool:
    """Whether completions are drawn and judged, or come with the data."""
    return self.num_given == 0


def _likelihood(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  del algorithm, config
  found = algorithms.get_algorithm("sft")
  return found, found.config_class()


def _check_supervised(name: str, section: Any) -> None:
  _check_given(name, section, 1, "one")


def _check_given(name: str, section: Any, size: int, count: str) -> None:
  """Raises ValueError for settings of completions that are drawn."""
  for field, only, why in (
    ("staleness", 0, "are given, not drawn, and are never behind"),
    ("group_size", size, f"are given, {count} for each prompt"),
    ("max_rounds", 1, "are given, and no round draws others"),
  ):
    value = getattr(section, field)
    if value != only:
      raise ValueError(
        f"config.{name}.{field}={value}: the completions of a phase of the kind"
        f" {section.kind!r} {why}; set it to {only}."
      )


def _objective_of_run(
  algorithm: Algorithm, config: Any
) -> tuple[Algorithm, Any]:
  if algorithm.policy_loss is None:
    raise ValueError(
      f"algorithm {algorithm.name!r} trains no policy; name phases of the kind"
      " 'preference' only, or choose another algorithm."
    )
  return algorithm, config


def _show_rewards(metrics: Metrics) -> dict[str, float]:
  unscored = metrics.get("unscored", 0.0)
  return {
    "reward": metrics.get("drawn/reward", metrics["reward/mean"]),
    "accuracy": metrics.get("drawn/accuracy", metrics["accuracy"]),
    **({"unscored": unscored} if unscored else {}),
    **_found(
      metrics,
      {
        "held-out": "eval/accuracy",
        "length": "length/mean",
        "entropy": "entropy/mean",
      },
    ),
  }


def _pretraining(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  if algorithm.critic_loss is None or algorithm.policy_loss is None:
    raise ValueError(
      "a phase of the kind 'value' trains a critic, and algorithm"
      f" {algorithm.name!r} has none; leave the phase out of config.phases, or"
      " choose an algorithm with one, such as 'ppo'."
    )
  return algorithm, config.for_pretraining()


def _check_value(name: str, section: Any) -> None:
  _check_frozen_policy(name, section, "critic")


def _check_frozen_policy(name: str, section: Any, trained: str) -> None:
  """Raises ValueError for settings of a policy that is not trained."""
  if section.optimizer != type(section.optimizer)():
    raise ValueError(
      f"config.{name}.optimizer was set, but a phase of the kind"
      f" {section.kind!r} trains the {trained} alone, whose optimizer is"
      f" config.{trained}.optimizer; set that one."
    )
  if section.ema_decay is not None:
    raise ValueError(
      f"config.{name}.ema_decay={section.ema_decay}: the policy stays what it"
      f" is in a phase of the kind {section.kind!r}; set it to None."
    )


def _show_value(metrics: Metrics) -> dict[str, float]:
  explained = metrics.get("value/explained_variance")
  return {
    "value loss": metrics["value/loss"],
    **({} if explained is None else {"explained": explained}),
  }


def _pairs(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  if algorithm.policy_loss is None:
    return algorithm, config
  found = algorithms.get_algorithm("bradley_terry")
  return found, found.config_class()


def _check_preference(name: str, section: Any) -> None:
  _check_frozen_policy(name, section, "reward_model")


def _check_pairs(name: str, section: Any) -> None:
  _check_given(name, section, 2, "two")
  if section.num_minibatches > section.num_prompts:
    raise ValueError(
      f"config.{name}.num_minibatches={section.num_minibatches} would part the"
      f" pairs of {section.num_prompts} prompts; set it to that or less."
    )


def _of_pairs(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  compares_given = algorithm.couples_group and "old_logp" not in algorithm.needs
  if not compares_given or algorithm.policy_loss is None:
    raise ValueError(
      "a phase of the kind 'pairs' trains the policy on completions of which"
      f" one was preferred, and algorithm {algorithm.name!r} is for completions"
      " that it has drawn; choose 'dpo', or a phase of another kind."
    )
  return algorithm, config


def _check_comparison(name: str, section: Any) -> None:
  _check_pairs(name, section)
  _check_frozen_policy(name, section, "reward_model")


def _show_reward_model(metrics: Metrics) -> dict[str, float]:
  return {"reward model loss": metrics["reward_model/loss"]}


SUPERVISED = Kind(
  "supervised",
  num_given=1,
  trains=("policy",),
  objective=_likelihood,
  check=_check_supervised,
)
RL = Kind(
  "rl",
  num_given=0,
  trains=("policy", "critic"),
  objective=_objective_of_run,
  evaluates=True,
  shows=_show_rewards,
)
VALUE = Kind(
  "value",
  num_given=0,
  trains=("critic",),
  objective=_pretraining,
  shows=_show_value,
  check=_check_value,
)
PREFERENCE = Kind(
  "preference",
  num_given=0,
  trains=("reward",),
  objective=_pairs,
  shows=_show_reward_model,
  check=_check_preference,
)
PAIRS = Kind(
  "pairs",
  num_given=2,
  trains=("policy",),
  objective=_of_pairs,
  evaluates=True,
  check=_check_pairs,
)
COMPARISON = Kind(
  "comparison",
  num_given=2,
  trains=("reward",),
  objective=_pairs,
  shows=_show_reward_model,
  check=_check_comparison,
)

KINDS = {
  kind.name: kind
  for kind in (SUPERVISED, RL, VALUE, PREFERENCE, PAIRS, COMPARISON)
}
