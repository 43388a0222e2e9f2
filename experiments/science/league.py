"""Every algorithm that is trained by rewards, on three tasks.

Sizes were chosen after trials of two seeds of GRPO on each task; the rules
below were written before any other algorithm had been run. "Accuracy" is the
share of right answers to 512 held-out problems at temperature 1 after 6144
completions, of which those by which a critic learns alone are a part. The
*default* learning rate is 3e-4 for all. The *best* of a seed is that of 1e-4,
3e-4 and 9e-4 with the highest mean accuracy of the other four seeds, on the
same task. A run whose loss is no longer finite has accuracy 0.

The place in the table is by the interquartile mean over all seeds and tasks at
the best rates, with the bootstrap interval of `experiments.comparison`, and the
probability of improvement is that over GRPO. Neither says that two algorithms
differ. That is said by the *verdict*: differences to GRPO of the mean over
tasks, seed by seed, by Student's t, with Holm's correction for all algorithms
of the league. Below 0.05 it is "above" or "below", and else "open".

A check takes the mean over tasks of each seed. Student's 95 % interval over
seeds decides whether the check holds. A claim is confirmed if all of its checks
hold.

L1  All algorithms learn: each ends above its warm start, at its best rates.
R1  A choice among three learning rates pays: over the algorithms, the mean of
    accuracy at the best rates − at the default rate is above 0.
C1  PPO, whose critic takes its part of the completions, ends not below GRPO, at
    the best rates.
W1  REINFORCE, without groups, ends below GRPO, at the best rates.
E1  The wider clip range of DAPO leaves more entropy than that of GRPO, at the
    default rate.
K1  Pass@k training leaves more entropy than GRPO, at the default rate.
K2  And it ends below GRPO.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from experiments.comparison import aggregates, figure
from experiments.comparison.runs import Run
from experiments.comparison.scores import Comparison
from experiments.science import arms, flips, pages
from experiments.science import league_problems as problems
from experiments.science.claims import Rule, rule, table
from experiments.sweeps import cells, statistics, tables
from experiments.sweeps.statistics import Estimate, check
from grpo_jax import algorithms
from grpo_jax.configs import ppo_add
from grpo_jax.training.monitor import style
from grpo_jax.training.runtime import log

BASELINE = "grpo"
RATE = 3e-4  # The default learning rate.
FACTORS = (1 / 3, 1.0, 3.0)  # Of it: the rates of which the best is looked for.
TASKS = {
  "sort": "sorting five letters",
  "add": "sums of two digits with a scratchpad",
  "words": "sums and differences in words",
}
FOLDER = pathlib.Path("runs/league/problems")  # Of the files of `words`.


class Entry(NamedTuple):
  """An algorithm of the league."""

  shown: str  # Its name on the page.
  group_size: int = 8  # Completions that are drawn of a prompt.
  # Fields of its config that are not its defaults.
  settings: Mapping[str, Any] = {}


# The best known come first, and are run first.
ENTRIES = {
  "grpo": Entry("GRPO"),
  "dr_grpo": Entry("Dr. GRPO"),
  "dapo": Entry("DAPO"),
  "rloo": Entry("RLOO"),
  "reinforce": Entry("REINFORCE", 1),
  "reinforce_pp": Entry("REINFORCE++", 1),
  "gspo": Entry("GSPO"),
  "cispo": Entry("CISPO"),
  "ppo": Entry("PPO", 1),
  "gmpo": Entry("GMPO"),
  "opo": Entry("OPO"),
  "reinforce_pp_baseline": Entry("REINFORCE++ with baseline"),
  "remax": Entry("ReMax", 1),
  "vapo": Entry("VAPO"),
  "vc_ppo": Entry("VC-PPO", 1),
  "gpg": Entry("GPG"),
  "sapo": Entry("SAPO"),
  "deepseek_v32": Entry("GRPO of DeepSeek-V3.2"),
  "clip_cov": Entry("Clip-Cov"),
  "kl_cov": Entry("KL-Cov"),
  "gfpo": Entry("GFPO", 16, {"entropy_coef": 0.0}),
  "spo": Entry("SPO", 1),
  "sao": Entry("SAO", 1),
  "two_grpo": Entry("2-GRPO", 2),
  "passk": Entry("Pass@k training"),
  "gspo_token": Entry("GSPO-token"),
  "luspo": Entry("LUSPO"),
  "vespo": Entry("VESPO"),
  "tic_grpo": Entry("TIC-GRPO"),
  "lambda_grpo": Entry("λ-GRPO"),
  "edge_grpo": Entry("EDGE-GRPO"),
  "gtpo": Entry("GTPO"),
  "grpo_s": Entry("GRPO-S"),
  "otb": Entry("OTB"),
  "mo_grpo": Entry("MO-GRPO"),
  "gdpo": Entry("GDPO"),
  "compaction_rl": Entry("CompactionRL", 1),
  "two_grpo_dpo": Entry("2-GRPO with DPO", 2),
  "ppo_dpo": Entry("PPO with DPO", 4),
}
# Reason -> algorithms of the table that are not in the league.
LEFT_OUT = {
  "are not trained by rewards, but by texts, pairs or teachers": (
    *("sft", "dpo", "bradley_terry", "opd_token", "opd_full", "opd_topk"),
  ),
  "need rewards or answers of single steps, which not all tasks have": (
    *("grpo_ps", "rredcot"),
  ),
  "compare the turns of an episode, and here is one turn": ("gagpo", "gigpo"),
}
# Algorithms that came into the table after the runs of the league.
_KNOWN = {*ENTRIES, *itertools.chain(*LEFT_OUT.values())}
if _LATER := [x for x in algorithms.ALGORITHMS if x not in _KNOWN]:
  LEFT_OUT["came after its runs"] = (*_LATER,)
ARMS = tuple(f"{x}-{task}" for x, task in itertools.product(ENTRIES, TASKS))
BASES = tuple(f"base-{task}" for task in TASKS)


class Size(NamedTuple):
  """Amounts of computation."""

  num_seeds: int  # Number of seeds of each arm.
  imitation: Mapping[str, int]  # Number of steps of the warm start, by task.
  batch: int  # Number of completions of a step.
  steps: int  # Number of steps of each arm, in all its phases.
  critic_steps: int  # Number of these steps that train the critic alone.
  held_out: int  # Number of problems of an evaluation.
  records: int  # Number of problems in words to train on.


SIZES = {
  "full": Size(
    num_seeds=5,
    imitation={"sort": 150, "add": 250, "words": 200},
    batch=128,
    steps=48,
    critic_steps=12,
    held_out=512,
    records=4096,
  ),
  "smoke": Size(2, dict.fromkeys(TASKS, 4), 32, 4, 2, 32, 128),
}
NUM_UPDATES = 4  # Gradient steps on the completions of a step.
ALL = arms.Arms((*BASES, *ARMS), SIZES, not_recorded=BASES)
CHOSEN_FROM = ARMS


def split(name: str) -> tuple[str, str]:
  """The algorithm and the task of an arm; "base" of a warm start."""
  algorithm, _, task = name.rpartition("-")
  return algorithm, task


def base_of(name: str) -> str:
  """Name of the arm whose parameters an arm begins with."""
  return f"base-{split(name)[1]}"


def has_critic(algorithm: str) -> bool:
  return algorithms.get_algorithm(algorithm).has_critic


def num_greedy(algorithm: str, num_prompts: int) -> int:
  """Number of completions that a step draws beside those that it trains on."""
  needs = algorithms.get_algorithm(algorithm).needs
  return num_prompts if "greedy_rewards" in needs else 0


def get_config(argument: str) -> ml_collections.ConfigDict:
  """The config of an arm, without the run that it begins with.

  All arms of a task draw the same number of completions. An algorithm that
  needs another number of completions for a prompt has more or fewer prompts.
  One with a critic trains the critic alone at first, on completions that count
  too.
  """
  name, size = ALL.parsed(argument)
  algorithm, task = split(name)
  is_base = algorithm == "base"
  algorithm = BASELINE if is_base else algorithm
  entry = ENTRIES[algorithm]
  config = ppo_add.get_config(algorithm)
  for field, value in {"kl_coef": 0.0, **entry.settings}.items():
    config.algorithm[field] = value
  config.model.width = 64
  config.model.mlp_width = 192
  _DATA[task](config)
  config.sft.steps = size.imitation[task]
  config.sft.num_prompts = min(size.batch, 128)
  critic_steps = (
    0 if is_base or not has_critic(algorithm) else size.critic_steps
  )
  drawn = entry.group_size
  # A greedy completion of each prompt counts as one more.
  drawn += num_greedy(algorithm, 1)
  config.rl.steps = size.steps - critic_steps
  phases = [config.rl]
  if "value" in config:
    config.value.steps = critic_steps
    phases.append(config.value)
  for phase in phases:
    phase.group_size = entry.group_size
    phase.num_prompts = size.batch // drawn
    phase.num_lengths = 1  # Compiles faster.
  config.rl.num_minibatches = NUM_UPDATES
  config.rl.optimizer.learning_rate = RATE
  if algorithm == "compaction_rl":
    config.critic.num_updates = 2  # As the paper has it.
  if algorithm == "spo":
    config.rl.schedule.name = "spo"
    config.rl.schedule.pool = 4 * size.batch
  config.phases = ("sft",) if is_base else config.phases[1:]
  config.eval.num_prompts = config.eval.batch_size = size.held_out
  config.eval.every = 0
  config.checkpoint.every = 0
  config.log.curves = False
  return arms.changed(config, {})


def _sort(config: ml_collections.ConfigDict) -> None:
  flips.sort_five_letters(config)
  # More than the 6 that are needed: DAPO punishes the last fifth.
  config.sampling.max_new_tokens = 8


def _add(config: ml_collections.ConfigDict) -> None:
  config.data.name = "add"
  config.data.task_options = ml_collections.ConfigDict(
    {"level": 2, "scratchpad": True, "teacher_error": 0.55}
  )
  config.sampling.max_new_tokens = 33  # 26 are needed.


def _words(config: ml_collections.ConfigDict) -> None:
  config.data.source = "jsonl"
  config.data.name = ""
  config.data.task_options = ml_collections.ConfigDict()
  config.data.tokenizer = "gsm8k"
  config.data.train_path = str(FOLDER / problems.TRAIN)
  config.data.eval_path = str(FOLDER / problems.HELD_OUT)
  config.data.max_prompt_len = problems.PROMPT_LEN
  config.sampling.max_new_tokens = 7  # 5 are needed.
  config.rewards.functions = ("math_accuracy",)
  config.rewards.weights = (1.0,)
  config.rewards.in_graph = True


_DATA = {"sort": _sort, "add": _add, "words": _words}


def follows_on(name: str, root: pathlib.Path) -> list[str]:
  """Flags for the start and the data of an arm, in the folder of all runs."""
  algorithm, task = split(name)
  found = []
  if algorithm != "base":
    found.append(f"--config.start_workdir={root}/{base_of(name)}/seed={{seed}}")
  if task == "words":
    folder = root / FOLDER.name
    found.append(f"--config.data.train_path={folder / problems.TRAIN}")
    found.append(f"--config.data.eval_path={folder / problems.HELD_OUT}")
  return found


def sweep(add: Callable[..., None], argument: str) -> None:
  """The cells of an arm: its seeds, and the learning rates of each."""
  name, size = ALL.parsed(argument)
  for seed in range(size.num_seeds):
    if split(name)[0] == "base":
      add(seed=seed)
      continue
    for factor in FACTORS:
      add(seed=seed, **{"rl.optimizer.learning_rate": RATE * factor})


def run(job: arms.Job, arm: str) -> int:
  """Runs an arm, after its warm start; its checkpoints are deleted then."""
  if (job.out / f"{arm}.json").exists():
    return 0
  if split(arm)[1] == "words":
    folder, size = job.root / FOLDER.name, job.amounts
    problems.write(folder, size.records, size.held_out)
  return job.record(base_of(arm)) or job.record_alone(arm)


_RATE = "rl.optimizer.learning_rate"
LAST = 8  # Steps of which the entropy is a mean.
WHATS = ("before", "after", "length", "entropy", "completions", "seconds")
DEFAULT = FACTORS.index(1.0)
_GENERATED = "completions/generated"
# Order of equally good rates: the default, then the lower one.
_PREFERRED = sorted(
  range(len(FACTORS)), key=lambda i: (i != DEFAULT, FACTORS[i])
)


def chosen(accuracy: np.ndarray) -> np.ndarray:  # [S, F] -> [S]
  """Chooses the learning rate of each seed by the mean accuracy of the others.

  If means are equal, the default is chosen, or otherwise the lower rate.

  Raises:
    ValueError: There is only one seed, so there is no other to choose by.
  """
  if len(accuracy) < 2:
    raise ValueError(
      f"league: {len(accuracy)} seed; needs two, as the learning rate of"
      " one is chosen by the others."
    )
  ordered = accuracy[:, _PREFERRED]
  others = (ordered.sum(axis=0) - ordered) / (len(ordered) - 1)
  # Sums in another order may differ in the last bit, and are no reason.
  return np.array(_PREFERRED)[np.round(others, 9).argmax(axis=1)]


def generated(
  lines: Sequence[Mapping[str, Any]], algorithm: str, group_size: int
) -> int:
  """Number of completions that a run drew, greedy ones too, from its log.

  Some algorithms draw greedy completions beside the others.
  """
  total = 0
  for line in lines:
    drawn = round(line.get(_GENERATED, 0))
    total += drawn + num_greedy(algorithm, drawn // group_size)
  return total


def _of_run(
  folder: pathlib.Path, name: str, share: int
) -> dict[str, Any] | None:
  """Numbers of a run, in a program of `share` runs; None before its end.

  A run whose loss was no longer finite ends without a right answer.
  """
  algorithm, _ = split(name)
  result = cells.read_result(folder)
  error = cells.last_error(folder) if result is None else ""
  if result is None and not is_divergence(error):
    return None
  lines = log.read_lines(folder / log.METRICS)
  times = log.read_lines(folder / log.TIMINGS)
  steps = [line for line in lines if "entropy/mean" in line]
  evaluated = [line for line in lines if "eval/accuracy" in line]
  first, last = evaluated[0], evaluated[-1]
  entropy = [line["entropy/mean"] for line in steps[-LAST:]]
  seconds = sum(x["time/step_s"] - x["time/compile_s"] for x in times) / share
  found = {
    "before": round(first["eval/accuracy"], 4),
    "after": round(last["eval/accuracy"], 4) if result else 0.0,
    "length": round(last["eval/length"], 3),
    "entropy": round(float(np.mean(entropy)), 4),
    "completions": generated(lines, algorithm, ENTRIES[algorithm].group_size),
    "seconds": round(seconds, 2),
  }
  return found | ({"error": error} if error else {})


def is_divergence(error: str) -> bool:
  """True if the message is about a loss or a gradient that is not finite."""
  return error.startswith("phase ") and (
    " is nan" in error or " is inf" in error
  )


def collected(folder: pathlib.Path, size: Size) -> dict[str, Any] | None:
  """The numbers of all runs of an arm, seeds and learning rates; or None."""
  del size
  manifest = cells.read_manifest(folder)
  runs = []
  for cell, overrides in manifest.items():
    found = _of_run(folder / cell, folder.name, len(manifest))
    if found is None:
      return None
    factor = overrides[_RATE] / RATE
    runs.append({"seed": overrides["seed"], "factor": round(factor, 3)} | found)
  return {"runs": runs}


class Results(arms.Recorded):
  """The arms that have ended, by name."""

  names = ARMS

  def __init__(self, folder: pathlib.Path):
    super().__init__(folder)
    self._folder = folder
    self._values = {
      name: _values(one["runs"]) for name, one in self._found.items()
    }
    self._comparisons: dict[str, Comparison] = {}

  @property
  def algorithms(self) -> list[str]:
    """Algorithms that have ended on a task, in the order of the league."""
    known = {split(name)[0] for name in self.arms}
    return [name for name in ENTRIES if name in known]

  @property
  def complete(self) -> list[str]:
    """Names of the algorithms that have ended on all tasks."""
    return [
      name
      for name in self.algorithms
      if all(f"{name}-{task}" in self._found for task in TASKS)
    ]

  @property
  def num_seeds(self) -> int:
    return min(len(one["after"]) for one in self._values.values())

  def every(self, arm: str, what: str) -> np.ndarray:
    """Values of `WHATS` for each seed and learning rate [S, F]."""
    return self._values[arm][what]

  def rates(self, arm: str, which: str) -> np.ndarray:
    """The place of each seed's learning rate in `FACTORS` [S].

    It is the "default", or the "best", which the other seeds choose.
    """
    accuracy = self.every(arm, "after")
    if which == "best":
      return chosen(accuracy)
    return np.full(len(accuracy), DEFAULT)

  def of_arm(self, arm: str, what: str, which: str) -> np.ndarray | None:
    """Value of `WHATS` for each seed [S]; None while the arm is missing."""
    if arm not in self._found:
      return None
    values, rates = self.every(arm, what), self.rates(arm, which)
    return values[np.arange(len(values)), rates]

  def scores(self, algorithm: str, what: str, which: str) -> np.ndarray | None:
    """Mean over tasks, of each seed [S]; None while a task is missing."""
    found = [self.of_arm(f"{algorithm}-{x}", what, which) for x in TASKS]
    known = [values for values in found if values is not None]
    return np.mean(known, axis=0) if len(known) == len(found) else None

  def comparison(self, which: str) -> Comparison:
    """Compares all algorithms with GRPO, at one choice of learning rates."""
    if which not in self._comparisons:
      runs = [
        Run(self._folder, algorithm, task, algorithm, seed, float(x), "", {})
        for algorithm in self.algorithms
        for task in TASKS
        if (values := self.of_arm(f"{algorithm}-{task}", "after", which))
        is not None
        for seed, x in enumerate(values)
      ]
      names = {name: ENTRIES[name].shown for name in self.algorithms}
      self._comparisons[which] = Comparison(
        runs, "accuracy", self.algorithms[0], names
      )
    return self._comparisons[which]

  def improvement(self, algorithm: str) -> Estimate | None:
    """Probability of improvement over GRPO at the best rates; None: unknown."""
    if BASELINE not in self.complete:
      return None
    return self.comparison("best").improvement(algorithm)

  def by_rate(self, algorithm: str) -> np.ndarray | None:  # [F]
    """Mean accuracy over tasks and seeds; None while a task is missing."""
    if algorithm not in self.complete:
      return None
    every = [self.every(f"{algorithm}-{x}", "after") for x in TASKS]
    return np.mean(every, axis=(0, 1))

  def ranked(self) -> list[str]:
    """Algorithms by the interquartile mean at their best rates.

    Those without all tasks come last.
    """

    def place(name: str) -> float:
      found = self.comparison("best").aggregate(name, "IQM")
      return 1.0 if found is None else -found.value

    return sorted(self.algorithms, key=place)

  def other_starts(self) -> list[str]:
    """Arms whose start differs in accuracy from the first arm of their task."""
    first: dict[str, np.ndarray] = {}
    found = []
    for arm in self.arms:
      before = self.every(arm, "before")
      known = first.setdefault(split(arm)[1], before)
      if known.shape != before.shape or (known != before).any():
        found.append(arm)
    return found

  def completions(self) -> tuple[int, int]:
    """The smallest and the largest number of completions of a run."""
    every = [self.every(arm, "completions") for arm in self.arms]
    return int(min(x.min() for x in every)), int(max(x.max() for x in every))

  def diverged(self) -> dict[str, int]:
    """Number of runs with a loss that was not finite, by arm with such runs."""
    counts = {
      arm: sum("error" in run for run in self._found[arm]["runs"])
      for arm in self.arms
    }
    return {arm: count for arm, count in counts.items() if count}


def _values(runs: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
  """Returns name of a quantity -> [S, F] values over the runs of an arm."""
  seeds = sorted({run["seed"] for run in runs})
  factors = sorted({run["factor"] for run in runs})
  by_place = {(run["seed"], run["factor"]): run for run in runs}
  return {
    what: np.array(
      [[by_place[s, f][what] for f in factors] for s in seeds], float
    )
    for what in WHATS
  }


LEVEL = 0.05


def _learns(name: str) -> Rule:
  text = f"{ENTRIES[name].shown}, after − before"
  after, before = ((name, when, "best") for when in ("after", "before"))
  return rule(text, "above", after, before)


def gain(of: Callable[..., np.ndarray | None]) -> np.ndarray | None:  # [S]
  """Mean gain over all algorithms of the best rates over the default one.

  None while an algorithm is missing.
  """
  found = [
    [of(name, "after", which) for name in ENTRIES]
    for which in ("best", "default")
  ]
  if any(values is None for values in found[0]):
    return None
  best, default = (np.mean(values, axis=0) for values in found)
  return best - default


def _against(name: str, what: str, which: str, needed: str) -> Rule:
  noun = "accuracy" if what == "after" else what
  text = f"{noun} of {ENTRIES[name].shown} − GRPO, {which} rate"
  return rule(text, needed, (name, what, which), (BASELINE, what, which))


CLAIMS = table(
  "L1 All algorithms learn.",
  *map(_learns, ENTRIES),
  "R1 A choice among three learning rates pays.",
  lambda of: check("accuracy, best − default rate", "above", (1, gain(of))),
  "C1 PPO is not below GRPO.",
  _against("ppo", "after", "best", "not below"),
  "W1 REINFORCE is below GRPO.",
  _against("reinforce", "after", "best", "below"),
  "E1 DAPO leaves more entropy than GRPO.",
  _against("dapo", "entropy", "default", "above"),
  "K1 Pass@k training leaves more entropy than GRPO.",
  _against("passk", "entropy", "default", "above"),
  "K2 Pass@k training is below GRPO.",
  _against("passk", "after", "best", "below"),
)


def verdicts(of: Results) -> dict[str, str]:
  """ "above", "below" or "open", of each algorithm that has ended on all tasks.

  The correction is for all comparisons of the league, made or not. So a verdict
  about a part of the league stays when the rest is there, unless it is "open".
  """
  base = of.scores(BASELINE, "after", "best")
  if base is None:
    return {}
  names = [name for name in of.complete if name != BASELINE]
  found = [
    statistics.contrast([(1, of.scores(name, "after", "best") - base)])
    for name in names
  ]
  missing = len(ENTRIES) - 1 - len(names)
  adjusted = aggregates.holm([*(x.p for x in found), *[1.0] * missing])
  return {
    name: "open"
    if p >= LEVEL
    else "above"
    if contrast.estimate > 0
    else "below"
    for name, contrast, p in zip(names, found, adjusted, strict=False)
  }


def numbers(results: Results) -> dict[str, Any]:
  """Tables and numbers of the page."""
  size, said = SIZES["full"], verdicts(results)
  low, high = results.completions()
  alpha = algorithms.make_config("vapo").length_adaptive_alpha
  *rates, last = (f"{RATE * x:.0e}" for x in FACTORS)
  counts = [sum(y == x for y in said.values()) for x in ("above", "below")]
  return {
    "answer": _answer(results, said),
    "budget": size.batch * size.steps,
    "groups": _groups(),
    "alpha": alpha,
    "alpha_length": 1 / alpha,
    "alpha_add": 1 - 1 / (alpha * 26),
    "left_out": "; ".join(
      f"{', '.join(f'`{x}`' for x in names)}, which {reason}"
      for reason, names in LEFT_OUT.items()
    ),
    "num_rates": len(FACTORS),
    "num_complete": len(results.complete),
    "num_algorithms": len(ENTRIES),
    "drawn": f"{low}" if low == high else f"{low} to {high}",
    "hours": sum(map(results.seconds, results.arms)) / 3600,
    "state": _state(results),
    "ends": _table(results, said),
    "num_compared": len(said),
    **dict(zip(("above", "below"), counts, strict=True)),
    "open": len(said) - sum(counts),
    "overlapping": _overlapping(results, said),
    "rates": f"{', '.join(rates)} and {last}",
    "tasks": _tasks(results),
  }


def _answer(results: Results, said: Mapping[str, str]) -> Iterator[str]:
  total = len(ENTRIES)
  ended = f"{len(results.complete)} of {total}"
  if not said:
    yield pages.paragraph(f"""
**The answer.** So far there is none: {ended} algorithms have ended on all
tasks.""")
    return
  best = results.comparison("best")
  parts = []
  for kind in ("above", "below"):
    names = [x for x in results.ranked() if said.get(x) == kind]
    *others, last = [
      f"{ENTRIES[x].shown} ({_text(best.aggregate(x, 'mean'))})" for x in names
    ] or ["no algorithm"]
    shown = f"{', '.join(others)} and {last} end" if others else f"{last} ends"
    parts.append(f"{shown} {kind} GRPO")
  known = f"So far {ended} algorithms have ended on all tasks."
  if len(results.complete) == total:
    known = f"All {total} algorithms have ended on all tasks."
  yield pages.paragraph(f"""
**The answer.** {known} By the verdict {parts[0]}, and {parts[1]}. The mean
accuracy of GRPO is {_text(best.aggregate(BASELINE, "mean"))}. All others are
open.""")


def _groups() -> str:
  """Numbers of completions for each prompt."""
  by_size: dict[int, list[str]] = {}
  for entry in ENTRIES.values():
    by_size.setdefault(entry.group_size, []).append(entry.shown)
  most = max(by_size, key=lambda size: len(by_size[size]))
  others = [
    f"{size} for {', '.join(names)}"
    for size, names in sorted(by_size.items())
    if size != most
  ]
  return f"{most} for most algorithms; {'; '.join(others)}"


def _state(results: Results) -> Iterator[str]:
  """Yields what is missing, and what is not as it should be."""
  if absent := [name for name in ENTRIES if name not in results.complete]:
    shown = ", ".join(_missing(name, results.arms) for name in absent)
    yield pages.paragraph(f"Not there yet: {shown}.")
  if others := results.other_starts():
    yield pages.paragraph(f"""
Some warm starts were trained anew, and differ from those of the others by their
accuracy: {", ".join(f"`{x}`" for x in others)}.""")
  if diverged := results.diverged():
    shown = ", ".join(f"{count} of `{x}`" for x, count in diverged.items())
    yield pages.paragraph(f"""
The loss of some runs was no longer finite, and these runs count with an
accuracy of 0: {shown}.""")


def _missing(name: str, ended: Sequence[str]) -> str:
  """Text about a missing algorithm, with its missing tasks if only some are."""
  absent = [x for x in TASKS if f"{name}-{x}" not in ended]
  where = "" if len(absent) == len(TASKS) else f" ({', '.join(absent)})"
  return ENTRIES[name].shown + where


def _number(values: np.ndarray | None, digits: int) -> str:
  return "–" if values is None else f"{values.mean():.{digits}f}"


def _table(results: Results, said: Mapping[str, str]) -> Iterator[str]:
  """The table of all tasks together."""
  default, best = (results.comparison(x) for x in ("default", "best"))

  def row(place: int, name: str) -> list[str]:
    is_base = name == BASELINE
    return [
      str(place) if name in results.complete else "–",
      ENTRIES[name].shown,
      _text(default.aggregate(name, "mean")),
      _text(best.aggregate(name, "mean")),
      _text(best.aggregate(name, "IQM")),
      "" if is_base else _text(results.improvement(name)),
      "" if is_base else said.get(name, "–"),
      _number(results.scores(name, "seconds", "best"), 1),
    ]

  head = ("", "algorithm", "mean, default", "mean, best", "IQM, best")
  return pages.table(
    (*head, "P(better)", "verdict", "seconds"),
    itertools.starmap(row, enumerate(results.ranked(), 1)),
    ["---:", *["---"] * 6, "---:"],
  )


def _overlapping(results: Results, said: Mapping[str, str]) -> int:
  """Number of algorithms whose interval of the IQM overlaps with GRPO's."""
  best = results.comparison("best")
  base = best.aggregate(BASELINE, "IQM") if said else None
  if base is None or base.low is None:
    return 0
  found = (best.aggregate(name, "IQM") for name in said)
  return sum(x.low <= base.high and base.low <= x.high for x in found)


def _tasks(results: Results) -> Iterator[str]:
  """A table for each task."""
  for task, text in TASKS.items():
    names = [x for x in results.ranked() if f"{x}-{task}" in results.arms]
    if not names:
      continue
    before = results.of_arm(f"{names[0]}-{task}", "before", "default")
    yield f"### `{task}`: {text}\n"
    yield f"The warm starts have {_number(before, 3)}.\n"
    yield from pages.table(
      ("algorithm", "accuracy, default", "accuracy, best", "rates", *_COLUMNS),
      (_row(results, f"{x}-{task}", ENTRIES[x].shown) for x in names),
      ["---"] * 4 + ["---:"] * 4,
    )
    yield ""


_COLUMNS = {
  "length": 2,
  "entropy": 3,
  "completions": 0,
  "seconds": 1,
}  # Digits.


def _row(results: Results, arm: str, shown: str) -> list[str]:
  counts = np.bincount(results.rates(arm, "best"), minlength=len(FACTORS))
  return [
    shown,
    pages.cell(results.of_arm(arm, "after", "default")),
    pages.cell(results.of_arm(arm, "after", "best")),
    " / ".join(map(str, counts)),
    *(_number(results.of_arm(arm, x, "best"), n) for x, n in _COLUMNS.items()),
  ]


_text = functools.partial(tables.text, digits=3)
_KINDS = ("groups", "one completion a prompt", "a critic")
_ROW = 0.135  # Inches.


def kind(algorithm: str) -> str:
  """The kind of baseline that an algorithm compares a completion with."""
  if has_critic(algorithm):
    return _KINDS[2]
  return _KINDS[1] if ENTRIES[algorithm].group_size == 1 else _KINDS[0]


def plot(path: pathlib.Path, results: Results) -> None:
  """Draws accuracy of all algorithms, and probabilities of improvement."""
  names = [x for x in results.ranked() if x in results.complete]
  height = 1.0 + _ROW * max(len(names), 4)
  canvas, grid = style.panels(1, 3, style.PAGE, height, sharey=True)
  reached, better, rates = grid[0]
  looks = style.looks(_KINDS)
  mark = functools.partial(figure.mark, lw=1.5, ms=3)
  for place, name in enumerate(names):
    look = looks[kind(name)]
    best = results.comparison("best")
    default = results.comparison("default").aggregate(name, "IQM")
    mark(reached, place, best.aggregate(name, "IQM"), look)
    if default is not None:
      reached.plot(default.value, place, "|", color=style.GREY, ms=5)
    if name != BASELINE:
      mark(better, place, results.improvement(name), look)
    _rates(rates, place, name, look, results)
  style.label(reached, "Right, all tasks", "interquartile mean")
  style.label(better, "Against GRPO", "P(better than GRPO)")
  style.label(rates, "Three learning rates", "mean of a rate − default")
  better.axvline(0.5, color=style.GREY, lw=0.8)
  better.set_xlim(-0.02, 1.02)
  rates.axvline(0.0, color=style.GREY, lw=0.8)
  reached.set_yticks(
    range(len(names)), [ENTRIES[x].shown for x in names], fontsize=5.5
  )
  reached.set_ylim(len(names) - 0.5, -0.5)
  for axes in grid[0]:
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
  for name in _KINDS:
    look = looks[name]
    reached.plot([], [], look.marker, color=look.colour, ms=3, label=name)
  reached.plot([], [], "|", color=style.GREY, ms=5, label="at the default rate")
  style.shared_legend(canvas, [reached])
  style.save(canvas, path)


def _rates(
  axes: Any, place: int, name: str, look: style.FigureStyle, results: Results
) -> None:
  """Draws the gains of the other two learning rates over the default."""
  means = results.by_rate(name)
  if means is None:
    return
  for i, value in enumerate(means - means[DEFAULT]):
    if i != DEFAULT:
      axes.plot(value, place, "<>"[i > DEFAULT], color=look.colour, ms=3)
