"""Page of an experiment: a template in Markdown and the numbers in it.

`experiments/science/NAME.md` is the page with names in braces in the place of
its numbers and tables. A name is one that `numbers` of the experiment returns,
one of the experiment's module, or one of these:

| name                            | stands for                                 |
|---------------------------------|--------------------------------------------|
| `{size}`                        | the amounts of computation, as `size.steps`|
| `{ended}`, `{num_arms}`         | the number of arms that have ended, and all|
| `{minutes}`                     | minutes of the arms that have ended        |
| `{cores}`                       | cores of the machine of the runs           |
| `{C2[0]}`                       | the first check of the claim C2: its mean  |
|                                 | with its interval                          |
| `{missing}`                     | names of the arms that have not been run   |
| `{verdicts}`                    | the table of all claims                    |
| `{rules}`                       | the docstring of the experiment's module   |
| `{checks}`                      | the section with all checks                |
"""

from __future__ import annotations

import collections
import re
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from types import ModuleType
from typing import Any

import numpy as np

from experiments.sweeps import statistics
from experiments.sweeps.pages import paragraph, table
from experiments.sweeps.statistics import Conclusion

# Of the machine on which the recorded numbers were made, whatever machine
# writes the page.
CORES = 2
_ANSWER = "**The answer.**"


def filled(
  template: str,
  values: Mapping[str, Any],
  wrap: Callable[[str], str] = paragraph,
) -> str:
  """Fills the names in braces of a page.

  A paragraph with a name in it is wrapped again, and left out if the
  value is None, or a claim without numbers. A name that stands alone is a table
  or several paragraphs. If it has no lines, nothing is left; if it is None, its
  section is left out.
  """
  blocks: list[str] = []
  for section in re.split(r"\n(?=## )", template.strip()):
    found = [_block(x, values, wrap) for x in section.strip().split("\n\n")]
    if None not in found:
      blocks += filter(None, found)
  return "\n\n".join(blocks) + "\n"


def _block(
  block: str, values: Mapping[str, Any], wrap: Callable[[str], str]
) -> str | None:
  if alone := re.fullmatch(r"\{(\w+)\}", block):
    value = values[alone[1]]
    return value if value is None else "\n".join(value).strip("\n")
  if block.startswith(_ANSWER) and not values["is_as_written"]:
    return ""
  names = re.findall(r"\{(\w+)", block)
  if not names:
    return block
  if any(values[name] is None for name in names):
    return ""
  if any(isinstance(values[name], list) and not values[name] for name in names):
    return ""
  text = block.format_map(values)
  is_prose = not block.startswith(("- ", "|", "#"))
  return wrap(text).strip("\n") if is_prose else text


def values_of(
  found: Sequence[Conclusion], confirmed: str = "", refuted: str = ""
) -> dict[str, Any]:
  """Values about the claims.

  The paragraph with the answer is written for one set of verdicts. If runs are
  repeated or missing, and a verdict differs, the page has only its tables.

  Args:
    found: All conclusions of the page.
    confirmed: Names of the claims that the answer takes for confirmed.
    refuted: Names of the claims that it takes for not confirmed because the
      interval of a check excludes 0 on the wrong side. For all other claims it
      takes the failed checks for open.
  """
  written = dict.fromkeys(confirmed.split(), "confirmed")
  written |= dict.fromkeys(refuted.split(), "refuted")
  numbers: dict[str, Any] = {"is_as_written": True}
  for one in found:
    kind = "confirmed" if one.verdict == "confirmed" else "open"
    if any(x.holds is False and not x.is_open for x in one.checks):
      kind = "refuted"
    contrasts = [x.contrast for x in one.checks if x.contrast is not None]
    numbers[one.name] = [statistics.text(x, 3) for x in contrasts]
    is_written = kind == written.get(one.name, "open")
    numbers["is_as_written"] &= is_written and len(contrasts) == len(one.checks)
  return numbers | {"verdicts": verdicts(found), "checks": checks(found)}


def missing(names: Iterable[str], ended: Collection[str]) -> Iterator[str]:
  """Names the arms that have not been run; yields nothing if all have ended."""
  absent = [name for name in names if name not in ended]
  if absent:
    shown = ", ".join(f"`{name}`" for name in absent)
    yield paragraph(f"""
{len(absent)} arms have not been run: {shown}. A claim that needs one of them
is undecided, unless another of its checks does not hold already.""")


def verdicts(found: Sequence[Conclusion]) -> Iterator[str]:
  """The table of all claims, with how many of their checks hold."""
  yield paragraph("""
"Not confirmed" does not mean "refuted". The section "The checks" says of each
check that does not hold whether the opposite was seen ("no"), or whether the
seeds do not decide ("open").""")
  head = ("", "claim", "verdict", "checks that hold", "that do not hold")
  counts = [collections.Counter(x.holds for x in one.checks) for one in found]
  yield from table(
    (*head, "without runs"),
    (
      [one.name, one.claim, f"**{one.verdict}**"]
      + [str(count[x]) for x in (True, False, None)]
      for one, count in zip(found, counts, strict=True)
    ),
  )


def rules(module: ModuleType) -> Iterator[str]:
  """Lines of the docstring of an experiment, but its summary."""
  for line in (module.__doc__ or "").strip().splitlines()[2:]:
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


def by_arm(
  names: Iterable[str], columns: Mapping[str, Callable[[str], str]]
) -> Iterator[str]:
  """The table of arms: heading -> (arm) -> cell."""
  rows = ([f"`{x}`", *(of(x) for of in columns.values())] for x in names)
  return table(("arm", *columns), rows)


def scored(results: Any, what: str, digits: int = 3) -> Callable[[str], str]:
  """A column of `by_arm`: a score with its interval."""
  return lambda arm: cell(results.scores(arm, what), digits)


def texts(
  arms: Mapping[str, Any], head: str = "what it is", kind: str = "arm"
) -> Iterator[str]:
  """The table of arms, or of another kind of thing, with their texts."""
  return table((kind, head), ((f"`{x}`", arm.text) for x, arm in arms.items()))


def bootstrap(values: np.ndarray) -> str:
  """Mean and 95 % bootstrap interval; one number where all are equal."""
  low, high = statistics.interval(values)
  if low == high:
    return f"{values.mean():.3f}"
  return f"{values.mean():.3f} [{low:.3f}, {high:.3f}]"
