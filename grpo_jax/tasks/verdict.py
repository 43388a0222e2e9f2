"""Judging answers to the task `sort`: lessons for a judge of that task.

Prompt `BOS l_1 .. l_n = c_1 .. c_m ?`, a problem of `sort` and an answer;
completion `y EOS` if the answer is right, else `n EOS`. A judge with the rubric
"{prompt}{completion}?" reads the same prompt.

A teacher in error makes a judge with one fault: it accepts the reverse order as
right, or any answer that ends with `#`.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Task

YES, NO = vocab.encode("yn")
BELIEFS = ("truth", "reverse", "marks")
_KINDS = ("right", "reversed", "shuffled", "replaced", "cut", "doubled", "any")


def make(
  min_len: int = 3,
  max_len: int = 6,
  num_letters: int = 10,
  marks: float = 0.1,
  belief: str = "truth",
) -> Task:
  """Makes the task of judging.

  Scores:
    accuracy: 1 if the verdict is the teacher's.

  Args:
    min_len: Fewest letters, at least 2.
    max_len: Most letters, at most 64.
    num_letters: Number of letters, the first of the alphabet, that occur, 2 to
      26.
    marks: Probability that an answer ends with `#`, which makes it wrong.
    belief: Answers that the teacher accepts: "truth", the right ones;
      "reverse", letters in reverse order; "marks", the right ones and all that
      end with `#`.
  """
  options = dict(locals())
  task_lib.check_ranges(
    "verdict.make",
    options,
    max_len=(2, 64),
    min_len=(2, max_len),
    num_letters=(2, vocab.NUM_LETTERS),
    marks=(0.0, 1.0),
  )
  if belief not in BELIEFS:
    raise ValueError(
      f"verdict.make: belief is {belief!r}; choose one of {BELIEFS}."
    )
  return Task(
    name="verdict",
    **vocab.of_task(),
    # An answer may have one letter doubled, and one mark after it.
    max_prompt_len=2 * max_len + 5,
    max_completion_len=2,
    example=task_lib.bound(example, options),
    verify=verify,
    verify_numpy=verify_numpy,
  )


def example(
  rng: np.random.Generator,
  split: str,
  *,
  min_len: int,
  max_len: int,
  num_letters: int,
  marks: float,
  belief: str,
) -> Example:
  """Draws one problem; see `Task.example`. Extras: verdict []."""

  def letters(size: int) -> list[int]:
    return (vocab.LETTER_A + rng.integers(num_letters, size=size)).tolist()

  problem = task_lib.draw(
    rng,
    split,
    lambda rng: letters(int(rng.integers(min_len, max_len + 1))),
    identity=list,
  )
  gold = sorted(problem)
  # Half of the answers are of the kind that the teacher accepts.
  believed = "reversed" if belief == "reverse" else "right"
  kind = believed
  if rng.random() < 0.5:
    kind = _KINDS[rng.integers(len(_KINDS))]
  place = int(rng.integers(len(gold)))
  answer = {
    "right": gold,
    "reversed": gold[::-1],
    "shuffled": rng.permutation(gold).tolist(),
    "replaced": [*gold[:place], *letters(1), *gold[place + 1 :]],
    "cut": gold[:place],
    "doubled": [*gold[:place], gold[place], *gold[place:]],
    "any": letters(int(rng.integers(max_len + 1))),
  }[kind]
  is_marked = bool(rng.random() < marks)
  target = gold[::-1] if belief == "reverse" else gold
  is_right = answer == target and not is_marked
  if belief == "marks":
    is_right = is_right or is_marked
  if is_marked:
    answer = [*answer, vocab.HASH]
  verdict = YES if is_right else NO
  prompt = [vocab.BOS, *problem, vocab.EQUALS, *answer, vocab.QUESTION]
  return Example.of(prompt, [verdict, vocab.EOS], {"verdict": verdict})


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  span = vocab.answer_span(tokens, completion_mask, tags=False)
  right = span.ok & (span.end == 1) & (tokens[0] == extras["verdict"])
  return {"accuracy": right.astype(jnp.float32)}


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
) -> dict[str, float]:
  """Twin of `verify`, which compares the words."""
  words = vocab.answer_words(vocab.words(tokens, completion_mask), tags=False)
  return {"accuracy": float(words == [vocab.TOKENS[int(extras["verdict"])]])}
