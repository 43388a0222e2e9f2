"""Ranges of numbers: of settings, in a config or a file, and of rewards."""

from __future__ import annotations

import dataclasses
from typing import Any

# The numbers that arrays on a device hold: int32, and float32 without the
# numbers so small that a processor may take them for 0.
MAX_INT = 2**31 - 1
MIN_FLOAT, MAX_FLOAT = 1e-37, 3e38
# Squares of larger rewards, summed over a batch, could be infinite in float32.
MAX_REWARD = 1e15
_RANGE = "range"  # Name of the range in the metadata of a field.


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers from `low` to `high`, both included unless `below` is set."""

  low: float
  high: float
  below: bool = False  # True if `high` itself is excluded.

  def __contains__(self, value: float) -> bool:
    # NaN is in no range: every comparison with it is false.
    if self.below:
      return self.low <= value < self.high
    return self.low <= value <= self.high

  def __str__(self) -> str:
    if (self.low, self.high) == (MIN_FLOAT, MAX_FLOAT):
      return "positive"
    until = "less than" if self.below else "at most"
    return f"at least {self.low} and {until} {self.high}"

  def field(self, default: Any) -> Any:
    """Makes a field of a dataclass with this range, for `check`."""
    return dataclasses.field(default=default, metadata={_RANGE: self})


COUNT = Range(0, MAX_INT)
SIZE = Range(1, MAX_INT)
# Rows of a batch, and slots of a sequence. A larger number is a slip of the
# hand, and would be allocated, or counted through, before anything complains.
ROWS = Range(1, 2**20)
SLOTS = Range(1, 2**20)
NOT_NEGATIVE = Range(0, MAX_FLOAT)
POSITIVE = Range(MIN_FLOAT, MAX_FLOAT)
SHARE = Range(0, 1)
DECAY = Range(0, 1, below=True)


def check(config: Any, where: str) -> None:
  """Raises ValueError unless each field is in its range, or is an allowed None.

  Args:
    config: The object of a dataclass, with fields made by `Range.field`.
    where: The config's name in messages, such as "config.eval".
  """
  for field in dataclasses.fields(config):
    value, allowed = getattr(config, field.name), field.metadata.get(_RANGE)
    if allowed and value is not None and value not in allowed:
      suffix = ", or None" if field.default is None else ""
      raise ValueError(
        f"{where}.{field.name}={value} must be {allowed}{suffix}."
      )


def counted(count: int, noun: str) -> str:
  """Returns a number with its noun, such as "1 seed" and "2 seeds"."""
  return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
