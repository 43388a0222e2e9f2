"""Reward functions on the host: their names, signatures and calls.

A reward function has the signature

    fn(prompts: list[str], completions: list[str], ids: list[int],
       extras: list[dict]) -> list[float | None]

and is called with lists of one row. Three things may differ:

- `async def`: many rows wait at the same time, each with its own deadline. That
  is for functions that ask a service.
- `@registry.of_group`: the lists hold all completions of a prompt, for rewards
  that compare them.
- Further arguments, by name: those of `CONTEXT`, and what
  `config.rewards.options` has for this function.

For example, with

    def spelling(prompts, completions, ids, extras, *, tokens, words=100):

`tokens` is filled with the token ids of each completion, and `words` by
`config.rewards.options = {"spelling": {"words": 50}}`.

Reward functions with the keyword arguments of TRL are taken as they are:

    def reward(completions, ground_truth, **kwargs):
      return [float(x == y) for x, y in zip(completions, ground_truth)]

A function that names `completions` (or their token ids), and neither `ids` nor
`extras`, is called with keywords: `prompts`, `completions`, `completion_ids`
(also as `completions_ids`), and a list for each column of the records: what
their `extras` have, and `answer`. A function with `**kwargs` gets all of them,
another function those that it names. With the tokenizer's chat template
(`config.data.template="chat"`) a prompt and a completion are lists of messages,
{"role": "user", "content": …}, and otherwise texts.

Deviations from TRL, as of its version of November 2025: lists have one row, or
with `registry.of_group` those of a prompt, and never the whole batch. An access
to an attribute of `trainer_state` raises an error: rewards do not know the
step. `log_extra`, `log_metric` and `environments` are None if a function
requires them, and are left at their defaults otherwise.

Source: TRL, documentation of GRPOTrainer, "Using a custom reward function".
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax import imports

_OURS = {"ids", "extras"}
_IDS = ("completion_ids", "completions_ids")
_ROWS = ("prompts", "completions", *_IDS)
_AS_MESSAGES = (
  'with config.data.template="chat" prompts and completions are lists of'
  ' messages, as in TRL: a text is completions[i][0]["content"]'
)
_NOT_HERE = ("log_extra", "log_metric", "environments")


class NoState:
  """A stand-in for TRL's `trainer_state`; its attributes raise an error."""

  def __getattr__(self, name: str) -> Any:
    raise AttributeError(
      f"trainer_state.{name}: a reward here does not know the step, so that a"
      " row has the same one whenever it is scored. Weights that change over"
      " the steps are config.rewards.schedules"
    )


def uses(function: Callable[..., Any]) -> bool:
  """Returns True if a function is called with keywords."""
  parameters = _keyword_parameters(function)
  if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
    return False
  names = {name.strip("_").removeprefix("unused_") for name in parameters}
  return not names & _OURS and bool(names & {"completions", *_IDS})


def reads_tokens(function: Callable[..., Any]) -> bool:
  """Returns True if a function that is called with keywords gets token ids."""
  parameters = _keyword_parameters(function)
  return _takes_any(parameters) or any(name in parameters for name in _IDS)


def missing(
  function: Callable[..., Any], names: Collection[str], columns: Collection[str]
) -> list[str]:
  """Returns the required arguments of a function that nothing fills in.

  It is called with keywords: `names`, and the columns of the records.
  """
  available = {*_ROWS, *_NOT_HERE, "trainer_state", *names, *columns}
  return [
    p.name
    for p in _keyword_parameters(function).values()
    if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    if p.name not in available
  ]


def adapted(
  function: Callable[..., Any],
  constants: Mapping[str, Any],
  conversational: bool,
) -> Callable[..., Any]:
  """Wraps a function, so that it is called as every other reward function.

  Args:
    function: A function that is called with keywords.
    constants: Arguments that are the same for all rows.
    conversational: True if prompts and completions are lists of messages.
  """
  own = _keyword_parameters(function)
  takes_any = _takes_any(own)

  @functools.wraps(function)
  def call(
    prompts: Sequence[str],
    completions: Sequence[str],
    ids: Sequence[int],
    extras: Sequence[Mapping[str, Any]],
    tokens: Sequence[Sequence[int]] = (),
  ) -> Any:
    del ids  # TRL does not number prompts.
    names = {name: None for row in extras for name in row}
    columns = {name: [row.get(name) for row in extras] for name in names}
    full = columns | {
      "prompts": (
        [
          row.get("prompt_messages") or messages
          for row, messages in zip(extras, _chat("user", prompts), strict=True)
        ]
        if conversational
        else list(prompts)
      ),
      "completions": (
        _chat("assistant", completions) if conversational else list(completions)
      ),
      **{name: list(tokens) for name in _IDS},
      "trainer_state": NoState(),
    }
    needs = {
      name: None
      for name in _NOT_HERE
      if name in own and own[name].default is inspect.Parameter.empty
    }
    keywords = {
      name: value for name, value in full.items() if takes_any or name in own
    }
    try:
      return function(**{**needs, **keywords, **constants})
    except (TypeError, AttributeError) as error:
      if conversational:
        error.args = (f"{error}; {_AS_MESSAGES}",)
      raise

  return call


def _chat(role: str, texts: Sequence[str]) -> list[list[dict[str, str]]]:
  return [[{"role": role, "content": text}] for text in texts]


def _keyword_parameters(
  function: Callable[..., Any],
) -> dict[str, inspect.Parameter]:
  try:
    return dict(inspect.signature(function).parameters)
  except ValueError:  # The signature of some functions in C is unknown.
    return {}


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
  return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


RewardFunction = Callable[..., Any]

BUILTIN = {
  "box_format": "grpo_jax.rewards.vision:box_format",
  "box_iou": "grpo_jax.rewards.vision:box_iou",
  "choice": "grpo_jax.rewards.vision:choice",
  "code": "grpo_jax.rewards.code:code",
  "counting": "grpo_jax.rewards.vision:counting",
  "detection_map": "grpo_jax.rewards.vision:detection_map",
  "detection_score": "grpo_jax.rewards.vision:detection_score",
  "instruction_following": (
    "grpo_jax.rewards.instructions:instruction_following"
  ),
  "language_consistency": ("grpo_jax.rewards.form:language_consistency"),
  "math_accuracy": "grpo_jax.rewards.math_accuracy:math_accuracy",
  "numeric": "grpo_jax.rewards.vision:numeric",
  "parses": "grpo_jax.rewards.trees:parses",
  "reasoning_gym": "grpo_jax.rewards.gym:reasoning_gym",
  "tag_count": "grpo_jax.rewards.form:tag_count",
  "think_answer_format": "grpo_jax.rewards.form:think_answer_format",
  "token_similarity": "grpo_jax.rewards.trees:token_similarity",
  "tree_similarity": "grpo_jax.rewards.trees:tree_similarity",
  "yes_no": "grpo_jax.rewards.vision:yes_no",
}
# Functions that score the steps of a completion.
STEPS = {"arithmetic_steps": "grpo_jax.rewards.form:arithmetic_steps"}

# The values that a function gets if it has an argument of this name.
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
  """The arguments that are the same for all rows.

  Attributes:
    tokenizer: (import path of a class, its arguments, its keyword arguments),
      plain data; None if no function asks for it.
    answer_after: Marker of an answer; see `answers.final_answer`.
    sandbox: The kind of sandbox; see `sandbox/box.py`.
    timeout_s: Deadline of a row, seconds.
    conversational: True if functions that are called with keywords get lists of
      messages.
  """

  tokenizer: tuple[str, list, dict] | None = None
  answer_after: str = ""
  sandbox: str = "bwrap"
  timeout_s: float = 10.0
  conversational: bool = False


class RewardKind(NamedTuple):
  """The kind of call that a function needs.

  Attributes:
    sees_group: True for a call with all completions of a prompt, and not one.
    is_async: True if the function waits, and others are called meanwhile.
  """

  sees_group: bool
  is_async: bool


KINDS = tuple(
  RewardKind(group, wait) for wait in (True, False) for group in (True, False)
)


def of_group(function: RewardFunction) -> RewardFunction:
  """Declares that a function is called with all completions of a prompt.

  In training these are the `group_size` completions of a step. In an evaluation
  they are those drawn of each prompt: one, if it is greedy.
  """
  function.sees_group = True  # type: ignore[attr-defined]
  return function


def of_rows(score: Callable[..., Any]) -> RewardFunction:
  """Makes a reward function of the score of one row.

  Args:
    score: A function that takes what it names of `prompt`, `completion` and
      `extra`, in this order, and its options by name.
  """
  columns = {"prompt": 0, "completion": 1, "extra": 3}
  parameters = inspect.signature(score).parameters.values()
  own = [x for x in parameters if x.kind is x.KEYWORD_ONLY]
  places = [columns[x.name] for x in parameters if x not in own]

  @functools.wraps(score)
  def reward(prompts, completions, ids, extras, **options):
    rows = zip(prompts, completions, ids, extras, strict=True)
    return [score(*(row[i] for i in places), **options) for row in rows]

  usual = [
    inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name in ("prompts", "completions", "ids", "extras")
  ]
  vars(reward)["__signature__"] = inspect.Signature([*usual, *own])
  return reward


def plain_of(function: RewardFunction) -> Any:
  """Returns a reward function without decorators and bound arguments."""
  plain: Any = function
  while isinstance(plain, functools.partial):
    plain = plain.func
  return inspect.unwrap(plain)


def kind(function: RewardFunction) -> RewardKind:
  """Returns the kind of call that a function needs."""
  plain = plain_of(function)
  is_async = inspect.iscoroutinefunction(plain)
  return RewardKind(getattr(function, "sees_group", False), is_async)


@functools.cache
def asks_for(function: RewardFunction) -> set[str]:
  """Returns the names of `CONTEXT` that a function is given."""
  if uses(function):
    names = set(_parameters(function)) & set(CONTEXT)
    return names | ({"tokens"} if reads_tokens(function) else set())
  return set(_options(function)) & set(CONTEXT)


def load_function(path: str) -> RewardFunction:
  """Imports a reward function.

  Args:
    path: "package.module:function", or a name in `BUILTIN` or `STEPS`.

  Raises:
    ValueError: The path does not lead to something callable.
  """
  return load(path, "reward function", BUILTIN | STEPS)


def check_options(path: str, options: Mapping[str, Any]) -> None:
  """Raises ValueError if the options do not fit the function's arguments."""
  function = load_function(path)
  by_keyword = uses(function)
  params = dict(_parameters(function)) if by_keyword else _options(function)
  own = [name for name in params if name not in CONTEXT]
  takes_any = any(
    p.kind is p.VAR_KEYWORD for p in _parameters(function).values()
  )
  for name in options:
    if name not in own and not takes_any:
      raise ValueError(
        f"config.rewards.options: {path!r} got {name!r}; it has"
        f" {', '.join(own) or 'no options'}.{nearest(name, own)}"
      )
  if by_keyword:  # Other arguments may be columns of the records.
    return
  required = {
    name
    for name in own
    if params[name].default is inspect.Parameter.empty and name not in options
  }
  if required:
    raise ValueError(
      f"config.rewards.options: {path!r} needs {', '.join(sorted(required))};"
      f" set config.rewards.options = {{NAME: {{{sorted(required)[0]!r}: …}}}}."
    )


def bound(
  path: str, options: Mapping[str, Any], context: Context
) -> RewardFunction:
  """Returns a function with its options and `CONTEXT`, except the tokens."""
  function = load_function(path)
  names = asks_for(function) - {"tokens"}
  values: dict[str, Any] = {name: getattr(context, name) for name in names}
  if values.get("tokenizer") is not None:
    where, arguments, keywords = values["tokenizer"]
    values["tokenizer"] = _tokenizer(where, repr(arguments), repr(keywords))
  if uses(function):
    # Options and context are passed by name.
    own = _parameters(function)
    constants = {name: x for name, x in values.items() if name in own}
    result = functools.partial(
      adapted(function, {**constants, **options}, context.conversational)
    )
  else:
    result = functools.partial(function, **values, **options)
  if hasattr(function, "sees_group"):
    result.sees_group = function.sees_group  # type: ignore[attr-defined]
  if hasattr(function, "warm_up"):
    warm_up = function.warm_up
    keywords = {
      name: values[name] for name in _parameters(warm_up) if name in values
    }
    result.warm_up = functools.partial(  # type: ignore[attr-defined]
      warm_up, **keywords
    )
  return result


@functools.cache
def _tokenizer(path: str, arguments: str, keywords: str) -> Any:
  make = load(path, "tokenizer", {})
  return make(*ast.literal_eval(arguments), **ast.literal_eval(keywords))


def load(
  path: str, what: str, builtin: Mapping[str, str]
) -> Callable[..., Any]:
  """Imports a function; see `load_function`.

  Args:
    path: "package.module:function", or a name in `builtin`.
    what: Purpose of the function, in messages.
    builtin: Short names of paths.
  """
  more = f" or one of {sorted(builtin)}" if builtin else ""
  full = builtin.get(path, path)
  if not all(full.partition(":")):
    raise ValueError(
      f"{what} '{path}': needs an import path"
      f" 'package.module:function'{more}." + nearest(path, builtin)
    )
  return imports.load(
    full, what, "function", where="here and in a process of its own"
  )


nearest = imports.nearest


def _parameters(function: RewardFunction) -> Mapping[str, inspect.Parameter]:
  try:
    return inspect.signature(function).parameters
  except ValueError:  # The signature of some functions in C is unknown.
    return {}


def _options(function: RewardFunction) -> dict[str, inspect.Parameter]:
  """Returns the arguments after those of every reward function."""
  parameters = list(_parameters(function).values())
  variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
  return {
    p.name: p
    for i, p in enumerate(parameters)
    if p.kind not in variadic
    and (i >= _POSITIONAL or p.kind is inspect.Parameter.KEYWORD_ONLY)
  }
