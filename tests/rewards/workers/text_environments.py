"""Environments as others write them, with the interface of gymnasium."""

import random

import numpy as np


class Secret:
  """Environment in which a digit of the process's own generators is guessed."""

  def __init__(self, size=10, turns=3):
    self._size, self._turns = size, turns
    self.closed = 0

  def reset(self, seed=None):
    self._gold = (random.randrange(self._size) + np.random.randint(2)) % 10
    return f"Guess {seed}: 0 to {self._size - 1}?", {"seed": seed}

  def step(self, action):
    self._turns -= 1
    right = action == str(self._gold)
    said = "right" if right else f"not {action}"
    info = {"solved": right or action == "1"}
    return said, float(right), right, self._turns == 0, info

  def close(self):
    self.closed += 1


class Old(Secret):
  """Environment with four values, as before gymnasium."""

  def step(self, action):
    return super().step(action)[:4]


class Numbers(Secret):
  """Environment whose observations and actions are numbers."""

  def reset(self, seed=None):
    return seed % 7, {}

  def step(self, action):
    return action + 1, 0.25, False, False, {}


class Silent:
  """An environment without `close`."""

  def reset(self, seed=None):
    return "?", {}

  def step(self, action):
    return "!", 1.0, True, False, {}


def spelt(observation):
  return f"number {observation}"


def first_digit(text):
  return int(text[0])


def loser(observation, rng):
  """Opponent who always breaks the rules."""
  return "no move at all"


def guesses(observation, rng):
  """Teacher of `Secret`."""
  return str(rng.randrange(10))
