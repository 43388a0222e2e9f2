"""An example of a view and an opponent for a game of textarena.

textarena draws a board with 65 characters, and repeats the whole dialogue
beside it; `view` has only the nine cells:

     X | 1 | 2
    ---+---+---
     3 | O | 5      X123O5678  →  x123o5678
    ---+---+---
     6 | 7 | 8

with x for the player's own mark, and o for the other player's.
"""

from __future__ import annotations

import random
import re

_LINES = (
  *((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8)),
  *((0, 4, 8), (2, 4, 6)),
)
_ROW = r" ([XO0-8]) \| ([XO0-8]) \| ([XO0-8]) *"
_BOARD = re.compile(r"\n-+\+-+\+-+\n".join([_ROW] * 3))
_MARK = re.compile("you will be '([XO])'")


def view(observation: str) -> str:
  """Returns the last board as nine characters; x is the player's own mark.

  Raises:
    ValueError: There is no board, or the player's mark is not known.
  """
  boards, mark = _BOARD.findall(observation), _MARK.search(observation)
  if not boards or mark is None:
    raise ValueError(
      f"tic_tac_toe: {observation[-120:]!r} has no board of Tic Tac Toe with"
      " the player's mark before it; this view is for textarena:TicTacToe-v0."
    )
  other = {"X": "O", "O": "X"}[mark[1]]
  cells = "".join(boards[-1])
  return cells.replace(other, "o").replace(mark[1], "x")


def careful(observation: str, rng: random.Random) -> str:
  """Wins if it can, else blocks the other player, else moves at random."""
  cells = view(observation)
  free = [i for i, cell in enumerate(cells) if cell.isdigit()]
  for mark in "xo":
    for i in free:
      if _has_line(cells[:i] + mark + cells[i + 1 :], mark):
        return f"[{i}]"
  return f"[{rng.choice(free)}]"


def _has_line(cells: str, mark: str) -> bool:
  return any(all(cells[i] == mark for i in line) for line in _LINES)
