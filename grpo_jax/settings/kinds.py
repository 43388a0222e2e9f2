"""Kinds of phases: sources of completions, and the models that they train.

A config lists the names of its phases. Each name is a section of the config
with a `kind` and the settings of that kind (`phase.py`), so that stages may
alternate freely:

    config.phases = ("sft", "rl", "sft2", "rl2")
    config.rl2 = phase_config("rl", steps=50)

| kind         | completions             | trains                            |
|--------------|-------------------------|-----------------------------------|
| `supervised` | come with the data      | the policy, by their likelihood   |
| `rl`         | are sampled and scored  | the policy, and a critic          |
| `value`      | are sampled and scored  | the critic alone, on returns      |
| `preference` | are sampled and scored  | a reward model, on pairs of them  |
| `process`    | are sampled and scored  | a process reward model, on steps  |
| `rejection`  | are sampled and scored  | nothing: right ones are kept in a |
|              |                         | file, which later phases imitate  |
| `pairs`      | come with the data, two | the policy, by the run's          |
|              | for each prompt         | algorithm, such as `dpo`          |
| `comparison` | the same                | a reward model                    |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from grpo_jax import algorithms

if TYPE_CHECKING:
  from grpo_jax.types import Algorithm

Metrics = Mapping[str, float]
OF_PAIRS = "bradley_terry"  # Loss of a reward model that learns from pairs.


def _show_loss(metrics: Metrics) -> dict[str, float]:
  return {"loss": metrics["loss"]} | _select(
    metrics, {"held-out": "eval/accuracy"}
  )


def _select(metrics: Metrics, names: Mapping[str, str]) -> dict[str, float]:
  """Values of the existing metrics, by their labels on the display."""
  return {
    label: metrics[name] for label, name in names.items() if name in metrics
  }


@dataclasses.dataclass(frozen=True)
class PhaseKind:
  """A kind of phase, a row of the table in the module's docstring.

  Attributes:
    name: Name of the kind in a config.
    num_given: Completions of each prompt that come with the data: 1, or 2 of
      which the first is preferred; 0 if completions are sampled and scored.
    trains: Models that it may train, of "policy", "critic", "reward"; a kind
      without any keeps completions (`rejection.py`).
    objective: (algorithm of the run, its config) -> algorithm and config of the
      phase.
    evaluates: Whether there are evaluations before, during and after the phase.
    shows: (metrics of a step) -> values for the display, by label.
  """

  name: str
  num_given: int
  trains: tuple[str, ...]
  objective: Callable[[Algorithm, Any], tuple[Algorithm, Any]]
  evaluates: bool = False
  shows: Callable[[Metrics], dict[str, float]] = _show_loss

  @property
  def samples(self) -> bool:
    """True if completions are sampled; False if they come with the data."""
    return self.num_given == 0

  @property
  def learns_from_drawn(self) -> bool:
    """True if a reward model learns from sampled completions."""
    return self.samples and "reward" in self.trains

  @property
  def measures(self) -> bool:
    """True if a reward model is evaluated on held-out pairs or steps."""
    return "reward" in self.trains


def _likelihood(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  del algorithm, config
  entry = algorithms.get_algorithm("sft")
  return entry, entry.config_class()


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
  accuracy = metrics.get("drawn/accuracy", metrics["accuracy"])
  return {
    "reward": metrics.get("drawn/reward", metrics["reward/mean"]),
    # Accuracy of the policy's own completions, before any correction.
    "accuracy": metrics.get("correction/draft_accuracy", accuracy),
    **({"unscored": unscored} if unscored else {}),
    **_select(
      metrics,
      {
        "held-out": "eval/accuracy",
        "length": "length/mean",
        "entropy": "entropy/mean",
      },
    ),
  }


def _pretraining(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  if not algorithm.has_critic:
    raise ValueError(
      "a phase of the kind 'value' trains a critic, and algorithm"
      f" {algorithm.name!r} has none; leave the phase out of config.phases, or"
      " choose an algorithm with one, such as 'ppo'."
    )
  return algorithm, config.for_pretraining()


def _show_value(metrics: Metrics) -> dict[str, float]:
  explained = metrics.get("value/explained_variance")
  return {
    "value loss": metrics["value/loss"],
    **({} if explained is None else {"explained": explained}),
  }


def _pairs(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  if algorithm.policy_loss is None:
    return algorithm, config
  entry = algorithms.get_algorithm(OF_PAIRS)
  return entry, entry.config_class()


def _process(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  del algorithm, config
  from grpo_jax.algorithms import process_reward

  entry = process_reward.PROCESS_REWARD
  return entry, entry.config_class()


def _show_kept(metrics: Metrics) -> dict[str, float]:
  return {
    "kept": metrics["kept/completions"],
    "prompts": metrics["kept/prompts"],
    "accuracy": metrics["accuracy"],
  }


def _of_pairs(algorithm: Algorithm, config: Any) -> tuple[Algorithm, Any]:
  compares_given = algorithm.couples_group and "old_logp" not in algorithm.needs
  if not compares_given or algorithm.policy_loss is None:
    raise ValueError(
      "a phase of the kind 'pairs' trains the policy on completions of which"
      f" one was preferred, and algorithm {algorithm.name!r} is for completions"
      " that it has drawn; choose 'dpo', or a phase of another kind."
    )
  return algorithm, config


def _show_reward_model(metrics: Metrics) -> dict[str, float]:
  return {"reward model loss": metrics["reward_model/loss"]} | _select(
    metrics,
    {
      "ranked right": "reward_model/accuracy",
      "held-out": "eval/reward_model/accuracy",
    },
  )


SUPERVISED = PhaseKind("supervised", 1, ("policy",), _likelihood)
RL = PhaseKind(
  "rl",
  num_given=0,
  trains=("policy", "critic"),
  objective=_objective_of_run,
  evaluates=True,
  shows=_show_rewards,
)
VALUE = PhaseKind("value", 0, ("critic",), _pretraining, shows=_show_value)
PREFERENCE = PhaseKind(
  "preference", 0, ("reward",), _pairs, shows=_show_reward_model
)
REJECTION = PhaseKind("rejection", 0, (), _likelihood, shows=_show_kept)
PROCESS = PhaseKind(
  "process", 0, ("reward",), _process, shows=_show_reward_model
)
PAIRS = PhaseKind("pairs", 2, ("policy",), _of_pairs, evaluates=True)
COMPARISON = PhaseKind(
  "comparison", 2, ("reward",), _pairs, shows=_show_reward_model
)

KINDS = {
  kind.name: kind
  for kind in (
    *(SUPERVISED, RL, VALUE, PREFERENCE, PROCESS, REJECTION),
    *(PAIRS, COMPARISON),
  )
}
