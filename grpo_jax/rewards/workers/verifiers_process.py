"""An environment of the package `verifiers`, in a process that can be killed.

The process imports the environment, sends its tasks, plays episodes and scores
them (`verifiers_worker.py`). If it ends or is killed, the episodes without a
result have failed, and another process plays the next ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax.rewards.workers import frames, processes

SPLITS = ("train", "held_out")
_START_S = 300.0  # To import the environment and to make its data.
_FOLDER = pathlib.Path(__file__).resolve().parents[2]
# An interpreter without this package gets an empty one with its folder as path.
_ELSEWHERE = (
  "import sys, types; package = types.ModuleType('grpo_jax');"
  " package.__path__ = [{folder!r}]; sys.modules['grpo_jax'] = package;"
)


class Ended(Exception):
  """The error of a process that has ended, or sends an unexpected message."""


class VerifiersEpisode(NamedTuple):
  """The result of an episode.

  Attributes:
    row: The row of the episode.
    error: Reason why it has failed; "" if it has not.
    reward: Reward of the whole episode.
    metrics: Metrics by name.
    done: True if it came to an end, False if it was cut off.
  """

  row: int
  error: str
  reward: float
  metrics: dict[str, float]
  done: bool


class VerifiersEnvironment:
  """The process of an environment, with its examples.

  Attributes:
    names: Names of its metrics.
    examples: Prompt, answer and tools of each task, by split; see
      `verifiers_episodes.LoadedEnvironment.example`.
  """

  def __init__(
    self,
    path: str,
    options: Mapping[str, Any],
    variables: Sequence[str] = (),
    python: str = "",
  ):
    """Starts the process and waits for the examples.

    Args:
      options: As in `verifiers_episodes.LoadedEnvironment`.
      variables: Names of environment variables that the process gets besides
        those of `processes.VARIABLES`.
      python: Another interpreter, which has the package; empty: this one.

    Raises:
      ValueError: The environment does not exist, or has no tasks.
    """
    self.path = path
    self._argument = {"path": path, "options": dict(options)}
    self._variables, self._python = tuple(variables), python
    self._alive: set[_Process] = set()
    self._finalizer = weakref.finalize(self, _end_all, self._alive)
    self._process: _Process | None = None
    self.names: tuple[str, ...] = ()
    self.examples: dict[str, list[dict[str, Any]]] = {}
    try:
      self._start()
    except Ended as error:
      self.close()
      raise ValueError(
        f"config.data.environment='verifiers:{path}': {error}"
      ) from None
    except BaseException:
      self.close()
      raise

  def close(self) -> None:
    """Kills the process. May be called again."""
    self._finalizer()

  def kill(self) -> None:
    """Ends the process; the next `play` starts another one."""
    if self._process is not None:
      self._alive.discard(self._process)
      self._process.end()
      self._process = None

  def play(
    self, number: int, rows: Sequence[Mapping[str, Any]], url: str, token: str
  ) -> None:
    """Begins episodes.

    Args:
      rows: For each episode its `row`, `split` and `example`, and the `model`
        that it asks for.
      url, token: Address of the policy, and its token.

    Raises:
      Ended: The process does not start any more.
    """
    if self._process is None:
      self._start()
    assert self._process is not None
    request = {"number": number, "rows": list(rows), "url": url, "token": token}
    self._process.channel.write(frames.encode(request))

  def hear(self, number: int) -> list[VerifiersEpisode]:
    """Returns the results of a call's episodes that have come since.

    Raises:
      Ended: The process has ended, and there are no more results.
    """
    if self._process is None:
      raise Ended("its process has ended")
    channel, episodes = self._process.channel, []
    channel.flush()
    try:
      channel.read()
      for message in channel.messages():
        if isinstance(message, Mapping) and message.get("play") == number:
          episodes.append(_played(message))
    except EOFError:
      if not episodes:
        self.kill()
        raise Ended("its process has ended") from None
    except (KeyError, TypeError, ValueError) as error:
      self.kill()
      raise Ended(f"its process says what it was not asked: {error}") from None
    return episodes

  def _start(self) -> None:
    """Starts a process, which says first what there is."""
    if not self._finalizer.alive:
      raise RuntimeError(f"the environment {self.path!r} is closed.")
    process = _Process(self._argument, self._variables, self._python)
    self._alive.add(process)
    self._process = process
    hello = self._receive()
    if "error" in hello:
      self.kill()
      raise Ended(str(hello["error"]))
    self.names = tuple(map(str, hello["names"]))
    self.examples = {
      split: self._examples(split, int(hello["sizes"][split]))
      for split in SPLITS
    }

  def _examples(self, split: str, size: int) -> list[dict[str, Any]]:
    if not size:
      raise Ended(f"it has no tasks ({split})")
    examples = [self._receive() for _ in range(size)]
    for example in examples:
      if not isinstance(example, dict):
        raise Ended(f"it says {example!r:.80}, and was asked for tasks")
    return examples

  def _receive(self) -> Any:
    assert self._process is not None
    try:
      return self._process.channel.receive(time.monotonic() + _START_S)
    except (EOFError, TimeoutError, ValueError) as error:
      self.kill()
      messages = {
        EOFError: "its process has ended (its messages are above)",
        TimeoutError: f"it was not ready in {_START_S:.0f} s",
      }
      raise Ended(messages.get(type(error), str(error))) from None


def _played(message: Mapping[str, Any]) -> VerifiersEpisode:
  error = str(message.get("error") or "")
  if error:
    return VerifiersEpisode(int(message["row"]), error, math.nan, {}, False)
  row = int(message["row"])
  try:
    reward = frames.reward(message["reward"])
  except ValueError as error:
    return VerifiersEpisode(row, f"its reward is {error}", math.nan, {}, False)
  metrics = {
    str(name): math.nan if value is None else float(value)
    for name, value in message["metrics"].items()
  }
  return VerifiersEpisode(row, "", reward, metrics, bool(message["done"]))


class _Process:
  """A process under a keeper, and the channel to it."""

  def __init__(
    self, argument: Mapping[str, Any], variables: Sequence[str], python: str
  ):
    own_end, other_end = socket.socketpair()
    start = _ELSEWHERE.format(folder=str(_FOLDER)) if python else ""
    environment = processes.environment(variables)
    if not python:  # What the environment starts finds the same packages.
      environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with other_end:
      try:
        self._process = subprocess.Popen(
          [
            python or sys.executable,
            "-c",
            f"{start}from grpo_jax.rewards.workers import verifiers_worker;"
            f" verifiers_worker.main({other_end.fileno()}, {os.getpid()},"
            f" {json.dumps(argument)!r})",
          ],
          stdin=subprocess.DEVNULL,
          pass_fds=[other_end.fileno()],
          start_new_session=True,  # Ctrl-C does not reach it.
          env=environment,
        )
      except OSError as error:
        own_end.close()
        raise Ended(
          f"config.served.python={python!r} cannot be run: {error}"
        ) from None
    self.channel = frames.Channel(own_end.detach())

  def end(self) -> None:
    """Kills the process, and all that it has started."""
    processes.end_tree(self._process.pid)
    self.channel.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
      self._process.wait(timeout=5.0)


def _end_all(alive: set[_Process]) -> None:
  while alive:
    alive.pop().end()
