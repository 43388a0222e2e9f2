"""The table of textarena's games: what it says of a game, and of failures."""

import pytest

from experiments.rewards import games_table


@pytest.mark.slow
def test_a_game_is_played_to_its_end():
  found = games_table.attempt("TicTacToe-v0")
  assert found == games_table.attempt("TicTacToe-v0")
  assert found["players"] == 2
  assert 500 < found["characters"] < 600
  assert 3 <= found["turns"] <= 5
  assert games_table.verdict([found, found]) == "plays"
  assert games_table.row("T", [found, found]).startswith("| T | 2 | 5")
  other = {**found, "digest": ""}
  assert "another game" in games_table.verdict([found, other])


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "verdict"),
  [
    ("Nim-v0", "lists no moves: needs an opponent of yours"),
    ("Mastermind-v0", "plays, for one; lists no moves for a warm start"),
    ("Debate-v0", "needs a language model of OpenRouter (a key, and network)"),
  ],
)
def test_a_game_that_does_not_play_says_why(name, verdict):
  found = games_table.attempt(name)
  assert games_table.verdict([found, found]) == verdict
  assert f"| {verdict} |" in games_table.row(name, [found, found])


def test_what_has_no_reason_is_quoted():
  found = {"error": "it | fell\nover (OSError)"}
  assert games_table.verdict([found, found]) == "it / fell over (OSError)"


def test_the_page_has_every_game():
  lines = games_table._PAGE.read_text(encoding="utf-8").splitlines()
  rows = [line.split("|")[1].strip() for line in lines if line[:2] == "| "]
  assert rows[1:] == games_table.names()
