"""The page of all settings, made of the docstrings of their classes."""

from __future__ import annotations

import dataclasses

from experiments.site import markdown
from grpo_jax.algorithms import options
from grpo_jax.settings import compatibility, setting_docs
from grpo_jax.settings import config as config_lib

_HEAD = """# Settings

This page has every setting of a run, with its default and its meaning. To
change a setting, write `--config.NAME=VALUE` on the command line of any
program, or `config.NAME = VALUE` in Python. Names and values are checked before
anything is compiled. If a name is misspelt, the error suggests the nearest one.

In a terminal, `python -m experiments.config --config=configs/quickstart.py
--search=kl` prints the settings of a config that have a word in their names or
meanings. Settings of `algorithm` are on pages of their own: the
[options of all algorithms](../algorithms/options.md), and what each
[algorithm](../algorithms/index.md) adds.

A phase is a section of the config, with a name of your own choice, a `kind` and
the settings that this kind reads. This page has three such sections: the phase
`sft` imitates, the phase `rl` draws completions and trains on them, and the
phase `rejection` keeps those that are right. Phases of other kinds have some of
these settings. Only algorithms with a critic have the groups `critic` and
`value`, a phase that trains the critic alone.
"""
_COMMON = {field.name for field in dataclasses.fields(options.CommonConfig)}
_PHASES = ("sft", "rl", "rejection")


def every() -> list[setting_docs.Setting]:
  """The settings of a run with a critic, of the phases those of `_PHASES`."""
  config = config_lib.default_config("ppo")
  config.rejection = config_lib.phase_config("rejection")
  left_out = {*config_lib.section_names(config), "algorithm"} - set(_PHASES)
  return [
    setting
    for setting in setting_docs.of_config(config)
    if setting.name.partition(".")[0] not in left_out
  ]


def page() -> str:
  """Markdown of the page, with a table for each group of settings."""
  groups: dict[str, list[setting_docs.Setting]] = {}
  for setting in every():
    groups.setdefault(setting.name.rpartition(".")[0], []).append(setting)
  lines = [_HEAD]
  for group, members in groups.items():
    title = f"`{group}`" if group else "The run"
    lines += [f"## {title}", "", "| setting | default | meaning |"]
    lines += ["|---|---|---|", *map(_row, members), ""]
  return "\n".join(lines)


def _row(setting: setting_docs.Setting) -> str:
  default = markdown.cell(repr(setting.default))
  return f"| `{setting.name}` | `{default}` | {markdown.cell(setting.text)} |"


_OPTIONS_HEAD = """# Options of all algorithms

Every algorithm takes the options of this page. An option is set by
`--config.algorithm.NAME=VALUE`, and 0 or `none` switches an option off. The
defaults are those of the library. If the paper of an algorithm has another
default, the page of the [algorithm](index.md) has it.
[options_test.py](../../tests/algorithms/options_test.py) compares each option
with NumPy.
"""


def options_page() -> str:
  """Markdown of the page of the options that algorithms share."""
  lines = [_OPTIONS_HEAD]
  for title, cls in (
    ("Options of every algorithm", options.CommonConfig),
    ("Options of algorithms that clip a ratio", options.ClipConfig),
  ):
    lines += [f"## {title}", "", "| setting | default | meaning |"]
    lines.append("|---|---|---|")
    for field in dataclasses.fields(cls):
      if cls is options.CommonConfig or field.name not in _COMMON:
        text = markdown.cell(setting_docs.text(cls, field.name))
        lines.append(f"| `{field.name}` | `{field.default!r}` | {text} |")
    lines.append("")
  return "\n".join(lines)


_COMPATIBILITY_HEAD = """# Features that exclude each other

If a run asks for both features of a row, it is refused before anything is
compiled. The error has the reason and the remedy of the row. All other pairs
are accepted:
[compatibility_test.py](../../tests/settings/compatibility_test.py) tries every
row and every pair. The table is `grpo_jax/settings/compatibility.toml`.

| feature | excludes | why | what to do |
|---|---|---|---|"""


# Kinds of environments, and the features that they have as environments.
_ENVIRONMENTS = {
  "in the graph: tasks": ("environment", "environment in the graph"),
  "sessions: a class in Python, textarena, gymnasium, OpenEnv, Harbor": (
    *("environment", "environment on the host"),
  ),
  "over HTTP: verifiers": (
    *("environment", "environment on the host"),
    "environment that asks over HTTP",
  ),
}


def compatibility_page() -> str:
  """Markdown of the features that exclude each other, and environments."""
  rows = [
    f"| {' | '.join(map(markdown.cell, row))} |" for row in compatibility.TABLE
  ]
  lines = [_COMPATIBILITY_HEAD, *rows, "", "## Environments", ""]
  lines += ["| environment | excludes |", "|---|---|"]
  for kind, features in _ENVIRONMENTS.items():
    excluded = {
      x.excludes if x.feature in features else x.feature
      for x in compatibility.TABLE
      if {x.feature, x.excludes} & {*features}
    }
    lines.append(f"| {kind} | {', '.join(sorted(excluded))} |")
  return "\n".join(lines) + "\n"
