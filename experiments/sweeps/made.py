"""Origin of a recorded number: config, code, commit, date, machine.

`arms.Job` writes it beside the numbers, as "made". A number is stale if one
of two things has changed since:

- "config": the settings of the arm that differ from the library's defaults. A
  later setting of the library whose default changes nothing does not make a
  number stale.
- "code": the statements, without comments and docstrings, that make numbers. Of
  a file of `experiments/science` they are what `MAKERS` need; of a folder, all
  files but those that read numbers (`READERS`).

The library itself changes with most commits. The number of these commits is
shown, and the reader judges it. A test that compares bytes
(`scripts/same_bytes.py`) shows whether they changed any result.
"""

from __future__ import annotations

import ast
import datetime
import hashlib
import json
import os
import pathlib
import subprocess
from collections.abc import Mapping
from typing import Any

from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides
from grpo_jax.training import run as run_lib
from grpo_jax.training.runtime import commit as commit_lib
from grpo_jax.training.runtime import log

ROOT = pathlib.Path(__file__).resolve().parents[2]
# They turn recorded numbers into pages, and make none.
READERS = ("page.py", "figure.py", "report.py", "claims.py")
# They make numbers, in a file of `experiments/science`.
MAKERS = ("get_config", "sweep", "follows_on", "run", "of_run", "collected")
_LENGTH = 12  # Of a hash, in hexadecimal digits.


def by(config: str) -> dict[str, Any]:
  """Origin of numbers that are made now, by the arm FILE:ARGUMENT."""
  commit = commit_lib.git() or {"commit": None, "dirty": None}
  return {
    "config": config_hash(config),
    "code": code_hash(pathlib.Path(config.partition(":")[0])),
    "commit": commit["commit"] and commit["commit"][:_LENGTH],
    "dirty": commit["dirty"],
    "date": datetime.date.today().isoformat(),
    "cores": os.cpu_count(),
  }


def config_hash(config: str) -> str:
  """Hash of the settings of FILE:ARGUMENT that differ from the library's."""
  path, _, argument = config.partition(":")
  loaded = overrides.load(path, *([argument] if argument else []))
  return hash_of(settings_of(json.loads(loaded.to_json())))


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
  """Settings of a config in JSON that differ from the defaults, as text."""
  algorithm = config["algorithm"]["name"]
  defaults = log.flatten(
    json.loads(config_lib.default_config(algorithm).to_json())
  )
  found = log.flatten(config)
  return {
    name: value
    for name, value in sorted(found.items())
    if defaults.get(name) != value
    and not any(f"{name}.".startswith(f"{x}.") for x in run_lib.MAY_CHANGE)
  }


def hash_of(value: Any) -> str:
  """Short hash of a JSON value."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def code_files(path: pathlib.Path) -> list[pathlib.Path]:
  """The files of an experiment, a folder or a file, that make numbers."""
  if path.is_dir():
    return sorted(x for x in path.glob("*.py") if x.name not in READERS)
  return [path, *sorted(path.parent.glob(f"{path.stem}_*.py"))]


def code_hash(path: pathlib.Path) -> str:
  """The hash of what makes numbers in these files."""
  files = code_files(path)
  return hash_of([[x.name, code(x, x.read_text("utf-8"))] for x in files])


def code(path: pathlib.Path, source: str) -> str:
  """The statements of a file that make numbers."""
  if path.parent.name != "science":
    return statements(source)
  tree = ast.parse(source)
  defined = {name: x for x in tree.body for name in _defined(x)}
  wanted = [name for name in MAKERS if name in defined]
  if not wanted:
    return statements(source)
  for name in wanted:
    used = {x.id for x in ast.walk(defined[name]) if isinstance(x, ast.Name)}
    wanted += sorted((used & defined.keys()) - {*wanted})
  tree.body = [x for x in tree.body if {*wanted} & {*_defined(x)}]
  return statements(ast.unparse(tree))


def _defined(node: ast.stmt) -> list[str]:
  """The names that a statement of a module defines, but for its imports."""
  if isinstance(node, ast.FunctionDef | ast.ClassDef):
    return [node.name]
  stored = (x for x in ast.walk(node) if isinstance(x, ast.Name))
  return [x.id for x in stored if isinstance(x.ctx, ast.Store)]


def statements(source: str) -> str:
  """A file of Python without comments, docstrings and the layout of its lines.

  A file that does not parse is itself.
  """
  try:
    tree = ast.parse(source)
  except SyntaxError:
    return source
  for node in ast.walk(tree):
    body = getattr(node, "body", None)
    if isinstance(body, list):
      # A docstring, or any other text that stands alone, does nothing.
      node.body = [x for x in body if not _is_text(x)]  # type: ignore[attr-defined]
  return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
  return (
    isinstance(node, ast.Expr)
    and isinstance(node.value, ast.Constant)
    and isinstance(node.value.value, str)
  )


def git(*arguments: str) -> str | None:
  """Output of git in the repository; None without git or a repository."""
  if not (ROOT / ".git").exists():
    return None
  try:
    return subprocess.run(
      ["git", "-C", str(ROOT), *arguments],
      capture_output=True,
      check=True,
      text=True,
    ).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return None
