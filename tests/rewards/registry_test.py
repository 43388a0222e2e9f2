"""Functions of groups, functions that wait, and what functions ask for."""

import math

import numpy as np
import pytest

from grpo_jax.data import tokenizer
from grpo_jax.rewards import registry
from grpo_jax.rewards.workers import host

_HERE = "tests.rewards.reward_functions:"


def _scorer(*names, **options):
  paths = {name: _HERE + name for name in names}
  return host.HostScorer(paths, dict.fromkeys(paths, 1.0), **options)


def _score(scorer, completions, ids=None, extras=None, **more):
  rows = len(completions)
  ids = list(range(rows)) if ids is None else ids
  return scorer.score(
    [""] * rows, completions, ids, extras or [{}] * rows, **more
  )


def test_a_function_of_groups_sees_all_completions_of_a_prompt():
  with _scorer("shortest", "counts_tokens") as scorer:
    scores = _score(
      scorer,
      ["aaa", "a", "aa", "b", "bb"],
      [7, 9, 7, 9, 7],  # Not adjacent: ids alone say what is a group.
      tokens=[[1, 2, 3], [1], [1, 2], [], [1, 2, 3, 4]],
    )
  assert scores.components["shortest"].tolist() == [0, 1, 1, 1, 1]
  assert scores.components["counts_tokens"].tolist() == [3, 1, 2, 0, 4]
  assert not scores.failed.any()


def test_functions_that_wait_wait_at_the_same_time():
  number = 40
  with _scorer("meets_others", num_workers=1) as scorer:
    # One after another, the first would wait for ever.
    scores = _score(scorer, [str(number)] * number)
  assert not scores.failed.any()
  np.testing.assert_array_equal(
    scores.components["meets_others"], np.arange(number)
  )


def test_functions_of_groups_may_wait_too():
  with _scorer("asked_together", num_workers=1) as scorer:
    scores = _score(scorer, ["a", "b", "c"], [4, 5, 4])
  assert scores.components["asked_together"].tolist() == [2, 1, 2]


@pytest.mark.slow
def test_each_row_that_waits_has_a_deadline_and_failures_of_its_own():
  extras = [{}, {"wait_s": 30.0}, {"broken": True}, {}]
  with _scorer("asked", num_workers=1, row_timeout_s=1.0) as scorer:
    scores = _score(scorer, ["a", "bb", "ccc", "dddd"], extras=extras)
  assert scores.failed.tolist() == [False, True, True, False]
  assert scores.failures["timeout"] == 1
  assert scores.failures["raised"] == 1
  values = scores.components["asked"]
  assert [values[0], values[3]] == [1, 4]
  assert math.isnan(values[1])
  assert math.isnan(values[2])


@pytest.mark.slow
@pytest.mark.parametrize(
  ("word", "kind"),
  [
    ("block", "timeout"),
    ("block a while", "timeout"),
    ("swallow", "timeout"),
    ("exit", "raised"),
    ("exit in a task", "timeout"),
    ("stop", "timeout"),
    ("cancel", "raised"),
    ("die", "worker_died"),
    ("unknown", "raised"),
  ],
)
def test_a_bad_row_that_waits_harms_none_of_the_others(word, kind):
  words = ["1", word, "2"]
  extras = [{}, {"x": object()} if word == "unknown" else {}, {}]
  with _scorer("misbehaves", num_workers=1, row_timeout_s=1.0) as scorer:
    scores = _score(scorer, words, extras=extras)
    assert scores.failed.tolist() == [False, True, False]
    assert scores.failures[kind] == 1
    values = scores.components["misbehaves"]
    assert [values[0], values[2]] == [1, 2]
    # The worker, or the one in its place, goes on.
    assert _score(scorer, ["3"]).components["misbehaves"].tolist() == [3]


@pytest.mark.slow
def test_functions_get_what_they_ask_for():
  context = registry.Context(
    tokenizer=(
      "grpo_jax.data.tokenizer:Tokenizer",
      [str(tokenizer.GSM8K_BPE)],
      {"end_tokens": None},
    ),
    answer_after="####",
    sandbox="process",
  )
  text = "<think>2 + 2</think>"
  ids = tokenizer.Tokenizer(tokenizer.GSM8K_BPE).encode(text)
  with _scorer(
    *("round_trip", "told", "counts_tokens", "needs_words"),
    context=context,
    row_timeout_s=7.0,
    options={"counts_tokens": {"scale": 0.5}, "needs_words": {"words": 3}},
  ) as scorer:
    scores = _score(scorer, [text, "x"], tokens=[ids, ids])
  found = {name: x.tolist() for name, x in scores.components.items()}
  assert found == {
    "round_trip": [1, 0],
    "told": [1, 1],
    "counts_tokens": [len(ids) / 2] * 2,
    "needs_words": [3, 3],
  }


def test_answers_stand_behind_the_marker_that_the_config_names():
  context = registry.Context(answer_after="####")
  accuracy = registry.bound("math_accuracy", {}, context)
  texts = ["So.\n#### 5", "So it is 5."]
  said = accuracy([""] * 2, texts, [0] * 2, [{"answer": "5"}] * 2)
  assert said == [1.0, 0.0]


@pytest.mark.parametrize(
  ("name", "options", "message"),
  [
    ("counts_tokens", {"scal": 1}, r"'scal'; it has scale\."),
    ("counts_tokens", {"tokens": 1}, "'tokens'; it has scale"),
    ("needs_words", {}, "needs words"),
    ("asked", {"wait_s": 1}, "it has no options"),
  ],
)
def test_options_are_checked_before_anything_starts(name, options, message):
  with pytest.raises(ValueError, match=message):
    _scorer(name, options={name: options})


def test_steps_are_scored_beside_the_whole():
  with _scorer("counts_tokens", steps=_HERE + "halves") as scorer:
    scores = _score(scorer, ["abcd", ""], tokens=[[1], []])
  assert scores.steps == [[(2, 0.5), (4, 1.0)], [(0, 0.5), (0, 1.0)]]
  assert scores.components["counts_tokens"].tolist() == [1, 0]


def test_what_is_no_list_of_steps_leaves_the_row_unscored():
  with _scorer("shortest", steps=_HERE + "no_steps") as scorer:
    scores = _score(scorer, ["abcd"])
  assert scores.failed.tolist() == [True]
  assert "steps of a completion: TypeError" in scores.errors[0]


@pytest.mark.slow
def test_groups_are_tried_again_as_a_whole():
  with _scorer("shortest", "asked", row_timeout_s=1.0) as scorer:
    rows = (
      ["aa", "a", "b"],
      [0, 0, 1],
      [{"wait_s": 0.0}, {"wait_s": 30.0}, {"wait_s": 0.0}],
    )
    scores = host.score(scorer, [""] * 3, *rows, correct="asked")
  assert scores.components["shortest"].tolist() == [0, 1, 1]
  assert scores.components["asked"].tolist() == [2, 0, 1]
  assert not scores.failed.any()
