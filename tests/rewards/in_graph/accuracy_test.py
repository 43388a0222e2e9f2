"""The reward of a compiled program is the one of the host."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax.rewards import math_accuracy
from grpo_jax.rewards.in_graph import accuracy, numbers, text
from tests.rewards.in_graph import made_texts

SIZE, ROWS = 256, 512
AFTER = "####"


@functools.cache
def program(after):
  return jax.jit(lambda rows, gold: accuracy.accuracy(rows, gold, after))


def rewards(cases, after=AFTER):
  """Rewards of (completion, gold), at most ROWS of SIZE bytes."""
  cases = [*cases, *[("", "0")] * (ROWS - len(cases))]
  golds = [numbers.gold(gold) for _, gold in cases]
  stacked = {k: np.stack([x[k] for x in golds]) for k in golds[0]}
  rows = text.encoded([completion for completion, _ in cases], SIZE)
  return np.asarray(program(after)(rows, stacked)).tolist()


def disagreements(seed, count):
  """Cases on which the host differs, and the number of 1s that it gives."""
  cases = made_texts.cases(seed, count)
  cases = [case for case in cases if len(case[0].encode()) <= SIZE]
  found, right = [], 0
  for k in range(0, len(cases), ROWS):
    batch = cases[k : k + ROWS]
    for case, got in zip(batch, rewards(batch), strict=False):
      wanted = made_texts.host_accuracy(*case, AFTER)
      right += int(wanted)
      if got != wanted:
        found.append((*case, got, wanted))
  return found, right


@pytest.mark.slow
def test_made_texts():
  found, right = disagreements(1, 10_000)
  assert found == []
  assert right > 1000


def test_the_reference_is_what_the_reward_says():
  cases = made_texts.cases(2, 100)
  wanted = math_accuracy.math_accuracy(
    [""] * 100,
    [completion for completion, _ in cases],
    [0] * 100,
    [{"answer": gold} for _, gold in cases],
    answer_after=AFTER,
  )
  assert wanted == [made_texts.host_accuracy(*case, AFTER) for case in cases]
