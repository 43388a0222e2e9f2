"""A taskset of verifiers 0.4, with an environment that asks twice.

This is how authors write them: a taskset loads tasks, a task scores a
conversation, and an environment says what a user says.
"""

import verifiers.v1 as vf

__all__ = ["AgainEnv", "WordsTaskset"]


class CapitalsTask(vf.Task[vf.TaskData]):
  @vf.reward
  async def capitals(self, trace: vf.Trace) -> float:
    """The share of capital letters in all replies."""
    text = "".join(
      message.content or "" for message in trace.assistant_messages
    )
    return sum("A" <= letter <= "Z" for letter in text) / max(len(text), 1)


class WordsConfig(vf.TasksetConfig):
  num_tasks: int = 64


class WordsTaskset(vf.Taskset[CapitalsTask, WordsConfig]):
  def load(self):
    for i in range(self.config.num_tasks):
      yield CapitalsTask(vf.TaskData(prompt=f"word {i}"), self.config.task)


class AgainConfig(vf.EnvConfig):
  agent: vf.AgentConfig = vf.AgentConfig()


class AgainEnv(vf.Env[AgainConfig]):
  async def run(self, task, agents):
    async with agents.agent.interaction(task) as conversation:
      if not (await conversation.turn()).terminated:
        await conversation.turn("Again:")
