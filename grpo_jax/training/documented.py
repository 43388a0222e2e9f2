"""What every setting means: the docstrings of the classes, as data.

A class of settings says under "Attributes:" what each field is; a class that
derives from it may say it anew.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


@dataclasses.dataclass(frozen=True)
class Setting:
  """One setting.

  Attributes:
    name: As "rl.optimizer.b1".
    hint: Its type.
    default: Its value where nothing is said.
    text: What it means; empty if its class does not say.
  """

  name: str
  hint: Any
  default: Any
  text: str


@functools.cache
def attributes(cls: type) -> Mapping[str, str]:
  """Field -> what the docstring of a class says of it; of one class alone."""
  head, _, body = (inspect.cleandoc(cls.__doc__ or "")).partition(
    "\nAttributes:\n"
  )
  del head
  found: dict[str, str] = {}
  names: list[str] = []
  for line in body.splitlines():
    entry = _ENTRY.fullmatch(line.strip())
    if line.startswith("  ") and not line.startswith("   ") and entry:
      names = entry[1].split(", ")
      found |= dict.fromkeys(names, entry[2])
    elif line.startswith("    "):
      found |= {name: f"{found[name]} {line.strip()}" for name in names}
    elif line.strip():
      break
  return found


def text(cls: type, field: str) -> str:
  """What a class, or the nearest one that it derives from, says of a field."""
  return next(
    (found[field] for c in cls.__mro__ if field in (found := attributes(c))), ""
  )


def of_class(cls: type, prefix: str = "") -> Iterator[Setting]:
  """The settings of a class and of the groups in it, in their order."""
  hints = typing.get_type_hints(cls)
  default = cls()
  for field in dataclasses.fields(cls):
    value = getattr(default, field.name)
    if dataclasses.is_dataclass(hints[field.name]):
      yield from of_class(hints[field.name], f"{prefix}{field.name}.")
      continue
    yield Setting(
      f"{prefix}{field.name}", hints[field.name], value, text(cls, field.name)
    )
