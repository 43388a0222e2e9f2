"""Conditions of alarms: what must be seen in the metrics of a phase.

Each function takes a `History` and returns the numbers that it was convinced
by, or None. `alarms.py` says how long a condition must hold, and what it means.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from grpo_jax.training.rules import trends
from grpo_jax.training.rules.alarm_history import REASONING, History

Numbers = dict[str, float]
Check = Callable[[History], Numbers | None]

TREND = 50  # Steps over which a trend is asked for.
LONG = 100  # Steps over which something is to have stood still.


def above(name: str, bound: float) -> Check:
  """A metric is greater than a bound."""

  def check(history: History) -> Numbers | None:
    value = history.last(name)
    return {name: value} if value is not None and value > bound else None

  return check


def all_groups_dead(history: History) -> Numbers | None:
  """No prompt has completions with different rewards."""
  stage = history.stage
  if stage.kind != "rl" or stage.group_size < 2:
    return None
  share = history.last("dead_groups")
  return {"dead_groups": share} if share == 1 else None


def no_pairs(history: History) -> Numbers | None:
  """No prompt gives a pair to learn a preference from."""
  trained = history.last("tokens/trained")
  if history.stage.kind not in ("preference", "comparison", "pairs"):
    return None
  return {"tokens/trained": 0.0} if trained == 0 else None


def zero_gradient(history: History) -> Numbers | None:
  """Something that is trained has no gradient."""
  names = ("gradient_norm", "value/gradient_norm", "reward_model/gradient_norm")
  return {name: 0.0 for name in names if history.last(name) == 0} or None


def entropy_collapsed(history: History) -> Numbers | None:
  """Entropy is a tenth of what it was, and the task is not solved."""
  before = history.opening("entropy/mean")
  now, accuracy = history.last("entropy/mean"), history.last("accuracy")
  if before is None or now is None or accuracy is None:
    return None
  if now >= 0.1 * before or accuracy >= 0.9:
    return None
  return {"entropy/mean": now, "at the start": before, "accuracy": accuracy}


def grows(name: str, factor: float, least: float) -> Check:
  """A metric has a rising trend, to `factor` times as much, and `least`."""

  def check(history: History) -> Numbers | None:
    values = history.window(name, LONG)
    if values is None or trends.trend(values) < trends.SIGNIFICANT:
      return None
    first, last = trends.ends(values)
    if not (last > factor * first and last > least):
      return None
    return {name: last, f"{LONG} steps ago": first}

  return check


def length_drifts(history: History) -> Numbers | None:
  """Lengths double or halve, and accuracy does not rise with them."""
  lengths = history.window("length/mean", LONG)
  accuracy = history.window("accuracy", LONG)
  if lengths is None or accuracy is None:
    return None
  if abs(trends.trend(lengths)) < trends.SIGNIFICANT:
    return None
  first, last = trends.ends(lengths)
  before, now = trends.ends(accuracy)
  if 0.5 * first < last < 2 * first or now > before + 0.02:
    return None
  return {"length/mean": last, f"{LONG} steps ago": first, "accuracy": now}


def constant_fill(history: History) -> Numbers | None:
  """All completions are equally long and have equal rewards."""
  least, most = history.last("length/min"), history.last("length/max")
  if least is None or least != most or history.last("reward/std") != 0:
    return None
  return {"length/mean": least, "reward/mean": history.last("reward/mean") or 0}


def perfect_score(history: History) -> Numbers | None:
  """Nearly all completions are right."""
  return above("accuracy", 0.99)(history)


def component_saturated(history: History) -> Numbers | None:
  """A component has nothing more to give, and accuracy has not risen."""
  accuracy = history.window("accuracy", LONG)
  opening = history.opening("accuracy")
  if accuracy is None or opening is None or trends.trend(accuracy) >= 2:
    return None
  _, now = trends.ends(accuracy)
  if not now < min(0.5, opening + 0.05):
    return None
  found = {}
  for name in history.stage.rewarded:
    means = trends.block_means(history.window(f"reward/{name}", LONG) or [])
    ranges = history.window(f"reward_range/{name}", LONG) or []
    if name == history.stage.correct or means is None or means.min() <= 0:
      continue
    # Of a component that is 0 or its most, a range is its most.
    most = max((x for x in ranges if x is not None), default=0.0)
    if not most or 0.97 * most <= means.min() <= most * 1.0001:
      found[f"reward/{name}"] = float(means[-1])
  return {**found, "accuracy": now} if found else None


def proxy_up_truth_down(history: History) -> Numbers | None:
  """Training reward rises while held-out accuracy falls."""
  if history.last("eval/accuracy") is None or len(history.evaluations) < 5:
    return None
  accuracy = [value for _, value in history.evaluations]
  span = history.num_steps - history.evaluations[0][0]
  rewards = history.window("reward/mean", min(max(span, TREND), LONG))
  if rewards is None or trends.trend(rewards) < trends.SIGNIFICANT:
    return None
  before, now = sum(accuracy[:2]) / 2, sum(accuracy[-2:]) / 2
  # Of the difference of two means of two evaluations each.
  deviation = math.sqrt(0.25 / max(history.stage.num_eval, 1))
  # Five values that fall all the time have z = −2.2.
  if trends.mann_kendall(accuracy) > -2 or now > before - max(
    0.03, 2 * deviation
  ):
    return None
  first, last = trends.ends(rewards)
  return {
    "reward/mean": last,
    "and before": first,
    "eval/accuracy": now,
    "before": before,
  }


def reward_up_accuracy_down(history: History) -> Numbers | None:
  """Tests whether rewards rise in training while accuracy falls."""
  rewards = history.window("reward/mean", TREND)
  accuracy = history.window("accuracy", TREND)
  if rewards is None or accuracy is None:
    return None
  if (
    trends.trend(rewards) < trends.SIGNIFICANT
    or trends.trend(accuracy) > -trends.SIGNIFICANT
  ):
    return None
  (first, last), (before, now) = trends.ends(rewards), trends.ends(accuracy)
  if now > before - 0.03:
    return None
  return {
    "reward/mean": last,
    "and before": first,
    "accuracy": now,
    "before": before,
  }


def anticorrelated(history: History) -> Numbers | None:
  """A rewarded component is high where the reward is low."""
  found = {}
  for name in history.stage.rewarded:
    key = f"reward_correlation/{name}"
    means = trends.block_means(history.window(key, TREND) or [])
    if means is not None and means.mean() < -0.3 and means.max() < -0.1:
      found[key] = float(means.mean())
  return found or None


def some_unscored(history: History) -> Numbers | None:
  """More than a twentieth of the rows has no score."""
  count = history.last("unscored") or 0.0
  share = count / history.stage.num_rows
  return {"unscored": count, "share": share} if share > 0.05 else None


def too_many_unscored(history: History) -> Numbers | None:
  """More rows have no score than config.rewards.max_unscored allows."""
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
  """A batch lacks live groups, in a phase that such a step ends."""
  missing = history.last("drawn/missing") or 0.0
  if not history.stage.ends_short or not missing:
    return None
  numbers = {"missing": missing}
  for name in ("rounds", "groups"):
    numbers[name] = history.last(f"drawn/{name}") or 0.0
  return numbers


# Completions of fewer steps may be equal by chance.
_MIN_STEPS = 3


def never_applied(history: History) -> Numbers | None:
  """A component has applied to no completion of the phase."""
  found = {
    f"applicable/{name}": 0.0
    for name, seen in sorted(history.components.items())
    if seen.steps >= _MIN_STEPS and not seen.applied
  }
  return found if found and history.at_end else None


def component_constant(history: History) -> Numbers | None:
  """A rewarded component was the same for every completion of the phase."""
  found = {
    f"reward/{name}": next(iter(seen.values))
    for name, seen in sorted(history.components.items())
    if name in history.stage.rewarded
    and seen.steps >= _MIN_STEPS
    and len(seen.values) == 1
  }
  return found if found and history.at_end else None


def no_steps_of_reasoning(history: History) -> Numbers | None:
  """No completion of the phase had a step that was scored."""
  seen = history.reasoning
  if seen.steps < _MIN_STEPS or seen.applied or not history.at_end:
    return None
  return {REASONING: 0.0}
