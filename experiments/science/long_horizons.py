"""Long episodes: when a group is enough, and when a critic comes back.

Settings and thresholds were chosen after trial runs of single arms, and before
arms were compared. The rules look at one number per seed, at the end of
training. Arms are compared seed by seed, because a seed means the same
problems: the mean of the differences has Student's 95 % interval, which of five
seeds is approximate. A claim is confirmed if all of its checks hold.

E2  Summaries must be trained with the rest: `chain-joint` is above
    `chain-frozen` and above 0.8, and `chain-frozen` is below 0.6; guessing is
    right in 0.5.
E3  Token-level loss and cross-segment discount matter: `chain-joint` is above
    both ablations. Contexts of MEMCHAIN are about equally long, so that tokens
    and contexts weigh nearly the same: a task of unequal ones would tell more.
E4  The gap between PPO and GRPO grows with the horizon: Spearman's correlation
    of horizon and gap, of each seed, is above 0 on average.
E12 A guard closes a leak, and a dummy observation is better than the end of the
    episode: `leak-none` hacks more than `leak-two_stage`, whose accuracy
    without the leak is above that of `leak-none` and of `leak-abort`.
E14 Credit by state is better in several turns: `grid-gagpo` is above
    `grid-grpo`.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np
import scipy  # It imports its parts when they are read: stats takes 2 s.

from experiments.science import arms, pages
from experiments.science.arms import Arm
from experiments.science.claims import Rule, difference, rule, table
from experiments.sweeps import cells, statistics
from grpo_jax.training.monitor import style


class Size(NamedTuple):
  """Amounts of computation."""

  num_seeds: int  # Number of seeds of each arm.
  # Steps of imitation and of reinforcement, by the kind of the arms.
  steps: Mapping[str, tuple[int, int]]
  chain: int  # Steps of a chain of the arms `chain-…`; a fourth is a context.


def _sizes(width: int) -> dict[str, Any]:
  return {
    "model.width": width,
    "model.mlp_width": 3 * width,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
  }


# A teacher that carries two facts in five, and guesses the others: after three
# summaries it is right in 0.53, and right summaries are reinforced soon enough.
_CHAIN = {**_sizes(32), "data.task_options.teacher_error": 0.6}
# Kind, which the name of an arm begins with -> module of configs, settings.
KINDS = {
  "chain": ("memchain_ppo", _CHAIN),
  "horizon": ("memchain_ppo", _CHAIN | {"data.task_options.keep_turns": 1}),
  "leak": (
    "calc_tool_grpo",
    {
      **_sizes(64),
      "data.task_options.leak": True,
      "data.task_options.teacher_leak": 0.1,
    },
  ),
  "grid": ("grid", _sizes(64)),
}
# Their arms go on from one policy, whose imitation takes longer than the rest.
STARTS = ("leak-start", "grid-start")
HORIZONS = (8, 16, 32, 64, 96)


def _summaries(kind: str, text: str) -> Arm:
  return Arm(text, "compaction_rl", {"data.task_options.summaries": kind})


def _guard(kind: str, text: str) -> Arm:
  return Arm(text, settings={"data.task_options.interceptor": kind})


ARMS = {
  "leak-start": Arm("imitates a teacher that uses the leak one time in ten"),
  "grid-start": Arm("imitates a teacher"),
  "chain-joint": Arm(
    "CompactionRL: all tokens of all contexts", "compaction_rl"
  ),
  "chain-frozen": _summaries("frozen", "summaries are written and not trained"),
  "chain-dropped": _summaries("dropped", "no summary: the context is cut"),
  "chain-grpo": Arm("GRPO over rollouts, 16 groups of 8"),
  "chain-without-token-loss": Arm(
    "every context weighs as much",
    *("compaction_rl", {"algorithm.weight": "context"}),
  ),
  "chain-without-discount": Arm(
    "no discount over later contexts",
    *("compaction_rl", {"algorithm.boundary": "outcome"}),
  ),
  # Three compactions at each: as many words decide, among more and more.
  **{
    f"horizon-{name}-{steps}": Arm(
      f"{text}, chains of {steps} steps",
      name,
      {
        "data.task_options.num_steps": steps,
        "data.task_options.every": steps // 4,
      },
    )
    for name, text in (
      ("ppo", "128 prompts, one rollout each, a critic"),
      ("grpo", "16 prompts, eight rollouts each"),
    )
    for steps in HORIZONS
  },
  "leak-none": _guard("none", "no guard"),
  "leak-abort": _guard("abort", "rule and judge; a block ends the episode"),
  "leak-rules": _guard("rules", "the rule alone: comments are blocked too"),
  "leak-two_stage": _guard("two_stage", "rule and judge; a dummy observation"),
  "leak-penalty": _guard("penalty", "rule and judge; a block costs 0.5"),
  "grid-gagpo": Arm("grouped state values, λ = 0.9", "gagpo"),
  "grid-gigpo": Arm("outcome and step groups", "gigpo"),
  "grid-grpo": Arm("the outcome of the episode", "grpo"),
  "grid-ppo": Arm("a critic, one rollout of each room", "ppo"),
  **{
    f"grid-gagpo-lam-{lam:g}": Arm(
      f"λ = {lam:g}", "gagpo", {"algorithm.lam": lam}
    )
    for lam in (0.0, 0.5, 1.0)
  },
}
_OF_CHAINS = (300, 150)
SIZES = {
  "full": Size(
    5,
    {
      **dict.fromkeys(("chain", "horizon"), _OF_CHAINS),
      **{"leak": (400, 150), "grid": (600, 200)},
    },
    96,
  ),
  "smoke": Size(
    5,
    {
      **{"chain": (150, 100), "horizon": (150, 80)},
      **{"leak": (400, 80), "grid": (600, 60)},
    },
    32,
  ),
}
ALL = arms.Arms(ARMS, SIZES, not_recorded=STARTS)
CHOSEN_FROM = tuple(name for name in ARMS if name not in STARTS)


def _kind(arm: str) -> str:
  return arm.partition("-")[0]


def _start(arm: str) -> str | None:
  """The arm whose policy an arm goes on from."""
  start = f"{_kind(arm)}-start"
  return start if start in STARTS and arm != start else None


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it follows on."""
  name, size = ALL.parsed(argument)
  kind = _kind(name)
  base, settings = KINDS[kind]
  module = importlib.import_module(f"grpo_jax.configs.{base}")
  config = module.get_config(ARMS[name].algorithm)
  if name in STARTS:
    config.phases = ("sft",)
  elif _start(name):
    config.phases = tuple(x for x in config.phases if x != "sft")
  if kind == "chain":
    config.data.task_options.num_steps = size.chain
    config.data.task_options.every = size.chain // 4
  config.sft.steps, config.rl.steps = size.steps[kind]
  config.eval.every = config.checkpoint.every = config.rl.steps
  config.eval.num_prompts = config.eval.batch_size = 512
  config.log.samples_every = 0
  return arms.changed(config, {**settings, **ARMS[name].settings})


def sweep(add: Any, argument: str) -> None:
  """Adds a cell for each seed; a start has seed 0 alone."""
  name, size = ALL.parsed(argument)
  for seed in range(1 if name in STARTS else size.num_seeds):
    add(seed=seed)


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Overrides that name the run that an arm goes on from."""
  start = _start(name)
  return [f"--config.start_workdir={root}/{start}/seed=0"] if start else []


def needed(chosen: list[str]) -> list[str]:
  """Adds the arms that these go on from."""
  starts = dict.fromkeys(_start(name) for name in chosen)
  return [*filter(None, starts), *chosen]


HACKED = "hacked"
_ACCURACY = {"accuracy": "eval/accuracy"}
# Kind of arm -> name here -> name of the metric.
METRICS = {
  "chain": _ACCURACY,
  "horizon": _ACCURACY,
  "leak": {
    **_ACCURACY,
    "training accuracy": "accuracy",
    HACKED: "reward/hacked",
    "comments": "reward/comments",
  },
  "grid": {**_ACCURACY, "key": "eval/reward/key"},
}


def collected(folder: pathlib.Path, size: Size) -> dict[str, Any] | None:
  """The metrics of each seed at the end; None while a run has not ended."""
  del size
  if not arms.has_ended(folder):
    return None
  metrics = METRICS[_kind(folder.name)]
  return {
    "seeds": [
      {
        name: cells.read_metric(folder / cell, metric)
        for name, metric in metrics.items()
      }
      for cell in cells.read_manifest(folder)
    ]
  }


class Results(arms.Recorded):
  """The arms that have ended."""

  names = CHOSEN_FROM


_TREND = "Spearman's ρ of horizon and `ppo` − `grpo`"


def trend(of: Any) -> statistics.Check:
  """Rule about the correlation of the horizon and the gap, seed by seed."""
  gaps = [
    statistics.minus(
      *(of(f"horizon-{name}-{x}", "accuracy") for name in ("ppo", "grpo"))
    )
    for x in HORIZONS
  ]
  rhos = None
  if all(gap is not None for gap in gaps):
    rhos = np.array(
      [
        scipy.stats.spearmanr(HORIZONS, gap).statistic if np.ptp(gap) else 0.0
        for gap in np.transpose(gaps)
      ]
    )
  return statistics.check(_TREND, "above", (1, rhos))


def _level(arm: str, needed: str, number: float) -> Rule:
  text = f"accuracy, `{arm}` − {number}"
  return rule(text, needed, (arm, "accuracy"), number)


CLAIMS = table(
  "E2 Trained with the rest, summaries carry the fact; written by a policy"
  " that is not trained to write them, they carry chance.",
  difference("accuracy", "chain-joint", "chain-frozen"),
  _level("chain-joint", "above", 0.8),
  _level("chain-frozen", "below", 0.6),
  "E3 A loss over tokens and the discount across contexts both make"
  " CompactionRL better.",
  difference("accuracy", "chain-joint", "chain-without-token-loss"),
  difference("accuracy", "chain-joint", "chain-without-discount"),
  "E4 The gap between PPO and GRPO grows with the horizon.",
  trend,
  "E12 A guard closes the leak, and a dummy observation is better than the"
  " end of the episode.",
  difference(HACKED, "leak-none", "leak-two_stage"),
  difference("accuracy", "leak-two_stage", "leak-none"),
  difference("accuracy", "leak-two_stage", "leak-abort"),
  "E14 GAGPO is better than GRPO in several turns.",
  difference("accuracy", "grid-gagpo", "grid-grpo"),
)
CONFIRMED = "E2 E4"


def numbers(results: Results) -> dict[str, Any]:
  """Tables of the page."""
  metrics = {
    what: pages.scored(results, what)
    for name in results.arms
    for what in METRICS[_kind(name)]
    if results.scores(name, what) is not None
  }
  columns = {
    "what it is": lambda x: ARMS[x].text,
    **metrics,
    "minutes": results.minutes,
  }
  return {
    "ends": pages.by_arm(results.arms, columns),
    "of": {
      name: "–" if values is None else f"{values.mean():.3f}"
      for name in CHOSEN_FROM
      for values in [results.scores(name, "accuracy")]
    },
    "gaps": ", ".join(_gaps(results)),
  }


def _gaps(results: Results) -> Iterator[str]:
  for steps in HORIZONS:
    ppo, grpo = (
      results.scores(f"horizon-{name}-{steps}", "accuracy")
      for name in ("ppo", "grpo")
    )
    gap = statistics.minus(ppo, grpo)
    yield "–" if gap is None else f"{gap.mean():.3f}"


_TITLES = {
  "chain": "E2, E3: summaries",
  "leak": "E12: a leak, without it",
  "grid": "E14: credit in several turns",
}


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws the accuracy of all arms, and that of E4 over the horizon."""
  canvas, grid = style.panels(2, 2, style.PAGE, 2.4)
  *every, over = grid.ravel()
  for axes, (kind, title) in zip(every, _TITLES.items(), strict=True):
    _ends(axes, results, [x for x in results.arms if _kind(x) == kind])
    style.label(axes, title, "accuracy")
  for name, look in style.looks(("ppo", "grpo")).items():
    ended = [x for x in HORIZONS if f"horizon-{name}-{x}" in results.arms]
    if ended:
      found = [_interval(results, f"horizon-{name}-{x}") for x in ended]
      means, low, high = np.transpose(found)
      style.band(over, ended, low, high, look.colour)
      over.plot(ended, means, **look.line(label=name))
      over.legend()
  style.label(over, "E4: by horizon", "steps of a chain", "accuracy")
  over.set_xscale("log", base=2)
  over.set_xticks(HORIZONS, [str(x) for x in HORIZONS])
  over.minorticks_off()
  style.save(canvas, path)


def _interval(results: Results, arm: str) -> tuple[float, float, float]:
  """Mean, and Student's 95 % interval of it."""
  found = statistics.contrast([(1, results.series(arm, "accuracy"))])
  return found.estimate, found.low, found.high


def _ends(axes: Any, results: Results, names: Sequence[str]) -> None:
  """Draws seeds, mean and interval of arms, one above the other."""
  for place, (name, look) in enumerate(style.looks(names).items()):
    values = results.series(name, "accuracy")
    places = [place] * len(values)
    axes.plot(values, places, look.marker, color=look.colour, alpha=0.35)
    mean, low, high = _interval(results, name)
    axes.plot(mean, place, look.marker, color=look.colour, ms=6)
    axes.plot([low, high], [place] * 2, color=look.colour, lw=2)
  axes.set_yticks(range(len(names)), [x.partition("-")[2] for x in names])
  axes.set_ylim(len(names) - 0.5, -0.5)
