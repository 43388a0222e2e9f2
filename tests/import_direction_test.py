"""Imports point one way, and the compiled program never calls the host.

    types ← ops ← algorithms ← step ← settings ← training ← cli ← experiments

`_BELOW` lists the rooms of the package, with those that each may import. No
modules, and no folders, import each other in a circle, wherever in a file the
import stands.
"""

import ast
import functools
import pathlib
from collections.abc import Sequence

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_FILES = sorted(
  path.relative_to(_ROOT).as_posix()
  for folder in ("grpo_jax", "grpo_jax/configs", "experiments")
  for path in (_ROOT / folder).rglob("*.py")
)

_LEAVES = {"types", "ranges", "gym", "optional", "strict_json"}
_REWARDS = {*_LEAVES, "imports", "ops"}
# Room of the package -> rooms that it may import, besides itself. A file is in
# the room with the longest name that its own begins with.
_BELOW = {
  **{name: set() for name in _LEAVES},
  "__init__": set(),
  "imports": set(),
  "ops": {"types", "ranges"},
  "algorithms": {"types", "ops", "imports"},
  "models": {"types", "ops", "ranges"},
  "models.hf": {"types", "models", "optional", "ranges"},
  "rollout": {"types", "ops"},
  "step": {"types", "ops", "algorithms", "rollout"},
  "tasks": {"types", "ops", "imports"},
  "data.images": {"optional"},
  "data": {*_LEAVES, "data.images"},
  "rewards.sandbox": set(),
  "rewards": {*_REWARDS, "rewards.sandbox"},
  "rewards.in_graph": {*_REWARDS, "rewards"},
  "rewards.agents": {*_REWARDS, "rewards", "rewards.sandbox"},
  "rewards.workers": {*_REWARDS, "rewards", "rewards.agents", "data.images"},
  "training.rules": set(),
}
_BELOW["settings"] = {*_BELOW} - {"tasks", "rewards.in_graph"}
_BELOW["training.runtime"] = {"types", "ranges", "rollout", "settings"}
_BELOW["serving"] = {*_LEAVES, "data", "rewards.agents", "rollout"}
_BELOW["serving"] |= {"training.runtime"}
_BELOW["serving.tinker"] = {*_BELOW["serving"], "serving", "models", "ops"}
_BELOW["serving.tinker"] |= {"algorithms"}
for _room in (
  "training.problem",
  "training.phases",
  "training.evaluation",
  "training.monitor",
  "training",
  "handle",
  "api",
  "cli",
):
  _BELOW[_room] = {*_BELOW}
_BELOW["configs"] = {*_BELOW} - {"api", "handle", "cli"}

# Folder -> folders that it never imports.
_ABOVE = {
  "grpo_jax": {"configs", "experiments", "tests"},
  "experiments": {"configs", "tests"},  # They are grpo_jax.configs.
}

_CALLBACKS = {
  "pure_callback",
  "io_callback",
  "buffer_callback",
  "host_callback",
}


@functools.cache
def _imports(path: str, source: str) -> set[str]:
  """Dotted names that a module imports; `from a import b` gives a.b."""
  package = list(pathlib.PurePosixPath(path).parent.parts)
  names = set()
  by_name = "import_module" in source
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      above = package[: len(package) - node.level + 1] if node.level else []
      module = [*above, *([node.module] if node.module else [])]
      names |= {".".join([*module, alias.name]) for alias in node.names}
    elif (
      by_name
      and isinstance(node, ast.Call)
      and "import_module" in ast.unparse(node.func)
    ):
      names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
  return names


def _room_of(parts: Sequence[str]) -> str:
  """The room of a module of the package, by the parts of its name."""
  names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
  return next((name for name in names if name in _BELOW), names[-1])


def _violations(path: str, source: str) -> list[str]:
  """Imports of a file at `path` (relative to the root) that are not allowed."""
  imports = _imports(path, source)
  parts = pathlib.PurePosixPath(path).with_suffix("").parts
  found = []
  for name in sorted(imports):
    top, *rest = name.split(".")
    if top == "tensorflow":
      found.append(f"imports {name}: tensorflow is not a dependency")
    if top == "flax" and parts[:2] != ("grpo_jax", "models"):
      found.append(f"imports {name}: flax stays inside grpo_jax/models")
    if top in _ABOVE[parts[0]]:
      found.append(f"imports {name}: {parts[0]} never imports {top}")
    if parts[0] != "grpo_jax":
      continue
    if top == "grpo_jax":
      here = _room_of(parts[1:])
      target = _room_of(rest) if rest else "every part"
      if target not in _BELOW[here] | {here}:
        found.append(f"imports {name}: {here} may not know {target}")
  if parts[0] == "grpo_jax":
    used = imports.copy()
    if any(word in source for word in ("debug", *_CALLBACKS)):
      nodes = ast.walk(ast.parse(source))
      used |= {ast.unparse(x) for x in nodes if isinstance(x, ast.Attribute)}
    found += [
      f"uses {name}: a callback to the host"
      for name in sorted(used)
      if name.startswith("jax.debug") or _CALLBACKS & {*name.split(".")}
    ]
  return found


def _folder(path: str) -> str:
  return path.rpartition("/")[0]


def _module(path: str) -> str:
  """The dotted name of a file; of a package, that of its folder."""
  parts = pathlib.PurePosixPath(path).with_suffix("").parts
  return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _by_module(sources: dict[str, str]) -> dict[str, set[str]]:
  """Modules of these files -> those modules that they import."""
  modules = {_module(path) for path in sources}
  graph: dict[str, set[str]] = {}
  for path, source in sources.items():
    graph[_module(path)] = found = set()
    for name in _imports(path, source):
      while name and name not in modules:  # What is imported of a module.
        name = name.rpartition(".")[0]
      found |= {name} - {"", _module(path)}
  return graph


def _by_folder(sources: dict[str, str]) -> dict[str, set[str]]:
  """Folder -> folders that it imports; a file beside folders counts as one."""
  folder = {
    _module(path): path if path.count("/") == 1 else _folder(path)
    for path in sources
  }
  graph: dict[str, set[str]] = {}
  for name, imported in _by_module(sources).items():
    there = {folder[other] for other in imported}
    graph.setdefault(folder[name], set()).update(there - {folder[name]})
  return graph


def _circles(graph: dict[str, set[str]]) -> dict[str, set[str]]:
  """Cycles of a graph, with the modules between two of them.

  Modules that import none of the rest, or that none of the rest imports, are
  taken out again and again; the modules left are the result.
  """
  while True:
    left = {name: imported & graph.keys() for name, imported in graph.items()}
    imported_somewhere = set().union(*left.values())
    left = {
      name: imported
      for name, imported in left.items()
      if imported and name in imported_somewhere
    }
    if left.keys() == graph.keys():
      return left
    graph = left


@pytest.mark.parametrize("folder", sorted({*map(_folder, _FILES)}))
def test_files_of_a_folder_import_only_what_is_below_them(folder):
  paths = [path for path in _FILES if _folder(path) == folder]
  sources = {path: (_ROOT / path).read_text("utf-8") for path in paths}
  found = {path: _violations(path, text) for path, text in sources.items()}
  assert {path: what for path, what in found.items() if what} == {}


@pytest.mark.parametrize("of", [_by_module, _by_folder])
def test_nothing_imports_in_a_circle(of):
  sources = {path: (_ROOT / path).read_text("utf-8") for path in _FILES}
  assert _circles(of(sources)) == {}


@pytest.mark.parametrize(
  ("of", "circle", "sources"),
  [
    (
      _by_module,
      {"grpo_jax.ops.a", "grpo_jax.ops.b"},
      {
        "grpo_jax/ops/a.py": "from grpo_jax.ops import b",
        "grpo_jax/ops/b.py": "def f():\n  from grpo_jax.ops.a import g",
        "grpo_jax/ops/c.py": "from grpo_jax.ops import a, d",
        "grpo_jax/ops/d.py": "",
      },
    ),
    (
      _by_module,
      {"experiments.a", "experiments.b.c", "experiments.d"},
      {
        "experiments/a.py": "import experiments.b.c",
        "experiments/b/c.py": "if TYPE_CHECKING:\n  from .. import d",
        "experiments/d.py": "from experiments.a import f",
      },
    ),
    (
      _by_folder,
      {"experiments/a", "experiments/b"},
      {
        "experiments/a/x.py": "from experiments.b import x",
        "experiments/a/y.py": "",
        "experiments/b/x.py": "",
        "experiments/b/y.py": "from experiments.a import y",
      },
    ),
  ],
)
def test_a_circle_is_found(of, circle, sources):
  assert _circles(of(sources)).keys() == circle


def test_every_part_of_the_package_is_checked():
  package = [path for path in _FILES if path.startswith("grpo_jax/")]
  parts = [_module(path).split(".")[1:] or ["__init__"] for path in package]
  assert {*map(_room_of, parts)} == {*_BELOW}
  assert {path.split("/")[0] for path in _FILES} == {*_ABOVE}


@pytest.mark.parametrize(
  ("path", "source", "message"),
  [
    ("grpo_jax/types.py", "from grpo_jax.ops import masked", "not know ops"),
    ("grpo_jax/ops/a.py", "import grpo_jax", "not know every part"),
    ("grpo_jax/ops/a.py", "from ..algorithms import grpo", "not know algo"),
    ("grpo_jax/ops/a.py", "from .. import models", "not know models"),
    ("grpo_jax/rewards/a.py", "import grpo_jax.rewards.agents", "not know rew"),
    ("grpo_jax/cli/a.py", "from experiments import train", "experiments"),
    ("grpo_jax/cli/a.py", "from grpo_jax.configs import x", "not know configs"),
    ("grpo_jax/training/a.py", "def f():\n  import configs.x", "configs"),
    ("grpo_jax/training/a.py", "import flax.struct", "inside grpo_jax/models"),
    ("grpo_jax/configs/a.py", "import tensorflow as tf", "not a dependency"),
    ("grpo_jax/configs/a.py", "from grpo_jax.cli import a", "not know cli"),
    ("experiments/a.py", "from tests import conftest", "never imports tests"),
    ("grpo_jax/data/a.py", "import_module('tensorflow')", "not a dependency"),
    ("grpo_jax/ops/a.py", "import jax\njax.pure_callback(f, x)", "callback"),
    (
      "grpo_jax/ops/a.py",
      "from jax.experimental import io_callback",
      "callback",
    ),
    ("grpo_jax/ops/a.py", "import jax\njax.debug.print('x')", "callback"),
    ("grpo_jax/ops/a.py", "from jax import debug", "callback"),
  ],
)
def test_a_bad_file_is_found(path, source, message):
  assert any(message in found for found in _violations(path, source))


@pytest.mark.parametrize(
  ("path", "source"),
  [
    ("grpo_jax/algorithms/a.py", "from grpo_jax.algorithms import grpo"),
    ("grpo_jax/training/a.py", "from grpo_jax import algorithms, models"),
    ("grpo_jax/models/a.py", "import flax.linen as nn"),
    ("grpo_jax/data/a.py", "import tensorflow_datasets as tfds"),
    ("grpo_jax/rollout/a.py", "from grpo_jax.types import Policy"),
    ("experiments/a.py", "from grpo_jax.training import loop"),
    ("experiments/a.py", "from grpo_jax.configs import quickstart"),
  ],
)
def test_a_good_file_passes(path, source):
  assert _violations(path, source) == []
