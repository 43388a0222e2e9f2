"""The health rules of a run: their table, their conditions and their history.

A run that learns nothing, or the wrong thing, looks fine in most of its
metrics. Each rule of `rules.toml` names one way in which this happens: a
condition, for how many steps in a row it must hold, what it means, and which
setting to change. `monitor/health.py` asks the rules after each step.

    python -m experiments.health.false_alarms

says how often each rule is wrong about healthy runs.

A condition is a function of a `History`, which has the last steps of a phase
and a few sums. It returns the numbers that convinced it, or None.

A rise or fall of a metric over a window is found by Mann and Kendall's test:

    S = Σ_{i<j} sign(x_j − x_i),    z = (S − sign(S)) / √Var(S)

    Var(S) = [n(n−1)(2n+5) − Σ_t t(t−1)(2t+5)] / 18

with t the sizes of groups of equal values. The test uses the order of the
values alone, so one step that is far off decides nothing, and it assumes no
distribution. It does assume that values are independent, and metrics of
neighbouring steps are not. Therefore steps are averaged in blocks first: noise
that lasts a few steps then stays inside a block.

Sources: Mann, "Nonparametric tests against trend", Econometrica 13, 1945;
Kendall, "Rank correlation methods", 1948, for ties.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

WINDOW = 100  # Steps that are kept.
OPENING = 10  # Steps at the start of a phase, for comparison.
REASONING = "reasoning_steps/per_completion"
ROUNDING = 1e-5  # Most that rounding moves a mean in float32, as a share of it.
_MAX_EVALUATIONS = 10  # Evaluations that are kept.

Line = Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Stage:
  """The settings of a phase that rules read.

  Attributes:
    last: Its last step, counted over all phases.
    group_size, num_rows: Completions per prompt, and per batch.
    max_unscored: Share of rows, `config.rewards.max_unscored`.
    correct: The component that marks right completions.
    rewarded: Components with a weight.
    ends_short: True if a step that is short of live groups ends the run.
  """

  name: str = "rl"
  kind: str = "rl"
  steps: int = 1000
  last: int = 1000
  group_size: int = 8
  num_rows: int = 64
  max_unscored: float = 0.5
  correct: str = "accuracy"
  rewarded: tuple[str, ...] = ("accuracy",)
  num_eval: int = 256
  ends_short: bool = False


@dataclasses.dataclass
class Component:
  """A component of the reward over a phase.

  Attributes:
    steps: Steps in which it might have applied.
    applied: Steps in which it applied to some completion.
    values: At most two different values that it had.
  """

  steps: int = 0
  applied: int = 0
  values: set[float] = dataclasses.field(default_factory=set)

  def add(self, share: float | None, mean: float | None, spread: float | None):
    """Adds the numbers of a step."""
    self.steps += 1
    if not share:
      return
    self.applied += 1
    if len(self.values) < 2:
      value = mean or 0.0
      if all(abs(value - x) > ROUNDING * abs(x) for x in self.values):
        self.values.add(value)
      if spread:
        self.values.update((0.0, 1.0))  # Completions differed.


class History:
  """The steps of a phase so far.

  Attributes:
    step: The last step, counted over all phases.
    reasoning: The same for steps of reasoning.
    evaluations: (number of the step in the phase, held-out accuracy).
  """

  def __init__(self, stage: Stage):
    self.stage = stage
    self.step = self.num_steps = 0
    self.components: dict[str, Component] = {}
    self.reasoning = Component()
    self.evaluations: collections.deque[tuple[int, float]] = collections.deque(
      maxlen=_MAX_EVALUATIONS
    )
    self._lines: collections.deque[Line] = collections.deque(maxlen=WINDOW)
    self._opening: dict[str, list[float]] = collections.defaultdict(list)

  def add(self, step: int, line: Line) -> None:
    """Adds the metrics of a step; NaN and None are means over nothing."""
    self.step = step
    self.num_steps += 1
    self._lines.append(line)
    if self.num_steps <= OPENING:
      for name in line:
        if (value := self.last(name)) is not None:
          self._opening[name].append(value)
    for name in line:
      if name.startswith("applicable/"):
        component = name.removeprefix("applicable/")
        self.components.setdefault(component, Component()).add(
          self.last(name),
          self.last(f"reward/{component}"),
          self.last(f"reward_range/{component}"),
        )
    if REASONING in line:
      number = self.last(REASONING)
      self.reasoning.add(number, number, 0.0)
    if (accuracy := self.last("eval/accuracy")) is not None:
      self.evaluations.append((self.num_steps, accuracy))

  @property
  def at_end(self) -> bool:
    """True after the last step of the phase."""
    return self.step == self.stage.last

  def last(self, name: str) -> float | None:
    """The value of this step; None if there is none, or it is not finite."""
    return _finite(self._lines[-1].get(name)) if self._lines else None

  def window(self, name: str, size: int) -> list[float | None] | None:
    """The values of the last `size` steps; None before step `size`."""
    if size > min(len(self._lines), WINDOW):
      return None
    lines = list(self._lines)[-size:]
    return [_finite(line.get(name)) for line in lines]

  def opening(self, name: str) -> float | None:
    """The mean of the first steps of the phase; None while they go on."""
    values = self._opening.get(name)
    if self.num_steps < OPENING or not values:
      return None
    return sum(values) / len(values)


def _finite(value: float | None) -> float | None:
  return value if value is not None and math.isfinite(value) else None


BLOCKS = 10  # Number of means to which a window is reduced.
# One-sided, a chance of 1.3e-3 for independent blocks without a trend.
SIGNIFICANT = 3.0


def block_means(
  values: Sequence[float | None], num_blocks: int = BLOCKS
) -> np.ndarray | None:
  """Means of equal parts of a window, [num_blocks]; None if a part has none.

  Args:
    values: One for each step; None and NaN are means over nothing, and are left
      out.
  """
  array = np.array([math.nan if x is None else x for x in values], float)
  parts = np.array_split(array, num_blocks)
  finite = [part[np.isfinite(part)] for part in parts]
  if not all(len(part) for part in finite):
    return None
  return np.array([part.mean() for part in finite])


def mann_kendall(values: np.ndarray | Sequence[float]) -> float:
  """The z of a trend, above 0 if values rise; 0 for less than 3, or equal ones.

  Args:
    values: [n], in the order of time.
  """
  x = np.asarray(values, float)
  n = len(x)
  if n < 3:
    return 0.0
  later, earlier = np.tril_indices(n, -1)
  total = float(np.sign(x[later] - x[earlier]).sum())
  _, ties = np.unique(x, return_counts=True)
  variance = (
    n * (n - 1) * (2 * n + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()
  ) / 18
  if variance <= 0:
    return 0.0
  return (total - float(np.sign(total))) / math.sqrt(variance)


def trend(values: Sequence[float | None]) -> float:
  """The z of the trend of a window of steps; 0 if it is not known."""
  means = block_means(values)
  return 0.0 if means is None else mann_kendall(means)


def ends(values: Sequence[float | None]) -> tuple[float, float]:
  """Means of the first and of the last fifth of a window; NaN if not known."""
  means = block_means(values)
  if means is None:
    return math.nan, math.nan
  size = len(means) // 5
  return float(means[:size].mean()), float(means[-size:].mean())


Numbers = dict[str, float]
Check = Callable[[History], Numbers | None]

TREND = 50  # Steps of a window for a trend.
LONG = 100  # Steps of a window for a slow trend, or for standing still.


def above(name: str, bound: float) -> Check:
  """Makes the check for a metric above a bound."""

  def check(history: History) -> Numbers | None:
    value = history.last(name)
    return {name: value} if value is not None and value > bound else None

  return check


def all_groups_dead(history: History) -> Numbers | None:
  """Detects that no prompt has completions with different rewards."""
  stage = history.stage
  if stage.kind != "rl" or stage.group_size < 2:
    return None
  share = history.last("dead_groups")
  return {"dead_groups": share} if share == 1 else None


def no_pairs(history: History) -> Numbers | None:
  """Detects that no prompt gives a pair to learn a preference from."""
  num_trained = history.last("tokens/trained")
  if history.stage.kind not in ("preference", "comparison", "pairs"):
    return None
  return {"tokens/trained": 0.0} if num_trained == 0 else None


def zero_gradient(history: History) -> Numbers | None:
  """Detects that something that is trained has no gradient."""
  names = ("gradient_norm", "value/gradient_norm", "reward_model/gradient_norm")
  return {name: 0.0 for name in names if history.last(name) == 0} or None


def entropy_collapsed(history: History) -> Numbers | None:
  """Detects an entropy below a tenth of its start in an unsolved task."""
  before = history.opening("entropy/mean")
  now, accuracy = history.last("entropy/mean"), history.last("accuracy")
  if before is None or now is None or accuracy is None:
    return None
  if now >= 0.1 * before or accuracy >= 0.9:
    return None
  return {"entropy/mean": now, "at the start": before, "accuracy": accuracy}


def grows(name: str, factor: float, least: float) -> Check:
  """Makes the check for a metric that rises `factor` times, past `least`."""

  def check(history: History) -> Numbers | None:
    values = history.window(name, LONG)
    if values is None or trend(values) < SIGNIFICANT:
      return None
    first, last = ends(values)
    if not (last > factor * first and last > least):
      return None
    return {name: last, f"{LONG} steps ago": first}

  return check


def length_drifts(history: History) -> Numbers | None:
  """Detects lengths that double or halve while accuracy does not rise."""
  lengths = history.window("length/mean", LONG)
  accuracy = history.window("accuracy", LONG)
  if lengths is None or accuracy is None:
    return None
  if abs(trend(lengths)) < SIGNIFICANT:
    return None
  first, last = ends(lengths)
  before, now = ends(accuracy)
  if 0.5 * first < last < 2 * first or now > before + 0.02:
    return None
  return {"length/mean": last, f"{LONG} steps ago": first, "accuracy": now}


def constant_fill(history: History) -> Numbers | None:
  """Detects that all completions have equal lengths and equal rewards."""
  low, high = history.last("length/min"), history.last("length/max")
  mean, deviation = history.last("reward/mean"), history.last("reward/std")
  if low is None or low != high or mean is None or deviation is None:
    return None
  if deviation > ROUNDING * abs(mean):
    return None
  return {"length/mean": low, "reward/mean": mean}


def component_saturated(history: History) -> Numbers | None:
  """Detects a component near its maximum while accuracy has not risen."""
  accuracy = history.window("accuracy", LONG)
  opening = history.opening("accuracy")
  if accuracy is None or opening is None or trend(accuracy) >= 2:
    return None
  _, now = ends(accuracy)
  if not now < min(0.5, opening + 0.05):
    return None
  numbers = {}
  for name in history.stage.rewarded:
    means = block_means(history.window(f"reward/{name}", LONG) or [])
    ranges = history.window(f"reward_range/{name}", LONG) or []
    if name == history.stage.correct or means is None or means.min() <= 0:
      continue
    # The range of a component that is 0 or its maximum is the maximum.
    maximum = max((x for x in ranges if x is not None), default=0.0)
    if not maximum or 0.97 * maximum <= means.min() <= maximum * 1.0001:
      numbers[f"reward/{name}"] = float(means[-1])
  return {**numbers, "accuracy": now} if numbers else None


def proxy_up_truth_down(history: History) -> Numbers | None:
  """Detects a training reward that rises while held-out accuracy falls."""
  if history.last("eval/accuracy") is None or len(history.evaluations) < 5:
    return None
  accuracy = [value for _, value in history.evaluations]
  span = history.num_steps - history.evaluations[0][0]
  rewards = history.window("reward/mean", min(max(span, TREND), LONG))
  if rewards is None or trend(rewards) < SIGNIFICANT:
    return None
  before, now = sum(accuracy[:2]) / 2, sum(accuracy[-2:]) / 2
  # Deviation of the difference of two means of two evaluations each.
  deviation = math.sqrt(0.25 / max(history.stage.num_eval, 1))
  # Five values that fall all the time have z = −2.2.
  if mann_kendall(accuracy) > -2 or now > before - max(0.03, 2 * deviation):
    return None
  first, last = ends(rewards)
  return {
    "reward/mean": last,
    "and before": first,
    "eval/accuracy": now,
    "before": before,
  }


def reward_up_accuracy_down(history: History) -> Numbers | None:
  """Detects a training reward that rises while training accuracy falls."""
  rewards = history.window("reward/mean", TREND)
  accuracy = history.window("accuracy", TREND)
  if rewards is None or accuracy is None:
    return None
  if trend(rewards) < SIGNIFICANT or trend(accuracy) > -SIGNIFICANT:
    return None
  (first, last), (before, now) = ends(rewards), ends(accuracy)
  if now > before - 0.03:
    return None
  return {
    "reward/mean": last,
    "and before": first,
    "accuracy": now,
    "before": before,
  }


def anticorrelated(history: History) -> Numbers | None:
  """Detects a rewarded component that is high where the reward is low."""
  numbers = {}
  for name in history.stage.rewarded:
    key = f"reward_correlation/{name}"
    means = block_means(history.window(key, TREND) or [])
    if means is not None and means.mean() < -0.3 and means.max() < -0.1:
      numbers[key] = float(means.mean())
  return numbers or None


def some_unscored(history: History) -> Numbers | None:
  """Detects that more than a twentieth of the rows have no score."""
  count = history.last("unscored") or 0.0
  share = count / history.stage.num_rows
  return {"unscored": count, "share": share} if share > 0.05 else None


def too_many_unscored(history: History) -> Numbers | None:
  """Detects more rows without a score than config.rewards.max_unscored."""
  rows = history.stage.num_rows
  count = history.last("unscored") or 0.0
  if count <= history.stage.max_unscored * rows:
    return None
  last = (history.window("unscored", size) for size in (3, 2, 1))
  counts = next(values for values in last if values is not None)
  first = history.step - len(counts) + 1
  steps = {f"step {first + i}": x or 0.0 for i, x in enumerate(counts)}
  return {"rows": float(rows), **steps}


def short_of_groups(history: History) -> Numbers | None:
  """Detects a batch short of live groups, in a phase that this ends."""
  missing = history.last("drawn/missing") or 0.0
  if not history.stage.ends_short or not missing:
    return None
  numbers = {"missing": missing}
  for name in ("rounds", "groups"):
    numbers[name] = history.last(f"drawn/{name}") or 0.0
  return numbers


# In fewer steps all completions may be equal by chance.
_MIN_STEPS = 3


def never_applied(history: History) -> Numbers | None:
  """Detects a component that has applied to no completion of the phase."""
  numbers = {
    f"applicable/{name}": 0.0
    for name, component in sorted(history.components.items())
    if component.steps >= _MIN_STEPS and not component.applied
  }
  return numbers if numbers and history.at_end else None


def component_constant(history: History) -> Numbers | None:
  """Detects a rewarded component that was the same for all completions."""
  numbers = {
    f"reward/{name}": next(iter(component.values))
    for name, component in sorted(history.components.items())
    if name in history.stage.rewarded
    and component.steps >= _MIN_STEPS
    and len(component.values) == 1
  }
  return numbers if numbers and history.at_end else None


def no_steps_of_reasoning(history: History) -> Numbers | None:
  """Detects that no completion of the phase had a step that was scored."""
  component = history.reasoning
  if component.steps < _MIN_STEPS or component.applied or not history.at_end:
    return None
  return {REASONING: 0.0}


# Rules that always stop a run, and the settings that switch each off.
UNSCORED = "too_many_unscored"
SHORT = "short_of_groups"
ALWAYS = {
  UNSCORED: "config.rewards.max_unscored=1.0",
  SHORT: "config.rl.when_short='fewer'",
}
PREFIX = "alarm/"  # Prefix of the metrics of alarms.


@dataclasses.dataclass(frozen=True)
class Rule:
  """A rule that detects one way in which a run goes wrong.

  Attributes:
    number: "H01", ….
    name: Name in the metric `alarm/NAME`, which is 1 in the line of the step.
    meaning: The diagnosis, a sentence.
    reads: Metrics that it looks at.
    threshold: The condition, in words.
    advice: Places to look at, and settings to change.
    patience: Number of looks in a row at which the condition must hold.
    every: Steps between two looks; more than 1 for conditions on a window.
  """

  number: str
  name: str
  meaning: str
  reads: tuple[str, ...]
  threshold: str
  advice: str
  check: Check
  patience: int = 1
  every: int = 1

  @property
  def key(self) -> str:
    """The metric of the alarm."""
    return f"{PREFIX}{self.name}"

  @property
  def wait(self) -> str:
    """The time for which the condition must hold, in words; may be empty."""
    if self.patience == 1:
      return ""
    if self.every == 1:
      return f"for {self.patience} steps in a row"
    return f"at {self.patience} looks in a row, {self.every} steps apart"


_CHECKS: dict[str, Check] = {
  "all_groups_dead": all_groups_dead,
  "zero_gradient": zero_gradient,
  "entropy_collapsed": entropy_collapsed,
  "cut_off": above("truncated", 0.5),
  "sampler_gap_large": above("sampler_gap/mean", 0.1),
  "sampler_gap_growing": grows("sampler_gap/mean", 3, 5e-3),
  "update_far": above("kl/update", 0.1),
  "ratio_growing": grows("ratio/max_deviation", 5, 2.0),
  "clipped": above("clip_fraction", 0.5),
  "length_drift": length_drifts,
  "constant_fill": constant_fill,
  "perfect_score": above("accuracy", 0.99),
  "component_saturated": component_saturated,
  "proxy_up_truth_down": proxy_up_truth_down,
  "reward_up_accuracy_down": reward_up_accuracy_down,
  "anticorrelated_component": anticorrelated,
  "blocked_calls_rising": grows("reward/blocked", 3, 0.05),
  "some_unscored": some_unscored,
  UNSCORED: too_many_unscored,
  "no_pairs": no_pairs,
  "component_never_applied": never_applied,
  "component_constant": component_constant,
  "no_steps_of_reasoning": no_steps_of_reasoning,
  SHORT: short_of_groups,
}


def _rules() -> Iterator[Rule]:
  path = pathlib.Path(__file__).with_suffix(".toml")
  for name, row in tomllib.loads(path.read_text("utf-8")).items():
    reads = tuple(row.pop("reads"))
    yield Rule(name=name, reads=reads, check=_CHECKS[name], **row)


RULES = tuple(_rules())
BY_NAME = {rule.name: rule for rule in RULES}


def find(name: str) -> Rule | None:
  """The rule of a name or number."""
  return next((r for r in RULES if name in (r.name, r.number)), None)


@dataclasses.dataclass(frozen=True)
class Alarm:
  """A rule that has warned.

  Attributes:
    step: Step over all phases.
    numbers: The numbers that convinced it.
  """

  step: int
  phase: str
  rule: Rule
  numbers: dict[str, float]

  @property
  def evidence(self) -> str:
    """The numbers in words."""
    text = ", ".join(f"{name} {x:.4g}" for name, x in self.numbers.items())
    return f"{text}, {self.rule.wait}" if self.rule.wait else text

  def text(self) -> str:
    """The message of the alarm for a person."""
    return (
      f"{self.phase}, step {self.step}: {self.rule.number} {self.rule.name}."
      f" {self.rule.meaning} ({self.evidence}) {self.rule.advice}"
    )

  def as_json(self) -> dict[str, object]:
    """The alarm as `result.json` holds it."""
    return {
      "step": self.step,
      "phase": self.phase,
      "rule": self.rule.number,
      "name": self.rule.name,
      "meaning": self.rule.meaning,
      "numbers": self.numbers,
      "advice": self.rule.advice,
    }
