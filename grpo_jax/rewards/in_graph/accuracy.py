"""The reward for a right final number, inside a compiled program."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from grpo_jax.rewards.in_graph import find, numbers
from grpo_jax.rewards.in_graph.text import Text


def accuracy(
  text: Text,
  gold: Mapping[str, jax.Array],
  after: str = "",
  width: int = find.MAX_ANSWER,
) -> jax.Array:  # [B] float32
  """1.0 if the final answer is the gold number, else 0.0.

  The same as `rewards.math_accuracy`, except for the deviations that `find` and
  `numbers` list.

  Args:
    text: Completions. A completion that was cut has no answer.
    gold: The arrays of `numbers.gold`, one row for each completion.
    after: A marker before answers, as in `find.final_answer`.
    width: Bytes of an answer; a longer answer does not count.
  """
  window = find.final_answer(text, after, width)
  return numbers.equal(window, gold).astype(jnp.float32)
