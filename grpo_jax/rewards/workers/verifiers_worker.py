"""The process in which an environment of the package `verifiers` plays.

The environment is other people's code, which asks the policy over HTTP as it
would ask any model. The process needs the standard library, files beside this
one, and `verifiers` 0.4 with what it installs, so that it runs with an
interpreter that has no more than that. `verifiers_process.py` has the other
end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from grpo_jax.rewards.workers import frames, processes

_MAX_MESSAGE = 500  # Characters.


def _text_of(error: BaseException) -> str:
  """Returns an error with its causes, as text."""
  parts: list[str] = []
  cause: BaseException | None = error
  while cause is not None and len(parts) < 4:
    parts.append(f"{type(cause).__name__}: {cause}".strip(": "))
    cause = cause.__cause__
  return " from ".join(parts)[:_MAX_MESSAGE]


async def _play(environment: Any, channel: frames.Channel) -> None:
  """Plays what is asked for, all at once, until the other end is gone."""
  over = asyncio.Event()
  episodes: set[asyncio.Task] = set()

  async def play(row: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    try:
      outcome = await environment.play(row, request["url"], request["token"])
    except BaseException as error:
      outcome = {"error": _text_of(error)}
    if "error" in outcome:
      outcome = {"error": outcome["error"][:_MAX_MESSAGE]}
    where = {"play": request["number"], "row": row["row"]}
    channel.send(frames.encode({**where, **outcome}))

  def hear() -> None:
    try:
      channel.read()
      for request in channel.messages():
        for row in request["rows"]:
          episode = asyncio.create_task(play(row, request))
          episodes.add(episode)
          episode.add_done_callback(episodes.discard)
    except EOFError:
      over.set()

  asyncio.get_running_loop().add_reader(channel.fileno(), hear)
  hear()
  await over.wait()


async def _serve(channel: frames.Channel, argument: Mapping[str, Any]) -> None:
  async with contextlib.AsyncExitStack() as stack:
    try:
      # Of the package, which this interpreter may lack.
      from grpo_jax.rewards.workers import verifiers_episodes

      environment = verifiers_episodes.LoadedEnvironment(
        argument["path"], argument["options"]
      )
      sizes = {split: len(tasks) for split, tasks in environment.tasks.items()}
      hello: dict[str, Any] = {"sizes": sizes, "names": environment.names}
      if all(sizes.values()):
        await stack.enter_async_context(environment.serving())
        await environment.look()
    except BaseException as error:
      hello = {"error": _text_of(error)}
      if getattr(error, "name", None) in ("verifiers", "verifiers.v1"):
        hello["error"] += "; needs verifiers 0.4 (grpo_jax[verifiers])"
    channel.send(frames.encode(hello))
    if "error" in hello:
      return
    for split, size in sizes.items():
      for number in range(size):
        channel.send(frames.encode(environment.example(split, number)))
    await _play(environment, channel)


def main(fd: int, parent: int, argument: str) -> None:
  """Serves the process at the other end of a socket.

  Args:
    fd: File descriptor of the socket.
    parent: Process id at the other end.
    argument: "path" and "options" of the environment, as JSON.
  """
  processes.keep(parent, [fd], is_brief=True)
  channel = frames.Channel(fd)
  channel.close_in_forks()
  asyncio.run(_serve(channel, json.loads(argument)))
