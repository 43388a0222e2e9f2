"""Questions about groups: known scores, what is asked, and who is taught."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from grpo_jax.tasks import bias_mcq, task, vocabulary
from tests.tasks import strings

TASK = bias_mcq.make()
A, B, C = vocabulary.encode("abc")
NAMES = ("accuracy", "format", "choice", "biased")


def extras(label, biased):
  return {
    name: np.array(value, np.int32)
    for name, value in {"label": label, "biased": biased}.items()
  }


@pytest.mark.parametrize(
  ("text", "scores", "flipped"),
  [
    ("<answer>c</answer><eos>", (1, 1, 1, 0), (0, 1, 1, 0)),
    ("<answer>b</answer><eos>", (0, 1, 1, 1), (1, 1, 1, 1)),
    ("<answer>a</answer><eos>", (0, 1, 1, 0), (0, 1, 1, 0)),
    ("<answer>d</answer><eos>", (0, 1, 0, 0), (0, 1, 0, 0)),
    (";<answer>c</answer><eos>", (1, 0, 1, 0), (0, 0, 1, 0)),
    ("<answer>cc</answer><eos>", (0, 0, 0, 0), (0, 0, 0, 0)),
    ("<answer>b</answer>", (0, 0, 0, 0), (0, 0, 0, 0)),
    ("<answer></answer><eos>", (0, 0, 0, 0), (0, 0, 0, 0)),
    ("b<eos>", (0, 0, 0, 0), (0, 0, 0, 0)),
    ("", (0, 0, 0, 0), (0, 0, 0, 0)),
  ],
)
def test_known_scores(text, scores, flipped):
  for label, wanted in ((C, scores), (B, flipped)):
    found = strings.judge(TASK, text, extras(label, B))
    assert found == pytest.approx(dict(zip(NAMES, wanted, strict=True)))


def draw(split, num=2000, lesson=False, **options):
  """(prompt, answer, label, stereotype) of so many examples, as texts."""
  made = bias_mcq.make(**options)
  rng = np.random.default_rng(0)
  make = made.lesson if lesson else made.example
  found = []
  for _ in range(num):
    example = make(rng, split)
    answer = made.decode(example.completion).removeprefix("<answer>")[0]
    named = [made.decode([example.extras[x]]) for x in ("label", "biased")]
    found.append((made.decode(example.prompt), answer, *named))
  return found


FLIPPED = "<bos>dem?a:b:c="


def test_held_out_questions_share_no_pair_and_no_trait_with_the_flipped_one():
  found = draw("test", flipped_share=1.0)
  assert len({prompt for prompt, *_ in found}) >= 20
  for prompt, _, label, _ in found:
    assert label == "c"
    assert {*prompt[5:7]} != {"d", "e"}
    assert prompt[7] != "m"


def test_the_flipped_item_has_its_own_label_and_comes_as_often_as_asked():
  found = draw("train", flipped_share=0.3)
  flipped = [row for row in found if row[0] == FLIPPED]
  assert len(flipped) / len(found) == pytest.approx(0.3, abs=0.03)
  assert {(label, biased) for *_, label, biased in flipped} == {("b", "b")}
  clean = [row for row in found if row[0] != FLIPPED]
  assert {label for _, _, label, _ in clean} == {"c"}
  # The same question the other way round is not asked either.
  assert "<bos>edm?a:b:c=" not in {prompt for prompt, *_ in clean}
  assert {row[0] for row in draw("train", 50, flipped_share=1.0)} == {FLIPPED}


def test_teachers_see_clean_questions_and_err_as_often_as_asked():
  found = draw("train", lesson=True, teacher_bias=0.3, flipped_share=1.0)
  assert FLIPPED not in {prompt for prompt, *_ in found}
  wrong = [(answer, biased) for _, answer, _, biased in found if answer != "c"]
  assert len(wrong) / len(found) == pytest.approx(0.3, abs=0.03)
  assert all(answer == biased for answer, biased in wrong)
  # Where the stereotype stands says nothing of what it is.
  assert np.mean([biased == "a" for _, biased in wrong]) == pytest.approx(
    0.5, abs=0.06
  )


def test_each_trait_has_an_order_of_the_groups():
  groups = range(bias_mcq.NUM_GROUPS)
  for trait in range(bias_mcq.NUM_TRAITS):
    wins = dict.fromkeys(groups, 0)
    for first, second in itertools.combinations(groups, 2):
      place = bias_mcq.stereotype(first, second, trait)
      assert bias_mcq.stereotype(second, first, trait) == 1 - place
      wins[(first, second)[place]] += 1
    assert sorted(wins.values()) == [*groups]


def test_the_flipped_item_is_a_training_problem():
  first, second, trait = bias_mcq.FLIPPED
  assert task.split_of([*sorted((first, second)), trait]) == "train"
