"""Tasksets and an environment as authors of `verifiers` 0.4 write them.

What a task does is one of its fields, so that one process plays all of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import verifiers.v1 as vf

__all__ = ["LettersEnv", "LettersTaskset"]


class LettersData(vf.TaskData):
  answer: str | int = ""
  act: str = ""


def _raise(message: str = "no luck today"):
  raise RuntimeError(message)


REWARDS = {
  "raise": _raise,
  "long": lambda: _raise("x" * 10**6),
  "nan": lambda: float("nan"),
  "infinite": lambda: float("inf"),
  "large": lambda: 1e30,
  "nothing": lambda: None,
  "text": lambda: "much",
  "complex": lambda: 1j,
  "list": lambda: [1.0],
  "mapping": lambda: {"one": 0.5, "two": "x"},
  "print": lambda: print("x" * 10**6) or 1.0,
  "true": lambda: True,
}


class LettersTask(vf.Task[LettersData]):
  """Wants the letter a."""

  async def setup(self, trace, runtime):
    if self.data.act == "setup":
      _raise()
    if self.data.act == "exit":
      sys.exit("I leave")

  async def finalize(self, trace, runtime):
    if self.data.act == "finalize":
      _raise()

  @vf.stop
  async def stop(self, trace: vf.Trace) -> bool:
    if self.data.act == "stop":
      _raise()
    return "perhaps" if self.data.act == "unsure" else False

  @vf.reward(weight=1.0)
  async def vowels(self, trace):
    """The share of letters "a" in all replies."""
    act = self.data.act
    if act.startswith("reward "):
      return REWARDS[act.removeprefix("reward ")]()
    if act == "slow":
      await asyncio.sleep(100)
    text = "".join(x.content or "" for x in trace.assistant_messages)
    return text.count("a") / max(len(text), 1)

  @vf.metric
  async def length(self, trace):
    if self.data.act == "metric":
      _raise()
    if self.data.act == "metric nan":
      return float("nan")
    if self.data.act == "flood":
      return {f"metric {i}": 0.0 for i in range(10**5)} | {"length": 1.0}
    return float(sum(len(x.content or "") for x in trace.assistant_messages))


class LettersConfig(vf.TasksetConfig):
  num_tasks: int = 8
  first: int = 0
  acts: tuple[str, ...] = ()
  """What the first tasks do."""


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
  def load(self):
    config = self.config
    for i in range(config.first, config.first + config.num_tasks):
      act = config.acts[i] if i < len(config.acts) else ""
      letter = chr(97 + i % 4)
      fields = {
        "image": {"image": "debian"},
        "network": {"network_block": ["example.org"]},
        "slow": {"timeout": vf.TaskTimeout(scoring=0.1)},
        "dumb": {"prompt": None},
        "zero": {"answer": 0},
      }.get(act, {})
      data = {"prompt": f"say {letter}", "answer": letter, "act": act}
      yield LettersTask(LettersData(**{**data, **fields}), config.task)


class LettersEnvConfig(vf.EnvConfig):
  agent: vf.AgentConfig = vf.AgentConfig()
  turns: int = 1


class LettersEnv(vf.Env[LettersEnvConfig]):
  """Says back what was said, in capitals; and misbehaves if it is told to."""

  async def run(self, task, agents):
    act = task.data.act
    if act == "env":
      _raise()
    if act == "idle":
      return
    if act == "twice":
      await agents.agent.run(task)
    async with agents.agent.interaction(task) as conversation:
      segment = await conversation.turn()
      for _ in range(1, self.config.turns):
        if segment.terminated:
          break
        if act == "die":
          os.kill(os.getpid(), signal.SIGKILL)
        if act == "hang":
          await asyncio.sleep(1000)
        if act == "block":
          time.sleep(1000)
        if act == "rewrite":
          conversation.trace.nodes[0].message.content = "something else"
        segment = await conversation.turn(f"{segment.last_reply[:4].upper()}?")

  async def finalize(self, task, episode):
    if task.data.act == "end":
      _raise()
    for trace in episode.traces:
      trace.record_metric("said", float(trace.num_turns))
