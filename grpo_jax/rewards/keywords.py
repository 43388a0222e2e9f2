"""Reward functions with the keyword arguments of TRL, as they are.

    def reward(completions, ground_truth, **kwargs):
      return [float(x == y) for x, y in zip(completions, ground_truth)]

A function that names `completions` (or their token ids), and neither `ids` nor
`extras`, is called with keywords: `prompts`, `completions`, `completion_ids`
(also as `completions_ids`), and a list for each column of the records: what
their `extras` have, and `answer`. One with `**kwargs` gets all of them, another
those that it names. With the tokenizer's chat template
(`config.data.template="chat"`) a prompt and a completion are lists of messages,
{"role": "user", "content": …}, and otherwise texts.

Deviations from TRL, as of its version of November 2025: lists have one row, or
with `functions.of_group` those of a prompt, and never the whole batch.
`trainer_state` says, when it is looked into, that rewards do not know the step.
`log_extra`, `log_metric` and `environments` are None where a function needs
them, and are left at their defaults otherwise.

Source: TRL, documentation of GRPOTrainer, "Using a custom reward function".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

_OURS = {"ids", "extras"}
_IDS = ("completion_ids", "completions_ids")
_ROWS = ("prompts", "completions", *_IDS)
_AS_MESSAGES = (
  'with config.data.template="chat" prompts and completions are lists of'
  ' messages, as in TRL: a text is completions[i][0]["content"]'
)
_NOT_HERE = ("log_extra", "log_metric", "environments")


class NoState:
  """In the place of TRL's `trainer_state`."""

  def __getattr__(self, name: str) -> Any:
    raise AttributeError(
      f"trainer_state.{name}: a reward here does not know the step, so that a"
      " row has the same one whenever it is scored. Weights that change over"
      " the steps are config.rewards.schedules"
    )


def uses(function: Callable[..., Any]) -> bool:
  """Whether a function is called with keywords."""
  named = _parameters(function)
  if any(p.kind is p.VAR_POSITIONAL for p in named.values()):
    return False
  names = {name.strip("_").removeprefix("unused_") for name in named}
  return not names & _OURS and bool(names & {"completions", *_IDS})


def reads_tokens(function: Callable[..., Any]) -> bool:
  """Whether a function that is called with keywords gets token ids."""
  named = _parameters(function)
  return _takes_any(named) or any(name in named for name in _IDS)


def missing(
  function: Callable[..., Any], given: Collection[str], columns: Collection[str]
) -> list[str]:
  """The arguments of a function that nothing fills in.

  Args:
    function: One that is called with keywords.
    given: Names that it gets besides: of options and of what it asks for.
    columns: The columns of the records.
  """
  known = {*_ROWS, *_NOT_HERE, "trainer_state", *given, *columns}
  return [
    p.name
    for p in _parameters(function).values()
    if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    if p.name not in known
  ]


def adapted(
  function: Callable[..., Any],
  given: Mapping[str, Any],
  conversational: bool,
) -> Callable[..., Any]:
  """The function with the arguments of every reward function.

  Args:
    function: One that is called with keywords.
    given: Arguments that are the same for all rows.
    conversational: Whether prompts and completions are lists of messages.
  """
  named = _parameters(function)
  takes_any = _takes_any(named)

  @functools.wraps(function)
  def call(
    prompts: Sequence[str],
    completions: Sequence[str],
    ids: Sequence[int],
    extras: Sequence[Mapping[str, Any]],
    tokens: Sequence[Sequence[int]] = (),
  ) -> Any:
    del ids  # TRL has no number of a prompt.
    names = {name: None for row in extras for name in row}
    columns = {name: [row.get(name) for row in extras] for name in names}
    full = columns | {
      "prompts": _said("user", prompts) if conversational else list(prompts),
      "completions": (
        _said("assistant", completions) if conversational else list(completions)
      ),
      **{name: list(tokens) for name in _IDS},
      "trainer_state": NoState(),
    }
    needs = {
      name: None
      for name in _NOT_HERE
      if name in named and named[name].default is inspect.Parameter.empty
    }
    chosen = {
      name: value for name, value in full.items() if takes_any or name in named
    }
    try:
      return function(**{**needs, **chosen, **given})
    except (TypeError, AttributeError) as error:
      if conversational:
        error.args = (f"{error}; {_AS_MESSAGES}",)
      raise

  return call


def _said(role: str, texts: Sequence[str]) -> list[list[dict[str, str]]]:
  return [[{"role": role, "content": text}] for text in texts]


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
  try:
    return dict(inspect.signature(function).parameters)
  except ValueError:  # Of some functions in C nobody knows it.
    return {}


def _takes_any(named: Mapping[str, inspect.Parameter]) -> bool:
  return any(p.kind is p.VAR_KEYWORD for p in named.values())
