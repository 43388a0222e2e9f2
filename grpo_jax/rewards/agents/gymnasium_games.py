"""Environments with the interface of gymnasium, as they are.

    game = GymnasiumGame("my_pkg.envs:Maze", seed=7, kwargs={"size": 3})
    game.observation, game.act("north"), game.scores()

The package itself is needed only for what is registered in it, as "Taxi-v3".
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


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
