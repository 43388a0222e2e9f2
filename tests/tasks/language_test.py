"""Two languages: scores known by hand, and what the teacher writes."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.tasks import language, vocabulary
from tests.tasks import strings

TASK = language.make()
EXTRAS = {"word": vocabulary.padded(vocabulary.encode("pan"), 5)}
NAMES = ("accuracy", "accuracy_buggy", "format", "language", "spelling")


def completion(thought: str, answer: str) -> str:
  return f"<think>{thought}</think><answer>{answer}</answer><eos>"


@pytest.mark.parametrize(
  ("text", "scores"),
  [
    (completion("caa", "nap"), (1, 1, 1, 1, 1)),
    (completion("pnn", "nap"), (1, 1, 1, 0, 0)),
    (completion("cna", "nap"), (1, 1, 1, 2 / 3, 2 / 3)),
    (completion("a", "nap"), (1, 1, 1, 1, 0)),
    (completion("caam1", "pan"), (0, 0, 1, 4 / 5, 3 / 5)),
    (completion("", "na"), (0, 0, 1, 0, 0)),
    (completion("caa", ""), (0, 1, 1, 1, 1)),
    # Without the format a thought is not judged, and an answer is.
    ("<answer>nap</answer><eos>", (1, 1, 0, 0, 0)),
    ("<answer></answer><eos>", (0, 1, 0, 0, 0)),
    ("a" + completion("caa", "nap"), (1, 1, 0, 0, 0)),
    ("<think>caa</think>;<answer>nap</answer><eos>", (1, 1, 0, 0, 0)),
    (completion("caa", "nap")[: -len("<eos>")], (0, 0, 0, 0, 0)),
    ("<eos>", (0, 0, 0, 0, 0)),
    ("", (0, 0, 0, 0, 0)),
  ],
)
def test_known_scores(text, scores):
  wanted = dict(zip(NAMES, scores, strict=True))
  assert strings.judge(TASK, text, EXTRAS) == pytest.approx(wanted)


def teach(num: int = 600, **options):
  """(word, thought, answer) of so many examples."""
  task = language.make(**options)
  rng = np.random.default_rng(0)
  lessons = []
  for _ in range(num):
    example = task.example(rng, "train")
    word = task.decode(example.prompt)[len("<bos>") : -1]
    assert task.decode(example.extras["word"]) == word
    thought, _, rest = task.decode(example.completion)[
      len("<think>") :
    ].partition("</think>")
    answer = rest.removeprefix("<answer>").removesuffix("</answer><eos>")
    lessons.append((word, thought, answer))
  return lessons


def test_teachers_mix_languages_letter_by_letter():
  lessons = teach()
  letters = [
    (ord(x) - ord("a"), ord(y) - ord("a"))
    for word, thought, _ in lessons
    for x, y in zip(word, thought, strict=True)
  ]
  assert all(x % 13 == y % 13 for x, y in letters)
  in_b = [y >= 13 for _, y in letters]
  assert np.mean(in_b) == pytest.approx(0.5, abs=0.03)
  # One letter says nothing of the next.
  pairs = np.mean(np.array(in_b[1:]) == in_b[:-1])
  assert pairs == pytest.approx(0.5, abs=0.04)
  assert all(max(thought) >= "n" for _, thought, _ in teach(50, mixing=1.0))


def test_teachers_err_as_often_as_asked():
  lessons = teach(teacher_error=0.3, teacher_empty=0.2)
  empty = [answer == "" for _, _, answer in lessons]
  assert np.mean(empty) == pytest.approx(0.2, abs=0.04)
  written = [(word, answer) for word, _, answer in lessons if answer]
  assert all(answer in (word, word[::-1]) for word, answer in written)
  # A palindrome is right by accident.
  wrong = np.mean([answer != word[::-1] for word, answer in written])
  assert wrong == pytest.approx(0.3, abs=0.05)
