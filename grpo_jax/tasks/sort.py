"""Sorting letters, with dense scores that can and cannot be hacked.

Prompt `BOS l_1 .. l_n =` with repetitions, answer the letters in ascending
order. A teacher in error sorts the wrong way round.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Task


def make(
  min_len: int = 3,
  max_len: int = 8,
  num_letters: int = vocab.NUM_LETTERS,
  teacher_error: float = 0.0,
  tags: bool = True,
  teacher_marks: float = 0.0,
) -> Task:
  """Makes the sorting task.

  Scores, all 0 if the answer is not properly ended:
    accuracy: 1 if the answer is the sorted letters.
    position: Share of places with the right letter, relative to the longer of
      answer and gold.
    ascending: Share of neighbours in the answer that are letters in ascending
      order; 0 below two tokens. Can be hacked: `aaaa` scores 1.
    f1: F1 of the answer's tokens against the letters, order ignored.

  Args:
    min_len: Fewest letters, at least 2.
    max_len: Most letters, at most 64.
    num_letters: Number of letters, the first of the alphabet, that occur, 2 to
      26.
    teacher_error: Probability with which the teacher sorts descending.
    tags: Whether the answer stands in `<answer> </answer>`; False gives the
      shortest completions, `ANS EOS`.
    teacher_marks: Probability with which the teacher ends an answer with `#`,
      which makes it wrong.
  """
  options = dict(locals())
  task_lib.check_ranges(
    "sort.make",
    options,
    max_len=(2, 64),
    min_len=(2, max_len),
    num_letters=(2, vocab.NUM_LETTERS),
    teacher_error=(0.0, 1.0),
    teacher_marks=(0.0, 1.0),
  )
  return Task(
    name="sort",
    **vocab.of_task(),
    max_prompt_len=max_len + 2,
    max_completion_len=max_len + 1 + 2 * tags + (teacher_marks > 0),
    example=task_lib.bound(example, options),
    verify=task_lib.bound(verify, options),
    verify_numpy=task_lib.bound(verify_numpy, options),
    right_answer=right_answer if tags else None,
  )


def example(
  rng: np.random.Generator,
  split: str,
  *,
  min_len: int,
  max_len: int,
  num_letters: int,
  teacher_error: float,
  tags: bool,
  teacher_marks: float,
) -> Example:
  """Draws one problem; see `Task.example`. Extras: answer [max_len], padded."""

  def sample(rng: np.random.Generator) -> list[int]:
    length = int(rng.integers(min_len, max_len + 1))
    letters = vocab.LETTER_A + rng.integers(num_letters, size=length)
    return letters.tolist()

  letters = task_lib.draw(rng, split, sample, identity=list)
  wrong = bool(rng.random() < teacher_error)
  taught = sorted(letters, reverse=wrong)
  # Drawn last, and only if set: other teachers see the same problems as before.
  if teacher_marks and rng.random() < teacher_marks:
    taught.append(vocab.HASH)
  return Example.of(
    [vocab.BOS, *letters, vocab.EQUALS],
    vocab.wrapped(taught, tags),
    {"answer": vocab.padded(sorted(letters), max_len)},
  )


def right_answer(extras: Extras) -> jax.Array:  # [max_len] int32
  """The sorted letters; see `Task.right_answer`."""
  return extras["answer"]


def _letter_counts(
  tokens: jax.Array,  # [N] int32
  present: jax.Array,  # [N] bool
) -> jax.Array:  # [26] int32
  """Counts each letter among the tokens that are present."""
  letters = vocab.LETTER_A + jnp.arange(vocab.NUM_LETTERS)
  return (present[:, None] & (tokens[:, None] == letters)).sum(axis=0)


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
  *,
  tags: bool,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  gold = extras["answer"]  # [max_len]
  is_gold = gold != vocab.PAD
  gold_size = is_gold.sum()
  span = vocab.answer_span(tokens, completion_mask, tags)
  size = span.end - span.start
  matches = (is_gold & (vocab.content(tokens, span, len(gold)) == gold)).sum()

  slots = jnp.arange(tokens.shape[0])
  inside = (slots >= span.start) & (slots < span.end)  # [T]
  # A policy may have more ids than the vocabulary.
  is_token = tokens < vocab.VOCAB_SIZE
  is_letter = inside & is_token & (tokens >= vocab.LETTER_A)
  ascending = (
    is_letter[:-1] & is_letter[1:] & (tokens[:-1] <= tokens[1:])
  ).sum()
  common = jnp.minimum(
    _letter_counts(tokens, inside), _letter_counts(gold, is_gold)
  ).sum()
  right = (matches == gold_size) & (size == gold_size)
  return {
    "accuracy": right.astype(jnp.float32),
    "position": matches / jnp.maximum(size, gold_size),
    "ascending": ascending / jnp.maximum(size - 1, 1),
    "f1": 2 * common / (size + gold_size),
  }


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
  *,
  tags: bool,
) -> dict[str, float]:
  """Twin of `verify`, on lists of letters."""
  gold = list(vocab.decode(extras["answer"]))
  completion = vocab.words(tokens, completion_mask)
  answer = vocab.answer_words(completion, tags) or []
  matches = sum(x == y for x, y in zip(answer, gold, strict=False))
  neighbours = list(itertools.pairwise(answer))
  # Only letters are `isalpha`; tags have brackets.
  ascending = sum((x + y).isalpha() and x <= y for x, y in neighbours)
  common = collections.Counter(answer) & collections.Counter(gold)
  return {
    "accuracy": float(answer == gold),
    "position": matches / max(len(answer), len(gold)),
    "ascending": ascending / max(len(neighbours), 1),
    "f1": 2 * common.total() / (len(answer) + len(gold)),
  }
