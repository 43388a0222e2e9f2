"""Token ids of observations, which a policy reads inside a completion.

`TaskTokenizer`, the tokenizer of a synthetic task's alphabet, is here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

# An answer of tools. It is a text; or, if a chat surrounds texts by special
# tokens, an odd number of texts in which markup and text alternate, with markup
# at both ends: (before, text, after), or (before, text, between, text, after).
Observation = str | tuple[str, ...]


# Characters of an observation that are read for each token that there is room
# for. If they make too few tokens, more are read, up to the second number.
CHARS_PER_TOKEN = 16
MOST_CHARS_PER_TOKEN = 256


def cannot_write(token: str) -> str:
  return (
    f"observation_ids: the text has {token!r}, which this tokenizer cannot"
    " write without meaning it; take it out of what tools say."
  )


def ids_of(text: Any, content: Observation, max_len: int) -> list[int]:
  """See `Tokenizer.observation_ids`."""
  if isinstance(content, str):
    return text._plain_ids(content, max_len)
  markup, texts = content[::2], content[1::2]
  if not texts or len(markup) != len(texts) + 1:
    raise ValueError(
      f"observation_ids: received {len(content)} parts; needs a text, or an"
      " odd number of parts from 3 on: markup and text by turns, and markup at"
      " both ends."
    )
  if sum(map(len, markup)) <= MOST_CHARS_PER_TOKEN * max_len:
    whole_ids = _whole_ids(text, markup, texts, max_len)
    if whole_ids is not None:
      return whole_ids
    marks = [text.markup_ids(x) for x in markup]
    room = max_len - sum(map(len, marks))
    if room >= 0:
      text_ids = [text._plain_ids(x, room) for x in texts]
      sizes = _shared([len(ids) for ids in text_ids], room)
      ids = list(marks[0])
      for body, size, after in zip(text_ids, sizes, marks[1:], strict=True):
        ids += [*body[:size], *after]
      return ids
  raise ValueError(
    f"observation_ids: what stands before and after the text"
    f" ({markup[0]!r:.40}, {markup[-1]!r:.40}) has no room in {max_len} tokens;"
    " raise config.environment.max_observation_len."
  )


def _whole_ids(
  text: Any, markup: Sequence[str], texts: Sequence[str], max_len: int
) -> list[int] | None:
  """Ids of a whole observation; None if there is no room for it.

  They are the ids of the observation as one text: a tokenizer may write the
  last character of a text and the line break of the markup after it as one
  token.
  """
  result: list[int] = []
  plain = ""

  def write(ids: Iterable[int] = ()) -> bool:
    """Writes the waiting text, then these ids; False if there is no room."""
    nonlocal plain
    room = max_len - len(result)
    if len(plain) > MOST_CHARS_PER_TOKEN * max(room, 0):
      return False
    result.extend(text._plain_ids(plain, room + 1))
    result.extend(ids)
    plain = ""
    return len(result) <= max_len

  for part, after in zip(markup, (*texts, ""), strict=True):
    head, ids, tail = text.split_markup(part)
    plain += head
    if ids and not write(ids):
      return None
    plain += tail + after
  return result if write() else None


def _shared(sizes: Sequence[int], room: int) -> list[int]:
  """The size that is kept of each; the longest are cut to one length.

  _shared([2, 9, 7], 12) == [2, 5, 5]
  """
  shares = list(sizes)
  for n, i in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
    shares[i] = min(sizes[i], room // (len(sizes) - n))
    room -= shares[i]
  return shares


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
    """Ids that are not text: padding, begin and end tokens."""
    return frozenset((self.pad_id, self._task.bos_id, *self.end_ids))

  def encode(self, text: str) -> list[int]:
    """Token ids of a prompt that a person typed, begin token first."""
    return [self._task.bos_id, *self._task.encode(text)]

  def context_ids(self, text: str) -> list[int]:
    """Token ids of a text that begins a context: the ids of `encode`."""
    return self.encode(text)

  def decode(self, ids: Iterable[int]) -> str:
    """Text of `ids`; pad, begin and end tokens are dropped."""
    dropped = {self.pad_id, self._task.bos_id, *self.end_ids}
    return self._task.decode([int(i) for i in ids if int(i) not in dropped])

  def exact_text(self, ids: Iterable[int]) -> str:
    """Text of an action: of exactly these ids, with end and pad tokens."""
    begin = self._task.bos_id  # Padding between two begin tokens is kept.
    tag = self._task.decode([begin])
    text = self._task.decode([begin, *map(int, ids), begin])
    return text[len(tag) : len(text) - len(tag)]  # The tag may be empty.

  def token_bytes(self) -> list[bytes]:
    """The bytes that each id writes."""
    return [self._task.decode([id_]).encode() for id_ in range(self.vocab_size)]

  def markup_ids(self, text: str) -> list[int]:
    """Token ids of a text whose special tokens count as such."""
    return self._task.encode(text)

  def split_markup(self, text: str) -> tuple[str, list[int], str]:
    """Splits as `Tokenizer.split_markup`; all of the text becomes ids.

    The reason is that no two signs make one token here.
    """
    return "", self.markup_ids(text), ""

  def observation_ids(self, content: Observation, max_len: int) -> list[int]:
    """Encodes as `Tokenizer.observation_ids`.

    A text with a begin, end or pad token is rejected, because there is no other
    way to write it.
    """
    return ids_of(self, content, max_len)

  def _plain_ids(self, text: str, max_len: int) -> list[int]:
    piece = text[: CHARS_PER_TOKEN * max_len]
    if len(piece) < len(text) and piece.rfind("<") > piece.rfind(">"):
      piece = piece[: piece.rfind("<")]  # Drops a tag that was cut.
    ids = self._task.encode(piece)[:max_len]
    for id_ in {self.pad_id, self._task.bos_id, *self.end_ids}.intersection(
      ids
    ):
      token = self._task.decode([id_]) or "<pad>"
      raise ValueError(cannot_write(token))
    return ids
