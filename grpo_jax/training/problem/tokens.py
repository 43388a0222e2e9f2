"""The tokenizer of a config, and the comparison of two tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_jax import ranges
from grpo_jax.data import observations, tokenizer
from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import tasks

# Tokenizers that come with the package.
OURS = {"gsm8k": tokenizer.GSM8K_BPE, "bytes": tokenizer.BYTES}


def tokenizer_path(config: config_lib.RunConfig) -> Any:
  """File or folder of the tokenizer of a config."""
  if config.data.tokenizer in OURS:
    return OURS[config.data.tokenizer]
  if config.data.tokenizer.lower().endswith(".gguf"):
    from grpo_jax.models.hf import hub

    return hub.local_directory(config.data.tokenizer)
  if config.data.tokenizer:
    return config.data.tokenizer
  return config.model.directory()


def make_tokenizer(config: config_lib.RunConfig) -> Any:
  """Makes the tokenizer of a config; for a task, its alphabet.

  Raises:
    FileNotFoundError, KeyError, ValueError: There is no such tokenizer, or no
      such task.
  """
  if config.data.is_made_of_ids:
    return observations.TaskTokenizer(tasks.make_task(config.data))
  return tokenizer.Tokenizer(
    tokenizer_path(config), end_tokens=config.data.end_tokens or None
  )


def single_ids(text: Any, pieces: Sequence[str], setting: str) -> list[int]:
  """Ids of texts that are one token each.

  Args:
    text: The tokenizer.
    setting: Name of the setting, and of the thing that has a single token, for
      messages.

  Raises:
    ValueError: A text is not exactly one token.
  """
  all_ids: list[int] = []
  for piece in pieces:
    try:
      ids = text.markup_ids(piece)
    except ValueError:
      ids = []
    if len(ids) != 1:
      raise ValueError(
        f"{setting} with a single token, and {piece!r} is"
        f" {ranges.counted(len(ids), 'token')}"
        f" {ids}. Choose a token of the tokenizer."
      )
    all_ids += ids
  return all_ids


def check_same(ours: Any, other: Any, label: str) -> None:
  """Raises ValueError unless two tokenizers have the same pieces as ids.

  Different files may hold the same tokenizer, and a model reads ids alone. Ids
  above the pieces of both are rows of a table that nothing uses.

  Args:
    ours: Tokenizer of this run.
    other: Tokenizer of a model from outside.
    label: Name of that model for messages: the setting and its value.
  """
  here, there = ours.pieces(), other.pieces()
  differ = sorted(
    id_ for id_ in here.keys() | there.keys() if here.get(id_) != there.get(id_)
  )
  if differ:
    first = differ[0]
    raise ValueError(
      f"{label}: its tokenizer is another one than that of this run:"
      f" {len(differ)} ids differ, the first is {first}, which is"
      f" {_piece(there, first)} there and {_piece(here, first)} here. A model"
      " reads ids and not text; name one with the tokenizer of this run, or set"
      " config.data.tokenizer to that of the model."
    )


def _piece(pieces: dict[int, str], id_: int) -> str:
  return repr(pieces[id_]) if id_ in pieces else "nothing"
