"""Prints how large the house is: files, lines, imports, settings and names.

    python scripts/house.py

tests/house_test.py compares the numbers with `RECORDED`. A commit that raises a
recorded number says why.
"""

from __future__ import annotations

import ast
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_CLAUSE = re.compile(r"(What|Who|Which|Whether|How)\b")
_MAYBE = re.compile(rf'"""{_CLAUSE.pattern}')
# A variable is called by what it is: path, scores, rule.
_VAGUE = r"(?:found|said|given|asked|told|heard)\b"
_CALLED_SO = re.compile(
  rf"^ *(?:(?:[\w.]+, )*{_VAGUE}(?:, [\w.]+)*(?:: [^\n=]+)? [-+|*/]?= "
  rf"|for .*\b{_VAGUE}.* in |{_VAGUE}: )|def \w+\(.*\b{_VAGUE}[:,)]",
  re.MULTILINE,
)
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

# Name of a number -> the most that it may be.
RECORDED = {
  "lines of grpo_jax": 101_500,
  "lines of experiments": 35_000,
  "lines of tests": 93_500,
  "files of grpo_jax": 385,
  "files of the largest folder": 22,
  "functions above 100 lines": 0,
  "class names of two classes": 0,
  "summaries with a clause": 0,
  "variables called found, said, given, asked, told": 0,
  "modules that settings import": 23,
  "of JAX and Flax, that settings import": 0,
  "modules of a quickstart run": 150,
  "settings of GRPO": 340,
  "fields of TrainBatch": 29,
}

_SETTINGS = """
import json, sys
import grpo_jax.settings.config
names = [name for name in sys.modules if name.startswith("grpo_jax")]
print(json.dumps([len(names), sum(x in sys.modules for x in ("jax", "flax"))]))
"""
_QUICKSTART = """
import dataclasses, json, sys
import grpo_jax, jax
from grpo_jax import types
from grpo_jax.settings import config as config_lib
from grpo_jax.training import loop, run
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
settings = config_lib.resolve(grpo_jax.config("quickstart"))
mesh = sharding.make_mesh(1)
with jax.set_mesh(mesh):
  run.prepare(settings, problem_lib.make_problem(settings), mesh)
modules = sum(name.startswith("grpo_jax") for name in sys.modules)
def leaves(group):
  return sum(leaves(x) if hasattr(x, "items") else 1 for x in group.values())
settings = leaves(grpo_jax.default_config("grpo").to_dict())
fields = dataclasses.fields(types.TrainBatch)
print(json.dumps([modules, settings, len(fields)]))
"""


def _printed(source: str):
  """Runs Python source in a process of its own and reads its last line."""
  done = subprocess.run(
    [sys.executable, "-c", source],
    cwd=_ROOT,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  return json.loads(done.stdout.splitlines()[-1])


def _definitions(node: ast.AST) -> Iterator[ast.AST]:
  """Yields a module with its functions and classes, without expressions."""
  if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTION)):
    yield node
  for name in ("body", "orelse", "finalbody", "handlers", "cases"):
    inner = getattr(node, name, ())
    for child in inner if isinstance(inner, list) else ():
      yield from _definitions(child)


def in_source() -> dict[str, int]:
  """Numbers that are read in the source, by name."""
  numbers: dict[str, int] = collections.defaultdict(int)
  folders: dict[str, int] = collections.Counter()
  classes: dict[str, int] = collections.Counter()
  for folder in ("grpo_jax", "experiments", "tests"):
    for path in sorted((_ROOT / folder).rglob("*.py")):
      text = path.read_text("utf-8")
      numbers[f"lines of {folder}"] += text.count("\n")
      if folder != "grpo_jax" and not _MAYBE.search(text):
        continue
      nodes = [*_definitions(ast.parse(text))]
      for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, *_FUNCTION)):
          summary = ast.get_docstring(node) or ""
          numbers["summaries with a clause"] += bool(_CLAUSE.match(summary))
      if folder != "grpo_jax":
        continue
      numbers["files of grpo_jax"] += 1
      numbers["variables called found, said, given, asked, told"] += len(
        _CALLED_SO.findall(text)
      )
      folders[path.parent.relative_to(_ROOT).as_posix()] += 1
      for node in nodes:
        if isinstance(node, _FUNCTION):
          lines = node.end_lineno - node.lineno + 1
          numbers["functions above 100 lines"] += lines > 100
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
          classes[node.name] += 1
  folders.pop("grpo_jax/algorithms")
  numbers["files of the largest folder"] = max(folders.values())
  numbers["class names of two classes"] = sum(n > 1 for n in classes.values())
  return dict(numbers)


def in_processes() -> dict[str, int]:
  """Numbers that take an import of the package, by name."""
  modules, libraries = _printed(_SETTINGS)
  of_run, settings, fields = _printed(_QUICKSTART)
  return {
    "modules that settings import": modules,
    "of JAX and Flax, that settings import": libraries,
    "modules of a quickstart run": of_run,
    "settings of GRPO": settings,
    "fields of TrainBatch": fields,
  }


def grown(numbers: dict[str, int]) -> dict[str, tuple[int, int]]:
  """Returns (now, recorded) of each number above the recorded one, by name."""
  pairs = {name: (number, RECORDED[name]) for name, number in numbers.items()}
  return {name: pair for name, pair in pairs.items() if pair[0] > pair[1]}


def main() -> None:
  """Prints every number beside the one that is recorded."""
  for name, number in (in_source() | in_processes()).items():
    print(f"{number:8d}  of {RECORDED[name]:8d}  {name}")


if __name__ == "__main__":
  main()
