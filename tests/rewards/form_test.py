"""think_answer_format: known cases, and the expression it stands for."""

import re
import time

import hypothesis
import pytest
from hypothesis import strategies as st

from grpo_jax.rewards import form

PATTERN = re.compile(
  r"^<think>(?!.*<think>)\s*\S.*?</think>\s*<answer>\s*\S.*?</answer>\s*$",
  re.DOTALL,
)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")


def score(*completions):
  size = len(completions)
  return form.think_answer_format(
    [""] * size, list(completions), list(range(size)), [{}] * size
  )


@pytest.mark.parametrize(
  ("completion", "expected"),
  [
    ("<think>a</think><answer>b</answer>", 1.0),
    ("<think>a\nb</think>\n\n<answer>\nc\n</answer>\n ", 1.0),
    ("<think></think><answer></answer>", 0.0),
    ("<think>a</think><answer></answer>", 0.0),
    ("<think></think><answer>b</answer>", 0.0),
    ("<think> \n</think><answer>b</answer>", 0.0),
    ("<think>a</think><answer>\n</answer>", 0.0),
    ("", 0.0),
    ("b", 0.0),
    (" <think>a</think><answer>b</answer>", 0.0),
    ("<think>a</think>so<answer>b</answer>", 0.0),
    ("<think>a</think><answer>b</answer>.", 0.0),
    ("<think>a</think>", 0.0),
    ("<answer>b</answer>", 0.0),
    ("<answer>b</answer><think>a</think>", 0.0),
    ("<think>a<answer>b</answer></think>", 0.0),
    ("<think>a<think>a</think><answer>b</answer>", 0.0),
    ("<think>a</think></think><answer>b</answer>", 0.0),
    ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
    ("<think>a</think><answer>b", 0.0),
    ("<Think>a</Think><answer>b</answer>", 0.0),
  ],
)
def test_known_cases(completion, expected):
  assert score(completion) == [expected]


def test_order_is_kept():
  good = "<think>a</think><answer>b</answer>"
  assert score(good, "x", good) == [1.0, 0.0, 1.0]


parts = st.lists(
  st.sampled_from((*TAGS, *TAGS, "a", " ", "\n", "<", "answer>")), max_size=9
)


@pytest.mark.slow
@hypothesis.given(parts)
@hypothesis.example(["<think>", "a", *TAGS[1:], "\n"])
@hypothesis.settings(deadline=None, max_examples=300)
def test_agrees_with_the_expression_and_one_of_each_tag(words):
  text = "".join(words)
  expected = PATTERN.fullmatch(text) is not None
  expected = expected and all(text.count(tag) == 1 for tag in TAGS)
  assert score(text) == [float(expected)]


def test_hostile_text_takes_linear_time():
  start = time.process_time()
  for tag in (*TAGS, "</think><answer>", "<think>" + " " * 50):
    assert score("<think>" + tag * 100_000) == [0.0]
  assert time.process_time() - start < 5.0
