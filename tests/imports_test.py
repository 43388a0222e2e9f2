"""Objects of notebooks have a name that follows what they do, and a pickle."""

import dataclasses
import functools
import subprocess
import sys
import textwrap
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import imports
from grpo_jax.rewards import form
from grpo_jax.rewards.workers import host

CELL = """
  import dataclasses
  import time

  WORDS = {"yes", "no", "maybe"}

  def helper(text):
    return text in WORDS or text in {"u", "v", "w"}

  def known(prompts, completions, ids, extras):
    return [float(helper(text)) for text in completions]

  def slow(prompts, completions, ids, extras):
    while "hang" in completions[0]:
      time.sleep(1)
    return [1.0]

  def broken(prompts, completions, ids, extras):
    raise KeyError("answer")

  @dataclasses.dataclass(frozen=True)
  class Settings:
    size: int = 3

  @dataclasses.dataclass(frozen=True)
  class Recipe:
    settings: type
    score: object

  def again(n):
    return again(n - 1) if n else 0

  RECIPE = Recipe(Settings, known)
"""
NAMES = ("known", "slow", "again", "Settings", "RECIPE")


def cell(source=CELL, lines=0):
  """Variables of a notebook after a cell; `lines` stand before it."""
  kernel: dict = {"__name__": "__main__"}
  code = compile("\n" * lines + textwrap.dedent(source), f"cell{lines}", "exec")
  exec(code, kernel)
  return kernel


def names_elsewhere(lines):
  """The names in another process, with another order of sets."""
  program = f"""
import sys
sys.path[:] = {sys.path!r}
from grpo_jax import imports
code = compile({chr(10) * lines + textwrap.dedent(CELL)!r}, "c{lines}", "exec")
exec(code)
print(*(imports.name_of(globals()[name]) for name in {NAMES!r}))
"""
  return subprocess.run(
    [sys.executable, "-c", program],
    env={"PYTHONHASHSEED": str(lines)},
    capture_output=True,
    text=True,
    check=True,
  ).stdout.split()


def test_a_cell_that_is_run_again_in_another_kernel_has_the_same_names():
  here = [imports.name_of(cell(lines=5)[name]) for name in NAMES]
  assert here == names_elsewhere(1) == names_elsewhere(2)
  assert len(set(here)) == len(here)
  assert all(imports.is_object(name) for name in here)
  assert [name.rpartition(":")[2] for name in here][:4] == list(NAMES[:4])


@pytest.mark.parametrize(
  ("old", "new", "changed"),
  [
    ("float(helper", "2 * float(helper", {"known", "RECIPE"}),
    ('"v", "w"', '"v", "x"', {"known", "RECIPE"}),  # Of what it calls.
    ('"yes", "no"', '"yes", "nein"', {"known", "RECIPE"}),  # A global.
    ("size: int = 3", "size: int = 4", {"Settings", "RECIPE"}),
    ("sleep(1)", "sleep(2)", {"slow"}),
    ("again(n - 1)", "again(n - 2)", {"again"}),
  ],
)
def test_what_an_object_refers_to_is_part_of_its_name(old, new, changed):
  assert old in CELL
  before, after = cell(), cell(CELL.replace(old, new))
  differ = {
    name
    for name in NAMES
    if imports.name_of(before[name]) != imports.name_of(after[name])
  }
  assert differ == changed


@settings(max_examples=5)
@given(st.lists(st.integers() | st.text() | st.floats(), max_size=4))
def test_values_of_a_closure_are_part_of_the_name(values):
  def made(inside):
    return lambda: inside

  name = imports.name_of(made(values))
  assert name == imports.name_of(made(list(values)))
  assert name != imports.name_of(made([*values, 0]))


def test_what_can_be_imported_is_named_by_its_path():
  path = "grpo_jax.rewards.form:tag_count"
  assert imports.name_of(form.tag_count) == path
  assert imports.named(("f1", form.tag_count)) == ("f1", path)
  assert imports.load(path, "reward function") is form.tag_count
  for value in ("text", 1.5, True, None, ("a", 2), [0.5]):
    assert imports.named(value) == value
  assert imports.is_object(imports.name_of(lambda: 0))
  assert imports.is_object(imports.name_of(functools.partial(max, 1)))


@dataclasses.dataclass(frozen=True)
class _Holder:
  function: object
  name: str = "holder"


HOLDER = _Holder(form.tag_count)


def test_an_instance_is_found_in_the_module_of_what_it_holds():
  own = _Holder(test_what_can_be_imported_is_named_by_its_path)
  module = sys.modules[__name__]
  module.OWN = own  # type: ignore[attr-defined]
  assert imports.name_of(own) == f"{__name__}:OWN"
  assert imports.is_object(imports.name_of(HOLDER))  # Not in `formatting`.


def test_what_cannot_be_pickled_says_why():
  lock = threading.Lock()

  def reward(prompts, completions, ids, extras):
    return [float(lock.locked())]

  with pytest.raises(ValueError, match=r"'reward' cannot.*open files"):
    imports.name_of(reward)


def test_a_workdir_has_what_its_config_names(tmp_path):
  name = imports.name_of(cell()["RECIPE"])
  text = '{"algorithm": {"name": "' + name + '"}, "seed": 1}'
  imports.keep(text, tmp_path / "run")
  (kept,) = (tmp_path / "run/objects").iterdir()
  program = f"""
import pathlib, sys
sys.path[:] = {sys.path!r}
from grpo_jax import imports
imports.fetch({text!r}, pathlib.Path({str(tmp_path / "run")!r}))
recipe = imports.load({name!r}, "recipe")
print(recipe.settings().size, recipe.score([""], ["yes"], [0], [{{}}]))
try:
  imports.load("object@0123456789abcdef:foo", "algorithm")
except ValueError as error:
  print(error)
"""
  said = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=True
  ).stdout
  assert said.startswith("3 [1.0]\n")
  assert "another process has pickled" in said
  kept.write_bytes(b"damaged")
  program = program.replace("recipe.settings", "never.settings")
  said = subprocess.run(
    [sys.executable, "-c", program], capture_output=True, text=True, check=False
  ).stderr
  assert "reading" in said
  assert "UnpicklingError" in said
  absent = '{"name": "object@0123456789abcdef:foo"}'
  with pytest.raises(FileNotFoundError, match="copy the whole folder"):
    imports.fetch(absent, tmp_path / "run")


@pytest.mark.slow
def test_workers_score_with_objects_and_end_those_that_hang():
  kernel = cell()
  paths = {
    name: imports.name_of(kernel[name]) for name in ("known", "slow", "broken")
  }
  good = {name: paths[name] for name in ("known", "slow")}
  weights = dict.fromkeys(good, 1.0)
  with host.HostScorer(good, weights, row_timeout_s=1.0) as scorer:
    scores = scorer.score([""] * 3, ["yes", "hang", "x"], [0, 1, 2], [{}] * 3)
  assert scores.components["known"].tolist()[::2] == [1.0, 0.0]
  assert scores.failed.tolist() == [False, True, False]
  assert scores.failures["timeout"] == 1
  with host.HostScorer({"broken": paths["broken"]}, {"broken": 1.0}) as scorer:
    scores = scorer.score([""], ["yes"], [0], [{}])
  assert scores.failures["raised"] == 1
  assert "broken: KeyError: 'answer'" in scores.errors[0]
