"""Tests of the shared parts of pages about experiments."""

import functools
import re

import numpy as np
import pytest

from experiments.science import pages
from experiments.sweeps import statistics
from experiments.sweeps.pages import joined
from tests.experiments import command


@functools.cache  # Intervals take the second that scipy.stats does.
def found_of_two():
  """A conclusion of two checks, one of which lacks runs, and a refuted one."""
  return (
    statistics.Conclusion(
      "A1",
      "It rises.",
      (
        statistics.check("`a`", "above", (1, np.array([1.0, 2.0, 3.0]))),
        statistics.check("`b`", "above", (1, None)),
      ),
    ),
    statistics.Conclusion(
      "A2",
      "It falls.",
      (statistics.check("`a`", "below", (1, np.array([4.0, 4.0]))),),
    ),
  )


def test_verdicts_count_the_checks():
  assert list(pages.verdicts(found_of_two()))[3:] == [
    # Student's interval of 1, 2, 3 is 2 ± 2.48, and has 0 in it.
    "| A1 | It rises. | **not confirmed** | 0 | 1 | 1 |",
    "| A2 | It falls. | **not confirmed** | 0 | 1 | 0 |",
  ]


def test_the_answer_is_written_for_one_set_of_verdicts():
  rises, falls = (
    statistics.Conclusion(
      name, "", (statistics.check("", needed, (1, np.array([4.0, 4.0]))),)
    )
    for name, needed in (("A1", "above"), ("A2", "below"))
  )
  text = "**The answer.** It rises by {A1[0]}."

  def answer(found, confirmed="", refuted=""):
    return pages.filled(text, pages.values_of(found, confirmed, refuted))

  found = (rises, falls)
  assert answer(found, "A1", "A2") == (
    "**The answer.** It rises by 4.000 [4.000, 4.000].\n"
  )
  assert answer(found, "A1") == answer(found, "A1 A2") == "\n"
  assert answer(found_of_two(), refuted="A2") == "\n"  # A check is missing.


def test_a_page_is_a_template_with_numbers():
  template = """# Title

Literal, as
it is.

{rows}

{nothing}

- {name} is {number:.1f}

A {name} of {number:.2f} is in a paragraph that is so long that its line has to
break.

It has {absent}.

## Left out

{absent}

## Last

End.
"""
  values = {"rows": iter(["| a |", ""]), "nothing": (), "absent": None}
  found = pages.filled(template, values | {"name": "x", "number": 1.25})
  assert (
    found
    == """# Title

Literal, as
it is.

| a |

- x is 1.2

A x of 1.25 is in a paragraph that is so long that its line has to break.

## Last

End.
"""
  )
  with pytest.raises(KeyError, match="rows"):
    pages.filled(template, {})


def test_checks_that_lack_runs_are_named():
  text = joined(pages.checks(found_of_two(), digits=2))
  assert "| `a` | 2.00 [-0.48, 4.48] | [1.00, 3.00] | above | open |" in text
  assert "| `a` | 4.00 [4.00, 4.00] | [4.00, 4.00] | below | **no** |" in text
  assert "Not made, for lack of runs: `b`.\n" in text
  assert text.endswith("|\n")


def test_missing_arms_are_named():
  (line,) = pages.missing(("a", "b", "c"), ["b"])
  assert line.startswith("2 arms have not been run: `a`, `c`. A claim")
  assert list(pages.missing(("a",), ["a"])) == []


def test_intervals_of_the_page_of_answers_stand_on_the_pages_that_it_names():
  docs = command.ROOT / "docs"
  page = (docs / "is_grpo_outdated.md").read_text("utf-8")
  rows = [x.split("|")[3] for x in page.splitlines() if x.startswith("| ")][2:]
  interval = re.compile(r"-?\d\S* \[-?\d\S*, -?\d\S*\]")
  for evidence in rows:
    named = re.findall(r"\]\(([^)]+\.md)\)", evidence)
    texts = [" ".join((docs / x).read_text("utf-8").split()) for x in named]
    for found in interval.findall(evidence):
      assert any(found in text for text in texts), (found, named)
  assert len(interval.findall(" ".join(rows))) > 15
