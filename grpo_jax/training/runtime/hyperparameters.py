"""Numbers that differ between runs of one compiled program.

A hyperparameter is a Python number: code computes with it, branches on it and
closes over it. `TracedNumber` stands for such a number of a run, or of several
runs that are one program. Arithmetic with Python numbers is done on the host,
in the float64 of a plain number. Only when the result meets an array does it
become one, and there it is an input of the program instead of a constant
(`Inputs`). So `1 - config.clip_low` is as exact as with a plain number, and the
program is the same for every `clip_low`. If Python branches on a number, its
value decides, so another value may give another program. Several runs must all
take the same branch, because their program has only one.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

# Settings that must stay constants when a program is differentiated.
CONSTANT = frozenset({"algorithm.jsd_beta", "reward_model.history_share"})
# (name, value) -> input, while a program is traced; None otherwise.
_reading: contextvars.ContextVar[Callable[[str, Any], Any] | None] = (
  contextvars.ContextVar("reading", default=None)
)


class Inputs:
  """The inputs of a program, by the formula of each number.

  A trace asks for numbers by their formulas, such as "sub(1,
  config.algorithm.clip_low)", and gets inputs in the order in which it asks.
  The order depends on the code alone, so runs with other numbers have the same
  program. A number for which no input is left, or which is first asked for
  after the inputs were filled, is a constant: the result is right, but the
  program is not shared.
  """

  def __init__(self, num_floats: int = 128, num_ints: int = 32):
    """Starts without numbers.

    Args:
      num_floats, num_ints: Most inputs of either kind; `jax.jit` drops those
        that no trace asks for.
    """
    self._sizes = {float: num_floats, int: num_ints}
    self._numbers: dict[type, dict[str, Any]] = {float: {}, int: {}}
    self._is_filled = False

  def empty(self) -> tuple[tuple[Any, ...], ...]:
    """Inputs of zeros, for the first trace."""
    return tuple((kind(),) * size for kind, size in self._sizes.items())

  def filled(self) -> tuple[tuple[Any, ...], ...]:
    """The numbers as inputs; none is added after this call."""
    self._is_filled = True
    return tuple(
      (*numbers.values(), *(kind() for _ in range(len(numbers), size)))
      for (kind, size), numbers in zip(
        self._sizes.items(), self._numbers.values(), strict=True
      )
    )

  @property
  def names(self) -> tuple[str, ...]:
    """The formulas of the inputs."""
    return tuple(name for numbers in self._numbers.values() for name in numbers)

  @contextlib.contextmanager
  def reading(self, inputs: Sequence[Sequence[Any]]) -> Iterator[None]:
    """Gives a trace its inputs, as traced scalars of a weak type."""
    arrays = dict(zip(self._sizes, inputs, strict=True))

    def read(name: str, value: Any) -> Any:
      kind = type(value)
      if kind not in arrays:
        return value
      numbers = self._numbers[kind]
      is_new = name not in numbers and len(numbers) < self._sizes[kind]
      if is_new and not self._is_filled:
        numbers[name] = value
      if name not in numbers or numbers[name] != value:
        return value
      return arrays[kind][list(numbers).index(name)]

    token = _reading.set(read)
    try:
      yield
    finally:
      _reading.reset(token)


def _number(name: str, value: Any) -> Any:
  """The input of the program that is traced here, or the number itself."""
  read = _reading.get()
  return value if read is None else read(name, value)


def _arithmetic(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
  """The methods of `TracedNumber` for an operator, and for it turned round."""
  return (
    lambda own, other: own._combined(function, other),
    lambda own, other: own._combined(function, other, swapped=True),
  )


def _comparison(function: Callable[[Any, Any], Any], sign: str) -> Any:
  return lambda own, other: own._compared(function, other, sign)


# A pytree, because jitted functions of jax.numpy take only arrays and trees of
# arrays; inside them JAX calls `__jax_array__`.
@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TracedNumber:
  """A setting that is an input of compiled programs, of one or several runs.

  It takes part in arithmetic as an array [] does.

  Attributes:
    run: Index into `values`, traced; None: there is one run.
    formula: Formula from settings; empty: it is a setting.
    array: Value inside a traced function of which it is an argument.
  """

  name: str
  values: tuple[Any, ...]
  run: jax.Array | None = None  # [] int32
  formula: str = ""
  array: jax.Array | None = None  # []

  # NumPy would make an array of objects; with None it leaves the operation to
  # `TracedNumber`.
  __array_ufunc__ = None

  def tree_flatten(self):
    return (self.run, self.__jax_array__()), (
      self.name,
      self.values,
      self.formula,
    )

  @classmethod
  def tree_unflatten(cls, fixed, children):
    name, values, formula = fixed
    return cls(name, values, children[0], formula, children[1])

  def __jax_array__(self) -> jax.Array:  # [], of a weak type like a number
    if self.array is not None:
      return self.array
    if self.run is None:
      return jnp.asarray(_number(str(self.formula or self.name), self.value))
    number: Any = None
    for run, value in enumerate(self.values):
      term = _number(f"{self.formula or self.name} of run {run}", value)
      number = jnp.where(self.run == run, term, number) if run else term
    return jnp.asarray(number)

  @property
  def aval(self) -> Any:
    """The array type of the number, which `jnp.asarray` asks for.

    Without this the array would be a float32 that widens bfloat16 ones.
    """
    return jax.typeof(self.__jax_array__())

  @property
  def value(self) -> Any:
    """The value of the first run."""
    return self.values[0]

  def __repr__(self) -> str:
    return ", ".join(map(repr, self.values))

  def __format__(self, spec: str) -> str:
    return ", ".join(format(value, spec) for value in self.values)

  def _with(
    self,
    results: Iterable[Any],
    formula: str,
    name: str = "",
    run: jax.Array | None = None,
  ) -> Any:
    """Returns the results of all runs: a plain value if several runs agree."""
    values = tuple(results)
    if len(values) > 1 and all(value == values[0] for value in values):
      return values[0]
    run = self.run if run is None else run
    return TracedNumber(name or self.name, values, run, formula)

  def _the_same(self, results: Iterable[Any], what: str) -> Any:
    """Returns the result on which all runs agree.

    Raises:
      ValueError: They do not agree.
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

  def _beside(self, other: Any) -> list[tuple[Any, Any]]:
    """Pairs its number with that of `other`, for each run."""
    others = other.values if isinstance(other, TracedNumber) else (other,)
    count = max(len(self.values), len(others))
    own, others = (
      x * count if len(x) == 1 else x for x in (self.values, others)
    )
    return list(zip(own, others, strict=True))

  def _combined(self, function, other: Any, swapped: bool = False) -> Any:
    """Applies function(self, other), for every run or to arrays."""
    if not isinstance(other, (TracedNumber, bool, int, float)):
      number = jnp.asarray(self)
      return function(other, number) if swapped else function(number, other)
    name, run, formula = self.name, self.run, repr(other)
    if isinstance(other, TracedNumber):
      name = " and ".join(dict.fromkeys((self.name, other.name)))
      run = other.run if run is None else run
      formula = other.formula or other.name
    terms = [self.formula or self.name, formula]
    pairs = self._beside(other)
    if swapped:
      terms, pairs = terms[::-1], [(y, x) for x, y in pairs]
    return self._with(
      (function(x, y) for x, y in pairs),
      f"{function.__name__}({', '.join(terms)})",
      name,
      run,
    )

  def _compared(self, function, other: Any, sign: str) -> Any:
    plain = isinstance(other, (TracedNumber, bool, int, float)) or other is None
    if not plain:
      return function(jnp.asarray(self), other)
    text = other.name if isinstance(other, TracedNumber) else other
    return self._the_same(
      (function(x, y) for x, y in self._beside(other)),
      f"whether it is {sign} {text}",
    )

  __add__, __radd__ = _arithmetic(operator.add)
  __sub__, __rsub__ = _arithmetic(operator.sub)
  __mul__, __rmul__ = _arithmetic(operator.mul)
  __truediv__, __rtruediv__ = _arithmetic(operator.truediv)
  __pow__, __rpow__ = _arithmetic(operator.pow)

  def __abs__(self):
    return self._with(
      map(abs, self.values), f"abs({self.formula or self.name})"
    )

  def __neg__(self):
    return self._with(
      map(operator.neg, self.values), f"neg({self.formula or self.name})"
    )

  __lt__ = _comparison(operator.lt, "<")
  __le__ = _comparison(operator.le, "≤")
  __gt__ = _comparison(operator.gt, ">")
  __ge__ = _comparison(operator.ge, "≥")
  __eq__ = _comparison(operator.eq, "=")
  __ne__ = _comparison(operator.ne, "≠")

  __hash__ = None  # type: ignore[assignment]

  def __bool__(self) -> bool:
    return self._the_same(map(bool, self.values), "whether it is 0")

  def __float__(self) -> float:
    return self._the_same(map(float, self.values), "it as a constant")

  def __round__(self) -> int:
    return self._the_same(map(round, self.values), "it as a whole number")


def at_least(number: Any, low: float) -> Any:
  """The larger of two numbers, without a Python branch: the same program."""
  if not isinstance(number, TracedNumber):
    return max(number, low)
  return number._combined(max, low)


def merged(values: list[Any], name: str, run: jax.Array) -> Any:
  """Merges a setting of several runs: unchanged if equal, else `TracedNumber`.

  Args:
    values: Value for each run: a number, or a dataclass or tuple of settings.
    run: Index of the current run.

  Raises:
    ValueError: The runs differ in something else than a number; the message
      names it.
  """
  first = values[0]
  if all(value == first for value in values):
    return first
  kinds = {type(value) for value in values}
  if kinds == {float}:
    return TracedNumber(name, tuple(values), run)
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
    parts = [
      merged(list(items), name, run) for items in zip(*values, strict=True)
    ]
    return tuple(
      dataclasses.replace(x, formula=f"{name}.{index}")
      if isinstance(x, TracedNumber)
      else x
      for index, x in enumerate(parts)
    )
  raise ValueError(
    f"{name} is {', '.join(map(str, values))} in runs that are to be one"
    " program; they may differ in their seeds and in numbers that are not"
    " whole. Train them one by one, or in several programs."
  )
