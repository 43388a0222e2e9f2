"""The answer of a row of bytes is the one that the host finds."""

import functools
import random

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.rewards import answers
from grpo_jax.rewards.in_graph import find, text
from tests.rewards.in_graph import made_texts

pytestmark = pytest.mark.slow

SIZE, ROWS = 256, 512
PARTS = (
  *("<think>", "</think>", "<answer>", "</answer>", r"\boxed{", r"\boxed {"),
  *("{", "}", "\\", r"\{", r"\}", "####", "\n", " ", "\u2003", "5", "é", "<"),
  *(r"\boxed", "\\\\", "x", r"\boxed 4", "-", ".", "$", r"\boxed{}"),
)


@functools.cache
def program(after, width):
  return jax.jit(lambda rows: find.final_answer(rows, after, width))


def found(texts, after="", width=find.MAX_ANSWER):
  """Final answers of texts, at most ROWS of SIZE bytes."""
  rows = text.encoded([*texts, *[""] * (ROWS - len(texts))], SIZE)
  window = jax.device_get(program(after, width)(rows))
  return [
    bytes(data[:length]).decode("utf-8", "replace") if is_found else None
    for data, length, is_found, _ in zip(*window, texts, strict=False)
  ]


@pytest.mark.parametrize("after", ["", "####"])
def test_random_parts(after):
  rng = random.Random(0)
  texts = [
    "".join(rng.choices(PARTS, k=rng.randrange(16))) for _ in range(4 * ROWS)
  ]
  texts = [x for x in texts if len(x.encode()) <= SIZE]
  got = [
    x
    for k in range(0, len(texts), ROWS)
    for x in found(texts[k : k + ROWS], after)
  ]
  wanted = [answers.final_answer(x, after) for x in texts]
  assert got == wanted
  assert sum(x is not None for x in wanted) > len(texts) / 20


@hypothesis.settings(deadline=None, max_examples=20)
@hypothesis.given(st.lists(st.lists(st.sampled_from(PARTS), max_size=12)))
def test_any_parts(rows):
  texts = ["".join(row) for row in rows][:ROWS]
  assert found(texts, "####") == [
    answers.final_answer(x, "####") for x in texts
  ]


@hypothesis.settings(deadline=None, max_examples=10)
@hypothesis.given(st.lists(st.text(max_size=40), min_size=1, max_size=20))
def test_any_characters(contents):
  """Strips the same white space as Python."""
  texts = [f"<answer>{content}</answer>" for content in contents]
  assert found(texts) == [
    None if "\ud800" <= max(x) <= "\udfff" else answers.final_answer(x)
    for x in texts
  ]


def test_all_white_space():
  space = [chr(x) for x in range(0x3100) if chr(x).isspace()]
  others = ["\u200b", "\u2060", "\u1681", "\u2010", "\u3001", "é", "\u00e0"]
  texts = [f"<answer>{x}5{x}</answer>" for x in (*space, *others)]
  assert found(texts) == [
    *["5"] * len(space),
    *(f"{x}5{x}" for x in others),
  ]
  assert len(space) == 29


def test_long_answers_and_cut_texts_are_none():
  texts = ["<answer>" + "5" * size + "</answer>" for size in (16, 17, 239, 240)]
  assert found(texts, width=16) == ["5" * 16, None, None, None]
  texts.append("<answer>5</answer>" + " " * SIZE)
  # The last two do not fit.
  assert found(texts) == ["5" * 16, "5" * 17, "5" * 239, None, None]


def test_rows_without_an_answer_are_empty():
  rows = text.encoded(["<answer>5</answer>", "5"], 32)
  window = program("", find.MAX_ANSWER)(rows)
  assert window.bytes.shape == (2, find.MAX_ANSWER)
  np.testing.assert_array_equal(window.length, [1, 0])
  np.testing.assert_array_equal(window.bytes[0, :2], [ord("5"), 0])
  assert not window.bytes[1].any()


def test_thousands_of_tags_and_braces():
  """Nothing counts in a byte, and the depth of braces has no limit."""
  size = 16384
  texts = [
    "<answer>" * 2000,
    r"\boxed{" + "{" * 5000 + "5" + "}" * 5000 + "}",
    r"\boxed{" * 2000 + "5" + "}" * 2000,
    "}" * 9000 + r"\boxed{5}" + "{" * 5000,
    "\\" * 9000 + r"\boxed{5}",
    "\\" * 9001 + r"\boxed{5}",
  ]
  window = program("", 8)(text.encoded(texts, size))
  got = [
    bytes(data[:length]).decode() if is_found else None
    for data, length, is_found in zip(*window, strict=True)
  ]
  wanted = [answers.final_answer(x) for x in texts]
  assert got == [None if x and len(x) > 8 else x for x in wanted]
  assert wanted.count("5") == 3


def test_patterns_of_any_length_are_found():
  data = text.encoded(["abcabcabcabcd", "cd"], 16).bytes
  words = text.words(data)
  for pattern in (b"a", b"cd", b"abcd", b"abcab", b"abcabcabc", b"abcabcabcd"):
    got = np.asarray(text.starts(words, pattern))
    for row, line in zip(got, (b"abcabcabcabcd", b"cd"), strict=True):
      assert [k for k in range(16) if row[k]] == [
        k for k in range(16) if line.startswith(pattern, k)
      ]


def test_made_texts_have_answers_of_all_kinds():
  cases = made_texts.cases(0, 1000)
  wanted = [answers.final_answer(x, "####") for x, _ in cases]
  assert 500 < sum(x is not None for x in wanted) < 950
