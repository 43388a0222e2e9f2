"""Tests of filters of completions, and of the prompts that got worse."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.traces import filters
from tests.experiments.traces import examples


def found(name, *rows):
  """Places of the rows of a group that a filter finds."""
  (place,) = (i for i, x in enumerate(filters.FILTERS) if x.name == name)
  group = examples.group(*rows)
  return [
    i for i, row in enumerate(rows) if filters.bits(row, group) >> place & 1
  ]


def scored(reward, correct, **components):
  return examples.row(reward=reward, correct=correct, components=components)


def test_wrong_but_rewarded_is_above_the_mean_of_the_group():
  # The bonus for the format is no prize beside right completions.
  rows = [scored(1.1, True), scored(0.1, False), scored(0.0, False)]
  assert found("wrong-rewarded", *rows) == []
  # Among wrong ones it is.
  assert found("wrong-rewarded", *rows[1:]) == [0]
  assert found("wrong-rewarded", scored(1.0, False), scored(0.5, True)) == [0]
  # Where all are equal, everything above 0 is.
  assert found("wrong-rewarded", *[scored(0.1, False)] * 3) == [0, 1, 2]
  assert found("wrong-rewarded", *[scored(0.0, False)] * 3) == []
  # Nobody has said whether it is right.
  assert found("wrong-rewarded", scored(1.0, None), scored(None, None)) == []


@pytest.mark.parametrize(
  ("name", "fields"),
  [
    ("cut-off", {"terminated": False}),
    ("unscored", {"reward": None, "correct": None}),
    ("clipped", {"values": {"clipped": np.array([False, True])}}),
    ("intercepted", {"calls": ({"blocked": False}, {"blocked": True})}),
    ("error", {"error": "ValueError"}),
  ],
)
def test_a_filter_finds_its_row_and_no_plain_one(name, fields):
  plain = examples.row(
    values={"clipped": np.array([False])}, calls=({"blocked": False},)
  )
  assert found(name, plain, examples.row(**fields)) == [1]


def test_components_disagree_about_a_best_row_that_is_a_worst_one():
  rows = [
    scored(1.0, True, right=1.0, short=-3.0, same=1.0),
    scored(0.0, False, right=0.0, short=-1.0, same=1.0),
    scored(0.0, False, right=0.0, short=-2.0, same=1.0),
    scored(0.0, False, right=None, short=-2.0, same=None),
  ]
  assert found("disagreeing", *rows) == [0, 1]


def test_score_is_the_share_of_right_ones_or_else_the_reward():
  rows = [scored(0.5, True), scored(0.1, False), scored(None, None)]
  assert filters.score(examples.group(*rows)) == 0.5
  unknown = [scored(0.5, None), scored(0.1, None)]
  assert filters.score(examples.group(*unknown)) == pytest.approx(0.3)
  assert filters.score(examples.group(scored(None, None))) is None


def test_search_looks_everywhere_in_any_case():
  calls = ({"turn": 0, "in": "Lookup(x)", "out": "NOTHING"},)
  row = examples.row(
    "The Answer", error="KeyError", calls=calls, opening="Before"
  )
  group = examples.group(row, prompt="What?")
  for text in ("answer", "WHAT", "keyerror", "before", "lookup", "nothing", ""):
    assert filters.has_text(row, group, text)
  assert not filters.has_text(row, group, "elsewhere")


# The last time counts, and not the best one; nor one of another prompt.
@example([(1, 0, 1), (2, 0, 0), (3, 0, 0)], 2)
@example([(1, 0, 0), (2, 0, 1), (3, 0, 0), (3, 1, 0)], 2)
@given(
  st.lists(
    st.tuples(
      st.integers(1, 6), st.integers(0, 2), st.sampled_from([0, 1, None])
    )
  ),
  st.integers(0, 7),
)
def test_regressed_is_what_a_loop_over_pairs_finds(times, since):
  groups = [
    examples.group(
      scored(None if x is None else float(x), None if x is None else bool(x)),
      step=step,
      record=record,
    )
    for step, record, x in sorted(times, key=lambda time: time[0])
  ]

  def is_worse(at):
    """By the definition, for one group."""
    here = groups[at]
    old = [
      filters.score(x)
      for x in groups
      if x.record == here.record
      and x.step <= since
      and filters.score(x) is not None
    ]
    score = filters.score(here)
    return (
      here.step > since
      and score is not None
      and score < [2.0, *old][-1]
      and bool(old)
    )

  expected = [is_worse(at) for at in range(len(groups))]
  assert filters.regressed(groups, since) == expected


def test_prompts_without_a_record_are_told_apart_by_their_text():
  def at(step, correct, prompt):
    row = scored(float(correct), correct)
    return examples.group(row, step=step, record=-1, prompt=prompt)

  groups = [
    at(1, True, "a"),
    at(1, False, "b"),
    at(2, False, "a"),
    at(2, False, "b"),
  ]
  assert filters.regressed(groups, 1) == [False, False, True, False]
