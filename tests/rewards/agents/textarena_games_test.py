"""Games of textarena as they are installed: seats, seeds, faults, outcomes."""

import pytest

from grpo_jax.rewards.agents import games as games_lib
from tests.rewards.workers import text_environments as other

TIC_TAC_TOE = "TicTacToe-v0"


def game(name=TIC_TAC_TOE, seed=0, opponent=games_lib.random_legal, **options):
  return games_lib.TextarenaGame(name, seed, opponent, **options)


def first_free(observation, rng=None):
  return games_lib.legal_moves(observation)[0]


def played(made, policy=first_free):
  """The observations and rewards of a whole game."""
  found = []
  while not made.over:
    said = made.observation
    found.append((said, made.act(policy(said))))
  return found


def test_the_policy_moves_and_then_the_opponent():
  made = game()
  assert made.observation.startswith("\n[GAME] You are Player 0 in Tic Tac Toe")
  assert "[Player 1]" not in made.observation
  assert made.act("I think that [4] is best") == 0.0
  assert "[Player 0] I think that [4] is best" in made.observation
  assert made.observation.count("[Player 1] [") == 1
  assert made.scores() == {
    **dict.fromkeys(("accuracy", "won", "drawn", "invalid_moves"), 0.0),
    "turns": 1.0,
  }


def test_others_move_before_a_later_seat():
  assert "You are Player 1" in (said := game(seat=1).observation)
  assert "[Player 0] [" in said
  seats = [game(seed=seed, seat="alternate").seat for seed in range(4)]
  assert seats == [0, 1, 0, 1]
  third = game("ThreePlayerTicTacToe-v0", seat=2)
  assert "[Player 0] [" in third.observation
  assert "[Player 1] [" in third.observation


# The opponent takes the last free cell. Two faults in a row are one too many.
@pytest.mark.parametrize(
  ("actions", "reward", "scores"),
  [
    ("[0] [1] [2]", 1.0, {"won": 1, "turns": 3}),
    ("[0] [1] [3]", -1.0, {"turns": 3}),
    ("[2] [7] [3] [4] [0]", 0.0, {"drawn": 1, "turns": 5}),
    ("nothing [9]", -1.0, {"invalid_moves": 2, "turns": 2}),
    ("[0] [0] [1] [2]", 1.0, {"won": 1, "invalid_moves": 1, "turns": 4}),
  ],
)
def test_rewards_and_scores_are_those_of_the_seat(actions, reward, scores):
  def last_free(observation, rng):
    return games_lib.legal_moves(observation)[-1]

  made = game(opponent=last_free)
  rewards = [made.act(action) for action in actions.split()]
  assert made.over
  assert rewards == [0.0] * (len(rewards) - 1) + [reward]
  won = scores.get("won", 0)
  rest = dict.fromkeys(("drawn", "invalid_moves"), 0)
  assert made.scores() == {**rest, **scores, "accuracy": won, "won": won}


def test_an_opponent_that_breaks_the_rules_loses():
  made = game(opponent=other.loser)
  assert made.act("[4]") == 1.0
  assert made.over
  assert made.scores()["won"] == 1.0
  assert made.scores()["invalid_moves"] == 0.0


def test_alone_a_reward_of_one_wins():
  # On this pond of four cells the goal is two steps away: without holes.
  pond = {"size": 2, "num_holes": 0}
  made = game("FrozenLake-v0", kwargs=pond)
  rewards = [made.act("[right]"), made.act("[down]")]
  assert made.over
  assert rewards == [0.0, 1.0]
  assert made.scores() == {
    **dict.fromkeys(("accuracy", "won"), 1.0),
    **dict.fromkeys(("drawn", "invalid_moves"), 0.0),
    "turns": 2.0,
  }


@pytest.mark.slow
@pytest.mark.parametrize("name", [TIC_TAC_TOE, "KuhnPoker-v0", "PigDice-v0"])
def test_a_seed_is_a_game(name):
  first, second = (played(game(name, seed=5)) for _ in range(2))
  assert first == second
  games = {str(played(game(name, seed=seed))) for seed in range(6)}
  assert len(games) > 3


def test_a_shuffle_changes_what_comes_and_not_what_was():
  def dealt(luck):
    made = game("KuhnPoker-v0", seed=3)
    first = made.observation
    made.shuffle(luck)
    return first, str(played(made))

  assert dealt(1) == dealt(1)
  firsts, games = zip(*(dealt(luck) for luck in range(6)), strict=True)
  assert len(set(firsts)) == 1
  assert len(set(games)) > 2


def test_raw_games_read_as_others_do():
  raw, usual = (game(f"{TIC_TAC_TOE}{end}") for end in ("-raw", ""))
  assert raw.observation == usual.observation


def test_players_are_counted():
  count = games_lib.count_players
  assert count(TIC_TAC_TOE, {}) == 2
  assert count("2048-v0", {}) == 1
  assert count("ThreePlayerTicTacToe-v0", {}) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "options", "message"),
  [
    ("TicTacToe", {}, r"no game 'TicTacToe' \(did you mean '\w*TicTacToe-v0"),
    (TIC_TAC_TOE, {"seat": 2}, "has 2 players, and the policy the seat 2"),
    (TIC_TAC_TOE, {"seat": "last"}, "the seat 'last'; needs a number"),
    (TIC_TAC_TOE, {"kwargs": {"size": 4}}, "begins with no number of players"),
    ("Debate-v0", {}, "begins with no number of players.*OpenRouter"),
  ],
)
def test_what_cannot_begin_says_why(name, options, message):
  with pytest.raises(ValueError, match=message):
    game(name, **options)


def test_others_do_not_move_for_ever(monkeypatch):
  monkeypatch.setattr(games_lib, "_MAX_MOVES", 1)
  made = game()
  monkeypatch.setattr(made, "_move", lambda action: None)
  made.seat = 1
  with pytest.raises(RuntimeError, match="have moved 1 times"):
    made.act("[4]")
