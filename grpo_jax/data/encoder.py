"""Token ids of the fields of records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from grpo_jax.data.sources import Record


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Token ids of a record's fields; fields that are ids already pass through.

  Attributes:
    tokenizer: Has `encode(text) -> ids`.
    template: What the policy is shown; "{prompt}" stands for the record's
      prompt, all other text (markers, instructions) is literal. Or "chat": the
      tokenizer's chat template, with the prompt as the user's message and the
      assistant's turn opened.
    chat_options: What else that template reads ("enable_thinking", …).
  """

  tokenizer: Any
  template: str = "{prompt}"
  chat_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    if self.template != "chat" and "{prompt}" not in self.template:
      raise ValueError(
        f"Encoder: the template {self.template!r} lacks '{{prompt}}', where"
        " the question goes; or use 'chat'."
      )

  def prompt(self, record: Record) -> np.ndarray:  # [any] int32
    value = record["prompt"]
    if isinstance(value, str) and self.template == "chat":
      message = {"role": "user", "content": value}
      value = self.tokenizer.chat_ids([message], **self.chat_options)
    elif isinstance(value, str):
      # Not str.format: templates and prompts may contain other braces.
      value = self.tokenizer.encode(self.template.replace("{prompt}", value))
    ids = np.asarray(value, np.int32)
    if not ids.size:
      raise ValueError(
        f"Encoder: the record {record!r:.80} has no prompt tokens; a policy"
        " needs at least one to start from."
      )
    return ids

  def completion(self, record: Record) -> np.ndarray:  # [any] int32
    value = record["completion"]
    if value is None:
      raise ValueError(
        f"Encoder: the record {record!r:.80} has no completion; supervised"
        " training needs one in every record. Or leave supervised phases out:"
        " --config.phases=\"('rl',)\"."
      )
    if isinstance(value, str):
      value = self.tokenizer.encode(value)
    return np.asarray(value, np.int32)

  def pair(self, record: Record) -> list[np.ndarray]:  # two of [any] int32
    """Ids of the completion that was preferred, and of the other one."""
    if record.get("rejected") is None:
      raise ValueError(
        f"Encoder: the record {record!r:.80} has no pair of completions; a"
        " phase on pairs needs config.data.format='pairs', and rows with"
        " 'chosen' and 'rejected'."
      )
    return [
      self.completion({**record, "completion": record[field]})
      for field in ("completion", "rejected")
    ]

  def observed(self, record: Record) -> np.ndarray | None:  # [any] bool
    """Which ids of the completion are not imitated, if the record says so."""
    value = record.get("observed")
    if value is None:
      return None
    if np.shape(value) != np.shape(record["completion"]):
      raise ValueError(
        f"Encoder: the record {record!r:.80} has {np.size(value)} flags"
        f" 'observed' for a completion of {np.size(record['completion'])};"
        " needed is one for each of its ids."
      )
    return np.asarray(value, bool)
