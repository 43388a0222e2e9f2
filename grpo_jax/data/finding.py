"""Finds the record at a position of a stream, without unusable records.

Records that are too long, or whose images cannot be shown, are left out. In
most sources they are found before the first batch. In sources with `starts`,
and in all that show images, they are found when they are read. Then another
record of the same part takes the place of each; it is a function of the seed
and the position too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from grpo_jax.data import orders, sources
from grpo_jax.data.encoder import Encoder, PromptWithImages, Unusable
from grpo_jax.data.sources import Record, Source

# (records) -> for each record its ids; None if it is too long; or the reason
# why it is left out.
EncodeRows = Callable[[Sequence[Record]], list[Any]]


class Records(NamedTuple):
  """Records at some positions.

  Attributes:
    rows: For each position: number in the source, record, and encoded row.
    num_unusable: Number of records that were replaced because their images
      cannot be shown.
  """

  rows: list[tuple[int, Record, Any]]
  num_unusable: int = 0


# (positions in the stream) -> the records there.
Find = Callable[[Sequence[int]], Records]

# Most records in a row that may be left out, if records are found on demand.
_MAX_ATTEMPTS = 1000
# Most records that are reported one by one.
_MAX_REPORTED = 1000


def finder(
  source: Source,
  encode_rows: EncodeRows,
  seed: int,
  shows_images: bool = False,
) -> Find:
  """Makes the function that finds records at positions of a stream.

  Args:
    shows_images: Whether records may be left out for their images. Images are
      opened when it is their turn, because all of them may take hours.
  """
  starts = sources.starts(source)
  if starts is None and not shows_images:
    return _in_advance(source, encode_rows, seed)
  order = orders.PartedOrder(len(source), starts or (0,), seed)
  return _on_demand(source, encode_rows, order)


def _on_demand(
  source: Source,
  encode_rows: EncodeRows,
  order: orders.PartedOrder,
) -> Find:
  """Finds records without reading other records; see `finder`."""
  num_dropped = 0
  reported: set[int] = set()

  def report(number: int, position: int, why: Unusable | None) -> None:
    nonlocal num_dropped
    if why is None:
      num_dropped += 1
      if num_dropped.bit_count() == 1:  # The 1st, 2nd, 4th, 8th, …
        logging.warning(
          "config.data: left out %d records that are too long, up to"
          " position %d",
          num_dropped,
          position,
        )
    elif number not in reported and len(reported) < _MAX_REPORTED:
      reported.add(number)
      logging.warning("config.data: left out record %d: %s", number, why)

  def find(positions: Sequence[int]) -> Records:
    rows: dict[int, tuple[int, Record, Any]] = {}
    pending, num_unusable = list(dict.fromkeys(positions)), 0
    why: Unusable | None = None
    for attempt in range(_MAX_ATTEMPTS):
      numbers = [order(position, attempt) for position in pending]
      records = [source[number] for number in numbers]
      again = []
      for position, number, record, ids in zip(
        pending, numbers, records, encode_rows(records), strict=True
      ):
        if ids is None or isinstance(ids, Unusable):
          why = ids
          num_unusable += ids is not None
          report(sources.number(source, number), position, why)
          again.append(position)
        else:
          rows[position] = sources.number(source, number), record, ids
      pending = again
      if not pending:
        return Records([rows[position] for position in positions], num_unusable)
    if why is not None:
      raise ValueError(
        f"config.data.images: the images of {_MAX_ATTEMPTS} records in a row"
        f" cannot be shown; of the last one: {why}."
      )
    raise ValueError(
      f"config.data.max_prompt_len: {_MAX_ATTEMPTS} records in a row are too"
      " long; raise it (and max_completion_len), or shorten the template."
    )

  return find


def _in_advance(
  source: Source,
  encode_rows: EncodeRows,
  seed: int,
) -> Find:
  """Finds records among those that are not too long; see `finder`."""
  indices = fitting(source, encode_rows)

  # Not grain's own shuffle: it searches a 16-bit block for the next index,
  # which takes 0.5 ms a record with 64 records and 3 ms with 10.
  @functools.lru_cache(maxsize=2)  # A batch may touch two epochs.
  def order(epoch: int) -> np.ndarray:  # [number of kept records]
    return np.random.default_rng((seed, epoch)).permutation(indices)

  def find(positions: Sequence[int]) -> Records:
    places = (divmod(position, len(indices)) for position in positions)
    numbers = [int(order(epoch)[i]) for epoch, i in places]
    records = [source[number] for number in numbers]
    ids = encode_rows(records)
    numbers = [sources.number(source, number) for number in numbers]
    return Records(list(zip(numbers, records, ids, strict=True)))

  return find


def short_prompts(
  encode: Encoder, max_prompt_len: int, records: Sequence[Record]
) -> list[Any]:
  """The ids of prompts; None for a prompt that is too long."""
  return [
    x if fits(x, max_prompt_len) else None for x in encode.prompts(records)
  ]


def ids_of(prompt: Any) -> np.ndarray:  # [any] int32
  """The ids in a result of `Encoder.prompts`."""
  return prompt.ids if isinstance(prompt, PromptWithImages) else prompt


def fits(prompt: Any, max_prompt_len: int) -> bool:
  """Returns True if a prompt is short enough, or unusable."""
  if isinstance(prompt, Unusable):
    return True
  return ids_of(prompt).size <= max_prompt_len


def fitting(
  source: Source, encode_rows: EncodeRows
) -> np.ndarray:  # [number of kept records] int
  """Numbers of the records that `encode_rows` accepts; all records of a task.

  Raises:
    ValueError: It accepts no record.
  """
  indices = np.arange(len(source))
  if sources.task_of(source) is None:
    encoded = (encode_rows([source[i]])[0] for i in range(len(source)))
    indices = np.array([i for i, x in enumerate(encoded) if x is not None], int)
  if num_dropped := len(source) - len(indices):
    logging.warning(
      "config.data: left out %d of %d records that are too long",
      num_dropped,
      len(source),
    )
  if not indices.size:
    raise ValueError(
      f"config.data.max_prompt_len: all {len(source)} records are too long;"
      " raise it (and max_completion_len), or shorten the template."
    )
  return indices
