"""What rules of health know of a phase: its last steps, and a few sums."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Mapping

WINDOW = 100  # Steps that are kept.
OPENING = 10  # Steps that say how a phase began.
REASONING = "reasoning_steps/per_completion"
_MAX_EVALUATIONS = 10  # That are kept.

Line = Mapping[str, float | None]


@dataclasses.dataclass(frozen=True)
class Stage:
  """What rules know of the settings of a phase.

  Attributes:
    name: The name of the phase.
    kind: Of the phase; see `kinds.py`.
    steps: The steps of the phase.
    last: Its last step, counted over all phases.
    group_size, num_rows: Completions per prompt, and per batch.
    max_unscored: Share of rows, `config.rewards.max_unscored`.
    correct: The component that marks right completions.
    rewarded: Components with a weight.
    num_eval: Held-out prompts.
    ends_short: Whether a step that is short of live groups ends the run.
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
    steps: In which it might have applied.
    applied: In which it did, to some completion.
    values: At most two different ones that it had.
  """

  steps: int = 0
  applied: int = 0
  values: set[float] = dataclasses.field(default_factory=set)

  def add(self, share: float | None, mean: float | None, spread: float | None):
    """Takes the numbers of a step."""
    self.steps += 1
    if not share:
      return
    self.applied += 1
    if len(self.values) < 2:
      self.values.add(mean or 0.0)
      if spread:
        self.values.update((0.0, 1.0))  # Not the same for all.


class History:
  """The steps of a phase so far.

  Attributes:
    stage: The phase.
    step: The last step, counted over all phases.
    num_steps: Steps seen.
    components: Of the reward, by name.
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
    """Takes the metrics of a step; NaN and None are means over nothing."""
    self.step = step
    self.num_steps += 1
    self._lines.append(line)
    if self.num_steps <= OPENING:
      for name in line:
        if (value := self.last(name)) is not None:
          self._opening[name].append(value)
    for name in line:
      if name.startswith("applicable/"):
        own = name.removeprefix("applicable/")
        self.components.setdefault(own, Component()).add(
          self.last(name),
          self.last(f"reward/{own}"),
          self.last(f"reward_range/{own}"),
        )
    if REASONING in line:
      number = self.last(REASONING)
      self.reasoning.add(number, number, 0.0)
    if (accuracy := self.last("eval/accuracy")) is not None:
      self.evaluations.append((self.num_steps, accuracy))

  @property
  def at_end(self) -> bool:
    """Whether this is the last step of the phase."""
    return self.step == self.stage.last

  def last(self, name: str) -> float | None:
    """The value of this step; None if there is none, or it is not finite."""
    return _finite(self._lines[-1].get(name)) if self._lines else None

  def window(self, name: str, size: int) -> list[float | None] | None:
    """The values of the last `size` steps; None before there are so many."""
    if size > min(len(self._lines), WINDOW):
      return None
    lines = list(self._lines)[-size:]
    return [_finite(line.get(name)) for line in lines]

  def opening(self, name: str) -> float | None:
    """Mean of the first steps of the phase; None while they go on."""
    values = self._opening.get(name)
    if self.num_steps < OPENING or not values:
      return None
    return sum(values) / len(values)


def _finite(value: float | None) -> float | None:
  return value if value is not None and math.isfinite(value) else None
