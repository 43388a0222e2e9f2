"""An environment on the host, from the settings of a run.

The texts of the settings become token ids, and sizes that do not fit are
refused before anything runs: of turns (`environment`), of contexts that are
compacted (`compaction`), and of tools in a chat template (`chat_options`). If
the environment makes its own prompts, `open_sources` has its records.

A factory of sessions (`data.environment`) may have two attributes, which are
called with `environment.options`, as its `warm_up` is:

    schemas(**options) -> what a chat template reads as `tools`
    in_chat(chat_text, **options) -> an observation with all markup, without
        text; raises ValueError where the template writes other markup

`grpo_jax/rewards/agents/tools.py` has both.
"""

from __future__ import annotations

from typing import Any

from grpo_jax.data import environments
from grpo_jax.rewards.workers import session_worker
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import environment as environment_lib
from grpo_jax.training.problem import records, tokens
from grpo_jax.types import (
  Compaction,
  Environment,
  HostCompaction,
  HostEnvironment,
)


def environment(
  config: config_lib.RunConfig, text: Any, replaced: Environment | None
) -> HostEnvironment:
  """Makes the environment on the host of a config.

  Args:
    text: The tokenizer.
    replaced: The environment in graph that it replaces, or None.

  Raises:
    ValueError: A size is missing, the text of an end is not one token, or the
      tokenizer cannot write the observation after a blocked call.
  """
  turns = config.environment
  sizes: dict[str, Any] = {
    "max_turns": turns.max_turns,
    "max_action_len": turns.max_action_len,
    "max_observation_len": turns.max_observation_len,
  }
  sizes = {
    name: getattr(replaced, name, None) if size is None else size
    for name, size in sizes.items()
  }
  for name, size in sizes.items():
    if size is None:
      raise ValueError(
        f"config.data.environment={config.data.environment!r} needs"
        f" config.environment.{name}: the program of a turn has fixed shapes."
      )
  ends = list(getattr(replaced, "action_ends", text.end_ids))
  if turns.action_ends:
    where = "config.environment.action_ends: an action ends"
    ends = list(text.end_ids)
    ends += tokens.single_ids(text, turns.action_ends, where)
  dummy: list[int] = []
  if config.interceptor.rules:
    try:
      dummy = text.observation_ids(
        config.interceptor.observation, sizes["max_observation_len"]
      )
    except ValueError as error:
      raise ValueError(
        f"config.interceptor.dummy={config.interceptor.dummy}: {error}"
      ) from None
  return HostEnvironment(
    **sizes,
    action_ends=tuple(dict.fromkeys(ends)),
    path=config.data.environment,
    dummy=tuple(dummy),
  )


def compaction(
  config: config_lib.RunConfig,
  text: Any,
  environment: HostEnvironment,
  max_prompt_len: int,
  max_new_tokens: int,
  of_task: Compaction | HostCompaction | None = None,
) -> HostCompaction | None:
  """Makes the compaction of contexts in an environment; None without one.

  Args:
    text: The tokenizer.
    environment: Sizes of turns.
    max_prompt_len, max_new_tokens: S of first prompts, and T.
    of_task: Compaction of the task, which counts if the config sets none; it
      has slots for any context. None: the task has none.

  Raises:
    ValueError: A size does not fit, or the tokenizer cannot write a text.
  """
  setup = config.environment.compaction
  if setup.context_len is None:
    if isinstance(of_task, Compaction):
      return _as_on_host(of_task, max_prompt_len)
    return of_task
  where = "config.environment.compaction"
  request, around = setup.request, setup.around
  if config.data.template == "chat" and isinstance(request, str):
    request, around = _in_chat(config, text, request)
    around = setup.resume or around
  try:
    instruction = text.observation_ids(request, setup.context_len)
  except ValueError as error:
    raise ValueError(
      f"{where}.instruction={setup.instruction}: {error}"
    ) from None
  ends = list(environment.action_ends)
  if setup.ends:
    ends = list(text.end_ids)
    ends += tokens.single_ids(text, setup.ends, f"{where}.ends: a summary ends")
  before, after = (tuple(text.markup_ids(x)) for x in around)
  summary = len(before) + setup.max_summary_len - 1 + len(after)
  reserve = _reserve(setup, environment, len(instruction))
  begins = max_prompt_len + summary
  observed = environment.max_observation_len
  if begins + observed + reserve > setup.context_len:
    raise ValueError(
      f"{where}.context_len={setup.context_len} has no room for a first prompt"
      f" of {max_prompt_len} tokens (config.data.max_prompt_len), a summary of"
      f" {summary}, an observation of {observed} and a reserve of {reserve};"
      f" needs {begins + observed + reserve}."
    )
  if observed + reserve > max_new_tokens:
    raise ValueError(
      f"config.sampling.max_new_tokens={max_new_tokens} is what follows the"
      f" prompt of a context, and has no room for an observation of {observed}"
      f" tokens and a reserve of {reserve}; raise it to {observed + reserve} or"
      " more."
    )
  prompt_len = setup.max_prompt_len
  if prompt_len is None:
    turn = environment.max_action_len + observed
    prompt_len = min(
      begins + setup.keep_turns * turn, setup.context_len - reserve
    )
  if prompt_len < begins:
    raise ValueError(
      f"{where}.max_prompt_len={prompt_len} is less than {begins}: a first"
      f" prompt of {max_prompt_len} tokens and a summary of {summary}; raise"
      " it, or leave it out."
    )
  return HostCompaction(
    every=setup.every,
    context_len=setup.context_len,
    reserve=reserve,
    instruction=tuple(instruction),
    ends=tuple(dict.fromkeys(ends)),
    resume=(before, after),
    max_summary_len=setup.max_summary_len,
    keep_turns=setup.keep_turns,
    max_compactions=setup.max_compactions,
    prompt_len=prompt_len,
    trains_summary=setup.trains_summary,
    keeps_summary=setup.keeps_summary,
  )


def _in_chat(
  config: config_lib.RunConfig, text: Any, instruction: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
  """Writes the instruction as the user's message, a summary as the assistant's.

  Returns:
    (before, instruction, after), for the place after the end token of an
    action; and the texts around a summary after a prompt that opens the
    assistant's turn.

  Raises:
    ValueError: There is no template, or no end token ends its replies.
  """
  action, asks = "the action", "the instruction"
  messages = [
    {"role": "user", "content": "the task"},
    {"role": "assistant", "content": action},
    {"role": "user", "content": asks},
  ]
  chat = text.chat_text(messages, **config.data.chat_options)
  _, _, rest = chat.partition(action)
  before, _, after = rest.partition(asks)
  for id_ in text.end_ids:
    end = text.exact_text([id_])
    if before.startswith(end) and after:
      return (before.removeprefix(end), instruction, after), ("", end)
  raise ValueError(
    "config.environment.compaction: the chat template writes"
    f" {rest!r:.80} behind a reply, which begins with no end token of the"
    " tokenizer; write the signs of the chat into config.environment.compaction"
    ".instruction, three texts, and resume, two texts (docs/compaction.md)."
  )


def _reserve(
  setup: environment_lib.CompactionConfig,
  environment: HostEnvironment,
  instruction_len: int,
) -> int:
  """The number of tokens that must be left while no summary is due.

  It is compared once in a turn, so an action comes before the next comparison.

  Raises:
    ValueError: The reserve of the settings is too small.
  """
  size = environment.max_action_len
  minimum = size + instruction_len + setup.max_summary_len
  reserve = minimum if setup.reserve is None else setup.reserve
  if reserve < minimum:
    raise ValueError(
      f"config.environment.compaction.reserve={reserve} is less than {minimum}:"
      f" an action of {size} tokens, the instruction of {instruction_len} and a"
      f" summary of {setup.max_summary_len}; raise it, or leave it out."
    )
  return reserve


def _as_on_host(compaction: Compaction, prompt_len: int) -> HostCompaction:
  """A task's compaction, on the host: its signs are instruction and ends."""
  minimum = compaction.head_len + 1 + compaction.max_summary_len
  if prompt_len < minimum:
    raise ValueError(
      f"config.data.max_prompt_len={prompt_len}: contexts of this task begin"
      f" with up to {minimum} tokens (head, <sum>, summary); raise it to that."
    )
  return HostCompaction(
    every=compaction.every,
    context_len=compaction.context_len,
    reserve=compaction.reserve,
    instruction=(compaction.open_id,),
    ends=(compaction.close_id,),
    resume=((compaction.open_id,), (compaction.close_id,)),
    max_summary_len=compaction.max_summary_len,
    keep_turns=compaction.keep_turns,
    max_compactions=compaction.max_compactions,
    prompt_len=prompt_len,
    head_len=compaction.head_len,
    trains_summary=compaction.trains_summary,
    keeps_summary=compaction.keeps_summary,
  )


def open_sources(
  config: config_lib.RunConfig, text: Any, environment: HostEnvironment
) -> records.Sources:
  """Opens the prompts of an environment, and a teacher's episodes in it.

  Args:
    config: Config whose data source is "environment".
    text: The tokenizer.
    environment: The environment of the config.

  Raises:
    ValueError: The factory cannot be imported, does not take the options, or
      makes no prompts.
  """
  factory = session_worker.load_factory(
    environment.path, config.environment.options
  )
  if not hasattr(factory, "problem"):
    raise ValueError(
      "config.data.source='environment': the environment"
      f" {environment.path!r} has no attribute `problem`, a function (seed,"
      " **options) -> (prompt, extras), which makes prompts; add one, or name"
      " another source of prompts."
    )
  train = environments.EnvironmentSource(factory.problem, "train", config.seed)
  # A fixed seed: all runs have the same held-out episodes.
  held_out = environments.EnvironmentSource(factory.problem, "test", 0)
  lesson = getattr(factory, "lesson", None)
  if lesson is None:
    return records.Sources(train, held_out, train)
  ends = list(environment.action_ends)
  lessons = environments.PlayedSource(
    train,
    lesson,
    text,
    # A teacher's action without an end of its own gets an end token.
    sorted(ends, key=lambda x: x not in text.end_ids),
    environment.max_turns,
    environment.max_observation_len,
  )
  return records.Sources(train, held_out, lessons)


def chat_options(config: config_lib.RunConfig, text: Any) -> dict[str, Any]:
  """The options of the chat template, with the tools of the environment.

  Args:
    config: The config of the run. Tools that it names itself stay.
    text: The tokenizer.

  Raises:
    ValueError: The factory complains about its options or about the template,
      or its markup has no room in an observation.
  """
  data, turns = config.data, config.environment
  options = dict(data.chat_options)
  if data.template != "chat" or not data.environment:
    return options
  factory = session_worker.load_factory(data.environment, turns.options)
  if "tools" not in options and hasattr(factory, "schemas"):
    options["tools"] = factory.schemas()
  if hasattr(factory, "in_chat"):

    def chat_text(messages):
      return text.chat_text(messages, **options)

    markup = factory.in_chat(chat_text)
    if turns.max_observation_len is not None:
      text.observation_ids(markup, turns.max_observation_len)
  return options
