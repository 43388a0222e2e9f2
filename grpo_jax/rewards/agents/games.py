"""Games and environments of other packages, as sessions (`HostEnvironment`).

    config.data.environment = "grpo_jax.rewards.agents.games:make"
    config.environment.options = {
      "env": "textarena:TicTacToe-v0", "opponent": "random"
    }

"textarena:NAME" is a game of textarena, in which fixed opponents have the other
seats (`TextarenaGame`). "gymnasium:NAME" is anything with the methods `reset`
and `step` of gymnasium (`GymnasiumGame`); the package itself is needed only for
environments that are registered in it, such as "Taxi-v3".

`extras["seed"]` selects the game. The prompt has to be the game's first
observation, so the deal before it is the same in all rows of a prompt. With
config.data.source = "environment" prompts are made here (`problem`), and so are
the games that a warm start imitates (`lesson`).

    game = GymnasiumGame("my_pkg.envs:Maze", seed=7, kwargs={"size": 3})
    game.observation, game.act("north"), game.scores()

    game = TextarenaGame("TicTacToe-v0", 7, random_legal)
    game.observation  # "[GAME] You are Player 0 in Tic Tac Toe. …"
    game.act("[4]")  # And others, until it is the policy's turn again.
    game.scores()

An opponent is a function of the text that it is shown:

    move = random_legal(observation, random.Random(7))

Source: github.com/LeonGuertler/TextArena, 0.7.4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax import optional
from grpo_jax.rewards import registry
from grpo_jax.rewards.agents.interceptor import Observation


def _maker(name: str) -> Callable[..., Any]:
  """Returns the maker of an environment: a class or a function.

  An identifier behind a colon is looked up in its module. "module:Name-v0" is
  not one: gymnasium imports the module and makes what that registers.

  Raises:
    ImportError: gymnasium is missing.
    ValueError: The path does not lead to something callable.
  """
  module, _, attribute = name.rpartition(":")
  if module and attribute.isidentifier():
    try:
      factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
      raise ValueError(
        f"gymnasium: there is no {attribute!r} in {module!r}: {error}; needs"
        " 'gymnasium:package.module:Class', or the name of a registered"
        " environment."
      ) from error
    if not callable(factory):
      raise ValueError(f"gymnasium: {name!r} is {factory!r:.60}, and no class.")
    return factory
  user = f"gymnasium: {name!r} is no 'package.module:Class', and"
  gymnasium = optional.package("gymnasium", "games", user)
  return lambda **kwargs: gymnasium.make(name, **kwargs)


def _seed_all(seed: int) -> None:
  """Sets the generators of the whole process, from which games draw."""
  random.seed(seed)
  np.random.seed(seed % 2**32)


class GymnasiumGame:
  """An episode of an environment with the methods of gymnasium.

  Attributes:
    over: The episode has ended, or the environment has cut it off.
    observation: The environment's last observation, of any type.
  """

  def __init__(
    self,
    name: str,
    seed: int,
    kwargs: Mapping[str, Any] | None = None,
    success: str = "",
  ):
    """Begins the episode.

    Args:
      name: "package.module:Class", or a function that makes an environment; or
        a name that is registered.
      success: The entry of `info` that says that the episode has been solved;
        empty: the last reward of an episode that has ended is positive.

    Raises:
      ImportError: gymnasium is missing, and needed.
      ValueError: The environment does not exist.
    """
    _seed_all(seed)
    self._env = _maker(name)(**(kwargs or {}))
    self._success = success
    self._won = False
    self._turns = 0
    self.over = False
    self.observation, _ = self._env.reset(seed=seed)

  def act(self, action: Any) -> float:
    """Takes a step and returns its reward.

    Raises:
      ValueError: The environment does not return gymnasium's five values.
    """
    answer = self._env.step(action)
    if len(answer) != 5:
      raise ValueError(
        f"gymnasium: step returned {len(answer)} values; needs five:"
        " observation, reward, terminated, truncated, info."
      )
    self.observation, reward, terminated, truncated, info = answer
    self._turns += 1
    self.over = bool(terminated or truncated)
    if self._success:
      self._won = bool(info.get(self._success, False))
    else:
      self._won = bool(terminated and reward > 0)
    return float(reward)

  def scores(self) -> dict[str, float | None]:
    """Returns the scores so far: "won", also as "accuracy", and "turns"."""
    won = float(self._won)
    return {"accuracy": won, "won": won, "turns": float(self._turns)}

  def close(self) -> None:
    """Closes the environment, if it can be closed."""
    getattr(self._env, "close", lambda: None)()


# (text that a player has been shown, random numbers) -> the player's action.
Player = Callable[[str, random.Random], str]

_BRACKETS = re.compile(r"\[[^\[\]\n]+\]")
# "Available Moves: '[0]', '[1]'", "Your available actions are: '[bet]'", …
_HEADING = re.compile(
  r"\b(?:available|valid|legal|possible)\s+(?:moves|actions)\b[^\[\n]*",
  re.IGNORECASE,
)


def legal_moves(observation: str) -> list[str]:
  """Returns the moves that a game has listed last, in brackets.

  A list begins behind "Available Moves", "Valid actions" or the like and goes
  on to the end of its line. If that line has no moves, the list goes on over
  the lines below, up to an empty one.
  """
  for heading in reversed(list(_HEADING.finditer(observation))):
    rest = observation[heading.end() :]
    for part in (rest.partition("\n")[0], rest.partition("\n\n")[0]):
      if moves := _BRACKETS.findall(part):
        return list(dict.fromkeys(moves))
  return []


def random_legal(observation: str, rng: random.Random) -> str:
  """Draws one of the moves that the game lists, with equal probability.

  Raises:
    ValueError: The game lists no moves.
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
  """Returns a player that draws one of these moves each time.

  Raises:
    ValueError: There are no moves.
  """
  if not moves or not all(isinstance(move, str) for move in moves):
    raise ValueError(
      f"opponent: {list(moves)!r:.80} are not moves; needs texts, as"
      " ('[rock]', '[paper]', '[scissors]')."
    )
  choices = list(moves)
  return lambda observation, rng: rng.choice(choices)


# Numbers of players, tried in this order if no setting has one.
_NUM_PLAYERS = (2, 1, *range(3, 16))
# Moves of others between two moves of the policy, or after it has left.
_MAX_MOVES = 1000
_textarena = functools.partial(
  optional.package, "textarena", "games", "textarena:", "envs.registration"
)


def names() -> tuple[str, ...]:
  """Returns the names of all games, in alphabetical order.

  Raises:
    ImportError: TextArena is not installed.
  """
  textarena = _textarena()
  return tuple(sorted(textarena.envs.registration.ENV_REGISTRY))


def new_game(
  name: str, seed: int, num_players: int, kwargs: Mapping[str, Any]
) -> Any:
  """Returns a game at its beginning.

  Some games draw random numbers when they are made, some have NumPy draw them,
  and all use the generators of the whole process.
  """
  _seed_all(seed)
  env = _textarena().make(name, **kwargs)
  env.reset(num_players=num_players, seed=seed)
  return env


def count_players(name: str, kwargs: Mapping[str, Any]) -> int:
  """Returns a number of players for a game: 2 if possible, 1, or the fewest.

  Raises:
    ImportError: The package is missing.
    ValueError: The game does not exist, or does not begin with any number.
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
  errors = []
  for count in _NUM_PLAYERS:
    try:
      new_game(name, 0, count, kwargs)
    except Exception as error:  # Of any type: games assert what they need.
      # nltk names its missing words in a frame of asterisks.
      why = " ".join(str(error).replace("*", " ").split())
      errors.append(f"{count}: {why:.80} ({type(error).__name__})")
    else:
      return count
  raise ValueError(
    f"textarena: the game {name!r} with the settings {settings} begins with no"
    f" number of players: {'; '.join(errors[:3])} …"
  )


class TextarenaGame:
  """One game, whose other players move as soon as it is their turn.

  Attributes:
    over: The game has ended.
    observation: All that the game has shown the policy so far, as its wrappers
      write it, if it is the policy's turn.
  """

  def __init__(
    self,
    name: str,
    seed: int,
    opponent: Player,
    kwargs: Mapping[str, Any] | None = None,
    players: int | None = None,
    seat: int | str = 0,
  ):
    """Begins the game, up to the first turn of the policy.

    Args:
      seed: Seed of the game and of the opponents' random numbers.
      kwargs: Settings of the game beside those of its name.
      players: Number of players; None: see `count_players`.
      seat: The policy's seat; or "alternate": the seed modulo the players.

    Raises:
      ImportError: The package is missing.
      ValueError: The game or the seat does not exist.
      RuntimeError: The opponents go on for ever.
    """
    kwargs = dict(kwargs or {})
    count = players or count_players(name, kwargs)
    if seat == "alternate":
      seat = seed % count
    if not isinstance(seat, int) or not 0 <= seat < count:
      raise ValueError(
        f"textarena: the game {name!r} has {count} players, and the policy the"
        f" seat {seat!r}; needs a number below {count}, or 'alternate'."
      )
    self.over = False
    self.observation = ""
    self.seat = seat
    self._opponent = opponent
    self._rng = random.Random(f"opponents {seed}")
    self._invalid = 0
    self._turns = 0
    self._env = new_game(name, seed, count, kwargs)
    self._rewards: dict[int, float] = {}
    self._others()

  def shuffle(self, seed: int) -> None:
    """Draws dice and opponents' moves by another seed from here on."""
    _seed_all(seed)
    self._rng = random.Random(f"opponents {seed}")

  def act(self, action: str) -> float:
    """Moves, lets the others move, and returns the policy's reward."""
    self._turns += 1
    self._move(action)
    state = self._env.state
    # `error_count` has the invalid moves since the last valid one; after them
    # the same player moves again, until the game takes it out.
    self._invalid += int(getattr(state, "error_count", 0) > 0 or self._is_out())
    if not self.over:
      self._others()
    return self._rewards.get(self.seat, 0.0)

  def scores(self) -> dict[str, float | None]:
    """Returns the scores of the game so far.

    "won", also as "accuracy": no player has a higher reward and some player a
    lower one; alone, a reward of at least 1. "drawn": of several players, all
    have the same reward. Then "invalid_moves" and "turns" of the policy.
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

  def _is_out(self) -> bool:
    """Returns True if the game has taken the policy out for an invalid move."""
    of_seat = self._env.state.game_info.get(self.seat, {})
    return self.over and bool(of_seat.get("invalid_move"))

  def _move(self, action: str) -> None:
    self.over = bool(self._env.step(action)[0])
    if self.over:
      rewards, _ = self._env.close()
      self._rewards = {int(k): float(x) for k, x in (rewards or {}).items()}

  def _others(self) -> None:
    """Lets the others move until the policy's turn, or the end of the game."""
    for _ in range(_MAX_MOVES):
      player, message = self._env.get_observation()
      message = self._text(message)
      if player == self.seat:
        self.observation = message
        return
      self._move(self._opponent(message, self._rng))
      if self.over:
        return
    raise RuntimeError(
      f"textarena: the others have moved {_MAX_MOVES} times, and it is not the"
      " turn of the policy; give its opponents another rule, or it another seat"
      " (config.environment.options)."
    )

  def _text(self, observation: Any) -> str:
    """Returns an observation as text; a "-raw" game has a list of messages."""
    if isinstance(observation, str):
      return observation
    roles = self._env.state.role_mapping
    return "".join(
      f"\n[{roles.get(sender, f'Player {sender}')}] {message}"
      for sender, message, *_ in observation
    )


# Texts of end tokens of common tokenizers.
ENDS = (
  *("<eos>", "</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>"),
  *("<end_of_turn>", "<|end|>", "<|return|>"),
)
_MAX_LESSON = 1000  # Turns of a game that a teacher plays.
# Guards the random numbers of the process, from which games draw.
_playing = threading.Lock()


class OverError(ValueError):
  """The error of a game that has ended before the policy's first action."""


@dataclasses.dataclass
class GameSession:
  """The session of a game that has begun; see `types.HostEnvironment`.

  Attributes:
    game: The game, with the methods and attributes of `GymnasiumGame`.
    view, action, history, around, ends: See `make`.
  """

  game: Any
  view: Callable[[Any], str] | None
  action: Callable[[str], Any] | None
  history: bool
  around: Sequence[str]
  ends: Sequence[str]

  def first(self) -> str:
    """Returns the text that the policy is shown before its first action."""
    return self._view_text(self.game.observation).lstrip("\n")

  def step(self, action: str) -> tuple[Observation, float, bool]:
    """Answers an action: (observation, reward, True at the end)."""
    end = next((x for x in self.ends if action.endswith(x)), "")
    action = action.removesuffix(end)
    before = self.game.observation
    move = self.action(action) if self.action else action
    reward = self.game.act(move)
    if self.game.over:
      return "", reward, True
    observation: Any = self.game.observation
    if self.view is None and not self.history:
      observation = _new(observation, before, action)
    text = self._view_text(observation)
    if any(self.around):
      return (self.around[0], text, self.around[1]), reward, False
    return text, reward, False

  def scores(self) -> dict[str, float | None]:
    """Returns the scores of the game so far."""
    return self.game.scores()

  def close(self) -> None:
    """Closes the game, if it can be closed."""
    getattr(self.game, "close", lambda: None)()

  def _view_text(self, observation: Any) -> str:
    view = observation if self.view is None else self.view(observation)
    if not isinstance(view, str):
      raise ValueError(
        f"games: the policy would be shown {view!r:.60}, which is no"
        " text; name a function (observation) -> text in"
        " config.environment.options.view."
      )
    return view


def _new(observation: Any, before: Any, action: str) -> Any:
  """Returns what an observation adds behind the policy's own action.

  An observation that does not continue the one before it is returned whole.
  """
  if not isinstance(observation, str) or not isinstance(before, str):
    return observation
  if not before or not observation.startswith(before):
    return observation
  new = observation[len(before) :]
  # "[Player 0] [4]" comes first, which the policy has in its row already.
  speaker, colon, rest = new.partition(action) if action else (new, "", "")
  speaker = speaker.strip()
  if colon and speaker.startswith("[") and "]" not in speaker[:-1]:
    return rest
  return new


def make(
  prompt: str | None,
  extras: Mapping[str, Any],
  seed: int,
  *,
  env: str,
  kwargs: Mapping[str, Any] | None = None,
  players: int | None = None,
  seat: int | str = 0,
  opponent: str | Sequence[str] = "random",
  same_luck: bool = False,
  teacher: str | Sequence[str] = "random",
  view: str = "",
  action: str = "",
  history: bool = False,
  around: Sequence[str] = ("", ""),
  ends: Sequence[str] = ENDS,
  success: str = "",
) -> GameSession:
  """The factory of sessions.

  Args:
    prompt: The game's first observation; None if it is not known yet.
    extras: Has the "seed" of the game.
    seed: Seed of the row.
    env: "textarena:NAME", "gymnasium:NAME" or "gymnasium:package.module:Class".
    kwargs: Arguments of the game.
    players: Textarena's number of players; None: 2 if that is possible, 1, or
      the fewest.
    seat: The policy's seat in textarena; or "alternate": the seed modulo the
      players.
    opponent: The player in all other seats of textarena: "random", for one of
      the moves that the game lists; several moves, of which one is drawn each
      time; or the import path of a function (observation, random.Random) ->
      action.
    same_luck: If True, all rows of a prompt draw alike after the first
      observation of textarena: dice and moves of opponents. False: each row
      draws by its own seed.
    teacher: The player that a warm start imitates, in the form of `opponent`.
    view: Import path of a function (observation) -> text, of all that the
      environment has shown to the policy; empty: the text itself.
    action: Import path of a function (text) -> action of the environment;
      empty: the text itself.
    history: If True, and without a view, the policy reads again all that it has
      been shown, if an environment repeats it. False: only what is new.
    around: Texts before and after each observation but the first, which may
      have special tokens, such as those of a chat.
    ends: Texts of end tokens, which are removed from the end of an action.
    success: For gymnasium; see `GymnasiumGame`.

  Raises:
    ImportError: A package is missing.
    ValueError: An option is wrong, the extras have no seed, or the prompt
      belongs to another game.
  """
  del teacher
  if "seed" not in extras:
    raise ValueError(
      f"games: the extras {sorted(extras)} have no 'seed', which says"
      " which game it is; set config.data.source='environment', which makes the"
      " prompts."
    )
  number = int(extras["seed"])
  kind, _, name = env.partition(":")
  game: Any
  if kind == "textarena":
    plays = player("opponent", opponent)
    game = TextarenaGame(name, number, plays, kwargs, players, seat)
    if not same_luck:
      game.shuffle(seed)
  elif kind == "gymnasium":
    game = GymnasiumGame(name, number, kwargs, success)
  else:
    raise ValueError(
      f"games: config.environment.options.env is {env!r}; needs"
      " 'textarena:NAME', 'gymnasium:NAME' or"
      " 'gymnasium:package.module:Class'."
    )
  if game.over:
    raise OverError(
      f"games: the game {env!r} with the seed {number} is over before the"
      " policy moves; give it another seat."
    )
  session = GameSession(
    game,
    registry.load(view, "view", {}) if view else None,
    registry.load(action, "action", {}) if action else None,
    *(history, around, ends),
  )
  if prompt is not None and session.first() != prompt:
    raise ValueError(
      f"games: the game {env!r} with the seed {number} shows"
      f" {session.first()!r:.80} at first, and the prompt is {prompt!r:.80};"
      " needs prompts of config.data.source='environment' with the same"
      " options, and a game that begins alike in every process."
    )
  return session


def player(what: str, means: str | Sequence[str]) -> Player:
  """Returns a player: "random", one of several moves, or a user's function.

  Raises:
    ValueError: The function does not exist.
  """
  if not isinstance(means, str):
    return one_of(means)
  return registry.load(
    means, what, {"random": "grpo_jax.rewards.agents.games:random_legal"}
  )


def problem(seed: int, **options: Any) -> tuple[str, dict[str, Any]] | None:
  """Returns a prompt and its extras, for the source "environment".

  None if the game is over before it is the policy's turn.
  """
  with _as_in_a_session():
    try:
      session = make(None, {"seed": seed}, seed, **options)
    except OverError:
      return None
    try:
      return session.first(), {"seed": seed}
    finally:
      session.close()


def lesson(
  prompt: str, extras: Mapping[str, Any], **options: Any
) -> list[tuple[str, Observation]]:
  """Plays a game with the teacher; returns its actions and observations.

  Raises:
    ValueError: As in `make`, or the teacher does not know what to do.
  """
  teacher = player("teacher", options.get("teacher", "random"))
  rng = random.Random(f"teacher {extras['seed']}")
  turns: list[tuple[str, Observation]] = []
  with _as_in_a_session():
    session = make(prompt, extras, extras["seed"], **options)
    try:
      while not session.game.over and len(turns) < _MAX_LESSON:
        action = teacher(session.game.observation, rng)
        observation, _, _ = session.step(action)
        turns.append((action, observation))
    finally:
      session.close()
  return turns


@contextlib.contextmanager
def _as_in_a_session() -> Iterator[None]:
  """Restores the random numbers of this process at the end.

  A session has a process of its own; here others draw, and threads play.
  """
  with _playing:
    states = random.getstate(), np.random.get_state()
    try:
      yield
    finally:
      random.setstate(states[0])
      np.random.set_state(states[1])


def warm_up(**options: Any) -> None:
  """Imports what games need, and tries the numbers of players."""
  problem(0, **options)


make.problem = problem  # type: ignore[attr-defined]
make.lesson = lesson  # type: ignore[attr-defined]
make.warm_up = warm_up  # type: ignore[attr-defined]
