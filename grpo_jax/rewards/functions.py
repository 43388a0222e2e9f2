"""Reward functions on the host: how they are named, found and called.

A reward function has the signature

    fn(prompts: list[str], completions: list[str], ids: list[int],
       extras: list[dict]) -> list[float | None]

and is called with lists of one row. Three things may differ:

- `async def`: many rows wait at the same time, each with its own deadline. That
  is for functions that ask a service.
- `@functions.of_group`: the lists hold all completions of a prompt, for rewards
  that compare them.
- Further arguments, by name: those of `CONTEXT`, and what
  `config.rewards.options` has for this function.

    def spelling(prompts, completions, ids, extras, *, tokens, words=100):

is given the token ids of each completion, and `words` by
`config.rewards.options = {"spelling": {"words": 50}}`.

Functions with the keyword arguments of TRL are taken too: see `keywords.py`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from grpo_jax import objects
from grpo_jax.rewards import keywords

RewardFunction = Callable[..., Any]

BUILTIN = {
  "box_format": "grpo_jax.rewards.vision:box_format",
  "box_iou": "grpo_jax.rewards.vision:box_iou",
  "choice": "grpo_jax.rewards.vision:choice",
  "code": "grpo_jax.rewards.code:code",
  "counting": "grpo_jax.rewards.vision:counting",
  "detection_map": "grpo_jax.rewards.vision:detection_map",
  "detection_score": "grpo_jax.rewards.vision:detection_score",
  "language_consistency": ("grpo_jax.rewards.formatting:language_consistency"),
  "math_accuracy": "grpo_jax.rewards.math_accuracy:math_accuracy",
  "numeric": "grpo_jax.rewards.vision:numeric",
  "parses": "grpo_jax.rewards.trees:parses",
  "reasoning_gym": "grpo_jax.rewards.gym:reasoning_gym",
  "tag_count": "grpo_jax.rewards.formatting:tag_count",
  "think_answer_format": "grpo_jax.rewards.formatting:think_answer_format",
  "token_similarity": "grpo_jax.rewards.trees:token_similarity",
  "tree_similarity": "grpo_jax.rewards.trees:tree_similarity",
  "yes_no": "grpo_jax.rewards.vision:yes_no",
}
# Those that score the steps of a completion.
STEPS = {"arithmetic_steps": "grpo_jax.rewards.steps:arithmetic_steps"}

# What a function is given where it has an argument of this name.
CONTEXT = {
  "tokens": "list of token ids of each completion",
  "tokenizer": "the run's tokenizer, with `encode` and `decode`",
  "answer_after": "config.rewards.answer_after",
  "sandbox": "config.rewards.sandbox",
  "timeout_s": "config.rewards.row_timeout_s, seconds",
}
_POSITIONAL = 4


@dataclasses.dataclass(frozen=True)
class Context:
  """What is the same for all rows.

  Attributes:
    tokenizer: (import path of a class, its arguments, its keyword arguments),
      plain data; None if nobody asks for it.
    answer_after: Marker of an answer; see `answers.final_answer`.
    sandbox: How programs are kept apart; see `sandbox.py`.
    timeout_s: Deadline of a row, seconds.
    conversational: Whether functions that are called with keywords get lists of
      messages.
  """

  tokenizer: tuple[str, list, dict] | None = None
  answer_after: str = ""
  sandbox: str = "bwrap"
  timeout_s: float = 10.0
  conversational: bool = False


class Kind(NamedTuple):
  """How a function is called.

  Attributes:
    sees_group: With all completions of a prompt, and not with one.
    is_async: It waits, and others are called meanwhile.
  """

  sees_group: bool
  is_async: bool


KINDS = tuple(
  Kind(group, wait) for wait in (True, False) for group in (True, False)
)


def of_group(function: RewardFunction) -> RewardFunction:
  """Declares that a function is called with all completions of a prompt.

  In training these are the `group_size` of a step. An evaluation has as many as
  it draws of each prompt: one, where it is greedy.
  """
  function.sees_group = True  # type: ignore[attr-defined]
  return function


def plain_of(function: RewardFunction) -> Any:
  """What somebody has written, below decorators and given arguments."""
  plain: Any = function
  while isinstance(plain, functools.partial):
    plain = plain.func
  return inspect.unwrap(plain)


def kind(function: RewardFunction) -> Kind:
  """How a function is called."""
  plain = plain_of(function)
  is_async = inspect.iscoroutinefunction(plain)
  return Kind(getattr(function, "sees_group", False), is_async)


@functools.cache
def asks_for(function: RewardFunction) -> set[str]:
  """The names of `CONTEXT` that a function is given."""
  if keywords.uses(function):
    found = set(_parameters(function)) & set(CONTEXT)
    return found | ({"tokens"} if keywords.reads_tokens(function) else set())
  return set(_named(function)) & set(CONTEXT)


def load_function(path: str) -> RewardFunction:
  """Imports a reward function.

  Args:
    path: "package.module:function", or a name in `BUILTIN` or `STEPS`.

  Raises:
    ValueError: Nothing callable is found there.
  """
  return load(path, "reward function", BUILTIN | STEPS)


def check_options(path: str, options: Mapping[str, Any]) -> None:
  """Raises ValueError if a function has no argument of some option's name."""
  function = load_function(path)
  by_keyword = keywords.uses(function)
  named = dict(_parameters(function)) if by_keyword else _named(function)
  own = [name for name in named if name not in CONTEXT]
  takes_any = any(
    p.kind is p.VAR_KEYWORD for p in _parameters(function).values()
  )
  for name in options:
    if name not in own and not takes_any:
      raise ValueError(
        f"config.rewards.options: {path!r} got {name!r}; it has"
        f" {', '.join(own) or 'no options'}.{nearest(name, own)}"
      )
  if by_keyword:  # What is no option may be a column of the records.
    return
  needed = {
    name
    for name in own
    if named[name].default is inspect.Parameter.empty and name not in options
  }
  if needed:
    raise ValueError(
      f"config.rewards.options: {path!r} needs {', '.join(sorted(needed))};"
      f" set config.rewards.options = {{NAME: {{{sorted(needed)[0]!r}: …}}}}."
    )


def bound(
  path: str, options: Mapping[str, Any], context: Context
) -> RewardFunction:
  """A function with its options and what it asks for, but for the tokens."""
  function = load_function(path)
  asked = asks_for(function) - {"tokens"}
  given: dict[str, Any] = {name: getattr(context, name) for name in asked}
  if given.get("tokenizer") is not None:
    where, arguments, named = given["tokenizer"]
    given["tokenizer"] = _tokenizer(where, repr(arguments), repr(named))
  if keywords.uses(function):
    # Its options are named, and so is what else it is given.
    own = _parameters(function)
    wanted = {name: x for name, x in given.items() if name in own}
    made = functools.partial(
      keywords.adapted(function, {**wanted, **options}, context.conversational)
    )
  else:
    made = functools.partial(function, **given, **options)
  if hasattr(function, "sees_group"):
    made.sees_group = function.sees_group  # type: ignore[attr-defined]
  if hasattr(function, "warm_up"):
    warm_up = function.warm_up
    named = {
      name: given[name] for name in _parameters(warm_up) if name in given
    }
    made.warm_up = functools.partial(  # type: ignore[attr-defined]
      warm_up, **named
    )
  return made


@functools.cache
def _tokenizer(path: str, arguments: str, named: str) -> Any:
  make = load(path, "tokenizer", {})
  return make(*ast.literal_eval(arguments), **ast.literal_eval(named))


def load(
  path: str, what: str, builtin: Mapping[str, str]
) -> Callable[..., Any]:
  """Imports a function; see `load_function`.

  Args:
    path: "package.module:function", or a name in `builtin`.
    what: It is, in messages.
    builtin: Short names of paths.
  """
  known = f" or one of {sorted(builtin)}" if builtin else ""
  full = builtin.get(path, path)
  if not all(full.partition(":")):
    raise ValueError(
      f"{what} '{path}': needed is an import path"
      f" 'package.module:function'{known}." + nearest(path, builtin)
    )
  function = objects.load(
    full, what, "function", where="here and in a process of its own"
  )
  if not callable(function):
    raise ValueError(
      f"{what} '{path}' is {function!r:.80} ({type(function).__name__}); needed"
      " is a function."
    )
  return function


nearest = objects.nearest


def _parameters(function: RewardFunction) -> Mapping[str, inspect.Parameter]:
  try:
    return inspect.signature(function).parameters
  except ValueError:  # Of some functions in C nobody knows it.
    return {}


def _named(function: RewardFunction) -> dict[str, inspect.Parameter]:
  """The arguments after those of every reward function."""
  parameters = list(_parameters(function).values())
  variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
  return {
    p.name: p
    for i, p in enumerate(parameters)
    if p.kind not in variadic
    and (i >= _POSITIONAL or p.kind is inspect.Parameter.KEYWORD_ONLY)
  }
