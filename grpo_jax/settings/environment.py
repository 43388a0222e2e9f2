"""Settings of an environment on the host.

They are the sizes of its turns, the compaction of contexts, an interceptor
between the policy and its tools, and environments that call the policy over
HTTP.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from grpo_jax import ranges
from grpo_jax.settings import groups

_INSTRUCTION = (
  "Your context is nearly full, and all of it will be gone but for the task and"
  " the last turns. Write a summary of what you have found out and done, and of"
  " what is left to do."
)


@dataclasses.dataclass(frozen=True)
class CompactionConfig(groups.Switched):
  """Compaction: the policy writes a summary that replaces a long context.

  The next context begins with the whole first prompt, the summary with the
  texts around it, and the last turns; for chats see docs/compaction.md.

  Attributes:
    context_len: C, most tokens of a context, with its beginning. None: contexts
      are never replaced.
    reserve: Number of tokens; the policy writes a summary if a context has
      fewer left. None: just enough for an action, the instruction and a
      summary.
    every: Turns after which a summary is written anyway; 0: never.
    keep_turns: Number of last turns, each an observation and an action, with
      which the next context begins; fewer if they do not fit.
    max_compactions: Most compactions of an episode.
    max_summary_len: Most tokens of a summary, with its end.
    max_prompt_len: Slots of the beginning of a context. None: as many as the
      first prompt, a summary and the kept turns may take, within C.
    instruction: Text that the policy reads before it writes a summary; or three
      texts (before, text, after), like the observations of a chat. With one
      text and the data's template "chat" it is a message of the user, written
      by the tokenizer's chat template.
    ends: Texts of tokens that end a summary, beside the end tokens; empty:
      those that end an action.
    resume: Texts before and after a summary in the next context. The token that
      ended the summary is not part of it, so for a chat the second text has the
      end of a message. Empty: no texts; or, if the chat template writes the
      instruction, the texts that make the summary the assistant's reply to the
      first prompt.
    trains_summary: Whether the tokens of summaries are trained.
    keeps_summary: Whether contexts begin with the summary; else they begin with
      the prompt and the last turns alone.
  """

  switch: ClassVar[str] = "context_len"

  context_len: int | None = ranges.SLOTS.field(None)
  reserve: int | None = ranges.SLOTS.field(None)
  every: int = ranges.COUNT.field(0)
  keep_turns: int = ranges.Range(0, 2**10).field(2)
  max_compactions: int = ranges.Range(1, 2**10).field(3)
  max_summary_len: int = ranges.Range(2, 2**20).field(512)
  max_prompt_len: int | None = ranges.SLOTS.field(None)
  instruction: tuple[str, ...] = (_INSTRUCTION,)
  ends: tuple[str, ...] = ()
  resume: tuple[str, ...] = ()
  trains_summary: bool = True
  keeps_summary: bool = True

  def __post_init__(self):
    where = "config.environment.compaction"
    ranges.check(self, where)
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

  @property
  def compacts(self) -> bool:
    """True if contexts are replaced."""
    return self.context_len is not None

  @property
  def request(self) -> Any:
    """The instruction as an observation."""
    if len(self.instruction) == 1:
      return self.instruction[0]
    return self.instruction

  @property
  def around(self) -> tuple[str, ...]:
    """Texts before a summary, and after it."""
    return self.resume or ("", "")


@dataclasses.dataclass(frozen=True)
class EnvironmentConfig:
  """Turns of an environment on the host (`data.environment`).

  Attributes:
    max_turns: Most actions of an episode.
    max_action_len: Tokens after which an action ends.
    max_observation_len: Tokens to which an observation is cut.
    action_ends: Texts of tokens that end an action, beside the end tokens.
    options: Arguments of the factory beside the prompt, the extras and the
      seed, by name; plain data.
    concurrency: Sessions that each of `rewards.num_workers` processes runs at
      the same time. More sessions hide the time for which tools wait; fewer
      leave each session the cores that it needs to answer in time.
    compaction: Compaction of contexts by summaries that the policy writes.

  None and empty texts mean the values of the task's own environment; without
  such an environment, the sizes must be set.
  """

  max_turns: int | None = ranges.SLOTS.field(None)
  max_action_len: int | None = ranges.SLOTS.field(None)
  max_observation_len: int | None = ranges.SLOTS.field(None)
  action_ends: tuple[str, ...] = ()
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  concurrency: int = ranges.Range(1, 2**16).field(16)
  compaction: CompactionConfig = dataclasses.field(
    default_factory=CompactionConfig
  )

  def __post_init__(self):
    ranges.check(self, "config.environment")


SERVICE = "service"


@dataclasses.dataclass(frozen=True)
class InterceptorConfig(groups.Switched):
  """An interceptor, which blocks calls to an environment on the host.

  Attributes:
    rules: Names of sets of `rewards/agents/interceptor.py`: "shell", "files",
      "network", "tests", "golds"; or your own rules, (call) -> bool, as
      "package.module:function". A call that a rule flags is judged. Empty:
      there is no interceptor.
    call: Regular expression of a call in an action, such as
      "(?s)<tool_call>(.*?)</tool_call>": the match of its group is checked.
      Empty: the whole action is checked.
    judge: Judge of flagged calls. Empty: all of them are bad. "service": a
      model over HTTP decides, by config.judge, whose rubric gets the call as
      {completion} and the last 4096 characters before it as {prompt}; a verdict
      worth 0.5 or more means bad. Otherwise a function (call, context) -> bool,
      as "package.module:function".
    dummy: Text that the policy reads after a blocked call; or three texts
      (before, text, after), like the observations of a chat.
    abort: Whether a block ends the episode instead.
    penalty: λ >= 0, subtracted from the reward of a blocked call.
  """

  switch: ClassVar[str] = "rules"

  rules: tuple[str, ...] = ()
  call: str = ""
  judge: str = ""
  dummy: tuple[str, ...] = ("information not available",)
  abort: bool = False
  penalty: float = ranges.Range(0.0, 1e6).field(0.0)

  def __post_init__(self):
    ranges.check(self, "config.interceptor")
    if len(self.dummy) not in (1, 3):
      raise ValueError(
        f"config.interceptor.dummy={self.dummy} are {len(self.dummy)} texts;"
        " give one, or three: before the text, the text, after it."
      )
    try:
      regex = re.compile(self.call)
    except re.error as error:
      raise ValueError(
        f"config.interceptor.call={self.call!r} is no regular expression:"
        f" {error}."
      ) from None
    if regex.groups > 1:
      raise ValueError(
        f"config.interceptor.call={self.call!r} has {regex.groups} groups, and"
        " one can be the call; write (?:…) for the others."
      )
    if not self.rules:
      return
    from grpo_jax.rewards.agents import interceptor as interceptor_lib

    for name in self.rules:
      if name not in interceptor_lib.RULES and ":" not in name:
        raise ValueError(
          f"config.interceptor.rules has {name!r}; choose of"
          f" {', '.join(interceptor_lib.RULES)}, or give"
          " 'package.module:function'."
        )

  @property
  def asks_service(self) -> bool:
    """True if the judge is a model over HTTP."""
    return self.judge == SERVICE

  @property
  def observation(self) -> str | tuple[str, str, str]:
    """The observation after a blocked call."""
    if len(self.dummy) == 3:
      return self.dummy[0], self.dummy[1], self.dummy[2]
    return self.dummy[0]


SOURCE = "environment"  # `data.source` if the environment has its own prompts.
PREFIX = "verifiers:"
# Settings that the environment itself decides.
_ITS_OWN = ("max_turns", "max_observation_len", "action_ends")


def is_served(environment: str) -> bool:
  """Returns True if an environment of this name calls the policy over HTTP."""
  return environment.startswith(PREFIX)


@dataclasses.dataclass(frozen=True)
class ServedConfig:
  """The process of an environment of the package `verifiers`.

  data.environment="verifiers:TASKSET" names its tasks, by id or import path,
  and environment.options has its options.

  Attributes:
    calls: Format in which the policy writes calls of tools, a name of
      `rewards/agents/call_formats.py`; empty: calls are text.
    python: Python interpreter that has the package, of another virtual
      environment if versions conflict; empty: the interpreter of the run.
    num_rows: Most requests that are answered at a time; None: the number of
      completions in a step.
    pause_s: Seconds between successive requests within which they are answered
      together.
  """

  calls: str = ""
  python: str = ""
  num_rows: int | None = ranges.ROWS.field(None)
  pause_s: float = ranges.Range(1e-4, 60.0).field(0.005)

  def __post_init__(self):
    ranges.check(self, "config.served")
    if self.calls:
      from grpo_jax.rewards.agents import call_formats

      groups.one_of("served.calls", self.calls, tuple(call_formats.FORMATS))

  def check(self, data: Any, environment: Any, interceptor: Any) -> None:
    """Raises ValueError for settings that would not be read.

    Args:
      data, environment, interceptor: Sections of the same config.
    """
    over_http = is_served(data.environment)
    if over_http and data.source != SOURCE:
      raise ValueError(
        f"config.data.source={data.source!r} and"
        f" config.data.environment={data.environment!r}: an environment of the"
        f" package verifiers has prompts of its own; set the source to"
        f" {SOURCE!r}."
      )
    usual = ServedConfig()
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if not over_http and value != getattr(usual, field.name):
        raise ValueError(
          f"config.served.{field.name}={value!r}, and config.data.environment"
          f" is not '{PREFIX}MODULE': nobody asks over HTTP. Leave"
          " config.served as it is."
        )
    if not over_http:
      return
    for name in _ITS_OWN:
      if value := getattr(environment, name):
        raise ValueError(
          f"config.environment.{name}={value!r}: the environment"
          f" {data.environment!r} decides that by itself; set what it takes in"
          " config.environment.options."
        )
    if environment.compaction.compacts:
      raise ValueError(
        "config.environment.compaction.context_len="
        f"{environment.compaction.context_len}: the messages of"
        f" {data.environment!r} are its own, and none of them can be replaced;"
        " leave it out, or use an environment of sessions."
      )
    if interceptor.rules:
      raise ValueError(
        f"config.interceptor.rules={interceptor.rules}: calls are executed by"
        f" {data.environment!r}, in its process, and nothing stands between;"
        " leave the rules empty."
      )
