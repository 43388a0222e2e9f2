"""The meaning of every setting: the docstrings of the classes, as data.

The docstring of a class of settings has an entry for each field under
"Attributes:". A derived class may have a new entry for a field.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
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
  """One setting.

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
  """The entry of a field in a class or its nearest base class.

  If there is no entry, the text names the file with the equation of the field.
  """
  for base in cls.__mro__:
    if field in (found := attributes(base)):
      return found[field]
  (owner,) = [c for c in cls.__mro__ if field in c.__dict__][-1:]
  path = owner.__module__.replace(".", "/")
  return f"See the equation in {path}.py."


def of_config(config: config_dict.ConfigDict) -> Iterator[Setting]:
  """The settings of a config, group by group.

  The defaults of a phase that not every config has are those of its kind.

  Raises:
    KeyError: The config has an unknown setting, or no algorithm.
  """
  name = config.algorithm.name
  default = config_lib.default_config(name)
  phases = config_lib.section_names(config)
  for phase in phases:
    if phase not in default:
      default[phase] = config_lib.phase_config(config[phase].kind)
  for group, cls in (
    ("", config_lib.RunConfig),
    ("algorithm", algorithms.get_algorithm(name).config_class),
    *((phase, phase_lib.CLASSES[config[phase].kind]) for phase in phases),
  ):
    yield from _settings(
      cls, overrides.at(config, group), overrides.at(default, group), group
    )


def _settings(
  cls: type, config: Any, default: Any, where: str
) -> Iterator[Setting]:
  """The settings of a group and of the groups in it."""
  hints = typing.get_type_hints(cls)
  prefix = f"{where}." if where else ""
  for field in dataclasses.fields(cls):
    if field.name in ("sections", "algorithm"):
      continue  # `of_config` lists them as groups of their own.
    if not (field.name in config and field.name in default):
      continue  # The critic of an algorithm that has none.
    hint, name = hints[field.name], f"{prefix}{field.name}"
    if dataclasses.is_dataclass(hint):
      yield from _settings(
        typing.cast(type, hint), config[field.name], default[field.name], name
      )
      continue
    value, usual = (_plain(x.get(field.name)) for x in (config, default))
    yield Setting(name, value, usual, text(cls, field.name))


def _plain(value: Any) -> Any:
  """The value of a setting; a group becomes a dict."""
  is_group = isinstance(value, config_dict.ConfigDict)
  return value.to_dict() if is_group else value
