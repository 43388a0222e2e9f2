"""Tasks of `verifiers` 0.4 with a tool, of each episode or of all of them."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class Adding(vf.Toolset[vf.ToolsetConfig]):
  TOOL_PREFIX = None

  @vf.tool
  async def add(self, a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class SumsTaskConfig(vf.TaskConfig):
  has_tools: bool = False


class SumsTask(vf.Task[vf.TaskData, vf.State, SumsTaskConfig]):
  @vf.reward
  async def right(self, trace) -> float:
    return float(any(x.content == "3" for x in trace.tool_messages))

  @vf.metric
  async def calls(self, trace) -> float:
    return float(len(trace.tool_messages))

  @classmethod
  def toolsets(cls, config):
    return [Adding(vf.ToolsetConfig())] if config.has_tools else []


class SumsConfig(vf.TasksetConfig):
  task: SumsTaskConfig = SumsTaskConfig()


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
  def load(self):
    for _ in range(4):
      yield SumsTask(vf.TaskData(prompt="1 + 2 = ?"), self.config.task)

  @classmethod
  def toolsets(cls, config):
    return [] if config.task.has_tools else [Adding(vf.ToolsetConfig())]


if __name__ == "__main__":  # The package starts this file for the tool.
  Adding.run()
