"""Opponents read the moves that games list, and draw them evenly."""

import collections
import random

import pytest

from grpo_jax.rewards.agents import games


@pytest.mark.parametrize(
  ("observation", "moves"),
  [
    ("Available Moves: '[0]', '[4]'", ["[0]", "[4]"]),
    ("Your available actions are: '[check]', '[bet]'", ["[check]", "[bet]"]),
    ("Valid moves: [Up], [Down]\nThe board [x]", ["[Up]", "[Down]"]),
    ("Legal actions:\n - [roll]\n - [hold]\n\n[GAME] x", ["[roll]", "[hold]"]),
    ("Available Moves: '[1]'\n…\nAvailable Moves: '[2]', '[2]'", ["[2]"]),
    ("Available Moves: '[1]'\nno available moves", ["[1]"]),
    ("Available Moves: '[place (1,1)]'", ["[place (1,1)]"]),
    ("valid action formats differ, as in [0 3]", []),
    ("unavailable moves: [3]", []),
    ("Available Moves: none\n\n[3]", []),
    ("", []),
  ],
)
def test_the_last_list_of_moves_is_read(observation, moves):
  assert games.legal_moves(observation) == moves


def test_a_move_is_drawn_by_the_numbers_that_are_given():
  said = "Available Moves: '[0]', '[1]', '[2]'"
  rng = random.Random(0)
  counts = collections.Counter(
    games.random_legal(said, rng) for _ in range(3000)
  )
  assert set(counts) == {"[0]", "[1]", "[2]"}
  # Three standard deviations of 3000 draws: 77.
  assert all(abs(count - 1000) < 80 for count in counts.values())
  again = [games.random_legal(said, random.Random(5)) for _ in range(9)]
  assert len(set(again)) == 1


def test_where_no_moves_are_listed_the_message_says_what_to_do():
  with pytest.raises(ValueError, match=r"lists no moves.*Nim.*\(observation,"):
    games.random_legal("Welcome to Nim", random.Random(0))


def test_one_of_several_moves():
  player = games.one_of(["[r]", "[p]"])
  rng = random.Random(0)
  assert {player("anything", rng) for _ in range(20)} == {"[r]", "[p]"}
  for wrong in ([], [1]):
    with pytest.raises(ValueError, match="not moves; needs texts"):
      games.one_of(wrong)
