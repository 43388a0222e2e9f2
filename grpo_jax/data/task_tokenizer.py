"""The alphabet of a synthetic task as a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpo_jax.data import observations
from grpo_jax.data.observations import Observation


class TaskTokenizer:
  """The interface of `Tokenizer` over the alphabet of a synthetic task."""

  def __init__(self, task: Any):
    """Wraps a `tasks.task.Task`, whose records hold token ids already."""
    self._task = task
    self.pad_id: int = task.pad_id
    self.end_ids: tuple[int, ...] = tuple(task.end_ids)
    self.vocab_size: int = task.vocab_size

  def pieces(self) -> dict[int, str]:
    """The piece of each id, by which two tokenizers are compared."""
    return {i: self.exact_text([i]) for i in range(self.vocab_size)}

  def control_ids(self) -> frozenset[int]:
    """Ids that are no text: those of padding, begin and ends."""
    return frozenset((self.pad_id, self._task.bos_id, *self.end_ids))

  def encode(self, text: str) -> list[int]:
    """Token ids of a prompt that a person typed, begin token first."""
    return [self._task.bos_id, *self._task.encode(text)]

  def context_ids(self, text: str) -> list[int]:
    """Token ids of a text that begins a context: those of `encode`."""
    return self.encode(text)

  def decode(self, ids: Iterable[int]) -> str:
    """Text of `ids`; pad, begin and end tokens vanish."""
    dropped = {self.pad_id, self._task.bos_id, *self.end_ids}
    return self._task.decode([int(i) for i in ids if int(i) not in dropped])

  def exact_text(self, ids: Iterable[int]) -> str:
    """Text of an action: of just these ids, end and pad tokens too."""
    begin = self._task.bos_id  # Padding between two of them is not dropped.
    tag = self._task.decode([begin])
    text = self._task.decode([begin, *map(int, ids), begin])
    return text[len(tag) : len(text) - len(tag)]  # The tag may be empty.

  def token_bytes(self) -> list[bytes]:
    """What each id writes."""
    return [self._task.decode([id_]).encode() for id_ in range(self.vocab_size)]

  def markup_ids(self, text: str) -> list[int]:
    """Token ids of text whose special tokens are meant."""
    return self._task.encode(text)

  def split_markup(self, text: str) -> tuple[str, list[int], str]:
    """Splits as `Tokenizer.split_markup`; no two signs make one token here,
    so that all of it is ids."""
    return "", self.markup_ids(text), ""

  def observation_ids(self, said: Observation, max_len: int) -> list[int]:
    """Encodes as `Tokenizer.observation_ids`; there is no other way to write
    the begin, end and pad tokens, so that a text with one is refused."""
    return observations.ids_of(self, said, max_len)

  def _plain_ids(self, text: str, max_len: int) -> list[int]:
    piece = text[: observations.CHARS_PER_TOKEN * max_len]
    if len(piece) < len(text) and piece.rfind("<") > piece.rfind(">"):
      piece = piece[: piece.rfind("<")]  # A tag that was cut.
    ids = self._task.encode(piece)[:max_len]
    for id_ in {self.pad_id, self._task.bos_id, *self.end_ids}.intersection(
      ids
    ):
      token = self._task.decode([id_]) or "<pad>"
      raise ValueError(observations.cannot_write(token))
    return ids
