"""From the settings of rewards to the judges of a run."""

from __future__ import annotations

import codecs
import copy
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import objects
from grpo_jax.data import domains, sources
from grpo_jax.rewards import derived
from grpo_jax.rewards import functions as functions_lib
from grpo_jax.rewards.agents import interceptor as interceptor_lib
from grpo_jax.rewards.in_graph import accuracy, forms, numbers
from grpo_jax.rewards.in_graph import text as text_lib
from grpo_jax.rewards.workers import host, judge_service
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.judge_settings import JUDGE
from grpo_jax.settings.reward_settings import REWARD_MODEL
from grpo_jax.training.problem import judges
from grpo_jax.training.runtime import programs
from grpo_jax.types import Prompts, Rollout


def judge(
  config: config_lib.RunConfig,
  verifier: judges.InGraph | judges.OnHost | None,
  correct: str | None = None,
  names: tuple[str, ...] = (),
) -> judges.Sum:
  """The verdict of a run.

  Args:
    config: The config of the run.
    verifier: Of completions alone; None for a problem that is played in
      sessions, before they are there.
    correct: The component that marks right answers; None: as the config says.
    names: Of the domains of prompts, by number.

  Raises:
    ValueError: A reward is for a domain that there is not.
  """
  rewards = config.rewards
  found: list[Any] = [] if verifier is None else [verifier]
  if REWARD_MODEL in rewards.functions:
    found.append(judges.ByMember(REWARD_MODEL, "reward"))
  of_domains = {
    name: domains.numbers(names, wanted, f"config.rewards.domains[{name!r}]")
    for name, wanted in rewards.domains.items()
  }
  if config.judge.service.url and JUDGE in rewards.functions:
    asked = service(config, of_domains.get(JUDGE))
    found.append(judges.ByService(JUDGE, asked, rewards.step_timeout_s))
  for name in rewards.names:
    if name in derived.DERIVED:
      options = rewards.arguments(name)
      derived.check_options(name, options)
      function = functools.partial(
        derived.DERIVED[name],
        **programs.numbers(f"rewards.options.{name}", options),
      )
      found.append(judges.Derived(name, function, derived.sources(options)))
  named = rewards.right if correct is None else correct
  if named in derived.DERIVED:
    raise ValueError(
      f"config.rewards.functions={rewards.functions}: what is right is not for"
      f" {named!r} to say, which is made of it; name a verifier first, or as"
      " config.rewards.correct."
    )
  schedules: dict[str, Any] = {
    name: tuple(zip(*programs.schedule(name, points), strict=True))
    for name, points in rewards.schedules.items()
  }
  return judges.Sum(
    tuple(found),
    programs.numbers(
      "rewards.weights", dict(zip(rewards.names, rewards.weights, strict=True))
    ),
    named,
    schedules,
    of_domains,
  )


def service(
  config: config_lib.RunConfig, of_domains: tuple[int, ...] | None = None
) -> judge_service.JudgeService:
  """The judge that is asked over HTTP."""
  wanted = config.judge
  return judge_service.JudgeService(
    wanted.service.url,
    wanted.model,
    wanted.rubric,
    wanted.verdicts,
    wanted.marker,
    max_tokens=wanted.max_new_tokens,
    key_variable=wanted.service.key_variable,
    options=wanted.service.options,
    limits=wanted.service.limits(),
    domains=of_domains,
  )


def interceptor(
  config: config_lib.RunConfig,
) -> tuple[interceptor_lib.Interceptor, judge_service.JudgeService | None]:
  """The interceptor of a config, and the model over HTTP that it asks, if any.

  Without rules it blocks nothing.

  Raises:
    ValueError: A rule or its judge cannot be imported.
  """
  wanted = config.interceptor
  asked = service(config) if wanted.asks_service else None
  return wanted.make(asked, config.rewards.step_timeout_s), asked


def on_host(
  config: config_lib.RunConfig, tokenizer: tuple[str, list, dict]
) -> judges.OnHost:
  """The config's functions of text, in processes of their own.

  Args:
    config: The config of the run.
    tokenizer: How functions that ask for it make the tokenizer.
  """
  rewards = config.rewards
  functions = of_text(config)
  context = functions_lib.Context(
    tokenizer=tokenizer,
    answer_after=rewards.answer_after,
    sandbox=rewards.sandbox,
    conversational=config.data.template == "chat",
  )
  weights = dict(zip(rewards.names, rewards.weights, strict=True))
  scorer = host.HostScorer(
    functions,
    {name: weights[name] for name in functions},
    row_timeout_s=rewards.row_timeout_s,
    step_timeout_s=rewards.step_timeout_s,
    num_workers=rewards.num_workers,
    variables=rewards.variables,
    worker_memory_gib=rewards.worker_memory_gib,
    options={name: rewards.arguments(name) for name in functions},
    steps=rewards.steps,
    context=context,
  )
  right = functions_lib.load_function(functions.get(rewards.right, _ACCURACY))
  if functions_lib.kind(right).sees_group:
    scorer.close()
    raise ValueError(
      f"config.rewards.functions={rewards.functions}: what is right is not for"
      f" {rewards.right!r} to say, which compares the completions of a prompt;"
      " name a verifier first, or as config.rewards.correct, with a weight of 0"
      " if it is only watched."
    )
  return judges.OnHost(scorer)


# Bytes of a completion that there is room for, for each token of the budget. A
# longer one is white space for the most part, and has no answer.
_BYTES_PER_TOKEN = 8
# Golds that are looked at before anything is compiled.
_NUM_GOLDS = 1000

ArrayReward = Callable[..., jax.Array]
# Rewards of text that can be inside the program: (text, options) -> [B].
_ON_ARRAYS: dict[str, ArrayReward] = {
  "language_consistency": forms.language_consistency,
  "tag_count": forms.tag_count,
  "think_answer_format": forms.think_answer_format,
}
_ACCURACY = "math_accuracy"
_GOLD = "gold/"


def in_graph(
  config: config_lib.RunConfig, pieces: Sequence[bytes], strips: int
) -> judges.InGraph:
  """The config's functions of text, on arrays.

  Args:
    config: The config of the run.
    pieces: The bytes of each token of the tokenizer.
    strips: Spaces that it drops at the beginning of a text.

  Raises:
    ValueError: One of them has no form for arrays.
  """
  functions = of_text(config)
  known = sorted((*_ON_ARRAYS, _ACCURACY))
  if others := sorted(set(functions.values()) - set(known)):
    raise ValueError(
      f"config.rewards.in_graph=True: {others} have no form for arrays, and are"
      f" for the host; there are {known}. Leave them out, or set"
      " config.rewards.in_graph=False."
    )
  for name, path in functions.items():
    functions_lib.check_options(path, config.rewards.arguments(name))
  table = text_lib.table(pieces, strips)
  budget = config.sampling.max_new_tokens
  assert budget is not None  # `RunConfig` has seen to it.
  room = budget * min(max(map(len, pieces)), _BYTES_PER_TOKEN)

  def components(prompts: Prompts, rollout: Rollout) -> dict[str, jax.Array]:
    text = text_lib.written(
      table, rollout.tokens, rollout.completion_mask, room
    )
    found = {}
    for name, path in functions.items():
      if path == _ACCURACY:
        found[name] = _accuracy(prompts, rollout, text)
      else:
        options = config.rewards.arguments(name)
        found[name] = _ON_ARRAYS[path](text, **options)
    return found

  def _accuracy(prompts: Prompts, rollout: Rollout, text: text_lib.Text):
    gold = {
      name.removeprefix(_GOLD): x[rollout.prompt_index]
      for name, x in prompts.extras.items()
      if name.startswith(_GOLD)
    }
    is_known = gold.pop("known")
    after = config.rewards.answer_after
    right = accuracy.accuracy(text, gold, after)
    return jnp.where(is_known, right, jnp.nan)

  return judges.InGraph(components)


class WithGolds:
  """Records with their gold answers as arrays, for `in_graph`."""

  def __init__(self, source: Any):
    """Looks at the first thousand golds.

    Args:
      source: Of records.

    Raises:
      ValueError: One of them is for the host.
    """
    self._source = source
    self.starts = sources.starts(source)
    number = min(len(source), _NUM_GOLDS)
    golds = [source[i]["answer"] for i in range(number)]
    bad = [gold for gold in golds if numbers.gold(gold) is None]
    if bad:
      raise ValueError(
        f"config.rewards.in_graph=True: {len(bad)} of the first {number} golds"
        " are no numbers that can be compared on arrays, such as"
        f" {bad[0]!r:.60}; symbols are for the host: set"
        " config.rewards.in_graph=False."
      )
    self._none = {
      name: np.zeros_like(value)
      for name, value in (numbers.gold("0") or {}).items()
    }

  def __len__(self) -> int:
    return len(self._source)

  def number(self, index: int) -> int:
    """See `sources.number`."""
    return sources.number(self._source, index)

  def only(self, wanted: Collection[int]) -> WithGolds:
    """See `domains.only`."""
    other = copy.copy(self)
    other._source = domains.only(self._source, wanted)
    return other

  def __getitem__(self, index: int) -> dict[str, Any]:
    record = self._source[index]
    gold = numbers.gold(record["answer"])
    arrays = (self._none if gold is None else gold) | {
      "known": np.array(gold is not None)
    }
    named = {f"{_GOLD}{name}": value for name, value in arrays.items()}
    return {**record, "extras": {**record["extras"], **named}}


def placed(
  steps: Sequence[Sequence[tuple[int, float]]],
  texts: Sequence[str],
  tokens: np.ndarray,  # [B, T]
  mask: np.ndarray,  # [B, T] bool
  pieces: Sequence[bytes],
) -> tuple[np.ndarray, np.ndarray]:  # [B, T] float32, [B, T] bool
  """Scores of steps of texts at the tokens with which the steps end.

  Args:
    steps: Of each text (characters up to the end of a step, its score).
    texts: The texts of the tokens.
    tokens: Ids.
    mask: Which of them exist.
    pieces: The bytes of each token.

  Returns:
    The score of the step that ends with a token, and where steps end. Of
    several steps that end with one token the lowest score counts.
  """
  scores = np.full(tokens.shape, np.inf, np.float32)
  for b, (of_row, text) in enumerate(zip(steps, texts, strict=True)):
    slots = np.flatnonzero(mask[b])
    if not of_row or not len(slots):
      continue
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ends = np.cumsum([len(decoder.decode(pieces[tokens[b, t]])) for t in slots])
    ends -= max(ends[-1] - len(text), 0)  # Spaces dropped at the beginning.
    for end, score in of_row:
      place = min(int(np.searchsorted(ends, end)), len(slots) - 1)
      slot = slots[place]
      scores[b, slot] = min(scores[b, slot], score)
  ended = np.isfinite(scores)
  return np.where(ended, scores, 0.0).astype(np.float32), ended


def of_text(config: config_lib.RunConfig) -> dict[str, str]:
  """The rewards that read text: name -> import path or built-in name.

  Raises:
    ValueError: There is none.
  """
  others = {REWARD_MODEL, JUDGE, *derived.DERIVED}
  names = zip(config.rewards.names, config.rewards.functions, strict=True)
  found = {name: path for name, path in names if path not in others}
  if not found:
    raise ValueError(
      f"config.rewards.functions={config.rewards.functions}: none of them reads"
      " what was written; add a verifier, with a weight of 0 if it is only to"
      f" say what is right: {', '.join(functions_lib.BUILTIN)}, or an import"
      " path."
    )
  return found


def check_names(
  who: str, config: config_lib.RunConfig, known: Sequence[str]
) -> None:
  """Raises KeyError if a verifier lacks a reward, or what says who is right."""
  others = {REWARD_MODEL, JUDGE, *derived.DERIVED}
  if unknown := {*config.rewards.functions} - {*known, *others}:
    hint = ""
    if any(":" in name for name in unknown):
      hint = (
        " A function of text scores records of text, as those of"
        ' config.data.source="jsonl"; what a task rewards is returned by its'
        " own verifier."
      )
    shown = sorted(
      name.rpartition(":")[2] if objects.is_object(name) else name
      for name in unknown
    )
    raise KeyError(
      f"config.rewards.functions: {who} has no component {shown}; it has"
      f" {sorted(known)}. Made of these and of the tokens:"
      f" {sorted(derived.DERIVED)}.{hint}"
    )
  right = config.rewards.correct or "accuracy"
  if right not in {*known, *derived.DERIVED}:
    raise KeyError(
      f"{who} has no component {right!r}, which marks right answers in metrics"
      f" and evaluations; it has {sorted(known)}. Return it too, 1 for a right"
      " answer and 0 for a wrong one; or set config.rewards.correct to the"
      " reward that is 1 for right answers."
    )


def plain_extras(record: Mapping[str, Any]) -> dict[str, Any]:
  """What verifiers and sessions are told, readable without NumPy."""
  extras = {**record["extras"], "answer": record["answer"]}
  return {
    name: value.tolist() if hasattr(value, "tolist") else value
    for name, value in extras.items()
  }
