"""Tests of the docstrings of settings' classes: every field has its meaning."""

import ast
import dataclasses
import pathlib
import subprocess
import sys

import pytest

import grpo_jax
from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides, setting_docs
from scripts import typed_configs
from tests.experiments import command

GOOD = """
import grpo_jax as g

config = g.config("quickstart", "gspo", **{"rl.steps": 50})
config.rl.steps = 100
config.rl.optimizer.learning_rate = 1e-4
config.rl.micro_batch_size = None
config.algorithm.clip_high = 4e-4
config.data.task_options.min_len = 3
config.rewards.options["cosine_length"] = {"max_len": 64}
with config.unlocked():
  config["warmup"] = g.phase_config("supervised", steps=5)
run = g.train(config)
rewards: list[float] = run.history["reward/mean"].tolist()
for group in run.sample(run.prompts(2), n=4, temperature=1.0):
  for row in group:
    print(row.text, row.reward, float(row.entropies.mean()))
print(run.evaluate()["eval/accuracy"], run.params, run.result)
"""
BAD = """
import grpo_jax as g

config = g.config("quickstart")
config.rl.stepz = 50
config.rl.steps = "many"
config.algorithm.clip_hihg = 0.1
config.modle.width = 3
g.default_config("gspo").rl.optimizer.lerning_rate = 0.1
run = g.train(config)
run.histroy
g.trian(config)
run.sample("a=")[0][0].logprob
"""


@dataclasses.dataclass
class Base:
  """A group.

  Attributes:
    a, b: Two of them,
      in two lines: with a colon.
    c: Another one.

  Returns:
    d: This is none.
  """

  a: int = 0
  b: int = 0
  c: int = 0


@dataclasses.dataclass
class Derived(Base):
  """Says one anew.

  Attributes:
    c: Said anew.
  """

  e: int = 0


def test_docstrings_are_read_entry_by_entry():
  both = "Two of them, in two lines: with a colon."
  assert setting_docs.attributes(Base) == {
    "a": both,
    "b": both,
    "c": "Another one.",
  }
  assert setting_docs.text(Derived, "a") == both
  assert setting_docs.text(Derived, "c") == "Said anew."
  place = "See the equation in tests/settings/setting_docs_test.py."
  assert setting_docs.text(Derived, "e") == place


def test_every_setting_is_there_with_its_value_and_its_meaning():
  config = config_lib.default_config("cispo")
  config.rl.steps = 7
  config.more = config_lib.phase_config("supervised", steps=3)
  found = {one.name: one for one in setting_docs.of_config(config)}

  def leaves(group, prefix=""):
    for name, value in group.items():
      is_free = overrides.free_example(f"{prefix}{name}")
      if hasattr(value, "items") and not is_free:
        yield from leaves(value, f"{prefix}{name}.")
      else:
        yield f"{prefix}{name}"

  assert found.keys() == {*leaves(config)} - {"algorithm.name"}
  assert all(one.text.endswith((".", ")", "…")) for one in found.values())
  changed = {name for name, one in found.items() if one.is_changed}
  assert changed == {"rl.steps", "more.steps"}
  assert (found["rl.steps"].value, found["rl.steps"].default) == (7, 100)
  assert found["algorithm.ratio_max"].value == 5.0
  assert found["rl.optimizer.b1"].text == "AdamW's parameter of this name."


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_algorithms_say_what_their_own_options_are(name):
  cls = algorithms.get_algorithm(name).config_class
  texts = {
    x.name: setting_docs.text(cls, x.name) for x in dataclasses.fields(cls)
  }
  silent = [name for name, text in texts.items() if text.startswith("See the")]
  assert silent == [], f"{cls.__name__}: write them under 'Attributes:'"


def test_the_types_are_those_of_the_settings():
  text = typed_configs.FILE.read_text(encoding="utf-8")
  assert text == typed_configs.stub(), "run scripts/typed_configs.py"
  ast.parse(text)


def test_the_stub_of_the_package_has_its_names():
  path = pathlib.Path(grpo_jax.__file__).with_suffix(".pyi")
  tree = ast.parse(path.read_text(encoding="utf-8"))
  places = {
    alias.asname: f"{node.module}.{alias.name}"
    for node in tree.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
  }
  assert places == {
    name: f"grpo_jax.{where}.{name}" for name, where in grpo_jax._WHERE.items()
  }


@pytest.mark.slow
def test_mypy_passes_what_is_right_and_refuses_misspelt_names(tmp_path):
  (tmp_path / "good.py").write_text(GOOD)
  (tmp_path / "bad.py").write_text(BAD)
  cache = command.ROOT / ".cache/mypy"
  options = ["--strict", "--follow-imports=silent", f"--cache-dir={cache}"]
  done = subprocess.run(
    [sys.executable, "-m", "mypy", *options, "good.py", "bad.py"],
    cwd=tmp_path,
    env=command.ENVIRONMENT | {"MYPYPATH": str(command.ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )
  lines = done.stdout.splitlines()
  for number, message in (
    (5, '"Rl" has no attribute "stepz"'),
    (6, 'expression has type "str", variable has type "int"'),
    (7, 'maybe "clip_high"?'),
    (8, 'maybe "model"?'),
    (9, 'maybe "learning_rate"?'),
    (11, 'maybe "history"?'),
    (12, 'maybe "train"?'),
    (13, 'maybe "logprobs"?'),
  ):
    line = lines.pop(0)
    assert line.startswith(f"bad.py:{number}: error: ")
    assert message in line
  assert lines == ["Found 8 errors in 1 file (checked 2 source files)"]
