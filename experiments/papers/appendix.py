"""The appendix of a paper: hyperparameters and environment, as LaTeX."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.comparison import runs as runs_lib
from experiments.papers import citations
from experiments.sweeps import latex, made
from grpo_jax import algorithms
from grpo_jax.algorithms import options
from grpo_jax.settings import overrides
from grpo_jax.training.runtime import log

# They stand in the table even where they are the library's defaults.
_ALWAYS = (
  *("model.width", "model.num_layers", "model.dtype"),
  *("sampling.temperature", "sampling.top_p", "sampling.max_new_tokens"),
  *("eval.num_prompts", "eval.temperature", "rewards.functions"),
)
_OF_PHASES = (
  *("steps", "num_prompts", "group_size", "num_minibatches", "num_epochs"),
  *("optimizer.name", "optimizer.learning_rate", "optimizer.schedule"),
  *("optimizer.warmup_steps", "optimizer.clip_norm", "optimizer.weight_decay"),
)
_OFF = ("null", "0", "0.0", "false", '""', '"none"')


def of_config(argument: str) -> tuple[str, str]:
  """LaTeX and BibTeX of a config, FILE or FILE:ALGORITHM.

  Raises:
    ValueError: The config does not exist.
  """
  path, _, algorithm = argument.partition(":")
  config = overrides.load(path, *([algorithm] if algorithm else []))
  content = json.loads(config.to_json())
  name = content["algorithm"]["name"]
  return _appendix({name: [content]}, [log.environment()])


def of_runs(folders: Sequence[pathlib.Path]) -> tuple[str, str]:
  """LaTeX and BibTeX of the runs in folders.

  Raises:
    FileNotFoundError: A folder has no run.
  """
  found = runs_lib.find(folders)
  configs: dict[str, list[dict[str, Any]]] = {}
  environments = []
  for folder in found:
    content = json.loads((folder / log.CONFIG).read_text("utf-8"))
    configs.setdefault(content["algorithm"]["name"], []).append(content)
    path = folder / log.ENVIRONMENT
    if path.exists():
      environments += json.loads(path.read_text("utf-8"))[-1:]
  return _appendix(configs, environments)


def _appendix(
  configs: Mapping[str, Sequence[Mapping[str, Any]]],
  environments: Sequence[Mapping[str, Any]],
) -> tuple[str, str]:
  """LaTeX and BibTeX of configs by their algorithm."""
  bibtex, without = citations.of(configs)
  lines = ["% Needs \\usepackage{booktabs}."]
  if without:
    lines.append(f"% No paper is known of: {', '.join(without)}.")
  lines += _settings(configs)
  lines += _environment(environments)
  return "\n".join(lines) + "\n", bibtex


def _settings(
  configs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[str]:
  """Tables of the common settings, and of those that differ by algorithm."""
  texts = [[log.flatten(x) for x in several] for several in configs.values()]
  every = [config for several in configs.values() for config in several]
  names = {name for config in every for name in _names(config)} - {"seed"}
  values = {
    name: [_values(name, several) for several in texts]
    for name in sorted(names)
  }
  rows = [
    [_setting(k), latex.escape(v[0])]
    for k, v in values.items()
    if len(set(v)) == 1
  ]
  seeds = sorted({int(config["seed"]) for config in every})
  rows.append([_setting("seeds"), ", ".join(map(str, seeds))])
  differing = [
    [_setting(k), *map(latex.escape, v)]
    for k, v in values.items()
    if len(set(v)) > 1
  ]
  whose = "all algorithms" if len(configs) > 1 else next(iter(configs))
  lines = latex.table(
    latex.tabular("ll", ["setting", "value"], rows),
    latex.escape(
      f"Settings of {whose}; all others have the library's defaults."
    ),
    "tab:settings",
  )
  if differing:
    head = ["setting", *map(latex.escape, configs)]
    lines += latex.table(
      latex.tabular("l" * len(head), head, differing),
      "Settings in which the algorithms differ.",
      "tab:differing",
    )
  return lines


def _setting(name: str) -> str:
  return f"\\texttt{{{latex.escape(name)}}}"


def _values(name: str, several: Iterable[Mapping[str, str]]) -> str:
  """The values of a setting, each once."""
  found = dict.fromkeys(one.get(name, "–").strip('"') for one in several)
  return ", ".join(found)


def _names(config: Mapping[str, Any]) -> list[str]:
  """The settings of a config that a reader needs."""
  known = log.flatten(config)
  used = [
    *_ALWAYS,
    *(
      f"{phase}.{x}"
      for phase in dict.fromkeys(config["phases"])
      for x in _OF_PHASES
    ),
    "algorithm.name",
    *(f"algorithm.{x}" for x in _own_settings(config["algorithm"]["name"])),
  ]
  own = made.settings_of(config)
  # Settings of phases that the run does not have say nothing.
  sections = {
    name
    for name, value in config.items()
    if isinstance(value, dict)
    and "kind" in value
    and name not in config["phases"]
  }
  return [
    name
    for name in dict.fromkeys([*used, *own])
    if name in known and name.partition(".")[0] not in sections
  ]


def _own_settings(name: str) -> list[str]:
  """Settings that an algorithm adds to the common ones, or changes."""
  fields = dataclasses.fields(algorithms.get_algorithm(name).config_class)
  common = {x.name: x.default for x in dataclasses.fields(options.CommonConfig)}
  return [
    x.name
    for x in fields
    if (x.name not in common or x.default != common[x.name])
    and json.dumps(x.default) not in _OFF
  ]


def _environment(several: Sequence[Mapping[str, Any]]) -> list[str]:
  """A table of versions and devices."""
  rows: dict[str, dict[str, None]] = {}
  for one in several:
    commit = one["git"]
    entries = {
      **one["packages"],
      "Python": one["python"],
      "system": one["platform"],
      "devices": f"{one['num_devices']} {one['device_kind']}",
      "processes": str(one["num_processes"]),
      "commit": commit
      and commit["commit"][:12] + (" with changes" if commit["dirty"] else ""),
    }
    for name, value in entries.items():
      if value is not None:
        rows.setdefault(name, {})[value] = None
  if not rows:
    return []
  return latex.table(
    latex.tabular(
      "ll",
      ["", "version"],
      [[latex.escape(k), latex.escape(", ".join(v))] for k, v in rows.items()],
    ),
    "What the runs were made with.",
    "tab:environment",
  )
