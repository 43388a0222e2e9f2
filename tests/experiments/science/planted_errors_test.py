"""Workings with planted errors, their credits and sampled values."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.science import planted_errors_credits as credits_lib
from grpo_jax.tasks import add
from grpo_jax.tasks import vocabulary as vocab

LEVEL = 2


@pytest.mark.parametrize(
  ("wrong", "text"),
  [
    # 7 + 5 + 1 = 13 and 4 + 4 + 1 = 9; or 7 + 5 = 12 and 4 + 4 + 0 = 8.
    (0, "<think>7+5+1=13;4+4+1=09;</think><answer>93</answer><eos>"),
    (1, "<think>7+5+0=12;4+4+0=08;</think><answer>82</answer><eos>"),
    (-1, "<think>7+5+0=12;4+4+1=09;</think><answer>92</answer><eos>"),
  ],
)
def test_an_error_is_one_carry_and_what_follows_from_it(wrong, text):
  assert (
    vocab.decode(credits_lib.working(np.array([47, 45]), LEVEL, wrong)) == text
  )


def test_the_first_wrong_step_is_that_of_the_error():
  rng = np.random.default_rng(1)
  verifier = add.make(level=LEVEL, scratchpad=True)
  operands = credits_lib.held_out(rng, LEVEL, 200)
  given = credits_lib.workings(operands, rng.integers(-1, LEVEL, 200), LEVEL)
  assert set(given.rewards) == {0.0, 1.0}
  for tokens, mask, pair, wrong, reward in zip(
    given.tokens,
    given.mask,
    operands,
    given.wrong,
    given.rewards,
    strict=True,
  ):
    extras = {"operands": pair}
    assert verifier.verify_numpy(tokens, mask, extras)["accuracy"] == reward
    scores, ends = verifier.step_scores_numpy(tokens, mask, extras)
    found = scores[ends]
    assert wrong == (-1 if found.all() else found.argmin())


def test_the_teacher_leaves_out_the_last_steps_and_is_right():
  rng = np.random.default_rng(2)
  made = credits_lib.make_task(level=LEVEL, skip=0.5)
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


def test_differences_of_values_add_up_to_the_reward():
  # V = .3, .6, .2 and a reward of 1: .3, −.4, .8.
  found = credits_lib.differences(np.array([[0.3, 0.6, 0.2]]), np.ones(1))
  np.testing.assert_allclose(found, [[0.3, -0.4, 0.8]])


def test_an_outcome_is_shared_out_by_weights():
  found = credits_lib.shared_by(
    np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([0, 1])
  )
  np.testing.assert_allclose(found, [[-0.25, -0.75], [0.5, 0.5]])
  assert np.isnan(credits_lib.correlation(np.ones((2, 2)), found))
  assert credits_lib.correlation(2 * found + 1, found) == pytest.approx(1)


def test_located_is_the_most_negative_credit():
  credits = np.array([[-0.5, 0.1, 0.0], [0.2, -0.1, -0.3], [0.0, -0.9, 0.1]])
  found = credits_lib.located(credits, np.array([0, 0, 1]), LEVEL)
  assert found == {
    "located": pytest.approx(2 / 3),
    "located_by_step": [0.5, 1.0],
    "chance": pytest.approx(1 / 3),
    "credit_of_the_error": pytest.approx(-0.4),
    "problems": 3,
  }
