"""What pages about experiments have in common, as lines of Markdown."""

from __future__ import annotations

import collections
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import ModuleType

import numpy as np

from experiments.sweeps import statistics
from experiments.sweeps.statistics import Conclusion

# Of the machine on which the recorded numbers were made, whatever machine
# writes the page.
CORES = 2


def joined(lines: Iterable[str]) -> str:
  """The text of a page, which ends with one line break."""
  return "\n".join(lines).rstrip("\n") + "\n"


def paragraph(text: str) -> str:
  """Lines of at most 80 columns, and an empty one."""
  return (
    textwrap.fill(" ".join(text.split()), 80, break_on_hyphens=False) + "\n"
  )


def missing(names: Iterable[str], ended: Collection[str]) -> Iterator[str]:
  """Says which arms have not been run; nothing where all have ended.

  Args:
    names: The arms of the experiment.
    ended: Those that have left numbers behind.
  """
  absent = [name for name in names if name not in ended]
  if absent:
    shown = ", ".join(f"`{name}`" for name in absent)
    yield paragraph(f"""
{len(absent)} arms have not been run: {shown}. A claim that needs one of them
is undecided, unless another of its checks does not hold already.""")


def verdicts(found: Iterable[Conclusion]) -> Iterator[str]:
  """The table of all claims, with how many of their checks hold."""
  yield "| | claim | verdict | checks that hold | do not | not made |"
  yield "|---|---|---|---|---|---|"
  for one in found:
    counts = collections.Counter(check.holds for check in one.checks)
    yield (
      f"| {one.name} | {one.claim} | **{one.verdict}** | {counts[True]} |"
      f" {counts[False]} | {counts[None]} |"
    )


def rules(claims: ModuleType) -> Iterator[str]:
  """The docstring of the module with the rules, without its first sentence."""
  for line in (claims.__doc__ or "").strip().splitlines()[2:]:
    yield f"    {line}" if line else ""
  yield ""


def checks(found: Sequence[Conclusion], digits: int = 3) -> Iterator[str]:
  """The section with the checks of each claim, and those for lack of runs."""
  yield "## The checks"
  yield ""
  yield paragraph(statistics.WHAT_DECIDES)
  for one in found:
    yield f"**{one.name}: {one.verdict}.** {one.claim}"
    yield ""
    yield from statistics.table(one.checks, digits)
    yield ""
    if absent := [check.text for check in one.checks if check.holds is None]:
      yield paragraph(f"Not made, for lack of runs: {'; '.join(absent)}.")


def cell(values: np.ndarray | None, digits: int = 3) -> str:
  """A mean over seeds with Student's 95 % interval; a dash while missing."""
  if values is None:
    return "–"
  return statistics.text(statistics.contrast([(1, values)]), digits)
