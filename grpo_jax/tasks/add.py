"""Addition of two numbers, with or without a scratchpad.

Prompt `BOS A + B =`, answer `A + B` in decimal without leading zeros. With the
scratchpad the think span works from the right, one step per column,

    a + b + c = s2 s1 ;

where c is the carry in and s2 s1 the column's sum in two digits. A sloppy
teacher forgets carries: a structured mistake that a policy learns by imitation,
and that training with a verifier can repair. A wordy teacher ends its thought
with letters without a meaning, which separate what a policy learns of lengths
from what it learns of sums.
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

STEP_LEN = 9  # Tokens of `a + b + c = s2 s1 ;`.


def make(
  level: int = 2,
  scratchpad: bool = False,
  teacher_error: float = 0.0,
  tags: bool = True,
  fixed_digits: bool = True,
  teacher_slip: float = 0.0,
  max_filler: int = 0,
  mean_filler: float = 6.0,
) -> Task:
  """Makes the addition task.

  Scores: "accuracy"; with the scratchpad also "process", the number of right
  steps over the number of expected or written steps, whichever is larger, and
  "consistency", 1 if the answer is the result of the working, right or wrong.

  Args:
    level: Digits of the longest operand, 1 to 8.
    scratchpad: Whether the teacher shows the working; steps are judged.
    teacher_error: Probability with which the teacher forgets a carry. Each
      carry, also the last one, is forgotten independently.
    tags: Whether the answer stands in `<answer> </answer>`; False gives the
      shortest completions, `ANS EOS`.
    fixed_digits: Whether both operands have exactly `level` digits; otherwise
      each has 1 to `level`, equally likely.
    teacher_slip: Probability with which the teacher writes a wrong digit into a
      column of the working, but continues with the right digit; each column
      independently. Then the answer is not the result of the working, and may
      be right.
    max_filler: Most letters a–z with which the teacher ends its thought, at
      most 64. They are not judged. 0: none, and no think span except for the
      scratchpad.
    mean_filler: Mean number of these letters, of a geometric distribution from
      0 on, which `max_filler` clips.

  Raises:
    ValueError: An option is out of range, or there is a scratchpad or filler
      without tags.
  """
  options = dict(locals())
  # int32 holds sums of two 8-digit numbers.
  task_lib.check_ranges(
    "add.make",
    options,
    level=(1, 8),
    teacher_error=(0.0, 1.0),
    teacher_slip=(0.0, 1.0),
    max_filler=(0, 64),
    mean_filler=(0.0, 64.0),
  )
  thinks = scratchpad or max_filler > 0
  if thinks and not tags:
    raise ValueError(
      "add.make: a scratchpad and filler need tags, which mark the answer;"
      f" received scratchpad={scratchpad}, max_filler={max_filler}, tags=False."
      " Leave tags=True."
    )
  steps = task_lib.bound(step_scores, options)
  return Task(
    name="add",
    **vocab.of_task(),
    max_prompt_len=2 * level + 3,
    max_completion_len=(
      level
      + 2
      + 2 * tags
      + 2 * thinks
      + scratchpad * STEP_LEN * level
      + max_filler
    ),
    example=task_lib.bound(example, options),
    verify=task_lib.bound(verify, options),
    verify_numpy=task_lib.bound(verify_numpy, options),
    step_scores=steps if scratchpad else None,
    step_scores_numpy=step_scores_numpy if scratchpad else None,
    right_answer=task_lib.bound(right_answer, options) if tags else None,
  )


def example(
  rng: np.random.Generator,
  split: str,
  *,
  level: int,
  scratchpad: bool,
  teacher_error: float,
  tags: bool,
  fixed_digits: bool,
  teacher_slip: float,
  max_filler: int,
  mean_filler: float,
) -> Example:
  """Draws one problem; see `Task.example`. Extras: operands [2]."""

  def operand(rng: np.random.Generator) -> int:
    digits = level if fixed_digits else int(rng.integers(1, level + 1))
    return int(rng.integers(10 ** (digits - 1) * (digits > 1), 10**digits))

  a, b = task_lib.draw(
    rng, split, lambda rng: (operand(rng), operand(rng)), identity=sorted
  )
  prompt = [
    vocab.BOS,
    *vocab.number(a),
    vocab.PLUS,
    *vocab.number(b),
    vocab.EQUALS,
  ]
  working, answer = _teach(a, b, teacher_error, teacher_slip, rng)
  completion = vocab.wrapped(vocab.number(answer), tags)
  thought = working if scratchpad else []
  if max_filler:
    thought = thought + _filler(rng, max_filler, mean_filler)
  if scratchpad or max_filler:
    completion = [vocab.THINK, *thought, vocab.THINK_END, *completion]
  return Example.of(prompt, completion, {"operands": [a, b]})


def _filler(rng: np.random.Generator, most: int, mean: float) -> list[int]:
  """Draws letters without a meaning."""
  size = min(int(rng.geometric(1 / (1 + mean))) - 1, most)
  letters = rng.integers(vocab.NUM_LETTERS, size=size)
  return (vocab.LETTER_A + letters).tolist()


def _teach(
  a: int,
  b: int,
  teacher_error: float,
  teacher_slip: float,
  rng: np.random.Generator,
) -> tuple[list[int], int]:
  """Adds by columns, forgets carries and slips; returns (working, answer)."""
  working: list[int] = []
  answer, carry = 0, 0
  columns = max(len(str(a)), len(str(b)))
  # Always drawn, so that teachers of all probabilities see the same problems.
  forgets = rng.random(columns) < teacher_error
  slips = (rng.random(columns) < teacher_slip) * rng.integers(1, 10, columns)
  for k in range(columns):
    x, y = a // 10**k % 10, b // 10**k % 10
    total = x + y + carry
    entry = total // 10 * 10 + (total + int(slips[k])) % 10
    working += vocab.encode(f"{x}+{y}+{carry}={entry:02d};")
    answer += total % 10 * 10**k
    carry = total // 10
    if forgets[k]:
      carry = 0
  return working, answer + carry * 10**columns


def _num_digits(x: jax.Array, most: int) -> jax.Array:  # [] -> [] int32
  """Number of decimal digits of x >= 0, from 1 to `most`."""
  return 1 + (x >= 10 ** jnp.arange(1, most)).sum()


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
  *,
  level: int,
  scratchpad: bool,
  tags: bool,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  gold = extras["operands"].sum()  # []
  span = vocab.answer_span(tokens, completion_mask, tags)
  right = _says(tokens, span, gold, level)
  scores = {"accuracy": right.astype(jnp.float32)}
  if scratchpad:
    per_step, step_mask = step_scores(
      tokens, completion_mask, extras, level=level
    )
    expected = _num_digits(extras["operands"].max(), level)  # columns
    scores["process"] = per_step.sum() / jnp.maximum(step_mask.sum(), expected)
    worked_out, is_sound = _worked_out(tokens, step_mask, level)
    consistent = is_sound & _says(tokens, span, worked_out, level)
    scores["consistency"] = consistent.astype(jnp.float32)
  return scores


def _says(
  tokens: jax.Array,  # [T] int32
  span: vocab.Span,
  number: jax.Array,  # [] int32
  level: int,
) -> jax.Array:  # [] bool
  """Returns True if the answer is this number, without leading zeros."""
  # Without leading zeros a number has one spelling, so spellings are compared.
  spelling = _spelling(number, level)
  return (
    span.ok
    & (span.end - span.start == (spelling != vocab.PAD).sum())
    & (vocab.content(tokens, span, level + 1) == spelling).all()
  )


def _spelling(
  number: jax.Array,  # [] int32
  level: int,
) -> jax.Array:  # [level + 1] int32
  """The digits of a number as tokens, padded."""
  place = _num_digits(number, level + 1) - 1 - jnp.arange(level + 1)
  digits = number // 10 ** jnp.maximum(place, 0) % 10
  return jnp.where(place >= 0, vocab.DIGIT_0 + digits, vocab.PAD)


def right_answer(extras: Extras, *, level: int) -> jax.Array:  # [level + 1]
  """The ids of the sum's digits, then padding; see `Task.right_answer`."""
  return _spelling(extras["operands"].sum(), level)


def _worked_out(
  tokens: jax.Array,  # [T] int32
  step_mask: jax.Array,  # [T] bool
  level: int,
) -> tuple[jax.Array, jax.Array]:  # [] int32, [] bool
  """The result of the working, and a flag that is False if there is none.

  There must be 1 to `level` steps, and each must end in `= s2 s1 ;`. The result
  has the digits s1, from the right, and before them the last s2. The rest of a
  step is not checked.
  """
  before = [jnp.roll(tokens, k) for k in (1, 2, 3)]  # [T] each
  one, ten = (x - vocab.DIGIT_0 for x in before[:2])
  reads = (before[2] == vocab.EQUALS) & (one >= 0) & (one <= 9)
  reads &= (ten >= 0) & (ten <= 9)
  count = step_mask.sum()
  place = jnp.cumsum(step_mask) - 1  # [T]
  ones = one * 10 ** jnp.clip(place, 0, level - 1)
  number = jnp.where(step_mask & reads, ones, 0).sum()
  last = step_mask & reads & (place == count - 1)
  number += jnp.where(last, ten, 0).sum() * 10 ** jnp.clip(count, 0, level)
  is_sound = (count >= 1) & (count <= level) & (reads | ~step_mask).all()
  return jnp.where(is_sound, number, 0), is_sound


def step_scores(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
  *,
  level: int,
) -> tuple[jax.Array, jax.Array]:  # [T] float32, [T] bool
  """Judges each step of the working at its `;`.

  The k-th step is right if it is exactly the k-th column of the right working;
  steps beyond the last column are wrong. Without exactly one think span there
  are no steps.

  Returns:
    Scores in {0, 1} (0 where no step ends), and a mask of the ends of steps.
  """
  think = vocab.span(tokens, completion_mask, vocab.THINK, vocab.THINK_END)
  slots = jnp.arange(tokens.shape[0])  # [T]
  ends = (
    (slots >= think.start) & (slots < think.end) & (tokens == vocab.SEMICOLON)
  )  # [T]
  index = jnp.cumsum(ends) - ends  # [T], number of steps ended before
  previous = jnp.concatenate(  # [T], slot before the step that t is in
    [
      think.start[None] - 1,
      jax.lax.cummax(jnp.where(ends, slots, think.start - 1))[:-1],
    ]
  )
  window = tokens[slots[:, None] + jnp.arange(1 - STEP_LEN, 1)]  # [T, 9]
  working = _working(extras["operands"], level)  # [level, 9]
  columns = _num_digits(extras["operands"].max(), level)
  right = (
    ends
    & (slots - previous == STEP_LEN)
    & (index < columns)
    & (window == working[jnp.minimum(index, level - 1)]).all(axis=-1)
  )
  return right.astype(jnp.float32), ends


def _working(
  operands: jax.Array,  # [2] int32
  level: int,
) -> jax.Array:  # [level, 9] int32
  """The right working: the step of each column, as tokens."""
  power = 10 ** jnp.arange(level)  # [level]
  a, b = operands[:, None] // power % 10  # [level] each
  carry = (operands[:, None] % power).sum(axis=0) // power
  total = a + b + carry
  digits = vocab.DIGIT_0 + jnp.stack([a, b, carry, total // 10, total % 10])
  sign = functools.partial(jnp.full_like, a)
  return jnp.stack(
    [
      digits[0],
      sign(vocab.PLUS),
      digits[1],
      sign(vocab.PLUS),
      digits[2],
      sign(vocab.EQUALS),
      digits[3],
      digits[4],
      sign(vocab.SEMICOLON),
    ],
    axis=-1,
  )


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
  *,
  level: int,
  scratchpad: bool,
  tags: bool,
) -> dict[str, float]:
  """Twin of `verify`, which reads the number and adds."""
  a, b = (int(x) for x in extras["operands"])
  completion = vocab.words(tokens, completion_mask)
  text = "".join(vocab.answer_words(completion, tags) or [])
  right = text.isdecimal() and int(text) == a + b
  right = right and (text == "0" or not text.startswith("0"))
  scores = {"accuracy": float(right)}
  if scratchpad:
    per_step, step_mask = step_scores_numpy(tokens, completion_mask, extras)
    num_steps = max(int(step_mask.sum()), len(str(max(a, b))))
    scores["process"] = float(per_step.sum()) / num_steps
    comes_to = _worked_out_numpy(completion, level)
    scores["consistency"] = float(comes_to is not None and text == comes_to)
  return scores


def _worked_out_numpy(completion: list[str], level: int) -> str | None:
  """Twin of `_worked_out`: the spelling of the number, or None."""
  working = "".join(
    vocab.words_between(completion, "<think>", "</think>") or []
  )
  *steps, _ = working.split(";")
  results = [re.fullmatch(r".*=(\d)(\d)", step, re.DOTALL) for step in steps]
  pairs = [result.groups() for result in results if result is not None]
  if not 1 <= len(pairs) == len(steps) <= level:
    return None
  digits = [unit for _, unit in pairs] + [pairs[-1][0]]
  return str(int("".join(reversed(digits))))


def step_scores_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:  # [T] float32, [T] bool
  """Twin of `step_scores`, which splits the working at `;` and adds."""
  scores = np.zeros(len(tokens), np.float32)
  step_mask = np.zeros(len(tokens), bool)
  completion = vocab.words(tokens, completion_mask)
  working = vocab.words_between(completion, "<think>", "</think>")
  if working is None:
    return scores, step_mask
  a, b = (str(x) for x in extras["operands"])
  columns = max(len(a), len(b))
  pairs = list(
    zip(reversed(a.zfill(columns)), reversed(b.zfill(columns)), strict=True)
  )
  carry, text = 0, ""
  slot = completion.index("<think>")
  for word in working:
    slot += 1
    text += word
    if word != ";":
      continue
    step_mask[slot] = True
    if pairs:
      x, y = pairs.pop(0)
      total = int(x) + int(y) + carry
      scores[slot] = text == f"{x}+{y}+{carry}={total:02d};"
      carry = total // 10
    text = ""
  return scores, step_mask
