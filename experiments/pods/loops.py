"""Loops in the text of a program: trip counts, and values that they keep."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from experiments.pods.hlo import Computation, Instruction, Module

# A bound without meaning: the loop ends by its other condition.
_INT_MAX = 2**31 - 1
# Operations whose result has the known value of the operand.
_FORWARDED = frozenset(
  {
    "all-reduce",
    "bitcast",
    "broadcast",
    "convert",
    "copy",
    "copy-done",
    "opt-barrier",
    "reshape",
  }
)


@dataclasses.dataclass(frozen=True)
class _Carried:
  """Element `index` of the values that a loop carries, plus a constant."""

  index: int
  offset: int = 0


# A known value: a number, a carried one, a tuple by index, or None.
Value = Any
Elements = Callable[[int], Value]


class Values:
  """Integers that the text determines: starts, steps and bounds of loops."""

  def __init__(self, module: Module, most_tokens: int | None):
    self.module = module
    self.most_tokens = most_tokens
    self._loops: dict[str, tuple[int | None, bool, Elements]] = {}

  def of(
    self, computation: Computation, name: str, parameters: Sequence[Value]
  ) -> Value:
    """Known value of an instruction, given those of the parameters."""
    one = computation.instructions[name]

    def operand(i: int) -> Value:
      return self.of(computation, one.operands[i], parameters)

    if one.opcode == "parameter":
      number = int(one.literal)
      return parameters[number] if number < len(parameters) else None
    if one.opcode == "constant":
      found = re.fullmatch(r"\s*\{?(-?\d+)\}?\s*", one.literal)
      return int(found[1]) if found else None
    if one.opcode == "get-tuple-element":
      elements = operand(0)
      index = int(one.attribute("index") or 0)
      return elements(index) if callable(elements) else None
    if one.opcode == "tuple":
      return operand
    if one.opcode == "while":
      return self.loop(computation, one, parameters)[2]
    if any(math.prod(array.dims) > 1 for array in one.arrays):
      return None  # No number.
    if one.opcode in ("fusion", "call"):
      callee = one.attribute("calls") or one.attribute("to_apply")
      called = self.module.computations[callee or ""]
      values = [operand(i) for i in range(len(one.operands))]
      return self.of(called, called.root.name, values)
    if one.opcode in _FORWARDED:
      return operand(0)
    if one.opcode in ("add", "subtract"):
      left, right = operand(0), operand(1)
      sign = 1 if one.opcode == "add" else -1
      if isinstance(left, int) and isinstance(right, int):
        return left + sign * right
      if isinstance(left, _Carried) and isinstance(right, int):
        return _Carried(left.index, left.offset + sign * right)
      if sign > 0 and isinstance(left, int) and isinstance(right, _Carried):
        return _Carried(right.index, right.offset + left)
    return None

  def conjuncts(
    self, computation: Computation, name: str, parameters: Sequence[Value]
  ) -> list[tuple[str, Value, Value] | None]:
    """Comparisons that must hold together; None for any other condition."""
    one = computation.instructions[name]
    if one.opcode == "and":
      return [
        found
        for operand in one.operands
        for found in self.conjuncts(computation, operand, parameters)
      ]
    if one.opcode == "compare":
      left, right = (
        self.of(computation, operand, parameters) for operand in one.operands
      )
      return [(one.attribute("direction") or "", left, right)]
    if one.opcode in _FORWARDED:
      return self.conjuncts(computation, one.operands[0], parameters)
    if one.opcode == "parameter":
      number = int(one.literal)
      given = parameters[number] if number < len(parameters) else None
      return given if isinstance(given, list) else [None]
    if one.opcode in ("fusion", "call"):
      callee = one.attribute("calls") or one.attribute("to_apply")
      called = self.module.computations[callee or ""]
      values = []
      for operand in one.operands:
        value = self.of(computation, operand, parameters)
        if value is None:  # It may be a condition.
          value = self.conjuncts(computation, operand, parameters)
        values.append(value)
      return self.conjuncts(called, called.root.name, values)
    return [None]

  def loop(
    self,
    computation: Computation,
    one: Instruction,
    parameters: Sequence[Value],
  ) -> tuple[int | None, bool, Elements]:
    """Trips (or None), whether they are a bound, elements after the loop."""
    if one.name not in self._loops:
      self._loops[one.name] = self._loop(computation, one, parameters)
    return self._loops[one.name]

  def _loop(self, computation, one, parameters):
    body = self.module.computations[one.attribute("body") or ""]
    condition = self.module.computations[one.attribute("condition") or ""]
    start = self.of(computation, one.operands[0], parameters)
    start = start if callable(start) else lambda index: None

    @functools.cache
    def step(index: int) -> int | None:
      """Amount that a trip adds to an element; None if unknown."""
      after = self.of(body, body.root.name, [_Carried])
      value = after(index) if callable(after) else None
      if isinstance(value, _Carried) and value.index == index:
        return value.offset
      return None

    def inside(index: int) -> Value:
      """Value of an operand that trips do not change."""
      return start(index) if step(index) == 0 else None

    def bound(value: Value) -> int | None:
      if isinstance(value, _Carried):
        unchanged = inside(value.index)
        value = unchanged + value.offset if isinstance(unchanged, int) else None
      return value if isinstance(value, int) else None

    config = re.search(r"known_trip_count\W+n\W+(\d+)", one.attributes)
    found = self.conjuncts(condition, condition.root.name, [_Carried])
    trips = []
    for comparison in found:
      if comparison is None:
        continue
      direction, left, right = comparison
      if not isinstance(left, _Carried) or bound(left) is not None:
        left, right = right, left
        direction = direction.translate(str.maketrans("LG", "GL"))
      last = bound(right)
      if not isinstance(left, _Carried) or last is None:
        continue
      first, by = start(left.index), step(left.index)
      if not isinstance(first, int) or not by:
        continue
      if last == _INT_MAX and self.most_tokens is not None:
        last = self.most_tokens
      away = last - first - left.offset
      away += {"LE": 1, "GE": -1}.get(direction, 0)
      trips.append(max(0, math.ceil(away / by)))
    count = min(trips, default=None)
    if config:
      count = int(config[1])

    def after(index: int) -> Value:
      first, by = start(index), step(index)
      if by == 0:
        return first
      if isinstance(first, int) and by is not None and count is not None:
        return first + by * count
      return None

    return count, not config and len(found) > 1, after

  def inside(self, computation, one, parameters) -> Elements:
    """Known values of a loop's parameter inside its body."""
    body = self.module.computations[one.attribute("body") or ""]
    start = self.of(computation, one.operands[0], parameters)
    after = self.of(body, body.root.name, [_Carried])

    def element(index: int) -> Value:
      if not callable(start) or not callable(after):
        return None
      return start(index) if after(index) == _Carried(index) else None

    return element


class Invariants:
  """Values of a token loop that are made only of data that no token changes."""

  def __init__(self, module: Module):
    self.module = module
    # Computation -> names; of those that a token loop has led to.
    self.names: dict[str, set[str]] = {}

  def enter(self, one: Instruction) -> None:
    """Marks the body of a token loop."""
    body = self.module.computations[one.attribute("body") or ""]
    root, parameter = body.root, body.parameters[0]
    passed = []
    for i, name in enumerate(root.operands):
      while body.instructions[name].opcode in ("bitcast", "copy"):
        name = body.instructions[name].operands[0]
      value = body.instructions[name]
      passed.append(
        value.opcode == "get-tuple-element"
        and value.operands[0] == parameter.name
        and int(value.attribute("index") or 0) == i
      )
    self._mark(body, [passed])

  def _mark(self, computation: Computation, parameters: Sequence[Any]) -> Any:
    """Marks a computation; returns the marks of its root, by tuple element."""
    known: dict[str, Any] = {}

    def whole(value: Any) -> bool:
      return all(value) if isinstance(value, list) else value

    for name, one in computation.instructions.items():
      operands = [known.get(operand, False) for operand in one.operands]
      value: Any = all(whole(x) for x in operands)
      if one.opcode == "parameter":
        value = parameters[int(one.literal)]
      elif one.opcode == "tuple":
        value = operands
      elif one.opcode == "get-tuple-element":
        (value,) = operands
        if isinstance(value, list):
          value = value[int(one.attribute("index") or 0)]
      elif one.opcode == "while":
        (value,) = operands
        body = self.module.computations[one.attribute("body") or ""]
        if not isinstance(value, list):
          value = [value] * len(body.root.operands)
        while True:
          after = self._mark(body, [value])
          after = after if isinstance(after, list) else [after] * len(value)
          both = [x and y for x, y in zip(value, after, strict=True)]
          if both == value:
            break
          value = both
      elif callee := one.attribute("calls") or (
        one.attribute("to_apply") if one.opcode == "call" else None
      ):
        value = self._mark(self.module.computations[callee], operands)
      known[name] = value
    # The last time counts: before, loops within were taken to change nothing.
    names = {name for name, value in known.items() if whole(value)}
    self.names[computation.name] = names
    return known[computation.root.name]
