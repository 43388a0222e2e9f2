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
    name: As "rl.optimizer.b1".
    value: Its value in a config.
    default: Its value where nothing is said.
    text: What it means.
  """

  name: str
  value: Any
  default: Any
  text: str

  @property
  def is_changed(self) -> bool:
    """Whether the value is another one than the default."""
    return self.value != self.default


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
  """What a class, or the nearest one that it derives from, says of a field.

  Where none says anything: which file has the equation that it is part of.
  """
  for base in cls.__mro__:
    if field in (found := attributes(base)):
      return found[field]
  (owner,) = [c for c in cls.__mro__ if field in c.__dict__][-1:]
  path = owner.__module__.replace(".", "/")
  return f"See the equation in {path}.py."


def of_config(config: config_dict.ConfigDict) -> Iterator[Setting]:
  """The settings of a config, group by group.

  The default of a phase that not every config has is that of its kind.

  Raises:
    KeyError: The config has a setting that there is not, or no algorithm.
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
    *((phase, phase_lib.PhaseConfig) for phase in phases),
  ):
    yield from _settings(
      cls, overrides.at(config, group), overrides.at(default, group), group
    )


def _settings(
  cls: type, config: Any, default: Any, where: str
) -> Iterator[Setting]:
  """The settings of a group and of those in it."""
  hints = typing.get_type_hints(cls)
  prefix = f"{where}." if where else ""
  for field in dataclasses.fields(cls):
    if field.name in ("sections", "algorithm"):
      continue  # Groups of their own.
    hint, name = hints[field.name], f"{prefix}{field.name}"
    if dataclasses.is_dataclass(hint):
      yield from _settings(
        typing.cast(type, hint), config[field.name], default[field.name], name
      )
      continue
    value, usual = (_plain(x.get(field.name)) for x in (config, default))
    yield Setting(name, value, usual, text(cls, field.name))


def _plain(value: Any) -> Any:
  """A setting as Python has it."""
  is_group = isinstance(value, config_dict.ConfigDict)
  return value.to_dict() if is_group else value
