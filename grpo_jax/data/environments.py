"""Sources of prompts from an environment on the host, and of played episodes.

    EnvironmentSource(factory.problem, "train", seed=0)[5]["prompt"]

An environment that others wrote has no file of prompts. The prompt is its first
observation, which is a function of a number, the seed. So a source is endless.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.data.formats import Record
from grpo_jax.data.observations import Observation
from grpo_jax.data.sources import Source

# Training episodes have seeds below this number, held-out ones from it on.
FIRST_HELD_OUT = 2**30
# Records of a source: more than a run reads, and at most the number of seeds.
_SIZE = 2**30

# Most draws of a seed for a record.
_MAX_DRAWS = 100

# (seed) -> (prompt, extras), always the same; None if the seed has no problem.
Problem = Callable[[int], tuple[str, dict[str, Any]] | None]
# (prompt, extras) -> actions of a teacher, with the observation after each.
Lesson = Callable[[str, Mapping[str, Any]], Sequence[tuple[str, Observation]]]


class EnvironmentSource:
  """A source of first observations of episodes.

  Attributes:
    starts: (0,), because the source is endless; see `sources.starts`.
  """

  starts = (0,)

  def __init__(self, problem: Problem, split: str, seed: int):
    """Creates the source without making a record.

    Args:
      problem: Function of the environment from seeds to problems.
      split: "train": seeds are drawn below `FIRST_HELD_OUT`. "test": seeds are
        `FIRST_HELD_OUT`, the next number, and so on; a seed without a problem
        is replaced by a seed that is drawn from `FIRST_HELD_OUT` on. So no
        episode is in both splits.
      seed: Seed of the draws, non-negative; record i is a function of
        (seed, i).
    """
    self._problem = problem
    self._is_held_out = split != "train"
    self._key = seed, zlib.crc32(split.encode())

  def __len__(self) -> int:
    return _SIZE

  def __getitem__(self, index: int) -> Record:
    if not 0 <= index < _SIZE:
      raise IndexError(f"config.data.environment: there is no record {index}.")
    rng = np.random.default_rng((*self._key, index))
    for draw in range(_MAX_DRAWS):
      number = int(rng.integers(FIRST_HELD_OUT))
      if self._is_held_out:
        number = FIRST_HELD_OUT + (number if draw else index)
      if (problem := self._problem(number)) is not None:
        break
    else:
      raise ValueError(
        f"config.data.environment: of {_MAX_DRAWS} seeds none has a problem;"
        f" the last was {number}. Let the environment's `problem` return a"
        " prompt for most of them."
      )
    prompt, extras = problem
    return {
      "prompt": prompt,
      "answer": "",
      "completion": None,
      "extras": dict(extras),
    }


class PlayedSource:
  """A source of prompts with episodes that a teacher has played.

  A completion has the ids of the teacher's actions, each up to a token that
  ends actions, and between them the ids of observations, which are `observed`
  and so not imitated. A policy writes and reads the same ids in an episode.
  """

  def __init__(
    self,
    source: Source,
    lesson: Lesson,
    tokenizer: Any,
    action_ends: Sequence[int],
    max_turns: int,
    max_observation_len: int,
  ):
    """Creates the source without playing an episode.

    Args:
      action_ends: Ids; the first is written after an action that does not end
        with one of them.
      max_observation_len: Tokens to which an observation is cut.
    """
    self._source = source
    self._lesson = lesson
    self._tokenizer = tokenizer
    self._action_ends = action_ends
    self._max_turns = max_turns
    self._max_observation_len = max_observation_len
    self.starts = (0,)

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> Record:
    record = self._source[index]
    turns = self._lesson(record["prompt"], record["extras"])
    ids, observed = played_ids(
      turns[: self._max_turns],
      self._tokenizer,
      self._action_ends,
      self._max_observation_len,
    )
    return {
      **record,
      "completion": np.array(ids, np.int32),
      "observed": np.array(observed, bool),
    }


def played_ids(
  turns: Sequence[tuple[str, Observation]],
  tokenizer: Any,
  action_ends: Sequence[int],
  max_observation_len: int,
) -> tuple[list[int], list[bool]]:
  """Ids of an episode, and a flag for each id that was read.

  Args:
    turns: Actions, with the observation after each; that after the last action
      is not used.
    tokenizer: The policy's tokenizer.
    action_ends: Ids; the first is written after an action that does not end
      with one of them.
    max_observation_len: Tokens to which an observation is cut.
  """
  ids: list[int] = []
  observed: list[bool] = []
  for number, (action, observation) in enumerate(turns, start=1):
    action_ids = tokenizer.encode(action)
    if not action_ids or action_ids[-1] not in action_ends:
      action_ids.append(action_ends[0])
    text_ids: list[int] = []
    if number < len(turns):
      text_ids = tokenizer.observation_ids(observation, max_observation_len)
    ids += [*action_ids, *text_ids]
    observed += [False] * len(action_ids) + [True] * len(text_ids)
  return ids, observed
