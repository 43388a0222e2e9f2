"""Reaching a target with given numbers; most problems have several answers.

Prompt `BOS a , b , c : t =`, answer `n op n op n` with `op` among + - *, each
given number exactly once, evaluated strictly from left to right.

A problem with few solutions is hard: `2 , 3 , 4 : 20 =` has two, `2+3*4` and
`3+2*4`. `make` draws problems by the number of their solutions, so

    config.data.task_options = {"max_solutions": 1}

is a hard split of the task. `num_solutions([2, 3, 4], 20)` counts solutions.

With `last_answer` a completion may correct itself: the last answer between tags
counts, and answers before it are ignored.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Container, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Solution, Task

OPERATORS = (vocab.PLUS, vocab.MINUS, vocab.TIMES)
MAX_TARGET = 99
# Number of given numbers -> the most solutions that a problem has. With four,
# 1, 3, 4, 6 : 6 has them.
MOST_SOLUTIONS = {2: 2, 3: 12, 4: 46}


def make(
  num_numbers: int = 3,
  teacher_error: float = 0.0,
  tags: bool = True,
  min_solutions: int = 1,
  max_solutions: int = MOST_SOLUTIONS[4],
  last_answer: bool = False,
) -> Task:
  """Makes the countdown task.

  Numbers are 1 to 9, targets 1 to 99. Scores: "accuracy".

  Args:
    num_numbers: Numbers per problem, 2 to 4.
    teacher_error: Probability with which the teacher writes the right numbers
      with operators drawn at random, which rarely reach the target.
    tags: Whether the answer stands in `<answer> </answer>`; False gives the
      shortest completions, `ANS EOS`.
    min_solutions: Fewest solutions of a problem, from 1 to the most that a
      problem has: 2, 12 and 46 with two, three and four numbers.
    max_solutions: Most solutions of a problem, `min_solutions` to 46.
    last_answer: Whether the last answer of a completion with several answers
      counts; otherwise such a completion is wrong. Needs tags.

  Raises:
    ValueError: An option is out of range, or a split has no problem with so
      many solutions.
  """
  options = dict(locals())
  task_lib.check_ranges(
    "countdown.make",
    options,
    num_numbers=(2, 4),
  )
  most = MOST_SOLUTIONS[num_numbers]
  task_lib.check_ranges(
    "countdown.make",
    options,
    min_solutions=(1, most),
    max_solutions=(min_solutions, MOST_SOLUTIONS[4]),
    teacher_error=(0.0, 1.0),
  )
  if last_answer and not tags:
    raise ValueError(
      "countdown.make: last_answer is True and tags is False, and without tags"
      " the whole completion is the answer; set tags to True."
    )
  fits = range(min_solutions, max_solutions + 1)
  options |= {"fits": fits, "of_several": last_answer}
  if min_solutions > 1 or max_solutions < most:
    _check_problems(num_numbers, fits)
  return Task(
    name="countdown",
    **vocab.of_task(),
    max_prompt_len=2 * num_numbers + 4,
    max_completion_len=2 * num_numbers + 2 * tags,
    example=task_lib.bound(example, options),
    verify=task_lib.bound(verify, options),
    verify_numpy=task_lib.bound(verify_numpy, options),
    solution=task_lib.bound(solution, options),
  )


def example(
  rng: np.random.Generator,
  split: str,
  *,
  num_numbers: int,
  teacher_error: float,
  tags: bool,
  fits: Container[int],
) -> Example:
  """Draws one problem; see `Task.example`.

  Extras: numbers [n], target [], num_solutions [].
  """
  numbers, operators, target = task_lib.draw(
    rng,
    split,
    functools.partial(_sample, num_numbers=num_numbers, fits=fits),
    identity=lambda problem: [*sorted(problem[0]), problem[2]],
  )
  guesses = rng.integers(len(OPERATORS), size=num_numbers - 1).tolist()
  if rng.random() < teacher_error:
    operators = guesses
  answer = [vocab.DIGIT_0 + numbers[0]]
  for operator, x in zip(operators, numbers[1:], strict=True):
    answer += [OPERATORS[operator], vocab.DIGIT_0 + x]
  prompt = [vocab.BOS]
  for x in rng.permutation(numbers):  # The order does not give a hint.
    prompt += [vocab.DIGIT_0 + int(x), vocab.COMMA]
  prompt[-1] = vocab.COLON
  prompt += [*vocab.number(target), vocab.EQUALS]
  return Example.of(
    prompt,
    vocab.wrapped(answer, tags),
    {
      "numbers": sorted(numbers),
      "target": target,
      "num_solutions": num_solutions(numbers, target),
    },
  )


def _sample(
  rng: np.random.Generator, num_numbers: int, fits: Container[int]
) -> tuple[list[int], list[int], int]:
  """Draws numbers, operators and the target that they reach.

  `fits` has the allowed numbers of solutions; some problem must have one of
  them.
  """
  while True:
    numbers = rng.integers(1, 10, size=num_numbers).tolist()
    operators = rng.integers(len(OPERATORS), size=num_numbers - 1).tolist()
    partial = [numbers[0]]
    for operator, x in zip(operators, numbers[1:], strict=True):
      y = partial[-1]
      partial.append((y + x, y - x, y * x)[operator])
    in_bounds = all(-99 <= x <= 999 for x in partial)
    target = partial[-1]
    if not in_bounds or not 1 <= target <= MAX_TARGET:
      continue
    if num_solutions(numbers, target) in fits:
      return numbers, operators, target


def solution(extras: Mapping[str, np.ndarray], *, tags: bool) -> Solution:
  """The first solution by the order of numbers, then of + - *."""
  numbers = tuple(sorted(np.asarray(extras["numbers"]).tolist()))
  answer = _first_solution(numbers, int(extras["target"]))
  return Solution(list(answer), vocab.wrapped(answer, tags))


@functools.cache
def _first_solution(numbers: tuple[int, ...], target: int) -> tuple[int, ...]:
  """Ids of the first right answer; every problem has one."""
  signs = itertools.product(OPERATORS, repeat=len(numbers) - 1)
  expressions = itertools.product(itertools.permutations(numbers), signs)
  for (first, *others), operators in expressions:
    value, answer = first, [vocab.DIGIT_0 + first]
    for operator, x in zip(operators, others, strict=True):
      results = {vocab.PLUS: value + x, vocab.MINUS: value - x}
      value = results.get(operator, value * x)
      answer += [operator, vocab.DIGIT_0 + x]
    if value == target:
      return tuple(answer)
  raise ValueError(
    f"countdown.solution: no expression of {[*numbers]} is {target}; problems"
    " that this task has drawn have one."
  )


def num_solutions(numbers: Iterable[int], target: int) -> int:
  """Number of answers that `verify` accepts.

  Answers differ if their texts differ: 2 + 3 and 3 + 2 are two answers, and 2 +
  2 is one, whichever 2 comes first. All n! · 3^(n−1) are tried, with at most 4
  numbers from 1 to 9 and a target from 1 to 99.

  Raises:
    ValueError: There are other numbers.
  """
  problem = tuple(sorted(numbers))
  if not 2 <= len(problem) <= 4 or not set(problem) <= {*range(1, 10)}:
    raise ValueError(
      f"num_solutions: the numbers {list(problem)}; a problem has 2 to 4, each"
      " from 1 to 9."
    )
  return _solutions(problem)[target]


@functools.cache  # There are 705 sets of numbers.
def _solutions(numbers: tuple[int, ...]) -> collections.Counter[int]:
  """Maps each target to the number of its solutions with these numbers."""
  orders = np.array(sorted(set(itertools.permutations(numbers))))  # [A, n]
  values = orders[:, :1]  # [A, 3^i] after number i, from 0 on.
  for x in np.split(orders[:, 1:], orders.shape[1] - 1, axis=1):
    values = np.concatenate([values + x, values - x, values * x], axis=1)
  targets = values[(values >= 1) & (values <= MAX_TARGET)]
  return collections.Counter(targets.tolist())


def _check_problems(num_numbers: int, fits: range) -> None:
  """Raises ValueError unless each split has a problem that fits."""
  problems = (
    [*numbers, target]
    for numbers in itertools.combinations_with_replacement(
      range(1, 10), num_numbers
    )
    for target, count in _solutions(numbers).items()
    if count in fits
  )
  missing = {*task_lib.SPLITS}
  for problem in problems:
    missing.discard(task_lib.split_of(problem))
    if not missing:
      return
  raise ValueError(
    f"countdown.make: no problem of {num_numbers} numbers has"
    f" {fits[0]} to {fits[-1]} solutions in the split"
    f" {' or '.join(map(repr, sorted(missing)))}; widen min_solutions and"
    " max_solutions."
  )


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
  *,
  tags: bool,
  of_several: bool = False,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  numbers = extras["numbers"]  # [n], ascending
  size = 2 * len(numbers) - 1
  span = vocab.answer_span(tokens, completion_mask, tags, of_several)
  answer = vocab.content(tokens, span, size)  # [2n - 1]
  used = answer[0::2] - vocab.DIGIT_0  # [n]
  operators = answer[1::2]  # [n - 1]
  # Other tokens give numbers outside 1..9, which are in no problem.
  same_numbers = (jnp.sort(used) == numbers).all()
  value = used[0]
  for operator, x in zip(operators, used[1:], strict=True):
    value = jnp.select(
      [operator == vocab.PLUS, operator == vocab.MINUS],
      [value + x, value - x],
      value * x,
    )
  right = (
    span.ok
    & (span.end - span.start == size)
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
  of_several: bool = False,
) -> dict[str, float]:
  """Twin of `verify`, which works like a pocket calculator."""
  completion = vocab.words(tokens, completion_mask)
  text = "".join(vocab.answer_words(completion, tags, of_several) or [])
  if not re.fullmatch(r"[0-9]([-+*][0-9])*", text):
    return {"accuracy": 0.0}
  result = 0
  for sign, digit in re.findall(r"([-+*]?)([0-9])", text):
    x = int(digit)
    result = {"-": result - x, "*": result * x}.get(sign, result + x)
  numbers = sorted(int(digit) for digit in re.findall(r"[0-9]", text))
  right = numbers == extras["numbers"].tolist() and result == extras["target"]
  return {"accuracy": float(right)}
