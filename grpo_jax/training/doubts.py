"""What a finished run makes its owner doubt: rewards that said nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_APPLICABLE, _RANGE, _REWARD = "applicable/", "reward_range/", "reward/"
_STEPS = "reasoning_steps/per_completion"
# Completions of fewer steps may be equal by chance.
_MIN_STEPS = 3


def of_rewards(lines: Iterable[Mapping[str, Any]]) -> list[str]:
  """Components that never applied, or were the same for every completion.

  Args:
    lines: Of metrics.jsonl, one for each step of the run.

  Returns:
    A sentence for each such component; none for a run of fewer than three
    steps with completions.
  """
  lines = list(lines)
  steps: dict[str, int] = {}
  applied: dict[str, int] = {}
  values: dict[str, set[float]] = {}
  for line in lines:
    for key, share in line.items():
      if not key.startswith(_APPLICABLE):
        continue
      name = key.removeprefix(_APPLICABLE)
      steps[name] = steps.get(name, 0) + 1
      if not share:
        continue
      applied[name] = applied.get(name, 0) + 1
      seen = values.setdefault(name, set())
      if len(seen) < 2:
        seen.add(line.get(_REWARD + name) or 0.0)
        if line.get(_RANGE + name):
          seen.update((0.0, 1.0))  # Not the same for all.
  found = _of_steps(lines)
  for name, number in sorted(steps.items()):
    if number < _MIN_STEPS:
      continue
    if not applied.get(name):
      found.append(
        f"The reward {name!r} applied to no completion in {number} steps: it"
        " returned None or NaN for each. Look at what it reads (extras, the"
        " gold answer, config.rewards.domains)."
      )
    elif len(values[name]) == 1:
      (value,) = values[name]
      found.append(
        f"The reward {name!r} was {value:g} for every completion in"
        f" {applied[name]} steps, so nothing was learnt from it. Look at"
        " samples.jsonl: nobody did what it rewards or punishes, or everybody"
        " did, or it does not look at the completion."
      )
  return found


def _of_steps(lines: Iterable[Mapping[str, Any]]) -> list[str]:
  """A sentence if steps are scored, and no completion has had one."""
  numbers = [line[_STEPS] for line in lines if _STEPS in line]
  if len(numbers) < _MIN_STEPS or any(numbers):
    return []
  return [
    f"No completion had a step of reasoning that was scored, in {len(numbers)}"
    " steps of training. Look at samples.jsonl, and at what"
    " config.rewards.steps takes for a step."
  ]
