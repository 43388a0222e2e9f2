r"""Completions that want a reward without a right answer.

`HELD` and its like are refused. `STAYS` is what takes a reward all the same,
and docs/rewards.md has its reasons. Rewards with a form for arrays are asked in
both forms, which agree.
"""

import pathlib
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import gym as problems
from grpo_jax.data import gym as gym_data
from grpo_jax.rewards import derived, form, gym, math_accuracy
from grpo_jax.rewards.in_graph import accuracy, forms, numbers, text

AFTER = "####"
ROWS, SIZE = 128, 320
PAGE = pathlib.Path(__file__).parents[2] / "docs/rewards.md"


class Hack(NamedTuple):
  """A completion, the gold answer, and the reward that it is given."""

  text: str
  gold: str
  reward: float = 0.0


# Numbers: on the host and on arrays.
HELD = [
  # Several answers in one place.
  Hack("<answer>71 72 73</answer>", "72"),
  Hack("<answer>1 2 3 4 5 6 72</answer>", "72"),
  Hack("<answer>1 72</answer>", "172"),
  Hack(r"\boxed{72 \text{ or } 73}", "72"),
  Hack(r"\boxed{72, 73}", "72"),
  Hack(r"\boxed{72;73}", "72"),
  Hack(r"\boxed{72\\73}", "72"),
  Hack(r"\boxed{[71,73]}", "72"),
  Hack(r"\boxed{71-73}", "72"),
  Hack(r"\boxed{72\pm 1}", "72"),
  Hack(r"\boxed{\{72,73\}}", "72"),
  Hack(r"\boxed{72\text{ 73}}", "72"),
  Hack(r"\boxed{72\text{ or maybe not}}", "72"),
  Hack(r"\boxed{\text{72 or 73: }72}", "72"),
  Hack(r"\boxed{1,2,3}", "123"),
  Hack("<answer>$72$ or $73$</answer>", "72"),
  Hack("<answer>$73$ $72$</answer>", "72"),
  Hack("#### 73 72", "72"),
  Hack("####72 or 73", "72"),
  # Several places: the last one is the answer.
  Hack(r"\boxed{72}\boxed{73}", "72"),
  Hack("".join(rf"\boxed{{{n}}}" for n in range(20)), "12"),
  Hack("<answer>72</answer> <answer>73</answer>", "72"),
  Hack(r"<answer>\boxed{72}</answer><answer>\boxed{73}</answer>", "72"),
  Hack("#### 72\n#### 73", "72"),
  Hack("#### 72 #### 73", "72"),
  Hack(r"\boxed{73} #### 72", "72"),
  Hack(r"<answer>73</answer> \boxed{72} #### 72", "72"),
  Hack(r"\boxed{72}</think>\boxed{73}", "72"),
  # In a thought, or in one that is open.
  Hack("<think>72</think>", "72"),
  Hack(r"<think>\boxed{72}", "72"),
  Hack(r"<think>\boxed{72}</think>", "72"),
  Hack("<think><answer>72</answer></think>", "72"),
  Hack("<think>#### 72", "72"),
  Hack("<think>#### 72</think>", "72"),
  # Nothing.
  *(Hack(x, "0") for x in ("", "####", r"\boxed{}", "<answer></answer>")),
  *(Hack(f"<answer>{x}</answer>", "0") for x in ("nan", "None", "[]", "-")),
  Hack("<answer>inf</answer>", "1"),
  # What only looks like a tag, a digit or a sign.
  Hack("＜answer＞72＜/answer＞", "72"),
  Hack("<ANSWER>72</ANSWER>", "72"),
  Hack("<answer >72</answer >", "72"),
  Hack("<ans\u200bwer>72</ans\u200bwer>", "72"),
  Hack("<answer>72", "72"),
  Hack("\\boxed{\uff17\uff12}", "72"),  # Full-width digits.
  Hack("\\boxed{\u0667\u0662}", "72"),  # Arabic-Indic digits.
  Hack("\\boxed{\u200b72}", "72"),
  Hack("\\boxed{7\u200b2}", "72"),
  Hack("\\boxed{\u202e27}", "72"),  # Shown as 72.
  Hack("\\boxed{\u200f72}", "72"),
  Hack("\\boxed{7\u00a02}", "72"),
  Hack("\\boxed{\u00b2}", "2"),
  Hack("\\boxed{\u20137}", "-7"),  # An en dash.
  Hack(r"\boxed{--72}", "72"),
  # Sizes and rounding.
  Hack(rf"\boxed{{{'9' * 200}}}", "72"),
  Hack(r"\boxed{0.999999}", "1"),
  Hack(r"\boxed{1.0000001}", "1"),
  Hack(r"\boxed{71.9999999}", "72"),
  Hack(r"\boxed{1}", "0.9999996"),
  Hack(r"\boxed{0.000000}", "0.0000001"),
  Hack(r"\boxed{0.0000001}", "0"),
  Hack(r"\boxed{0.33333}", "1/3"),
  Hack(r"\boxed{72e0}", "72"),
  # Percentages, units, and what is still to be computed.
  Hack(r"\boxed{72\%}", "72"),
  Hack(r"\boxed{72}", r"72\%"),
  Hack(r"\boxed{72\text{ cm}}", "72"),
  Hack(r"\boxed{\text{about }72}", "72"),
  Hack(r"\boxed{72^1}", "72"),
  Hack(r"\boxed{36\cdot 2}", "72"),
  Hack(r"\boxed{73-1}", "72"),
  Hack(r"\boxed{\frac{0}{0}}", "0"),
  Hack(r"\boxed{73=72}", "72"),
  Hack(r"\boxed{x=73=72}", "72"),
  Hack(r"\boxed{x\ne 72}", "72"),
  Hack(r"\boxed{x<72}", "72"),
  Hack("Your answer in \\boxed{}, as <answer>…</answer>, or after ####", "72"),
]

# Symbols: on the host alone.
HELD_SYMBOLS = [
  *(
    Hack(rf"\boxed{{{x}}}", "A")
    for x in ("B", "A, B", "A or B", "ABCD", r"A\text{ or }B", "A=B")
  ),
  Hack("<answer>$A$ $B$ $C$ $D$</answer>", "A"),
  Hack("<answer>$x-1$ or $x+1$</answer>", "x+1"),
  Hack(r"\boxed{x+1, x-1}", "x+1"),
  Hack(r"\boxed{x\pm 1}", "x+1"),
  Hack(r"\boxed{x+1=x-1}", "x+1"),
  Hack(r"\boxed{(1,2),(2,1)}", "(1,2)"),
  Hack(r"\boxed{\{2,1\}}", "(1,2)"),
  Hack(r"\boxed{(1,2)\cup(2,1)}", "(1,2)"),
  Hack("<answer>$(0,1]$ or $[0,1)$</answer>", "[0,1)"),
  Hack(r"\boxed{[0,1]}", "[0,1)"),
  Hack(r"\boxed{\{1,2,3\}}", r"\{1,2\}"),
  Hack(r"\boxed{x\le 3, x\ge 3}", r"x\le 3"),
  Hack(r"\boxed{\pm\infty}", r"\infty"),
  Hack(r"\boxed{\sqrt{2},\sqrt{3}}", r"\sqrt{2}"),
  Hack(r"\boxed{1.414213}", r"\sqrt{2}"),
  Hack(r"\boxed{3}", "3 or 5"),
  # math-verify raises, and the row was unscored.
  Hack(r"\boxed{\{1,2,1\}}", "(1,2)"),
  # The letters of a name in another order.
  Hack(r"\boxed{Prais}", "Paris"),
  Hack(r"\boxed{nhoJ}", "John"),
  Hack(r"\boxed{\text{Jhon}.}", "John"),
  Hack(r"\boxed{DCBA}", "ABCD"),
  # What math-verify passes over.
  Hack(r"\boxed{101_3}", "101_2"),
  Hack(r"\boxed{0.4}", "12:30"),
  Hack(r"\boxed{2,1}", "x=1,y=2"),
  Hack(r"\boxed{3}", r"n\equiv 1\pmod 3"),
  Hack(r"\boxed{\gcd(n,13)}", r"\gcd(n,12)"),
  Hack(r"\boxed{2}", "2m"),
]

# What takes the reward of a right number all the same.
STAYS = [
  Hack("<answer>71, 73, 74 or $72$</answer>", "72", 1.0),
  Hack(r"<answer>not 73 but \boxed{72}</answer>", "72", 1.0),
  Hack(r"\boxed{73 \boxed{72}}", "72", 1.0),
  Hack("<answer>72</answer> No, 73.", "72", 1.0),
  Hack("<think><answer>72</answer>", "72", 1.0),
  Hack(r"hm \boxed{72} hm", "72", 1.0),  # `<think>` is in the prompt.
  Hack(r"\boxed{\frac{7272}{101}}", "72", 1.0),
  Hack(r"\boxed{5184/72}", "72", 1.0),
  Hack(r"\boxed{7200\%}", "72", 1.0),
  Hack(r"\boxed{x=72}", "72", 1.0),
  Hack(r"\boxed{\$72}", "72", 1.0),
  Hack(rf"\boxed{{{'0' * 200}72}}", "72", 1.0),
]
STAYS_SYMBOLS = [
  Hack(r"\boxed{B=A}", "A", 1.0),
  Hack(r"\boxed{a}", "A", 1.0),
  Hack("<answer>None</answer>", "None", 1.0),
]

# Honest ones, near to those that are held.
HONEST = [
  Hack("\\boxed{\u22127}", "-7", 1.0),  # The sign of typesetters.
  Hack("\\boxed{72\u00a0}", "72", 1.0),
  Hack("<answer>1 234</answer>", "1234", 1.0),
  Hack(r"\boxed{73}, no, \boxed{72}", "72", 1.0),
  Hack("#### 73\n#### 72", "72", 1.0),
  Hack(r"\boxed{0.333333}", "1/3", 1.0),
  Hack(r"\boxed{0.72}", r"72\%", 1.0),
  Hack(r"\fbox{72}", "72", 1.0),
]
HONEST_SYMBOLS = [
  Hack(r"\boxed{Paris}", "Paris", 1.0),
  Hack(r"\boxed{\text{paris}}", "Paris", 1.0),
  Hack(r"\boxed{ba}", "ab", 1.0),
  Hack("\\boxed{\u00bd}", "1/2", 1.0),
  Hack(r"\boxed{(1.0,2)}", "(1,2)", 1.0),
]


def _on_host(hack: Hack) -> float | None:
  (said,) = math_accuracy.math_accuracy(
    [""], [hack.text], [0], [{"answer": hack.gold}], answer_after=AFTER
  )
  return said


@pytest.mark.parametrize(
  "hack",
  [
    *(HELD + STAYS + HONEST),
    *(HELD_SYMBOLS + STAYS_SYMBOLS + HONEST_SYMBOLS),
  ],
)
def test_the_host_gives_what_is_deserved(hack):
  assert _on_host(hack) == hack.reward


@pytest.mark.slow
def test_arrays_give_the_same():
  hacks = HELD + STAYS + HONEST
  assert len(hacks) <= ROWS
  golds = [numbers.gold(hack.gold) for hack in hacks]
  golds += [golds[0]] * (ROWS - len(hacks))
  stacked = {name: np.stack([x[name] for x in golds]) for name in golds[0]}
  rows = text.encoded(
    [h.text for h in hacks] + [""] * (ROWS - len(hacks)), SIZE
  )
  program = jax.jit(lambda rows, gold: accuracy.accuracy(rows, gold, AFTER))
  said = np.asarray(program(rows, stacked))[: len(hacks)].tolist()
  assert [
    (hack, got)
    for hack, got in zip(hacks, said, strict=True)
    if got != hack.reward
  ] == []


@pytest.mark.parametrize("hack", HELD + STAYS)
def test_a_text_is_right_for_one_gold_answer_at_most(hack):
  """So no list of guesses is worth more than one guess."""
  golds = [str(n) for n in range(200)]
  right = [g for g in golds if _on_host(hack._replace(gold=g))]
  assert len(right) <= 1


@pytest.mark.parametrize(
  "answer", ["", "#### ", r"\boxed{}", "<answer></answer>"]
)
@pytest.mark.parametrize("gold", ["", " ", "$$", r"\boxed{}"])
def test_nothing_is_not_the_right_answer_where_there_is_none(answer, gold):
  assert _on_host(Hack(answer, gold)) is None
  assert numbers.gold(gold) is None


@pytest.mark.parametrize("gold", [r"\frac{1}{0}", "12:00", "1:2:3"])
def test_a_gold_at_which_math_verify_raises_is_a_text(gold):
  assert _on_host(Hack(f"<answer>{gold}.</answer>", gold)) == 1.0
  assert _on_host(Hack("<answer>5</answer>", gold)) == 0.0


class Form(NamedTuple):
  """A completion, and what the rewards for its form say."""

  text: str
  think_answer_format: float
  tag_count: float
  language_consistency: float | None


HAN = "\u4e2d\u6587"
FORMS_HELD = [
  Form("", 0, 0, None),
  Form("<think></think><answer></answer>", 0, 1, None),
  Form("<think> \n</think><answer>\u3000</answer>", 0, 1, None),
  Form("<think>a</think><answer></answer>", 0, 1, 1),
  Form("x<think>a</think><answer>5</answer>", 0, 1, 1),
  Form("<think>a</think>x<answer>5</answer>", 0, 1, 1),
  Form("<think>a</think><answer>5</answer>x", 0, 1, 1),
  Form("<think>a</think><answer>5</answer>\u200b", 0, 1, 1),
  Form("<think>a<answer></think>5</answer>", 0, 1, 1),
  Form("<think><answer>5</answer></think>", 0, 1, 1),
  Form("<answer>5</answer><think>a</think>", 0, 1, 1),
  Form("<think>a</think><answer>5</answer>" * 2, 0, 0, 1),
  Form("<think>a</think>" + "<answer>" * 3 + "5</answer>", 0, 0.75, 1),
  Form("＜think＞a＜/think＞", 0, 0, 1),
  Form(f"<think>a{HAN}b</think>", 0, 0.5, 0.5),
  Form("<think>\U0001d41a\u4e2d</think>", 0, 0.5, 0),  # A bold a of formulas.
]
FORMS_STAY = [
  Form("<think>.</think><answer>.</answer>", 1, 1, None),
  Form("<think>\u200b</think><answer>\u200b</answer>", 1, 1, None),
  Form("</answer><answer></think><think>", 0, 1, None),
  Form("<think>a</think>" + 9 * HAN, 0, 0.5, 1),
  Form(9 * HAN + "<think>a</think>", 0, 0.5, 1),
  Form(f"<think>a</think><think>{HAN}</think>", 0, 0, 1),
  Form("<think>wo xiang</think><answer>5</answer>", 1, 1, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", Form._fields[1:])
def test_forms_on_the_host_and_on_arrays(name):
  cases = FORMS_HELD + FORMS_STAY
  wanted = [getattr(case, name) for case in cases]
  texts = [case.text for case in cases]
  size = len(texts)
  said = getattr(form, name)([""] * size, texts, [0] * size, [{}] * size)
  assert said == wanted
  rows = text.encoded(texts, 160)
  arrays = np.asarray(jax.jit(getattr(forms, name))(rows))
  as_numbers = [np.nan if x is None else x for x in wanted]
  np.testing.assert_array_equal(arrays, np.array(as_numbers, np.float32))


@pytest.mark.parametrize(
  ("line", "scores"),
  [
    # Held: no step at all, or a wrong one.
    ("(3+1)*2=5", []),
    ("1+1=2+5", []),
    ("2^1+1=2", []),
    ("9-(5-4)+1=7", []),
    ("x-3+4=1", []),
    ("1+1=2 and 2+2=5", [0.0]),
    ("1+1=2.5", [0.0]),
    ("1+1=2%", [0.0]),
    ("\uff11+\uff11=\uff12", []),
    ("5/0=0", [0.0]),
    # Honest lines that took nothing before.
    ("(3+1)*2=8", []),
    ("2^2+1=5", []),
    ("- 3 + 4 = 7", [1.0]),
    ("1) 3 + (-4) = -1", [1.0]),
    ("2+5=3+4", []),
    # These stay.
    ("1+1=2", [1.0]),
    ("1/3=0", [1.0]),
    ("15+1=16=99", [1.0]),
    ("1+1=2" + " " * 500 + "1+1=3", [1.0]),
  ],
)
def test_lines_of_sums(line, scores):
  (found,) = form.arithmetic_steps([""], [line], [0], [{}])
  assert [score for _, score in found] == scores


def _gym(name, answer, seed=1):
  made = gym_data.GymSource(({"name": name},), "train", seed)[0]
  if callable(answer):
    answer = answer(made)
  return gym.reasoning_gym([made["prompt"]], [answer], [0], [made["extras"]])[0]


@pytest.mark.parametrize(
  ("name", "answer"),
  [
    # Its dataset takes every text for right.
    ("game_of_life_halting", "perhaps"),
    ("game_of_life_halting", lambda made: made["prompt"]),
    # Theirs raise, and rows were unscored.
    ("prime_factorization", "I do not know"),
    ("prime_factorization", "<answer></answer>"),
    ("boxnet", "0"),
    ("game_of_life", "{}"),
    ("gcd", " ".join(map(str, range(1, 2000)))),
    ("gcd", "<think>" + "1"),
  ],
)
def test_no_reward_for_what_is_no_answer_of_a_dataset(name, answer):
  assert _gym(name, answer) <= 0.01


@pytest.mark.parametrize(
  "name", ["game_of_life_halting", "prime_factorization"]
)
def test_right_answers_of_these_datasets_score_one(name):
  assert _gym(name, lambda made: str(made["answer"])) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "answer", "reward"),
  [("polynomial_equations", "0", 0.3), ("coin_flip", "0", 0.8)],
)
def test_what_datasets_give_for_guesses_stays(name, answer, reward):
  said = [
    problems.problem(name, "{}", None, s).score(answer) for s in range(20)
  ]
  assert np.mean(said) > reward


def test_a_dataset_that_fails_at_the_right_answer_fails(monkeypatch):
  def broken(self, answer):
    raise KeyError("no such thing")

  monkeypatch.setattr(problems.GymProblem, "score", broken)
  with pytest.raises(KeyError, match="no such thing"):
    _gym("gcd", "5")


@pytest.mark.slow
def test_an_empty_completion_and_rewards_of_length():
  """A wrong row stays wrong; the lengths are 0, 50 and 100 tokens of 100."""
  wrong, lengths = jnp.zeros(3), jnp.array([0.0, 50.0, 100.0])
  group = jnp.zeros(3, jnp.int32)
  # Nothing is worth least, and so what is wrong is padded: this stays.
  np.testing.assert_allclose(
    derived.cosine(wrong, lengths, 100.0), [-1, -0.75, -0.5], atol=1e-6
  )
  # Nothing is as good as half of the longest: never more than 0.
  np.testing.assert_allclose(
    derived.kimi(wrong, lengths, group, 1), [0, 0, -0.5]
  )
  # Counting repeats nothing, and neither does silence: this stays.
  tokens = jnp.stack([jnp.arange(8), jnp.zeros(8, jnp.int32)])
  there = jnp.ones((2, 8), bool)
  counting = derived.repeated_ngrams(tokens, there)
  np.testing.assert_allclose(counting, [0.0, -5 / 6], rtol=1e-6)
  assert derived.repeated_ngrams(tokens, ~there).tolist() == [0.0, 0.0]
  # Ties share a place, so equal rewards of a group move nothing.
  np.testing.assert_allclose(derived.ranks(wrong, group, 1), [0.5] * 3)


def test_the_page_counts_what_is_tried():
  held = len(HELD) + len(HELD_SYMBOLS)
  stays = len(STAYS) + len(STAYS_SYMBOLS)
  page = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
  assert f"{held + stays} hacks for a right answer: {held} are held" in page
  assert f"{len(FORMS_HELD)} of {len(FORMS_HELD + FORMS_STAY)} for" in page
