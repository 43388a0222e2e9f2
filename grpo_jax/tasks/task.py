"""The type of tasks: a generator of problems, and a verifier or environment.

The file of each task has `make(...)`, which returns a `Task`. A hash of the
problem itself divides problems into training and test, so that a test problem
never occurs in training, whatever the seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.types import (
  Compaction,
  Environment,
  Extras,
  Images,
  PyTree,
  Turn,
)

Instance = TypeVar("Instance")

SPLITS = ("train", "test")
# A split has about 10% of the problems or more; 10,000 misses in a row mean
# that it has none.
_MAX_DRAWS = 10_000
_NUM_CHECKED = 8  # Problems of each split that `check` draws.


class Example(NamedTuple):
  """One problem with its teacher's text.

  Attributes:
    prompt: Token ids, from the begin token on; n <= max_prompt_len.
    completion: Token ids of the teacher's text, end token included; m <=
      max_completion_len. The teacher may be wrong, the extras never are.
    extras: Data for the verifier, with the same names and shapes for every
      example of a task.
    observed: True on tokens of the completion that the environment or a
      compaction wrote: they are read, not imitated. None for tasks without an
      environment. With an environment the completion ends where its context
      ends, and not always with an end token.
    images: Images of the prompt, as NumPy arrays without the axis of prompts;
      the same shapes for every example of a task. None: prompts are tokens.
  """

  prompt: np.ndarray  # [n] int32
  completion: np.ndarray  # [m] int32
  extras: dict[str, np.ndarray]  # each int32
  observed: np.ndarray | None = None  # [m] bool
  images: Images | None = None

  @classmethod
  def of(
    cls,
    prompt: Sequence[int],
    completion: Sequence[int],
    extras: Mapping[str, Any],
    observed: Sequence[bool] | None = None,
    images: Images | None = None,
  ) -> Example:
    """Makes an example of lists and numbers."""
    return cls(
      np.array(prompt, np.int32),
      np.array(completion, np.int32),
      {name: np.array(value, np.int32) for name, value in extras.items()},
      None if observed is None else np.array(observed, bool),
      images,
    )


class Solution(NamedTuple):
  """A right answer to a problem, which may have several.

  Attributes:
    answer: Token ids of the answer alone, without tags.
    completion: Token ids of a whole right completion, end token included.
  """

  answer: list[int]
  completion: list[int]


class PlainTurn(NamedTuple):
  """A turn on the host, as the twins of environments return it."""

  observation: list[int]  # [] at the end.
  reward: float
  done: bool


@dataclasses.dataclass(frozen=True)
class Task:
  """A family of problems that a program can make and judge.

  Verifiers judge one row; callers `vmap` them. They read tokens only where
  `completion_mask` is True, and the tokens that exist are adjacent and start
  at slot 0. They are strict: a row that is not properly ended scores 0.

  A task with an environment has no verifier; the scores are the environment's.

  Attributes:
    name: Key in `TASKS`.
    vocab_size: V.
    pad_id: Id that fills empty slots.
    bos_id: First token of each prompt.
    end_ids: Tokens that end a completion.
    max_prompt_len: S, tokens of the longest prompt.
    max_completion_len: T, tokens of the longest right completion, end token
      included. With an environment, tokens of the longest completion that a
      context can hold, observations included.
    example: (rng: np.random.Generator, split: "train" | "test") -> Example;
      the same rng state gives the same example. A rollout begins with its
      prompt.
    verify: (tokens [T] int32, completion_mask [T] bool, extras) ->
      {name: [] float32}, in graph. "accuracy" is 0 or 1 and always there; the
      other scores are dense shares in [0, 1], except those of `multi`, which
      has objectives of different sizes.
    verify_numpy: The same on the host, written independently; tests compare.
    encode: (text) -> ids; ValueError if a piece is not in the vocabulary.
    decode: (ids) -> readable text.
    step_scores: None, or (tokens [T], completion_mask [T], extras) ->
      (scores [T] float32 in {0, 1}, step_mask [T] bool), in graph: judges
      each step of the working at the slot where the step ends.
    step_scores_numpy: The same on the host, written independently.
    right_answer: None, or (extras) -> [A] int32, in graph: the tokens of a
      right completion between its tags, followed by padding.
    solution: None, or (extras) -> Solution, on the host: always the same
      solution of a problem, whatever its teacher has written.
    environment: The environment; None for a single turn.
    compaction: The compaction of contexts; None if an episode fits one context.
    lesson: None, or as `example`, but of any context of an episode, for a
      supervised warm start: contexts after a compaction do not begin with the
      prompt of a rollout.
    domains: Names of the domains of problems, by the number `domain` in their
      extras; empty if they have none.
    replay_numpy: None, or (extras, start, actions) -> (turns, scores): an
      episode of the environment on the host, written independently. `start`
      is the state that `reset` returned; each action is a list of ids.
  """

  name: str
  vocab_size: int
  pad_id: int
  bos_id: int
  end_ids: tuple[int, ...]
  max_prompt_len: int
  max_completion_len: int
  example: Callable[[np.random.Generator, str], Example]
  verify: Callable[[jax.Array, jax.Array, Extras], dict[str, jax.Array]] | None
  verify_numpy: (
    Callable[
      [np.ndarray, np.ndarray, Mapping[str, np.ndarray]], dict[str, float]
    ]
    | None
  )
  encode: Callable[[str], list[int]]
  decode: Callable[[Sequence[int]], str]
  step_scores: (
    Callable[[jax.Array, jax.Array, Extras], tuple[jax.Array, jax.Array]] | None
  ) = None
  step_scores_numpy: (
    Callable[
      [np.ndarray, np.ndarray, Mapping[str, np.ndarray]],
      tuple[np.ndarray, np.ndarray],
    ]
    | None
  ) = None
  right_answer: Callable[[Extras], jax.Array] | None = None
  solution: Callable[[Mapping[str, np.ndarray]], Solution] | None = None
  environment: Environment | None = None
  compaction: Compaction | None = None
  lesson: Callable[[np.random.Generator, str], Example] | None = None
  domains: tuple[str, ...] = ()
  replay_numpy: (
    Callable[
      [Mapping[str, np.ndarray], PyTree, Sequence[Sequence[int]]],
      tuple[list[PlainTurn], dict[str, float]],
    ]
    | None
  ) = None


def split_of(identity: Sequence[int]) -> str:
  """The split of a problem: "test" for 13 of 128 hash values.

  Args:
    identity: Numbers in [0, 2^32) that identify the problem. Problems should
      have the same identity if one could be solved by remembering the other
      (a + b and b + a).
  """
  value = 2166136261
  for x in identity:
    value = ((value ^ x) * 16777619) & 0xFFFFFFFF  # FNV-1a
  # The high bits: the low bits of a product depend on the low bits of its
  # factors only, so they would sort problems by their last tokens.
  value = (value * 2654435769) & 0xFFFFFFFF
  return "test" if value >> 25 < 13 else "train"


def draw(
  rng: np.random.Generator,
  split: str,
  sample: Callable[[np.random.Generator], Instance],
  identity: Callable[[Instance], Sequence[int]],
) -> Instance:
  """Samples problems until one belongs to the split.

  Raises:
    ValueError: The split is unknown, or none of 10,000 problems is in it.
  """
  if split not in SPLITS:
    raise ValueError(
      f"Task.example: unknown split {split!r}; use one of {SPLITS}."
    )
  for _ in range(_MAX_DRAWS):
    instance = sample(rng)
    if split_of(identity(instance)) == split:
      return instance
  raise ValueError(
    f"Task.example: none of {_MAX_DRAWS} problems belongs to split {split!r};"
    " the task has too few problems, make it larger."
  )


def replay(
  extras: Mapping[str, np.ndarray],
  start: Any,
  actions: Sequence[Sequence[int]],
  *,
  twin: Callable[[Mapping[str, np.ndarray]], Any],
) -> tuple[list[PlainTurn], dict[str, float]]:
  """Replays an episode by a twin of its environment; see `Task.replay_numpy`.

  Nothing in the environment is random. The twin has the methods `act`, from an
  action to its turn, and `scores`.
  """
  del start
  episode = twin(extras)
  return [episode.act(action) for action in actions], episode.scores()


def mask_after_end(
  over: jax.Array,  # [] bool
  old: PyTree,
  new: PyTree,
  turn: Turn,
) -> tuple[PyTree, Turn]:
  """Keeps the state after the end of an episode, and masks its observation.

  Args:
    over: Whether the episode was over before the step.
    old: State before the step.
    new: State after the step, if the episode was not over.
    turn: The turn, if the episode was not over.

  Returns:
    A result for `Environment.step`. After the end, and at the end, there is no
    observation; slots without a token hold 0, the pad id.
  """
  done = over | turn.done
  mask = turn.mask & ~done
  return jax.tree.map(lambda x, y: jnp.where(over, x, y), old, new), Turn(
    jnp.where(mask, turn.observation, 0),
    mask,
    jnp.where(over, 0.0, turn.reward),
    done,
  )


def check(task: Task) -> None:
  """Checks the ids of a task, and some of its problems.

  An id outside the vocabulary would read another row of a table without an
  error.

  Raises:
    ValueError: An id or a problem does not meet `Task` and `Example`; the
      message has the task's name.
  """

  def wrong(what: str, need: str) -> ValueError:
    return ValueError(f"task {task.name!r}: {what}; needs {need}.")

  def check_ids(what: str, ids: Any, most: float = np.inf) -> None:
    is_array = isinstance(ids, np.ndarray) and ids.ndim == 1
    if not is_array or not np.issubdtype(ids.dtype, np.integer):
      raise wrong(
        f"{what} is {_repr(ids)}", "a NumPy array of token ids, int32 [n]"
      )
    if outside := ids[(ids < 0) | (ids >= task.vocab_size)].tolist():
      raise wrong(
        f"{what} has the ids {outside[:4]}",
        f"ids from 0 to {task.vocab_size - 1}, by Task.vocab_size",
      )
    if ids.size > most:
      raise wrong(f"{what} has {ids.size} ids", f"at most {most}")

  for name in ("vocab_size", "max_prompt_len", "max_completion_len"):
    size = getattr(task, name)
    if not isinstance(size, int) or size < 1:
      raise wrong(f"{name} is {size!r:.60}", "a whole number from 1 on")
  if not isinstance(task.end_ids, tuple) or not task.end_ids:
    raise wrong(f"end_ids is {task.end_ids!r:.60}", "a tuple of token ids")
  for id_ in task.end_ids:
    check_ids("end_ids", _alone(id_))
  for name in ("pad_id", "bos_id"):
    check_ids(name, _alone(getattr(task, name)))
  extras = None
  for draw in {task.example, task.lesson or task.example}:
    for split in SPLITS:
      for number in range(_NUM_CHECKED):
        what = f"problem {number} of the split {split!r}: its"
        try:
          problem = draw(np.random.default_rng(number), split)
        except Exception as error:  # A user's program may raise any exception.
          raise wrong(
            f"{what} example fails with {error} ({type(error).__name__})",
            "a tasks.Example",
          ) from error
        if not isinstance(problem, Example):
          raise wrong(f"an example is {_repr(problem)}", "a tasks.Example")
        check_ids(f"{what} prompt", problem.prompt, task.max_prompt_len)
        if not problem.prompt.size:
          raise wrong(f"{what} prompt is empty", "at least one token")
        if problem.completion is not None:
          check_ids(
            f"{what} completion", problem.completion, task.max_completion_len
          )
        if not isinstance(problem.extras, Mapping):
          raise wrong(
            f"{what} extras are {_repr(problem.extras)}", "a dictionary"
          )
        if task.solution is not None:
          for field, ids in task.solution(problem.extras)._asdict().items():
            check_ids(f"{what} solution's {field}", np.array(ids, np.int64))
        for name, value in problem.extras.items():
          is_array = isinstance(value, np.ndarray | np.generic | jax.Array)
          if not is_array or value.dtype.kind not in "biuf":
            raise wrong(
              f"{what} extras[{name!r}] is {_repr(value)}",
              "a NumPy array of numbers, of which those of a batch are stacked",
            )
          on_device = jax.dtypes.canonicalize_dtype(value.dtype)
          if value.dtype.kind in "iu" and np.any(
            np.asarray(value).astype(on_device) != value
          ):
            raise wrong(
              f"{what} extras[{name!r}] is {_repr(value)}",
              f"numbers that {on_device} has",
            )
        kinds = {
          name: (np.shape(value), np.asarray(value).dtype.kind)
          for name, value in problem.extras.items()
        }
        extras = extras or kinds
        if kinds != extras:
          raise wrong(
            f"{what} extras have the shapes and kinds {kinds}, and those of the"
            f" first problem {extras}",
            "the same for all, padded where they are shorter",
          )
        flags, ids = problem.observed, problem.completion
        if flags is not None and (ids is None or np.shape(flags) != ids.shape):
          size = 0 if ids is None else ids.size
          raise wrong(
            f"{what} observed has the shape {np.shape(flags)}",
            f"a flag for each of {size} tokens of the completion",
          )


def _alone(id_: Any) -> np.ndarray:  # [1], if it is one
  try:
    return np.array([id_])
  except ValueError:  # Raised for lists of different lengths.
    return np.array([id_], object)


def _repr(value: Any) -> str:
  kind = type(value).__name__
  if isinstance(value, np.ndarray):
    kind += f" of {value.dtype}{list(value.shape)}"
  return f"{value!r:.60} ({kind})"


def check_ranges(
  caller: str,
  options: Mapping[str, Any],
  **bounds: tuple[float, float],
) -> None:
  """Raises ValueError unless each option is within its bounds, inclusive."""
  for name, (low, high) in bounds.items():
    if not low <= options[name] <= high:
      raise ValueError(
        f"{caller}: {name} is {options[name]}; it must be in [{low}, {high}]."
      )


def bound(
  function: Callable[..., Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
  """Binds a function to those of a task's options that are its parameters."""
  own = inspect.signature(function).parameters
  return functools.partial(
    function, **{name: x for name, x in options.items() if name in own}
  )
