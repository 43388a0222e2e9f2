"""Tools of a user's own, good ones and others."""

import contextlib
import time
from typing import Any, Literal


def add(x: float, y: float = 1.0, note: str | None = None) -> float:
  """Adds two numbers.

  They may be
  of any size.

  Args:
    x: The first
      number.
    y (float): The second: 1 if
      it is missing.
    note: Unused.

  Returns:
    Their sum.
  """
  del note
  return x + y


def everything(
  unit: Literal["m", "km"],
  choice: Literal[1, "a"],
  items: list[str],
  pair: tuple[int, str],
  table: dict[str, int],
  either: int | str,
  nested: list[int] | str,
  anything: Any,
  plain: list,
  flag: bool,
) -> None:
  """Takes everything.

  Args:
    unit: A
    choice: B
    items: C
    pair: D
    table: E
    either: F
    nested: G
    anything: H
    plain: I
    flag: J
  """


def fail(how: str) -> str:
  """Fails.

  Args:
    how: In which way.
  """
  if how == "hang":
    while True:
      with contextlib.suppress(Exception):  # It hears nothing.
        time.sleep(0.01)
  if how == "object":
    return object()
  if how == "long":
    return "é" * 10**6
  if how == "surrogate":
    return "\ud800"
  raise ValueError("x" * 10**4 if how == "loud" else how)


GIVEN: dict[str, Any] = {}


def give(what: str) -> Any:
  """Gives something.

  Args:
    what: Its name.
  """
  return GIVEN[what]


def no_document(x: int) -> int:
  return x


def no_hint(x) -> int:
  """Counts.

  Args:
    x: A number.
  """
  return x


def not_described(x: int) -> int:
  """Counts."""
  return x


def many(*x: int) -> int:
  """Counts.

  Args:
    x: Numbers.
  """
  return len(x)


def strange(x: set) -> int:
  """Counts.

  Args:
    x: A set.
  """
  return len(x)


async def waits(x: int) -> int:
  """Waits.

  Args:
    x: Seconds.
  """
  return x


def search(query: str) -> str:
  """Searches.

  Args:
    query: Words.
  """
  return query


def letters(prompts, completions, ids, extras):
  """A reward: the share of the answer's letters that a completion has."""
  return [
    len({*text} & {*extra["answer"]}) / len({*extra["answer"]})
    for text, extra in zip(completions, extras, strict=True)
  ]


async def slowly(prompts, completions, ids, extras):
  """A reward that waits for somebody."""
  return letters(prompts, completions, ids, extras)


def by_tokens(prompts, completions, ids, extras, *, tokens):
  """A reward that reads tokens."""
  return [0.0 for _ in tokens]


def undecided(prompts, completions, ids, extras):
  """A reward that never applies."""
  return [None for _ in prompts]
