"""Who sits in the other seats of a game: functions of what they are shown.

move = random_legal(observation, random.Random(7))
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

# (what a player has been shown, random numbers) -> what it writes.
Player = Callable[[str, random.Random], str]

_BRACKETS = re.compile(r"\[[^\[\]\n]+\]")
# "Available Moves: '[0]', '[1]'", "Your available actions are: '[bet]'", …
_HEADING = re.compile(
  r"\b(?:available|valid|legal|possible)\s+(?:moves|actions)\b[^\[\n]*",
  re.IGNORECASE,
)


def legal_moves(observation: str) -> list[str]:
  """The moves that a game has listed last: what stands in brackets there.

  A list begins behind "Available Moves", "Valid actions" or the like and goes
  on to the end of its line; if there is nothing in it, over the lines below
  up to an empty one.
  """
  for heading in reversed(list(_HEADING.finditer(observation))):
    rest = observation[heading.end() :]
    for part in (rest.partition("\n")[0], rest.partition("\n\n")[0]):
      if moves := _BRACKETS.findall(part):
        return list(dict.fromkeys(moves))
  return []


def random_legal(observation: str, rng: random.Random) -> str:
  """One of the moves that the game lists, each as likely as the others.

  Raises:
    ValueError: It lists none.
  """
  moves = legal_moves(observation)
  if not moves:
    raise ValueError(
      "opponent 'random': the game lists no moves in brackets behind 'Available"
      f" moves': …{observation[-160:]!r}; name the moves, ('[a]', '[b]'), or a"
      " function (observation, rng) -> action, 'package.module:function'."
    )
  return rng.choice(moves)


def one_of(moves: Sequence[str]) -> Player:
  """Who draws one of these each time, whatever has been shown.

  Raises:
    ValueError: There are none.
  """
  if not moves or not all(isinstance(move, str) for move in moves):
    raise ValueError(
      f"opponent: {list(moves)!r:.80} are no moves; needed are texts, as"
      " ('[rock]', '[paper]', '[scissors]')."
    )
  choices = list(moves)
  return lambda observation, rng: rng.choice(choices)
