'''Episodes in which a model calls tools in the format of its chat template.

    config.data.template = "chat"
    config.data.environment = "grpo_jax.rewards.agents.tools:make"
    config.environment.options = {
      "format": "qwen", "tools": ("search",), "corpus": "passages.jsonl",
    }

An action with calls (`call_formats.py`) is answered by their results, in their
order. An action without calls is the answer, which is graded and ends the
episode. A mistake in a call is told to the policy, and the episode goes on. A
tool is

- "python": an interpreter in a sandbox, which keeps names between calls
  (`sandbox/interpreter.py`);
- "search": BM25 over a file of passages (`Index`);
- "package.module:function", of the user's own. It runs in the process of the
  session, without a sandbox, and returns a text, or a value with one meaning in
  JSON (`_plain`). It is interrupted when `call_s` are over, as far as Python
  can interrupt it. The policy reads an exception of the tool. A result that
  JSON cannot write is a mistake of the tool's author, and an error.

The schemas of the tools are put into the prompt by the chat template; see
`training/problem/environment.py`. Results are texts, in which no special token
means anything. That does not stop instructions in a page that a tool reads.

**Schemas.** A JSON schema is made from a function's type hints and docstring,
as by `get_json_schema` of transformers, but without the function's result:

    def convert(amount: float, unit: Literal["m", "km"] = "m") -> str:
      """Converts a length to feet.

      Args:
        amount: The length.
        unit: Of the length.
      """

Hints may be str, int, float, bool, None, list, dict, tuple, Any, Literal, and
unions of these. A function needs a description, and each argument a hint and a
description.

**Search.** A file `*.jsonl` has an object on each line, with the field `text`
and perhaps `id` and `title`. In any other file each line is a passage.

    index = tools.Index("passages.jsonl")
    index.find("capital of France", count=3)

The index is in memory, and is made once in each worker before sessions are
forked, which share it: for 100,000 passages of 100 words (61 MiB) it takes half
a minute and at most 740 MiB, and a search of six words 7 ms (2 shared cores).
Passages of equal scores come in the order of the file.

Source: Lù, "BM25S: Orders of magnitude faster lexical search via eager sparse
scoring", arXiv:2407.03618, with its defaults: Lucene's variant with k1 = 1.5
and b = 0.75, and without the stop words of English.
'''

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import json
import pathlib
import re
import signal
import string
import sys
import time
import types
import typing
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from grpo_jax import optional
from grpo_jax.rewards import answers, registry
from grpo_jax.rewards.agents import call_formats
from grpo_jax.rewards.agents.interceptor import Observation
from grpo_jax.rewards.sandbox import box, interpreter

Schema = dict[str, Any]

_NAMES: dict[Any, Schema] = {
  str: {"type": "string"},
  int: {"type": "integer"},
  float: {"type": "number"},
  bool: {"type": "boolean"},
  type(None): {"type": "null"},
  list: {"type": "array"},
  tuple: {"type": "array"},
  dict: {"type": "object"},
  Any: {},
}
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Source|Sources):", re.M)
_ARGUMENT = re.compile(r"(\w+)(?:[ \t]*\([^()\n]*\))?:\s*(.*)", re.DOTALL)
_MAX_SHOWN = 300  # Characters of a message about an argument.


def of_function(function: Callable[..., Any]) -> Schema:
  """Returns the schema of a tool, {"type": "function", "function": {…}}.

  Raises:
    ValueError: The function has no description; or an argument has no hint, no
      description or a hint of another type, or cannot be given by name.
  """
  name = getattr(function, "__name__", "tool")
  document = inspect.getdoc(function)
  if not document:
    raise _bad(name, "no docstring; its first paragraph tells a model what for")
  described = _SECTION.split(document)
  about = dict(_arguments(described))
  hints = typing.get_type_hints(function)
  properties: dict[str, Schema] = {}
  required = []
  for argument, parameter in inspect.signature(function).parameters.items():
    if parameter.kind not in (
      parameter.POSITIONAL_OR_KEYWORD,
      parameter.KEYWORD_ONLY,
    ):
      raise _bad(name, f"the argument {argument!r}, which has no name to give")
    if argument not in hints:
      raise _bad(name, f"no type hint of the argument {argument!r}")
    if argument not in about:
      raise _bad(
        name, f"no description of the argument {argument!r} under 'Args:'"
      )
    properties[argument] = {
      **_of_hint(name, hints[argument]),
      "description": about[argument],
    }
    if parameter.default is parameter.empty:
      required.append(argument)
  parameters: Schema = {"type": "object", "properties": properties}
  if required:
    parameters["required"] = required
  return of_parts(name, described[0].strip(), parameters)


def of_parts(name: str, description: str, parameters: Schema) -> Schema:
  """Returns a schema in the form that chat templates read."""
  return {
    "type": "function",
    "function": {
      "name": name,
      "description": description,
      "parameters": parameters,
    },
  }


def _bad(name: str, what: str) -> ValueError:
  return ValueError(
    f"tools: the function {name!r} has {what}; see"
    " grpo_jax/rewards/agents/tools.py for what a tool needs."
  )


def _arguments(sections: Sequence[str]) -> list[tuple[str, str]]:
  """Returns the names and descriptions under `Args:` of a docstring."""
  if "Args" not in sections:
    return []
  text = sections[sections.index("Args") + 1]
  lines = [line for line in text.splitlines() if line.strip()]
  if not lines:
    return []
  indent = min(len(line) - len(line.lstrip()) for line in lines)
  entries: list[str] = []
  for line in lines:
    if not line[indent].isspace() or not entries:
      entries.append(line.strip())
    else:
      entries[-1] += " " + line.strip()
  matches = [_ARGUMENT.fullmatch(entry) for entry in entries]
  return [(match[1], match[2].strip()) for match in matches if match]


def _of_hint(name: str, hint: Any) -> Schema:
  """Returns the schema of a type."""
  if hint in _NAMES:
    return dict(_NAMES[hint])
  origin, inner = typing.get_origin(hint), typing.get_args(hint)
  of_hint = functools.partial(_of_hint, name)
  if origin in (typing.Union, types.UnionType):
    kinds = [of_hint(x) for x in inner if x is not type(None)]
    return _of_union(kinds, type(None) in inner)
  if origin is typing.Literal:
    kinds = [_NAMES.get(type(value), {}) for value in inner]
    if all(kinds):
      names = list(dict.fromkeys(kind["type"] for kind in kinds))
      return {
        "type": names[0] if len(names) == 1 else names,
        "enum": list(inner),
      }
  if origin is list:
    return {"type": "array", "items": of_hint(inner[0])}
  if origin is tuple and ... not in inner:
    return {"type": "array", "prefixItems": [of_hint(x) for x in inner]}
  if origin is dict:
    return {"type": "object", "additionalProperties": of_hint(inner[1])}
  raise _bad(name, f"the type hint {hint!r}, which is none of JSON's")


def _of_union(kinds: Sequence[Schema], nullable: bool) -> Schema:
  if len(kinds) == 1:
    schema = dict(kinds[0])
  elif all(kind.keys() == {"type"} for kind in kinds):
    names = sorted({kind["type"] for kind in kinds})
    schema = {"type": names[0] if len(names) == 1 else names}
  else:
    schema = {"anyOf": list(kinds)}
  return {**schema, "nullable": True} if nullable else schema


class Checker:
  """Checks calls, and describes a mistake in words for the policy."""

  def __init__(self, schemas: Sequence[Schema]):
    """Reads the schemas of all tools.

    Raises:
      ImportError: The package `jsonschema` is missing.
    """
    jsonschema = optional.package("jsonschema", "tools", __name__)
    draft = jsonschema.Draft202012Validator
    # To JSON 1.0 is an integer as well, and to a function it is none.
    types = draft.TYPE_CHECKER.redefine("integer", lambda _, x: type(x) is int)
    validator = jsonschema.validators.extend(draft, type_checker=types)
    self._validators: dict[str, Any] = {}
    for schema in schemas:
      function = schema["function"]
      self._validators[function["name"]] = validator(
        _strict(function["parameters"])
      )

  def __call__(self, name: str, arguments: Mapping[str, Any]) -> str:
    """Returns a message about a mistake, or ""; see `call_formats.Check`."""
    if name not in self._validators:
      names = ", ".join(map(repr, self._validators))
      return f"Error: there is no tool {name!r:.60}; there is {names}."
    validator = self._validators[name]
    takes = validator.schema.get("properties", {})
    for argument in validator.schema.get("required", ()):
      if argument not in arguments:
        return f"Error: {name} needs the argument {argument!r}."
    for argument in arguments:
      if argument not in takes:
        own = ", ".join(map(repr, takes)) or "none"
        return f"Error: {name} has no argument {argument!r:.60}, but {own}."
    try:
      for error in validator.iter_errors(dict(arguments)):
        where = ".".join(map(str, error.absolute_path))
        message = error.message[:_MAX_SHOWN]
        return f"Error: the argument {where!r} of {name}: {message}."
    except RecursionError:  # Read as JSON, but too deep to be shown.
      return f"Error: the arguments of {name} are nested too deeply."
    return ""


def _strict(schema: Any) -> Any:
  """Returns a schema that allows None where it says "nullable"."""
  if isinstance(schema, list):
    return [_strict(part) for part in schema]
  if not isinstance(schema, dict):
    return schema
  strict = {key: _strict(part) for key, part in schema.items()}
  if strict.pop("nullable", None) is True:
    return {"anyOf": [strict, {"type": "null"}]}
  return strict


class Passage(NamedTuple):
  """A passage of the corpus, whose title may be empty.

  The id is the field `id` of the file, or the number of the line, from 1 on.
  """

  id: str
  title: str
  text: str


class Index:
  """The passages of a file, and an index of their words."""

  def __init__(self, path: str):
    """Reads the file and indexes titles and texts.

    Raises:
      FileNotFoundError: The file does not exist.
      ImportError: The package `bm25s` is missing.
      ValueError: The file has no passage, or a line that is not a passage.
    """
    self.passages = read(path)
    with _without(_HIDDEN):
      self._library = optional.package("bm25s", "tools", __name__)
    self._scores = self._library.BM25()
    texts = [f"{x.title} {x.text}" for x in self.passages]
    self._scores.index(self._words(texts), show_progress=False)

  def _words(self, texts: list[str]) -> list[list[str]]:
    return self._library.tokenize(
      texts, stopwords="en", return_ids=False, show_progress=False
    )

  def find(self, query: str, count: int) -> list[Passage]:
    """Returns the passages with any of the words that fit best, best first."""
    import numpy as np

    vocabulary = self._scores.vocab_dict
    words = [word for word in self._words([query])[0] if word in vocabulary]
    if not words:
      return []
    scores = self._scores.get_scores(words)  # [passages]
    count = min(count, int((scores > 0).sum()))
    if count <= 0:
      return []
    least = np.partition(scores, -count)[-count]
    best = np.flatnonzero(scores > least).tolist()
    best += np.flatnonzero(scores == least)[: count - len(best)].tolist()
    best.sort(key=lambda i: (-scores[i], i))
    return [self.passages[i] for i in best]


def read(path: str) -> list[Passage]:
  """Reads a corpus, one passage a line; empty lines are left out.

  Raises:
    FileNotFoundError: The file does not exist.
    ValueError: The file has no passage, or a line that is not a passage.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    raise FileNotFoundError(
      f"search: no file {path!r} of passages; name one in"
      " config.environment.options['corpus']: JSON lines with the field 'text',"
      " or a text with a passage on each line."
    )
  with file.open(encoding="utf-8") as lines:
    passages = [
      _of_json(line, number, path)
      if file.suffix == ".jsonl"
      else Passage(str(number), "", line.strip())
      for number, line in enumerate(lines, start=1)
      if line.strip()
    ]
  if not passages:
    raise ValueError(f"search: the file {path!r} has no passage.")
  return passages


def _of_json(line: str, number: int, path: str) -> Passage:
  try:
    row = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f"search: {path}, line {number} is not JSON: {error}."
    ) from None
  if not isinstance(row, dict) or not isinstance(row.get("text"), str):
    raise ValueError(
      f"search: {path}, line {number} is {line.strip()!r:.60}; needs an"
      " object with a field 'text', and maybe 'id' and 'title'."
    )
  id_, title = row.get("id", number), row.get("title", "")
  return Passage(str(id_), str(title), row["text"])


# If bm25s finds JAX, it runs an operation while it is imported, which would
# take an accelerator from the process that trains. And tqdm starts a thread
# before sessions are forked. bm25s works as well without both.
_HIDDEN = ("jax", "jax.lax", "tqdm.auto")


@contextlib.contextmanager
def _without(names: Sequence[str]) -> Iterator[None]:
  """Prevents the import of these modules inside the `with`."""
  modules = {name: sys.modules[name] for name in names if name in sys.modules}
  sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
  try:
    yield
  finally:
    for name in names:
      del sys.modules[name]
    sys.modules.update(modules)


# Grades that compare words, and do not ask a reward function.
_COMPARED = ("exact", "contains")
_COUNTS = ("answered", "tool_calls", "malformed", "tool_errors", "refused")
_THINK, _END_THINK = "<think>", "</think>"
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MAX_RAISED = 500  # Characters of an exception of a tool.

_BUILTIN = {
  name: of_parts(
    name,
    description,
    {
      "type": "object",
      "properties": {argument: {"type": "string", "description": meaning}},
      "required": [argument],
    },
  )
  for name, description, argument, meaning in (
    (
      "python",
      "Runs Python code and returns what it prints, and the value of an"
      " expression on its last line. Variables stay between calls.",
      *("code", "The code to run."),
    ),
    (
      "search",
      "Searches a collection of passages and returns those that fit best.",
      *("query", "The words to search for."),
    ),
  )
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Settings of a session, `config.environment.options`.

  Attributes:
    format: "qwen", "hermes" or "llama".
    tools: Tools that the model may call, by name or import path.
    answer: Name of the extra that the answer is compared with.
    grade: "exact": the same words, without case, punctuation and articles, as
      in SQuAD; "contains": the words are among those of the answer; "math":
      `math_accuracy`; or a reward function by name or import path, whose value
      is the reward, with at least 1 for a right answer. For the first two, a
      list in the extras has several right answers.
    answer_after: Marker of an answer, as `config.rewards.answer_after`.
    max_calls: Most calls of an episode.
    max_parallel: Most calls of an action; the others are not made.
    max_bytes: Most bytes of a result; the rest is left out, by "python" from
      the middle.
    max_total_bytes: Bytes of the results of an episode; beyond them calls are
      refused.
    call_s: Seconds for a call.
    turn_s: Seconds for the calls of an action; a call is refused if less than
      `call_s` are left. Keep it below `config.rewards.row_timeout_s`.
    total_s: Seconds for the calls of an episode.
    corpus: File of passages for "search".
    top_k: Most passages that a search returns.
    passage_chars: Most characters of a passage that a search returns.
    sandbox: For "python": "bwrap", or "process", which does not isolate.
    memory: Bytes, for "python".
    opening, markup: See `call_formats.named`.

  Raises:
    ValueError: A setting has an impossible value.
  """

  format: str = "qwen"
  tools: Sequence[str] = ("python",)
  answer: str = "answer"
  grade: str = "math"
  answer_after: str = ""
  max_calls: int = 16
  max_parallel: int = 4
  max_bytes: int = 4096
  max_total_bytes: int = 1 << 16
  call_s: float = 5.0
  turn_s: float = 8.0
  total_s: float = 60.0
  corpus: str = ""
  top_k: int = 3
  passage_chars: int = 500
  sandbox: str = "bwrap"
  memory: int = 512 << 20
  opening: str = ""
  markup: Sequence[str] | None = None

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if isinstance(field.default, (int, float)) and not (
        isinstance(value, (int, float)) and value > 0
      ):
        raise ValueError(
          f"tools: {field.name}={value!r}; needs a positive number."
        )
    if self.call_s > self.turn_s:
      raise ValueError(
        f"tools: call_s={self.call_s} and turn_s={self.turn_s}: no call has the"
        " time that it may take; lower call_s."
      )
    if isinstance(self.tools, str) or not self.tools:
      raise ValueError(
        f"tools: tools={self.tools!r}; needs a list of 'python', 'search'"
        " and import paths 'package.module:function'."
      )
    if ("search" in self.tools) != bool(self.corpus):
      raise ValueError(
        f"tools: tools={list(self.tools)} and corpus={self.corpus!r}; 'search'"
        " needs a file of passages, and only it does."
      )
    self.chat_format()

  def chat_format(self) -> call_formats.Format:
    """Returns the format of calls and results."""
    return call_formats.named(self.format, self.opening, self.markup)


class ToolResult(NamedTuple):
  """The result of a tool, and True if the call failed."""

  text: str
  failed: bool = False


# (arguments) -> the result, cut to `max_bytes`.
Tool = Callable[[Mapping[str, Any]], ToolResult]


class _OutOfTimeError(BaseException):
  """A call took too long; no `except Exception` of a tool catches it."""


class ToolSession:
  """One episode; see the module and `types.HostEnvironment`.

  Scores: "accuracy"; "grade", the reward of the answer; "answered", 1 with an
  answer; "tool_seconds"; and numbers of calls: "tool_calls", which were made;
  "tool_errors", those of them that failed, and also calls of unknown tools or
  with wrong arguments; "malformed", which could not be read; and "refused", for
  which calls, time or bytes were used up.
  """

  def __init__(
    self,
    options: Options,
    check: Checker,
    tools: Mapping[str, Tool],
    grade: Callable[[str], float],
    close: Callable[[], None] = lambda: None,
  ):
    """Begins an episode, and starts nothing.

    Args:
      tools: The tools by name, which cut their results to `max_bytes`.
      grade: The reward of an answer, 1 or more for a right one.
    """
    self._options, self._check, self._tools = options, check, tools
    self._grade_of, self.close = grade, close
    self._format = options.chat_format()
    self._counts = dict.fromkeys(_COUNTS, 0)
    self._num_bytes = 0
    self._seconds = 0.0
    self._grade = 0.0

  def step(self, action: str) -> tuple[Observation, float, bool]:
    """Answers an action: (observation, reward, True at the end).

    Raises:
      RuntimeError, TimeoutError: A sandbox cannot be made.
      TypeError: A tool has returned a value that JSON cannot write.
      ValueError: The answer cannot be graded.
    """
    parsed = self._format.parse(action, self._check)
    if not parsed.calls:
      self._counts["answered"] = 1
      self._grade = self._grade_of(parsed.text)
      return "", self._grade, True
    most = self._options.max_parallel
    end = time.monotonic() + self._options.turn_s
    results = [self._result(call, end) for call in parsed.calls[:most]]
    if (more := len(parsed.calls) - most) > 0:
      self._counts["refused"] += more
      results.append(
        f"Error: {more} more calls were not made; a message has at most {most}."
      )
    return self._format.render(results, parsed.ended), 0.0, False

  def scores(self) -> dict[str, float]:
    """Returns the scores of the episode so far."""
    return {
      "accuracy": float(self._grade >= 1.0),
      "grade": self._grade,
      "tool_seconds": self._seconds,
      **{name: float(count) for name, count in self._counts.items()},
    }

  def _result(self, call: call_formats.ToolCall, end: float) -> str:
    """Returns the result of a call for the policy.

    `end` is the deadline for all calls of the action.
    """
    if call.error:
      self._counts["malformed" if call.malformed else "tool_errors"] += 1
      return call.error
    if refused := self._refused(end):
      self._counts["refused"] += 1
      return f"Error: the call was not made: {refused}."
    self._counts["tool_calls"] += 1
    start = time.monotonic()
    result = self._tools[call.name](call.arguments)
    self._seconds += time.monotonic() - start
    self._counts["tool_errors"] += result.failed
    self._num_bytes += len(result.text.encode("utf-8", "replace"))
    return result.text

  def _refused(self, end: float) -> str:
    """Returns the reason why no further call can be made, or ""."""
    options = self._options
    if self._counts["tool_calls"] >= options.max_calls:
      return f"all {options.max_calls} calls are used up"
    if self._num_bytes >= options.max_total_bytes:
      return "tools have said all that they may say"
    if self._seconds + options.call_s > options.total_s:
      return f"the {options.total_s:g} s for tools are used up"
    if time.monotonic() + options.call_s > end:
      return "the time for the calls of a message is used up"
    return ""


def _interpreter(options: Options) -> interpreter.Interpreter:
  """Returns an episode's interpreter; its box is made at the first call.

  Raises:
    ValueError: A limit is out of range.
  """
  return interpreter.Interpreter(
    sandbox=options.sandbox,
    call_s=options.call_s,
    total_s=options.total_s,
    max_calls=options.max_calls,
    max_bytes=options.max_bytes,
    memory=options.memory,
  )


def _run(
  python: interpreter.Interpreter, arguments: Mapping[str, Any]
) -> ToolResult:
  """Runs the tool "python"; its cut text keeps the error at the end."""
  answer = python.run(arguments["code"])
  return ToolResult(answer.text, answer.status != "done")


def _find(options: Options, arguments: Mapping[str, Any]) -> ToolResult:
  """Runs the tool "search", which takes milliseconds and has no time limit."""
  passages = _index(options.corpus).find(arguments["query"], options.top_k)
  texts = [
    f"[{number}] {passage.title}\n{passage.text[: options.passage_chars]}"
    if passage.title
    else f"[{number}] {passage.text[: options.passage_chars]}"
    for number, passage in enumerate(passages, start=1)
  ]
  text = "\n\n".join(texts) or "No passage has any of these words."
  return ToolResult(cut(text, options.max_bytes))


def _call_own(
  options: Options, path: str, arguments: Mapping[str, Any]
) -> ToolResult:
  """Calls a function of the user's own."""
  try:
    with _within(options.call_s):
      result = _function(path)(**arguments)
  except _OutOfTimeError:
    result, failed = f"Error: no result in {options.call_s:g} s.", True
  except Exception as error:
    result = f"Error: {type(error).__name__}: {error}"[:_MAX_RAISED]
    failed = True
  else:
    result, failed = _plain(path, result), False
    if not isinstance(result, str):
      result = json.dumps(result, ensure_ascii=False)
  return ToolResult(cut(result, options.max_bytes), failed)


def _plain(path: str, value: Any) -> Any:
  """Converts a tool's result to values of JSON.

  Arrays and sets are lists, sets in the order of their texts; a dataclass is an
  object; dates and decimal numbers are texts, with all of their digits.

  Raises:
    TypeError: The value has no meaning in JSON, or several.
  """
  convert = functools.partial(_plain, path)
  if isinstance(value, str | int | float | None):
    return value
  if isinstance(value, datetime.date | datetime.time):
    return value.isoformat()
  if isinstance(value, decimal.Decimal | fractions.Fraction | uuid.UUID):
    return str(value)
  if isinstance(value, enum.Enum):
    return convert(value.value)
  if isinstance(value, Mapping):
    keys = list(map(convert, value))
    if all(isinstance(key, str | int | float | None) for key in keys):
      return dict(zip(keys, map(convert, value.values()), strict=True))
  elif dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = dataclasses.fields(value)
    return {x.name: convert(getattr(value, x.name)) for x in fields}
  elif isinstance(value, list | tuple | deque):
    return [convert(item) for item in value]
  elif isinstance(value, set | frozenset):
    return sorted(map(convert, value), key=json.dumps)
  elif callable(tolist := getattr(value, "tolist", None)):  # Like NumPy's.
    return convert(tolist())
  raise TypeError(
    f"tool '{path}' returned {value!r:.80} ({type(value).__name__}); needs"
    " a text, or what JSON can write: numbers, lists, and objects with texts as"
    " keys. Convert it in the tool."
  )


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
  """Interrupts the main thread of a session when the time is over."""

  def interrupt(number: int, frame: Any) -> None:
    del number, frame
    raise _OutOfTimeError

  before = signal.signal(signal.SIGALRM, interrupt)
  signal.setitimer(signal.ITIMER_REAL, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def cut(text: str, most: int) -> str:
  """Returns the first `most` bytes of a text, and the number left out."""
  data = text.encode("utf-8", "replace")
  if len(data) <= most:
    return text
  start = data[:most].decode("utf-8", "ignore")
  return f"{start}\n[{len(data) - most} bytes left out]"


# Answers.


def _grade(
  options: Options, prompt: str, extras: Mapping[str, Any], text: str
) -> float:
  """Returns the reward of an answer.

  Raises:
    ValueError: The function returns no reward.
  """
  gold = extras[options.answer]
  if options.grade in _COMPARED:
    golds = gold if isinstance(gold, (list, tuple)) else [gold]
    answer = _words(_answer(text, options.answer_after))
    right = [_words(str(x)) for x in golds]
    if options.grade == "exact":
      return float(answer in right)
    return float(any(f" {x} " in f" {answer} " for x in right))
  if options.grade == "math":
    gold = str(gold)  # A number of JSON becomes its text.
  function = _grader(options.grade, options.answer_after, options.sandbox)
  result = function([prompt], [text], [0], [{**extras, "answer": gold}])
  if inspect.iscoroutine(result):
    result = asyncio.run(result)
  if len(result) != 1 or result[0] is None:
    raise ValueError(
      f"tools: grade={options.grade!r} returned {result!r:.60} for an answer;"
      " needs a list with one number."
    )
  return float(result[0])


def _answer(text: str, after: str) -> str:
  """Returns the answer in an action: marked, or else all but thoughts."""
  answer = answers.final_answer(text, after)
  if answer is not None:
    return answer
  rest = text.rpartition(_END_THINK)[2]
  return "" if _THINK in rest else rest.strip()


def _words(text: str) -> str:
  """Returns an answer in the form that SQuAD compares (arXiv:1606.05250).

  If nothing is left, as of `The` or `!`, it is the text itself.
  """
  words = _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
  return " ".join(words) or text.strip()


@functools.cache
def _grader(name: str, answer_after: str, sandbox: str) -> Callable[..., Any]:
  """Returns a reward function with the context that it asks for.

  Raises:
    ValueError: The function does not exist, or asks for something that a
      session does not have.
  """
  path = "math_accuracy" if name == "math" else name
  function = registry.load_function(path)
  arguments = registry.asks_for(function) & {"tokens", "tokenizer"}
  if arguments or registry.kind(function).sees_group:
    names = ", ".join(sorted(arguments)) or "all completions of a prompt"
    raise ValueError(
      f"tools: grade={name!r} asks for {names}, and there is one answer and"
      " its text; choose another function."
    )
  context = registry.Context(answer_after=answer_after, sandbox=sandbox)
  return registry.bound(path, {}, context)


# Values that a worker's sessions share, made before the sessions are forked.

_index = functools.cache(Index)


@functools.cache
def _function(path: str) -> Callable[..., Any]:
  """Returns a tool of the user's own.

  Raises:
    ValueError: The function does not exist, or is `async`.
  """
  function = registry.load(path, "tool", {})
  if inspect.iscoroutinefunction(function):
    raise ValueError(f"tool '{path}' is `async`; needs a plain function.")
  return function


@functools.cache
def _schemas(tools: tuple[str, ...]) -> tuple[Schema, ...]:
  """Makes the schema of each tool.

  Raises:
    ValueError: A function has no schema, or two tools have the same name.
  """
  all_schemas = tuple(
    _BUILTIN.get(tool) or of_function(_function(tool)) for tool in tools
  )
  names = [schema["function"]["name"] for schema in all_schemas]
  if len({*names}) < len(names):
    raise ValueError(
      f"tools: two of {list(tools)} have the same name: {names}."
    )
  return all_schemas


def _own(tools: tuple[str, ...]) -> dict[str, str]:
  """Returns import paths of the user's own tools, by name."""
  return {
    schema["function"]["name"]: tool
    for tool, schema in zip(tools, _schemas(tools), strict=True)
    if tool not in _BUILTIN
  }


@functools.cache
def _checker(tools: tuple[str, ...]) -> Checker:
  return Checker(_schemas(tools))


def make(
  prompt: str, extras: dict[str, Any], seed: int, **options: Any
) -> ToolSession:
  """The factory of sessions, with `Options`; nothing in it is random.

  Raises:
    ValueError: The extras have no answer of that name, or a limit of "python"
      is out of range.
  """
  del seed
  config = Options(**options)
  if extras.get(config.answer) in (None, "", [], ()):
    raise ValueError(
      f"tools: the extras have no {config.answer!r}, with which answers are"
      f" compared, but {sorted(extras)}; name what has it in"
      " config.environment.options['answer']."
    )
  names = tuple(config.tools)
  tools: dict[str, Tool] = {
    name: functools.partial(_call_own, config, path)
    for name, path in _own(names).items()
  }
  end = contextlib.ExitStack()
  if "search" in names:
    tools["search"] = functools.partial(_find, config)
  if "python" in names:
    python = _interpreter(config)
    tools["python"] = functools.partial(_run, python)
    end.callback(python.close)
  grade = functools.partial(_grade, config, prompt, extras)
  return ToolSession(config, _checker(names), tools, grade, end.close)


def warm_up(**options: Any) -> None:
  """Imports tools, indexes the corpus, and tests the sandbox.

  Raises:
    FileNotFoundError, ImportError, RuntimeError, ValueError: A part cannot be
      prepared.
  """
  config = Options(**options)
  tools = tuple(config.tools)
  _checker(tools)
  functions = [_function(path) for path in _own(tools).values()]
  if config.grade not in _COMPARED:
    functions.append(_grader(config.grade, config.answer_after, config.sandbox))
  for function in functions:
    getattr(function, "warm_up", lambda: None)()
  if "search" in tools:
    _index(config.corpus)
  if "python" in tools:
    _interpreter(config)  # It starts nothing, and checks its limits.
    box.require(config.sandbox)


def schemas(**options: Any) -> list[Schema]:
  """Returns the schemas of the tools, for the chat template."""
  return list(_schemas(tuple(Options(**options).tools)))


def in_chat(chat_text: Callable[..., str], **options: Any) -> Observation:
  """Checks that the format is the one of a chat template.

  Args:
    chat_text: (messages) -> text with a generation prompt.

  Returns:
    The longest markup of an observation, without results. A row needs room
    for this markup.

  Raises:
    ValueError: The template writes calls or results in another way.
  """
  config = Options(**options)
  format = config.chat_format()
  if why := call_formats.difference(format, chat_text):
    raise ValueError(
      f"config.environment.options: format={config.format!r} is not that of the"
      f" chat template: {why}. Choose one of"
      f" {', '.join(map(repr, call_formats.FORMATS))}; or set 'opening' to what"
      " the template writes at the beginning of each turn of the model, or"
      " 'markup' to what it writes before the first result, between two and"
      " after the last."
    )
  return format.render(
    [""] * (format.most_calls or config.max_parallel + 1), ended=False
  )


def complete(
  factory: Callable[..., Any],
  warm_up: Callable[..., None],
  schemas: Callable[..., list[Schema]],
  in_chat: Callable[..., Observation] = in_chat,
  options: type = Options,
  names: Sequence[str] = (),
) -> None:
  """Adds the functions beside a factory, and the names of its options.

  Args:
    factory: Its last parameter takes the options.
    warm_up, schemas, in_chat: As those of this module.
    options: Class of the options.
    names: Those that the factory has; empty: all.
  """
  *first, _ = inspect.signature(factory).parameters.values()
  own = inspect.signature(options).parameters
  parameters = [*first, *(own[name] for name in names or own)]
  vars(factory).update(
    __signature__=inspect.Signature(parameters),
    warm_up=warm_up,
    schemas=schemas,
    in_chat=in_chat,
  )


complete(make, warm_up, schemas)
