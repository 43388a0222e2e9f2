"""Config files, and settings that are set by name, such as `rl.steps`.

`config` is `grpo_jax.config`. The command line finds files and checks settings
by the same functions.
"""

from __future__ import annotations

import difflib
import os
import pathlib
import runpy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from ml_collections import config_dict

from grpo_jax import imports
from grpo_jax.data import formats, sources
from grpo_jax.settings import groups, typed
from grpo_jax.settings import phase as phase_lib

# A folder of the package; in a checkout, a link to the folder beside it.
CONFIGS = (pathlib.Path(__file__).parents[1] / "configs").resolve()
# Groups in which the user chooses the names of settings, each with an example;
# "*" stands for any phase.
_FREE_GROUPS = {
  "*.transform_options": "{'short': {'limit': 200.0}}",
  "data.chat_options": "{'enable_thinking': False}",
  "data.image_options": "{'max_pixels': 200704}",
  "data.fields": "{'prompt': 'question', 'answer': 'answer'}",
  "data.task_options": "{'level': 2}",
  "sampling.domain_limits": "{'add': 8}",
  "environment.options": "{'word': 'hey'}",
  "judge.service.options": "{'seed': 1}",
  "judge.verdicts": "{'yes': 1.0, 'no': 0.0}",
  "rewards.domains": "{'math_accuracy': ('algebra', 'geometry')}",
  "rewards.options": "{'cosine_length': {'max_len': 64}}",
  "rewards.schedules": "{'think_answer_format': ((0, 1.0), (100, 0.0))}",
}
_NEEDED = {
  int: "a whole number",
  float: "a number",
  bool: "True or False",
  str: "a text",
  tuple: "a tuple",
}


def free_example(name: str) -> str | None:
  """An example of a group whose names the user chooses; None of others."""
  of_phases = f"*.{name.partition('.')[2]}"
  return _FREE_GROUPS.get(name) or _FREE_GROUPS.get(of_phases)


def config(
  name: str | os.PathLike, algorithm: Any = None, **settings: Any
) -> typed.Config:
  """Returns the config of a file, with some settings changed.

      config("quickstart", "gspo", **{"rl.steps": 50, "seed": 1})
      config("jsonl", data=[{"prompt": "1 + 1 =", "answer": "2"}])

  More settings are changed by assignment, as in `config.rl.steps = 100`. If no
  setting has the assigned name, that is an AttributeError. A new phase, as
  `phase_config` makes it, is added `with config.unlocked()`.

  Args:
    name: The name of a file in configs/, such as "quickstart" or
      "recipes/dapo"; or the path of another file, which ends in ".py".
    algorithm: The argument of the file's `get_config`: an algorithm, or a model
      for a recipe. None: its default.
    **settings: New values by the names of settings; names with dots as
      `**{"rl.steps": 50}`. `data` may be the records themselves: a list of
      dictionaries, a data set of Hugging Face's `datasets`, or a dictionary of
      both parts, "train" and "test". Columns beside those of a record are among
      its extras, which reward functions read. The run keeps a copy.

  Raises:
    FileNotFoundError: The file does not exist.
    KeyError: The setting does not exist, or the name is that of a group of
      settings; the message has the nearest name.
    TypeError: A value has the wrong type.
    ValueError: The file makes no config, or `settings` has the algorithm.
  """
  arguments = () if algorithm is None else (algorithm,)
  result = load(str(find(name)), *arguments)
  apply(result, with_rows(settings))
  result.lock()
  return result


def text_of(error: BaseException) -> str:
  """The message of an error."""
  # str(KeyError("x")) is "'x'", so the argument itself is taken.
  if isinstance(error, KeyError) and error.args:
    return str(error.args[0])
  return str(error)


def shipped() -> list[str]:
  """Names of the configs of the library, such as "recipes/dapo"."""
  return sorted(
    file.relative_to(CONFIGS).with_suffix("").as_posix()
    for file in CONFIGS.rglob("*.py")
    if "def get_config(" in file.read_text(encoding="utf-8")
  )


def find(name: str | os.PathLike) -> pathlib.Path:
  """Finds the config file for a path or a name.

  A path of the library, such as "configs/quickstart.py", is found from any
  folder.

  Args:
    name: A path, or the name of a config of the library, such as "quickstart"
      or "recipes/dapo".

  Raises:
    FileNotFoundError: There is no such file; the message has the nearest name
      and the list of all.
  """
  text = os.fspath(name)
  path = pathlib.Path(text)
  if path.is_file():
    return path
  stem = text.removeprefix("configs/").removesuffix(".py")
  # "mine.py" would be a file of the user.
  is_name = text.startswith("configs/") or not text.endswith(".py")
  inside = not path.is_absolute() and ".." not in path.parts
  file = CONFIGS / f"{stem}.py"
  if is_name and inside and file.is_file():
    cwd = pathlib.Path.cwd()
    return file.relative_to(cwd) if file.is_relative_to(cwd) else file
  names = shipped()
  matches = difflib.get_close_matches(stem, names, n=1, cutoff=0.5)
  hint = f" Did you mean {matches[0]!r}?" if matches else ""
  listing = (
    f"These come with the library: {', '.join(names)}."
    if names
    else f"The folder {CONFIGS} of grpo_jax is missing."
  )
  raise FileNotFoundError(
    f"config: there is no config file {text} (the folder here is"
    f" {pathlib.Path.cwd()}).{hint} {listing} A path of another file ends in"
    " '.py'."
  )


def load(path: str, *arguments: Any) -> config_dict.ConfigDict:
  """The config of a file.

  Args:
    path: Path of a Python file with `get_config`.

  Raises:
    ValueError: There is no such function, or it fails.
  """
  try:
    module = runpy.run_path(path)
    if "get_config" not in module:
      raise ValueError("it defines no get_config(); see configs/quickstart.py.")
    config = module["get_config"](*arguments)
  except Exception as error:  # A user's program may raise any exception.
    kind = type(error).__name__
    raise ValueError(f"{path}: {text_of(error)} ({kind})") from error
  if not isinstance(config, config_dict.ConfigDict):
    raise ValueError(
      f"{path}: get_config() returned {config!r}; needs a ConfigDict, as"
      " configs/quickstart.py makes it."
    )
  return config


def at(config: config_dict.ConfigDict, name: str) -> Any:
  """The setting or group of this name; an empty group if there is none."""
  node: Any = config
  for part in name.split(".") if name else ():
    node = node.get(part, {}) if hasattr(node, "get") else {}
  return node


def complaint(
  config: config_dict.ConfigDict, name: str, spelled: Callable[[str], str]
) -> str | None:
  """The reason why a name is not that of a single setting, or None.

  Args:
    name: The name, such as "rl.steps".
    spelled: Function that spells another name as the user would.
  """
  parts = name.split(".")
  for group in (".".join(parts[:n]) for n in range(2, len(parts))):
    if free_example(group) and not len(at(config, group)):
      return (
        f"the settings of config.{group} have names of your own; write it"
        f" whole: {whole(group, spelled)}."
      )
  node: Any = config
  where = ""
  for part in parts:
    if not isinstance(node, config_dict.ConfigDict):
      return f"config{where} is a value; it has no settings of its own."
    if part not in node:
      matches = difflib.get_close_matches(part, list(node), n=1, cutoff=0.5)
      hint = ""
      if matches:
        hint = f" Did you mean {spelled(f'{where}.{matches[0]}'[1:])}?"
      if owner := switched(node):
        hint += owner.hint(part, node.get(owner.switch))
      elif not where and part in phase_lib.OF_CRITIC:
        hint = (
          f" Algorithm {config.algorithm.name!r} has no critic; choose one that"
          " has, such as 'ppo'."
        )
      return (
        f"config{where} has no setting {part!r}.{hint} It has:"
        f" {', '.join(node)}."
      )
    node, where = node[part], f"{where}.{part}"
  if isinstance(node, config_dict.ConfigDict) and not free_example(name):
    keys = (spelled(f"{name}.{key}") for key in node)
    return (
      f"config.{name} is a group of settings; set them one by one:"
      f" {', '.join(keys)}."
    )
  return None


def whole(group: str, spelled: Callable[[str], str]) -> str:
  """Example of setting a whole free group, quoted for a shell."""
  quote = '"' if spelled(group).startswith("-") else ""
  return f"{spelled(group)}={quote}{free_example(group)}{quote}"


def switched(group: Any) -> type[groups.Switched] | None:
  """The class of a group that has a switch; else None."""
  is_group = isinstance(group, config_dict.ConfigDict)
  return vars(group).get("_group") if is_group else None


def is_switch(config: config_dict.ConfigDict, name: str) -> bool:
  """Returns True if a setting says which others its group has."""
  where, _, last = name.rpartition(".")
  group = switched(at(config, where))
  return group is not None and group.switch == last


def apply(config: config_dict.ConfigDict, settings: Mapping[str, Any]) -> None:
  """Sets settings by their names.

  Args:
    settings: Name, such as "rl.steps" -> value.

  Raises:
    KeyError: There is no such setting, or it is a group; the message has the
      nearest name.
    TypeError: A value has another type.
    ValueError: A name is that of the algorithm.
  """
  for name, value in sorted(
    settings.items(), key=lambda item: not is_switch(config, item[0])
  ):
    prefix = f"config: {name}={_short(value)}: "
    if name in ("algorithm", "algorithm.name"):
      # The fields of one algorithm must not stay with another.
      raise ValueError(
        f"{prefix}the algorithm is chosen with the file, so that it comes with"
        f" its own defaults: config(FILE, {value!r})."
      )
    if problem := complaint(config, name, lambda name: name):
      raise KeyError(f"{prefix}{problem}")
    *groups, last = name.split(".")
    parent = at(config, ".".join(groups))
    if example := free_example(name):
      if not isinstance(value, Mapping):
        raise TypeError(f"{prefix}needs a dictionary, as {example}.")
      with parent.unlocked():
        parent[last] = config_dict.ConfigDict(dict(value))
      continue
    parent[last] = _fitting(parent.get_type(last), value, name)


def _short(value: Any) -> str:
  """A value for a message; a long value is cut."""
  text = repr(value)
  return text if len(text) <= 80 else f"{text[:80]}… ({type(value).__name__})"


def misfit(name: str, value: Any, kind: type) -> TypeError:
  """The error for a value that a setting of this type does not accept."""
  is_rows = hasattr(value, "__len__") and not isinstance(value, str)
  hint = ""
  if name.rpartition(".")[2] in ("train_path", "eval_path") and is_rows:
    hint = " Records in memory are given as config(FILE, data=ROWS)."
  form = _NEEDED.get(kind, "a group of settings, which are set one by one")
  return TypeError(f"config: {name}={_short(value)}: needs {form}.{hint}")


def with_rows(values: Mapping[str, Any]) -> dict[str, Any]:
  """Converts settings whose `data` are records in memory.

  Args:
    values: Settings by name. `data` is a list of dictionaries, or a data set of
      Hugging Face's `datasets`; or a dictionary of two, "train" and "test".

  Raises:
    TypeError: `data` has another type, or a record has.
    ValueError: A record is too deep, or has half a surrogate pair.
  """
  values = {**values}
  data = values.pop("data", None)
  if data is None:
    return values
  parts = data if isinstance(data, Mapping) else {"train": data}
  if "train" not in parts or parts.keys() - {"train", "test"}:
    raise TypeError(
      f"config: data has the parts {sorted(parts)!r:.80}; needs 'train'"
      " and perhaps 'test'. Settings of data are set one by one, as"
      " **{'data.train_path': …}."
    )
  settings = {"data.source": "jsonl"}
  for part, setting in ("train", "train_path"), ("test", "eval_path"):
    if part in parts:
      rows = _rows(parts[part], values.get("data.fields"))
      settings[f"data.{setting}"] = imports.name_of(rows)
  return {**settings, **values}


def _rows(data: Any, fields: Any) -> list[dict[str, Any]]:
  """Converts records in memory to plain dictionaries."""
  is_set = hasattr(data, "column_names") and hasattr(data, "__len__")
  rows = list(data) if is_set or isinstance(data, list | tuple) else None
  bad = [x for x in rows or () if not isinstance(x, Mapping)]
  if not rows or bad:
    sample = bad[0] if bad else data
    raise TypeError(
      f"config: data has {sample!r:.80} ({type(sample).__name__}); needs a"
      " list of dictionaries, at least one, or a data set of the package"
      " `datasets`. Its columns are named in config.data.format or"
      " config.data.fields."
    )
  for number, row in enumerate(rows):
    try:
      sources.check(row)
    except ValueError as error:
      raise ValueError(f"config: data: row {number}: {error}") from error
  plain = [{str(name): value for name, value in row.items()} for row in rows]
  if not is_set:
    return plain
  field_names = fields if isinstance(fields, Mapping) else None
  return [formats.without_nulls(row, field_names) for row in plain]


def _fitting(kind: type, value: Any, name: str) -> Any:
  """Converts a value to the type of a setting.

  Raises:
    TypeError: The value has another type.
  """
  value = imports.named(value)  # Objects become their names first.
  if isinstance(value, np.generic):
    value = value.item()
  if isinstance(value, list):
    value = tuple(value)
  if kind is tuple and not isinstance(value, tuple):
    value = (value,)
  is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
  fits = is_number if kind is float else isinstance(value, kind)
  if isinstance(value, bool) and kind is int:
    fits = False
  if kind in _NEEDED and value is not None and not fits:
    raise misfit(name, value, kind)
  return value
