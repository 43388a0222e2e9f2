"""Environments that others wrote, as sessions of `types.HostEnvironment`.

    config.data.environment = "grpo_jax.rewards.agents.text_games:make"
    config.environment.options = {
      "env": "textarena:TicTacToe-v0", "opponent": "random"
    }

"textarena:NAME" is a game of textarena (`textarena_games.py`), in which fixed
opponents have the other seats; "gymnasium:NAME" is anything with the methods
`reset` and `step` of gymnasium (`gymnasium_games.py`).

`extras["seed"]` says which game it is. The prompt has to be what that game
shows first, so what is dealt before that is the same in all rows of a prompt.
With config.data.source = "environment" prompts are made here (`problem`), and
so is what a warm start imitates (`lesson`).
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from grpo_jax.rewards import functions
from grpo_jax.rewards.agents import gymnasium_games, opponents, textarena_games
from grpo_jax.rewards.agents.interceptor import Observation

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


class Session:
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
        f"text_games: the policy would be shown {said!r:.60}, which is no"
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
) -> Session:
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
      f"text_games: the extras {sorted(extras)} have no 'seed', which says"
      " which game it is; set config.data.source='environment', which makes the"
      " prompts."
    )
  number = int(extras["seed"])
  kind, _, name = env.partition(":")
  game: Game
  if kind == "textarena":
    plays = player("opponent", opponent)
    game = textarena_games.TextarenaGame(
      name, number, plays, kwargs, players, seat
    )
    if not same_luck:
      game.shuffle(seed)
  elif kind == "gymnasium":
    game = gymnasium_games.GymnasiumGame(name, number, kwargs, success)
  else:
    raise ValueError(
      f"text_games: config.environment.options.env is {env!r}; needed is"
      " 'textarena:NAME', 'gymnasium:NAME' or"
      " 'gymnasium:package.module:Class'."
    )
  if game.over:
    raise OverError(
      f"text_games: the game {env!r} with the seed {number} is over before the"
      " policy moves; give it another seat."
    )
  before, after = around
  session = Session(
    game,
    functions.load(view, "view", {}) if view else None,
    functions.load(action, "action", {}) if action else None,
    history,
    (before, after),
    ends,
  )
  if prompt is not None and session.first() != prompt:
    raise ValueError(
      f"text_games: the game {env!r} with the seed {number} shows"
      f" {session.first()!r:.80} at first, and the prompt is {prompt!r:.80};"
      " needed are prompts of config.data.source='environment' with the same"
      " options, and a game that begins alike in every process."
    )
  return session


def player(what: str, means: str | Sequence[str]) -> opponents.Player:
  """Who moves: "random", some of several moves, or a function of the user's.

  Raises:
    ValueError: There is no such function.
  """
  if not isinstance(means, str):
    return opponents.one_of(means)
  return functions.load(
    means, what, {"random": "grpo_jax.rewards.agents.opponents:random_legal"}
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
