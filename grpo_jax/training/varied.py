"""Numbers that differ between the runs of one compiled program.

A hyperparameter is a Python number: code computes with it, branches on it and
closes over it. `Varied` stands for such numbers of several runs at once.
Arithmetic with Python numbers is done for every run, in the float64 that a run
of its own would use; only where the result meets an array does it become one, a
scalar of the run that the program is working on. Where Python branches on it,
all runs have to go the same way, because the program has one way only.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp


# A pytree, because functions of jax.numpy that are jitted take no other objects
# than arrays and trees of arrays; within them `__jax_array__` is asked for.
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Varied:
  """A number for each run, and the run whose turn it is.

  Attributes:
    name: Settings that it comes from.
    values: Of every run.
    run: Index into `values`, traced.
  """

  name: str = dataclasses.field(metadata={"static": True})
  values: tuple[Any, ...] = dataclasses.field(metadata={"static": True})
  run: jax.Array  # [] int32

  # NumPy would make an array of objects; without this it asks `Varied` first.
  __array_ufunc__ = None

  def __jax_array__(self) -> jax.Array:  # [], of a weak type like a number
    number: Any = self.values[0]
    for run, value in enumerate(self.values[1:], start=1):
      number = jnp.where(self.run == run, value, number)
    return number

  def _with(self, results: Iterable[Any], name: str | None = None) -> Any:
    """The results of every run: one plain value if they are all the same."""
    values = tuple(results)
    if all(value == values[0] for value in values):
      return values[0]
    return Varied(name or self.name, values, self.run)

  def _the_same(self, results: Iterable[Any], what: str) -> Any:
    """What all runs agree on.

    Raises:
      ValueError: They do not.
    """
    values = tuple(results)
    if any(value != values[0] for value in values):
      raise ValueError(
        f"{self.name} is {', '.join(f'{x:g}' for x in self.values)} in runs of"
        f" one program, which depends on {what}: {values}. Only what changes"
        " numbers may differ, not what is computed: train the runs that agree"
        " in one program, and the others in another."
      )
    return values[0]

  def _combined(self, function, other: Any, swapped: bool = False) -> Any:
    """function(self, other), for every run or of arrays."""
    if isinstance(other, Varied):
      others, name = other.values, _joined(self.name, other.name)
    elif isinstance(other, (bool, int, float)):
      others, name = (other,) * len(self.values), self.name
    else:
      number = jnp.asarray(self)
      return function(other, number) if swapped else function(number, other)
    pairs = zip(self.values, others, strict=True)
    return self._with(
      (function(y, x) if swapped else function(x, y) for x, y in pairs), name
    )

  def _compared(self, function, other: Any, sign: str) -> Any:
    if isinstance(other, Varied):
      others: tuple[Any, ...] = other.values
    elif isinstance(other, (bool, int, float)) or other is None:
      others = (other,) * len(self.values)
    else:
      return function(jnp.asarray(self), other)
    results = (function(x, y) for x, y in zip(self.values, others, strict=True))
    shown = other.name if isinstance(other, Varied) else other
    return self._the_same(results, f"whether it is {sign} {shown}")

  def __add__(self, other):
    return self._combined(operator.add, other)

  def __radd__(self, other):
    return self._combined(operator.add, other, swapped=True)

  def __sub__(self, other):
    return self._combined(operator.sub, other)

  def __rsub__(self, other):
    return self._combined(operator.sub, other, swapped=True)

  def __mul__(self, other):
    return self._combined(operator.mul, other)

  def __rmul__(self, other):
    return self._combined(operator.mul, other, swapped=True)

  def __truediv__(self, other):
    return self._combined(operator.truediv, other)

  def __rtruediv__(self, other):
    return self._combined(operator.truediv, other, swapped=True)

  def __pow__(self, other):
    return self._combined(operator.pow, other)

  def __rpow__(self, other):
    return self._combined(operator.pow, other, swapped=True)

  def __abs__(self):
    return self._with(map(abs, self.values))

  def __neg__(self):
    return self._with(map(operator.neg, self.values))

  def __lt__(self, other):
    return self._compared(operator.lt, other, "<")

  def __le__(self, other):
    return self._compared(operator.le, other, "≤")

  def __gt__(self, other):
    return self._compared(operator.gt, other, ">")

  def __ge__(self, other):
    return self._compared(operator.ge, other, "≥")

  def __eq__(self, other):
    return self._compared(operator.eq, other, "=")

  def __ne__(self, other):
    return self._compared(operator.ne, other, "≠")

  __hash__ = None  # type: ignore[assignment]

  def __bool__(self) -> bool:
    return self._the_same(map(bool, self.values), "whether it is 0")

  def __float__(self) -> float:
    return self._the_same(map(float, self.values), "it as a constant")

  def __round__(self) -> int:
    return self._the_same(map(round, self.values), "it as a whole number")


def _joined(*names: str) -> str:
  return " and ".join(dict.fromkeys(names))


def merged(values: list[Any], name: str, run: jax.Array) -> Any:
  """One setting of several runs: as it is where they agree, else `Varied`.

  Args:
    values: Of each run: a number, or a dataclass or tuple of settings.
    name: Of the setting.
    run: The run whose turn it is.

  Raises:
    ValueError: They differ in something else than a number; names it.
  """
  first = values[0]
  if all(value == first for value in values):
    return first
  kinds = {type(value) for value in values}
  if kinds == {float}:
    return Varied(name, tuple(values), run)
  if len(kinds) == 1 and dataclasses.is_dataclass(first):
    fields = {
      field.name: merged(
        [getattr(value, field.name) for value in values],
        f"{name}.{field.name}",
        run,
      )
      for field in dataclasses.fields(first)
    }
    return dataclasses.replace(first, **fields)  # type: ignore[type-var]
  if kinds == {dict} and len({tuple(value) for value in values}) == 1:
    return {
      key: merged([value[key] for value in values], f"config.{key}", run)
      for key in first
    }
  if kinds == {tuple} and len({len(value) for value in values}) == 1:
    return tuple(
      merged(list(items), name, run) for items in zip(*values, strict=True)
    )
  raise ValueError(
    f"{name} is {', '.join(map(str, values))} in runs that are to be one"
    " program; they may differ in their seeds and in numbers that are not"
    " whole. Train them one by one, or in several programs."
  )
