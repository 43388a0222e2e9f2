"""The parts of a mixture: entries of `config.data.mixture`, checked."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

# Settings of the data that a part has for itself; it shares all others.
OWN = (
  "source",
  "name",
  "task_options",
  "train_path",
  "eval_path",
  "format",
  "fields",
  "train_split",
  "eval_split",
  "streaming",
  "separator",
  "datasets",
  "quarantine",
  "drop_tag_probability",
  "rejected_share",
)


class Part(NamedTuple):
  """One entry.

  Attributes:
    data: Settings of its records, a `DataConfig`.
    weight: Its share of the training prompts is in proportion.
  """

  data: Any
  weight: float


def parts(data: Any) -> dict[str, Part]:
  """The parts of a `DataConfig` whose source is "mixture", by domain.

  Raises:
    TypeError: A setting of a part is of another kind than that of the data.
    ValueError: An entry is no part, two have one name, or text and ids mix.
  """
  if not data.mixture:
    raise ValueError(
      "config.data.source='mixture' and config.data.mixture is empty; name its"
      " parts, as ({'name': 'add'}, {'name': 'sort', 'weight': 2.0})."
    )
  found: dict[str, Part] = {}
  for place, entry in enumerate(data.mixture):
    where = f"config.data.mixture[{place}]"
    name, part = _part(where, data, entry)
    if name in found:
      raise ValueError(
        f"{where}: two parts are the domain {name!r}; give each a 'domain' of"
        " its own."
      )
    found[name] = part
  if not any(part.weight for part in found.values()):
    raise ValueError("config.data.mixture: all weights are 0.")
  kinds = {part.data.source == "task" for part in found.values()}
  if len(kinds) > 1:
    raise ValueError(
      "config.data.mixture: some parts are tasks, which are made of ids, and"
      " some are text; a policy has one tokenizer. Take one kind."
    )
  return found


def _part(where: str, data: Any, entry: Mapping[str, Any]) -> tuple[str, Part]:
  if not hasattr(entry, "items"):
    raise TypeError(
      f"{where} is {entry!r:.60}; needed is a group, as {{'name': 'add'}}."
    )
  settings = dict(entry.items())
  given = settings.pop("domain", None)
  weight = settings.pop("weight", 1.0)
  if type(weight) not in (int, float) or not 0 <= weight < 1e9:
    raise ValueError(
      f"{where} has the weight {weight!r}; needed is a number from 0 on."
    )
  if unknown := settings.keys() - {*OWN}:
    raise ValueError(
      f"{where} has {sorted(unknown)}; it may have domain, weight and"
      f" {', '.join(OWN)}. All else is set once, in config.data."
    )
  if settings.get("source") == "environment":
    raise ValueError(
      f"{where} has the prompts of an environment, which answers all prompts of"
      " a run; set config.data.source='environment' instead."
    )
  if settings.get("source") == "mixture":
    raise ValueError(f"{where} is a mixture itself; name its parts instead.")
  usual = type(data)()
  for name, value in settings.items():
    default = getattr(usual, name)
    is_group = isinstance(default, Mapping) and hasattr(value, "items")
    is_whole = isinstance(default, float) and type(value) is int
    if not (isinstance(value, type(default)) or is_group or is_whole):
      raise TypeError(
        f"{where}: {name} is {value!r:.60}; it needs a"
        f" {type(default).__name__}, as {default!r}."
      )
  made = dataclasses.replace(
    data, **{"source": "task", "mixture": (), **settings}
  )
  name = given if given is not None else _name(made)
  if not isinstance(name, str) or not name:
    raise ValueError(f"{where} has the domain {name!r:.60}; needed is a text.")
  return name, Part(made, float(weight))


def _name(data: Any) -> str:
  """What a part without a name is called."""
  if data.source in ("jsonl", "text"):
    return pathlib.PurePosixPath(data.train_path).stem
  if data.source == "reasoning_gym":
    return "_".join(str(entry.get("name")) for entry in data.datasets)
  return data.name
