"""Closing brackets: open brackets are closed in the reverse order.

Prompt `BOS ( [ ] { =`, a walk over brackets that leaves at least one open;
answer the closing brackets of the open ones, the last one first: `} )`. A
teacher in error closes them in the order in which they were opened.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Task

OPENERS = tuple(vocab.encode("([{"))
CLOSERS = tuple(vocab.encode(")]}"))
_MAX_DEPTH = 16


def make(
  max_len: int = 24,
  max_depth: int = 6,
  teacher_error: float = 0.0,
  tags: bool = True,
) -> Task:
  """Makes the bracket task.

  Scores: "accuracy"; "position", the share of places with the right closer,
  relative to the longer of answer and gold.

  Args:
    max_len: Most brackets of a prompt, 1 to 64.
    max_depth: Most brackets that are open at a time, 1 to 16.
    teacher_error: Probability with which the teacher closes in the wrong order.
    tags: Whether the answer stands in `<answer> </answer>`; False gives the
      shortest completions, `ANS EOS`.
  """
  options = dict(locals())
  task_lib.check_ranges(
    "bracket.make",
    options,
    max_len=(1, 64),
    max_depth=(1, _MAX_DEPTH),
    teacher_error=(0.0, 1.0),
  )
  options["max_depth"] = depth = min(max_depth, max_len)
  return Task(
    name="bracket",
    **vocab.of_task(),
    max_prompt_len=max_len + 2,
    max_completion_len=depth + 1 + 2 * tags,
    example=task_lib.bound(example, options),
    verify=task_lib.bound(verify, options),
    verify_numpy=task_lib.bound(verify_numpy, options),
  )


def example(
  rng: np.random.Generator,
  split: str,
  *,
  max_len: int,
  max_depth: int,
  teacher_error: float,
  tags: bool,
) -> Example:
  """Draws one problem; see `Task.example`. Extras: prefix [max_len], padded."""

  def sample(rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Draws a walk that leaves brackets open, and their closers."""
    while True:
      length = int(rng.integers(1, max_len + 1))
      walk: list[int] = []
      stack: list[int] = []
      for _ in range(length):
        opens = not stack or (len(stack) < max_depth and rng.random() < 0.5)
        if opens:
          kind = int(rng.integers(len(OPENERS)))
          stack.append(kind)
          walk.append(OPENERS[kind])
        else:
          walk.append(CLOSERS[stack.pop()])
      if stack:
        return walk, [CLOSERS[kind] for kind in reversed(stack)]

  walk, answer = task_lib.draw(rng, split, sample, identity=lambda x: x[0])
  if rng.random() < teacher_error:
    answer.reverse()
  return Example.of(
    [vocab.BOS, *walk, vocab.EQUALS],
    vocab.wrapped(answer, tags),
    {"prefix": vocab.padded(walk, max_len)},
  )


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
  *,
  max_depth: int,
  tags: bool,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  openers = jnp.array(OPENERS)

  def push_or_pop(carry, token):
    stack, depth = carry  # [max_depth] ids of closers, []
    kind = jnp.argmax(token == openers)
    opens = (token == openers).any()
    exists = token != vocab.PAD
    pushed = stack.at[depth].set(jnp.array(CLOSERS)[kind], mode="drop")
    stack = jnp.where(exists & opens, pushed, stack)
    depth += jnp.where(exists, jnp.where(opens, 1, -1), 0)
    return (stack, depth), None

  start = jnp.zeros(max_depth, jnp.int32), jnp.int32(0)
  (stack, depth), _ = jax.lax.scan(push_or_pop, start, extras["prefix"])
  slots = jnp.arange(max_depth)
  gold = jnp.where(
    slots < depth, stack[jnp.maximum(depth - 1 - slots, 0)], vocab.PAD
  )  # [max_depth]
  span = vocab.answer_span(tokens, completion_mask, tags)
  size = span.end - span.start
  same = vocab.content(tokens, span, max_depth) == gold
  matches = (same & (slots < depth)).sum()
  right = (matches == depth) & (size == depth)
  return {
    "accuracy": right.astype(jnp.float32),
    "position": matches / jnp.maximum(size, depth),
  }


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
  *,
  tags: bool,
) -> dict[str, float]:
  """Twin of `verify`, which deletes pairs from the text until none is left."""
  text = vocab.decode(extras["prefix"])
  while any(pair in text for pair in ("()", "[]", "{}")):
    text = text.replace("()", "").replace("[]", "").replace("{}", "")
  gold = text[::-1].translate(str.maketrans("([{", ")]}"))
  answer = vocab.answer_words(vocab.words(tokens, completion_mask), tags) or []
  matches = sum(x == y for x, y in zip(answer, gold, strict=False))
  return {
    "accuracy": float(answer == list(gold)),
    "position": matches / max(len(answer), len(gold)),
  }
