"""Environments of gymnasium's interface, with the package and without."""

import random
import sys

import numpy as np
import pytest

from grpo_jax.rewards.agents import games

_HERE = "tests.rewards.workers.text_environments"


def game(name, seed=0, **options):
  return games.GymnasiumGame(f"{_HERE}:{name}", seed, **options)


def test_an_episode_of_a_class():
  made = game("Secret", seed=4, kwargs={"size": 3, "turns": 9})
  assert made.observation == "Guess 4: 0 to 2?"
  rewards = []
  for guess in range(4):
    if not made.over:
      rewards.append(made.act(str(guess)))
  assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
  assert made.observation == "right"
  turns = float(len(rewards))
  assert made.scores() == {"accuracy": 1.0, "won": 1.0, "turns": turns}
  made.close()
  assert made._env.closed == 1
  game("Silent").close()  # Which has no such method.


def test_an_episode_that_is_cut_off_is_not_won():
  made = game("Secret", kwargs={"turns": 1})
  assert made.act("none") == 0.0
  assert made.over
  assert made.scores() == {"accuracy": 0.0, "won": 0.0, "turns": 1.0}


def test_info_says_what_is_solved_where_it_is_asked():
  made = game("Secret", success="solved", kwargs={"size": 1, "turns": 1})
  assert made._env._gold in (0, 1)
  made._env._gold = 9
  made.act("1")
  assert made.scores()["won"] == 1.0
  unknown = game("Silent", success="no such entry")
  unknown.act("")
  assert unknown.scores()["won"] == 0.0


def test_a_seed_is_an_episode_also_where_the_process_draws():
  def gold(seed):
    random.seed()
    np.random.seed()
    return game("Secret", seed)._env._gold

  golds = [gold(seed) for seed in range(20)]
  assert golds == [gold(seed) for seed in range(20)]
  assert len(set(golds)) > 3


def test_a_registered_environment():
  made = games.GymnasiumGame("FrozenLake-v1", 0, {"is_slippery": False})
  assert made.observation == 0
  for action in (2, 2, 1, 1, 1):
    assert made.act(action) == 0.0
  assert made.act(2) == 1.0
  assert made.scores() == {"accuracy": 1.0, "won": 1.0, "turns": 6.0}
  made.close()


@pytest.mark.parametrize(
  ("name", "message"),
  [
    (
      "Missing",
      "there is no 'Missing' in 'tests.rewards.workers.text_environments'",
    ),
    ("random", "and no class"),
  ],
)
def test_a_wrong_path_is_told(name, message):
  with pytest.raises(ValueError, match=message):
    game(name)


def test_old_interfaces_are_told():
  with pytest.raises(ValueError, match="returned 4 values; needs five"):
    game("Old").act("1")


def test_without_the_package_registered_names_are_told(monkeypatch):
  monkeypatch.setitem(sys.modules, "gymnasium", None)
  game("Secret")
  with pytest.raises(ImportError, match=r"grpo_jax\[games\]"):
    games.GymnasiumGame("FrozenLake-v1", 0)
