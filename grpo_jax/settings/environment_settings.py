"""Settings of an environment on the host, and of what is kept of its turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from grpo_jax import ranges

_INSTRUCTION = (
  "Your context is nearly full, and all of it will be gone but for the task and"
  " the last turns. Write a summary of what you have found out and done, and of"
  " what is left to do."
)


@dataclasses.dataclass(frozen=True)
class CompactionConfig:
  """When a context is replaced by a summary that the policy writes.

  The next context begins with the whole first prompt, the summary with what
  stands around it, and the last turns; docs/compaction.md has it for chats.

  Attributes:
    context_len: C, most tokens of a context: what it begins with, and what
      follows. None: contexts are never replaced.
    reserve: Tokens; a summary is due where a context has fewer than this left.
      None: just enough for an action, the instruction and a summary.
    every: Turns after which one is due anyway; 0: none.
    keep_turns: Last turns, each an observation and an action, that the next
      context begins with; fewer if they do not fit.
    max_compactions: Most of them in an episode.
    max_summary_len: Tokens of a summary, with its end.
    max_prompt_len: Slots of what contexts begin with. None: as many as the
      first prompt, a summary and the kept turns may take, within C.
    instruction: What the policy reads before it writes a summary: one text, or
      three (before, text, after), as the observations of a chat. With one text
      and the data's template "chat" it is a message of the user, as the
      tokenizer's chat template writes it.
    ends: Texts of tokens that end a summary, beside the end tokens; empty: what
      ends an action.
    resume: What stands before and after a summary in the next context. The
      token that ended the summary is not part of it, so that a chat has its end
      of a message in the second text. Empty: nothing; or, where the template
      says what the instruction is, what makes the summary the assistant's reply
      to the first prompt.
    trains_summary: Whether the tokens of summaries are trained.
    keeps_summary: Whether contexts begin with the summary; without it they
      begin with the prompt and the last turns alone.
  """

  context_len: int | None = None
  reserve: int | None = None
  every: int = 0
  keep_turns: int = 2
  max_compactions: int = 3
  max_summary_len: int = 512
  max_prompt_len: int | None = None
  instruction: tuple[str, ...] = (_INSTRUCTION,)
  ends: tuple[str, ...] = ()
  resume: tuple[str, ...] = ()
  trains_summary: bool = True
  keeps_summary: bool = True

  def __post_init__(self):
    where = "config.environment.compaction"
    ranges.check(
      self,
      where,
      context_len=ranges.SLOTS,
      reserve=ranges.SLOTS,
      every=ranges.COUNT,
      keep_turns=ranges.Range(0, 2**10),
      max_compactions=ranges.Range(1, 2**10),
      max_summary_len=ranges.Range(2, 2**20),
      max_prompt_len=ranges.SLOTS,
    )
    if len(self.instruction) not in (1, 3):
      raise ValueError(
        f"{where}.instruction={self.instruction} are {len(self.instruction)}"
        " texts; give one, or three: before the text, the text, after it."
      )
    if len(self.resume) not in (0, 2):
      raise ValueError(
        f"{where}.resume={self.resume} are {len(self.resume)} texts; give two,"
        " before the summary and after it, or none."
      )
    if self.compacts:
      return
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if value != field.default:
        raise ValueError(
          f"{where}.{field.name}={value!r} was set, and {where}.context_len is"
          " not: contexts are never replaced. Set that, or leave the others as"
          " they are."
        )

  @property
  def compacts(self) -> bool:
    """Whether contexts are replaced at all."""
    return self.context_len is not None

  @property
  def asked(self) -> Any:
    """The instruction as an observation."""
    if len(self.instruction) == 1:
      return self.instruction[0]
    return self.instruction

  @property
  def around(self) -> tuple[str, ...]:
    """Before a summary, and after it."""
    return self.resume or ("", "")


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
  """Turns of an environment on the host (`data.environment`).

  Attributes:
    max_turns: Most actions of an episode.
    max_action_len: Tokens after which an action ends.
    max_observation_len: Tokens to which an observation is cut.
    action_ends: Texts of tokens that end an action, beside the end tokens.
    options: What the factory takes beside the prompt, the extras and the seed,
      by name; plain data.
    concurrency: Sessions that each of `rewards.num_workers` processes has at
      work at the same time. More of them hide the time for which tools wait;
      fewer leave each the cores that it needs to answer in time.
    compaction: When contexts are replaced by summaries that the policy writes.

  None, and no text, mean those of the task's own environment; where there is
  none, the sizes are needed.
  """

  max_turns: int | None = None
  max_action_len: int | None = None
  max_observation_len: int | None = None
  action_ends: tuple[str, ...] = ()
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  concurrency: int = 16
  compaction: CompactionConfig = dataclasses.field(
    default_factory=CompactionConfig
  )

  def __post_init__(self):
    names = ("max_turns", "max_action_len", "max_observation_len")
    ranges.check(
      self,
      "config.environment",
      concurrency=ranges.Range(1, 2**16),
      **dict.fromkeys(names, ranges.SLOTS),
    )
