'''Episodes in which a model calls tools in the format of its chat template.

    config.data.template = "chat"
    config.data.environment = "grpo_jax.rewards.agents.tools:make"
    config.environment.options = {
      "format": "qwen", "tools": ("search",), "corpus": "passages.jsonl",
    }

An action with calls (`call_formats.py`) is answered by their results, in their
order; one without is the answer, which is graded and ends the episode. What is
wrong with a call is told to the policy, and the episode goes on. A tool is

- "python": an interpreter in a sandbox, which keeps names between calls
  (`interpreter.py`);
- "search": BM25 over a file of passages (`tools.py`);
- "package.module:function", of the user's own (`tools.py`). It runs in
  the process of the session, without a sandbox, and returns a text, or what
  has one meaning in JSON (`_plain`). It is interrupted when `call_s` are over,
  as far as Python can interrupt it. What it raises is read by the policy; what
  it returns and nobody can write is a mistake of its author, and an error.

The schemas of the tools are put into the prompt by the chat template; see
`training/problem/environment.py`. Results are texts, in which no special token
means anything. That holds nobody off who writes instructions into a page.

What tools look like to a model: JSON schemas, and the check of arguments.

A schema is made of a function's type hints and docstring, as `get_json_schema`
of transformers makes it, but for what the function returns:

    def convert(amount: float, unit: Literal["m", "km"] = "m") -> str:
      """Converts a length to feet.

      Args:
        amount: The length.
        unit: Of the length.
      """

Hints may be str, int, float, bool, None, list, dict, tuple, Any, Literal, and
unions of these. A function has a description, and each argument a hint and a
description.

Search in a file of passages by BM25, for tools of an episode.

A file `*.jsonl` has an object on each line, with the field `text` and, if there
are any, `id` and `title`. Of any other file each line is a passage.

    index = search.Index("passages.jsonl")
    index.find("capital of France", count=3)

The index is in memory, and is made once in each worker before sessions are
forked, which share it: of 100,000 passages of 100 words (61 MiB) it takes half
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
_MAX_SHOWN = 300  # Characters of what is wrong with an argument.


def of_function(function: Callable[..., Any]) -> Schema:
  """The schema of a tool, {"type": "function", "function": {…}}.

  Raises:
    ValueError: The function has no description, an argument has no hint, a hint
      of another kind or no description, or cannot be given by name.
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
  """A schema as chat templates read it."""
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
  """Names and descriptions of a docstring's `Args:`, split into sections."""
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
  found = [_ARGUMENT.fullmatch(entry) for entry in entries]
  return [(match[1], match[2].strip()) for match in found if match]


def _of_hint(name: str, hint: Any) -> Schema:
  """The schema of a type."""
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
      found = list(dict.fromkeys(kind["type"] for kind in kinds))
      return {
        "type": found[0] if len(found) == 1 else found,
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
    found = dict(kinds[0])
  elif all(kind.keys() == {"type"} for kind in kinds):
    names = sorted({kind["type"] for kind in kinds})
    found = {"type": names[0] if len(names) == 1 else names}
  else:
    found = {"anyOf": list(kinds)}
  return {**found, "nullable": True} if nullable else found


class Checker:
  """Says what is wrong with a call, in words for the policy that made it."""

  def __init__(self, schemas: Sequence[Schema]):
    """Reads the schemas of all tools.

    Raises:
      ImportError: The package `jsonschema` is missing.
    """
    jsonschema = _import_jsonschema()
    self._validators: dict[str, Any] = {}
    for schema in schemas:
      function = schema["function"]
      self._validators[function["name"]] = jsonschema.Draft202012Validator(
        _strict(function["parameters"])
      )

  def __call__(self, name: str, arguments: Mapping[str, Any]) -> str:
    """What is wrong, or ""; see `call_formats.Check`."""
    if name not in self._validators:
      known = ", ".join(map(repr, self._validators))
      return f"Error: there is no tool {name!r:.60}; there is {known}."
    validator = self._validators[name]
    takes = validator.schema.get("properties", {})
    for argument in validator.schema.get("required", ()):
      if argument not in arguments:
        return f"Error: {name} needs the argument {argument!r}."
    for argument in arguments:
      if argument not in takes:
        own = ", ".join(map(repr, takes)) or "none"
        return f"Error: {name} has no argument {argument!r:.60}, but {own}."
    for wrong in validator.iter_errors(dict(arguments)):
      where = ".".join(map(str, wrong.absolute_path))
      message = wrong.message[:_MAX_SHOWN]
      return f"Error: the argument {where!r} of {name}: {message}."
    return ""


def _strict(schema: Any) -> Any:
  """A schema in which None is allowed where it says "nullable"."""
  if isinstance(schema, list):
    return [_strict(part) for part in schema]
  if not isinstance(schema, dict):
    return schema
  found = {key: _strict(part) for key, part in schema.items()}
  if found.pop("nullable", None) is True:
    return {"anyOf": [found, {"type": "null"}]}
  return found


def _import_jsonschema() -> Any:
  """The optional package, imported when it is needed."""
  try:
    import jsonschema
  except ImportError as error:
    raise ImportError(
      "grpo_jax.rewards.agents.tools: calls are checked with the package"
      " 'jsonschema'; install grpo_jax[tools]."
    ) from error
  return jsonschema


class Passage(NamedTuple):
  """A passage of the corpus.

  Attributes:
    id: As the file says, or the number of the line, from 1 on.
    title: May be empty.
    text: The passage.
  """

  id: str
  title: str
  text: str


class Index:
  """Passages of a file, and where words are in them."""

  def __init__(self, path: str):
    """Reads the file and indexes titles and texts.

    Raises:
      FileNotFoundError: There is no such file.
      ImportError: The package `bm25s` is missing.
      ValueError: It has no passage, or a line that is none.
    """
    self.passages = read(path)
    self._library = _import_bm25s()
    self._scores = self._library.BM25()
    texts = [f"{x.title} {x.text}" for x in self.passages]
    self._scores.index(self._words(texts), show_progress=False)

  def _words(self, texts: list[str]) -> list[list[str]]:
    return self._library.tokenize(
      texts, stopwords="en", return_ids=False, show_progress=False
    )

  def find(self, query: str, count: int) -> list[Passage]:
    """The passages that fit best, best first; those without any word do not.

    Args:
      query: Words.
      count: Most passages.
    """
    import numpy as np

    known = self._scores.vocab_dict
    words = [word for word in self._words([query])[0] if word in known]
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
  """The passages of a file; lines without any text are left out.

  Raises:
    FileNotFoundError: There is no such file.
    ValueError: It has no passage, or a line that is none.
  """
  file = pathlib.Path(path)
  if not file.is_file():
    raise FileNotFoundError(
      f"search: no file {path!r} of passages; name one in"
      " config.environment.options['corpus']: JSON lines with the field 'text',"
      " or a text with a passage on each line."
    )
  made = _of_json if file.suffix == ".jsonl" else _of_text
  with file.open(encoding="utf-8") as lines:
    found = [
      made(line, number, path)
      for number, line in enumerate(lines, start=1)
      if line.strip()
    ]
  if not found:
    raise ValueError(f"search: the file {path!r} has no passage.")
  return found


def _of_text(line: str, number: int, path: str) -> Passage:
  del path
  return Passage(str(number), "", line.strip())


def _of_json(line: str, number: int, path: str) -> Passage:
  try:
    row = json.loads(line)
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f"search: {path}, line {number} is no JSON: {error}."
    ) from None
  if not isinstance(row, dict) or not isinstance(row.get("text"), str):
    raise ValueError(
      f"search: {path}, line {number} is {line.strip()!r:.60}; needed is an"
      " object with a field 'text', and maybe 'id' and 'title'."
    )
  id_, title = row.get("id", number), row.get("title", "")
  return Passage(str(id_), str(title), row["text"])


# Where bm25s finds JAX, it runs an operation of it while it is imported, which
# would take an accelerator from the process that trains; and tqdm starts a
# thread before sessions are forked. It works as well without both.
_HIDDEN = ("jax", "jax.lax", "tqdm.auto")


@contextlib.contextmanager
def _without(names: Sequence[str]) -> Iterator[None]:
  """Within, these modules cannot be imported."""
  found = {name: sys.modules[name] for name in names if name in sys.modules}
  sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
  try:
    yield
  finally:
    for name in names:
      del sys.modules[name]
    sys.modules.update(found)


def _import_bm25s() -> Any:
  """The optional package, imported when it is needed."""
  try:
    with _without(_HIDDEN):
      import bm25s
  except ImportError as error:
    raise ImportError(
      "grpo_jax.rewards.agents.tools: needs the package 'bm25s'; install"
      " grpo_jax[tools]."
    ) from error
  return bm25s


# Grades that compare words, and do not ask a reward function.
_COMPARED = ("exact", "contains")
_COUNTS = ("answered", "tool_calls", "malformed", "tool_errors", "refused")
_THINK, _END_THINK = "<think>", "</think>"
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MAX_RAISED = 500  # Characters of what a tool raises.

_PYTHON = of_parts(
  "python",
  "Runs Python code and returns what it prints, and the value of an expression"
  " on its last line. Variables stay between calls.",
  {
    "type": "object",
    "properties": {
      "code": {"type": "string", "description": "The code to run."}
    },
    "required": ["code"],
  },
)
_SEARCH = of_parts(
  "search",
  "Searches a collection of passages and returns those that fit best.",
  {
    "type": "object",
    "properties": {
      "query": {"type": "string", "description": "The words to search for."}
    },
    "required": ["query"],
  },
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
  """Settings of a session, `config.environment.options`.

  Attributes:
    format: "qwen", "hermes" or "llama".
    tools: Tools that the model may call, by name or import path.
    answer: Which of the extras the answer is compared with.
    grade: "exact": the same words, without case, punctuation and articles, as
      SQuAD compares them; "contains": they are among those of the answer;
      "math": `math_accuracy`; or a reward function by name or import path,
      whose value is the reward, and which is right from 1 on. A list in the
      extras, for the first two, has answers that are all right.
    answer_after: Marker of an answer, as `config.rewards.answer_after`.
    max_calls: Calls of an episode, at most.
    max_parallel: Calls of an action, at most; what follows is not made.
    max_bytes: Of a result; what is more is left out, by "python" of the middle.
    max_total_bytes: Of the results of an episode; then calls are refused.
    call_s: Seconds for a call.
    turn_s: Seconds for the calls of an action: one is refused for which
      `call_s` are not left. Keep it below `config.rewards.row_timeout_s`.
    total_s: Seconds for the calls of an episode.
    corpus: File of passages for "search".
    top_k: Passages that a search returns, at most.
    passage_chars: Characters of a passage that it returns, at most.
    sandbox: For "python": "bwrap", or "process", which holds nothing.
    memory: Bytes, for "python".
    opening, markup: See `call_formats.named`.

  Raises:
    ValueError: A setting that cannot be.
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
          f"tools: {field.name}={value!r}; needed is a positive number."
        )
    if self.call_s > self.turn_s:
      raise ValueError(
        f"tools: call_s={self.call_s} and turn_s={self.turn_s}: no call has the"
        " time that it may take; lower call_s."
      )
    if isinstance(self.tools, str) or not self.tools:
      raise ValueError(
        f"tools: tools={self.tools!r}; needed is a list of 'python', 'search'"
        " and import paths 'package.module:function'."
      )
    if ("search" in self.tools) != bool(self.corpus):
      raise ValueError(
        f"tools: tools={list(self.tools)} and corpus={self.corpus!r}; 'search'"
        " needs a file of passages, and only it does."
      )
    self.chat_format()

  def chat_format(self) -> call_formats.Format:
    """How calls and results are written."""
    return call_formats.named(self.format, self.opening, self.markup)


# What a tool says, and whether something was wrong with it.
class _Said(NamedTuple):
  text: str
  failed: bool = False


# (arguments) -> what it says, cut to `max_bytes`.
_Tool = Callable[[Mapping[str, Any]], _Said]


class _OutOfTimeError(BaseException):
  """A call took too long; no `except Exception` of a tool catches it."""


class ToolSession:
  """One episode; see the module and `types.HostEnvironment`.

  Scores: "accuracy"; "grade", the reward of the answer; "answered", 1 if there
  is one; "tool_seconds"; and numbers of calls: "tool_calls", which were made;
  "tool_errors", among them those that failed, and beside them those of unknown
  tools or with wrong arguments; "malformed", which could not be read; and
  "refused", for which calls, time or bytes were used up.
  """

  def __init__(self, prompt: str, extras: Mapping[str, Any], options: Options):
    """Begins an episode, and starts nothing.

    Raises:
      ValueError: The extras have no answer of that name, or a limit of
        "python" is out of range.
    """
    if extras.get(options.answer) in (None, "", [], ()):
      raise ValueError(
        f"tools: the extras have no {options.answer!r}, with which answers are"
        f" compared, but {sorted(extras)}; name what has it in"
        " config.environment.options['answer']."
      )
    self._prompt, self._extras, self._options = prompt, extras, options
    self._format = options.chat_format()
    self._check = _checker(tuple(options.tools))
    self._tools: dict[str, _Tool] = {
      name: functools.partial(_call_own, options, path)
      for name, path in _own(tuple(options.tools)).items()
    }
    if "search" in options.tools:
      self._tools["search"] = functools.partial(_find, options)
    self._python: interpreter.Interpreter | None = None
    if "python" in options.tools:
      self._python = _interpreter(options)
      self._tools["python"] = functools.partial(_run, self._python)
    self._counts = dict.fromkeys(_COUNTS, 0)
    self._num_bytes = 0
    self._seconds = 0.0
    self._grade = 0.0

  def step(self, action: str) -> tuple[Observation, float, bool]:
    """Answers an action: (observation, reward, whether it is the end).

    Raises:
      RuntimeError, TimeoutError: A sandbox cannot be made.
      TypeError: A tool has returned what JSON cannot write.
      ValueError: The answer cannot be graded.
    """
    parsed = self._format.parse(action, self._check)
    if not parsed.calls:
      self._counts["answered"] = 1
      self._grade = _grade(
        self._options, self._prompt, parsed.text, self._extras
      )
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
    """Scores of the episode so far."""
    return {
      "accuracy": float(self._grade >= 1.0),
      "grade": self._grade,
      "tool_seconds": self._seconds,
      **{name: float(count) for name, count in self._counts.items()},
    }

  def close(self) -> None:
    """Ends the interpreter."""
    if self._python is not None:
      self._python.close()

  def _result(self, call: call_formats.ToolCall, end: float) -> str:
    """What the policy reads of a call; `end` is that of the action's time."""
    if call.error:
      self._counts["malformed" if call.malformed else "tool_errors"] += 1
      return call.error
    if refused := self._refused(end):
      self._counts["refused"] += 1
      return f"Error: the call was not made: {refused}."
    self._counts["tool_calls"] += 1
    started = time.monotonic()
    said = self._tools[call.name](call.arguments)
    self._seconds += time.monotonic() - started
    self._counts["tool_errors"] += said.failed
    self._num_bytes += len(said.text.encode("utf-8", "replace"))
    return said.text

  def _refused(self, end: float) -> str:
    """Why no call can be made any more, or ""."""
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
  """That of an episode; its box is made at the first call.

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
) -> _Said:
  """The tool "python", which cuts by itself and keeps the error at the end."""
  answer = python.run(arguments["code"])
  return _Said(answer.text, answer.status != "done")


def _find(options: Options, arguments: Mapping[str, Any]) -> _Said:
  """The tool "search", which takes milliseconds and no limit of time."""
  found = _index(options.corpus).find(arguments["query"], options.top_k)
  shown = [
    f"[{number}] {passage.title}\n{passage.text[: options.passage_chars]}"
    if passage.title
    else f"[{number}] {passage.text[: options.passage_chars]}"
    for number, passage in enumerate(found, start=1)
  ]
  said = "\n\n".join(shown) or "No passage has any of these words."
  return _Said(_cut(said, options.max_bytes))


def _call_own(
  options: Options, path: str, arguments: Mapping[str, Any]
) -> _Said:
  """A function of the user's own."""
  try:
    with _within(options.call_s):
      said = _function(path)(**arguments)
  except _OutOfTimeError:
    said, failed = f"Error: no result in {options.call_s:g} s.", True
  except Exception as error:
    said = f"Error: {type(error).__name__}: {error}"[:_MAX_RAISED]
    failed = True
  else:
    said, failed = _plain(path, said), False
    if not isinstance(said, str):
      said = json.dumps(said, ensure_ascii=False)
  return _Said(_cut(said, options.max_bytes), failed)


def _plain(path: str, value: Any) -> Any:
  """What a tool has returned, as JSON has it.

  Arrays and sets are lists, these in the order of their texts; a dataclass is
  an object; dates and decimal numbers are texts, with all of their digits.

  Raises:
    TypeError: It has no meaning in JSON, or several.
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
    return [convert(one) for one in value]
  elif isinstance(value, set | frozenset):
    return sorted(map(convert, value), key=json.dumps)
  elif callable(tolist := getattr(value, "tolist", None)):  # Of NumPy's kind.
    return convert(tolist())
  raise TypeError(
    f"tool '{path}' returned {value!r:.80} ({type(value).__name__}); needed is"
    " a text, or what JSON can write: numbers, lists, and objects with texts as"
    " keys. Convert it in the tool."
  )


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
  """Interrupts what runs too long in the main thread of a session."""

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


def _cut(text: str, most: int) -> str:
  """The first bytes of a text, and how many were left out."""
  data = text.encode("utf-8", "replace")
  if len(data) <= most:
    return text
  kept = data[:most].decode("utf-8", "ignore")
  return f"{kept}\n[{len(data) - most} bytes left out]"


# Answers.


def _grade(
  options: Options, prompt: str, text: str, extras: Mapping[str, Any]
) -> float:
  """The reward of an answer.

  Raises:
    ValueError: The function gives none.
  """
  gold = extras[options.answer]
  if options.grade in _COMPARED:
    golds = gold if isinstance(gold, (list, tuple)) else [gold]
    said = _words(_answer(text, options.answer_after))
    right = [_words(str(one)) for one in golds]
    if options.grade == "exact":
      return float(said in right)
    return float(any(f" {one} " in f" {said} " for one in right))
  if options.grade == "math":
    gold = str(gold)  # A number of JSON is the text that it has there.
  function = _grader(options.grade, options.answer_after, options.sandbox)
  result = function([prompt], [text], [0], [{**extras, "answer": gold}])
  if inspect.iscoroutine(result):
    result = asyncio.run(result)
  if len(result) != 1 or result[0] is None:
    raise ValueError(
      f"tools: grade={options.grade!r} returned {result!r:.60} for an answer;"
      " needed is a list with one number."
    )
  return float(result[0])


def _answer(text: str, after: str) -> str:
  """What an action answers: marked (`answers.py`), or else all but thoughts."""
  found = answers.final_answer(text, after)
  if found is not None:
    return found
  rest = text.rpartition(_END_THINK)[2]
  return "" if _THINK in rest else rest.strip()


def _words(text: str) -> str:
  """An answer as SQuAD's evaluation compares it (arXiv:1606.05250).

  Where nothing is left, as of `The` or `!`, it is the text itself.
  """
  words = _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()
  return " ".join(words) or text.strip()


@functools.cache
def _grader(name: str, answer_after: str, sandbox: str) -> Callable[..., Any]:
  """A reward function with what it asks for.

  Raises:
    ValueError: There is none, or it asks for what a session does not have.
  """
  path = "math_accuracy" if name == "math" else name
  function = registry.load_function(path)
  asked = registry.asks_for(function) & {"tokens", "tokenizer"}
  if asked or registry.kind(function).sees_group:
    asked_for = ", ".join(sorted(asked)) or "all completions of a prompt"
    raise ValueError(
      f"tools: grade={name!r} asks for {asked_for}, and there is one answer and"
      " its text; choose another function."
    )
  context = registry.Context(answer_after=answer_after, sandbox=sandbox)
  return registry.bound(path, {}, context)


# What sessions of a worker share; made before they are forked.

_index = functools.cache(Index)


@functools.cache
def _function(path: str) -> Callable[..., Any]:
  """A tool of the user's own.

  Raises:
    ValueError: There is none, or it is `async`.
  """
  function = registry.load(path, "tool", {})
  if inspect.iscoroutinefunction(function):
    raise ValueError(f"tool '{path}' is `async`; needed is a plain function.")
  return function


@functools.cache
def _schemas(tools: tuple[str, ...]) -> tuple[Schema, ...]:
  """Makes the schema of each tool.

  Raises:
    ValueError: One is none, or two have the same name.
  """
  known = {"python": _PYTHON, "search": _SEARCH}
  made = tuple(
    known[tool] if tool in known else of_function(_function(tool))
    for tool in tools
  )
  names = [schema["function"]["name"] for schema in made]
  if len({*names}) < len(names):
    raise ValueError(
      f"tools: two of {list(tools)} have the same name: {names}."
    )
  return made


def _own(tools: tuple[str, ...]) -> dict[str, str]:
  """Import paths of the user's own tools, by name."""
  return {
    schema["function"]["name"]: tool
    for tool, schema in zip(tools, _schemas(tools), strict=True)
    if tool not in ("python", "search")
  }


@functools.cache
def _checker(tools: tuple[str, ...]) -> Checker:
  return Checker(_schemas(tools))


def make(
  prompt: str, extras: dict[str, Any], seed: int, **options: Any
) -> ToolSession:
  """The factory; nothing in it is random. `Options` says what options are."""
  del seed
  return ToolSession(prompt, extras, Options(**options))


def _signature() -> inspect.Signature:
  """That of the factory, with the names of its options."""
  *first, _ = inspect.signature(make).parameters.values()
  own = inspect.signature(Options).parameters.values()
  return inspect.Signature([*first, *own])


def warm_up(**options: Any) -> None:
  """Imports tools, indexes the corpus, and tests the sandbox.

  Raises:
    FileNotFoundError, ImportError, RuntimeError, ValueError: From the part that
      complains.
  """
  made = Options(**options)
  tools = tuple(made.tools)
  _checker(tools)
  functions = [_function(path) for path in _own(tools).values()]
  if made.grade not in _COMPARED:
    functions.append(_grader(made.grade, made.answer_after, made.sandbox))
  for function in functions:
    getattr(function, "warm_up", lambda: None)()
  if "search" in tools:
    _index(made.corpus)
  if "python" in tools:
    _interpreter(made)  # It starts nothing, and checks its limits.
    box.require(made.sandbox)


def schemas(**options: Any) -> list[Schema]:
  """What the chat template tells the model of the tools."""
  return list(_schemas(tuple(Options(**options).tools)))


def in_chat(chat_text: Callable[..., str], **options: Any) -> Observation:
  """Checks that the format is that of a chat template.

  Args:
    chat_text: (messages) -> text with a generation prompt.
    **options: Those of the factory.

  Returns:
    An observation with all markup that there may be, and no text, for which
    there has to be room.

  Raises:
    ValueError: The template writes calls or results in another way.
  """
  made = Options(**options)
  format = made.chat_format()
  if wrong := call_formats.difference(format, chat_text):
    raise ValueError(
      f"config.environment.options: format={made.format!r} is not that of the"
      f" chat template: {wrong}. Choose one of"
      f" {', '.join(map(repr, call_formats.FORMATS))}; or set 'opening' to what"
      " the template writes at the beginning of each turn of the model, or"
      " 'markup' to what it writes before the first result, between two and"
      " after the last."
    )
  return format.render(
    [""] * (format.most_calls or made.max_parallel + 1), ended=False
  )


make.__signature__ = _signature()  # type: ignore[attr-defined]
make.warm_up = warm_up  # type: ignore[attr-defined]
make.schemas = schemas  # type: ignore[attr-defined]
make.in_chat = in_chat  # type: ignore[attr-defined]
