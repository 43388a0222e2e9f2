"""Environments of the package `verifiers` 0.4, loaded and played.

Only the process of `verifiers_worker.py` imports this file, because the package
takes seconds to import and may belong to another interpreter. The package does
the work: it loads a taskset and its environment, serves their tools, plays an
episode of a task, and scores it. Its client passes each request on as it is, so
the policy alone knows token ids. (The package's client for training has a
tokenizer of its own, and needs the engine of vLLM.)
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import logging
import os
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import web
from verifiers.v1 import clients, runtimes
from verifiers.v1.configs import agent as agents
from verifiers.v1.configs import select as selection
from verifiers.v1.dialects import chat
from verifiers.v1.harnesses.null import NullHarness, NullHarnessConfig
from verifiers.v1.harnesses.utils import launch
from verifiers.v1.utils import decorators, loaders

__all__ = ["ChatHarness"]  # By this list the package finds the harness.

# The package keeps variables with such names from the programs that it starts.
_KEY = "GRPO_JAX_API_KEY"


class ChatHarness(NullHarness):
  """The chat loop of the package's harness `null`, in this process.

  The package itself starts a Python for each reply to a user, whose packages
  uv installs first.
  """

  async def setup(self, runtime: Any) -> None:
    """Installs nothing: the loop needs what the package needs."""

  async def launch(self, ctx: Any, trace: Any, runtime: Any, *rest, **options):
    return await super().launch(ctx, trace, _Here(runtime), *rest, **options)


class _Here:
  """A runtime of the package in which the chat loop is a function."""

  def __init__(self, runtime: Any):
    self._runtime = runtime
    self.write = runtime.write

  async def prepare_uv_script(self, *_, **__) -> list[str]:
    return []

  async def run_program(self, argv: Sequence[str], env: Any) -> Any:
    del env  # The loop reads no variable.
    folder, file = self._runtime.workdir, "--initial-messages-file="
    # `main` reads them before it waits for anything.
    sys.argv = ["chat", *(x.replace(file, f"{file}{folder}/") for x in argv)]
    try:
      await _program()["main"]()
    except (Exception, SystemExit) as error:
      code = error.code if isinstance(error, SystemExit) else 1
      return runtimes.ProgramResult(
        exit_code=code if isinstance(code, int) else 1,
        stdout="",
        stderr=traceback.format_exc(),
      )
    return runtimes.ProgramResult(exit_code=0, stdout="", stderr="")


@functools.cache
def _program() -> dict[str, Any]:
  """The program of the package's harness, which it has as text."""
  names: dict[str, Any] = {"__name__": "chat"}
  exec(compile(launch.CHAT_PROGRAM_SOURCE, "chat", "exec"), names)
  # For each conversation it would read all certificates, and then use none: the
  # address begins with http.
  names["certifi"] = types.SimpleNamespace(where=lambda: False)
  return names


class LoadedEnvironment:
  """An environment of the package.

  Attributes:
    tasks: The tasks that are used, by split.
  """

  def __init__(self, path: str, options: Mapping[str, Any]):
    """Imports the environment and loads its tasks.

    Args:
      path: Id or import path of a taskset.
      options: Fields of the environment's config, as in a table [env] of the
        package; and `select`, the tasks to train on; `held_out`, the others,
        also with fields of `taskset`; `names`, of scores that no task declares.

    Raises:
      ValueError: The policy is not exactly one of the agents, or there is no
        end of tasks.
      Exception: Any error of the package or of the environment.
    """
    logging.getLogger("verifiers").setLevel(logging.CRITICAL)
    rest = dict(options)
    select = rest.pop("select", {})
    held_out = dict(rest.pop("held_out", {}))
    self._names = rest.pop("names", ())
    config = _config(path, rest)
    self._env = loaders.load_environment(config)
    self._seat = _policy(config)
    self._harness = loaders.load_harness(config.agent_harnesses()[self._seat])
    train = _tasks(self._env.taskset, select)
    self.tasks = {"train": train, "held_out": train}
    if held_out:
      fields = {**rest.get("taskset", {}), **held_out.pop("taskset", {})}
      taskset = _config(path, {**rest, "taskset": fields}).taskset
      self.tasks["held_out"] = _tasks(loaders.load_taskset(taskset), held_out)
    # What comes before an unknown first message, or None; and the tools.
    self._before: list[dict[str, Any]] | None = None
    self._tools: list[Any] | None = None

  @functools.cached_property
  def names(self) -> list[str]:
    """Names of rewards and metrics."""
    task = next(iter(self.tasks["train"]), None)
    if task is None:
      return []
    hooks = [*task.hooks("reward"), *task.hooks("metric")]
    hooks += decorators.discover_decorated(self._harness, "metric")
    judges = [judge.reward_name for judge in task.plugged_judges()]
    return sorted({*self._names, *judges, *(hook.__name__ for hook in hooks)})

  def serving(self) -> AbstractAsyncContextManager:
    """Starts what all episodes share, such as tools."""
    return self._env.serving()

  async def look(self) -> None:
    """Finds out how episodes begin, from the first request of one.

    Raises:
      ValueError: The first task's episode ended without a request.
    """
    future = asyncio.get_running_loop().create_future()

    async def refuse(request: Any) -> Any:
      if not future.done():
        future.set_result(await request.json())
      raise web.HTTPBadRequest

    app = web.Application(client_max_size=2**30)
    app.router.add_post("/v1/chat/completions", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    task = self.tasks["train"][0]
    episode = asyncio.create_task(self._env.run_episode(task, _model(url, "x")))
    try:
      await asyncio.wait({episode, future}, return_when="FIRST_COMPLETED")
      if not future.done():
        raise ValueError(
          "the episode of its first task ended before it asked for anything:"
          f" {_failure(await episode) or 'without an error'}"
        )
    finally:
      episode.cancel()
      await asyncio.gather(episode, return_exceptions=True)
      await runner.cleanup()
    first, messages = future.result(), self._messages(task)
    self._tools = first.get("tools")
    if list(map(_essence, first["messages"])) != list(map(_essence, messages)):
      self._before = first["messages"][:-1]

  def _messages(self, task: Any) -> list[dict[str, Any]]:
    """Returns the messages of a task, as the harness asks them first."""
    system, prompt = self._harness.resolve_prompt(task.data)
    messages = [] if system is None else [{"role": "system", "content": system}]
    if isinstance(prompt, str):
      return [*messages, {"role": "user", "content": prompt}]
    return [*messages, *map(chat.message_to_wire, prompt or ())]

  def example(self, split: str, index: int) -> dict[str, Any]:
    """Returns a task's first messages, answer and tools.

    If its first message is known to nobody yet, `is_open` is True, and the
    messages are those before it.
    """
    task = self.tasks[split][index]
    answer = getattr(task.data, "answer", None)
    return {
      "prompt": self._messages(task) if self._before is None else self._before,
      "is_open": self._before is not None,
      "answer": "" if answer is None else str(answer),
      "tools": self._tools,
    }

  async def play(
    self, row: Mapping[str, Any], url: str, token: str
  ) -> dict[str, Any]:
    """Plays and scores the episode of a row.

    Args:
      row: Its `split`, `example` and `model`, by which the policy knows it.
      url, token: Address of the policy and its token.

    Returns:
      `error`, or `reward`, `metrics` and `done`.
    """
    os.environ[_KEY] = token
    (slot,) = self._env.slots(self.tasks[row["split"]][row["example"]])
    episode = await self._env.run_slot(slot, _model(url, row["model"]))
    own = [x for x in episode.traces if x.agent.name == self._seat]
    if error := _failure(episode) or _unscored(own):
      return {"error": error}
    (trace,) = own
    scores = {name: reward.score for name, reward in trace.rewards.items()}
    scores.update(trace.metrics)
    return {
      "reward": trace.reward,
      "metrics": {x: scores[x] for x in self.names if x in scores},
      "done": not trace.is_truncated and not trace.is_timeout,
    }


def _model(url: str, model: str) -> Any:
  """Returns the model at an address."""
  # One config for all rows: the package keeps a client of each until the end.
  client = clients.EvalClientConfig(base_url=url, api_key_var=_KEY)
  return clients.ModelContext(model=model, client=client)


def _essence(message: Mapping[str, Any]) -> tuple[Any, Any]:
  return message["role"], message.get("content")


def _failure(episode: Any) -> str:
  """Returns why an episode has failed, or ""."""
  if episode.ok:
    return ""
  errors = [x for trace in episode.traces if not trace.ok for x in trace.errors]
  errors += episode.errors
  return "; ".join(
    f"{x.type}: {x.message}" for x in errors[:1] + errors[1:][-1:]
  )


def _unscored(traces: Sequence[Any]) -> str:
  """Returns why the policy's conversations in an episode have no reward."""
  if len(traces) != 1:
    return f"the policy has {len(traces)} conversations; a row has room for one"
  (trace,) = traces
  missing = [name for name, x in trace.rewards.items() if x is None]
  if missing:
    return f"{missing[0]} has no score ({trace.stop_condition})"
  return "" if trace.rewards else "it has no reward"


def _tasks(taskset: Any, select: Mapping[str, Any]) -> list[Any]:
  view = taskset.select(selection.SelectConfig.model_validate(dict(select)))
  if not view.bounded:
    raise ValueError(
      f"{type(taskset).__name__} has no last task; set a limit, such as"
      " config.environment.options={'select': {'limit': 1000}}"
    )
  return list(view)


def _config(path: str, options: Mapping[str, Any]) -> Any:
  """Returns the config of an environment.

  Programs of agents run on this machine, and agents chat by `ChatHarness`,
  unless the options or the environment say otherwise.
  """
  _plugin(path, "tasksets")
  _plugin(options.get("id", ""), "envs")
  _plugin(__name__, "harnesses")
  for agent in options.values():
    if isinstance(agent, Mapping) and isinstance(agent.get("harness"), Mapping):
      _plugin(agent["harness"].get("id", ""), "harnesses")
  taskset = {**options.get("taskset", {}), "id": path}
  config = loaders.resolve_env_config({**options, "taskset": taskset})
  is_free = loaders.default_harness_id(path) == "bash"  # Nobody's choice.
  for name, agent in agents.agent_config_fields(config).items():
    changes: dict[str, Any] = {}
    if "runtime" not in agent.model_fields_set:
      changes["runtime"] = runtimes.SubprocessConfig()
    if agent.harness.id == "null" if agent.harness else is_free:
      harness = agent.harness or NullHarnessConfig()
      changes["harness"] = harness.model_copy(update={"id": __name__})
    agent = agent.model_copy(update=changes)
    config = config.model_copy(update={name: agent})
  return config


def _plugin(name: str, group: str) -> None:
  """Lets the package find an import path; it looks for plain names alone."""
  if "." in name and "/" not in name:
    module = f"verifiers.v1.{group}.{name.replace('-', '_').lower()}"
    sys.modules[module] = importlib.import_module(name)


def _policy(config: Any) -> str:
  """Returns the name of the agent that the policy is."""
  by_name = agents.agent_config_fields(config)
  own = [x for x, agent in by_name.items() if agent.client is None]
  if len(own) != 1:
    raise ValueError(
      f"of its agents {', '.join(by_name)} the policy would be"
      f" {' and '.join(own) or 'none'}, and it is exactly one; give each other"
      " one a model of its own: config.environment.options={NAME: {'model': …,"
      " 'client': {'type': 'eval', 'base_url': …, 'api_key_var': …}}}"
    )
  return own[0]
