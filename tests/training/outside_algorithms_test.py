"""Algorithms and tasks that live outside the repository, and in notebooks."""

import dataclasses
import json
import pathlib
import textwrap

import pytest
from absl import flags

import grpo_jax
from grpo_jax import algorithms, imports, tasks
from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import copy as copy_task
from grpo_jax.training import loop
from grpo_jax.training.phases import workdir
from grpo_jax.training.runtime import log
from tests.experiments import command, tiny_config

QUICKSTART = "--config=configs/quickstart.py"
FOO = """
  import dataclasses

  from grpo_jax.algorithms import grpo
  from grpo_jax.algorithms.options import ClipConfig
  from grpo_jax.types import Algorithm


  @dataclasses.dataclass(frozen=True, kw_only=True)
  class FooConfig(ClipConfig):
    clip_low: float = 0.05

  FOO = dataclasses.replace(grpo.GRPO, name="foo", config_class=FooConfig)
  CLASH = dataclasses.replace(FOO, name="gspo")
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class BareConfig(ClipConfig):
    beta: float

  BARE = dataclasses.replace(FOO, name="bare", config_class=BareConfig)
  PLAIN = dataclasses.replace(FOO, name="plain", config_class=dict)
  COPY = grpo.GRPO
  TEXT = "foo"
"""
PATH = "outside_pkg.foo:FOO"


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
  folder = tmp_path / "elsewhere/outside_pkg"
  folder.mkdir(parents=True)
  (folder / "foo.py").write_text(textwrap.dedent(FOO))
  (folder / "torn.py").write_text("import nothing_of_this_name\n")
  monkeypatch.syspath_prepend(folder.parent)
  monkeypatch.chdir(command.ROOT)


def parse(*arguments):
  values, argv = flags.FlagValues(), ["train", *arguments]
  flags_lib.define_config(values, argv)
  flags_lib.parse(argv, values)
  return values.config


def test_an_import_path_takes_the_place_of_a_name(tmp_path):
  config = parse(f"{QUICKSTART}:{PATH}", "--config.algorithm.clip_high=0.3")
  assert config.algorithm.name == PATH
  assert config.algorithm.clip_low == 0.05
  stored = json.loads(config.to_json())
  log.write_json(tmp_path / "config.json", stored)
  name, objective = workdir.settings(tmp_path).algorithm
  assert name == PATH
  assert (objective.clip_low, objective.clip_high) == (0.05, 0.3)
  found = algorithms.get_algorithm(PATH)
  assert found is algorithms.get_algorithm(PATH)
  assert (found.name, type(objective)) == (PATH, found.config_class)
  assert algorithms.get_algorithm("outside_pkg.foo:COPY").name.endswith("COPY")


@pytest.mark.parametrize(
  ("path", "message"),
  [
    ("outside_pkg.bar:FOO", r"ModuleNotFoundError: No .*add its folder to"),
    ("no_pkg.foo:FOO", r"'no_pkg\.foo' failed .*folder that holds it, install"),
    (
      "outside_pkg.torn:FOO",
      r"No module named 'nothing_of_this_name' \(torn\.py:1: `import n",
    ),
    ("outside_pkg.foo:FO", r"has no algorithm 'FO'\. Did you mean 'FOO'\?"),
    ("outside_pkg.foo:", r"needs an import path"),
    ("outside_pkg.foo:TEXT", r"is 'foo' \(str\); needs an Algorithm"),
    ("outside_pkg.foo:CLASH", r"called 'gspo', and so is another one of the"),
    ("outside_pkg.foo:PLAIN", r"config_class=<class 'dict'>; needs a froz"),
    ("outside_pkg.foo:BARE", r"BareConfig has no default for beta; needs"),
    ("object@0123456789abcdef:foo", r"an object that another process has pick"),
  ],
)
def test_what_is_no_algorithm_says_so(path, message):
  with pytest.raises(ValueError, match=message):
    algorithms.get_algorithm(path)
  with pytest.raises(ValueError, match=message):
    parse(f"{QUICKSTART}:{path}")


def test_what_is_missing_tells_apart_the_module_and_what_it_imports():
  with pytest.raises(ValueError, match="torn") as caught:
    algorithms.get_algorithm("outside_pkg.torn:FOO")
  assert "PYTHONPATH" not in str(caught.value)


def test_a_run_of_others_warns_before_it_imports(tmp_path, caplog):
  config = config_lib.default_config(PATH)
  config.data.name = "outside_pkg.new:TASK"
  config.data.environment = "outside_pkg.new:make"
  config.rewards.functions = ("outside_pkg.foo:reward",)
  config.rewards.steps = "outside_pkg.torn:steps"
  config.interceptor.rules = ("shell", "outside_pkg.new:is_bad")
  config.interceptor.judge = "outside_pkg.new:judge"
  values = json.loads(config.to_json())
  values["algorithm"]["name"] = "outside_pkg.torn:FOO"
  values["data"]["mixture"] = [{"name": "outside_pkg.other:TASK"}]
  log.write_json(tmp_path / "config.json", values)
  with pytest.raises(ValueError, match="nothing_of_this_name"):
    workdir.settings(tmp_path)
  named = ("torn:FOO", "torn:steps", "new:TASK", "new:make")
  for name in (*named, "new:is_bad", "new:judge", "other:TASK"):
    assert f"outside_pkg.{name}" in caplog.text
  assert "shell" not in caplog.text
  assert "outside_pkg.foo:reward" not in caplog.text  # Imported already.
  assert "people whom you trust" in caplog.text


def test_settings_take_objects_of_a_notebook():
  def brevity(prompts, completions, ids, extras):
    return [-len(text) for text in completions]

  local = dataclasses.replace(algorithms.ALGORITHMS["gspo"], name="local")
  config = config_lib.default_config(local)
  config.rewards.functions = (brevity, "math_accuracy")
  config.data.name = dataclasses.replace(copy_task.make(2), vocab_size=40)
  assert config.algorithm.clip_high == 4e-4
  assert imports.is_object(config.algorithm.name)
  assert config.rewards.functions == (imports.name_of(brevity), "math_accuracy")
  config = json.loads(config.to_json())
  assert tasks.make_task(config["data"]["name"]).vocab_size == 40
  config = grpo_jax.config(
    command.ROOT / "configs/quickstart.py",
    algorithms.ALGORITHMS["gspo"],
    **{"data.name": copy_task.make, "rewards.functions": (brevity,)},
  )
  assert config.algorithm.name == "gspo"
  assert config.data.name == "grpo_jax.tasks.copy:make"
  assert config.rewards.functions == (imports.name_of(brevity),)


def test_tasks_have_import_paths():
  path = "grpo_jax.tasks.copy:make"
  assert tasks.make_task(path, length=4).max_prompt_len == 6
  with pytest.raises(KeyError, match=r"option of task.*'lenth'.*'length'"):
    tasks.make_task(path, lenth=4)
  with pytest.raises(TypeError, match=r"is 'foo' .*needs a Task"):
    tasks.make_task("outside_pkg.foo:TEXT")


@pytest.mark.slow  # Compiles a run.
def test_a_run_with_objects_goes_on_and_is_opened(tmp_path):
  """In a folder that was moved, and as if by another process."""

  def settings(scale):
    def advantages(config, batch):
      return scale * algorithms.ALGORITHMS["grpo"].advantages(config, batch)

    config = tiny_config.get_config(
      dataclasses.replace(
        algorithms.ALGORITHMS["grpo"], name="scaled", advantages=advantages
      )
    )
    config.phases = ("rl",)
    config.rl.steps = config.checkpoint.every = 2
    config.eval.every = 0
    return config

  loop.train(settings(2.0), tmp_path / "run")
  moved = (tmp_path / "run").rename(tmp_path / "moved")
  assert loop.train(settings(2.0), moved).step == 2
  with pytest.raises(ValueError, match=r"object@.* stored, .*object@.* given"):
    loop.train(settings(3.0), moved)
  name = settings(2.0).algorithm.name
  del imports._alive[name]
  for path in pathlib.Path(imports.folder()).iterdir():
    path.unlink()
  with grpo_jax.load(moved) as run:
    assert run.config.algorithm[0] == name
    assert run.step == 2
