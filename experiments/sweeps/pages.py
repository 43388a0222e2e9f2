"""Shared parts of pages about experiments, as lines of Markdown."""

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
  """Names the arms that have not been run; yields nothing if all have ended.

  Args:
    names: The arms of the experiment.
    ended: Arms that have left numbers.
  """
  absent = [name for name in names if name not in ended]
  if absent:
    shown = ", ".join(f"`{name}`" for name in absent)
    yield paragraph(f"""
{len(absent)} arms have not been run: {shown}. A claim that needs one of them
is undecided, unless another of its checks does not hold already.""")


def answer(
  found: Sequence[Conclusion],
  text: str,
  confirmed: str = "",
  refuted: str = "",
) -> Iterator[str]:
  """Yields the paragraph with the answer; nothing if the verdicts are others.

  Sentences are written for one set of verdicts. If runs are repeated or
  missing, and a verdict differs, the page has only its tables.

  Args:
    found: All conclusions of the page.
    text: The paragraph. `{C2[0]}` is the mean of the first check of the claim
      C2, with its interval.
    confirmed: Names of the claims that the text takes for confirmed.
    refuted: Names of the claims that it takes for not confirmed because the
      interval of a check excludes 0 on the wrong side. For all other claims it
      takes the failed checks for open.
  """
  known = {
    "confirmed": set(confirmed.split()),
    "refuted": set(refuted.split()),
  }
  numbers = {}
  for one in found:
    kind = "confirmed" if one.verdict == "confirmed" else "open"
    if any(x.holds is False and not x.is_open for x in one.checks):
      kind = "refuted"
    is_as_written = all((one.name in known[x]) == (x == kind) for x in known)
    contrasts = [x.contrast for x in one.checks if x.contrast is not None]
    if len(contrasts) < len(one.checks) or not is_as_written:
      return
    numbers[one.name] = [statistics.text(x, 3) for x in contrasts]
  yield paragraph(f"**The answer.** {text.format(**numbers)}")


def verdicts(found: Iterable[Conclusion]) -> Iterator[str]:
  """The table of all claims, with how many of their checks hold."""
  yield paragraph("""
"Not confirmed" does not mean "refuted". The section "The checks" says of each
check that does not hold whether the opposite was seen ("no"), or whether the
seeds do not decide ("open").""")
  yield (
    "| | claim | verdict | checks that hold | that do not hold | without runs |"
  )
  yield "|---|---|---|---|---|---|"
  for one in found:
    counts = collections.Counter(check.holds for check in one.checks)
    yield (
      f"| {one.name} | {one.claim} | **{one.verdict}** | {counts[True]} |"
      f" {counts[False]} | {counts[None]} |"
    )


def rules(claims: ModuleType) -> Iterator[str]:
  """Lines of the docstring of the module with the rules, but its summary."""
  for line in (claims.__doc__ or "").strip().splitlines()[2:]:
    yield f"    {line}" if line else ""
  yield ""


def how_to_read() -> Iterator[str]:
  """Explains the last two columns of a table of checks."""
  yield paragraph("""
The column "needed" says where the first interval has to be. "Above" and "below"
mean that the whole interval is above 0, or below 0. "Not below" and "not above"
are their opposites, and hold also if 0 is in the interval. So a check of
"not below" says that no loss was seen, and does not say that there is
none. If a check does not hold, the last column says "open" if 0 is in the
interval, and "no" if it is not.""")


def checks(found: Sequence[Conclusion], digits: int = 3) -> Iterator[str]:
  """The section with the checks of each claim, and those for lack of runs."""
  yield "## The checks"
  yield ""
  yield paragraph(statistics.WHAT_DECIDES)
  yield from how_to_read()
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
