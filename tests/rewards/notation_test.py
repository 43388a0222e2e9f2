"""Plain answers: the dress is off, of whatever was in it, and stays off."""

import hypothesis
import pytest
from hypothesis import strategies as st

from grpo_jax.rewards import answers, notation

BARE = (
  *("73", "x+1", r"\frac{1}{2}", r"2\sqrt{3}", "(1,2)", r"\{1,2\}", "[0,1)"),
  *(
    *("x^{2}", r"x\le5", "blue", r"\text{no solution}", r"n\equiv1\mod3"),
    "12:00",
  ),
  *(r"3\text{hours}5\text{minutes}", "x=1,x=2", r"\frac{a+b}{c-1}", "AB"),
)
DRESSES = (
  *("**{}**", "`{}`", "${}$", r"\({}\)", "$${}$$", r"\displaystyle {}", "{}."),
  *(r"\bf {}", r"\textbf{{{}}}", "{{{}}}", r"\mathbf{{{}}}", r"\boxed{{{}}}"),
  *(" {} ", r"{}\,", "It is ${}$.", r"{{\bf {}}}"),
)
PIECES = (
  *("x", "y", "2", "10", " ", "+", "-", "/", "^", "_", "(", ")", "{", "}", ","),
  *(r"\frac", r"\sqrt", r"\pi", "pi", "sqrt", "√", "²", r"\text{", "and", "or"),
  *(r"\le", "<=", "=", "*", "**", "$", r"\left", r"\right", "[", "]", r"\{"),
  *(r"\}", ".", r"\pm", r"\over", "mod", r"\mathbb", "~", r"\ ", "word", ":"),
)


@pytest.mark.parametrize("bare", BARE)
def test_a_dress_changes_nothing(bare):
  plain = notation.plain(bare)
  for dress in DRESSES:
    assert notation.plain(dress.format(bare)) == plain
  if notation.split(plain) is None:
    assert notation.plain(rf"\left({bare}\right)") == plain


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_what_is_plain_stays(pieces):
  plain = notation.plain("".join(pieces))
  for _ in range(8):  # Each pair of brackets is another layer.
    plain = notation.plain(plain)
  assert notation.plain(plain) == plain
  notation.split(plain)
  notation.has_words(plain)


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("1,2", ("", "", ("1", "2"))),
    ("(1,(2,3))", ("(", ")", ("1", "(2,3)"))),
    ("[0,1)", ("[", ")", ("0", "1"))),
    (r"\{1\}", ("{", "}", ("1",))),
    (r"\langle1,x\rangle", ("<", ">", ("1", "x"))),
    ("(1,2),(3,4)", ("", "", ("(1,2)", "(3,4)"))),
    (r"x\pm1", ("", "", ("x+1", "x-1"))),
    (r"(0,1)\cup(2,3)", None),
    ("(x+1)", None),
    (r"\frac{1}{2}", None),
    ("f(x,y)", None),
  ],
)
def test_members(text, expected):
  assert notation.split(text) == expected


def test_deep_and_long_texts_end():
  for text in ("{" * 150, "(" * 300, r"\sqrt" * 60, "^" * 150, r"\text{" * 50):
    notation.plain(text)
  assert answers.quantity("{" * 1000) is None
