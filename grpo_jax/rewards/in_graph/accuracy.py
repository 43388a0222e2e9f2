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
  """1.0 where the final answer is the gold number, else 0.0.

  What `rewards.math_accuracy` says, but for the deviations that `find` and
  `numbers` list.

  Args:
    text: Completions. One that was cut has no answer.
    gold: The arrays of `numbers.gold`, one row for each completion.
    after: A marker before answers, as `find.final_answer` has it.
    width: Bytes of an answer that are looked at.
  """
  window = find.final_answer(text, after, width)
  return numbers.equal(window, gold).astype(jnp.float32)
