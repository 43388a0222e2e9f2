"""Every command that a page or a docstring prints is one that starts.

The commands are read from the texts, so that a new page is covered as it is.
All of them are parsed as their programs do; nothing is run. Those of
experiments.train go on, in the slow tests: the parts of the run are made, and
the first step of each phase is traced, without a compilation, weights or files
of text.
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import math
import pathlib
import re
import runpy
import shlex
import string
import sys
from unittest import mock

import jax
import numpy as np
import pytest
from absl import app, flags

from experiments.launch import job, preflight
from experiments.pods import steps
from experiments.science import experiments
from grpo_jax.cli import flags as flags_lib
from grpo_jax.configs.recipes import models as published
from grpo_jax.data import pipeline
from grpo_jax.settings import config as config_lib
from grpo_jax.step import dynamic_sampling, step
from grpo_jax.training import run as run_lib
from grpo_jax.training.phases import checkpointed, executors
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import EpisodeSampler
from tests import contributing_test

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_PAGES = sorted(
  str(path.relative_to(_ROOT))
  for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
  for path in _ROOT.glob(pattern)
)
_MODULES = sorted(
  str(path.relative_to(_ROOT))
  for folder in ("configs", "experiments", "grpo_jax/cli")
  for path in (_ROOT / folder).rglob("*.py")
)
_RECIPES = sorted(
  path
  for path in (_ROOT / "configs/recipes").glob("*.py")
  if "def get_config" in path.read_text("utf-8")
)
# A config with its argument, as texts name it; not one of the reader's own.
_NAMED = r"\bconfigs/[a-z\d_/]+\.py:(?!foo|my_)[a-z][\w.-]*\w\b(?!:)"
_PROGRAMS = "|".join(
  path.stem.replace("_", "-")
  for path in (_ROOT / "grpo_jax/cli").glob("*.py")
  if "\nrun = " in path.read_text("utf-8")
)
_COMMAND = re.compile(
  rf"(?:python -m (experiments[a-z_.]*)|\bgrpo-({_PROGRAMS}))(?=\s|$)"
)
# Words that stand for what a reader has, and what is taken here.
_STAND_INS = {
  "--config=FILE": "--config=quickstart",
  "--config=…": "--config=quickstart",
  "NAME": "entropy",  # Of an experiment of Science.
  "--config.model.checkpoint=path/of/checkpoint": (
    "--config.model.checkpoint=Qwen/Qwen2.5-0.5B"
  ),
}
# Where a command of a line ends.
_ENDS = ("|", ">", "&", "&&", ";", "||")
# Programs whose command line is not parsed here -> why.
_NOT_PARSED = {
  "experiments.health.page": "it has no arguments, and writes its page",
  "experiments.parity.families": "it has no arguments, and writes its table",
  "experiments.launch.with_secrets": "it asks the cloud for a secret at once",
}


@dataclasses.dataclass(frozen=True)
class Command:
  """A program and its arguments, as `shlex` has them."""

  module: str
  arguments: tuple[str, ...]

  def __str__(self):
    program = self.module.removeprefix("experiments.")
    return shlex.join([program, *self.arguments])


def _docstrings(text: str) -> list[str]:
  kinds = ast.Module | ast.FunctionDef | ast.ClassDef
  nodes = [x for x in ast.walk(ast.parse(text)) if isinstance(x, kinds)]
  return [ast.get_docstring(node) or "" for node in nodes]


def commands(text: str) -> list[Command]:
  """The commands of a page or a docstring."""
  text = re.sub(r"\s*\\\n\s*", " ", text)
  found, variables = [], {}
  for line in text.split("\n"):
    if assigned := re.match(r'\s*(\w+)="([^"]*)"$', line):
      variables[assigned[1]] = assigned[2]
    # Within a sentence a command is quoted; without arguments it is a name.
    quoted = re.findall(r"`([^`]+)`", line)
    for piece in quoted or [line]:
      if match := _COMMAND.search(piece):
        rest = string.Template(piece[match.end() :]).safe_substitute(variables)
        words = shlex.split(rest, comments=True)
        end = next((i for i, x in enumerate(words) if x in _ENDS), len(words))
        if words[:end] or not quoted:
          module = match[1] or f"experiments.{match[2].replace('-', '_')}"
          found.append(Command(module, tuple(map(_meant, words[:end]))))
  return found


def _meant(word: str) -> str:
  """A word of a command with something real in the place of a stand-in."""
  if recipe := re.match(r"--config=(configs/recipes/\w+\.py):MODEL$", word):
    sees = "VISION" in (_ROOT / recipe[1]).read_text("utf-8")
    return f"--config={recipe[1]}:{'qwen2.5-vl-3b' if sees else 'qwen2.5-0.5b'}"
  return _STAND_INS.get(word, word)


@functools.cache
def _read(name: str) -> str:
  return (_ROOT / name).read_text("utf-8")


@functools.cache
def commands_of(name: str) -> tuple[Command, ...]:
  text = _read(name)
  if not _COMMAND.search(text):  # To parse all sources takes seconds.
    return ()
  texts = _docstrings(text) if name.endswith(".py") else [text]
  return tuple(dict.fromkeys(x for text in texts for x in commands(text)))


class Parsed(BaseException):
  """A program has read its command line, and would begin."""


@contextlib.contextmanager
def _fresh():
  """No flag and no module of a program is there before or after."""

  def ours():
    return {
      name: module
      for name, module in sys.modules.items()
      if name.startswith(("experiments.", "grpo_jax.cli"))
      and name != flags_lib.__name__
    }

  modules, state = ours(), vars(flags.FLAGS)
  held = {k: dict(x) if isinstance(x, dict) else x for k, x in state.items()}
  for name in list(flags.FLAGS):
    module = flags.FLAGS.find_module_defining_flag(name, "")
    if not module.startswith("absl"):
      delattr(flags.FLAGS, name)
  for name in modules:
    del sys.modules[name]
  try:
    yield
  finally:
    for name in ours():
      del sys.modules[name]
    sys.modules.update(modules)
    state.clear()
    state.update(held)


def parsed(command: Command):
  """The config of a command after its program has read it; None without one."""
  argv = [command.module, *command.arguments]
  if command.module.startswith("experiments.launch."):
    with mock.patch.object(job, "capture", return_value=""):
      argv.insert(2, "--dry_run")
      assert importlib.import_module(command.module).main(argv) == 0
    return None

  def run(
    main, several_processes=False, needs_config=True, takes_arguments=False
  ):
    del main
    flags_lib.define_processes(flags.FLAGS, several_processes)
    flags_lib.parse(
      sys.argv, needs_config=needs_config, takes_arguments=takes_arguments
    )
    raise Parsed

  def run_of_absl(main):
    del main
    flags.FLAGS(sys.argv)
    raise Parsed

  parse_args = argparse.ArgumentParser.parse_args

  def parse(parser, *arguments):
    parse_args(parser, *arguments)
    raise Parsed

  with (
    _fresh(),
    mock.patch.object(sys, "argv", argv),
    mock.patch.object(flags_lib, "run", run),
    mock.patch.object(app, "run", run_of_absl),
    mock.patch.object(argparse.ArgumentParser, "parse_args", parse),
  ):
    with pytest.raises(Parsed):
      runpy.run_module(command.module, run_name="__main__")
    if "config" not in flags.FLAGS:
      return None
    config = flags.FLAGS["config"].value
    if isinstance(config, str) or config is None:  # It is no override of one.
      return None
    if config.data.source == "jsonl" and any(map(_reads, argv)):
      config.data.train_path = config.data.train_path or "read.jsonl"
    return config


def _reads(word: str) -> bool:
  """True for a flag that replaces a program's training data."""
  return word.startswith(("--data=", "--prompts="))


def traced(config: config_lib.RunConfig) -> str:
  """Makes the parts of a run, and traces a step of each phase.

  Args:
    config: Of the run.

  Returns:
    What is missing, where a file of another run is needed; or nothing.
  """
  wanted = config.mesh
  sizes = wanted.data or 1, wanted.fsdp, wanted.expert, wanted.tensor
  with contextlib.ExitStack() as stack:
    config = stack.enter_context(published.described(config))
    if math.prod(sizes) == 1:
      mesh = sharding.make_mesh(1)
      stack.enter_context(jax.set_mesh(mesh))
    else:
      types = (jax.sharding.AxisType.Auto,) * len(sizes)
      mesh = jax.sharding.AbstractMesh(sizes, sharding.AXES, axis_types=types)
      stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
    problem = preflight.problem_of(config)
    try:
      prepared = run_lib.prepare(config, problem, mesh)
    except OSError as error:
      return str(error)
    for index in range(len(config.phases)):
      key = _program(config, index)
      if key not in _TRACED:
        _trace(config, problem, prepared, mesh, index)
        _TRACED.add(key)
  return ""


_TRACED: set[str] = set()  # By what the program of a phase is made of.


def _program(config: config_lib.RunConfig, index: int) -> str:
  """Text of all that a phase's program is made of."""
  section = dataclasses.replace(config.stages[index], steps=1)
  made_of = [section, config.model, config.data, config.mesh]
  if section.samples:
    made_of += [config.algorithm, config.sampling, config.rewards]
    made_of += [config.environment, config.judge, config.guards]
  if "reward" in section.trains or config.reward_model.source:
    made_of += [config.reward_model]
  return repr(made_of)


def _trace(config, problem, prepared, mesh, index):
  phases, start = prepared.phases, prepared.start
  phase, parts = phases[index], phases[index].phase
  section = config.stages[index]
  state = checkpointed.abstract_state(phases[: index + 1], start)

  def shapes(stage, *inputs):
    program = jit.Program(functools.partial(stage, phase=parts))
    return program.eval_shape(*inputs)

  if parts.sampler is None:
    return shapes(step.supervised_step, state, _given(problem, section))
  prompts = phase.prompts
  if len(problem.train):
    prompts = next(
      run_lib.make_stream(config, problem, mesh, index, is_example=True)
    ).prompts
  elif problem.domains:  # Which records would say.
    domain = jax.ShapeDtypeStruct((section.num_prompts,), np.int32)
    prompts = dataclasses.replace(prompts, extras={"domain": domain})
  if isinstance(parts.sampler, EpisodeSampler):
    if problem.reward.asks_host:  # Of a package that is not installed.
      return None
    drawn = phase.queue_shapes(state)
    groups = dynamic_sampling.Groups(
      prompts, drawn.rollout, drawn.scored, drawn.baseline
    )
    return shapes(step.learn_stage, state, groups)
  if problem.reward.asks_host:
    scores = steps.scores(config, section.num_rows)
    return shapes(steps.scored_step, state, prompts, scores)
  if not parts.num_ahead:
    return shapes(step.fused_step, state, prompts)
  drawn = shapes(step.rollout_stage, state, prompts)
  return shapes(step.stale_step, state, prompts, drawn)


def _given(problem, section):
  """A batch of completions to imitate, or of pairs."""
  count = section.num_prompts
  num_rows = count * section.of_kind.num_given
  prompt = count, section.max_prompt_len or problem.max_prompt_len
  whole = num_rows, problem.max_new_tokens
  batch = pipeline.SupervisedBatch(
    prompt_tokens=np.zeros(prompt, np.int32),
    prompt_mask=np.ones(prompt, bool),
    tokens=np.zeros(whole, np.int32),
    completion_mask=np.ones(whole, bool),
    observed=np.zeros(whole, bool),
    images=jax.tree.map(
      lambda x: np.zeros((count, *x.shape), x.dtype), problem.image_shapes
    ),
  )
  return executors.train_batch(batch, np.arange(num_rows), num_rows)


@functools.cache
def _parsed(command: Command):
  """Caches `parsed` for pages that print the same command."""
  return parsed(command)


@pytest.fixture(autouse=True)
def _package(tmp_path, monkeypatch):
  """The package of CONTRIBUTING.md, which pages name as the reader's own."""
  package = tmp_path / "my_pkg"
  package.mkdir()
  (package / "foo.py").write_text(contributing_test.FILE)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.chdir(_ROOT)


@pytest.mark.parametrize(
  "name", [name for name in (*_PAGES, *_MODULES) if commands_of(name)]
)
def test_every_command_is_understood_by_its_program(name):
  for command in commands_of(name):
    if command.module in _NOT_PARSED:
      assert importlib.util.find_spec(command.module)
    elif (config := _parsed(command)) is not None:
      config_lib.resolve(config)
    if command.module == "experiments.science":
      experiments.parsed([x for x in command.arguments if x[0] != "-"])


def test_what_is_not_parsed_is_printed_somewhere():
  names = (*_PAGES, *_MODULES)
  assert {x.module for name in names for x in commands_of(name)} >= {
    *_NOT_PARSED
  }


def _printed() -> list[Command]:
  """The commands that train, and configs that texts name with an argument."""
  texts = (*_PAGES, *_MODULES)
  found = {x for name in texts for x in commands_of(name)}
  found = {x for x in found if x.module == "experiments.train"}
  named = {x for name in texts for x in re.findall(_NAMED, _read(name))}
  named |= {f"{x.relative_to(_ROOT)}:toy" for x in _RECIPES}
  for config in named - {
    x.partition("=")[2] for y in found for x in y.arguments
  }:
    more = "--workdir=runs/named", "--config.allow_unpublished=True"
    found.add(Command("experiments.train", (f"--config={config}", *more)))
  return sorted(found, key=str)


def _different() -> list[Command]:
  """The printed runs that differ in more than the algorithm or the size.

  Those of an algorithm are traced by the contract of algorithms, and recipes at
  their published sizes are made by tests of pods: here are their toys.
  """
  files: set[str] = set()
  chosen = []
  for command in sorted(_printed(), key=lambda x: ":toy" not in str(x)):
    config, *more = (x for x in command.arguments if x.startswith("--config"))
    file = config.partition("=")[2].partition(":")[0]
    if more[:1] not in ([], ["--config.allow_unpublished=True"]):
      chosen.append(command)
    elif file not in files:
      files.add(file)
      chosen.append(command)
  return chosen


@pytest.mark.slow
@pytest.mark.parametrize("command", _different(), ids=str)
def test_the_first_step_of_every_printed_run_is_traced(command):
  missing = traced(config_lib.resolve(_parsed(command)))
  # What another run writes is there after that run.
  assert not missing or re.search(r"runs/[\w./-]+", missing)


def test_every_config_is_printed_in_a_command():
  words = {x for y in _printed() for x in y.arguments}
  named = {re.split("[=:]", x)[1] for x in words if x.startswith("--config=")}
  for path in (*(_ROOT / "configs").glob("*.py"), *_RECIPES):
    assert str(path.relative_to(_ROOT)) in named


def _blocks(name: str) -> list[str]:
  return re.findall(r"(?ms)^```python\n(.*?)^```$", _read(name))


@pytest.mark.parametrize("name", [name for name in _PAGES if _blocks(name)])
def test_examples_in_python_import_what_there_is(name):
  for block in _blocks(name):
    for node in ast.walk(ast.parse(block)):
      if not isinstance(node, ast.ImportFrom) or node.module is None:
        continue
      if node.module.partition(".")[0] in (
        "grpo_jax",
        "experiments",
        "configs",
      ):
        module = importlib.import_module(node.module)
        for alias in node.names:
          assert hasattr(module, alias.name) or importlib.util.find_spec(
            f"{node.module}.{alias.name}"
          )
