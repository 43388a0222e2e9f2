"""pass@k, maj@k and their like against references and by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.rewards import answers, math_accuracy
from grpo_jax.training.evaluation import evaluation, scores
from tests.references import metrics as reference


def _row(**fields):
  defaults = {
    "prompt": "",
    "text": "",
    "answer": None,
    "reward": 0.0,
    "correct": False,
    "valid": True,
    "num_tokens": 1,
    "terminated": True,
    "components": {"a": 0.0},
  }
  return evaluation.Completion(**defaults | fields)


@pytest.mark.parametrize(
  ("n", "c", "k", "expected"),
  [
    (8, 2, 1, 0.25),
    (8, 2, 4, 11 / 14),  # 1 − C(6, 4) / C(8, 4) = 1 − 15 / 70
    (16, 3, 8, 0.9),  # 1 − C(13, 8) / C(16, 8) = 1 − 1287 / 12870
    (8, 0, 8, 0.0),
    (8, 8, 1, 1.0),
    (8, 5, 4, 1.0),  # Three wrong ones do not fill four places.
  ],
)
def test_pass_at_k_by_hand(n, c, k, expected):
  assert scores.pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_is_the_reference_and_monotone():
  for n in range(1, 13):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
      value = scores.pass_at_k(n, c, k)
      assert value == pytest.approx(reference.pass_at_k(n, c, k), abs=1e-12)
      assert value == pytest.approx(
        1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12
      )
      if k < n:
        assert value <= scores.pass_at_k(n, c, k + 1) + 1e-12
      if c < n:
        assert value <= scores.pass_at_k(n, c + 1, k) + 1e-12
  assert 0 < scores.pass_at_k(100_000, 1, 7) < 1e-4  # No overflow.


@pytest.mark.parametrize(
  ("votes", "expected"),
  [
    (["7", "7", "3"], 1.0),
    (["7", "3", "3"], 0.0),
    (["7", "3"], 0.5),  # A tie between a right and a wrong answer.
    (["7", "3", "5", "5", "7"], 0.5),
    ([None, None, "7"], 1.0),  # Unreadable answers never vote.
    ([None, None], 0.0),
    (["7"], 1.0),
  ],
)
def test_maj_at_n_by_hand(votes, expected):
  correct = [vote == "7" for vote in votes]
  k = len(votes)
  assert scores.majority_at_k(votes, correct, k) == expected
  assert reference.maj_at_k(votes, "7", k) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["7", "3", "5", None]), min_size=1, max_size=7))
def test_maj_at_n_is_the_reference(votes):
  correct = [vote == "7" for vote in votes]
  k = len(votes)
  assert scores.majority_at_k(votes, correct, k) == pytest.approx(
    reference.maj_at_k(votes, "7", k)
  )


def test_maj_at_k_of_all_subsets_is_the_reference():
  votes = ["7", "7", "3", "3", "3", "7", None, "5"]
  correct = [vote == "7" for vote in votes]
  for k in range(1, 9):  # Up to 70 subsets.
    found = scores.majority_at_k(votes, correct, k)
    assert found == pytest.approx(reference.maj_at_k(votes, "7", k))


def test_maj_at_k_of_random_subsets_is_near_the_reference():
  votes = ["7", "7", "3", "3", "3", "7", None, "5"] * 2
  correct = [vote == "7" for vote in votes]
  for k in (3, 5, 8):
    found = scores.majority_at_k(votes, correct, k, num_subsets=500)
    wanted = reference.maj_at_k(votes, "7", k)
    assert 0.2 < wanted < 0.8
    # 4.5 standard errors of a share of 500 subsets; of up to 12870.
    assert found == pytest.approx(wanted, abs=0.1)
    assert found != pytest.approx(wanted, abs=1e-9)
  assert scores.majority_at_k(votes, correct, 8) == (
    scores.majority_at_k(votes, correct, 8)
  )


def test_subsets_are_all_there_are_or_256_random_ones():
  few = scores._subsets(5, 3, 256, 0)
  assert sorted(map(tuple, few)) == sorted(
    set(itertools.permutations([0, 0, 1, 1, 1]))
  )
  many = scores._subsets(16, 4, 256, 0)
  assert many.shape == (256, 16)
  assert (many.sum(axis=1) == 4).all()
  # Each sample is in a quarter of them: ±4 deviations of a binomial share.
  assert many.mean(axis=0) == pytest.approx(0.25, abs=0.11)
  assert len(set(map(tuple, many))) > 200


def test_wilson_interval():
  # By hand for 8 of 10, z² = 3.8415: centre (0.8 + 0.19207) / 1.38415, half
  # width 1.95996 · √(0.016 + 0.0096036) / 1.38415.
  low, high = scores.wilson_interval(8, 10)
  assert low == pytest.approx(0.49016, abs=1e-4)
  assert high == pytest.approx(0.94332, abs=1e-4)
  for count in (1, 10, 512):
    low, high = scores.wilson_interval(0, count)
    assert low == 0
    assert 0 < high < 1
    mirrored = scores.wilson_interval(count, count)
    assert mirrored == pytest.approx((1 - high, 1 - low))
  narrow, wide = (scores.wilson_interval(n / 2, n) for n in (400, 100))
  assert wide[1] - wide[0] == pytest.approx(2 * (narrow[1] - narrow[0]), 0.02)
  assert scores.wilson_interval(0, 0) == (0, 1)


def test_bootstrap_interval():
  values = np.random.default_rng(0).normal(0.3, 1.0, 400)
  low, high = scores.bootstrap_interval(values)
  assert low < values.mean() < high
  # ±1.96 σ / √n, about.
  assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
  assert scores.bootstrap_interval(values) == (low, high)
  assert scores.bootstrap_interval([0.5] * 9) == (0.5, 0.5)


def _voters(texts, gold):
  """Completions with these texts, judged and read as an evaluation does."""
  extras = [{"answer": gold}] * len(texts)
  right = math_accuracy.math_accuracy(
    [""] * len(texts), texts, [0] * len(texts), extras
  )
  return [
    _row(text=text, answer=answers.vote(text), correct=bool(value))
    for text, value in zip(texts, right, strict=True)
  ]


def _majority(group, gold):
  votes = scores.ballots(group, gold)
  return scores.majority_at_k(votes, [row.right for row in group], len(group))


@pytest.mark.parametrize(
  ("gold", "forms", "have_one_form"),
  [
    (
      "1000",
      [r"\boxed{1,000}", r"\boxed{1000}", "<answer>1000.0</answer>"],
      True,
    ),
    (
      r"\frac{1}{2}",
      [
        *(r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{\dfrac{1}{2}}"),
        r"\boxed{\text{$\frac{1}{2}$}}",
        r"<answer>\boxed{\frac12}</answer>",
      ],
      True,
    ),
    (
      "3",
      [r"\boxed{x=3}", r"\boxed{3}", r"\boxed{$3$}", r"\boxed{6/2}"],
      True,
    ),
    (
      "1/3",
      [r"\boxed{0.333333}", r"\boxed{\frac{1}{3}}", r"\boxed{1/3}"],
      False,
    ),
    (r"18\text{ cm}", [r"\boxed{18\text{ cm}}", r"\boxed{18}"], False),
    (r"2\sqrt{3}", [r"\boxed{2\sqrt{3}}", r"\boxed{\sqrt{12}}"], False),
  ],
)
def test_answers_that_are_equal_are_one_vote(gold, forms, have_one_form):
  """By their form, before any verifier is asked, or because it says so."""
  group = _voters(forms, gold)
  assert all(row.right for row in group)
  assert (len({row.answer for row in group}) == 1) == have_one_form
  # Fewer of each form than of the wrong answer; more in all.
  rivals = _voters([r"\boxed{77}"] * (len(forms) - 1), gold)
  assert _majority([*rivals, *group], gold) == 1.0
  if not have_one_form:  # Alone they are at best as many as the wrong ones.
    assert _majority([*rivals, *group], "") < 1.0


def test_votes_without_a_right_answer_in_the_data_are_of_forms():
  """Two programs that both work are no majority over two equal wrong ones."""
  group = [
    _row(answer="a", correct=True),
    _row(answer="b", correct=True),
    *[_row(answer="wrong")] * 2,
  ]
  assert scores.ballots(group, "") == ["a", "b", "wrong", "wrong"]
  assert _majority(group, "") == 0.0
  assert scores.ballots(group, "7") == ["a", "a", "wrong", "wrong"]
  assert _majority(group, "7") == 0.5


def test_an_answer_that_cannot_be_read_never_votes_even_if_it_is_right():
  group = [_row(answer=None, correct=True)] * 3 + [_row(answer="3")]
  assert scores.ballots(group, "7") == [None] * 3 + ["3"]
  assert _majority(group, "7") == 0.0
  assert _majority(group[:3], "7") == 0.0
  group += [_row(answer="7", correct=True), _row(answer="3")]
  assert scores.ballots(group, "7") == [None] * 3 + ["3", "7", "3"]
  assert _majority(group, "7") == 0.0
  # A row that has the text of a right one votes with it, scored or not.
  group = [_row(answer="7", correct=True), _row(answer="7", valid=False)]
  assert _majority([*group, _row(answer="3")], "7") == 1.0


def test_figures_of_samples_by_hand():
  right, wrong = _row(correct=True, answer="7"), _row(answer="3")
  failed = _row(answer="3", valid=False, correct=True)
  found = scores.of_samples(
    [[right, right, wrong], [failed, wrong, right], [failed] * 3], ["7"] * 3
  )
  assert list(found) == [
    *("avg@3", "pass@1", "maj@1", "pass@2", "maj@2", "pass@3", "maj@3")
  ]
  assert found["avg@3"] == [2 / 3, 1 / 3, 0]
  assert found["pass@1"] == pytest.approx([2 / 3, 1 / 3, 0])
  assert found["maj@1"] == pytest.approx([2 / 3, 1 / 3, 0])
  assert found["pass@2"] == pytest.approx([1, 2 / 3, 0])
  # Of the pairs 7 7, 7 3, 7 3, and of 3 3, 3 7, 3 7.
  assert found["maj@2"] == pytest.approx([2 / 3, 1 / 3, 0])
  assert found["pass@3"] == [1, 1, 0]
  assert found["maj@3"] == [1, 0, 0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1))
def test_pass_at_1_is_the_mean_accuracy_and_pass_grows_with_k(right):
  groups = [[_row(correct=x, answer=str(x)) for x in group] for group in right]
  found = scores.of_samples(groups, ["True"] * len(groups))
  assert found["pass@1"] == pytest.approx(found["avg@4"])
  assert found["maj@1"] == pytest.approx(found["avg@4"])
  for low, middle, high in zip(
    *(found[f"pass@{k}"] for k in (1, 2, 4)), strict=True
  ):
    assert low <= middle + 1e-12 <= high + 2e-12


def test_consensus_is_the_majority_of_64():
  group = [_row(answer="7", correct=True)] * 33 + [_row(answer="3")] * 31
  found = scores.of_samples([group], ["7"])
  assert found["cons@64"] == found["maj@64"] == [1.0]
  assert "cons@64" not in scores.of_samples([group[:63]], ["7"])
  many = scores.of_samples([[*group, _row(answer="3")]], ["7"])
  assert list(many)[-4:] == ["maj@64", "cons@64", "pass@65", "maj@65"]


def test_lengths_by_hand():
  groups = [
    [_row(correct=True, num_tokens=2), _row(num_tokens=6, terminated=False)],
    [_row(num_tokens=8), _row(valid=False, num_tokens=99, terminated=False)],
  ]
  assert scores.lengths(groups) == {
    "length_right": 2.0,
    "length_wrong": 7.0,
    "truncated": 0.5,
  }
  nothing = scores.lengths([[_row(valid=False, correct=True)]])
  assert nothing["length_right"] is nothing["length_wrong"] is None


def _section(greedy, sampled, golds, domains):
  values = scores.per_prompt(greedy, sampled, golds)
  return scores.section(values, greedy, sampled, domains)


def test_section_by_hand():
  right, wrong = _row(correct=True, answer="7"), _row(answer="3")
  failed = _row(answer="3", valid=False)
  greedy = [[right], [wrong], [failed], [failed]]
  said = _section(
    greedy,
    [[right, failed], [right, wrong], [failed, failed], [right, right]],
    ["7"] * 4,
    [None] * 4,
  )
  assert list(said) == ["num_prompts", "figures", "greedy", "sampled"]
  figures = said["figures"]
  assert {name: row["value"] for name, row in figures.items()} == {
    "greedy": 1 / 4,
    "greedy_scored": 1 / 2,
    "avg@2": 4 / 8,
    "pass@1": 4 / 8,
    "maj@1": 4 / 8,
    "pass@2": 3 / 4,
    "maj@2": (0.5 + 0.5 + 0 + 1) / 4,
  }
  interval = figures["greedy"]["low"], figures["greedy"]["high"]
  assert interval == scores.wilson_interval(1, 4)
  interval = figures["greedy_scored"]["low"], figures["greedy_scored"]["high"]
  assert interval == scores.wilson_interval(1, 2)
  interval = figures["pass@2"]["low"], figures["pass@2"]["high"]
  assert interval == scores.bootstrap_interval([1, 1, 0, 1])
  assert (said["greedy"]["unscored"], said["sampled"]["unscored"]) == (2, 3)
  # Of completions that nobody has scored nothing is known.
  nobody = _section([[failed]], [[failed]], ["7"], ["math"])
  for figures in (
    nobody["figures"],
    nobody["domains"]["math"]["figures"],
    nobody["macro"],
  ):
    for row in figures.values():
      assert row == {"value": None, "low": 0.0, "high": 1.0}
  some = _section([[failed]], [[wrong]], ["7"], [None])["figures"]
  assert some["greedy"]["value"] is None
  assert some["pass@1"]["value"] == 0


def test_domains_count_alike_whatever_their_size():
  right, wrong = [_row(correct=True, answer="7")], [_row(answer="3")]
  greedy = [right, wrong, wrong, wrong, right]
  said = _section(greedy, greedy, ["7"] * 5, ["10", "2", "2", "2", "2"])
  assert list(said["domains"]) == ["2", "10"]  # In the order of numbers.
  assert said["domains"]["2"]["num_prompts"] == 4
  assert said["domains"]["2"]["figures"]["greedy"]["value"] == 0.25
  assert said["domains"]["10"]["figures"]["pass@1"]["value"] == 1.0
  assert said["figures"]["greedy"]["value"] == 0.4
  macro = said["macro"]["greedy"]
  assert macro["value"] == (0.25 + 1.0) / 2
  # What varies is the domain of four: half its interval, above a half.
  low, high = scores.bootstrap_interval([0, 0, 0, 1])
  assert macro["low"] == pytest.approx((low + 1) / 2)
  assert macro["high"] == pytest.approx((high + 1) / 2)
