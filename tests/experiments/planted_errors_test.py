"""The errors that are planted, and the teacher who answers early."""

import numpy as np

from experiments.planted_errors import errors, task
from grpo_jax.tasks import add
from grpo_jax.tasks import vocabulary as vocab

LEVEL = 2


def test_an_error_is_one_carry_and_what_follows_from_it():
  rng = np.random.default_rng(0)
  texts = {
    step: vocab.decode(ids)
    for ids, step in (
      errors.planted(rng, np.array([47, 45]), LEVEL) for _ in range(20)
    )
  }
  # 7 + 5 + 1 = 13 and 4 + 4 + 1 = 9; or 7 + 5 = 12 and 4 + 4 + 0 = 8.
  assert texts == {
    0: "<think>7+5+1=13;4+4+1=09;</think><answer>93</answer><eos>",
    1: "<think>7+5+0=12;4+4+0=08;</think><answer>82</answer><eos>",
  }


def test_no_error_leaves_a_right_answer():
  rng = np.random.default_rng(1)
  verifier = add.make(level=LEVEL, scratchpad=True)
  size = verifier.max_completion_len
  for _ in range(200):
    extras = verifier.example(rng, "test").extras
    text, step = errors.planted(rng, extras["operands"], LEVEL)
    tokens, mask = vocab.padded(text, size), np.arange(size) < len(text)
    assert verifier.verify_numpy(tokens, mask, extras)["accuracy"] == 0
    scores, ends = verifier.step_scores_numpy(tokens, mask, extras)
    assert scores[ends].argmin() == step  # The first wrong one.


def test_the_teacher_leaves_out_the_last_steps_and_is_right():
  rng = np.random.default_rng(2)
  made = task.make(level=LEVEL, skip=0.5)
  counts = np.zeros(LEVEL + 1)
  for _ in range(400):
    example = made.example(rng, "train")
    size = made.max_completion_len
    tokens = vocab.padded(example.completion.tolist(), size)
    mask = np.arange(size) < len(example.completion)
    assert made.verify_numpy(tokens, mask, example.extras)["accuracy"] == 1
    scores, ends = made.step_scores_numpy(tokens, mask, example.extras)
    assert scores[ends].all()
    counts[ends.sum()] += 1
  np.testing.assert_allclose(counts / 400, [0.25, 0.25, 0.5], atol=0.08)
