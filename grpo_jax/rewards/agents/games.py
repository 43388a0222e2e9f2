"""Environments that others wrote, as sessions of `types.HostEnvironment`.

    config.data.environment = "grpo_jax.rewards.agents.games:make"
    config.environment.options = {
      "env": "textarena:TicTacToe-v0", "opponent": "random"
    }

"textarena:NAME" is a game of textarena (`games.py`), in which fixed
opponents have the other seats; "gymnasium:NAME" is anything with the methods
`reset` and `step` of gymnasium (`games.py`).

`extras["seed"]` says which game it is. The prompt has to be what that game
shows first, so what is dealt before that is the same in all rows of a prompt.
With config.data.source = "environment" prompts are made here (`problem`), and
so is what a warm start imitates (`lesson`).

Environments with the interface of gymnasium, as they are.

    game = GymnasiumGame("my_pkg.envs:Maze", seed=7, kwargs={"size": 3})
    game.observation, game.act("north"), game.scores()

The package itself is needed only for what is registered in it, as "Taxi-v3".

Games of textarena: the policy has one seat, fixed opponents the others.

    game = TextarenaGame("TicTacToe-v0", 7, opponents.random_legal)
    game.observation  # "[GAME] You are Player 0 in Tic Tac Toe. …"
    game.act("[4]")  # And others, until it is the policy's turn again.
    game.scores()

Source: github.com/LeonGuertler/TextArena, 0.7.4.

Who sits in the other seats of a game: functions of what they are shown.

move = random_legal(observation, random.Random(7))
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import json
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from grpo_jax.rewards import registry
from grpo_jax.rewards.agents.interceptor import Observation


def _maker(name: str) -> Callable[..., Any]:
  """What makes an environment: a class, a function, or gymnasium's `make`.

  An identifier behind a colon is looked up in its module; "module:Name-v0" is
  none, and gymnasium imports the module and makes what that registers.

  Raises:
    ImportError: gymnasium is missing.
    ValueError: There is nothing callable at the path.
  """
  module, _, attribute = name.rpartition(":")
  if module and attribute.isidentifier():
    try:
      made = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
      raise ValueError(
        f"gymnasium: there is no {attribute!r} in {module!r}: {error}; needed"
        " is 'gymnasium:package.module:Class', or the name of a registered"
        " environment."
      ) from error
    if not callable(made):
      raise ValueError(f"gymnasium: {name!r} is {made!r:.60}, and no class.")
    return made
  try:
    import gymnasium
  except ImportError as error:
    raise ImportError(
      "gymnasium: the package is not installed; run"
      " `pip install 'grpo-jax[games]'`, or name a class,"
      " 'gymnasium:package.module:Class'."
    ) from error
  return lambda **kwargs: gymnasium.make(name, **kwargs)


class GymnasiumGame:
  """One episode.

  Attributes:
    over: It has ended, or the environment has cut it off.
    observation: What the environment has said last, of any type.
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
      seed: Of the episode.
      kwargs: Arguments of the class.
      success: Which entry of `info` says that the episode has been solved;
        empty: the last reward of an episode that has ended is positive.

    Raises:
      ImportError: gymnasium is missing, and needed.
      ValueError: There is no such environment.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    self._env = _maker(name)(**(kwargs or {}))
    self._success = success
    self._won = False
    self._turns = 0
    self.over = False
    self.observation, _ = self._env.reset(seed=seed)

  def act(self, action: Any) -> float:
    """Takes a step; its reward.

    Raises:
      ValueError: What the environment answers is not what gymnasium's do.
    """
    answer = self._env.step(action)
    if len(answer) != 5:
      raise ValueError(
        f"gymnasium: step returned {len(answer)} values; needed are five:"
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
    """Scores of the episode so far: "won", also as "accuracy", and "turns"."""
    won = float(self._won)
    return {"accuracy": won, "won": won, "turns": float(self._turns)}

  def close(self) -> None:
    """Closes the environment, if it can be."""
    getattr(self._env, "close", lambda: None)()


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
    opponent: Player,
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


# Texts of end tokens of common tokenizers.
ENDS = (
  *("<eos>", "</s>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>"),
  *("<end_of_turn>", "<|end|>", "<|return|>"),
)
_MAX_LESSON = 1000  # Turns of a game that a teacher plays.
# The random numbers of the process, which games draw from.
_playing = threading.Lock()


class OverError(ValueError):
  """A game that has ended before the policy's first action."""


class Game(Protocol):
  """What a session needs of a game; see the two modules that have some."""

  over: bool

  @property
  def observation(self) -> Any: ...

  def act(self, action: Any) -> float: ...

  def scores(self) -> dict[str, float | None]: ...


class GameSession:
  """One game; see `types.HostEnvironment`."""

  def __init__(
    self,
    game: Game,
    view: Callable[[Any], str] | None,
    action: Callable[[str], Any] | None,
    history: bool,
    around: tuple[str, str],
    ends: Sequence[str],
  ):
    """Takes a game that has begun; for the arguments see `make`."""
    self.game = game
    self._view = view
    self._action = action
    self._history = history
    self._around = around
    self._ends = tuple(ends)

  def first(self) -> str:
    """What the policy is shown before its first action."""
    return self._shown(self.game.observation).lstrip("\n")

  def step(self, action: str) -> tuple[Observation, float, bool]:
    """Answers an action: (observation, reward, whether it is the end)."""
    action = self._without_end(action)
    before = self.game.observation
    made = self._action(action) if self._action else action
    reward = self.game.act(made)
    if self.game.over:
      return "", reward, True
    said: Any = self.game.observation
    if self._view is None and not self._history:
      said = _new(said, before, action)
    shown = self._shown(said)
    if any(self._around):
      return (self._around[0], shown, self._around[1]), reward, False
    return shown, reward, False

  def scores(self) -> dict[str, float | None]:
    """Scores of the game so far."""
    return self.game.scores()

  def close(self) -> None:
    """Closes the game, if it can be."""
    getattr(self.game, "close", lambda: None)()

  def _shown(self, observation: Any) -> str:
    said = observation if self._view is None else self._view(observation)
    if not isinstance(said, str):
      raise ValueError(
        f"games: the policy would be shown {said!r:.60}, which is no"
        " text; name a function (observation) -> text in"
        " config.environment.options.view."
      )
    return said

  def _without_end(self, action: str) -> str:
    for end in self._ends:
      if action.endswith(end):
        return action.removesuffix(end)
    return action


def _new(said: Any, before: Any, action: str) -> Any:
  """What has been added to an observation behind the policy's own action.

  An observation that is not the one before it with something added is whole.
  """
  if not isinstance(said, str) or not isinstance(before, str):
    return said
  if not before or not said.startswith(before):
    return said
  new = said[len(before) :]
  # "[Player 0] [4]" comes first: the policy has it in its row.
  speaker, found, rest = new.partition(action) if action else (new, "", "")
  speaker = speaker.strip()
  if found and speaker.startswith("[") and "]" not in speaker[:-1]:
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
    prompt: What the game shows first; None: nobody has seen it yet.
    extras: Has the "seed" of the game.
    seed: Of the row.
    env: "textarena:NAME", "gymnasium:NAME" or "gymnasium:package.module:Class".
    kwargs: Arguments of the game.
    players: Of textarena: how many; None: 2 if that is possible, 1, or the
      fewest.
    seat: Of textarena: the policy's; or "alternate": the seed modulo the
      players.
    opponent: Of textarena, who has all other seats: "random", for one of the
      moves that the game lists; several moves, of which one is drawn each time;
      or the import path of a function (observation, random.Random) -> action.
    same_luck: Of textarena: whether all rows of a prompt draw alike what comes
      after the first observation, dice and moves of opponents; False: each row
      draws by its own seed.
    teacher: Whom a warm start imitates: the same, of what the policy writes.
    view: Import path of a function (observation) -> text, of all that the
      environment has shown to the policy; empty: the text itself.
    action: Import path of a function (text) -> action of the environment;
      empty: the text itself.
    history: Without a view, whether the policy reads all that it has been shown
      once more, where an environment says it again; False: what is new.
    around: Texts before and after each observation but the first, which may
      have special tokens, as those of a chat.
    ends: Texts of end tokens, which are taken away at the end of an action.
    success: Of gymnasium: see `gymnasium_games.GymnasiumGame`.

  Raises:
    ImportError: A package is missing.
    ValueError: An option is wrong, the extras have no seed, or the prompt is
      another game's.
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
  game: Game
  if kind == "textarena":
    plays = player("opponent", opponent)
    game = TextarenaGame(name, number, plays, kwargs, players, seat)
    if not same_luck:
      game.shuffle(seed)
  elif kind == "gymnasium":
    game = GymnasiumGame(name, number, kwargs, success)
  else:
    raise ValueError(
      f"games: config.environment.options.env is {env!r}; needed is"
      " 'textarena:NAME', 'gymnasium:NAME' or"
      " 'gymnasium:package.module:Class'."
    )
  if game.over:
    raise OverError(
      f"games: the game {env!r} with the seed {number} is over before the"
      " policy moves; give it another seat."
    )
  before, after = around
  session = GameSession(
    game,
    registry.load(view, "view", {}) if view else None,
    registry.load(action, "action", {}) if action else None,
    history,
    (before, after),
    ends,
  )
  if prompt is not None and session.first() != prompt:
    raise ValueError(
      f"games: the game {env!r} with the seed {number} shows"
      f" {session.first()!r:.80} at first, and the prompt is {prompt!r:.80};"
      " needed are prompts of config.data.source='environment' with the same"
      " options, and a game that begins alike in every process."
    )
  return session


def player(what: str, means: str | Sequence[str]) -> Player:
  """Who moves: "random", some of several moves, or a function of the user's.

  Raises:
    ValueError: There is no such function.
  """
  if not isinstance(means, str):
    return one_of(means)
  return registry.load(
    means, what, {"random": "grpo_jax.rewards.agents.games:random_legal"}
  )


def problem(seed: int, **options: Any) -> tuple[str, dict[str, Any]] | None:
  """A prompt and its extras, for the source "environment".

  None if the game is over before it is the policy's turn.

  Args:
    seed: Of the game.
    **options: As those of `make`.
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
  """A game that the teacher plays: its actions, and what it reads after each.

  Args:
    prompt: Of a problem.
    extras: Of the same.
    **options: As those of `make`.

  Raises:
    ValueError: As `make`, or the teacher does not know what to do.
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
  """Leaves the random numbers of this process as they were.

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
  """Imports what games need, and tries how many players there are."""
  problem(0, **options)


make.problem = problem  # type: ignore[attr-defined]
make.lesson = lesson  # type: ignore[attr-defined]
make.warm_up = warm_up  # type: ignore[attr-defined]
