"""The data lint, against comparisons of all pairs."""

from __future__ import annotations

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.data import quality


def grams(prompt):
  if len(prompt) < 5:
    return {tuple(prompt)}
  return {tuple(prompt[i : i + 5]) for i in range(len(prompt) - 4)}


def reference(prompts, alike):
  """All pairs of different prompts, one after another."""
  first = [prompts.index(p) == i for i, p in enumerate(prompts)]
  found = []
  for j, i in itertools.combinations(range(len(prompts)), 2):
    if first[i] and first[j]:
      a, b = grams(prompts[i]), grams(prompts[j])
      jaccard = len(a & b) / len(a | b)
      if jaccard > alike:
        found.append((i, j, pytest.approx(jaccard)))
  return sorted(found, key=lambda pair: pair[:2])


@st.composite
def texts(draw):
  """Some prompts, and copies of them with a few changes."""
  prompts = draw(
    st.lists(st.lists(st.integers(0, 3), max_size=24), min_size=1, max_size=6)
  )
  for _ in range(draw(st.integers(0, 6))):
    copy = list(draw(st.sampled_from(prompts)))
    for _ in range(draw(st.integers(0, 2))):
      copy.insert(draw(st.integers(0, len(copy))), draw(st.integers(0, 3)))
    prompts.append(copy)
  return prompts


@pytest.mark.slow
@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(texts(), st.sampled_from((0.3, 0.5, 0.8)))
def test_no_pair_is_missed_and_none_is_made_up(prompts, alike):
  assert quality.near_duplicates(prompts, alike) == reference(prompts, alike)


@pytest.mark.slow
def test_many_prompts_take_seconds_at_most():
  """A comparison of all pairs would be of 2 · 10⁸."""
  rng = np.random.default_rng(0)
  prompts = rng.integers(0, 5000, size=(20_000, 16)).tolist()
  prompts[-1] = [*prompts[0], 7]
  assert [pair[:2] for pair in quality.near_duplicates(prompts)] == [
    (19_999, 0)
  ]


def test_copies_are_found_with_the_first_of_them():
  prompts = ["ab", "cd", "ab", "ab", "cd"]
  assert quality.duplicates(prompts) == {2: 0, 3: 0, 4: 1}
  (found,) = quality.of_duplicates(prompts)
  assert (found.check, found.is_error) == ("duplicates", False)
  assert found.records == (2, 3, 4)
  assert "3 of 5 prompts" in found.message
  assert "2 (as 0)" in found.message


def test_near_copies_are_found_apart_from_copies():
  text = [
    *("the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"),
    *("and", "runs", "far", "away"),
  ]
  prompts = [text, [*text, "today"], text, ["something", "else"]]
  copies, near = quality.of_duplicates(prompts)
  assert copies.records == (2,)
  assert (near.check, near.records) == ("near-duplicates", (1,))
  assert quality.of_duplicates(prompts[2:]) == []


def test_a_data_set_of_one_prompt_is_an_error():
  (found,) = quality.of_count(1, 1000, 128)
  assert found.is_error
  assert "1 different prompts among 1000; needs 128" in found.message
  assert quality.of_count(128, 128, 128) == []
  (found,) = quality.of_count(127, 256, 128, is_all=False)
  assert "among the first 256" in found.message


def test_one_prompt_with_two_labels_is_an_error():
  (found,) = quality.of_conflicts(["a", "b", "a", "a"], [1, 2, 1, 2])
  assert found.is_error
  assert found.records == (3,)
  assert quality.of_conflicts(["a", "b", "a"], [1, 1, 1]) == []


def test_an_attribute_that_gives_the_label_away_is_found():
  labels = ["yes"] * 30 + ["no"] * 70
  group = [{"group": "x" if i < 25 else "y", "id": i} for i in range(100)]
  (found,) = quality.of_skew(group, labels)
  assert found.records == tuple(range(25))
  assert "25 of 25 records with group='x' have the label 'yes'" in found.message
  # y has 70 of 75 "no", which 70 of 100 have anyway.
  rng = np.random.default_rng(0)
  mixed = [{"group": "xy"[rng.integers(2)]} for _ in range(100)]
  assert quality.of_skew(mixed, labels) == []
  few = [{"group": "x" if i < 19 else "y"} for i in range(100)]
  assert quality.of_skew(few, ["yes"] * 19 + ["a", "b", "c"] * 27) == []
