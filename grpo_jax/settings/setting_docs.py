"""The meaning of every setting: the docstrings of the classes, as data.

The docstring of a class of settings has an entry for each field under
"Attributes:". A derived class may have a new entry for a field.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import config_dict

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides
from grpo_jax.settings import phase as phase_lib

_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


@dataclasses.dataclass(frozen=True)
class Setting:
  """A setting, with its default and its meaning.

  Attributes:
    name: Name, such as "rl.optimizer.b1".
    value: Value in a config.
    default: Default value.
    text: Meaning, from the docstring.
  """

  name: str
  value: Any
  default: Any
  text: str

  @property
  def is_changed(self) -> bool:
    """True if the value differs from the default."""
    return self.value != self.default


@functools.cache
def attributes(cls: type) -> Mapping[str, str]:
  """Entries of fields in the docstring of a class, without its base classes."""
  head, _, body = (inspect.cleandoc(cls.__doc__ or "")).partition(
    "\nAttributes:\n"
  )
  del head
  entries: dict[str, str] = {}
  names: list[str] = []
  for line in body.splitlines():
    entry = _ENTRY.fullmatch(line.strip())
    if line.startswith("  ") and not line.startswith("   ") and entry:
      names = entry[1].split(", ")
      entries |= dict.fromkeys(names, entry[2])
    elif line.startswith("    "):
      entries |= {name: f"{entries[name]} {line.strip()}" for name in names}
    elif line.strip():
      break
  return entries


def text(cls: type, field: str) -> str:
  """The entry of a field in a class or its nearest base class.

  If there is no entry, the text names the file with the equation of the field.
  """
  for base in cls.__mro__:
    if field in (entries := attributes(base)):
      return entries[field]
  (owner,) = [c for c in cls.__mro__ if field in c.__dict__][-1:]
  path = owner.__module__.replace(".", "/")
  return f"See the equation in {path}.py."


def of_config(config: config_dict.ConfigDict) -> Iterator[Setting]:
  """The settings of a config, group by group.

  The defaults of a phase that not every config has are those of its kind.

  Raises:
    KeyError: The config has an unknown setting, or no algorithm.
  """
  for group, default in (
    ("", config_lib.RunConfig()),
    ("algorithm", algorithms.make_config(config.algorithm.name)),
    *(
      (phase, phase_lib.PhaseConfig.usual(config[phase].kind))
      for phase in config_lib.section_names(config)
    ),
  ):
    yield from _settings(overrides.at(config, group), default, group)


def _settings(config: Any, default: Any, where: str) -> Iterator[Setting]:
  """The settings of a group and of the groups in it."""
  prefix = f"{where}." if where else ""
  for field in dataclasses.fields(default):
    if field.name in ("sections", "algorithm"):
      continue  # `of_config` lists them as groups of their own.
    if field.name not in config:
      continue  # It is not read, as the critic of an algorithm without one.
    value, usual = config[field.name], getattr(default, field.name)
    name = f"{prefix}{field.name}"
    if dataclasses.is_dataclass(usual):
      yield from _settings(value, usual, name)
      continue
    if isinstance(value, config_dict.ConfigDict):
      value = value.to_dict()
    yield Setting(name, value, usual, text(type(default), field.name))
