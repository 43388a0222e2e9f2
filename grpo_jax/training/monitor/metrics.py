"""The table of metrics, for pages, notebooks and viewers: `metrics.toml`.

    metrics.find("reward/format").meaning

A row may stand for several metrics: a word in capitals, as in `reward/NAME`, is
any name. `experiments/health/page.py` makes docs/metrics.md of the table, and
tests compare it with what runs log.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import tomllib
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Metric:
  """A row of the table.

  Attributes:
    name: Of the metric; words in capitals stand for any name.
    unit: "share" is in [0, 1].
    meaning: What is measured.
    healthy: What it looks like in a run that is well.
    action: What to do, or where to look, if it does not.
  """

  name: str
  unit: str
  meaning: str
  healthy: str = "any"
  action: str = ""

  @property
  def pattern(self) -> re.Pattern[str]:
    """Matches the names that the row stands for."""
    return re.compile(re.sub(r"[A-Z]+", ".+", re.escape(self.name)))


_TABLE = pathlib.Path(__file__).with_name("metrics.toml")
SECTIONS: dict[str, tuple[Metric, ...]] = {
  section: tuple(Metric(**row) for row in rows)
  for section, rows in tomllib.loads(_TABLE.read_text("utf-8")).items()
}
METRICS = tuple(row for rows in SECTIONS.values() for row in rows)


@functools.cache
def find(name: str) -> Metric | None:
  """The row of a metric, or None; a name of its own comes before a pattern."""
  for row in METRICS:
    if row.name == name:
      return row
  return next((row for row in METRICS if row.pattern.fullmatch(name)), None)


def unknown(names: Iterable[str]) -> list[str]:
  """Names among these that no row of the table describes."""
  return sorted(name for name in {*names} if find(name) is None)
