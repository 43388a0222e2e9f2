"""Sorting letters after a thought: several objectives, one of them loud.

Prompt `BOS l_1 .. l_n =`, completion

    <think> W* </think> <answer> the letters in ascending order </answer> EOS

The thought does not help, but is judged: by its length, and by its politeness,
which here is the share of the letter `z`. Politeness has numbers twenty times
as large as the other scores, so it decides a reward that is their sum. The
teacher's thoughts are random letters, of any length and rarely polite.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import sort
from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Task

LENGTH_UNIT = 8  # Tokens of thought that cost as much as a right answer earns.
LOUDNESS = 20.0  # Score of a thought that is polite in every token.
_POLITE = vocab.LETTER_A + vocab.NUM_LETTERS - 1  # z
_HALF = vocab.NUM_LETTERS // 2  # Letters a–m.


def make(
  min_len: int = 3,
  max_len: int = 5,
  num_letters: int = vocab.NUM_LETTERS,
  min_thought: int = 1,
  max_thought: int = 8,
  teacher_error: float = 0.0,
  teacher_polite: float = 0.2,
) -> Task:
  """Makes the task of several objectives.

  Scores, of which the last three are about the thought:
    accuracy: 1 if the answer is the sorted letters.
    brevity: −n / 8 for a thought of n tokens, in [−T / 8, 0].
    politeness: 20 × the share of `z` among them, in [0, 20].
    first_half: The share of the letters a–m among them.

  If a completion does not follow the grammar, n is the number of all its
  tokens, so that a missing tag does not look brief, and both shares are 0. The
  shares of an empty thought are 0 too.

  Args:
    min_len: Fewest letters to sort, at least 2.
    max_len: Most letters, at most 64.
    num_letters: Number of letters, the first of the alphabet, that occur, 2 to
      26.
    min_thought: Tokens of the teacher's shortest thought, at least 0. An empty
      thought is brief and not polite: only there do brevity and politeness
      conflict.
    max_thought: Tokens of its longest thought, at most 64; all lengths in
      between are equally likely.
    teacher_error: Probability with which the teacher sorts descending.
    teacher_polite: Probability of `z` for each token of a thought; the others
      are letters from a to y, equally likely.
  """
  options = dict(locals())
  sorting = sort.make(min_len, max_len, num_letters, teacher_error)
  task_lib.check_ranges(
    "multi.make",
    options,
    max_thought=(0, 64),
    min_thought=(0, max_thought),
    teacher_polite=(0.0, 1.0),
  )
  options["sorting"] = sorting
  return Task(
    name="multi",
    **vocab.of_task(),
    max_prompt_len=sorting.max_prompt_len,
    max_completion_len=2 + max_thought + sorting.max_completion_len,
    example=task_lib.bound(example, options),
    verify=verify,
    verify_numpy=verify_numpy,
    right_answer=sort.right_answer,
  )


def example(
  rng: np.random.Generator,
  split: str,
  *,
  sorting: Task,
  min_thought: int,
  max_thought: int,
  teacher_polite: float,
) -> Example:
  """Draws one problem; see `Task.example`. Extras: answer [max_len], padded."""
  lesson = sorting.example(rng, split)
  # Always drawn, so that teachers of all probabilities see the same problems.
  size = int(rng.integers(min_thought, max_thought + 1))
  is_polite = rng.random(max_thought) < teacher_polite
  letters = vocab.LETTER_A + rng.integers(
    vocab.NUM_LETTERS - 1, size=max_thought
  )
  thought = np.where(is_polite, _POLITE, letters)[:size]
  completion = [vocab.THINK, *thought, vocab.THINK_END, *lesson.completion]
  return lesson._replace(completion=np.array(completion, np.int32))


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  thought = vocab.thought_span(tokens, completion_mask)
  inside = vocab.inside(thought, len(tokens))  # [T]
  size = inside.sum()
  is_early = (tokens >= vocab.LETTER_A) & (tokens < vocab.LETTER_A + _HALF)

  def share(kind):  # [T] -> []
    return (inside & kind).sum() / jnp.maximum(size, 1)

  sorted_scores = sort.verify(tokens, completion_mask, extras, tags=True)
  return {
    "accuracy": sorted_scores["accuracy"],
    "brevity": jnp.where(thought.ok, size, completion_mask.sum())
    / -LENGTH_UNIT,
    "politeness": LOUDNESS * share(tokens == _POLITE),
    "first_half": share(is_early),
  }


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
) -> dict[str, float]:
  """Twin of `verify`, which reads the thought word by word."""
  completion = vocab.words(tokens, completion_mask)
  thought = vocab.thought_words(completion)
  judged = thought or []
  early = [word for word in judged if len(word) == 1 and "a" <= word <= "m"]
  sorted_scores = sort.verify_numpy(tokens, completion_mask, extras, tags=True)
  return {
    "accuracy": sorted_scores["accuracy"],
    "brevity": -len(completion if thought is None else thought) / LENGTH_UNIT,
    "politeness": LOUDNESS * judged.count("z") / max(len(judged), 1),
    "first_half": len(early) / max(len(judged), 1),
  }
