"""A problem whose prompts and scores come from an environment of `verifiers`.

Its process is started here, before anything else, because it knows the prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.data import conversations
from grpo_jax.data.encoder import Encoder
from grpo_jax.rewards.workers import verifiers_process
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import served_settings
from grpo_jax.training.problem import judges, served_rollouts, verifiers
from grpo_jax.types import HostEnvironment

RETURN, ACCURACY = "return", "accuracy"


class Examples:
  """The examples of an environment as a source of prompts."""

  def __init__(
    self,
    split: str,
    examples: Sequence[Mapping[str, Any]],
    writer: conversations.Writer,
    encode: Any,
  ):
    """Takes over what the process has told.

    Args:
      split: Of the environment.
      examples: Each with a prompt, an answer and tools.
      writer: Writes messages.
      encode: Writes text.
    """
    self._split, self._examples = split, examples
    self._writer, self._encode = writer, encode

  def __len__(self) -> int:
    return len(self._examples)

  def __getitem__(self, index: int) -> dict[str, Any]:
    example = self._examples[index]
    try:
      ids = self._ids(example)
    except ValueError as error:
      raise ValueError(
        f"example {index} ({self._split}) of the environment: {error}"
      ) from error
    return {
      "prompt": ids,
      "answer": example["answer"],
      "completion": None,
      "extras": {"split": self._split, "example": int(index)},
    }

  def _ids(self, example: Mapping[str, Any]) -> np.ndarray:  # [any] int32
    prompt = example["prompt"]
    if isinstance(prompt, str):
      return np.asarray(self._encode(prompt), np.int32)
    messages = conversations.checked(prompt)
    tools = {"tools": example["tools"]} if example["tools"] else {}
    return np.asarray(self._writer.ids(messages, **tools), np.int32)


def environment(config: config_lib.RunConfig, text: Any) -> HostEnvironment:
  """The sizes of a rollout; `text` is the tokenizer."""
  most = config.sampling.max_new_tokens
  assert most is not None  # `RunConfig` has seen to it.
  return HostEnvironment(
    max_turns=most,  # Each has a token at least.
    max_action_len=min(config.environment.max_action_len or most, most),
    max_observation_len=most,
    action_ends=tuple(text.end_ids),
    path=config.data.environment,
  )


def fields(config: config_lib.RunConfig, text: Any) -> dict[str, Any]:
  """Fields of a `Problem`.

  Args:
    config: The config of the run.
    text: The tokenizer.

  Raises:
    KeyError: A reward is none of the scores of the environment.
    ValueError: There is no such environment, or it cannot be played.
  """
  data, wanted = config.data, config.served
  assert data.max_prompt_len is not None  # `RunConfig` has seen to it.
  path = data.environment.removeprefix(served_settings.PREFIX)
  encoder = Encoder(text, data.template, dict(data.chat_options))
  served = verifiers_process.Environment(
    path,
    dict(config.environment.options),
    config.rewards.variables,
    wanted.python,
  )
  try:
    names = frozenset({*served.names, ACCURACY})
    known = sorted({*names, RETURN})
    verifiers.check_names(
      f"the environment {data.environment!r}", config, known
    )
    writer = conversations.Writer(encoder)
    train, held_out = (
      Examples(split, served.examples[split], writer, text.encode)
      for split in verifiers_process.SPLITS
    )
    train[0]  # Raises where its messages cannot be written.
  except BaseException:
    served.close()
    raise
  return {
    "tokenizer": text,
    "train": train,
    "held_out": held_out,
    "supervised": train,
    "encoder": encoder,
    "answer_after": config.rewards.answer_after,
    "max_prompt_len": data.max_prompt_len,
    "max_new_tokens": config.sampling.max_new_tokens,
    "truncate_completions": True,
    "host_environment": environment(config, text),
    "sessions": served_rollouts.Served(
      served,
      wanted,
      config.rewards.row_timeout_s,
      config.rewards.step_timeout_s,
    ),
    "score_names": names,
    "components": frozenset(known),
    "judge": verifiers.judge(
      config,
      judges.InGraph(judges.of_episodes),
      config.rewards.correct or ACCURACY,
    ),
    "provides": frozenset({"turns", "state_id"}),
  }
