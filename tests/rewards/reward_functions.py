"""Reward functions that ask for more than the four arguments."""

import asyncio
import contextlib
import os
import sys
import time

from grpo_jax.rewards import registry


@registry.of_group
def shortest(prompts, completions, ids, extras):
  """1.0 for the shortest completions of a prompt."""
  assert len(set(ids)) == 1
  least = min(map(len, completions))
  return [float(len(x) == least) for x in completions]


async def asked(prompts, completions, ids, extras):
  """Asks a service that answers after a while; the row has its seconds."""
  (extra,) = extras
  await asyncio.sleep(extra.get("wait_s", 0.2))
  if extra.get("broken"):
    raise ConnectionError("no service")
  return [float(len(completions[0]))]


_WAITING = []


async def meets_others(prompts, completions, ids, extras):
  """Ends once as many rows wait as the completion says."""
  _WAITING.append(ids[0])
  while len(_WAITING) < int(completions[0]):
    await asyncio.sleep(0.01)
  return [float(ids[0])]


@registry.of_group
async def asked_together(prompts, completions, ids, extras):
  await asyncio.sleep(0.01)
  return [float(len(completions))] * len(completions)


async def misbehaves(prompts, completions, ids, extras):
  """Misbehaves: a number is the score, after a while; a word is the fault."""
  (word,) = completions
  await asyncio.sleep(0.05)
  if word == "block":
    time.sleep(60)
  elif word == "block a while":
    time.sleep(1.5)
    await asyncio.sleep(60)
  elif word == "swallow":
    while True:
      with contextlib.suppress(BaseException):
        await asyncio.sleep(60)
  elif word == "exit":
    sys.exit(0)
  elif word == "exit in a task":
    _TASKS.append(asyncio.ensure_future(_exit()))
    await asyncio.sleep(60)
  elif word == "stop":
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)
  elif word == "cancel":
    asyncio.current_task().cancel()
  elif word == "die":
    os._exit(0)
  await asyncio.sleep(0.2)
  return [float(word)]


_TASKS = []


async def _exit():
  sys.exit(0)


def counts_tokens(prompts, completions, ids, extras, *, tokens, scale=1.0):
  return [scale * len(row) for row in tokens]


def round_trip(prompts, completions, ids, extras, tokens, tokenizer):
  """1 for rows whose tokens decode to the completion, else 0."""
  decoded = [tokenizer.decode(row) for row in tokens]
  return [float(a == b) for a, b in zip(decoded, completions, strict=True)]


def told(
  prompts, completions, ids, extras, *, answer_after, sandbox, timeout_s
):
  return [float((answer_after, sandbox, timeout_s) == ("####", "process", 7.0))]


def needs_words(prompts, completions, ids, extras, *, words):
  return [float(words)]


def halves(prompts, completions, ids, extras):
  """Scores of two steps for each completion."""
  return [[(len(x) // 2, 0.5), (len(x), 1.0)] for x in completions]


def no_steps(prompts, completions, ids, extras):
  return [1.0 for _ in completions]
