"""Packages with a planted fault, as tasks for a coding agent.

A module with examples in its docstrings is copied, and one operator, comparison
or number of the copy is changed, so that some examples fail. Half of them are
taken out of the docstrings, and are the hidden tests. The others stay, and
are the visible tests. A fault counts if it fails one of each, and at most half
of all. `rewards/agents/coding.py` describes the records.

A part of the size "module" is a module with what it imports of its own package,
at most ten files. One of the size "function" is a single function that needs
nothing else, of some ten lines. Packages have to be installed, in Python alone,
and to need only the standard library.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import doctest
import hashlib
import importlib.util
import itertools
import pathlib
import pkgutil
import random
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.rewards import lines
from grpo_jax.rewards.agents import coding, tools

PROMPT = (
  "The module {module} has a fault in one of its functions, and tests fail."
  " Find the fault and repair it with the tools. Then say that you are done."
)
_MAX_FILES = 10
_MAX_OUTPUT = 200  # Characters of an expected output.
_NUM_HELD_OUT = 5  # Of so many functions one is for testing.
_SWAPS: dict[type, type] = {
  **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
  **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot},
  **{ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In},
  **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add},
  **{ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Div: ast.Mult},
  **{ast.And: ast.Or, ast.Or: ast.And},
}


@dataclasses.dataclass(frozen=True)
class Source:
  """Part of a package with its tests.

  Attributes:
    module: The name of the module that the tests are about.
    path: Path of its file.
    files: All files {path: text}, without hidden examples.
    visible, hidden: Tests; see `coding.py`.
  """

  module: str
  path: str
  files: dict[str, str]
  visible: list[dict[str, str]]
  hidden: list[dict[str, str]]

  def failed(self, text: str) -> tuple[int, int]:
    """Numbers of visible and of hidden tests that fail with a text."""
    files = {**self.files, self.path: text}
    return tuple(  # type: ignore[return-value]
      sum(
        got != test["output"]
        for test, got in zip(
          tests, outputs(self.module, files, tests), strict=True
        )
      )
      for tests in (self.visible, self.hidden)
    )


def outputs(
  module: str, files: dict[str, str], tests: Sequence[dict[str, str]]
) -> list[str | None]:
  """The `repr` of the call of each test, in a box; None for an error."""
  blank = [{**test, "output": ""} for test in tests]
  extras = dict(files=files, module=module, visible=blank, hidden=blank)
  return coding.Repository(extras, tools.Options()).results(blank)


def examples(docstring: str) -> Iterator[tuple[doctest.Example, str]]:
  """Examples that are expressions with a value, and the lines before each."""
  before: list[str] = []
  for example in doctest.DocTestParser().get_examples(docstring):
    if example.exc_msg is not None or example.options:
      continue
    source = example.source.strip()
    try:
      ast.parse(source, mode="eval")
    except SyntaxError:
      is_expression = False
    else:
      is_expression = bool(example.want)
    if is_expression:
      yield example, "\n".join(before)
    before.append(source)


def _docstrings(text: str) -> Iterator[ast.Constant]:
  """The docstrings of functions and classes."""
  for node in ast.walk(ast.parse(text)):
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
      continue
    match node.body[0]:
      case ast.Expr(value=ast.Constant(value=str()) as found):
        yield found


def without_every_second(
  text: str,
) -> tuple[str, list[dict[str, str]], list[dict[str, str]]]:
  """Takes every second example out of the docstrings.

  Returns:
    The text that is left, the tests that stay in it, and those taken out.
  """
  visible: list[dict[str, str]] = []
  hidden: list[dict[str, str]] = []
  all_lines = text.splitlines(keepends=True)
  for node in _docstrings(text):
    for number, (example, before) in enumerate(examples(node.value)):
      test = {"lines": before, "call": example.source.strip(), "output": ""}
      first = node.lineno - 1 + example.lineno
      size = example.source.count("\n") + example.want.count("\n")
      if number % 2 == 0:
        visible.append(test)
      elif ">>> " in all_lines[first]:
        hidden.append(test)
        all_lines[first : first + size] = [""] * size
  return "".join(all_lines), visible, hidden


def _own_files(package: str, module: str) -> dict[str, str]:
  """A module and what it imports of its package, {path: text}.

  Packages are there with an empty `__init__.py`.
  """
  files: dict[str, str] = {}
  waiting = [module]
  while waiting:
    name = waiting.pop()
    try:
      spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # A name in a module, which is not one.
      continue
    path = name.replace(".", "/") + ".py"
    if spec is None or not spec.origin or path in files:
      continue
    if not spec.origin.endswith(".py") or spec.submodule_search_locations:
      continue
    files[path] = pathlib.Path(spec.origin).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(files[path])):
      if isinstance(node, ast.ImportFrom):
        parts = name.split(".")[: -node.level] if node.level else []
        base = ".".join([*parts, *filter(None, [node.module])])
        found = [base, *(f"{base}.{x.name}" for x in node.names)]
      elif isinstance(node, ast.Import):
        found = [x.name for x in node.names]
      else:
        continue
      waiting += [x for x in found if x.startswith(f"{package}.")]
  folders = {x for path in files for x in pathlib.PurePath(path).parents}
  return files | {f"{x}/__init__.py": "" for x in sorted(folders) if x.name}


def _names(package: str) -> list[str]:
  """Names of a package's modules, without its tests.

  Raises:
    ValueError: It is not installed.
  """
  spec = importlib.util.find_spec(package)
  if spec is None:
    raise ValueError(
      f"repositories: --packages has {package!r}, which is not installed; run"
      f" `pip install {package}`."
    )
  if not spec.submodule_search_locations:
    return [package]
  return sorted(
    f"{package}.{x.name}"
    for x in pkgutil.iter_modules(spec.submodule_search_locations)
    if not x.ispkg and "test" not in x.name
  )


def sources(package: str, size: str) -> Iterator[Source]:
  """Yields the parts of a package that have tests which pass.

  Raises:
    ValueError: The package is not installed.
  """
  for module in _names(package):
    files = _own_files(package, module)
    path = module.replace(".", "/") + ".py"
    if size == "module":
      parts = [(module, path, files)]
    else:
      parts = [
        (
          node.name,
          f"{node.name}.py",
          {f"{node.name}.py": ast.get_source_segment(files[path], node) + "\n"},
        )
        for node in ast.parse(files.get(path, "")).body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
      ]
    for part in parts:
      if (found := _source(*part)) is not None:
        yield found


def _source(module: str, path: str, files: dict[str, str]) -> Source | None:
  if path not in files or len(files) > _MAX_FILES:
    return None
  text, *both = without_every_second(files[path])
  if not all(both):
    return None
  files = {**files, path: text}
  kept = []
  for tests in both:
    first, second = outputs(module, files, tests), outputs(module, files, tests)
    kept.append(
      [
        {**test, "output": got}
        for test, got, again in zip(tests, first, second, strict=True)
        if got is not None and got == again and len(got) <= _MAX_OUTPUT
      ]
    )
  return Source(module, path, files, *kept) if all(kept) else None


def _changed(node: ast.AST) -> ast.AST | None:
  """A copy of an expression with a fault; None if it is of another kind."""
  new = copy.deepcopy(node)
  if isinstance(new, ast.Compare) and len(new.ops) == 1:
    new.ops = [_SWAPS[type(new.ops[0])]()]
  elif isinstance(new, (ast.BinOp, ast.BoolOp)) and type(new.op) in _SWAPS:
    new.op = _SWAPS[type(new.op)]()
  elif isinstance(new, ast.Constant) and isinstance(new.value, bool):
    new.value = not new.value
  elif isinstance(new, ast.Constant) and isinstance(new.value, int):
    new.value += 1
  elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
    return new.operand
  else:
    return None
  return new


def faults(text: str) -> Iterator[tuple[str, str, str, str]]:
  """Yields faults: (function, the text with it, the right part, the wrong one).

  Only parts that are written as `ast.unparse` writes them, so that the form
  of a fault does not give it away.
  """
  starts = [0]
  for line in text.splitlines(keepends=True):
    starts.append(starts[-1] + len(line.encode()))
  data = text.encode()
  for function in ast.walk(ast.parse(text)):
    if not isinstance(function, ast.FunctionDef):
      continue
    for statement in function.body:
      for node in ast.walk(statement):
        if not isinstance(node, ast.expr) or (new := _changed(node)) is None:
          continue
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        right, wrong = data[start:end].decode(), ast.unparse(new)
        if ast.unparse(node) == right:
          whole = (data[:start] + wrong.encode() + data[end:]).decode()
          yield function.name, whole, right, wrong


def tasks(source: Source, most: int) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields (function, record), at most so many of a function."""
  counts: dict[str, int] = {}
  num_tests = len(source.visible) + len(source.hidden)
  found = list(faults(source.files[source.path]))
  random.Random(source.module).shuffle(found)
  for function, text, right, wrong in found:
    if counts.get(function, 0) >= most:
      continue
    visible, hidden = source.failed(text)
    # A fault of a module is in few of its functions.
    most_failed = num_tests if len(source.files) == 1 else num_tests // 2
    if not visible or not hidden or visible + hidden > most_failed:
      continue
    counts[function] = counts.get(function, 0) + 1
    extras = {
      "files": {**source.files, source.path: text},
      "module": source.module,
      "visible": source.visible,
      "hidden": source.hidden,
      "repaired": source.files[source.path],  # For `repository_hacks`.
    }
    yield (
      f"{source.module}.{function}",
      {
        "prompt": PROMPT.format(module=source.module),
        "answer": f"{source.path}: {wrong} -> {right}",
        "extras": extras,
      },
    )


def write(
  folder: pathlib.Path,
  packages: Sequence[str],
  size: str,
  most: int,
  per_function: int,
) -> dict[str, int]:
  """Writes train.jsonl and test.jsonl, with faults in different functions.

  Returns:
    The number of tasks of each.

  Raises:
    ValueError: A package is not installed, or no fault is found.
  """
  kinds: dict[str, list[dict[str, Any]]] = {"train": [], "test": []}
  found = (
    task
    for package in packages
    for source in sources(package, size)
    for task in tasks(source, per_function)
  )
  for function, record in itertools.islice(found, most):
    digest = int(hashlib.sha256(function.encode()).hexdigest(), 16)
    kinds["train" if digest % _NUM_HELD_OUT else "test"].append(record)
  if not any(kinds.values()):
    raise ValueError(
      f"repositories: --packages={','.join(packages)} have no module with"
      " examples in docstrings that pass in the sandbox; choose others."
    )
  folder.mkdir(parents=True, exist_ok=True)
  for name, records in kinds.items():
    lines.write(folder / f"{name}.jsonl", records)
  return {name: len(records) for name, records in kinds.items()}
