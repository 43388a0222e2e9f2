"""Chat templates of downloaded checkpoints, run in a sandbox with limits.

A template is a program of a stranger. Jinja's sandbox keeps it from anything
but its arguments. On top of that a rendering ends after `MAX_SECONDS`, which
every turn of a loop and every call of a macro look at, and no text or list that
an operator, a filter, a function or a block of output makes may be larger than
`MAX_SIZE`.

What remains, and only a process with limits of its own could end: a single
filter or function that multiplies two large arguments, such as `replace`, or
that is told a width inside a format, is looked at when it is done. Render
templates that you do not trust at all in a container with limited memory, or
give `config.data.template` in their place.
"""

from __future__ import annotations

import contextvars
import datetime
import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_SECONDS = 5.0
MAX_SIZE = 2**22  # characters, or entries
_MAX_BITS = 4096  # of a whole number

# When the rendering that this thread is at has to be over.
_end: contextvars.ContextVar[float] = contextvars.ContextVar("end")


def render(source: str, values: Mapping[str, Any]) -> str:
  """The text that a template makes of these values.

  Raises:
    ImportError: The `jinja2` package is missing.
    ValueError: The template is no template, refuses the values, fails on them,
      or takes too long or too much.
  """
  token = _end.set(time.monotonic() + MAX_SECONDS)
  try:
    return _compiled(source).render(values)
  except ImportError:
    raise
  except Exception as error:  # Of any kind: it is a stranger's program.
    raise ValueError(f"{error} ({type(error).__name__})") from error
  finally:
    _end.reset(token)


def _tick() -> str:
  """Raises ValueError when the time of the rendering is over."""
  if time.monotonic() > _end.get():
    raise ValueError(f"it has not ended after {MAX_SECONDS:g} s")
  return ""


def _sized(value: Any) -> Any:
  """The value, if it is not too large."""
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
  """A filter or a global function with arguments and results of some size."""

  @functools.wraps(function)  # Keeps what Jinja has noted on it.
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
  """Joins parts as "".join does, and stops once the text is too long."""
  found, size = [], 0
  for part in parts:
    found.append(part)
    size += len(part)
    if size > MAX_SIZE:
      raise ValueError(f"it makes a text of more than {MAX_SIZE} characters")
  return "".join(found)


def _concatenated(*parts: Any) -> str:
  """The operator `~`."""
  return _joined(map(str, parts))


def _apply(operator: Callable, name: str, left: Any, right: Any) -> Any:
  """A binary operator whose result would not be too large."""
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


@functools.cache
def _environment() -> Any:
  """With the tags, filters and functions of transformers."""
  jinja2 = _import_jinja2()
  nodes = jinja2.nodes

  class Generation(jinja2.ext.Extension):  # type: ignore[name-defined]
    """{% generation %} marks replies for others; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's name and type)

    def parse(self, parser):
      line = next(parser.stream).lineno
      body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
      return nodes.Scope(body, lineno=line)

  class Environment(
    jinja2.sandbox.ImmutableSandboxedEnvironment  # type: ignore[name-defined]
  ):
    intercepted_binops = frozenset(("+", "*", "**"))
    concat = staticmethod(_joined)
    tick = staticmethod(_tick)
    concatenated = staticmethod(_concatenated)

    def call_binop(self, context, operator, left, right):
      return _apply(self.binop_table[operator], operator, left, right)

    def call(__self, __context, __obj, *args, **kwargs):
      # Names as Jinja's, which no keyword of a template can be.
      _check_arguments(args, kwargs)
      return _sized(super().call(__context, __obj, *args, **kwargs))

    def _generate(self, source, *args, **kwargs):
      for node in [*source.find_all((nodes.For, nodes.Macro, nodes.CallBlock))]:
        node.body.insert(0, nodes.ExprStmt(self._calling("tick", [], node)))
      for node in [*source.find_all(nodes.Concat)]:
        call = self._calling("concatenated", node.nodes, node)
        # In its place: whoever refers to the node is not known.
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
    return datetime.datetime.now().strftime(format_)

  def tojson(
    value, ensure_ascii=False, indent=None, separators=None, sort_keys=False
  ):
    # Jinja's own escapes HTML.
    return json.dumps(
      value,
      ensure_ascii=ensure_ascii,
      indent=indent,
      separators=separators,
      sort_keys=sort_keys,
    )

  environment = Environment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[Generation, jinja2.ext.loopcontrols],
    optimized=False,  # Constants too are computed while the time is measured.
  )
  environment.filters["tojson"] = tojson
  environment.filters = {
    name: _limited(function) for name, function in environment.filters.items()
  }
  del environment.globals["lipsum"]
  environment.globals["raise_exception"] = raise_exception
  environment.globals["strftime_now"] = strftime_now
  return environment


def _import_jinja2() -> Any:
  """The optional package of chat templates, imported when it is needed."""
  try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
  except ImportError as error:
    raise ImportError(
      "grpo_jax.data.templates: chat templates need the package 'jinja2';"
      " install grpo_jax[hf]."
    ) from error
  return jinja2
