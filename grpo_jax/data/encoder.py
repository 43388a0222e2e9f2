"""Token ids of the fields of records."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.data.shown import Shown, Sight, Unusable
from grpo_jax.data.sources import Record


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Token ids of a record's fields; fields that are ids already pass through.

  Attributes:
    tokenizer: Has `encode(text) -> ids`, and `context_ids(text) -> ids`.
    template: What the policy is shown; "{prompt}" stands for the record's
      prompt, all other text (markers, instructions) is literal. The begin token
      of a tokenizer that has one comes first, once. Or "chat": the tokenizer's
      chat template, with the prompt as the user's message and the assistant's
      turn opened; it writes a begin token itself.
    chat_options: What else that template reads ("enable_thinking", …).
    sight: How prompts show images; None: they are text alone.
  """

  tokenizer: Any
  template: str = "{prompt}"
  chat_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  sight: Sight | None = None

  def __post_init__(self):
    if self.template != "chat" and "{prompt}" not in self.template:
      raise ValueError(
        f"Encoder: the template {self.template!r} lacks '{{prompt}}', where"
        " the question goes; or use 'chat'."
      )
    if self.sight is not None:
      token = self.sight.processor.image_token
      if len(self.tokenizer.encode(token)) != 1:
        raise ValueError(
          f"Encoder: the tokenizer has no token {token!r}, which stands for a"
          " part of an image; set config.data.tokenizer to the checkpoint's"
          " own, or config.data.image_processor to the folder of another one."
        )

  def prompts(
    self, records: Sequence[Record]
  ) -> list[np.ndarray | Shown | Unusable]:
    """Ids of several prompts; with images, if they show any.

    An `Unusable` says why the images of a record cannot be shown.
    """
    if self.sight is None:
      return [self.prompt(record) for record in records]
    found = self.sight.cuts(records)
    return [
      self._shown(self.sight, record, cuts)
      if not isinstance(cuts, Unusable)
      else cuts
      for record, cuts in zip(records, found, strict=True)
    ]

  def _shown(
    self, sight: Sight, record: Record, cuts: tuple[Any, ...]
  ) -> Shown | Unusable:
    parts = sight.parts(record["prompt"], len(cuts))
    if isinstance(parts, Unusable):
      return parts
    encode = self.tokenizer.context_ids
    if self.template == "chat":
      message = {"role": "user", "content": sight.content(parts)}
      text = self.tokenizer.chat_text([message], **self.chat_options)
      encode = self.tokenizer.encode
    else:
      text = self.template.replace("{prompt}", sight.in_text(parts))
    made = sight.expanded(text, cuts)
    if isinstance(made, Unusable):
      return made
    return Shown(self._some(encode(made), record), cuts)

  def content(self, record: Record) -> list[Hashable]:
    """What a prompt says and shows, to compare it: no image is looked at."""
    if self.sight is None:
      return self.prompt(record).tolist()
    images = (tuple(image) for image in record.get("pictures", ()))
    return [*self.tokenizer.encode(record["prompt"]), *images]

  def prompt(self, record: Record) -> np.ndarray:  # [any] int32
    """Ids of a prompt.

    Raises:
      ValueError: There are none; or the images of the record cannot be shown.
    """
    if self.sight is not None:
      (made,) = self.prompts([record])
      if isinstance(made, Unusable):
        raise ValueError(
          f"Encoder: the record {record['prompt']!r:.80}: {made}. Take it out,"
          " or correct its images."
        )
      assert isinstance(made, Shown)
      return made.ids
    value = record["prompt"]
    if isinstance(value, str) and self.template == "chat":
      message = {"role": "user", "content": value}
      value = self.tokenizer.chat_ids([message], **self.chat_options)
    elif isinstance(value, str):
      # Not str.format: templates and prompts may contain other braces.
      text = self.template.replace("{prompt}", value)
      value = self.tokenizer.context_ids(text)
    return self._some(value, record)

  def _some(self, value: Any, record: Record) -> np.ndarray:  # [any] int32
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
