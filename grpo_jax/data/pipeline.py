"""Batches of prompts and of supervised rows: endless, and exact on resume.

A stream is a function of (source, seed, position): every epoch has an order of
its own, and row r of global batch b is position `b * P + r`. So the state of an
iterator is one integer. It is the same for any number of processes, each of
which makes only its own rows of every global batch.

Records that are too long are left out; `finding.py` has the rules.

Two classes return prompts that the caller chooses. `PlacedPrompts` takes
positions of a stream. The prompts are those of `prompt_stream` with the same
seed, and the class has no state:

    stream = PlacedPrompts(source, encoder, batch_size=4, …)
    stream.take([0, 1, 2, 3])
    stream.take([0, 4, 2, 5])    # Two of them again, and two new ones.

`ChosenPrompts` takes indices in a pool of records. Its state is the number of
batches that it has returned:

    stream = ChosenPrompts(source, encoder, pool, batch_size=4, …)
    stream.take([7, 0, 3, 12])    # places in the pool
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grain
import jax
import numpy as np

from grpo_jax.data import finding, sources
from grpo_jax.data.encoder import (
  Encoder,
  ImageEncoder,
  PromptWithImages,
  Unusable,
)
from grpo_jax.data.formats import Record
from grpo_jax.data.sources import Source
from grpo_jax.types import Images, Prompts


class PromptBatch(NamedTuple):
  """Prompts for the device, and their records for the host.

  Attributes:
    prompts: NumPy arrays. `extras` has the NumPy values of the records'
      extras; text and other Python values stay in `records`.
    records: The P records, for host verifiers and for printing samples.
    numbers: Numbers of the records in the source; empty if they are not needed.
    num_unusable: Number of records that were left out for their images.
  """

  prompts: Prompts
  records: list[Record]
  numbers: tuple[int, ...] = ()
  num_unusable: int = 0


class SupervisedBatch(NamedTuple):
  """Prompts with the completions to imitate, one row per example.

  A batch may also have pairs of completions. Then B is 2 P, and row 2p was
  preferred to row 2p + 1.

  Attributes:
    prompt_tokens, prompt_mask: As in `Prompts`.
    tokens: Completions, right-padded, end token included.
    completion_mask: True on tokens that exist.
    observed: True on tokens of the completion that are not imitated.
    images: As in `Prompts`.
    num_unusable: Number of records that were left out for their images.
  """

  prompt_tokens: np.ndarray  # [P, S] int32; P is B, except with pairs.
  prompt_mask: np.ndarray  # [P, S] bool
  tokens: np.ndarray  # [B, T] int32
  completion_mask: np.ndarray  # [B, T] bool
  observed: np.ndarray  # [B, T] bool
  images: Images | None = None  # each [P, ...]
  num_unusable: int = 0


def prompt_stream(
  source: Source,
  encode: Encoder,
  *,
  batch_size: int,
  max_prompt_len: int,
  seed: int,
  pad_id: int,
  rows: Sequence[int] | None = None,
  more: Callable[[Record], Mapping[str, np.ndarray]] | None = None,
  num_threads: int = 1,
) -> grain.DatasetIterator[PromptBatch]:
  """Iterates over shuffled prompts endlessly.

  Prompts longer than `max_prompt_len` are left out, and their number is
  logged. All prompts of a synthetic task must fit; they are not checked one by
  one.

  Args:
    batch_size: P, over all processes.
    max_prompt_len: S, in tokens.
    seed: Non-negative; determines the order.
    rows: The rows of every batch that this process makes, ascending; None:
      all.
    more: (record) -> further arrays of `extras`.
    num_threads: Threads that make batches ahead; 0: a batch is made when it is
      requested.

  Returns:
    An iterator of `PromptBatch`. `get_state()` returns a dict that JSON can
    hold; after `set_state` the next batch is the one that would have followed.
    Prompt ids are positions in the stream (modulo 2³¹).

  Raises:
    ValueError: No prompt fits, a task's longest prompt does not fit, or the
      rows are outside the batch.
  """
  check_task(source, max_prompt_len=max_prompt_len)
  return _stream(
    source,
    functools.partial(finding.short_prompts, encode, max_prompt_len),
    lambda rows, num_unusable: prompt_batch(
      *(rows, max_prompt_len, pad_id, more, encode.image_encoder, num_unusable)
    ),
    batch_size=batch_size,
    seed=seed,
    rows=rows,
    num_threads=num_threads,
    shows_images=encode.image_encoder is not None,
  )


def supervised_stream(
  source: Source,
  encode: Encoder,
  *,
  batch_size: int,
  max_prompt_len: int,
  max_completion_len: int,
  seed: int,
  pad_id: int,
  end_id: int,
  truncate_completions: bool = False,
  rows: Sequence[int] | None = None,
  num_threads: int = 1,
) -> grain.DatasetIterator[SupervisedBatch]:
  """Iterates over shuffled (prompt, completion) rows endlessly.

  Args:
    batch_size: B, over all processes.
    max_prompt_len: S, in tokens; longer prompts are left out.
    max_completion_len: T, in tokens, with the end token; for longer completions
      see `truncate_completions`.
    seed: Non-negative; determines the order.
    end_id: End token, appended to completions that end with none; not to
      completions with `observed`, which may end before the episode does.
    truncate_completions: Whether to cut long completions after T tokens,
      without an end token, instead of leaving the rows out.
    rows, num_threads: As in `prompt_stream`.

  Returns:
    An iterator of `SupervisedBatch`, with a state as in `prompt_stream`.

  Raises:
    ValueError: No row fits, a task's longest prompt or completion does not fit,
      the rows are outside the batch, or a record has no completion.
  """
  limits = {"max_prompt_len": max_prompt_len}
  if not truncate_completions:
    limits["max_completion_len"] = max_completion_len
  check_task(source, **limits)

  most = max_completion_len if truncate_completions else None

  def encode_row(record: Record, prompt: Any) -> Any:
    if isinstance(prompt, Unusable):
      return prompt
    completion, observed = completion_ids(encode, record, end_id, most)
    short = finding.fits(prompt, max_prompt_len)
    if not short or completion.size > max_completion_len:
      return None
    return prompt, (completion, observed)

  def encode_rows(records: Sequence[Record]) -> list[Any]:
    return list(map(encode_row, records, encode.prompts(records)))

  def make_batch(
    rows: Sequence[EncodedRow], num_unusable: int
  ) -> SupervisedBatch:
    batch = supervised_batch(
      [finding.ids_of(row.ids[0]) for row in rows],
      [row.ids[1] for row in rows],
      max_prompt_len,
      max_completion_len,
      pad_id,
    )
    images = _images(encode.image_encoder, rows, [row.ids[0] for row in rows])
    return batch._replace(images=images, num_unusable=num_unusable)

  return _stream(
    source,
    encode_rows,
    make_batch,
    batch_size=batch_size,
    seed=seed,
    rows=rows,
    num_threads=num_threads,
    shows_images=encode.image_encoder is not None,
  )


def completion_ids(
  encode: Encoder, record: Record, end_id: int, most: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
  """Encodes the completion of a record as a policy would write it.

  Args:
    most: Tokens after which the completion is cut; None: it is not cut.

  Returns:
    The ids, and a mask of those that an environment wrote.

  Raises:
    ValueError: The record has no completion.
  """
  completion, observed = encode.masked_completion(record)
  if observed is None:
    # A policy may have ended it with another of several end tokens.
    ends = {end_id, *encode.tokenizer.end_ids}
    if not completion.size or int(completion[-1]) not in ends:
      completion = np.append(completion, np.int32(end_id))
    observed = np.zeros(completion.size, bool)
  return completion[:most], observed[:most]


def supervised_batch(
  prompts: Sequence[np.ndarray],
  completions: Sequence[tuple[np.ndarray, np.ndarray]],
  max_prompt_len: int,
  max_completion_len: int,
  pad_id: int,
) -> SupervisedBatch:
  """Pads prompts, and results of `completion_ids`, to one batch."""
  ids, observed = zip(*completions, strict=True)
  flags, _ = _pad(observed, max_completion_len, False, left=False)
  return SupervisedBatch(
    *_pad(prompts, max_prompt_len, pad_id, left=True),
    *_pad(ids, max_completion_len, pad_id, left=False),
    flags.astype(bool),
  )


def pair_stream(
  source: Source,
  encode: Encoder,
  *,
  batch_size: int,
  max_prompt_len: int,
  max_completion_len: int,
  seed: int,
  pad_id: int,
  end_id: int,
  rows: Sequence[int] | None = None,
  num_threads: int = 1,
) -> grain.DatasetIterator[SupervisedBatch]:
  """Iterates over shuffled prompts with two given completions endlessly.

  Args:
    encode: Turns records into token ids; images of prompts are not read.
    batch_size: P, over all processes.
    max_prompt_len: S, in tokens.
    max_completion_len: T, in tokens, with the end token. If a prompt or one of
      the two completions is longer, the pair is left out, because the
      preference does not hold for texts that are cut.
    seed, pad_id, end_id, num_threads: As in `supervised_stream`.
    rows: The prompts of every batch that this process makes, ascending.

  Raises:
    ValueError: No pair fits, the rows are outside the batch, or a record has no
      pair.
  """

  def encode_row(record: Record) -> tuple[np.ndarray, list[Any]] | None:
    prompt = encode.prompt(record)
    pair = [completion_ids(encode, x, end_id) for x in encode.pair(record)]
    fits = max(ids.size for ids, _ in pair) <= max_completion_len
    return (prompt, pair) if fits and prompt.size <= max_prompt_len else None

  def make_batch(
    rows: Sequence[EncodedRow], num_unusable: int
  ) -> SupervisedBatch:
    batch = supervised_batch(
      [row.ids[0] for row in rows],
      [completion for row in rows for completion in row.ids[1]],
      *(max_prompt_len, max_completion_len, pad_id),
    )
    return batch._replace(num_unusable=num_unusable)

  return _stream(
    source,
    lambda records: list(map(encode_row, records)),
    make_batch,
    batch_size=batch_size,
    seed=seed,
    rows=rows,
    num_threads=num_threads,
  )


def evaluation_batches(
  source: Source,
  encode: Encoder,
  num_prompts: int | None = None,
  *,
  batch_size: int,
  max_prompt_len: int,
  pad_id: int,
  rows: Sequence[int] | None = None,
  start: int = 0,
  stop: int | None = None,
) -> list[tuple[PromptBatch, int]]:
  """Makes a fixed evaluation set: the first records, in order.

  Args:
    num_prompts: Number of records to take; None takes all.
    batch_size: P, over all processes.
    max_prompt_len: S, in tokens.
    rows: As in `prompt_stream`.
    start, stop: Range of records; only batches that begin in it are made. If
      `stop` is None, the range has no end.

  Returns:
    Pairs of a `PromptBatch` and the number of its rows that count. The other
    rows repeat the last record to fill the last batch, and come after the rows
    that count. Prompt ids are positions 0, 1, 2, …

  Raises:
    ValueError: `num_prompts` is not in [1, len(source)]; or a prompt is too
      long or shows a broken image: leaving it out would change the meaning of
      the score.
  """
  num_prompts = len(source) if num_prompts is None else num_prompts
  if not 1 <= num_prompts <= len(source):
    raise ValueError(
      f"config.eval.num_prompts={num_prompts}; it must lie in"
      f" [1, {len(source)}], the size of the source."
    )
  own_rows = checked_rows(batch_size, rows)
  batches = []
  for first in range(start, stop or num_prompts, batch_size):
    batch_rows = []
    positions = (first + own_rows).tolist()
    numbers = [min(position, num_prompts - 1) for position in positions]
    records = [source[number] for number in numbers]
    for position, number, record, prompt in zip(
      positions, numbers, records, encode.prompts(records), strict=True
    ):
      _check_prompt(position, prompt, max_prompt_len)
      number = sources.number(source, number)
      batch_rows.append(EncodedRow(position, number, record, prompt))
    num_real = int((first + own_rows < num_prompts).sum())
    batch = prompt_batch(
      batch_rows, max_prompt_len, pad_id, image_encoder=encode.image_encoder
    )
    batches.append((batch, num_real))
  return batches


def _check_prompt(position: int, prompt: Any, max_prompt_len: int) -> None:
  """Raises ValueError unless a prompt of an evaluation can be shown."""
  if isinstance(prompt, Unusable):
    raise ValueError(
      f"config.data: held-out prompt {position}: {prompt}. Correct it, or take"
      " it out of the file. (Left out here, the score would be that of another"
      " set.)"
    )
  size = finding.ids_of(prompt).size
  if size > max_prompt_len:
    raise ValueError(
      f"config.data.max_prompt_len={max_prompt_len}: held-out prompt {position}"
      f" has {size} tokens; raise it. (Left out, the score would be that of an"
      " easier set.)"
    )


class EncodedRow(NamedTuple):
  """A record at its position in the stream, with its token ids."""

  position: int
  number: int  # Number of the record in its source.
  record: Record
  # Ids of the prompt, or `PromptWithImages`; or these and `completion_ids`, one
  # or a pair of them.
  ids: Any


def _stream(
  source: Source,
  encode_rows: finding.EncodeRows,
  make_batch: Callable[[Sequence[EncodedRow], int], Any],
  *,
  batch_size: int,
  seed: int,
  rows: Sequence[int] | None,
  num_threads: int,
  shows_images: bool = False,
) -> grain.DatasetIterator:
  """Shuffles, repeats and batches the records that `encode_rows` accepts.

  Args:
    encode_rows: See `finding.EncodeRows`.
    make_batch: (rows, number of records left out) -> a batch.
    batch_size: Rows over all processes.
    rows: As in `prompt_stream`.
    shows_images: See `finding.finder`.
  """
  own_rows = checked_rows(batch_size, rows)
  find = finding.finder(source, encode_rows, seed, shows_images)

  def make(batch: int) -> Any:
    positions = [batch * batch_size + int(row) for row in own_rows]
    entries, num_unusable = find(positions)
    return make_batch(
      [EncodedRow(n, *x) for n, x in zip(positions, entries, strict=True)],
      num_unusable,
    )

  batches = grain.MapDataset.range(sys.maxsize // batch_size).map(make)
  # The state counts batches that were taken, not batches that wait.
  options = grain.ReadOptions(
    num_threads=num_threads, prefetch_buffer_size=2 * num_threads
  )
  return iter(batches.to_iter_dataset(options))


def prompt_batch(
  rows: Sequence[EncodedRow],
  max_prompt_len: int,
  pad_id: int,
  more: Callable[[Record], Mapping[str, np.ndarray]] | None = None,
  image_encoder: ImageEncoder | None = None,
  num_unusable: int = 0,
) -> PromptBatch:
  records = [row.record for row in rows]
  further = [more(record) for record in records] if more else []
  tokens, mask = _pad(
    [finding.ids_of(row.ids) for row in rows], max_prompt_len, pad_id, left=True
  )
  positions = np.array([row.position for row in rows], np.int64)
  in_graph = [
    name
    for name, value in records[0]["extras"].items()
    if isinstance(value, np.ndarray | np.generic)
  ]
  # NumPy arrays; the training loop puts them on devices.
  arrays: dict[str, Any] = {
    "tokens": tokens,
    "mask": mask,
    "ids": (positions % 2**31).astype(np.int32),
    "extras": {
      name: np.stack([record["extras"][name] for record in records])
      for name in in_graph
    }
    | {
      name: np.stack([arrays[name] for arrays in further])
      for name in (further[0] if further else ())
    },
    "images": _images(image_encoder, rows, [row.ids for row in rows]),
  }
  numbers = tuple(row.number for row in rows)
  return PromptBatch(Prompts(**arrays), records, numbers, num_unusable)


def _images(
  image_encoder: ImageEncoder | None,
  rows: Sequence[EncodedRow],
  prompts: Sequence[Any],
) -> Images | None:
  """Images of prompts; None if all prompts are tokens only."""
  if image_encoder is None:
    return stacked_images([row.record for row in rows])
  return image_encoder.arrays(
    [x.cuts if isinstance(x, PromptWithImages) else () for x in prompts]
  )


def stacked_images(records: Sequence[Record]) -> Images | None:
  """Stacks the images of a task's records; None if they have no images."""
  images = [record.get("images") for record in records]
  if images[0] is None:
    return None
  return jax.tree.map(lambda *arrays: np.stack(arrays), *images)


def _pad(
  rows: Sequence[np.ndarray], length: int, pad_id: int, *, left: bool
) -> tuple[np.ndarray, np.ndarray]:  # [B, length] int32, [B, length] bool
  """Stacks ids of different lengths; the mask is True on ids."""
  tokens = np.full((len(rows), length), pad_id, np.int32)
  mask = np.zeros((len(rows), length), bool)
  for i, ids in enumerate(rows):
    slots = slice(length - ids.size, length) if left else slice(ids.size)
    tokens[i, slots] = ids
    mask[i, slots] = True
  return tokens, mask


def checked_rows(
  batch_size: int, rows: Sequence[int] | None
) -> np.ndarray:  # [rows that this process makes]
  """Checks the rows of a batch that one process makes; None is all rows."""
  result = np.arange(batch_size) if rows is None else np.asarray(rows, int)
  if not result.size or not (
    result[0] >= 0 and result[-1] < batch_size and (np.diff(result) > 0).all()
  ):
    raise ValueError(
      f"rows={result.tolist()} of batch_size={batch_size};"
      " needs at least one row, in ascending order, below the size."
    )
  return result


def check_task(source: Source, **limits: int) -> None:
  """Raises ValueError unless a task's bounds of these names are in limits."""
  task = sources.task_of(source)
  if task is None:
    return
  for field, limit in limits.items():
    if (longest := getattr(task, field)) > limit:
      raise ValueError(
        f"config.data.name={task.name!r}: the task needs {field} {longest}, and"
        f" it is {limit}; raise it."
      )


class PlacedPrompts:
  """Returns prompts of an endless stream, in any order."""

  def __init__(
    self,
    source: Source,
    encode: Encoder,
    *,
    batch_size: int,
    max_prompt_len: int,
    seed: int,
    pad_id: int,
    rows: Sequence[int] | None = None,
    more: Callable[[Record], Mapping[str, np.ndarray]] | None = None,
  ):
    """Finds the records that fit, as `pipeline.prompt_stream` does.

    Args:
      source, encode, batch_size, max_prompt_len, seed, pad_id, rows, more: As
        in `pipeline.prompt_stream`.

    Raises:
      ValueError: As in `pipeline.prompt_stream`.
    """
    check_task(source, max_prompt_len=max_prompt_len)
    self._rows = checked_rows(batch_size, rows)
    self._find = finding.finder(
      source,
      functools.partial(finding.short_prompts, encode, max_prompt_len),
      seed,
      encode.image_encoder is not None,
    )
    self._shape = max_prompt_len, pad_id, more, encode.image_encoder
    self._read: dict[int, EncodedRow] = {}  # Of the last batch.

  def take(self, places: np.ndarray) -> PromptBatch:  # [P] int32
    """The prompts at these positions; their ids are the positions.

    A text of the last batch is not read again: a source may fail (OpenEnv's
    servers), and tokens that are drawn belong to the prompt before them. Images
    are: each batch counts the unusable ones.

    Args:
      places: Positions for the whole batch; this process makes its own rows.
    """
    positions = [int(places[row]) for row in self._rows]
    known = self._read if self._shape[-1] is None else {}
    new = [n for n in positions if n not in known]
    entries, num_unusable = self._find(new)
    rows = {n: EncodedRow(n, *x) for n, x in zip(new, entries, strict=True)}
    self._read = {n: known.get(n) or rows[n] for n in positions}
    batch_rows = [self._read[n] for n in positions]
    return prompt_batch(batch_rows, *self._shape, num_unusable)

  def get_state(self) -> dict[str, Any]:
    """An empty state: the caller remembers the positions."""
    return {}

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Does nothing, because there is no state."""


class ChosenPrompts:
  """Returns prompts of a pool that the caller chooses."""

  def __init__(
    self,
    source: Source,
    encode: Encoder,
    pool: np.ndarray,  # [N] int
    *,
    batch_size: int,
    max_prompt_len: int,
    pad_id: int,
    rows: Sequence[int] | None = None,
    more: Callable[[Record], Mapping[str, np.ndarray]] | None = None,
  ):
    """Creates the stream without reading a record.

    Args:
      source: Records.
      encode: Turns records into token ids.
      pool: Numbers of the records that may be chosen; all of them fit.
      batch_size, max_prompt_len, pad_id, rows, more: As in
        `pipeline.prompt_stream`.

    Raises:
      ValueError: The rows are outside the batch.
    """
    self._source, self._encode, self._pool = source, encode, pool
    self._size, self._more = batch_size, more
    self._shape = max_prompt_len, pad_id
    self._rows = checked_rows(batch_size, rows)
    self._num_batches = 0

  def take(self, places: np.ndarray) -> PromptBatch:  # [P] int
    """Makes the next batch; prompt ids count on, whatever is chosen.

    Args:
      places: Indices in the pool for the whole batch; this process makes its
        own rows.
    """
    batch_rows = []
    for row in self._rows.tolist():
      number = int(self._pool[places[row]])
      record = self._source[number]
      batch_rows.append(
        EncodedRow(
          self._num_batches * self._size + row,
          sources.number(self._source, number),
          record,
          self._encode.prompt(record),
        )
      )
    self._num_batches += 1
    return prompt_batch(batch_rows, *self._shape, self._more)

  def get_state(self) -> dict[str, Any]:
    """The state, a dict that JSON can hold, for `set_state`."""
    return {"taken": self._num_batches}

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Continues after as many batches as the state counts."""
    self._num_batches = state["taken"]
