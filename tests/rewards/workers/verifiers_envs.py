"""Tasksets as authors of `verifiers` write them, with data of their own."""

from __future__ import annotations

import verifiers.v1 as vf

__all__ = ["LettersTaskset"]


class LettersData(vf.TaskData):
  answer: str = ""


class LettersTask(vf.Task[LettersData]):
  """Wants the letter a."""

  @vf.reward
  async def vowels(self, trace) -> float:
    """The share of letters "a" in all replies."""
    text = "".join(x.content or "" for x in trace.assistant_messages)
    return text.count("a") / max(len(text), 1)

  @vf.metric
  async def length(self, trace) -> float:
    return float(sum(len(x.content or "") for x in trace.assistant_messages))


class LettersConfig(vf.TasksetConfig):
  num_tasks: int = 8
  first: int = 0


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
  def load(self):
    for i in range(self.config.first, self.config.first + self.config.num_tasks):
      letter = chr(97 + i % 4)
      yield LettersTask(
        LettersData(prompt=f"say {letter}", answer=letter), self.config.task
      )
