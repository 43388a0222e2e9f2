"""An endless source of problems of reasoning-gym, determined by a seed.

    GymSource(({"name": "gcd"}, {"name": "lcm", "weight": 2.0}), "train", 0)

Record i is a function of (datasets, split, seed, i). So a run resumes exactly,
and several processes need not communicate.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax import gym
from grpo_jax.data.formats import Record

# Records of a source: more than a run reads.
_SIZE = 2**31 - 1
# One in so many questions is for evaluation, whatever the seed.
_ONE_IN = 4
# Most draws of a question for the wanted split. If a thousand draws in a row
# belong to the other split, the dataset has too few questions.
_MAX_DRAWS = 1000

_KNOWN = ("name", "weight", "settings", "level", "levels")


@dataclasses.dataclass(frozen=True)
class _Dataset:
  """One entry of `GymSource.datasets`, checked.

  Attributes:
    name: The name of the dataset.
    weight: Weight by which its problems are drawn.
    settings: Settings of its config, a JSON object as text.
    levels: (first record, level or None), ascending from record 0.
  """

  name: str
  weight: float
  settings: str
  levels: tuple[tuple[int, int | None], ...]

  def level(self, index: int) -> int | None:
    """The level of difficulty of a record."""
    return [level for start, level in self.levels if start <= index][-1]


class GymSource:
  """A source of problems of several datasets, drawn by their weights.

  Attributes:
    starts: Records at which the difficulty changes; all records before one of
      them are read before the records behind it.
    domains: Names of the datasets. If several entries have one name, a number
      follows the name from the second on. The domain of a record is the index
      of its dataset.
  """

  def __init__(
    self, datasets: Sequence[Mapping[str, Any]], split: str, seed: int
  ):
    """Checks the datasets; problems are made when they are read.

    A question whose checksum is divisible by 4 is for evaluation only, and any
    other question for training only. So no question is in both splits, whatever
    the seeds. A dataset of few questions repeats them in each split.

    Args:
      datasets: Entries with a `name`. An entry may have a `weight` (1 by
        default), the `settings` of its config, and a `level` of difficulty of
        its curriculum; or `levels`, pairs (n, level) where the level holds from
        the n-th prompt of a phase on. The held-out split has the last level
        alone.
      split: "train" or "test".
      seed: Non-negative.

    Raises:
      ImportError: reasoning-gym is missing.
      ValueError: There is no such dataset, setting or level; the message lists
        those that exist.
    """
    self._datasets = [_checked(i, entry) for i, entry in enumerate(datasets)]
    if not self._datasets:
      raise ValueError(
        "config.data.datasets is empty; name at least one dataset,"
        " as ({'name': 'gcd'},)."
      )
    weights = np.array([dataset.weight for dataset in self._datasets])
    self._shares = weights / weights.sum()
    self._seed = seed
    self._split_key = zlib.crc32(split.encode())
    self._is_held_out = split != "train"
    firsts = {start for d in self._datasets for start, _ in d.levels}
    self.starts = (0,) if self._is_held_out else tuple(sorted(firsts))
    names = [dataset.name for dataset in self._datasets]
    counts = [names[:i].count(name) for i, name in enumerate(names)]
    self.domains = tuple(
      f"{name}_{count + 1}" if count else name
      for name, count in zip(names, counts, strict=True)
    )

  def only(self, numbers: Collection[int]) -> GymSource:
    """The problems of some datasets, by their indices; see `domains.only`."""
    other = copy.copy(self)
    shares = [x * (i in numbers) for i, x in enumerate(self._shares)]
    other._shares = np.array(shares) / np.sum(shares)
    return other

  def __len__(self) -> int:
    return _SIZE

  def __getitem__(self, index: int) -> Record:
    rng = np.random.default_rng((self._seed, index, self._split_key))
    domain = int(rng.choice(len(self._datasets), p=self._shares))
    dataset = self._datasets[domain]
    level = dataset.level(_SIZE if self._is_held_out else index)
    for _ in range(_MAX_DRAWS):
      seed = int(rng.integers(gym.MAX_SEED))
      problem = gym.problem(dataset.name, dataset.settings, level, seed)
      question = problem.entry["question"]
      if _for_evaluation(question) == self._is_held_out:
        break
    else:
      purpose = "evaluation" if self._is_held_out else "training"
      raise ValueError(
        f"config.data.datasets: {dataset.name!r} made {_MAX_DRAWS} problems and"
        f" none for {purpose}; it has too few different questions. Widen its"
        " 'settings', or leave it out."
      )
    answer = problem.entry["answer"]
    return {
      "prompt": question,
      "answer": "" if answer is None else str(answer),
      "completion": None if answer is None else str(answer),
      "extras": {
        "dataset": dataset.name,
        "settings": json.loads(dataset.settings),
        "level": level,
        "seed": seed,
        "domain": np.int32(domain),
      },
    }


def _for_evaluation(question: str) -> bool:
  return zlib.crc32(question.encode()) % _ONE_IN == 0


def _checked(place: int, entry: Mapping[str, Any]) -> _Dataset:
  """Checks an entry of `config.data.datasets`; raises ValueError if wrong."""
  where = f"config.data.datasets[{place}]"
  if unknown := entry.keys() - {*_KNOWN}:
    raise ValueError(
      f"{where} has {sorted(unknown)}; it may have {', '.join(_KNOWN)}."
    )
  if not isinstance(entry.get("name"), str):
    raise ValueError(
      f"{where} has the name {entry.get('name')!r}; it needs the"
      f" name of a dataset: one of {', '.join(gym.names())}."
    )
  weight = entry.get("weight", 1.0)
  if not isinstance(weight, (int, float)) or not 0 < weight < 1e9:
    raise ValueError(
      f"{where} has the weight {weight!r}; needs a positive"
      " number. To leave a dataset out, take its entry away."
    )
  if "level" in entry and "levels" in entry:
    raise ValueError(f"{where} has both 'level' and 'levels'.")
  settings = entry.get("settings", {})
  dataset = _Dataset(
    entry["name"],
    float(weight),
    json.dumps(_plain(settings), sort_keys=True),
    _levels(where, entry.get("levels", ((0, entry.get("level")),))),
  )
  for _, level in dataset.levels:
    gym.check(dataset.name, dataset.settings, level)
  return dataset


def _levels(where: str, pairs: Any) -> tuple[tuple[int, int | None], ...]:
  levels = tuple(tuple(pair) for pair in pairs)
  starts = [pair[0] for pair in levels if len(pair) == 2]
  numbers = [pair[1] for pair in levels if len(pair) == 2]
  if (
    len(starts) != len(levels)
    or not all(type(start) is int and start < _SIZE for start in starts)
    or starts[:1] != [0]
    or starts != sorted(set(starts))
    or not all(x is None or (type(x) is int and x >= 0) for x in numbers)
  ):
    raise ValueError(
      f"{where} has the levels {levels}; needs pairs (prompts"
      " read before, level) with ascending first numbers from 0 on, as ((0, 0),"
      " (4000, 1))."
    )
  return levels  # type: ignore[return-value]


def _plain(value: Any) -> Any:
  """Converts settings to values of JSON; groups of a config become dicts."""
  if hasattr(value, "items"):
    return {name: _plain(x) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(x) for x in value]
  return value
