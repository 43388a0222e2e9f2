"""Imports point one way, and the compiled program never calls the host.

    types ← ops ← algorithms ← training ← experiments, configs

`models`, `rollout`, `rewards`, `tasks` and `data` know `types` and `ops` only;
`models` also `ranges`, which knows nothing.
"""

import ast
import pathlib

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_FILES = sorted(
  path.relative_to(_ROOT).as_posix()
  for folder in ("grpo_jax", "experiments", "configs")
  for path in (_ROOT / folder).rglob("*.py")
)

# Part of the package -> parts that it may import, besides itself.
_BELOW = {
  "__init__": set(),
  "types": set(),
  "ranges": set(),
  "ops": {"types"},
  "algorithms": {"types", "ops"},
  "models": {"types", "ops", "ranges"},
  "rollout": {"types", "ops"},
  "rewards": {"types", "ops"},
  "tasks": {"types", "ops"},
  "data": {"types", "ops"},
}
_BELOW["training"] = {*_BELOW}

_CALLBACKS = {
  "pure_callback",
  "io_callback",
  "buffer_callback",
  "host_callback",
}


def _imports(path: str, tree: ast.AST) -> set[str]:
  """Dotted names that a module imports; `from a import b` gives a.b."""
  package = list(pathlib.PurePosixPath(path).parent.parts)
  names = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      above = package[: len(package) - node.level + 1] if node.level else []
      module = [*above, *([node.module] if node.module else [])]
      names |= {".".join([*module, alias.name]) for alias in node.names}
    elif isinstance(node, ast.Call) and "import_module" in ast.unparse(
      node.func
    ):
      names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
  return names


def _violations(path: str, source: str) -> list[str]:
  """What a file at `path` (relative to the root) does that it must not."""
  tree = ast.parse(source)
  imports = _imports(path, tree)
  parts = pathlib.PurePosixPath(path).with_suffix("").parts
  found = []
  for name in sorted(imports):
    top, *rest = name.split(".")
    if top == "tensorflow":
      found.append(f"imports {name}: tensorflow is not a dependency")
    if top == "flax" and parts[:2] != ("grpo_jax", "models"):
      found.append(f"imports {name}: flax stays inside grpo_jax/models")
    if parts[0] != "grpo_jax":
      continue
    if top in ("experiments", "configs", "tests"):
      found.append(f"imports {name}: the package never imports {top}")
    if top == "grpo_jax":
      target = rest[0] if rest else "every part"
      if target not in _BELOW[parts[1]] | {parts[1]}:
        found.append(f"imports {name}: {parts[1]} may not know {target}")
  if parts[0] == "grpo_jax":
    used = imports | {
      ast.unparse(node)
      for node in ast.walk(tree)
      if isinstance(node, ast.Attribute)
    }
    found += [
      f"uses {name}: a callback to the host"
      for name in sorted(used)
      if name.startswith("jax.debug") or _CALLBACKS & {*name.split(".")}
    ]
  return found


@pytest.mark.parametrize("path", _FILES)
def test_file_imports_only_what_is_below_it(path):
  assert _violations(path, (_ROOT / path).read_text("utf-8")) == []


def test_every_part_of_the_package_is_checked():
  parts = {path.split("/")[1].removesuffix(".py") for path in _FILES}
  assert parts >= {*_BELOW}


@pytest.mark.parametrize(
  ("path", "source", "message"),
  [
    ("grpo_jax/types.py", "from grpo_jax.ops import masked", "not know ops"),
    ("grpo_jax/ops/a.py", "import grpo_jax.training.loop", "not know training"),
    ("grpo_jax/ops/a.py", "import grpo_jax", "not know every part"),
    ("grpo_jax/ops/a.py", "from ..algorithms import grpo", "not know algo"),
    ("grpo_jax/ops/a.py", "from .. import models", "not know models"),
    ("grpo_jax/tasks/a.py", "from grpo_jax import rewards", "not know rewards"),
    ("grpo_jax/algorithms/a.py", "import grpo_jax.models", "not know models"),
    ("grpo_jax/training/a.py", "from experiments import train", "experiments"),
    ("grpo_jax/training/a.py", "def f():\n  import configs.x", "configs"),
    ("grpo_jax/training/a.py", "import flax.struct", "inside grpo_jax/models"),
    ("experiments/a.py", "from flax import linen", "inside grpo_jax/models"),
    ("configs/a.py", "import tensorflow as tf", "not a dependency"),
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
    ("experiments/a.py", "from configs import quickstart"),
  ],
)
def test_a_good_file_passes(path, source):
  assert _violations(path, source) == []
