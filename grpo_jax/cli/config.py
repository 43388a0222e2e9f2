r"""Prints the settings of a config, with their meanings.

    grpo-config --config=configs/quickstart.py
    grpo-config --config=configs/quickstart.py:gspo --changed
    grpo-config --config=configs/quickstart.py --search=kl \
        --config.algorithm.kl_coef=0.1

A setting is changed by --config.NAME=VALUE, here and in every program, or in
Python by config.NAME = VALUE. The default is that of the library, for the
algorithm of the config. Values of the config that differ from it are marked
with *.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Sequence

from absl import flags

from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import setting_docs
from grpo_jax.training.runtime import files

_CONFIG = flags_lib.define_config()
_CHANGED = flags.DEFINE_bool(
  "changed", False, "Only settings that are not at their defaults."
)
_SEARCH = flags.DEFINE_string(
  "search", "", "Only settings with this in their names or descriptions."
)
_COLUMNS = 80
_NAME, _VALUE = 38, 20  # Columns.


def main(argv: Sequence[str]) -> int:
  """Prints the table; exit status 1 if there is nothing in it."""
  del argv
  settings = list(setting_docs.of_config(_CONFIG.value))
  rows = [
    setting
    for setting in settings
    if (setting.is_changed or not _CHANGED.value)
    and _SEARCH.value.lower() in f"{setting.name} {setting.text}".lower()
  ]
  for line in table(rows):
    print(line)
  print(f"{len(rows)} of {len(settings)} settings.")
  return int(not rows)


def table(settings: Iterable[setting_docs.Setting]) -> list[str]:
  """The settings in lines of at most 80 columns, but for long names."""
  lines = [_row("setting", "value", "default").rstrip(), "─" * _COLUMNS]
  for row in settings:
    mark = "* " if row.is_changed else "  "
    lines.append(_row(mark + row.name, _text(row.value), _text(row.default)))
    lines += textwrap.wrap(
      row.text,
      _COLUMNS,
      initial_indent="      ",
      subsequent_indent="      ",
      break_on_hyphens=False,
    )
  return lines


def _row(name: str, value: str, default: str) -> str:
  """Formats three columns; text that does not fit goes on below."""
  columns = [
    [name],
    textwrap.wrap(value, _VALUE - 1) or [""],
    textwrap.wrap(default, _COLUMNS - _NAME - _VALUE) or [""],
  ]
  if len(name) >= _NAME:  # The value begins a line of its own.
    columns = [[name], ["", *columns[1]], ["", *columns[2]]]
  height = max(map(len, columns))
  cells = [column + [""] * (height - len(column)) for column in columns]
  return "\n".join(
    f"{a:<{_NAME}}{b:<{_VALUE}}{c}".rstrip()
    for a, b, c in zip(*cells, strict=True)
  )


def _text(value: object) -> str:
  return files.escaped(repr(value))


run = functools.partial(flags_lib.run, main)
