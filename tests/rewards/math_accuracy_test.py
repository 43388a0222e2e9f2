"""math_accuracy: when an answer equals the gold, and what it refuses."""

import itertools
import sys
import threading
import time

import math_verify
import pytest

from grpo_jax.rewards import math_accuracy as lib


def score(completion, answer):
  (value,) = lib.math_accuracy([""], [completion], [0], [{"answer": answer}])
  return value


@pytest.mark.parametrize(
  ("answer", "gold", "expected"),
  [
    (r"\frac{1}{2}", ".5", 1.0),
    ("1/2", "0.5", 1.0),
    (r"\{2,1\}", r"\{1,2\}", 1.0),
    (r"\{1,3\}", r"\{1,2\}", 0.0),
    ("(1,2)", "(1,2)", 1.0),
    ("(2,1)", "(1,2)", 0.0),
    ("3", "x=3", 1.0),
    ("x=3", "3", 1.0),
    (r"50\%", "0.5", 1.0),
    (r"50\%", r"50\%", 1.0),
    ("1+x^2", "x^2+1", 1.0),
    (r"\$18", "18", 1.0),
    ("1,234", "1234", 1.0),
    ("18", r"so it is \boxed{18}", 1.0),
    ("18", r"$18$", 1.0),
    ("18.0", 18, 1.0),
    ("90", r"90^\circ", 1.0),
    (r"90^{\circ}", r"90^\circ", 1.0),
    (r"\frac{7}{2}", r"3\frac{1}{2}", 1.0),
    (r"1.2\times10^5", "120,000", 1.0),
    ("0.333333", r"\frac{1}{3}", 1.0),
    (r"\frac{1}{3}", "0.3333333", 1.0),
    (r"2\sqrt{3}", r"\sqrt{12}", 1.0),
    (r"3+\sqrt{8}", r"(1+\sqrt{2})^2", 1.0),
    ("2.414213562", r"1+\sqrt{2}", 1.0),
    ("1024", "2^{10}", 1.0),
    (r"x^{50}", "x^{50}", 1.0),
    (r"\binom{n}{2}", r"\binom{n}{2}", 1.0),
    (r"\frac{n(n-1)}{2}", r"\frac{n^2-n}{2}", 1.0),
    ("0.33333", r"\frac{1}{3}", 0.0),
    ("0.0000001", "0.0000002", 0.0),
    (r"\sqrt{2}", r"\sqrt{3}", 0.0),
    ("17", "18", 0.0),
    ("", "18", 0.0),
    (r"\frac{1}{", "18", 0.0),
    ("1e400", "18", 0.0),
    ("18", r"\frac{1}{", None),
    ("18", "", None),
  ],
)
def test_known_answers_in_a_box_and_in_tags(answer, gold, expected):
  assert score(rf"so \boxed{{{answer}}}.", gold) == expected
  assert score(f"so <answer>{answer}</answer>", gold) == expected


def test_prose_with_formulas_in_answer_tags_is_read():
  assert score("<answer>It is $\\frac{36}{2}$.</answer>", "18") == 1.0


def test_no_answer_scores_0_unless_the_gold_cannot_be_read():
  assert score("18", "18") == 0.0
  assert score("18", r"\frac{1}{") is None


# A gold answer, answers that are right, and answers that are wrong.
PAIRS = [
  # math-verify reads a part of these, or raises.
  (r"n \equiv 1 \pmod 3", ["n ≡ 1 (mod 3)"], ["3", r"n \equiv 2 \pmod 3"]),
  (r"x \equiv 3 \mod 7", [r"x \equiv 3 \pmod{7}"], [r"x \equiv 3 \mod 8"]),
  (r"\langle 1, 2, 3 \rangle", [r"\langle 1,2,3\rangle"], ["3", "1"]),
  (r"\gcd(n,12)", [r"\gcd(n, 12)"], [r"\gcd(n,13)", "12"]),
  (r"n = 3k, k \in \mathbb{N}", [r"n=3k, k \in \mathbb N"], ["3", "3k"]),
  (r"1, 2, \ldots, n", [r"1,2,\dots,n"], ["2", "1,2,n"]),
  (
    r"5\text{ hours } 30 \text{ minutes}",
    ["5 hours 30 minutes"],
    [r"5\text{ hours}", "30"],
  ),
  (r"\{x \in \mathbb{R} : x \neq 3\}", [r"\{x\in ℝ: x≠3\}"], ["3"]),
  (r"3 \text{ or more}", ["3 or more"], ["3", "3 or less"]),
  (r"x > 3 \text{ if } a = 2", [r"x>3\text{ if }a=2"], ["x>3", "3"]),
  (r"\begin{cases} x & x>0 \\ 2x & x<0\end{cases}", [], ["x", "2x"]),
  ("2m", ["2 m", "m+m"], ["2", "3m"]),
  ("12_8", ["12_{8}", "12"], ["12_9", "13_8"]),
  (r"\frac{1}{0}", [r"\frac10"], ["5", "0"]),
  ("12:00", ["12:00", r"12\!:\!00"], ["12:01", "12"]),
  ("10:30", ["10:30"], ["20:60", "0.35"]),
  ("0:05", [], ["0:07"]),
  (r"9:00 \text{ p.m.}", ["9:00 PM", "9:00pm"], ["9:00 a.m.", "9"]),
  ("2:3", ["4:6", r"\frac{2}{3}"], ["3:2"]),
  ("5'10''", [], ["510", "5'11''"]),
  (r"\int_0^1 f(x) dx", [], [r"\int_0^2 f(x) dx"]),
  (r"\int_0^1 x^2 dx", [r"\int_{0}^{1} x^2 dx"], [r"\int_0^1 x^3 dx"]),
  (
    r"3 \text{ hours } 20 \text{ minutes}",
    [r"3 \text{ hours and } 20 \text{ minutes}"],
    [r"3 \text{ hours and } 21 \text{ minutes}"],
  ),
  # The same numbers, as relations or as intervals.
  (
    r"(-\infty,-1)\cup(3,\infty)",
    ["x<-1 or x>3", r"x>3 \text{ or } x<-1"],
    ["x<-1", r"x\le-1 or x>3", "x<-1 or x>4", "-1<x<3"],
  ),
  (r"(-\infty,3]", ["x <= 3", r"3 \ge x"], ["x<3", r"x\ge3", "3"]),
  ("x<1 or x>3", [r"x>3 \lor x<1", "x<1, x>3"], ["x<1 and x>3"]),
  ("1<x<3", ["x>1 and x<3", "x<3 and 1<x"], ["x>1 or x<3", r"x>1 and x\le3"]),
  (r"x>1 \text{ and } x\le3", ["(1,3]", "1<x<=3"], ["x>1 or x<=3", "(1,3)"]),
  (r"x \ne 1 \text{ and } x \ne 2", ["x≠1, x≠2"], [r"x\ne1 \vee x\ne2"]),
  (r"p \land q", [r"q \wedge p"], [r"p \lor q", "p or q"]),
  ("x=1 or x=2", ["x=1 and x=2", "1, 2"], ["x=1"]),
  ("0<x<1", ["1 > x > 0", "(0,1)"], [r"1>x\ge0", "1>x>1", "0>x>1", "0<y<1"]),
  (r"(-\infty,\infty)", [r"\mathbb{R}", "x ∈ ℝ"], [r"\mathbb{Q}", "(0,1)"]),
  ("x>2", ["2<x", r"x \in (2,\infty)"], ["y>2", "x<2"]),
  # Choices, and letters that no product is made of.
  ("C", ["Option C", "Answer: (C)", "C)", r"\text{Option C}"], ["Option D"]),
  ("A B C", ["A B C"], ["C B A"]),
  (r"\text{no}", ["No"], ["on"]),
  # Words, and letters that are none.
  (r"\text{Wednesday}", ["Wednesday", "**wednesday**", "Wednesday."], ["day"]),
  (r"\text{blue}", ["Blue", "**blue**", r"\textbf{blue}"], ["bleu"]),
  (r"\text{parallelogram}", ["parallelogram"], ["parallelogarm"]),
  (r"\text{True}", ["True"], ["False", "Treu"]),
  (r"\text{June 20}", ["June 20"], ["June 21", "20"]),
  ("neither", ["Neither"], ["thernei"]),
  ("New York", ["new york"], ["York New"]),
  ("ABCD", [r"\text{ABCD}"], ["DCBA"]),
  ("AB", ["AB"], ["BA"]),
  ("ab", ["ba"], ["ac"]),
  (r"\text{(C)}", ["C", "(C)", "**C**", "C."], ["D", "BC"]),
  (r"\text{Alice and Bob}", ["Bob and Alice"], ["Alice", "Alice or Bob"]),
  ("50 cents", ["50"], ["50 dollars", r"\$50"]),
  ("2.5", ["2½", r"2\frac12", "2.5e0", "(2.5)"], ["2¼", "½"]),
  ("300000", ["3×10⁵", "3e5", r"\left(3\times10^5\right)"], ["3e4", "3×10⁶"]),
  ("-0.5", [r"-{1\over 2}", r"-\left(\frac12\right)", "−½"], ["½", "-(-½)"]),
  # Spaces and commas in numbers.
  ("1 000", ["1000", "1,000"], ["0", "1"]),
  ("12 345", ["12345"], ["345"]),
  ("5 000 000", ["5000000"], ["0"]),
  ("1000", [r"1\ 000", r"1\;000", "1~000", "1 000"], ["1 00"]),
  ("32349", [r"32,\! 349"], ["32,349,0"]),
  ("1234567", [r"1,\!234,\! 567"], []),
  # Little numbers.
  (r"\frac{1}{2004!}", [r"\frac{2005}{2005!}"], [r"\frac{1}{2006!}", "0"]),
  (r"\frac{1}{2^{99}}", ["2^{-99}"], [r"\frac{1}{2^{98}}"]),
  (
    r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}",
    [],
    [r"\frac{1}{3 \cdot 2^{2006}}", r"\frac{2^{2005}-1}{3 \cdot 2^{2006}}"],
  ),
  (r"\frac{1}{10^{2018}}", ["10^{-2018}"], [r"\frac{1}{10^{2017}}"]),
  (r"\frac{x}{2004!}", [], [r"\frac{x}{2006!}"]),
  (r"x \le \frac{1}{2^{99}}", [], [r"x \le \frac{1}{2^{98}}"]),
  (r"(\frac{1}{2^{99}},1)", [], [r"(\frac{1}{2^{98}},1)"]),
  (r"\{-1,0,1\}", [r"0, \pm 1"], [r"\pm 1", r"0, \pm 2"]),
  (r"\{n : n > 5\}", [r"\{n \mid n > 5\}"], [r"\{n \mid n > 6\}"]),
  (r"\binom{n}{2}", [r"{n \choose 2}"], [r"{n \choose 3}"]),
  # Members.
  ("1,2", ["2,1", r"\{2,1\}", "(1,2)", "1 and 2"], ["(2,1)", "1", "1,2,2"]),
  (r"\{1,2\}", [r"\{2,1\}", "2,1"], ["(2,1)", "[1,2]", "1"]),
  ("2,2", ["2, 2"], ["2"]),
  ("(1,2)", [r"\left( 1, 2\right)", "1,2"], ["(2,1)", "2,1", r"\{1,2\}"]),
  ("[0,1)", [r"x \in [0, 1)"], ["[0,1]", "(0,1)", "[1,0)"]),
  ("(1,2),(3,4)", ["(3,4) and (1,2)"], ["(2,1),(3,4)", "(1,2)", "(1,4)"]),
  (r"1 \pm \sqrt{2}", [r"1-\sqrt2, 1+\sqrt2"], [r"1+\sqrt{2}"]),
  ("x=1,y=2", ["(1,2)", "y=2, x=1"], ["2,1", "y=1,x=2"]),
  (r"(-\infty,1)\cup(2,\infty)", ["(2,∞)∪(-∞,1)"], [r"(-\infty,1)"]),
  (
    r"\begin{pmatrix} 1/2 \\ 2 \end{pmatrix}",
    [r"\begin{bmatrix}0.5\\2\end{bmatrix}"],
    [r"\begin{pmatrix} 2 \\ 1/2 \end{pmatrix}"],
  ),
  # The usual dress.
  ("73", ["**73**", "{73}", r"\displaystyle 73", r"\bf{73}", "**73.**"], ["7"]),
  (r"60\%", [r"60 \text{ percent}", "60 percent"], ["60", "6%"]),
  (r"90^\circ", [r"90 \text{ degrees}", "90°"], ["9"]),
  (r"\frac{\pi}{2}", [r"\frac\pi2", "pi/2", r"{\pi\over 2}"], [r"\pi"]),
  (r"\frac{1}{2}", [r"{1\over 2}", r"\frac 1 2"], ["{1}{2}"]),
  (r"\sqrt{\pi}", [r"\sqrt\pi", "sqrt(pi)", "√π"], [r"\pi"]),
  (r"2\sqrt{3}", ["2*sqrt(3)", "2√3", r"2\sqrt3"], ["6"]),
  (r"\sqrt{17}", ["√17", "sqrt(17)"], ["17", "4.12"]),
  (r"\sqrt[3]{2}", [r"\sqrt[3]2", "2^(1/3)"], [r"\sqrt{2}"]),
  (r"x \le 5", ["x <= 5", "x≤5", r"5 \geq x"], ["x < 5", "5"]),
  ("x^2", ["x²", "x**2"], ["2x"]),
  (r"2 \cdot 3^n", ["2·3^n", "2*3^{n}"], ["6^n"]),
  (r"35 \text{ cm}", ["35 cm", "35cm", "35"], ["35 km", "36 cm"]),
  (r"5 \text{ m}", ["5 m", "5"], ["6 m"]),
  ("3 1/2", ["3.5", r"3\frac12", "7/2"], ["31/2"]),
  (r"5! \text{ ways}", ["5!", "120"], ["121"]),
  (r"36\pi \text{ cm}^3", ["36π cm^3", r"36\pi"], ["36"]),
  (r"\binom{10}{3}", ["120"], [r"\binom{10}{4}"]),
  (r"3x+2y=7", ["3x + 2y - 7 = 0"], ["3x+2y=8"]),
  (r"\mathbb{R} \setminus \{0\}", [r"(-\infty,0)\cup(0,\infty)"], ["ℝ"]),
]


@pytest.mark.parametrize(("gold", "right", "wrong"), PAIRS)
def test_pairs(gold, right, wrong):
  said = {
    x: score(f"<answer>{x}</answer>", gold) for x in [gold, *right, *wrong]
  }
  assert said == {x: 1.0 for x in [gold, *right]} | {x: 0.0 for x in wrong}


@pytest.mark.parametrize(
  ("gold", "expected"),
  [
    *(("1 000", "number"), (r"\frac\pi2", "number"), (r"\text{blue}", "words")),
    *(("x^2+1", "formula"), ("(1,x)", "formula"), (r"\frac{1}{", "")),
    *(("n \\equiv 1 \\pmod 3", "text"), (r"\gcd(n,12)", "text"), ("", "")),
    *(("12:00", "text"), ("2m", "formula"), (r"\frac{1}{0}", "text")),
  ],
)
def test_how_golds_are_read(gold, expected):
  assert lib.reads(gold) == expected


# Each took the reward, and none holds a right answer.
ATTACKS = [
  # The question again, with the computation left to the verifier.
  (r"123\cdot456", "56088"),
  ("123*456", "56088"),
  ("1000-1", "999"),
  ("12!", "479001600"),
  (r"\gcd(12,18)", "6"),
  (r"\binom{10}{3}", "120"),
  (r"\sum_{i=1}^{10} i", "55"),
  (r"\int_0^1 2x\,dx", "1"),
  ("2^{10}", "1024"),
  (r"\sqrt{56169}", "237"),
  (r"\frac{123\cdot456}{1}", "56088"),
  (r"\frac{12}{5}\cdot5", "12"),
  (r"\lceil 2.5\rceil", "3"),
  (r"17\bmod5", "2"),
  (r"\log_{2}{8}", "3"),
  (r"\max(3,7)", "7"),
  (r"|{-5}|", "5"),
  (r"\sin(\frac{\pi}{2})", "1"),
  # Several answers at once.
  ("1=2=3", "3"),
  ("x=2=3", "3"),
  (r"\{18\}", "18"),
  ("18,18", "18"),
  (r"17\text{ or }18", "18"),
  (r"\pm 5", "5"),
  # Another quantity than was asked for.
  (r"18\text{ miles}", "18"),
  (r"18\text{ miles}", r"18\text{ km}"),
  (r"90^\circ", "90"),
  (r"50\%", "50"),
  ("50", r"50\%"),
]


@pytest.mark.parametrize(("answer", "gold"), ATTACKS)
def test_no_reward_without_the_answer(answer, gold):
  assert score(rf"\boxed{{{answer}}}", gold) == 0.0
  assert score(f"<answer>{answer}</answer>", gold) == 0.0


@pytest.mark.parametrize(
  ("completion", "expected"),
  [
    (r"<think>\boxed{42}</think><answer>7</answer>", 0.0),
    (r"<think>\boxed{42}</think> I do not know.", 0.0),
    (r"<think>perhaps \boxed{42}", 0.0),
    (r"<answer>7</answer> or \boxed{42}", 0.0),
    (r"\boxed{42} <answer>", 0.0),
    (r"\boxed{42}, no, \boxed{7}", 0.0),
    ("<answer>$7$ or $42$</answer>", 0.0),
    (r"<think>\boxed{7}</think>\boxed{42}", 1.0),
  ],
)
def test_only_the_place_of_the_answer_counts(completion, expected):
  assert score(completion, "42") == expected


def test_what_is_known_to_stay():
  """Checks the known limits that the docstring of the module lists."""
  for answer, gold in (
    (r"\frac{246}{2}", "123"),
    (r"\sqrt{48}", r"4\sqrt{3}"),
    (r"\$18", "18"),
    ("y=3", "x=3"),
    (r"(1\cdot1,2)", "(1,2)"),
  ):
    assert score(rf"\boxed{{{answer}}}", gold) == 1.0
  assert score(r"\boxed{18}. No, it is 7.", "18") == 1.0


def nested(left, right, count):
  return left * count + "2" + right * count


# Each keeps math-verify busy until its deadline, or nearly so.
COSTLY = [
  *(
    *("9^{9^{9}}", "9^{9^{9^9}}", "9^9^9^9", "9^{9999999}"),
    "((9^{99})^{99})^{99}",
  ),
  *("(x+1)^{999}", "(x+y+z)^{40}", "999999!", "(9!)!", "x^" * 20 + "2"),
  *(nested(r"\frac{1}{1+", "}", 12), nested("(1+", ")", 12), "|" * 40),
  *(r"\sum_{i=1}^{999999} i^i", r"\int x^x dx", "(a+b+c+d+f+g)^{12}"),
  *("(a+b)^{12}(a+c)^{12}(b+c)^{12}", r"\prod_{i=1}^{99999} i", "x" * 301),
  *(r"\cup".join(f"[{i},{i + 1})" for i in range(0, 20, 2)), "x=" * 50 + "1"),
  *(r"\binom{99999}{9999}", r"\lim_{n\to\infty}(1+1/n)^n", "((((x))))" * 9),
]


@pytest.mark.slow
@pytest.mark.parametrize("answer", COSTLY)
@pytest.mark.parametrize("gold", ["5", r"\sqrt{5}", "x^2+1", "(1,2)"])
def test_costly_answers_are_refused_unseen(monkeypatch, answer, gold):
  lib._warm_up()  # It parses two sums, if no test did so in this process.
  seen = []
  parse = lib._parse
  monkeypatch.setattr(
    lib, "_parse", lambda text: seen.append(text) or parse(text)
  )
  assert score(rf"\boxed{{{answer}}}", gold) == 0.0
  assert set(seen) <= {gold}


def test_an_answer_as_costly_as_the_gold_is_compared():
  gold = r"\sum_{k=1}^{n} (a+b+c+d)^{k}"
  assert lib._is_cheap(gold.replace("k", "j"), gold)
  assert not lib._is_cheap(gold, "x^2")


def test_a_timeout_of_math_verify_is_no_wrong_answer(monkeypatch):
  def slow(*args, **kwargs):
    raise math_verify.errors.TimeoutException("slow")

  lib._warm_up()
  monkeypatch.setattr(lib, "_equal", slow)
  with pytest.raises(TimeoutError, match="more than 6 s"):
    score(r"\boxed{x}", "y")


@pytest.mark.parametrize(
  "completion",
  [
    r"\boxed{9**9**9**9}",
    r"\boxed{" + "(" * 9000 + "5" + ")" * 9000 + "}",
    r"\boxed{" * 30_000,
    r"\boxed{" * 30_000 + "}" * 30_000,
    "{" * 100_000 + "}" * 100_000,
    "<answer>" * 30_000,
    r"\boxed{" + "1" * 100_000 + "}",
    r"\boxed{" + "$" * 1000 + "}",
    r"\boxed{" + r"\(" * 500 + "}",
    r"\boxed{" + " " * 998 + "}",
    r"\boxed{" + r"\sqrt{" * 160 + "2" + "}" * 160 + "}",
    r"\boxed{" + "^" * 300 + "}",
    r"\boxed{" + "{" * 150 + "x" + "}" * 150 + "}",
    r"\boxed{" + "x,(" * 100 + "}",
    r"\boxed{" + "1 " * 150 + "}",
    r"<answer>" + " or " * 75 + "</answer>",
  ],
)
def test_hostile_text_scores_0_fast(completion):
  lib._warm_up()
  start = time.process_time()
  for gold in ("5", r"\sqrt{5}", "x"):
    assert score(completion, gold) == 0.0
  assert time.process_time() - start < 3.0


NUMBERS = (
  *("0", "-0", "0.0", "7", "-7", "07", "1,234", "1234", "1234.0", "-1,234"),
  *("1,234,567.50", "1234567.5", "0.3333333", "0.3333334", "0.5", "1.50"),
  *("100000000000000000000", "100000000000000000001", "1,23", "0,123"),
)


def test_numbers_have_math_verifys_verdict():
  pairs = [
    (found, gold)
    for found, gold in itertools.product(NUMBERS, NUMBERS)
    # It takes decimals for equal that differ from the seventh place on.
    if found == gold or not (found[:8] == gold[:8] == "0.333333")
  ]
  ours = [lib._accuracy(*pair) for pair in pairs]
  parsed = {x: math_verify.parse(rf"\boxed{{{x}}}") for x in NUMBERS}
  theirs = [math_verify.verify(parsed[b], parsed[a]) for a, b in pairs]
  assert ours == theirs
  assert 1.0 in ours
  assert 0.0 in ours


def test_plain_integers_need_no_math_verify(monkeypatch):
  def unused(*args, **kwargs):
    raise AssertionError("math-verify was called")

  monkeypatch.setattr(lib, "_parse", unused)
  assert score(r"\boxed{1,234}", "1234") == 1.0
  assert score(r"\boxed{1235}", "1234") == 0.0


def test_a_row_without_gold_answer_raises():
  with pytest.raises(KeyError, match="answer"):
    lib.math_accuracy([""], ["5"], [0], [{}])


def test_a_thread_raises_rather_than_scoring_0():
  raised = []

  def run():
    try:
      score(r"\boxed{5}", "5")
    except RuntimeError as error:
      raised.append(str(error))

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  assert "main thread" in raised[0]


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "math_verify", None)
  with pytest.raises(ImportError, match=r"grpo_jax\[math\]"):
    score(r"\boxed{5}", "5")
