"""Batches of prompts that somebody chooses, step by step.

    stream = ChosenPrompts(source, encoder, pool, batch_size=4, …)
    stream.take([7, 0, 3, 12])    # places in the pool

Beside what it is told, a stream knows how many batches it has given, which is
its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.data import pipeline, sources
from grpo_jax.data.encoder import Encoder
from grpo_jax.data.formats import Record
from grpo_jax.data.sources import Source


class ChosenPrompts:
  """Prompts of a pool, in the order in which they are asked for."""

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
    """Reads nothing yet.

    Args:
      source: Records.
      encode: Turns records into token ids.
      pool: Numbers of the records that may be chosen; all of them fit.
      batch_size, max_prompt_len, pad_id, rows, more: As in
        `pipeline.prompt_stream`.

    Raises:
      ValueError: The rows are not of the batch.
    """
    self._source, self._encode, self._pool = source, encode, pool
    self._size, self._more = batch_size, more
    self._shape = max_prompt_len, pad_id
    self._rows = pipeline.chosen_rows("ChosenPrompts", batch_size, rows)
    self._taken = 0

  def take(self, places: np.ndarray) -> pipeline.PromptBatch:  # [P] int
    """The next batch; prompt ids go on counting, whatever is chosen.

    Args:
      places: Of the whole batch, of which this process makes its rows.
    """
    made = []
    for row in self._rows.tolist():
      number = int(self._pool[places[row]])
      record = self._source[number]
      made.append(
        pipeline.Row(
          self._taken * self._size + row,
          sources.number(self._source, number),
          record,
          self._encode.prompt(record),
        )
      )
    self._taken += 1
    return pipeline.prompt_batch(made, *self._shape, self._more)

  def get_state(self) -> dict[str, Any]:
    """What JSON can hold; see `set_state`."""
    return {"taken": self._taken}

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Goes on after as many batches."""
    self._taken = state["taken"]
