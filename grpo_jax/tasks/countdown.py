"""Reaching a target with given numbers; most problems have several answers.

Prompt `BOS a , b , c : t =`, answer `n op n op n` with `op` among + - *, each
given number exactly once, evaluated strictly from left to right.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Task

OPERATORS = (vocab.PLUS, vocab.MINUS, vocab.TIMES)


def make(
  num_numbers: int = 3, teacher_error: float = 0.0, tags: bool = True
) -> Task:
  """Makes the countdown task.

  Numbers are 1 to 9, targets 1 to 99. Scores: "accuracy".

  Args:
    num_numbers: Numbers per problem, 2 to 4.
    teacher_error: Probability with which the teacher writes the right numbers
      with operators drawn at random, which rarely reach the target.
    tags: Whether the answer stands in `<answer> </answer>`; False gives the
      shortest completions, `ANS EOS`.

  Raises:
    ValueError: If an option is out of range.
  """
  task_lib.check_range("countdown.make", "num_numbers", num_numbers, 2, 4)
  task_lib.check_range(
    "countdown.make", "teacher_error", teacher_error, 0.0, 1.0
  )
  return Task(
    name="countdown",
    vocab_size=vocab.VOCAB_SIZE,
    pad_id=vocab.PAD,
    bos_id=vocab.BOS,
    end_ids=(vocab.EOS,),
    max_prompt_len=2 * num_numbers + 4,
    max_completion_len=2 * num_numbers + 2 * tags,
    example=functools.partial(
      example, num_numbers=num_numbers, teacher_error=teacher_error, tags=tags
    ),
    verify=functools.partial(verify, tags=tags),
    verify_numpy=functools.partial(verify_numpy, tags=tags),
    encode=vocab.encode,
    decode=vocab.decode,
  )


def example(
  rng: np.random.Generator,
  split: str,
  *,
  num_numbers: int,
  teacher_error: float,
  tags: bool,
) -> Example:
  """Draws one problem; see `Task.example`. Extras: numbers [n], target []."""
  numbers, operators, target = task_lib.draw(
    rng,
    split,
    functools.partial(_solved, num_numbers=num_numbers),
    identity=lambda solved: [*sorted(solved[0]), solved[2]],
  )
  guesses = rng.integers(len(OPERATORS), size=num_numbers - 1).tolist()
  if rng.random() < teacher_error:
    operators = guesses
  answer = [vocab.DIGIT_0 + numbers[0]]
  for operator, x in zip(operators, numbers[1:], strict=True):
    answer += [OPERATORS[operator], vocab.DIGIT_0 + x]
  prompt = [vocab.BOS]
  for x in rng.permutation(numbers):  # The given order says nothing.
    prompt += [vocab.DIGIT_0 + int(x), vocab.COMMA]
  prompt[-1] = vocab.COLON
  prompt += [*vocab.number(target), vocab.EQUALS]
  return Example(
    np.array(prompt, np.int32),
    np.array(vocab.wrapped(answer, tags), np.int32),
    {
      "numbers": np.array(sorted(numbers), np.int32),
      "target": np.array(target, np.int32),
    },
  )


def _solved(
  rng: np.random.Generator, num_numbers: int
) -> tuple[list[int], list[int], int]:
  """Draws numbers, operators and the target which they reach."""
  while True:
    numbers = rng.integers(1, 10, size=num_numbers).tolist()
    operators = rng.integers(len(OPERATORS), size=num_numbers - 1).tolist()
    partial = [numbers[0]]
    for operator, x in zip(operators, numbers[1:], strict=True):
      y = partial[-1]
      partial.append((y + x, y - x, y * x)[operator])
    in_bounds = all(-99 <= x <= 999 for x in partial)
    if in_bounds and 1 <= partial[-1] <= 99:
      return numbers, operators, partial[-1]


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
  *,
  tags: bool,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  numbers = extras["numbers"]  # [n], ascending
  size = 2 * len(numbers) - 1
  found = vocab.answer_span(tokens, completion_mask, tags)
  answer = vocab.content(tokens, found, size)  # [2n - 1]
  used = answer[0::2] - vocab.DIGIT_0  # [n]
  operators = answer[1::2]  # [n - 1]
  # Other tokens give numbers outside 1..9, which no problem has.
  same_numbers = (jnp.sort(used) == numbers).all()
  value = used[0]
  for operator, x in zip(operators, used[1:], strict=True):
    value = jnp.select(
      [operator == vocab.PLUS, operator == vocab.MINUS],
      [value + x, value - x],
      value * x,
    )
  right = (
    found.ok
    & (found.end - found.start == size)
    & same_numbers
    & jnp.isin(operators, jnp.array(OPERATORS)).all()
    & (value == extras["target"])
  )
  return {"accuracy": right.astype(jnp.float32)}


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
  *,
  tags: bool,
) -> dict[str, float]:
  """Twin of `verify`: a pocket calculator."""
  completion = vocab.words(tokens, completion_mask)
  text = "".join(vocab.answer_words(completion, tags) or [])
  if not re.fullmatch(r"[0-9]([-+*][0-9])*", text):
    return {"accuracy": 0.0}
  result = 0
  for sign, digit in re.findall(r"([-+*]?)([0-9])", text):
    x = int(digit)
    result = {"-": result - x, "*": result * x}.get(sign, result + x)
  numbers = sorted(int(digit) for digit in re.findall(r"[0-9]", text))
  right = numbers == extras["numbers"].tolist() and result == extras["target"]
  return {"accuracy": float(right)}
