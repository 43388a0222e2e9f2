"""Rules: templates, unseen ones, scores known by hand, a few lessons."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.tasks import ir_tree, vocabulary
from tests.tasks import strings

TASK = ir_tree.make()
GOLD = "(a(gc9)(lk3))"  # Seven nodes, 13 tokens.


@pytest.mark.slow
@pytest.mark.parametrize(
  ("answer", "tree", "token", "parses"),
  [
    (GOLD, 1, 1, 1),
    ("(a(lc9)(lk3))", 6 / 7, 12 / 13, 1),
    ("(a(gc9))", 4 / 7, 8 / 13, 1),
    # The same tree, and not the same answer.
    ("(a(g(c)9)(lk3))", 1, 13 / 15, 1),
    ("(a(gc9)(lk3)", 0, 12 / 13, 0),
    ("(a(gc9)(lk3)))", 0, 13 / 14, 0),
    ("(a(gc9)(lk3))z", 0, 13 / 14, 0),
    ("((a)(gc9)(lk3))", 0, 13 / 15, 0),
    ("(a(gc9)(lk+))", 0, 12 / 13, 0),
    ("a", 0, 1 / 13, 0),
    ("", 0, 0, 0),
    # Nothing of it is the same; of more nodes than the gold tree.
    ("(zzzzzzzzzzzzzzz)", 0, 2 / 17, 1),
    ("z" * 21, 0, 0, 0),  # Not read.
    ("(z" + "z" * 18 + ")", 0, 0, 0),
  ],
)
def test_known_scores(answer, tree, token, parses):
  extras = {
    "gold": vocabulary.padded(vocabulary.encode(GOLD), ir_tree.GOLD_LEN),
  }
  text = f"<answer>{answer}</answer><eos>"
  wanted = {
    "accuracy": float(answer == GOLD),
    "tree": tree,
    "token": token,
    "parses": parses,
  }
  assert strings.judge(TASK, text, extras) == pytest.approx(wanted, abs=1e-6)
  scores = strings.judge(TASK, text.removesuffix("<eos>"), extras)
  assert not any(scores.values())


def test_sentences_say_what_expressions_say():
  rng = np.random.default_rng(0)
  domains = {"train": [], "test": []}
  for split, found in domains.items():
    for _ in range(150):
      example = TASK.example(rng, split)
      words = TASK.decode(example.prompt).removeprefix("<bos>")[:-1]
      gold = vocabulary.decode(example.extras["gold"])
      assert TASK.decode(example.completion) == f"<answer>{gold}</answer><eos>"
      found.append(int(example.extras["domain"]))
      # Read backwards: each attribute with its comparison and digit.
      parts = [words[i : i + 5] for i in range(len(words))]
      meant = {
        gold.index(f"({letter}{x}{y})")
        for part in parts
        for word, letter in (("min", "g"), ("bel", "l"))
        for x in ir_tree.ATTRIBUTES
        for y in words
        if part.startswith(x + word)
        and y.isdigit()
        and f"({letter}{x}{y})" in gold
      }
      assert len(meant) == gold.count("g") + gold.count("l")
      assert ("no" in words or "if" in words) == ("(n" in gold)
  assert {*domains["train"]} == {0}
  # Half of 150; a deviation of 0.04.
  assert np.mean(domains["test"]) == pytest.approx(0.5, abs=0.13)


def test_a_teacher_takes_one_comparison_for_the_other():
  task = ir_tree.make(teacher_error=1.0)
  rng = np.random.default_rng(0)
  for _ in range(50):
    example = task.example(rng, "train")
    gold = vocabulary.decode(example.extras["gold"])
    swapped = gold.translate(str.maketrans("gl", "lg"))
    taught = task.decode(example.completion)
    assert taught == f"<answer>{swapped}</answer><eos>"


def test_lessons_are_of_a_few_problems():
  task = ir_tree.make(num_lessons=20)
  rng = np.random.default_rng(0)
  taught = {task.decode(task.lesson(rng, "train").prompt) for _ in range(400)}
  # So many different ones, but for two that are the same by accident.
  assert 18 <= len(taught) <= 20
  asked = {task.decode(task.example(rng, "train").prompt) for _ in range(400)}
  assert len(asked) > 300
  assert ir_tree.make().lesson is None
