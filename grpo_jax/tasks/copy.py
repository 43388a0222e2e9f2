"""Copying letters: the smallest task with a right answer, for learning tests.

Prompt `BOS l_1 .. l_n =`, completion `l_1 .. l_n EOS`.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Task


def make(length: int = 3) -> Task:
  """Makes the copy task.

  Scores: "accuracy"; "position", the share of places with the right letter.

  Args:
    length: Letters per prompt, 1 to 64.

  Raises:
    ValueError: The length is out of range.
  """
  options = dict(locals())
  task_lib.check_ranges(
    "copy.make",
    options,
    length=(1, 64),
  )
  return Task(
    name="copy",
    **vocab.of_task(),
    max_prompt_len=length + 2,
    max_completion_len=length + 1,
    example=task_lib.bound(example, options),
    verify=verify,
    verify_numpy=verify_numpy,
  )


def example(rng: np.random.Generator, split: str, *, length: int) -> Example:
  """Draws one problem; see `Task.example`. Extras: answer [length]."""
  letters = task_lib.draw(
    rng,
    split,
    lambda rng: vocab.LETTER_A + rng.integers(vocab.NUM_LETTERS, size=length),
    identity=np.ndarray.tolist,
  )
  return Example.of(
    [vocab.BOS, *letters, vocab.EQUALS],
    [*letters, vocab.EOS],
    {"answer": letters},
  )


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  gold = extras["answer"]  # [length]
  span = vocab.answer_span(tokens, completion_mask, tags=False)
  size = span.end - span.start
  equal = vocab.content(tokens, span, len(gold)) == gold  # [length]
  right = equal.all() & (size == len(gold))
  return {
    "accuracy": right.astype(jnp.float32),
    "position": equal.sum() / jnp.maximum(size, len(gold)),
  }


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
) -> dict[str, float]:
  """Twin of `verify`, which compares letters one by one."""
  gold = vocab.decode(extras["answer"])
  completion = vocab.words(tokens, completion_mask)
  answer = vocab.answer_words(completion, tags=False) or []
  matches = sum(x == y for x, y in zip(answer, gold, strict=False))
  return {
    "accuracy": float("".join(answer) == gold),
    "position": matches / max(len(answer), len(gold)),
  }
