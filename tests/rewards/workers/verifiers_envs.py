"""Environments as authors of `verifiers` write them, with data of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import verifiers as vf
from datasets import Dataset


def _dataset(num_examples: int):
  return Dataset.from_list(
    [
      {"question": f"say {chr(97 + i % 4)}", "answer": chr(97 + i % 4)}
      for i in range(num_examples)
    ]
  )


def vowels(completion, answer, **kwargs) -> float:
  """The share of letters "a" in all replies."""
  text = "".join(m["content"] for m in completion if m["role"] == "assistant")
  return text.count("a") / max(len(text), 1)


async def length(completion) -> float:
  return float(sum(len(m["content"]) for m in completion))


def spread(completions) -> list[float]:
  """A reward that compares the replies of a group."""
  sizes = [len(str(completion)) for completion in completions]
  return [float(size == max(sizes)) for size in sizes]


def load_environment(num_examples: int = 8, weight: float = 1.0):
  """One turn, with a group reward that is watched."""
  rubric = vf.Rubric(funcs=[vowels, length, spread], weights=[weight, 0.0, 0.0])
  return vf.SingleTurnEnv(dataset=_dataset(num_examples), rubric=rubric)


class Echo(vf.MultiTurnEnv):
  """Says back what was said, in capitals; and misbehaves if it is told to."""

  def __init__(self, act: str = "", **kwargs):
    super().__init__(**kwargs)
    self._act = act

  async def env_response(self, messages, state, **kwargs):
    act, number = self._act, state["example_id"]
    if act == "die" and number == 0:
      os.kill(os.getpid(), signal.SIGKILL)
    if act == "hang" and number == 0:
      await asyncio.sleep(1000)
    if act == "block" and number == 0:
      time.sleep(1000)
    if act == "raise" and number == 0:
      raise vf.ToolCallError("no tool today")
    if act == "rewrite" and number == 0:
      messages[0]["content"] = "something else"
    reply = [
      {"role": "user", "content": f"{messages[-1]['content'][:4].upper()}?"}
    ]
    # Before 0.1.9 it was a pair.
    return reply


def load_echo(act: str = "", max_turns: int = 2, num_examples: int = 4):
  rubric = vf.Rubric(funcs=[broken if act == "rubric" else vowels])
  return Echo(
    act,
    dataset=_dataset(num_examples),
    rubric=rubric,
    max_turns=max_turns,
    system_prompt="be brief",
  )


def broken(completion) -> float:
  raise ZeroDivisionError("a reward without a reason")


def add(a: int, b: int) -> int:
  """Adds two numbers.

  Args:
    a: The first.
    b: The second.
  """
  return a + b


def load_tools():
  dataset = Dataset.from_list([{"question": "1 + 2 = ?", "answer": "3"}] * 4)
  return vf.ToolEnv(
    tools=[add], dataset=dataset, rubric=vf.Rubric(funcs=[vowels]), max_turns=3
  )


def load_nothing():
  return object()
