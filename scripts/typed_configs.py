"""Writes `grpo_jax/settings/typed.pyi`: the settings, for editors and mypy.

    python scripts/typed_configs.py

The file is made of the dataclasses of settings and their docstrings. A test
checks that it is up to date.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import pathlib
import re
import textwrap
import typing
from typing import Any

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib
from grpo_jax.settings import setting_docs

FILE = (
  pathlib.Path(__file__).resolve().parents[1] / "grpo_jax/settings/typed.pyi"
)
# Settings that take a Python object too, and become its name.
_OBJECTS = {
  "Data.name": "Any",
  "Data.environment": "Any",
  "Rewards.functions": "tuple[str | Callable[..., Any], ...]",
}
_HEAD = '''"""Every setting of a config, for editors and mypy.

`scripts/typed_configs.py` has written this file, from the dataclasses of
settings and their docstrings. Do not edit it.
"""

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

class Group:
  """A group of settings; `config["name"]` is one whose name is not known."""

  @property
  def is_locked(self) -> bool: ...
  def __getitem__(self, name: str) -> Any: ...
  def __setitem__(self, name: str, value: Any) -> None: ...
  def __contains__(self, name: str) -> bool: ...
  def __iter__(self) -> Iterator[str]: ...
  def __len__(self) -> int: ...
  def get(self, name: str, default: Any = None) -> Any: ...
  def items(self) -> ItemsView[str, Any]: ...
  def keys(self) -> KeysView[str]: ...
  def update(self, *settings: Mapping[str, Any], **named: Any) -> None: ...
  def lock(self) -> Self: ...
  def unlock(self) -> Self: ...
  def unlocked(self) -> AbstractContextManager[None]: ...
  def copy_and_resolve_references(self) -> Self: ...
  def to_dict(self) -> dict[str, Any]: ...
  def to_json(self) -> str: ...

class Free(Group):
  """A group whose settings have names of your own."""

  def __getattr__(self, name: str) -> Any: ...
  def __setattr__(self, name: str, value: Any) -> None: ...
'''


@dataclasses.dataclass(frozen=True)
class Field:
  """Line of a class: its name, its type as text, its meaning."""

  name: str
  hint: str
  text: str


def stub() -> str:
  """Text of the whole file."""
  classes: dict[str, list[Field]] = {}
  run = [
    field
    for field in _fields(config_lib.RunConfig, classes)
    if field.name not in ("sections", "algorithm")
  ]
  _phases(classes)
  of_algorithms = {"name": Field("name", "str", "Name of the algorithm.")}
  for entry in algorithms.ALGORITHMS.values():
    for field in _fields(entry.config_class, {}):
      of_algorithms.setdefault(field.name, field)
  classes["Algorithm"] = list(of_algorithms.values())
  run += [Field("algorithm", "Algorithm", "Objective of what is drawn.")]
  run += [
    Field(name, _name(type(section)), "A phase.")
    for name, section in phase_lib.SECTIONS.items()
  ]
  classes["Config"] = run
  return "\n".join(
    [_HEAD, *(_class(name, fields) for name, fields in classes.items())]
  )


def _phases(classes: dict[str, list[Field]]) -> None:
  """Adds the classes of phases; `AnyPhase` has the fields of all kinds."""
  kinds = tuple(dict.fromkeys(phase_lib.CLASSES.values()))
  mro = type("AnyPhase", kinds, {}).__mro__
  for cls in reversed([*filter(dataclasses.is_dataclass, mro)]):
    bases = [*filter(dataclasses.is_dataclass, cls.__bases__)]
    head = ", ".join(map(_name, bases)) or "Group"
    if len(f"class {_name(cls)}({head}):") > 80:
      head = f"\n  {head}\n"
    known = {field.name for base in bases for field in dataclasses.fields(base)}
    fields = _fields(cls, classes)
    del classes[_name(cls)]
    classes[f"{_name(cls)}({head})"] = [
      field for field in fields if field.name not in known
    ]


def _name(cls: type) -> str:
  return cls.__name__.removesuffix("Config")


def _fields(cls: type, classes: dict[str, list[Field]]) -> list[Field]:
  """The fields of a class; those of the groups in it go to `classes`."""
  hints = typing.get_type_hints(cls)
  found = []
  for field in dataclasses.fields(cls):
    hint = hints[field.name]
    text = setting_docs.text(cls, field.name)
    if dataclasses.is_dataclass(hint):
      _fields(typing.cast(type, hint), classes)
      found.append(Field(field.name, _name(typing.cast(type, hint)), text))
      continue
    shown = _OBJECTS.get(f"{_name(cls)}.{field.name}") or _hint(hint)
    found.append(Field(field.name, shown, text))
  if cls is not config_lib.RunConfig:
    classes[_name(cls)] = found
  return found


def _hint(hint: Any) -> str:
  """A type as it is written; mappings have names of the user's own."""
  if isinstance(hint, type) and not typing.get_args(hint):
    return hint.__name__
  if typing.get_origin(hint) is collections.abc.Mapping:
    return "Free"
  return re.sub(r"(collections\.abc|typing)\.", "", str(hint))


def _class(name: str, fields: list[Field]) -> str:
  head = name if "(" in name else f"{name}(Group)"
  lines = [f"class {head}:", *([] if fields else ["  pass"])]
  for field in fields:
    lines.append(f"  {field.name}: {field.hint}")
    if field.text:
      lines += _docstring(field.text)
  return "\n".join(lines) + "\n"


def _docstring(text: str) -> list[str]:
  escaped = text.replace("\\", "\\\\")
  if escaped.startswith('"'):
    escaped = f" {escaped}"
  return textwrap.wrap(
    f'"""{escaped}"""',
    78,
    initial_indent="  ",
    subsequent_indent="  ",
    break_long_words=False,
    break_on_hyphens=False,
  )


if __name__ == "__main__":
  FILE.write_text(stub(), encoding="utf-8")
