"""Chat conversations as token ids, and chat templates run with limits.

`Writer` writes messages as ids, in the format in which the policy was trained.
With `config.data.template="chat"` the tokenizer's chat template writes them,
behind `config.data.system` if they have no system message.
Any other template is for one prompt and has no roles. A conversation is then
text: the messages before the first reply, one on each line, are the prompt of
the template; an end token follows each reply; later messages are written as
they are.

Sampled ids stay as they are: `extended` writes only the ids after them. If
their text were encoded again, the ids could differ, and would have no log-prob.

`render` runs a chat template, which is a program of a stranger. Jinja's sandbox
gives it access to its arguments only. In addition, a rendering ends after
`MAX_SECONDS`: every turn of a loop and every call of a macro checks the time.
No text or list that an operator, a filter, a function or a block of output
makes may be larger than `MAX_SIZE`.

One risk remains, which only a process with limits of its own could end: a
single filter or function that multiplies two large arguments, such as
`replace`, or that has a width inside a format, is checked only when it is done.
Render templates that you do not trust at all in a container with limited
memory, or set `config.data.template` instead.
"""

from __future__ import annotations

import contextvars
import datetime
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import logging

from grpo_jax import optional
from grpo_jax.data import conversations
from grpo_jax.data.conversations import Message
from grpo_jax.data.encoder import Encoder

_jinja2 = functools.partial(
  optional.package, "jinja2", "hf", "a chat template", "ext", "meta", "sandbox"
)
MAX_SECONDS = 5.0
MAX_SIZE = 2**22  # Characters, or entries.
_MAX_BITS = 4096  # Bits of a whole number.

# Processor time of the thread at which the rendering of this context has to
# end, so that a busy machine does not end it.
_end: contextvars.ContextVar[float] = contextvars.ContextVar("end")


def render(source: str, values: Mapping[str, Any]) -> str:
  """Renders a template with these values.

  Raises:
    ImportError: The `jinja2` package is missing.
    ValueError: The template is not valid, rejects the values, fails on them,
      takes too long, makes a value that is too large, or never reads tools
      although there are some.
  """
  token = _end.set(time.thread_time() + MAX_SECONDS)
  try:
    if values.get("tools") and "tools" not in _inputs(source):
      raise ValueError(
        "it never reads tools, so the model would not see them; describe them"
        " in a message instead. Tools of an environment are left out with"
        " config.data.chat_options={'tools': None}"
      )
    return _compiled(source).render(values)
  except ImportError:
    raise
  except Exception as error:  # A stranger's program may raise any exception.
    raise ValueError(f"{error} ({type(error).__name__})") from error
  finally:
    _end.reset(token)


def _tick() -> str:
  """Raises ValueError if the time of the rendering is over."""
  if time.thread_time() > _end.get():
    raise ValueError(f"it has not ended after {MAX_SECONDS:g} s of work")
  return ""


def _sized(value: Any) -> Any:
  """Returns the value; raises ValueError if it is too large."""
  if isinstance(value, int):
    size, most = value.bit_length(), _MAX_BITS
  elif isinstance(value, (str, bytes, list, tuple, dict, set)):
    size, most = len(value), MAX_SIZE
  else:
    return value
  if size > most:
    raise ValueError(f"it makes a {type(value).__name__} of size {size}")
  return value


def _limited(function: Callable) -> Callable:
  """Limits the size of a function's arguments and results."""

  @functools.wraps(function)  # Keeps the marks that Jinja set on the function.
  def call(*args, **kwargs):
    _check_arguments(args, kwargs)
    return _sized(function(*args, **kwargs))

  return call


def _check_arguments(args: Iterable, kwargs: Mapping[str, Any]) -> None:
  _tick()
  for value in (*args, *kwargs.values()):
    if isinstance(value, int) and abs(value) > MAX_SIZE:
      raise ValueError(f"it calls a function with {value}")


def _joined(parts: Iterable[str]) -> str:
  """Joins parts as "".join does; raises once the text is too long."""
  texts, size = [], 0
  for part in parts:
    texts.append(part)
    size += len(part)
    if size > MAX_SIZE:
      raise ValueError(f"it makes a text of more than {MAX_SIZE} characters")
  return "".join(texts)


def _concatenated(*parts: Any) -> str:
  """Implements the operator `~`."""
  return _joined(map(str, parts))


def _apply(operator: Callable, name: str, left: Any, right: Any) -> Any:
  """Applies a binary operator; raises if the result would be too large."""
  numbers = isinstance(left, int) and isinstance(right, int)
  if name == "*" and not numbers:
    for some, times in ((left, right), (right, left)):
      size = len(some) if hasattr(some, "__len__") else 0
      if isinstance(times, int) and size * times > MAX_SIZE:
        raise ValueError(f"it repeats {size} entries {times} times")
  if name == "**" and numbers and left.bit_length() * right > _MAX_BITS:
    raise ValueError(f"it raises a number to the power of {right}")
  return _sized(operator(left, right))


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
  return _environment().from_string(source)


@functools.lru_cache(maxsize=16)
def _inputs(source: str) -> set[str]:
  """Names of all that a template reads anywhere and does not set."""
  parsed = _environment().parse(source)
  return _jinja2().meta.find_undeclared_variables(parsed)


@functools.cache
def _environment() -> Any:
  """The Jinja environment, with transformers' tags, filters and functions."""
  jinja2 = _jinja2()
  nodes = jinja2.nodes

  class Generation(jinja2.ext.Extension):  # type: ignore[name-defined]
    """The tag {% generation %}, which marks replies; here it does nothing."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's name and type)

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
      return nodes.Scope(body, lineno=line)

  class TemplateEnvironment(
    jinja2.sandbox.ImmutableSandboxedEnvironment  # type: ignore[name-defined]
  ):
    intercepted_binops = frozenset(("+", "*", "**"))
    concat = staticmethod(_joined)
    tick = staticmethod(_tick)
    concatenated = staticmethod(_concatenated)

    def call_binop(self, context, operator, left, right):
      return _apply(self.binop_table[operator], operator, left, right)

    def call(__self, __context, __obj, *args, **kwargs):
      # Jinja uses such names, so that no keyword of a template can clash.
      _check_arguments(args, kwargs)
      return _sized(super().call(__context, __obj, *args, **kwargs))

    def _generate(self, source, *args, **kwargs):
      for node in [*source.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]:
        node.body.insert(0, nodes.ExprStmt(self._calling("tick", [], node)))
      for node in [*source.find_all(nodes.Concat)]:
        call = self._calling("concatenated", node.nodes, node)
        # Changed in place, because the node's parent is not known.
        node.nodes = [call]
      return super()._generate(source, *args, **kwargs)

    @staticmethod
    def _calling(name, args, node):
      function = nodes.EnvironmentAttribute(name)
      call = nodes.Call(function, args, [], None, None, lineno=node.lineno)
      return call.set_environment(node.environment)

  def raise_exception(message):
    raise jinja2.TemplateError(message)

  def strftime_now(format_):
    _warn_of_date()
    return datetime.datetime.now().strftime(format_)

  def tojson(
    value, ensure_ascii=False, indent=None, separators=None, sort_keys=False
  ):
    # Jinja's own filter escapes HTML.
    return json.dumps(
      value,
      ensure_ascii=ensure_ascii,
      indent=indent,
      separators=separators,
      sort_keys=sort_keys,
    )

  environment = TemplateEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[Generation, jinja2.ext.loopcontrols],
    optimized=False,  # So that the limits also hold for constants.
  )
  environment.filters["tojson"] = tojson
  environment.filters = {
    name: _limited(function) for name, function in environment.filters.items()
  }
  del environment.globals["lipsum"]
  environment.globals["raise_exception"] = raise_exception
  environment.globals["strftime_now"] = strftime_now
  return environment


@functools.cache
def _warn_of_date() -> None:
  logging.warning(
    "the chat template writes the date of today, so the prompts of another day"
    " are others; give it a date, as"
    " config.data.chat_options={'date_string': '26 Jul 2024'}, if it has such"
    " an option"
  )


_MOST_TOKENS = 2**20  # Most tokens of a message; requests are smaller.


class Writer:
  """Writes conversations for a policy."""

  def __init__(self, encoder: Encoder):
    """Creates a writer with the tokenizer and template of an encoder."""
    self._encoder = encoder
    self._text = encoder.tokenizer

  @property
  def has_roles(self) -> bool:
    """True if a chat template writes conversations."""
    return self._encoder.template == "chat"

  def ids(self, messages: Sequence[Message], /, **options: Any) -> list[int]:
    """Ids of a conversation, after which the policy writes a reply.

    Args:
      messages: As `conversations.checked` returns them; the last is not the
        assistant's.
      **options: Further inputs of the chat template, such as `tools`.

    Raises:
      ValueError: The template or the tokenizer rejects them.
    """
    if self.has_roles:
      return self._text.chat_ids(
        self._for_template(messages),
        **{**self._encoder.chat_options, **options},
      )
    if options.get("tools"):
      raise ValueError(
        "the policy was trained without a chat template"
        " (config.data.template), which would have to write the tools; ask"
        " without tools, and say in the prompt what there is."
      )
    before = list(
      itertools.takewhile(lambda m: m["role"] != "assistant", messages)
    )
    prompt = "\n".join(message["content"] for message in before)
    ids = self._encoder.prompt({"prompt": prompt}).tolist()
    return [*ids, *self._plain(messages[len(before) :])]

  def extended(
    self,
    ids: Sequence[int],
    messages: Sequence[Message],
    new: Sequence[Message],
    /,
    **options: Any,
  ) -> list[int]:
    """Ids of a continued conversation; they begin with the ids so far.

    Args:
      ids: All ids so far; those of the last reply are as they were sampled.
      messages: The messages of these ids; the last is a reply, with all of its
        text as content.
      new: The messages that follow.
      **options: As in `ids`.

    Raises:
      ValueError: With the new messages, the template writes the earlier ones
        differently.
    """
    if self.has_roles:
      return self._text.extend(
        ids,
        self._for_template(messages),
        [conversations.for_template(message) for message in new],
        **{**self._encoder.chat_options, **options},
      )
    ends = self._text.end_ids
    closing = [] if ids[-1] in ends else [ends[0]]
    return [*ids, *closing, *self._plain(new)]

  def _for_template(self, messages: Sequence[Message]) -> list[Message]:
    """All messages that the template writes, the run's system message first."""
    all_messages = self._encoder.with_system(messages)
    return [conversations.for_template(message) for message in all_messages]

  def _plain(self, messages: Sequence[Message]) -> list[int]:
    """Ids of messages as text without roles."""
    ids: list[int] = []
    for message in messages:
      content = message["content"]
      if message["role"] == "assistant":
        ids += [*self._text.markup_ids(content), self._text.end_ids[0]]
      else:  # No text of others becomes a special token.
        ids += self._text.observation_ids(content, _MOST_TOKENS)
    return ids


def is_reply(message: Message, reply: Message) -> bool:
  """Returns True if a message of a request is the reply that was sent."""

  def described(turn: Message) -> tuple:
    calls = turn.get("tool_calls") or []
    return (
      turn["role"],
      turn["content"],
      [
        (call["function"].get("name"), call["function"].get("arguments"))
        for call in calls
      ],
    )

  return described(message) == described(reply)
