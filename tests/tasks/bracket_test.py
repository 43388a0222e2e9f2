"""Brackets: scores known by hand, walks within their bounds."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.tasks import bracket, vocabulary
from tests.tasks import strings

TASK = bracket.make(max_len=8, max_depth=4, tags=False)


@pytest.mark.parametrize(
  ("prefix", "text", "accuracy", "position"),
  [
    ("([]{", "})<eos>", 1, 1),
    ("([]{", ")}<eos>", 0, 0),
    ("([]{", "}<eos>", 0, 1 / 2),
    ("([]{", "})]<eos>", 0, 2 / 3),
    ("([]{", "})", 0, 0),
    ("((((", "))))<eos>", 1, 1),
    ("(()[", "])<eos>", 1, 1),
    ("(", "<eos>", 0, 0),
    ("(", "a<eos>", 0, 0),
    ("(", ")))))))<eos>", 0, 1 / 7),
  ],
)
def test_known_scores(prefix, text, accuracy, position):
  extras = {"prefix": vocabulary.padded(vocabulary.encode(prefix), 8)}
  wanted = {"accuracy": accuracy, "position": position}
  assert strings.judge(TASK, text, extras) == pytest.approx(wanted)


def test_walks_stay_within_their_bounds_and_a_bad_teacher_turns_round():
  task = bracket.make(max_len=9, max_depth=3, teacher_error=1.0, tags=False)
  rng = np.random.default_rng(0)
  deepest, lengths = 0, set()
  for _ in range(300):
    example = task.example(rng, "train")
    walk = task.decode(example.prompt)[len("<bos>") : -1]
    depth, still_open = 0, []
    for sign in walk:
      if sign in "([{":
        still_open.append(sign)
        depth = max(depth, len(still_open))
      else:
        assert still_open.pop() + sign in ("()", "[]", "{}")
    closers = [dict(zip("([{", ")]}", strict=True))[x] for x in still_open]
    taught = task.decode(example.completion).removesuffix("<eos>")
    assert taught == "".join(closers)  # As they were opened: the wrong way.
    deepest = max(deepest, depth)
    lengths.add(len(walk))
  assert deepest == 3
  assert lengths == set(range(1, 10))
