"""Arms of the experiments, and the config of every arm.

    python -m experiments.sweeps.run --launcher=vmap --root=runs/E2/joint \
        --config=experiments/long_horizon/config.py:E2,smoke,joint

An arm is a sweep of its own; its cells are its seeds and the values of the
varied setting. All arms of an experiment draw the same number of rollouts of
the same task to train the policy: 128 a step, of 16 prompts in groups, or of
128 prompts with a critic. Pre-training of a critic draws 20 batches more.
Profile `full` has the sizes of the claim. Profile `smoke` is the same
comparison on shorter chains, with fewer steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections

from grpo_jax.settings import config as config_lib
from grpo_jax.training.runtime import log

PROFILES = ("smoke", "full")
WARM_START = "warm-start"  # In the place of an arm.
NUM_SEEDS = 5
VERSION = 1  # Raise it when a default, or training, changes what comes out.
Settings = Mapping[str, Any]  # By dotted name.


@dataclasses.dataclass(frozen=True)
class Arm:
  """Arm of the comparison.

  Attributes:
    name: Name in tables.
    algorithm: Name of its algorithm.
    text: Description of the arm.
    settings: Settings of its own.
    profiles: Profiles in which it is part of the comparison.
  """

  name: str
  algorithm: str
  text: str
  settings: Settings = dataclasses.field(default_factory=dict)
  profiles: tuple[str, ...] = PROFILES


@dataclasses.dataclass(frozen=True)
class Experiment:
  """Arms and settings of an experiment.

  Attributes:
    title: Title in a few words.
    base: Module of `configs` with `get_config(algorithm)`.
    arms: The arms of the comparison.
    settings: Settings of all arms, by profile.
    varied: Name of a setting that each arm is run with several values of, or
      "".
    values: Values of this setting, by profile.
    follow: Function from a value to its settings, the varied one among them.
    metrics: Metrics that are reported at the end of a run: label -> name. The
      first one is the score.
    shares_start: Whether all runs start with one policy, which is warmed up
      once (`WARM_START`, with seed 0). This is for warm starts that take
      longer than the rest. Seeds are then those of problems, draws and critics.
    curve: Metric that is drawn over the steps: label and name.
    limits: Questions that the numbers leave open, by profile.
    cost: Minutes that the arms of `full` take one after another, each on a
      core of its own, as measured.
  """

  title: str
  base: str
  arms: tuple[Arm, ...]
  settings: Mapping[str, Settings]
  metrics: Mapping[str, str]
  varied: str = ""
  values: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
  follow: Callable[[Any], Settings] = lambda value: {}
  shares_start: bool = False
  curve: tuple[str, str] = ("training accuracy", "accuracy")
  limits: Mapping[str, str] = dataclasses.field(default_factory=dict)
  cost: int = 0

  def chosen(self, profile: str) -> list[Arm]:
    """The arms of a profile."""
    return [arm for arm in self.arms if profile in arm.profiles]

  def arm(self, name: str) -> Arm:
    """Returns the arm of a name; raises ValueError if there is none."""
    if name == WARM_START and self.shares_start:
      return dataclasses.replace(self.arms[0], name=name, settings={})
    for arm in self.arms:
      if arm.name == name:
        return arm
    known = ", ".join(arm.name for arm in self.arms)
    raise ValueError(f"arms: no arm {name!r}; choose one of {known}.")


_SCORE = {"accuracy": "eval/accuracy"}
# Enough for a chain of letters, and fast on two cores.
_SMALL = {
  "model.width": 32,
  "model.mlp_width": 96,
  "model.num_heads": 2,
  "model.num_kv_heads": 1,
}
_MIDDLE = {
  "model.width": 64,
  "model.mlp_width": 192,
  "model.num_heads": 2,
  "model.num_kv_heads": 1,
}


def _steps(sft: int, rl: int) -> Settings:
  return {
    "sft.steps": sft,
    "rl.steps": rl,
    "eval.every": rl,
    "eval.num_prompts": 512,
    "eval.batch_size": 512,
    "checkpoint.every": rl,
    "log.tensorboard": False,
    "log.samples_every": 0,
  }


def _chain(num_steps: int, every: int, keep_turns: int = 2) -> Settings:
  return {
    "data.task_options.num_steps": num_steps,
    "data.task_options.every": every,
    "data.task_options.keep_turns": keep_turns,
  }


def _summaries(kind: str) -> Settings:
  return {"data.task_options.summaries": kind}


# A teacher that carries two facts in five, and guesses the others: after three
# summaries it is right in 0.53, and right summaries are reinforced soon enough.
_CARRIES = {"data.task_options.teacher_error": 0.6}
_CHAINS = {
  "smoke": {**_SMALL, **_CARRIES, **_steps(150, 100), **_chain(32, 8)},
  "full": {**_SMALL, **_CARRIES, **_steps(300, 150), **_chain(96, 24)},
}
_JOINT = Arm(
  "joint", "compaction_rl", "CompactionRL: all tokens of all contexts"
)
_LEAK = {
  **_MIDDLE,
  "data.task_options.leak": True,
  "data.task_options.teacher_leak": 0.1,
}


def _guard(kind: str, text: str) -> Arm:
  settings = {"data.task_options.interceptor": kind}
  return Arm(kind, "grpo", text, settings)


EXPERIMENTS = {
  "E2": Experiment(
    title="Compaction must be trained jointly",
    base="memchain_ppo",
    arms=(
      _JOINT,
      Arm(
        "frozen",
        "compaction_rl",
        "summaries are written and not trained",
        _summaries("frozen"),
      ),
      Arm(
        "dropped",
        "compaction_rl",
        "no summary: the context is cut",
        _summaries("dropped"),
        ("full",),
      ),
      Arm("grpo", "grpo", "GRPO over rollouts, 16 groups of 8"),
    ),
    settings=_CHAINS,
    metrics=_SCORE,
    cost=90,
  ),
  "E3": Experiment(
    title="Token-level loss and cross-segment discount",
    base="memchain_ppo",
    arms=(
      _JOINT,
      Arm(
        "without-token-loss",
        "compaction_rl",
        "every context weighs as much",
        {"algorithm.weight": "context"},
      ),
      Arm(
        "without-discount",
        "compaction_rl",
        "no discount over later contexts",
        {"algorithm.boundary": "outcome"},
      ),
    ),
    settings=_CHAINS,
    metrics=_SCORE,
    cost=65,
  ),
  "E4": Experiment(
    title="PPO and GRPO by horizon",
    base="memchain_ppo",
    arms=(
      Arm("ppo", "ppo", "128 prompts, one rollout each, a critic"),
      Arm("grpo", "grpo", "16 prompts, eight rollouts each"),
    ),
    settings={
      "smoke": {**_SMALL, **_CARRIES, **_steps(150, 80)},
      "full": {**_SMALL, **_CARRIES, **_steps(300, 150)},
    },
    metrics=_SCORE,
    varied="data.task_options.num_steps",
    values={"smoke": (8, 16, 32), "full": (8, 16, 32, 64, 96)},
    # Three compactions at each: as many words decide, among more and more.
    follow=lambda steps: _chain(steps, steps // 4, 1),
    limits={
      "full": (
        "The trend orders gaps of at most 0.012 between arms that are both"
        " right 93 to 98 times in a hundred: the effect is weak."
      )
    },
    cost=65,
  ),
  "E12": Experiment(
    title="An interceptor against a leak",
    base="calc_tool_grpo",
    arms=(
      _guard("none", "no guard"),
      _guard("abort", "rule and judge; a block ends the episode"),
      _guard("rules", "the rule alone: comments are blocked too"),
      _guard("two_stage", "rule and judge; a dummy observation"),
      _guard("penalty", "rule and judge; a block costs 0.5"),
    ),
    settings={
      "smoke": {**_LEAK, **_steps(400, 80)},
      "full": {**_LEAK, **_steps(400, 150)},
    },
    metrics={
      "accuracy without the leak": "eval/accuracy",
      "training accuracy": "accuracy",
      "hacked": "reward/hacked",
      "comments": "reward/comments",
    },
    shares_start=True,
    curve=("hacked", "reward/hacked"),
    limits=dict.fromkeys(
      PROFILES,
      "Comments are about 0 in every arm, so that nothing here tells two stages"
      " from the rule alone.",
    ),
    cost=40,
  ),
  "E14": Experiment(
    title="Credit by state in several turns",
    base="grid",
    arms=(
      Arm("gagpo", "gagpo", "grouped state values, λ = 0.9"),
      Arm("gigpo", "gigpo", "outcome and step groups"),
      Arm("grpo", "grpo", "the outcome of the episode"),
      Arm("ppo", "ppo", "a critic, one rollout of each room"),
      *(
        Arm(
          f"gagpo-lam-{lam:g}",
          "gagpo",
          f"λ = {lam:g}",
          {"algorithm.lam": lam},
          ("full",),
        )
        for lam in (0.0, 0.5, 1.0)
      ),
    ),
    settings={
      "smoke": {**_MIDDLE, **_steps(600, 60)},
      "full": {**_MIDDLE, **_steps(600, 200)},
    },
    shares_start=True,
    metrics={**_SCORE, "key": "eval/reward/key"},
    cost=185,
  ),
}


def get_config(variant: str) -> ml_collections.ConfigDict:
  """The config of EXPERIMENT,PROFILE,ARM.

  Raises:
    ValueError: The arm does not exist.
  """
  experiment, profile, arm = _parse(variant)
  base = importlib.import_module(f"grpo_jax.configs.{experiment.base}")
  config = base.get_config(arm.algorithm)
  if arm.name == WARM_START:
    config.phases = ("sft",)
  elif experiment.shares_start:
    config.phases = tuple(name for name in config.phases if name != "sft")
  settings = {**experiment.settings[profile], **arm.settings}
  if profile in experiment.values:
    settings |= experiment.follow(experiment.values[profile][0])
  for name, value in settings.items():
    group, _, last = name.rpartition(".")
    holder = config
    for part in group.split("."):
      holder = holder[part]
    holder[last] = value
  return config


def sweep(add: Callable[..., None], variant: str) -> None:
  """The cells of EXPERIMENT,PROFILE,ARM."""
  experiment, profile, _ = _parse(variant)
  for value in experiment.values.get(profile, (None,)):
    settings = {} if value is None else dict(experiment.follow(value))
    for seed in range(NUM_SEEDS):
      add(**settings, seed=seed)


def warm_start(variant: str) -> str | None:
  """Variant that warms up the start of this one, if the start is shared."""
  experiment, profile, _ = _parse(variant)
  name = variant.split(",")[0]
  return f"{name},{profile},{WARM_START}" if experiment.shares_start else None


def key(variant: str) -> str:
  """Eight hexadecimal digits of the settings of an arm other than defaults."""
  experiment, profile, arm = _parse(variant)
  config = log.flatten(json.loads(get_config(variant).to_json()))
  usual = config_lib.default_config(arm.algorithm)
  default = log.flatten(json.loads(usual.to_json()))
  settings = [
    VERSION,
    {k: v for k, v in config.items() if default.get(k) != v},
    arm.algorithm,
    list(experiment.values.get(profile, ())),
    NUM_SEEDS,
  ]
  text = json.dumps(settings, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def _parse(variant: str) -> tuple[Experiment, str, Arm]:
  parts = variant.split(",")
  if len(parts) != 3 or parts[0] not in EXPERIMENTS or parts[1] not in PROFILES:
    raise ValueError(
      f"arms: {variant!r}; needed is EXPERIMENT,PROFILE,ARM, one of"
      f" {', '.join(EXPERIMENTS)} and of {', '.join(PROFILES)}."
    )
  experiment = EXPERIMENTS[parts[0]]
  return experiment, parts[1], experiment.arm(parts[2])
