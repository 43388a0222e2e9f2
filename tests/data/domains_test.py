"""Domains have names and numbers; several sources are one."""

from __future__ import annotations

import collections

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.data import domains, sources


class Records:
  """Records 0 … size − 1 of a name; of whole sources unless it has `starts`."""

  def __init__(self, name, size, starts=None, **extras):
    self.name, self.size, self.starts, self.extras = name, size, starts, extras

  def __len__(self):
    return self.size

  def __getitem__(self, index):
    assert 0 <= index < self.size
    return {"prompt": f"{self.name}{index}", "extras": dict(self.extras)}


class Labelled(Records):
  """Records whose extras are given one by one."""

  def __init__(self, *extras, starts=None):
    super().__init__("x", len(extras), starts)
    self.given = extras

  def __getitem__(self, index):
    return {"prompt": str(index), "extras": dict(self.given[index])}


def _prompts(source, size=None):
  return [source[i]["prompt"] for i in range(size or len(source))]


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(SIZES, st.data())
def test_an_epoch_has_every_record_and_each_part_its_share(sizes, data):
  numbers = st.integers(0, 5)
  weights = data.draw(
    st.lists(numbers, min_size=len(sizes), max_size=len(sizes)).filter(any)
  )
  parts = {f"p{i}_": Records(f"p{i}_", n) for i, n in enumerate(sizes)}
  made = domains.weighted(parts, weights)
  found = collections.Counter(_prompts(made))
  for (name, part), weight in zip(parts.items(), weights, strict=True):
    counts = [found[prompt] for prompt in _prompts(part)]
    if weight:
      assert min(counts) >= 1
      assert max(counts) - min(counts) <= 1
      assert sum(counts) / len(made) == pytest.approx(
        weight / sum(weights), abs=1 / len(made) + 1e-9
      )
    else:
      assert not any(counts), name
  record = {made[i]["prompt"]: made.number(i) for i in range(len(made))}
  assert len({*record.values()}) == len(record)
  for i in range(len(made)):
    assert record[made[i]["prompt"]] == made.number(i)
    number = int(made[i]["extras"]["domain"])
    assert made[i]["prompt"].startswith(made.domains[number])


@hypothesis.given(SIZES)
def test_evaluations_take_a_record_of_each_part_in_turn(sizes):
  parts = {f"p{i}_": Records(f"p{i}_", n) for i, n in enumerate(sizes)}
  wanted = [
    f"{name}{turn}"
    for turn in range(max(sizes))
    for name, part in parts.items()
    if turn < len(part)
  ]
  assert _prompts(domains.in_turn(parts)) == wanted


def test_a_part_without_end_is_scattered_among_the_others():
  parts = {
    "a": Records("a", 2**31 - 1, starts=(0,)),
    "b": Records("b", 3),
  }
  made = domains.weighted(parts, [3.0, 1.0])
  assert sources.starts(made) == (0,)
  names = [prompt[0] for prompt in _prompts(made, 2000)]
  assert names.count("b") / 2000 == pytest.approx(0.25, abs=0.04)
  assert _prompts(domains.in_turn(parts), 5) == ["a0", "b0", "a1", "b1", "a2"]
  assert {x[0] for x in _prompts(made.only({1}), 50)} == {"b"}
  with pytest.raises(ValueError, match=r"domains \[1\] have no weight"):
    domains.weighted(parts, [1.0, 0.0]).only({1})


def test_numbers_of_domains_are_places_of_names():
  named = Labelled(
    {"domain_name": "sums"}, {"domain_name": "10"}, {"domain_name": "9"}
  )
  assert domains.names_of(named) == ("9", "10", "sums")
  numbered = domains.Numbered(named, domains.names_of(named))
  assert [int(numbered[i]["extras"]["domain"]) for i in range(3)] == [2, 1, 0]
  assert isinstance(numbered[0]["extras"]["domain"], np.int32)
  some = domains.only(numbered, {0, 2})
  assert _prompts(some) == ["0", "2"]
  assert [sources.number(some, i) for i in range(2)] == [0, 2]

  both = Labelled({"domain": 2, "domain_name": "words"}, {"domain": 0})
  assert domains.names_of(both) == ("0", "1", "words")
  assert domains.numbers(("a", "b"), ("b", 0), "x") == (1, 0)


@pytest.mark.parametrize(
  ("attempt", "message"),
  [
    (
      lambda: domains.Numbered(Labelled({"domain_name": "c"}), ("a", "b"))[0],
      "record 0 has the domain 'c'; known are a, b",
    ),
    (
      lambda: domains.Numbered(Labelled({"domain": 2}), ("a", "b"))[0],
      "record 0 has the domain 2, and there are 2: a, b",
    ),
    (
      lambda: domains.names_of(Labelled({"domain": 0}, starts=(0,))),
      "config.data.domains is empty",
    ),
    (
      lambda: domains.only(Labelled({"domain": 0}, starts=(0,)), {0}),
      "cannot be chosen; set config.data.streaming=False",
    ),
    (
      lambda: domains.only(Labelled({"domain": 0}), {1}),
      r"no training record has one of the domains \[1\]",
    ),
    (
      lambda: domains.numbers(("a",), ("b",), "config.rl.domains"),
      "config.rl.domains names the domain 'b'; the data have 'a'",
    ),
    (lambda: domains.numbers((), (0,), "config.x"), "the data have none"),
  ],
)
def test_domains_that_there_are_not_are_named(attempt, message):
  with pytest.raises(ValueError, match=message):
    attempt()


def test_a_limit_may_name_its_domain_by_number():
  assert domains.limits(("a", "b", "c"), {0: 5, "c": 7}, 20) == (5, 20, 7)
  with pytest.raises(ValueError, match="names the domain -1"):
    domains.limits(("a", "b"), {-1: 5}, 20)
