"""Batches of prompts at places of a stream that somebody names.

    stream = PlacedPrompts(source, encoder, batch_size=4, …)
    stream.take([0, 1, 2, 3])
    stream.take([0, 4, 2, 5])    # Two of them again, and two new ones.

The prompt at a place is that of `pipeline.prompt_stream` with the same seed, so
the stream has no state of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.data import finding, pipeline
from grpo_jax.data.encoder import Encoder
from grpo_jax.data.formats import Record
from grpo_jax.data.sources import Source


class PlacedPrompts:
  """Prompts of an endless stream, in any order."""

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
      ValueError: As there.
    """
    name = "PlacedPrompts"
    pipeline.check_task(name, source, max_prompt_len=max_prompt_len)
    self._rows = pipeline.chosen_rows(name, batch_size, rows)
    self._find = finding.finder(
      name,
      source,
      functools.partial(finding.short_prompts, encode, max_prompt_len),
      seed,
      encode.sight is not None,
    )
    self._shape = max_prompt_len, pad_id, more, encode.sight

  def take(self, places: np.ndarray) -> pipeline.PromptBatch:  # [P] int32
    """The prompts at these places, whose ids are the places.

    Args:
      places: Of the whole batch, of which this process makes its rows.
    """
    positions = [int(places[row]) for row in self._rows]
    found, num_unusable = self._find(positions)
    made = [pipeline.Row(n, *x) for n, x in zip(positions, found, strict=True)]
    return pipeline.prompt_batch(made, *self._shape, num_unusable)

  def get_state(self) -> dict[str, Any]:
    """Nothing: who names the places remembers them."""
    return {}

  def set_state(self, state: Mapping[str, Any]) -> None:
    """Goes on with whatever is named."""
