"""Games of textarena: the policy has one seat, fixed opponents the others.

    game = TextarenaGame("TicTacToe-v0", 7, opponents.random_legal)
    game.observation  # "[GAME] You are Player 0 in Tic Tac Toe. …"
    game.act("[4]")  # And others, until it is the policy's turn again.
    game.scores()

Source: github.com/LeonGuertler/TextArena, 0.7.4.
"""

from __future__ import annotations

import difflib
import functools
import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from grpo_jax.rewards.agents import opponents

# Tried in this order where nobody says how many players there are.
_NUM_PLAYERS = (2, 1, *range(3, 16))
# Of others, between two moves of the policy, or after it has left the game.
_MAX_MOVES = 1000


def _package() -> Any:
  try:
    import textarena
  except ImportError as error:
    raise ImportError(
      "textarena: the package is not installed; run"
      " `pip install 'grpo-jax[games]'`."
    ) from error
  return textarena


def names() -> tuple[str, ...]:
  """The games that there are, in alphabetical order.

  Raises:
    ImportError: The package is missing.
  """
  _package()
  from textarena.envs import registration

  return tuple(sorted(registration.ENV_REGISTRY))


def begun(
  name: str, seed: int, num_players: int, kwargs: Mapping[str, Any]
) -> Any:
  """A game at its beginning.

  Some draw random numbers when they are made, some have NumPy draw them, and
  all use the generators of the whole process.
  """
  random.seed(seed)
  np.random.seed(seed % 2**32)
  env = _package().make(name, **kwargs)
  env.reset(num_players=num_players, seed=seed)
  return env


def count_players(name: str, kwargs: Mapping[str, Any]) -> int:
  """How many players a game can begin with: 2 if it can, 1, or the fewest.

  Raises:
    ImportError: The package is missing.
    ValueError: There is no such game, or it does not begin with any number.
  """
  return _count_players(name, json.dumps(kwargs, sort_keys=True))


@functools.cache
def _count_players(name: str, settings: str) -> int:
  kwargs = json.loads(settings)
  if name not in names():
    near = difflib.get_close_matches(name, names(), n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
      f"textarena: there is no game {name!r}{hint}; choose one of"
      f" {', '.join(names())}."
    )
  said = []
  for count in _NUM_PLAYERS:
    try:
      begun(name, 0, count, kwargs)
    except Exception as error:  # Of any kind: games assert what they need.
      # nltk says in a frame of asterisks which of its words are missing.
      why = " ".join(str(error).replace("*", " ").split())
      said.append(f"{count}: {why:.80} ({type(error).__name__})")
    else:
      return count
  raise ValueError(
    f"textarena: the game {name!r} with the settings {settings} begins with no"
    f" number of players: {'; '.join(said[:3])} …"
  )


class TextarenaGame:
  """One game, whose others move as soon as it is their turn.

  Attributes:
    over: The game has ended.
    observation: All that the game has shown the policy so far, as its wrappers
      write it, if it is the policy's turn.
  """

  def __init__(
    self,
    name: str,
    seed: int,
    opponent: opponents.Player,
    kwargs: Mapping[str, Any] | None = None,
    players: int | None = None,
    seat: int | str = 0,
  ):
    """Begins the game, up to the first turn of the policy.

    Args:
      name: "TicTacToe-v0", or another one of `names`.
      seed: Of the game and of the opponents' random numbers.
      opponent: Who has all other seats.
      kwargs: Settings of the game beside those of its name.
      players: How many there are; None: see `count_players`.
      seat: Of the policy; or "alternate": the seed modulo the players.

    Raises:
      ImportError: The package is missing.
      ValueError: There is no such game or seat.
      RuntimeError: The opponents go on for ever.
    """
    kwargs = dict(kwargs or {})
    count = players or count_players(name, kwargs)
    if seat == "alternate":
      seat = seed % count
    if not isinstance(seat, int) or not 0 <= seat < count:
      raise ValueError(
        f"textarena: the game {name!r} has {count} players, and the policy the"
        f" seat {seat!r}; needed is a number below {count}, or 'alternate'."
      )
    self.over = False
    self.observation = ""
    self.seat = seat
    self._opponent = opponent
    self._rng = random.Random(f"opponents {seed}")
    self._invalid = 0
    self._turns = 0
    self._env = begun(name, seed, count, kwargs)
    self._rewards: dict[int, float] = {}
    self._others()

  def shuffle(self, seed: int) -> None:
    """Draws what comes from here on by another seed: dice, and opponents."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    self._rng = random.Random(f"opponents {seed}")

  def act(self, action: str) -> float:
    """Moves, and lets the others move; the reward of the policy's seat."""
    self._turns += 1
    self._move(action)
    state = self._env.state
    # Counts invalid moves since the last valid one; after them the same player
    # moves again, until the game has had enough.
    self._invalid += int(getattr(state, "error_count", 0) > 0 or self._lost())
    if not self.over:
      self._others()
    return self._rewards.get(self.seat, 0.0)

  def scores(self) -> dict[str, float | None]:
    """Scores of the game so far.

    "won", also as "accuracy": nobody has a higher reward and somebody a lower
    one; alone, a reward of at least 1. "drawn": of several players, all have
    the same one. Then "invalid_moves" and "turns" of the policy.
    """
    own = self._rewards.get(self.seat, 0.0)
    others = [x for seat, x in self._rewards.items() if seat != self.seat]
    won = bool(self._rewards) and (
      own >= max(others) and own > min(others) if others else own >= 1
    )
    drawn = bool(others) and all(x == own for x in others)
    return {
      "accuracy": float(won),
      "won": float(won),
      "drawn": float(drawn),
      "invalid_moves": float(self._invalid),
      "turns": float(self._turns),
    }

  def _lost(self) -> bool:
    """Whether the game has taken the policy out for what it wrote."""
    of_seat = self._env.state.game_info.get(self.seat, {})
    return self.over and bool(of_seat.get("invalid_move"))

  def _move(self, action: str) -> None:
    self.over = bool(self._env.step(action)[0])
    if self.over:
      rewards, _ = self._env.close()
      self._rewards = {int(k): float(x) for k, x in (rewards or {}).items()}

  def _others(self) -> None:
    """Moves of others, until the game is over or it is the policy's turn."""
    for _ in range(_MAX_MOVES):
      player, said = self._env.get_observation()
      said = self._text(said)
      if player == self.seat:
        self.observation = said
        return
      self._move(self._opponent(said, self._rng))
      if self.over:
        return
    raise RuntimeError(
      f"textarena: the others have moved {_MAX_MOVES} times, and it is not the"
      " turn of the policy; give its opponents another rule, or it another seat"
      " (config.environment.options)."
    )

  def _text(self, said: Any) -> str:
    """An observation; a game without wrappers ("-raw") has a list of them."""
    if isinstance(said, str):
      return said
    roles = self._env.state.role_mapping
    return "".join(
      f"\n[{roles.get(sender, f'Player {sender}')}] {message}"
      for sender, message, *_ in said
    )
