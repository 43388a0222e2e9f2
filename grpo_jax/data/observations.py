"""Token ids of what is read in the middle of a completion."""

from __future__ import annotations

from typing import Any

# What a tool says: text, or (before, text, after), where a chat surrounds the
# text by special tokens.
Observation = str | tuple[str, str, str]


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
  before, content, after = ("", said, "") if isinstance(said, str) else said
  room = max_len
  if len(before) + len(after) <= MOST_CHARS_PER_TOKEN * max_len:
    opening, closing = text.markup_ids(before), text.markup_ids(after)
    room -= len(opening) + len(closing)
  else:
    room = -1
  if room < 0:
    raise ValueError(
      f"observation_ids: what stands before and after the text"
      f" ({before!r:.40}, {after!r:.40}) has no room in {max_len} tokens; raise"
      " config.environment.max_observation_len."
    )
  return [*opening, *text._plain_ids(content, room), *closing]
