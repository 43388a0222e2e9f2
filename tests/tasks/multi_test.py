"""Several objectives: scores known by hand, and the teacher's thoughts."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.tasks import multi, vocabulary
from tests.tasks import strings

TASK = multi.make()
EXTRAS = {"answer": vocabulary.padded(vocabulary.encode("abb"), 5)}


def completion(thought: str, answer: str) -> str:
  return f"<think>{thought}</think><answer>{answer}</answer><eos>"


@pytest.mark.parametrize(
  ("text", "accuracy", "brevity", "politeness", "first_half"),
  [
    (completion("", "abb"), 1, 0, 0, 0),
    (completion("z", "abb"), 1, -1 / 8, 20, 0),
    (completion("zzam", "abb"), 1, -4 / 8, 10, 2 / 4),
    (completion("n12;z", "bba"), 0, -5 / 8, 4, 0),
    (completion("aaaaaaaaaa", ""), 0, -10 / 8, 0, 1),
    # Whatever is not of the grammar counts as thought, and pays nothing.
    ("<answer>abb</answer><eos>", 1, -6 / 8, 0, 0),
    ("z" + completion("z", "abb"), 1, -10 / 8, 0, 0),
    ("<think>z</think>z<answer>abb</answer><eos>", 1, -10 / 8, 0, 0),
    ("<think>z</think><answer>abb</answer>", 0, -8 / 8, 0, 0),
    ("<think>" + completion("z", "abb"), 1, -10 / 8, 0, 0),
    ("<answer>abb</answer><think>z</think><eos>", 0, -9 / 8, 0, 0),
    ("", 0, 0, 0, 0),
  ],
)
def test_known_scores(text, accuracy, brevity, politeness, first_half):
  assert strings.judge(TASK, text, EXTRAS) == pytest.approx(
    {
      "accuracy": accuracy,
      "brevity": brevity,
      "politeness": politeness,
      "first_half": first_half,
    }
  )


def test_thoughts_are_of_any_length_and_as_polite_as_asked():
  task = multi.make(teacher_polite=0.3, min_thought=0, max_thought=4)
  rng = np.random.default_rng(0)
  thoughts = [
    vocabulary.thought_words(
      list(map(vocabulary.TOKENS.__getitem__, example.completion))
    )
    for example in (task.example(rng, "train") for _ in range(2000))
  ]
  sizes = np.bincount([len(thought) for thought in thoughts])
  np.testing.assert_allclose(sizes / len(thoughts), 1 / 5, atol=0.04)
  words = [word for thought in thoughts for word in thought]
  assert words.count("z") / len(words) == pytest.approx(0.3, abs=0.03)
  letters, counts = np.unique(
    [x for x in words if x != "z"], return_counts=True
  )
  assert "".join(letters) == "abcdefghijklmnopqrstuvwxy"
  np.testing.assert_allclose(counts / counts.sum(), 1 / 25, atol=0.015)


def test_teachers_differ_in_their_mistakes_alone():
  sloppy, polite = multi.make(teacher_error=1.0), multi.make(teacher_polite=1.0)
  rngs = [np.random.default_rng(1) for _ in range(2)]
  for _ in range(50):
    one, other = (
      sloppy.example(rngs[0], "test"),
      polite.example(rngs[1], "test"),
    )
    assert one.prompt.tolist() == other.prompt.tolist()
    assert len(one.completion) == len(other.completion)
    letters = sloppy.decode(one.prompt)[len("<bos>") : -1]
    assert sloppy.decode(one.completion).endswith(
      f"<answer>{''.join(sorted(letters, reverse=True))}</answer><eos>"
    )
