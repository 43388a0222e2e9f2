"""Domains of prompts: their names and numbers, and several sources as one.

    mixed = weighted({"sums": a, "words": b}, [3.0, 1.0])
    mixed.domains            # ("sums", "words")
    mixed[5]["extras"]["domain"]  # 0 or 1

The number of a domain is its index in a tuple of names. Programs use the
numbers, and people read the names.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from grpo_jax.data import orders, sources
from grpo_jax.data.formats import DOMAIN_NAME, Record
from grpo_jax.data.sources import Source

# Size of a mixture whose parts are endless.
_ENDLESS = 2**31 - 1


def natural(name: str) -> tuple[bool, int, str]:
  """Sort key: numbers first, by value, then names, by letter."""
  is_number = name.isdecimal()
  return not is_number, int(name) if is_number else 0, name


def names_of(source: Source) -> tuple[str, ...]:
  """The names of the domains of a source, in their natural order.

  Reads all records, unless the source has the names. If records have numbers,
  they count from 0, and a number without a name is its own name.

  Raises:
    ValueError: The source is endless, and does not have the names.
  """
  domains = getattr(source, "domains", None)
  if domains is not None:
    return domains
  if sources.starts(source) is not None:
    raise ValueError(
      "config.data.domains is empty, and the records are read one at a time:"
      " nobody has seen all domains before training. Set it to the names of the"
      " domains, in the order of their numbers."
    )
  extras = [source[i]["extras"] for i in range(len(source))]
  if "domain" not in extras[0]:
    return tuple(sorted({x[DOMAIN_NAME] for x in extras}, key=natural))
  names = {int(x["domain"]): str(x.get(DOMAIN_NAME, "")) for x in extras}
  return tuple(names.get(i) or str(i) for i in range(max(names) + 1))


def numbers(
  names: Sequence[str], entries: Sequence[str | int], setting: str
) -> tuple[int, ...]:
  """The numbers of domains that a setting names, or gives as numbers.

  Raises:
    ValueError: There is no such domain.
  """
  indices = []
  for entry in entries:
    number = names.index(entry) if entry in names else entry
    if type(number) is not int or not 0 <= number < len(names):
      text = ", ".join(map(repr, names)) or "none (config.data.domain_key)"
      raise ValueError(
        f"{setting} names the domain {entry!r}; the data have {text}."
      )
    indices.append(number)
  return tuple(indices)


def limits(
  names: Sequence[str], by_name: Mapping[str, int], most: int
) -> tuple[int, ...]:
  """The token limit of each domain's completions; empty if none is given.

  Args:
    by_name: `config.sampling.domain_limits`.
    most: Slots of a completion, the limit of a domain not in `by_name`.

  Raises:
    ValueError: There is no such domain, or a limit is not from 1 to `most`.
  """
  setting = "config.sampling.domain_limits"
  indices = numbers(names, [*by_name], setting)
  for name, limit in by_name.items():
    if type(limit) is not int or not 1 <= limit <= most:
      raise ValueError(
        f"{setting}: {name!r} got {limit!r}; needs a whole number of"
        f" tokens, from 1 to {most}, which is config.sampling.max_new_tokens or"
        " what the task needs."
      )
  if not by_name:
    return ()
  by_number = dict(zip(indices, by_name.values(), strict=True))
  return tuple(by_number.get(number, most) for number in range(len(names)))


class Numbered:
  """A source whose records have numbers of domains instead of names.

  Attributes:
    domains: Names of the domains, by number.
  """

  def __init__(self, source: Source, names: tuple[str, ...]):
    """Creates the source without reading a record.

    Args:
      source: Records with a domain in their extras: a name, or a number.
      names: Names of the domains, by number.
    """
    self._source = source
    self.domains = names
    self.starts = sources.starts(source)

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, index: int) -> Record:
    record = self._source[index]
    extras = record["extras"]
    if "domain" not in extras:
      name = extras[DOMAIN_NAME]
      if name not in self.domains:
        raise ValueError(
          f"record {index} has the domain {name!r:.60}; known are"
          f" {', '.join(self.domains)}. Name it in config.data.domains too, or"
          " take the record out."
        )
      number = self.domains.index(name)
    else:
      number = int(extras["domain"])
      if number >= len(self.domains):
        raise ValueError(
          f"record {index} has the domain {number}, and there are"
          f" {len(self.domains)}: {', '.join(self.domains)}. Name one for each"
          " number in config.data.domains."
        )
    return {**record, "extras": {**extras, "domain": np.int32(number)}}

  def number(self, index: int) -> int:
    """See `sources.number`."""
    return sources.number(self._source, index)


class Subset(sources.Chosen):
  """Some records of a source, which keep their numbers."""

  def number(self, index: int) -> int:
    """See `sources.number`."""
    return sources.number(self._source, self._indices[index])


def only(source: Source, domains: Collection[int]) -> Source:
  """The records of some domains, given by number; their shares stay.

  Raises:
    ValueError: There is no such record, or the source cannot be read as a
      whole.
  """
  if hasattr(source, "only"):
    return source.only(domains)
  if sources.starts(source) is not None:
    raise ValueError(
      "the records are read one at a time, and those of some domains cannot be"
      " chosen; set config.data.streaming=False, or keep each domain in a file"
      " of its own (config.data.source='mixture')."
    )
  indices = [
    i
    for i in range(len(source))
    if int(source[i]["extras"]["domain"]) in domains
  ]
  if not indices:
    raise ValueError(
      f"no training record has one of the domains {sorted(domains)}."
    )
  return Subset(source, indices)


class Place(NamedTuple):
  """Origin of a record of a mixture: a part, and a record of the part."""

  part: int
  record: int


class Mixture:
  """Several sources as one; the domain of a record is the index of its source.

  Attributes:
    domains: Names of the sources.
    starts: (0,) if one of the sources cannot be read as a whole, else None; see
      `sources.starts`.
    task: The task with the problems of all parts, if the parts are tasks.
  """

  def __init__(
    self,
    parts: Mapping[str, Source],
    size: int,
    place: Callable[[int], Place],
    remade: Callable[[Collection[int]], Source] | None = None,
  ):
    """Creates the mixture without reading; see `weighted` and `in_turn`.

    Args:
      place: (number of a record) -> its origin.
      remade: (numbers of domains) -> the mixture of these domains alone.
    """
    self._parts = tuple(parts.values())
    self._size = size
    self._place = place
    self._remade = remade
    self.domains = tuple(parts)
    is_read_whole = all(sources.starts(x) is None for x in self._parts)
    self.starts = None if is_read_whole else (0,)
    self.task: Any = None
    self._first = [0, *itertools.accumulate(map(len, self._parts))]

  def __len__(self) -> int:
    return self._size

  def __getitem__(self, index: int) -> Record:
    part, inside = self._place(index)
    record = self._parts[part][inside]
    extras = {**record["extras"], "domain": np.int32(part)}
    return {**record, "extras": extras}

  def number(self, index: int) -> int:
    """See `sources.number`; a record that comes twice has one number."""
    part, inside = self._place(index)
    return self._first[part] + sources.number(self._parts[part], inside)

  def only(self, domains: Collection[int]) -> Source:
    """See the function `only`."""
    assert self._remade is not None
    mixture = self._remade(domains)
    mixture.task = self.task  # type: ignore[attr-defined]
    return mixture


def weighted(parts: Mapping[str, Source], weights: Sequence[float]) -> Mixture:
  """A source for training in which each part has the share of its weight.

  An epoch has every record of each part at least once, and records of parts
  that are small for their weight more often. The order of a stream mixes them.

  Args:
    parts: Sources by the name of the domain.
    weights: Weight of each part, not negative and not all 0; a part of weight 0
      is not read.
  """
  shares = np.asarray(weights, float) / np.sum(weights)
  sizes = [len(part) for part in parts.values()]
  endless = [size >= _ENDLESS for size in sizes]
  least = [
    size / share
    for size, share, is_endless in zip(sizes, shares, endless, strict=True)
    if share and not is_endless
  ]
  total = _ENDLESS if not least or any(endless) else max(least)
  counts = [max(round(share * total), int(share > 0)) for share in shares]
  ends = list(itertools.accumulate(counts))

  def place(index: int) -> Place:
    if not 0 <= index < ends[-1]:
      raise IndexError(f"weighted: record {index} is not in [0, {ends[-1]}).")
    # Permuted, so that the first records come from all parts.
    index = orders.permuted(index, ends[-1], (0,))
    part = bisect.bisect_right(ends, index)
    return Place(part, (index - ends[part] + counts[part]) % sizes[part])

  def remade(domains: Collection[int]) -> Mixture:
    part_weights = [
      weight * (number in domains) for number, weight in enumerate(weights)
    ]
    if not any(part_weights):
      raise ValueError(
        f"config.data.mixture: the domains {sorted(domains)} have no weight."
      )
    return weighted(parts, part_weights)

  return Mixture(parts, ends[-1], place, remade)


def in_turn(parts: Mapping[str, Source]) -> Mixture:
  """A source for evaluation: a record of each part in turn, none twice.

  So the first n records have equally many of each domain, whatever the weights
  are, as long as no domain runs out.
  """
  sizes = [len(part) for part in parts.values()]
  # Between two of these rounds, the set of parts with records left is constant.
  rounds = [0, *sorted(set(sizes))]
  begins, members = [0], []
  for first, last in itertools.pairwise(rounds):
    members.append([part for part, size in enumerate(sizes) if size > first])
    begins.append(begins[-1] + (last - first) * len(members[-1]))

  def place(index: int) -> Place:
    if not 0 <= index < begins[-1]:
      raise IndexError(f"in_turn: record {index} is not in [0, {begins[-1]}).")
    segment = bisect.bisect_right(begins, index) - 1
    turn, part = divmod(index - begins[segment], len(members[segment]))
    return Place(members[segment][part], rounds[segment] + turn)

  return Mixture(parts, begins[-1], place)
