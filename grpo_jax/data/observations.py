"""Token ids of what is read in the middle of a completion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

# What tools say: a text; or an odd number of them, markup and text by turns and
# markup at both ends, where a chat surrounds texts by special tokens: (before,
# text, after), or (before, text, between, text, after).
Observation = str | tuple[str, ...]


# Of an observation so many characters are read for each token that there is
# room for; if they make too few tokens, more of them are, up to the second.
CHARS_PER_TOKEN = 16
MOST_CHARS_PER_TOKEN = 256


def cannot_write(token: str) -> str:
  return (
    f"observation_ids: the text has {token!r}, which this tokenizer cannot"
    " write without meaning it; take it out of what tools say."
  )


def ids_of(text: Any, said: Observation, max_len: int) -> list[int]:
  """See `Tokenizer.observation_ids`."""
  if isinstance(said, str):
    return text._plain_ids(said, max_len)
  markup, texts = said[::2], said[1::2]
  if not texts or len(markup) != len(texts) + 1:
    raise ValueError(
      f"observation_ids: received {len(said)} parts; needed is a text, or an"
      " odd number of parts from 3 on: markup and text by turns, and markup at"
      " both ends."
    )
  if sum(map(len, markup)) <= MOST_CHARS_PER_TOKEN * max_len:
    whole = _whole_ids(text, markup, texts, max_len)
    if whole is not None:
      return whole
    written = [text.markup_ids(x) for x in markup]
    room = max_len - sum(map(len, written))
    if room >= 0:
      found = [text._plain_ids(x, room) for x in texts]
      sizes = _shared([len(ids) for ids in found], room)
      ids = list(written[0])
      for kept, size, after in zip(found, sizes, written[1:], strict=True):
        ids += [*kept[:size], *after]
      return ids
  raise ValueError(
    f"observation_ids: what stands before and after the text"
    f" ({markup[0]!r:.40}, {markup[-1]!r:.40}) has no room in {max_len} tokens;"
    " raise config.environment.max_observation_len."
  )


def _whole_ids(
  text: Any, markup: Sequence[str], texts: Sequence[str], max_len: int
) -> list[int] | None:
  """Ids of an observation of which nothing is cut; None if it has no room.

  They are those of the conversation as one text: a tokenizer may write the last
  sign of a text and the line break of the markup behind it as one token.
  """
  found: list[int] = []
  plain = ""

  def write(ids: Iterable[int] = ()) -> bool:
    """Writes what has waited, and these; whether there was room."""
    nonlocal plain
    room = max_len - len(found)
    if len(plain) > MOST_CHARS_PER_TOKEN * max(room, 0):
      return False
    found.extend(text._plain_ids(plain, room + 1))
    found.extend(ids)
    plain = ""
    return len(found) <= max_len

  for said, after in zip(markup, (*texts, ""), strict=True):
    head, ids, tail = text.split_markup(said)
    plain += head
    if ids and not write(ids):
      return None
    plain += tail + after
  return found if write() else None


def _shared(sizes: Sequence[int], room: int) -> list[int]:
  """How much of each is kept, so that the longest are cut to one length.

  _shared([2, 9, 7], 12) == [2, 5, 5]
  """
  kept = list(sizes)
  for n, i in enumerate(sorted(range(len(sizes)), key=lambda i: sizes[i])):
    kept[i] = min(sizes[i], room // (len(sizes) - n))
    room -= kept[i]
  return kept
