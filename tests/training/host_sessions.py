"""Sessions on the host that answer as environments in the graph do."""

from __future__ import annotations

import collections
import os
from typing import Any

import numpy as np

from grpo_jax.rewards.workers import pool
from grpo_jax.rewards.workers.session_worker import SessionAnswer
from grpo_jax.tasks import calc_tool
from grpo_jax.tasks import vocabulary as vocab


class Calculator:
  """Plain twin of `calc_tool`, in words."""

  def __init__(self, prompt, extras, seed):
    del prompt, seed
    self._episode = calc_tool.PlainEpisode(extras, "none", 0.0)

  def step(self, action):
    turn = self._episode.act(vocab.encode(action))
    text = vocab.decode(turn.observation)
    return text, turn.reward, turn.done

  def scores(self):
    return dict(self._episode.scores())


class Verbose(Calculator):
  """Session with observations that are too long, without an end."""

  def step(self, action):
    return "x" * 30, 0.25, False


class Broken(Calculator):
  """Session that fails at the second action if its first number is even."""

  def __init__(self, prompt, extras, seed):
    super().__init__(prompt, extras, seed)
    self._fails = extras["operands"][0] % 2 == 0
    self.turns = 0

  def step(self, action):
    self.turns += 1
    if self._fails and self.turns == 2:
      raise ValueError("an even number")
    return super().step(action)


def calculator(prompt, extras, seed):
  return Calculator(prompt, extras, seed)


def verbose(prompt, extras, seed):
  return Verbose(prompt, extras, seed)


def foreign(prompt, extras, seed):
  session = Calculator(prompt, extras, seed)
  session.step = lambda action: ("é", 0.0, action.endswith("<eos>"))
  return session


def broken(prompt, extras, seed):
  return Broken(prompt, extras, seed)


class Moody(Calculator):
  """Session that answers differently each time."""

  def step(self, action):
    text, reward, done = super().step(action)
    return f"{text}{int.from_bytes(os.urandom(4))}", reward, done


def moody(prompt, extras, seed):
  return Moody(prompt, extras, seed)


class Echo:
  """Session that repeats its input; pays by an answer's length in words."""

  def __init__(self, prompt, extras, seed):
    assert isinstance(extras["answer"], str)
    self._total = 0

  def step(self, action):
    self._total += len(action)
    return "[read]", float(len(action)), False

  def scores(self):
    return {"accuracy": float(self._total % 2)}


def echo(prompt, extras, seed):
  return Echo(prompt, extras, seed)


class Local:
  """Stand-in for `HostSessions` in this process; keeps the requests."""

  def __init__(self, make):
    self._make = make
    self.asked: list[tuple[str, int]] = []
    self.actions: dict[int, list[str]] = collections.defaultdict(list)

  def close(self):
    pass

  def begin(self, prompts, extras, seeds):
    self.prompts, self.seeds = prompts, seeds
    self._sessions = [
      self._make(*x) for x in zip(prompts, extras, seeds, strict=True)
    ]
    self.failures = pool.Failures(len(prompts))
    self.scores: dict[int, Any] = {}
    self.blocked: set[int] = set()
    self._come: dict[int, SessionAnswer | None] = {}
    return self

  @property
  def pending(self):
    return frozenset(self._come)

  def ask(self, actions):
    if actions:
      self.asked.append(("ask", len(actions)))
    for row, (action, is_last) in actions.items():
      assert row not in self.scores
      assert row not in self._come
      self._come[row] = self._answer(row, action, is_last)

  def _answer(self, row, action, is_last):
    if action is None:
      self.scores[row] = self._sessions[row].scores()
      return SessionAnswer("", 0.0, False, self.scores[row])
    self.actions[row].append(action)
    try:
      observation, reward, done = self._sessions[row].step(action)
    except ValueError as error:
      self.failures.add(row, "raised", str(error))
      return None
    if done or is_last:
      self.scores[row] = self._sessions[row].scores()
    return SessionAnswer(observation, reward, done, self.scores.get(row))

  def poll(self, timeout_s):
    come, self._come = self._come, {}
    return come

  def fail(self, row, message):
    self.scores.pop(row, None)
    self.failures.add(row, "raised", message)


def score_names():
  """Names of the calculator's scores."""
  extras = {"operands": np.array([10, 10, 10]), "leak": 0}
  extras["operators"] = np.array([vocab.PLUS, vocab.PLUS])
  return frozenset(Calculator("", extras, 0).scores())
