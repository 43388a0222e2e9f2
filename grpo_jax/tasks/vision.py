"""Coloured squares in a small image: counting them, and locating one.

An image has 8 x 8 pixels, and 1 to 4 squares that do not overlap. It is read as
16 patches of 2 x 2 pixels. Their places in a prompt have the token `<patch>`,
here `P`:

    BOS P … P # r ? =      <answer> 2 </answer> EOS
    BOS P … P r : =        <answer> { [ 1 , 0 , 3 , 2 ] } </answer> EOS

The first question asks for the number of red squares, as in R1-V; each number
from 0 to 4 is right equally often, so that no constant answer is good. The
second question asks for the place of the only red square, as in VLM-R1: its
left, top, right and bottom, where right and bottom are the first pixels behind
it.

Squares of one colour are at least a pixel apart, because four small squares
that touch would be a larger square. Training squares are red, green and blue,
with sides of 1 to 3 pixels; test problems may have others.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.tasks import task as task_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.tasks.task import Example, Extras, Task
from grpo_jax.types import Images

SIDE, PATCH = 8, 2  # Pixels.
GRID = SIDE // PATCH  # Patches in a row.
MAX_SQUARES = 4
# Red, green and blue of each colour.
COLOURS = {
  "r": (1, 0, 0),
  "g": (0, 1, 0),
  "b": (0, 0, 1),
  "y": (1, 1, 0),
  "p": (1, 0, 1),
}
_USUAL, _UNSEEN = "rgb", "yp"
_SIDES, _LARGER = (1, 3), (4, 5)
QUESTIONS = ("count", "box")
# Question, colours of all squares, and sides of the squares in question.
DOMAINS = {
  "count": ("count", _USUAL, _SIDES),
  "box": ("box", _USUAL, _SIDES),
  "count_colours": ("count", _UNSEEN, _SIDES),
  "box_colours": ("box", _UNSEEN, _SIDES),
  "box_sizes": ("box", _USUAL, _LARGER),
}
PATCH_ID = vocab.VOCAB_SIZE  # The placeholder token of a patch.
_PATCHES = ("<patch>",)
_BOX = vocab.encode("{[0,0,0,0]}")  # The digits are the corners.
_CORNERS = slice(2, 9, 2)
_DIGITS = vocab.DIGIT_0 + np.arange(10)


class Square(NamedTuple):
  """A square of an image, in pixels."""

  colour: str
  left: int
  top: int
  side: int

  @property
  def box(self) -> list[int]:
    right, bottom = self.left + self.side, self.top + self.side
    return [self.left, self.top, right, bottom]


class VisionProblem(NamedTuple):
  """A question about an image."""

  domain: str  # Key of `DOMAINS`.
  colour: str
  squares: list[Square]


def make(
  questions: str = "both",
  codes: bool = False,
  shifted: bool = False,
  merge: int = 1,
  teacher_error: float = 0.0,
) -> Task:
  """Makes the task of questions about squares.

  Scores:
    accuracy: 1 if the number, or all corners of the box, are right.
    overlap: Intersection over union of the box with the right one; for a number
      the accuracy.
    half: 1 if the overlap is greater than one half.
    format: 1 if the completion is `<answer>`, a digit or a box as the question
      asks, `</answer>`, and the end.

  Domains: the two questions, "count" and "box". Test problems may have three
  more, which are not trained on: "count_colours" and "box_colours", where all
  squares are yellow (red and green) or purple (red and blue); and "box_sizes",
  where the square in question has sides of 4 or 5 pixels.

  Args:
    questions: Questions of the task: "count", "box", or "both", equally often.
    codes: Whether a question names a colour by its red, green and blue, such as
      `1 1 0`, instead of a letter. Then the parts of an untrained colour were
      all seen in training.
    shifted: Whether test problems come from all domains of their questions,
      equally often, and not only from the trained domains.
    merge: Patches in a row, and in a column, that the tower merges to one
      token: 1, 2 or 4.
    teacher_error: Probability that the teacher counts one square too many, or
      answers with the last pixels of a square instead of its right and bottom.
  """
  options = dict(locals())
  who = "vision.make"
  task_lib.check_ranges(
    who,
    options,
    teacher_error=(0.0, 1.0),
  )
  if questions not in ("both", *QUESTIONS):
    raise ValueError(
      f"{who}: questions is {questions!r}; use one of {('both', *QUESTIONS)}."
    )
  if merge not in (1, 2, GRID):
    raise ValueError(f"{who}: merge is {merge}; use 1, 2 or {GRID}.")
  kinds = QUESTIONS if questions == "both" else (questions,)
  options["kinds"] = kinds
  sign = {"count": 4, "box": 3}  # Tokens around the colour, the first included.
  return Task(
    name="vision",
    **vocab.of_task(_PATCHES),
    max_prompt_len=(GRID // merge) ** 2
    + (3 if codes else 1)
    + max(sign[question] for question in kinds),
    max_completion_len=14 if "box" in kinds else 4,
    example=task_lib.bound(example, options),
    verify=verify,
    verify_numpy=verify_numpy,
    domains=tuple(DOMAINS),
  )


def _identity(problem: VisionProblem) -> list[int]:
  """Identifies the image: test and training problems share no image."""
  names = list(COLOURS)
  return [
    x
    for square in sorted(problem.squares)
    for x in (names.index(square.colour), *square[1:])
  ]


def _place(
  rng: np.random.Generator, specs: list[tuple[str, tuple[int, int]]]
) -> list[Square] | None:
  """Places squares of given colours and sides; None if there is no room."""
  squares: list[Square] = []
  for colour, (shortest, longest) in specs:
    for _ in range(20):
      x, y, z = rng.random(3).tolist()  # One call, because calls are slow.
      side = shortest + int(z * (longest - shortest + 1))
      room = SIDE - side + 1
      square = Square(colour, int(x * room), int(y * room), side)
      if all(_are_apart(square, other) for other in squares):
        squares.append(square)
        break
    else:
      return None
  return squares


def _are_apart(square: Square, other: Square) -> bool:
  gap = square.colour == other.colour
  return (
    square.left + square.side + gap <= other.left
    or other.left + other.side + gap <= square.left
    or square.top + square.side + gap <= other.top
    or other.top + other.side + gap <= square.top
  )


def _sample(rng: np.random.Generator, domains: Sequence[str]) -> VisionProblem:
  """Draws a problem of one of the domains; squares without room are redrawn."""
  domain = domains[int(rng.integers(len(domains)))]
  question, colours, sides = DOMAINS[domain]
  colour = colours[int(rng.integers(len(colours)))]
  own = 1 if question == "box" else int(rng.integers(MAX_SQUARES + 1))
  total = int(rng.integers(max(own, 1), MAX_SQUARES + 1))
  others = [name for name in colours if name != colour]
  specs = [(colour, sides)] * own + [
    (others[i], _SIDES)
    for i in rng.integers(len(others), size=total - own).tolist()
  ]
  while (squares := _place(rng, specs)) is None:
    pass  # There is room for any number; the first squares were in the way.
  return VisionProblem(domain, colour, squares)


def pixels(squares: list[Square]) -> np.ndarray:  # [8, 8, 3] float32
  """The image of squares, by row, column, and red, green and blue."""
  image = np.zeros((SIDE, SIDE, 3), np.float32)
  for square in squares:
    left, top, right, bottom = square.box
    image[top:bottom, left:right] = COLOURS[square.colour]
  return image


def patches(image: np.ndarray, merge: int = 1) -> Images:
  """Cuts an image [8, 8, 3] into patches for the tower.

  Args:
    image: The image, by row, column and colour.
    merge: Patches in a row of a block that becomes one token; the patches of a
      block are adjacent.

  Returns:
    Arrays without the axis of prompts: patches [16, 12] by row, column and
    colour, image [16], place [16, 2], grid [1, 2].
  """
  blocks = GRID // merge
  shape = (blocks, merge, blocks, merge)
  place = np.indices((GRID, GRID)).reshape(2, *shape)  # [2, …]: row, column
  place = place.transpose(1, 3, 2, 4, 0).reshape(-1, 2).astype(np.int32)
  cut = image.reshape(GRID, PATCH, GRID, PATCH, 3).swapaxes(1, 2)
  arrays: dict[str, Any] = {
    "patches": cut[place[:, 0], place[:, 1]].reshape(len(place), -1),
    "image": np.zeros(len(place), np.int32),
    "place": place,
    "grid": np.array([[GRID, GRID]], np.int32),
  }
  return Images(**arrays)


def example(
  rng: np.random.Generator,
  split: str,
  *,
  kinds: tuple[str, ...],
  codes: bool,
  shifted: bool,
  merge: int,
  teacher_error: float,
) -> Example:
  """Draws one problem; see `Task.example`.

  Extras: domain, its index in `DOMAINS`; question, its index in `QUESTIONS`;
  count, the number of squares of the colour; box [4], the corners of the only
  square of the colour, or zeros if the question is their number.
  """
  errs = bool(rng.random() < teacher_error)
  is_shifted = shifted and split == "test"
  domains = [
    name
    for name, (question, *_) in DOMAINS.items()
    if question in kinds and (is_shifted or name in QUESTIONS)
  ]
  sample = functools.partial(_sample, domains=domains)
  problem = task_lib.draw(rng, split, sample, _identity)
  question = DOMAINS[problem.domain][0]
  own = [x for x in problem.squares if x.colour == problem.colour]
  box = own[0].box if question == "box" else [0] * 4
  name = "".join(map(str, COLOURS[problem.colour])) if codes else problem.colour
  if question == "count":
    text, answer = f"#{name}?=", vocab.number(len(own) + errs)
  else:
    left, top, right, bottom = box
    corners = [left, top, right - errs, bottom - errs]
    text, answer = f"{name}:=", vocab.encode(f"{{{corners}}}")
  placeholders = [PATCH_ID] * (GRID // merge) ** 2
  return Example.of(
    [vocab.BOS, *placeholders, *vocab.encode(text)],
    vocab.wrapped(answer, tags=True),
    {
      "domain": [*DOMAINS].index(problem.domain),
      "question": QUESTIONS.index(question),
      "count": len(own),
      "box": box,
    },
    images=patches(pixels(problem.squares), merge),
  )


def intersection_over_union(
  box: jax.Array,  # [4]
  other: jax.Array,  # [4]
) -> jax.Array:  # [] float32
  """Area of the intersection of two boxes over the area of their union.

  Args:
    box, other: Left, top, right, bottom; half open, so that an area is
      (right − left) · (bottom − top).

  Returns:
    A number in [0, 1]; 0 if a box is empty or reversed.

  Source: VLM-R1, arXiv:2504.07615, Section 3.2 (the reward of a single box).
  """

  def area(corners: jax.Array) -> jax.Array:
    width, height = jnp.maximum(corners[2:] - corners[:2], 0)
    return width * height

  common = jnp.concatenate(
    [jnp.maximum(box[:2], other[:2]), jnp.minimum(box[2:], other[2:])]
  )
  shared = jnp.minimum(area(common), jnp.minimum(area(box), area(other)))
  union = area(box) + area(other) - shared
  return (shared / jnp.maximum(union, 1)).astype(jnp.float32)


def verify(
  tokens: jax.Array,  # [T] int32
  completion_mask: jax.Array,  # [T] bool
  extras: Extras,
) -> dict[str, jax.Array]:
  """Judges one completion in graph; see `Task.verify`."""
  answer = vocab.answer_span(tokens, completion_mask, tags=True)
  size = answer.end - answer.start
  ids = vocab.content(tokens, answer, len(_BOX))  # [11]
  frame = jnp.array(_BOX)
  is_digit = (ids[:, None] == jnp.array(_DIGITS)).any(-1)  # [11]
  fits = jnp.where(frame == vocab.DIGIT_0, is_digit, ids == frame)
  corners = ids[_CORNERS] - vocab.DIGIT_0
  asks_box = extras["question"] == QUESTIONS.index("box")
  is_formed = answer.ok & jnp.where(
    asks_box,
    fits.all() & (size == len(_BOX)),
    is_digit[0] & (size == 1),
  )
  right = is_formed & jnp.where(
    asks_box,
    (corners == extras["box"]).all(),
    ids[0] - vocab.DIGIT_0 == extras["count"],
  )
  overlap = jnp.where(
    asks_box & is_formed,
    intersection_over_union(corners, extras["box"]),
    right.astype(jnp.float32),
  )
  return {
    "accuracy": right.astype(jnp.float32),
    "overlap": overlap,
    "half": (overlap > 0.5).astype(jnp.float32),
    "format": (is_formed & (answer.start == 1)).astype(jnp.float32),
  }


def verify_numpy(
  tokens: np.ndarray,  # [T] int32
  completion_mask: np.ndarray,  # [T] bool
  extras: Mapping[str, np.ndarray],
) -> dict[str, float]:
  """Twin of `verify`, which reads words and counts pixels."""
  completion = vocab.words(tokens, completion_mask)
  answer = vocab.answer_words(completion, tags=True) or []
  numbers = [int(word) for word in answer if word.isdecimal()]
  if QUESTIONS[int(extras["question"])] == "count":
    is_formed = len(answer) == len(numbers) == 1
    overlap = float(is_formed and numbers[0] == int(extras["count"]))
    right = overlap
  else:
    is_formed = len(numbers) == 4 and answer == [
      *("{", "[", str(numbers[0]), ",", str(numbers[1]), ","),
      *(str(numbers[2]), ",", str(numbers[3]), "]", "}"),
    ]
    gold = extras["box"].tolist()
    right = float(is_formed and numbers == gold)
    overlap = 0.0
    if is_formed:
      gold_cells, cells = (
        {(x, y) for x in range(a, c) for y in range(b, d)}
        for a, b, c, d in (gold, numbers)
      )
      overlap = len(gold_cells & cells) / len(gold_cells | cells)
  return {
    "accuracy": right,
    "overlap": overlap,
    "half": float(overlap > 0.5),
    "format": float(is_formed and completion[0] == "<answer>"),
  }
