"""Episodes of a coding agent: a repository with a fault, and hidden tests.

    config.data.template = "chat"
    config.data.environment = "grpo_jax.rewards.agents.coding:make"
    config.environment.options = {"format": "qwen"}
    config.rewards.functions = ("accuracy",)

The model calls tools in the format of its chat template, as with `tools.py`:

    list_files()                     names and sizes of the files
    read_file(path, first, last)     lines of a file, with their numbers
    search(text)                     lines that have the text
    replace(path, old, new)          replaces a text that occurs once
    write_file(path, text)           makes a file, or writes it anew
    run_tests()                      runs the visible tests
    run_python(code)                 runs code in the repository

An action without a call hands the repository in, and the hidden tests decide.

A record has these extras:

    {"files": {"shapes/area.py": "def area(…"},
     "module": "shapes.area",
     "visible": [{"call": "area(2, 3)", "output": "6"}],
     "hidden": [{"lines": "x = area(1, 1)", "call": "x + 1", "output": "2"}]}

A test runs its `lines`, if it has any, with the names of the module, evaluates
`call`, and compares its `repr` with `output`. The command
`experiments.rewards.coding_task` makes such records from installed packages.

**Nothing pays but a repair.** The files are texts in the process of the
session. Each run writes them into a new box (`sandbox/box.py`), which is thrown
away: what a program writes is lost, and the tools alone edit. The box has no
expected output and no hidden test while the policy's code runs, apart from the
calls themselves during grading, and the host compares. Visible tests are those
of the record, whatever the files say. A box allows one process, so no tool is a
shell, and only the standard library is there.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_jax.rewards.agents import tools
from grpo_jax.rewards.sandbox import box as box_lib

_OPTIONS = (
  *("format", "max_calls", "max_parallel", "max_bytes", "max_total_bytes"),
  *("call_s", "turn_s", "total_s", "sandbox", "memory", "opening", "markup"),
)
_MAX_FILES = 64
_MAX_BYTES = 1 << 18  # Of all files.
_MAX_PATH = 200  # Characters.
_MAX_FOUND = 50  # Lines of a search.

# Begins each program in a box. Its names begin with "_", so that calls and
# programs of the policy meet only those of Python.
_START = """
import os as _os, sys as _sys
def _test(module, lines, call):
  import importlib
  names = dict(vars(importlib.import_module(module)))
  exec(lines, names)
  return eval(call, names)
for _path, _text in {files!r}.items():
  _os.makedirs(_os.path.dirname(_path) or ".", exist_ok=True)
  with open(_path, "w", encoding="utf-8") as _file:
    _file.write(_text)
_sys.path.insert(0, _os.getcwd())
_sys.dont_write_bytecode = True
"""
_RUN = """
try:
  exec(compile({code!r}, "<code>", "exec"), {{"__name__": "__main__"}})
except BaseException as _error:
  import traceback as _traceback
  _trace = _error.__traceback__.tb_next
  print("".join(_traceback.format_exception(type(_error), _error, _trace)))
"""


class Repository:
  """The files of an episode, and the tools that read and change them.

  A method that is a tool returns a text for the policy. If the policy has made
  a mistake, it raises a `ValueError`.
  """

  def __init__(self, extras: Mapping[str, Any], options: tools.Options):
    """Reads a record.

    Raises:
      ValueError: A field is missing or of another form.
    """
    module, files = extras.get("module"), extras.get("files")
    if not isinstance(module, str) or not (
      isinstance(files, Mapping)
      and all(isinstance(x, str) for pair in files.items() for x in pair)
    ):
      raise ValueError(
        f"coding: module={module!r:.60}, files={files!r:.60}; the extras"
        " need the name of a module, and {path: text}."
      )
    self._module = module
    self.files = {_checked(path): text for path, text in files.items()}
    self._visible = _tests(extras, "visible")
    self._hidden = _tests(extras, "hidden")
    self._options = options
    self._limits = box_lib.BoxLimits(
      wall_s=options.call_s,
      cpu_s=max(1, int(options.call_s)),
      memory=options.memory,
      output=1 << 16,
    )

  def list_files(self) -> str:
    """Lists the files of the repository, with their numbers of lines."""
    return "\n".join(
      f"{path} ({len(text.splitlines())} lines)"
      for path, text in sorted(self.files.items())
    )

  def read_file(self, path: str, first: int = 1, last: int = 200) -> str:
    """Reads lines of a file. Each line begins with its number.

    Args:
      path: Path of the file.
      first: Number of the first line, from 1 on.
      last: Number of the last line.
    """
    lines = self._text(path).splitlines()
    if not 1 <= first <= max(len(lines), 1) or last < first:
      raise ValueError(f"{path} has the lines 1 to {len(lines)}")
    return "\n".join(
      f"{number} {line}"
      for number, line in enumerate(lines[first - 1 : last], start=first)
    )

  def search(self, text: str) -> str:
    """Finds the lines of all files that have a text.

    Args:
      text: The text, part of a line.
    """
    lines = [
      f"{path}:{number} {line}"
      for path, content in sorted(self.files.items())
      for number, line in enumerate(content.splitlines(), start=1)
      if text in line
    ]
    more = len(lines) - _MAX_FOUND
    end = [f"[{more} more lines]"] if more > 0 else []
    return "\n".join(lines[:_MAX_FOUND] + end) or "No line has this text."

  def replace(self, path: str, old: str, new: str) -> str:
    """Replaces a text in a file. The text must occur exactly once.

    Args:
      path: Path of the file.
      old: The text, without numbers of lines.
      new: What stands in its place afterwards.
    """
    text = self._text(path)
    if (count := text.count(old) if old else 0) != 1:
      raise ValueError(f"{path} has the text {count} times; needs it once")
    return self._write(path, text.replace(old, new))

  def write_file(self, path: str, text: str) -> str:
    """Writes a file: a new one, or all of a file that exists.

    Args:
      path: Path of the file.
      text: The whole text of the file.
    """
    return self._write(path, text)

  def run_tests(self) -> str:
    """Runs the tests of the repository, and shows those that fail."""
    results = self.results(self._visible)
    failures = [
      f"FAILED {_lines(test)}\n  is       {'an error' if got is None else got}"
      f"\n  expected {test['output']}"
      for test, got in zip(self._visible, results, strict=True)
      if got != test["output"]
    ]
    num_passed = len(results) - len(failures)
    return "\n".join([*failures, f"{num_passed} of {len(results)} tests pass."])

  def run_python(self, code: str) -> str:
    """Runs Python code in the repository and returns what it prints.

    Files that it writes are not kept.

    Args:
      code: The code.
    """
    outcome = self._run(_RUN.format(code=code), None)
    output = outcome.output.decode("utf-8", "replace").strip()
    note = "" if outcome.status == "done" else f"[{outcome.status}]"
    return "\n".join(filter(None, (output, note))) or "[nothing printed]"

  def share_passed(self) -> float:
    """The share of hidden tests that pass, from 0 to 1.

    Raises:
      RuntimeError, TimeoutError: The box cannot be made.
    """
    results = self.results(self._hidden)
    passes = [
      got == test["output"]
      for test, got in zip(self._hidden, results, strict=True)
    ]
    return sum(passes) / len(passes)

  def _text(self, path: str) -> str:
    content = self.files.get(posixpath.normpath(path))
    if content is None:
      raise ValueError(f"there is no file {path!r:.80}")
    return content

  def _write(self, path: str, text: str) -> str:
    files = {**self.files, _checked(path): text}
    size = sum(len(x.encode("utf-8", "replace")) for x in files.values())
    if len(files) > _MAX_FILES or size > _MAX_BYTES:
      raise ValueError(
        f"the repository would have {len(files)} files and {size} bytes; it may"
        f" have {_MAX_FILES} and {_MAX_BYTES}"
      )
    self.files = files
    return f"{path} has {len(text.splitlines())} lines now."

  def results(self, tests: Sequence[Mapping[str, str]]) -> list[str | None]:
    """The `repr` of the call of each test, in a new box; None for an error.

    Raises:
      RuntimeError, TimeoutError: The box cannot be made.
    """
    calls = [
      f"_test({self._module!r}, {test.get('lines', '')!r}, {test['call']!r})"
      for test in tests
    ]
    return box_lib.answers(self._run("", calls), len(calls))

  def _run(
    self, program: str, calls: Sequence[str] | None
  ) -> box_lib.ProgramResult:
    start = _START.format(files=self.files)
    box = box_lib.require(self._options.sandbox)
    return box.run(start + program, b"", calls, self._limits)


def _tests(extras: Mapping[str, Any], field: str) -> list[dict[str, str]]:
  """Returns the tests of a record.

  Raises:
    ValueError: There are none, or one is of another form.
  """
  tests = extras.get(field)
  if (
    not isinstance(tests, Sequence)
    or not tests
    or not all(
      isinstance(test, Mapping)
      and {"call", "output"} <= test.keys() <= {"lines", "call", "output"}
      and all(isinstance(x, str) for x in test.values())
      for test in tests
    )
  ):
    raise ValueError(
      f"coding: {field}={tests!r:.60}; the extras need a list of"
      " {'call': expression, 'output': its repr}, and maybe 'lines'."
    )
  return [dict(test) for test in tests]


def _lines(test: Mapping[str, str]) -> str:
  return "\n  ".join([*test.get("lines", "").splitlines(), test["call"]])


def _checked(path: str) -> str:
  """Returns a path within the repository.

  Raises:
    ValueError: It leads elsewhere, or is not a path.
  """
  normal = posixpath.normpath(path)
  if (
    not path.isprintable()
    or len(path) > _MAX_PATH
    or normal.startswith(("/", "../"))
    or normal in (".", "..")
  ):
    raise ValueError(f"{path!r:.80} is not a path within the repository")
  return normal


_TOOLS = (
  *("list_files", "read_file", "search", "replace", "write_file"),
  *("run_tests", "run_python"),
)


@functools.cache
def _schemas() -> tuple[tools.Schema, ...]:
  blank = object.__new__(Repository)
  return tuple(tools.of_function(getattr(blank, name)) for name in _TOOLS)


@functools.cache
def _checker() -> tools.Checker:
  return tools.Checker(_schemas())


def _call(
  tool: Callable[..., str], most: int, arguments: Mapping[str, Any]
) -> tools.ToolResult:
  try:
    return tools.ToolResult(tools.cut(tool(**arguments), most))
  except ValueError as error:
    return tools.ToolResult(f"Error: {error}.", failed=True)


class CodingSession(tools.ToolSession):
  """One episode; see the module.

  Scores: those of `tools.ToolSession`, "accuracy" being 1 if all hidden tests
  pass; and "passed", the share of them, both 0 before the repository is handed
  in.
  """

  def __init__(self, repository: Repository, options: tools.Options):
    """Begins an episode, and starts nothing."""
    self._share = 0.0

    def grade(answer: str) -> float:
      del answer
      self._share = repository.share_passed()
      return float(self._share == 1.0)

    functions: dict[str, tools.Tool] = {
      name: functools.partial(
        _call, getattr(repository, name), options.max_bytes
      )
      for name in _TOOLS
    }
    super().__init__(options, _checker(), functions, grade)

  def scores(self) -> dict[str, float]:
    """Returns the scores of the episode so far."""
    return {**super().scores(), "passed": self._share}


def make(
  prompt: str, extras: dict[str, Any], seed: int, **options: Any
) -> CodingSession:
  """The factory of sessions, with some of `tools.Options`; nothing is random.

  Raises:
    ValueError: The record or an option has another form.
  """
  del prompt, seed
  config = tools.Options(**options)
  return CodingSession(Repository(extras, config), config)


def warm_up(**options: Any) -> None:
  """Tests the sandbox, before the first session.

  Raises:
    ImportError, RuntimeError, ValueError: A part cannot be prepared.
  """
  _checker()
  box_lib.require(tools.Options(**options).sandbox)


def schemas(**options: Any) -> list[tools.Schema]:
  """Returns the schemas of the tools, for the chat template."""
  del options
  return list(_schemas())


tools.complete(make, warm_up, schemas, names=_OPTIONS)
