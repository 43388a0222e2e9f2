"""The short view of textarena's board, and an opponent that looks ahead."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_jax.rewards.agents import tic_tac_toe

BOARD = (
  " {} | {} | {} \n---+---+---\n {} | {} | {} \n---+---+---\n {} | {} | {} "
)


def said(cells, mark="O"):
  """Text that textarena shows, with an older board before this one."""
  other = "X" if mark == "O" else "O"
  drawn = cells.replace("x", mark).replace("o", other)
  return (
    f"As Player 0, you will be '{mark}', while your opponent is '{other}'.\n\n"
    f"[GAME] Current Board:\n\n{BOARD.format(*'012345678')}\n\n"
    f"[GAME] Current Board:\n\n{BOARD.format(*drawn)}\n\nAvailable Moves: '[0]'"
  )


@given(
  st.lists(st.sampled_from("xo."), min_size=9, max_size=9),
  st.sampled_from("XO"),
)
def test_the_view_is_the_last_board_with_the_players_own_mark_as_x(marks, mark):
  cells = "".join(str(i) if m == "." else m for i, m in enumerate(marks))
  assert tic_tac_toe.view(said(cells, mark)) == cells


@pytest.mark.parametrize(
  "wrong",
  ["", "Welcome to Nim", BOARD.format(*"012345678"), said("x12345678")[:80]],
)
def test_another_game_has_no_view(wrong):
  with pytest.raises(ValueError, match="no board of Tic Tac Toe"):
    tic_tac_toe.view(wrong)


@pytest.mark.parametrize(
  ("cells", "moves"),
  [
    ("xx2oo5678", {"[2]"}),  # It wins, rather than to stop the other one.
    ("xo2o4x678", {"[2]", "[4]", "[6]", "[7]", "[8]"}),  # Nobody has two.
    ("o12xo5678", {"[8]"}),  # It stops the diagonal.
    ("01o34o67x", {"[0]", "[1]", "[3]", "[4]", "[6]", "[7]"}),  # It is stopped.
  ],
)
def test_the_careful_one_wins_or_stops(cells, moves):
  found = {
    tic_tac_toe.careful(said(cells), random.Random(i)) for i in range(60)
  }
  assert found == moves
