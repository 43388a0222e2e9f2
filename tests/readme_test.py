"""Tests of the documents: files, targets, settings, and the example, run."""

import ast
import dataclasses
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.configs import checkpoint
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides, setting_docs
from grpo_jax.training.runtime import log

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_DOCUMENTS = (
  "README.md",
  "CONTRIBUTING.md",
  *sorted(str(p.relative_to(_ROOT)) for p in (_ROOT / "docs").rglob("*.md")),
)
_ALGORITHMS = "docs/algorithms/index.md"
# A name that stands for another one: foo.py, configs/NAME.py.
_PLACEHOLDER = re.compile(r"\bfoo|NAME|TASK")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def _read(document: str) -> str:
  return (_ROOT / document).read_text(encoding="utf-8")


def _code(text: str) -> list[str]:
  """Lines of fenced blocks, and backticks elsewhere; not the text of links."""
  lines = [
    line for _, block in _FENCE.findall(text) for line in block.split("\n")
  ]
  return lines + re.findall(r"`([^`\n]+)`(?!\])", _FENCE.sub("", text))


def _missing_files(document: str, text: str) -> list[str]:
  """Files that are linked or named, and are nowhere."""
  folder = (_ROOT / document).parent
  links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
  missing = [
    link for link in links if "://" not in link and not (folder / link).exists()
  ]
  tops = "|".join(re.escape(p.name) for p in _ROOT.iterdir() if p.is_dir())
  named = re.compile(
    rf"(?:(?:{tops})/[\w./-]*|[\w./-]+\.(?:py|md|toml|cff|sh))"
  )
  for code in _code(text):
    for word in code.split():
      path = word.removeprefix("--config=").partition(":")[0].rstrip(",.;")
      if not named.fullmatch(path) or _PLACEHOLDER.search(path):
        continue
      if path.startswith(("runs/", ".venv/", ".cache/", "build/", "my_")):
        continue  # Made by the commands.
      places = (_ROOT, folder, _ROOT / "grpo_jax")
      if not any((place / path).exists() for place in places):
        missing.append(path)
  return missing


def _module(path: pathlib.Path):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[path.stem] = module  # Dataclasses look their module up.
  spec.loader.exec_module(module)
  return module


def _settings(config, prefix: str = "") -> set[str]:
  """Every key of a config with its parents, such as rl and rl.steps.

  A group whose feature is off has the keys of the feature too.
  """
  keys = set()
  if group := overrides.switched(config):
    keys |= {prefix + x.name for x in dataclasses.fields(group)}
  for name in config:
    keys.add(prefix + name)
    if hasattr(config[name], "keys"):
      keys |= _settings(config[name], f"{prefix}{name}.")
  return keys


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_every_file_that_is_named_exists(document):
  assert _missing_files(document, _read(document)) == []


def test_a_missing_file_is_found():
  text = (
    "[a](docs/no.md) `grpo_jax/no.py` `ops/no.py`\n```\npython tests/no.py\n```"
  )
  expected = ["docs/no.md", "tests/no.py", "grpo_jax/no.py", "ops/no.py"]
  assert _missing_files("README.md", text) == expected


def test_the_readme_is_short_and_promises_no_algorithm_that_is_not_there():
  text = _read("README.md")
  assert text.count("\n") <= 150
  counts = re.findall(r"\b(\d+) \[?algorithms", text)
  (count,) = {int(n) for n in counts}  # The same everywhere.
  assert 45 <= count <= len(algorithms.ALGORITHMS)
  losses = f" {count - 2} policy losses, imitation and a reward model"
  assert losses in text


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_every_make_target_that_is_named_exists(document):
  targets = set(re.findall(r"^([\w-]+):", _read("Makefile"), re.MULTILINE))
  commands = re.compile(r"^(?:\w+=\S+ )*make ([\w-]+)")
  named = {
    m[1] for code in _code(_read(document)) if (m := commands.match(code))
  }
  assert named <= targets
  assert document != "README.md" or {"quickstart", "test", "docs"} <= named


@pytest.fixture(scope="module")
def settings():
  """Names of all settings of all algorithms."""
  made = map(config_lib.default_config, algorithms.ALGORITHMS)
  return set().union(*map(_settings, made))


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_every_setting_that_is_named_exists(document, settings):
  named = set(re.findall(r"--config\.([\w.]*\w)", _read(document)))
  assert named <= settings
  assert document != _ALGORITHMS or len(named) > 10


def test_the_table_has_every_algorithm_with_its_file_config_and_test():
  rows = {}
  for line in _read(_ALGORITHMS).split("\n"):
    if line.startswith("| `") and "/grpo_jax/algorithms/" in line:
      name, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
      rows[name] = cells
  assert rows.keys() == algorithms.ALGORITHMS.keys()
  for name, (_, file, config, test) in rows.items():
    assert f"(../../grpo_jax/algorithms/{name}.py)" in file
    assert f"(../../tests/references/{name}.py)" in test
    if name != "sft":
      path, _, algorithm = config.partition(":")
      resolved = config_lib.resolve(_module(_ROOT / path).get_config(algorithm))
      assert resolved.algorithm[0] == name


def test_the_table_has_every_extra():
  section = _read("docs/start/install.md").partition("\n## Extras\n")[2]
  section = section.partition("\n## ")[0]
  cells = re.findall(r"^\| (`.*?)\s*\|", section, re.MULTILINE)
  named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
  known = importlib.metadata.metadata("grpo_jax").get_all("Provides-Extra")
  assert named == set(known)


def _left_in_the_checkout(text: str, ignored: list[str]) -> list[str]:
  """Files that commands write into the checkout, and git would list."""
  flags = "appendix|completions|csv|directory|exports|json|out|output|root|save"
  written = re.findall(rf"--(?:{flags}|text|workdir)=([^\s`,\"')]+)", text)
  written += re.findall(r"(?m)^ *python .* > (\S+)$", text)
  return [
    path
    for path in written
    if not path.startswith((*ignored, "gs:", "/", "$", "…"))
    and not re.match(r"[A-Z_]+\b", path)  # FILE, DIR, NAME.
    and not (_ROOT / path).exists()  # A page or figure that is committed.
  ]


def test_commands_leave_the_checkout_as_it_was():
  """A run would record changes, and a launcher would refuse them."""
  ignored = [
    line
    for line in _read(".gitignore").split()
    if line.endswith("/") and line[0] not in "*."
  ]
  text = "python x --out=traces.html --workdir=runs/a > b.log"
  assert _left_in_the_checkout(text, ignored) == ["traces.html", "b.log"]
  commands = {
    document: "\n".join(block for _, block in _FENCE.findall(_read(document)))
    for document in (*_DOCUMENTS, "benchmarks/cpu.md")
  }
  for folder in ("configs", "experiments", "scripts"):
    for path in (_ROOT / folder).rglob("*.py"):
      docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
      commands[str(path)] = "\n".join(
        re.findall(r"(?m)^    .*$", inspect.cleandoc(docstring))
      )
  left = {
    name: found
    for name, text in commands.items()
    if (found := _left_in_the_checkout(text, ignored))
  }
  assert left == {}


@pytest.mark.long
@pytest.mark.slow
def test_the_example_runs_and_its_reward_rises(tmp_path):
  _, example = _FENCE.findall(_read("docs/guides/reward.md"))[0]
  (lines,) = re.findall(r"reward in (\d+) lines", _read("README.md"))
  assert example.count("\n") <= int(lines)
  checkout = tmp_path / "checkout"
  checkout.mkdir()
  python = tmp_path / "bin" / "python"  # The one that runs this test.
  python.parent.mkdir()
  python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
  python.chmod(0o755)
  result = subprocess.run(
    ["bash", "-e", "-c", example],
    cwd=checkout,
    env=os.environ
    | {
      "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
      "PYTHONPATH": str(_ROOT),
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=600,  # seconds
    check=False,
  )
  assert result.returncode == 0, result.stdout
  assert not [*checkout.iterdir()]
  workdir = tmp_path / "greetings" / "runs" / "mine"
  lines = log.read_lines(workdir / "metrics.jsonl")
  steps = [line for line in lines if "reward/brevity" in line]
  assert len(steps) == 40
  for line in steps:
    unscored = {k: v for k, v in line.items() if k.startswith("unscored")}
    assert unscored
    assert not any(unscored.values()), unscored
  rewards = [line["reward/brevity"] for line in steps]
  assert np.mean(rewards[-5:]) > np.mean(rewards[:5]) + 0.1
  sampled = result.stdout.splitlines()[-4:]
  assert any("Ada" in text for text in sampled), sampled


@pytest.mark.parametrize("peer", ["TRL 1.16.0", "verl 0.9.1"])
def test_each_setting_of_a_peer_has_a_row_with_what_it_is_here(peer):
  path = _ROOT / "tests/data/peer_settings.json"
  names = json.loads(path.read_text(encoding="utf-8"))[peer].split()
  _, _, text = _read("docs/start/switching.md").partition("## Every setting of")
  rows = [
    line.strip("|").split("|")
    for line in text.splitlines()
    if line.startswith("| `")
  ]
  found = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
  assert not {*names} - found
  settings = setting_docs.of_config(checkpoint.get_config())
  known = {"name", *(setting.name for setting in settings)}
  for algorithm in algorithms.ALGORITHMS.values():
    fields = dataclasses.fields(algorithm.config_class)
    known |= {f"algorithm.{field.name}" for field in fields}
  for _, _, here in rows:
    assert here.strip()
    for name in re.findall(r"`([a-z][\w.]*)=", here):
      full = name if "." in name else f"algorithm.{name}"
      assert full in known or name in known, (name, here)
