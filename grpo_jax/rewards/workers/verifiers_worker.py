"""The process in which an environment of the package `verifiers` plays.

The environment is other people's code, which asks the policy over HTTP as it
would ask any model. This file needs the standard library, its neighbours
`frames` and `processes`, and `verifiers`, so that it runs with an interpreter
that has no more than that.

`verifiers_process.py` has the other end. Of the package it uses what all
versions with `Environment.rollout` have, 0.1.9 to 0.3.1: `load_environment`,
`get_dataset`, `rollout`, and `score_group` of the rubric.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import logging
import os
from collections.abc import Mapping
from typing import Any

from grpo_jax.rewards.workers import frames, processes

_KEY = "GRPO_JAX_SERVED_TOKEN"
_MAX_MESSAGE = 500  # Characters.
# Errors in the group that is being scored; the package logs them and goes on
# with a reward of 0.
_errors: contextvars.ContextVar[list[str] | None] = contextvars.ContextVar(
  "errors", default=None
)


class _Listener(logging.Handler):
  """Collects a rubric's messages about reward functions that have failed."""

  def emit(self, record: logging.LogRecord) -> None:
    heard = _errors.get()
    if heard is not None:
      heard.append(record.getMessage())


class LoadedEnvironment:
  """An environment of the package, and its examples."""

  def __init__(self, path: str, options: Mapping[str, Any]):
    """Imports the environment.

    Args:
      path: "module", or "module:function"; by default the function is
        `load_environment`.
      options: Arguments of the function, by name.

    Raises:
      ImportError: `verifiers` has no `MultiTurnEnv`.
      TypeError: The function returned something else than an environment.
      Exception: Any error of the environment's own.
    """
    os.environ.setdefault("VF_LOG_LEVEL", "ERROR")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    package = importlib.import_module("verifiers")
    version = str(getattr(package, "__version__", "?"))
    if not hasattr(package, "MultiTurnEnv"):
      raise ImportError(
        f"verifiers {version} has no MultiTurnEnv and no rollout();"
        " install a version from 0.1.9 to 0.3.1"
      )
    logger = logging.getLogger("verifiers")
    logger.handlers[:] = [_Listener(logging.ERROR)]
    logger.setLevel(logging.ERROR)
    module, _, function = path.partition(":")
    load = getattr(
      importlib.import_module(module), function or "load_environment"
    )
    self._env = load(**options)
    for name in ("rollout", "rubric", "get_dataset"):
      if not hasattr(self._env, name):
        raise TypeError(
          f"{path} gave a {type(self._env).__name__} without {name}; needed is"
          " a verifiers.Environment"
        )
    self._inputs = {
      "train": self._env.get_dataset(),
      "held_out": self._env.get_eval_dataset(),
    }
    self._clients: dict[str, Any] = {}

  def sizes(self) -> dict[str, int]:
    """Returns the number of examples of each split."""
    return {name: len(x) for name, x in self._inputs.items()}

  def names(self) -> list[str]:
    """Returns the names of the metrics of the rubric."""
    rubric = self._env.rubric
    for name in ("get_reward_func_names", "_get_reward_func_names"):
      if hasattr(rubric, name):
        return sorted({*getattr(rubric, name)()})
    return []

  def example(self, split: str, index: int) -> dict[str, Any]:
    """Returns an example's prompt, answer and tools."""
    row = self._inputs[split][index]
    prompt = row.get("prompt")
    if isinstance(prompt, list):
      prompt = [_plain_message(message) for message in prompt]
    return {
      "prompt": prompt,
      "answer": str(row.get("answer") or ""),
      "tools": self._tools(row.get("info")),
    }

  def _tools(self, info: Any) -> list[Any] | None:
    """Returns tools in the form of requests."""
    own = info if isinstance(info, Mapping) else {}
    tools = own.get("oai_tools") or getattr(self._env, "oai_tools", None)
    if tools:
      return [dict(tool) for tool in tools]
    return [
      {
        "type": "function",
        "function": {
          "name": tool.name,
          "description": tool.description,
          "parameters": tool.parameters,
          **({} if tool.strict is None else {"strict": tool.strict}),
        },
      }
      for tool in getattr(self._env, "tool_defs", None) or ()
    ] or None

  def _client(self, url: str, token: str) -> Any:
    """Returns a client for the requests of one episode."""
    clients = _import_or_none("verifiers.clients")
    if clients is not None:  # From 0.1.11 on.
      types = importlib.import_module("verifiers.types")
      os.environ[_KEY] = token
      kind = (
        "openai_chat_completions" if self._is_chat else "openai_completions"
      )
      config = types.ClientConfig(
        client_type=kind,
        api_key_var=_KEY,
        api_base_url=url,
        max_retries=0,
      )
      return clients.resolve_client(config)
    if "client" not in self._clients:
      openai = importlib.import_module("openai")
      self._clients["client"] = openai.AsyncOpenAI(
        base_url=url, api_key=token, max_retries=0, timeout=None
      )
    # One pool of connections for all clients.
    return self._clients["client"].copy(base_url=url, api_key=token)

  async def play(self, row: Mapping[str, Any], query: Mapping[str, Any]) -> Any:
    """Plays an episode and returns its final state.

    Args:
      row: The row's `split`, `example` and `url`.
      query: The `token` and `model` of all requests.
    """
    example = dict(self._inputs[row["split"]][row["example"]])
    # A state then has tokens and log-probs, as some environments expect.
    sampling: dict[str, Any] = {"extra_body": {"return_token_ids": True}}
    if self._is_chat:
      sampling["logprobs"] = True
    return await self._env.rollout(
      example,
      self._client(row["url"], query["token"]),
      query["model"],
      sampling,
    )

  @property
  def _is_chat(self) -> bool:
    return getattr(self._env, "message_type", "chat") == "chat"

  async def score(self, states: list[Any]) -> list[str]:
    """Scores the states of a group; returns errors of the reward functions."""
    heard: list[str] = []
    _errors.set(heard)
    score = self._env.rubric.score_group
    options = {}
    if "score_sem" in inspect.signature(score).parameters:  # Until 0.1.9.
      options["score_sem"] = asyncio.Semaphore(len(states))
    await score(states, **options)
    return heard


def _import_or_none(name: str) -> Any:
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError:
    return None


def _plain_message(message: Any) -> dict[str, Any]:
  """Returns a message without null fields, which datasets add to some."""
  if hasattr(message, "model_dump"):
    message = message.model_dump()
  return {name: x for name, x in dict(message).items() if x is not None}


def ending(state: Mapping[str, Any]) -> tuple[str, bool]:
  """Returns an episode's error, or "", and True if it came to an end.

  An empty reply is the policy's own, and ends its episode without an error.
  """
  error = state.get("error")
  name = type(error).__name__
  if error is None or name in (
    "OverlongPromptError",
    "EmptyModelResponseError",
  ):
    return "", error is None and not state.get("is_truncated")
  return _shown(error), False


def _shown(error: BaseException) -> str:
  """Returns an error with its causes, as text."""
  parts: list[str] = []
  one: BaseException | None = error
  while one is not None and len(parts) < 4:
    parts.append(f"{type(one).__name__}: {one}".strip(": "))
    one = one.__cause__
  return " from ".join(parts)[:_MAX_MESSAGE]


class _Player:
  """Plays the requested episodes, all at the same time."""

  def __init__(self, environment: LoadedEnvironment, channel: frames.Channel):
    self._environment, self._channel = environment, channel
    self._groups: set[asyncio.Task] = set()

  def say(self, message: Any) -> None:
    self._channel.send(frames.encode(message))

  async def run(self) -> None:
    """Serves messages until the other end is gone."""
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hear() -> None:
      try:
        self._channel.read()
        for message in self._channel.messages():
          self._obey(message)
      except EOFError:
        over.set()

    loop.add_reader(self._channel.fileno(), hear)
    hear()
    await over.wait()

  def _obey(self, message: Mapping[str, Any]) -> None:
    if message["op"] == "examples":
      split, numbers = message["split"], message["numbers"]
      self.say([self._environment.example(split, i) for i in numbers])
    else:
      groups: dict[int, list[Mapping[str, Any]]] = {}
      for row in message["rows"]:
        groups.setdefault(row["group"], []).append(row)
      for rows in groups.values():
        task = asyncio.create_task(self._play(rows, message))
        self._groups.add(task)
        task.add_done_callback(self._groups.discard)

  async def _play(
    self, rows: list[Mapping[str, Any]], request: Mapping[str, Any]
  ) -> None:
    """Plays the episodes of a group, and scores them together."""
    states = await asyncio.gather(
      *(self._environment.play(row, request) for row in rows),
      return_exceptions=True,
    )
    scored: list[tuple[Mapping[str, Any], Any, bool]] = []
    for row, state in zip(rows, states, strict=True):
      failed, done = (
        (_shown(state), False)
        if isinstance(state, BaseException)
        else ending(state)
      )
      if failed:
        self._tell(request, row, error=failed)
      else:
        scored.append((row, state, done))
    if not scored:
      return
    try:
      heard = await self._environment.score([state for _, state, _ in scored])
    except Exception as error:
      heard = [_shown(error)]
    for row, state, done in scored:
      if heard:
        self._tell(request, row, error=f"its rubric: {heard[0]}"[:_MAX_MESSAGE])
      else:
        metrics = state.get("metrics") or {}
        self._tell(
          request,
          row,
          reward=_number(state.get("reward")),
          metrics={str(k): _number(x) for k, x in metrics.items()},
          done=done,
        )

  def _tell(
    self, request: Mapping[str, Any], row: Mapping[str, Any], **fields: Any
  ) -> None:
    self.say({"play": request["number"], "row": row["row"], **fields})


def _number(value: Any) -> float | None:
  return None if value is None else frames.plain_number(value)


def main(fd: int, parent: int, argument: Mapping[str, Any]) -> None:
  """Serves the process at the other end of a socket.

  Args:
    fd: File descriptor of the socket.
    parent: Process id at the other end.
    argument: "path" and "options" of the environment.
  """
  processes.keep(parent, [fd], is_brief=True)
  channel = frames.Channel(fd)
  channel.close_in_forks()
  try:
    environment = LoadedEnvironment(argument["path"], argument["options"])
    hello = {
      "sizes": environment.sizes(),
      "names": environment.names(),
    }
  except BaseException as error:
    channel.send(frames.encode({"error": _shown(error)}))
    raise SystemExit(1) from None
  channel.send(frames.encode(hello))
  asyncio.run(_Player(environment, channel).run())
