"""Configs: every field is read, files resolve, and sizes are explained."""

import ast
import collections
import copy
import dataclasses
import functools
import importlib.util
import inspect
import itertools
import json
import pathlib
import textwrap
import typing

import ml_collections
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import algorithms
from grpo_jax.algorithms import distillation, objective
from grpo_jax.models import (
  architecture,
  attention,
  blocks,
  experts,
  rope,
  transformer,
  vision_parts,
  vision_qwen,
  vision_siglip,
  vision_towers,
)
from grpo_jax.rollout import mixing
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import (
  environment,
  groups,
  model,
  monitor,
  overrides,
  rewards,
)
from grpo_jax.settings import phase as phase_lib
from grpo_jax.step import models, prompts, update
from grpo_jax.training.phases import build, forced, optimizers

_ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = tuple(algorithms.ALGORITHMS)

# --- every field is read -----------------------------------------------------

# What code that reads a config calls it: `config.eval.every`, `phase.steps`.
_CALLED = {
  config_lib.MeshConfig: {"mesh"},
  config_lib.HostsConfig: {"hosts"},
  config_lib.RunConfig: {"config", "settings"},
  **{cls: {"phase"} for cls in phase_lib.CLASSES.values()},
  phase_lib.KeepConfig: {"keep"},
  phase_lib.ScheduleConfig: {"schedule", "settings"},
  phase_lib.CorrectionConfig: {"correction", "settings"},
  config_lib.CriticConfig: {"critic", "settings"},
  config_lib.RewardModelConfig: {"reward_model", "settings"},
  rewards.JudgeConfig: {"judge"},
  rewards.ServiceConfig: {"service"},
  config_lib.DataConfig: {"data"},
  config_lib.EnvironmentConfig: {"turns", "environment"},
  environment.CompactionConfig: {"setup", "compaction"},
  config_lib.InterceptorConfig: {"interceptor", "settings"},
  config_lib.ServedConfig: {"served", "settings"},
  config_lib.SamplingConfig: {"sampling"},
  config_lib.RewardsConfig: {"rewards"},
  config_lib.EvalConfig: {"eval"},
  config_lib.CheckpointConfig: {"checkpoint"},
  config_lib.LogConfig: {"log"},
  config_lib.HealthConfig: {"health"},
  monitor.GuardsConfig: {"guards"},
}
# Reading a field to complain about its value is not using it.
_CHECKS = ("__post_init__", "check", "one_of")


def _reads(source: str, called: typing.Collection[str]) -> set[str]:
  """Attributes that are read of anything called so, checks left out.

  `phase.steps`, `run.config.seed`, `getattr(phase, "steps", 0)`; `self.steps`
  too if "self" is a name.
  """
  read = _all_reads(source)
  return set().union(*(read.get(name, ()) for name in called))


@functools.cache
def _all_reads(source: str) -> dict[str, set[str]]:
  """Attributes that are read, by the name of the object that they are of."""
  tree = ast.parse(textwrap.dedent(source))
  skipped = {
    id(inner)
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef) and node.name in _CHECKS
    for inner in ast.walk(node)
  }
  found = collections.defaultdict(set)

  def add(owner, name):
    called = getattr(owner, "attr", getattr(owner, "id", None))
    if called is not None:
      found[called].add(name)

  for node in ast.walk(tree):
    if id(node) in skipped:
      continue
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
      add(node.value, node.attr)
    elif isinstance(node, ast.Call) and _name_of(node.func) == "getattr":
      owner, name = node.args[:2]
      if isinstance(name, ast.Constant):
        add(owner, name.value)
  return dict(found)


def _name_of(node: ast.expr) -> str | None:
  return node.id if isinstance(node, ast.Name) else None


_FOLDERS = (
  *("grpo_jax/training", "grpo_jax/settings", "grpo_jax/cli"),
  "experiments",
)


@functools.cache
def _readers() -> str:
  """The code that may read a `RunConfig`: all but its definition."""
  paths = [
    path
    for folder in _FOLDERS
    for path in sorted((_ROOT / folder).rglob("*.py"))
    if path.name not in ("config.py", "phase.py", "groups.py", "model.py")
  ]
  functions = [
    config_lib.micro_batch_size,
    config_lib.lengths,
    config_lib.default_config,
    config_lib.resolve,
  ]
  for module in (phase_lib, groups):
    functions += dict(inspect.getmembers(module, inspect.isfunction)).values()
  return "\n".join(
    [path.read_text(encoding="utf-8") for path in paths]
    + [inspect.getsource(function) for function in functions]
  )


def _fields(cls: type) -> set[str]:
  return {field.name for field in dataclasses.fields(cls)}


def _dead_fields(cls: type) -> set[str]:
  """Fields of a part of `RunConfig` that nothing reads."""
  read = _reads(_readers(), _CALLED[cls]) | _reads(
    inspect.getsource(cls), {"self"}
  )
  return _fields(cls) - read


def _names(code) -> set[str]:
  """Names that code and the functions inside of it look up."""
  inside = filter(inspect.iscode, code.co_consts)
  return set(code.co_names).union(*map(_names, inside))


def _with_helpers(functions) -> set:
  """The functions, and all of the algorithms' functions that they call."""
  found, new = set(), set(functions)
  while new:
    found.add(function := new.pop())
    names, known = _names(function.__code__), function.__globals__
    modules = [known[name] for name in names if name in known]
    for owner in (known, *map(vars, filter(inspect.ismodule, modules))):
      called = filter(inspect.isfunction, map(owner.get, names))
      new |= {
        helper
        for helper in called
        if helper.__module__.startswith("grpo_jax.algorithms")
      } - found
  return found


def _dead_algorithm_fields(algorithm) -> set[str]:
  """Fields that neither the algorithm's functions nor the common loss read."""
  functions = _with_helpers(
    function
    for function in (
      models.reference_fields,
      update.PolicyLoss.outputs,
      algorithm.advantages,
      algorithm.policy_loss,
      algorithm.init,
      algorithm.prepare,
      algorithm.terms,
      algorithm.critic_loss,
      algorithm.update_state,
    )
    if function is not None
  )
  sources = [inspect.getsource(objective), inspect.getsource(distillation)]
  sources += [inspect.getsource(function) for function in functions]
  read = set().union(*(_reads(source, {"config"}) for source in sources))
  read |= _reads(inspect.getsource(build.Models), {"objective"})
  if "prefix_utility" in algorithm.needs:
    read |= _reads(inspect.getsource(forced), {"settings"})
  return _fields(algorithm.config_class) - read


def _parts(cls: type) -> set[type]:
  """The class and the config classes of its fields."""
  hints = typing.get_type_hints(cls).values()
  inside = [part for hint in hints for part in (hint, *typing.get_args(hint))]
  return {cls}.union(
    *(_parts(part) for part in inside if dataclasses.is_dataclass(part))
  )


def test_every_part_of_a_run_is_looked_at():
  elsewhere = {
    config_lib.ModelConfig,
    phase_lib.OptimizerConfig,
    model.TowerSettings,
  }
  known = {config_lib.RunConfig, *phase_lib.CLASSES.values()}
  parts = set().union(*map(_parts, known)) - {phase_lib.PhaseConfig}
  assert parts == set(_CALLED) | elsewhere


@pytest.mark.parametrize("cls", _CALLED, ids=lambda cls: cls.__name__)
def test_every_setting_is_read(cls):
  assert _dead_fields(cls) == set()


@pytest.mark.slow
@pytest.mark.parametrize("cls", _CALLED, ids=lambda cls: cls.__name__)
def test_a_setting_that_nothing_reads_is_found(cls, monkeypatch):
  planted = dataclasses.make_dataclass(
    cls.__name__, [("planted", int, 0)], bases=(cls,), frozen=True
  )
  monkeypatch.setitem(_CALLED, planted, _CALLED[cls])
  monkeypatch.setattr(
    inspect, "getsource", _source_of_base(inspect.getsource, planted, cls)
  )
  assert _dead_fields(planted) == {"planted"}


def _source_of_base(getsource, planted, cls):
  return lambda thing: getsource(cls if thing is planted else thing)


def test_choices_of_settings_are_those_of_the_code():
  assert (*prompts.WEIGHTS,) == phase_lib.WEIGHTED
  assert ("auto", *experts._BY_NAME) == architecture.EXPERT_FORMS
  for anchor, neighbours in itertools.product(
    groups.MIX_ANCHORS, groups.MIX_NEIGHBOURS
  ):
    mixing.Mixing(rate=0.5, anchor=anchor, neighbours=neighbours)


def test_every_setting_of_the_model_is_read():
  own = {
    "checkpoint",
    "revision",
    "adapter_checkpoint",
    "lora_rank",
    "lora_alpha",
    "lora_modules",
    "quantization",
    "tower",
  }
  assert _reads(inspect.getsource(config_lib.ModelConfig), {"self"}) >= own
  fields = _fields(config_lib.ModelConfig) - own
  # All else in a `TransformerConfig` comes from a checkpoint.
  assert fields == _fields(architecture.Architecture)
  read = _reads(inspect.getsource(transformer), {"config"})
  read |= _reads(inspect.getsource(blocks), {"config"})
  read |= _reads(inspect.getsource(attention), {"config"})
  read |= _reads(inspect.getsource(rope), {"config"})
  # Some through the properties of the config.
  read |= _reads(inspect.getsource(architecture.Architecture), {"self"})
  assert fields - read == set()
  assert "planted" not in read


def test_every_setting_of_the_tower_is_read():
  read = _reads(inspect.getsource(model.TowerSettings), {"self"})
  for module in (vision_parts, vision_qwen, vision_siglip, vision_towers):
    read |= _reads(inspect.getsource(module), {"tower", "self"})
  assert _fields(model.TowerSettings) - read == set()
  assert "planted" not in read


def test_every_setting_of_the_optimizer_is_read():
  read = _reads(inspect.getsource(optimizers), {"config"})
  assert _fields(phase_lib.OptimizerConfig) - read == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_an_algorithm_is_read(name):
  algorithm = algorithms.get_algorithm(name)
  assert _dead_algorithm_fields(algorithm) == set()
  planted = dataclasses.make_dataclass(
    "Planted",
    [("planted", int, 0)],
    bases=(algorithm.config_class,),
    frozen=True,
    kw_only=True,
  )
  assert _dead_algorithm_fields(
    dataclasses.replace(algorithm, config_class=planted)
  ) == {"planted"}


def test_reading_only_to_check_is_not_reading():
  source = """
  class Config:
    def __post_init__(self):
      assert self.planted > 0

    def check(self, phase):
      return phase.planted
  """
  assert _reads(source, {"self", "phase"}) == set()
  used = source + "\n  def use(self):\n      return self.planted"
  assert _reads(used, {"self"}) == {"planted"}
  assert _reads("phase.planted = 3", {"phase"}) == set()


# --- from ConfigDict to RunConfig and back -----------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_defaults_resolve_to_the_defaults(name):
  run = config_lib.resolve(config_lib.default_config(name))
  assert run.algorithm == (name, algorithms.make_config(name))
  assert dataclasses.replace(run, algorithm=None) == config_lib.RunConfig()


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_default_config_has_every_field(name):
  def compare(node, cls, more=frozenset()):
    own = _fields(cls) - {"sections"}
    if issubclass(cls, groups.Switched):
      own = {*cls.read_with(node[cls.switch])}
    assert set(node.keys()) == own ^ more
    for field, hint in typing.get_type_hints(cls).items():
      if dataclasses.is_dataclass(hint) and field in node:
        compare(node[field], hint)

  config = config_lib.default_config(name)
  has_critic = name == "ppo"
  more = {"sft", "rl", "value"} if has_critic else {"sft", "rl", "critic"}
  compare(config, config_lib.RunConfig, more)
  for section, cls in phase_lib.SECTIONS.items():
    if section in config:
      compare(config[section], type(cls))


def test_overrides_reach_the_run():
  config = config_lib.default_config("dapo")
  config.rl.steps = 7
  config.rl.optimizer.learning_rate = 1  # An int where a float is meant.
  config.rl.micro_batch_size = 4  # None so far: a placeholder of its type.
  config.sampling.top_p = 0.9
  config.required_accuracy = 0.5
  config.phases = ["rl"]  # As --config.phases and JSON give it.
  config.data.task_options = {"level": 2}
  config.algorithm.clip_high = 0.5
  run = config_lib.resolve(config)
  assert run.section("rl").steps == 7
  assert isinstance(run.section("rl").optimizer.learning_rate, float)
  assert run.section("rl").micro_batch_size == 4
  assert run.sampling.top_p == 0.9
  assert run.required_accuracy == 0.5
  assert run.phases == ("rl",)
  assert run.data.task_options == {"level": 2}
  assert run.algorithm == (
    "dapo",
    algorithms.make_config("dapo", clip_high=0.5),
  )
  assert run.section("sft") == phase_lib.SupervisedConfig()


def test_a_run_may_have_phases_of_ones_own():
  config = config_lib.default_config()
  config.second = config_lib.phase_config("rl", steps=3, set_reference=False)
  config.lessons = config_lib.phase_config("supervised", num_prompts=5)
  config.phases = ("lessons", "rl", "second")
  run = config_lib.resolve(config)
  lessons, rl, second = run.stages
  assert (lessons.kind, lessons.num_prompts) == ("supervised", 5)
  # What is not said is as in the phase of that kind that there always is.
  assert second == dataclasses.replace(rl, steps=3, set_reference=False)
  again = ml_collections.ConfigDict(json.loads(config.to_json()))
  assert config_lib.resolve(again) == run
  changed = run.with_section("second", steps=4)
  assert changed.section("second").steps == 4
  assert changed.section("rl") == rl
  with pytest.raises(
    ValueError, match=r"config\.second\.steps=-1 must be at least 0"
  ):
    run.with_section("second", steps=-1)
  config.second.stepz = 1
  with pytest.raises(KeyError, match=r"config\.second\.stepz .*mean 'steps'"):
    config_lib.resolve(config)
  with pytest.raises(ValueError, match=r"kind got 'r1'.*supervised, rl, value"):
    config_lib.phase_config("r1")
  config = config_lib.default_config()
  config.phases = ("lessons", "rl")
  with pytest.raises(ValueError, match=r"phases got 'lessons'.*sft, value, rl"):
    config_lib.resolve(config)


SAMPLED = {"rl", "value", "preference", "process", "rejection"}
# Setting -> kinds of phases that have it; all kinds have the others.
SETTINGS = {
  name: kinds
  for names, kinds in (
    (
      "num_epochs num_minibatches reset_optimizer",
      {*phase_lib.CLASSES} - {"rejection"},
    ),
    ("ema_decay optimizer", {"supervised", "rl", "pairs"}),
    (
      "set_reference reference_workdirs reference_mixture reference_storage",
      {"rl", "value", "pairs"},
    ),
    ("group_size temperature schedule opponents", SAMPLED),
    (
      "reward_weights max_rounds when_short staleness partial_len",
      SAMPLED - {"rejection"},
    ),
    ("recycle_surplus replay_size correction", {"rl"}),
    ("transforms transform_options", {"rl"}),
    ("demonstrations num_records", {"supervised"}),
    ("keep", {"rejection"}),
  )
  for name in names.split()
}


@pytest.mark.parametrize("kind", phase_lib.CLASSES)
def test_a_phase_has_the_settings_of_its_kind(kind):
  own = _fields(phase_lib.CLASSES[kind])
  wanted = {name for name, having in SETTINGS.items() if kind in having}
  assert own - _fields(phase_lib.PhaseConfig) == wanted
  config = config_lib.default_config()
  config.first = config_lib.phase_config(kind)
  assert {*config.first} == own
  for name in SETTINGS.keys() - own:
    kinds = [other for other in phase_lib.CLASSES if other in SETTINGS[name]]
    said = f"kind={' or '.join(map(repr, kinds))}, and here kind={kind!r}."
    assert said in overrides.complaint(config, f"first.{name}", str)
    with pytest.raises(KeyError, match=said):
      config_lib.phase_config(kind, **{name: 1})
    config.first[name] = 1
    with pytest.raises(KeyError, match=rf"config\.first\.{name} is.*{said}"):
      config_lib.resolve(config)
    del config.first[name]


@pytest.mark.parametrize(
  ("switch", "value", "setting", "hint"),
  [
    ("rl.schedule.name", "ads", "window", "name='ads', and here name='epochs'"),
    ("rl.kind", "rejection", "keep", "kind='rejection', and here kind='rl'"),
    ("model.tower.kind", "siglip", "width", "width if kind is set"),
    ("environment.compaction.context_len", 64, "every", "context_len is set"),
    ("interceptor.rules", ("shell",), "penalty", "penalty if rules is set"),
    ("judge.rubric", "{completion}", "service", "service if rubric is set"),
  ],
)
def test_a_switch_gives_a_group_its_settings(switch, value, setting, hint):
  where, _, last = switch.rpartition(".")
  config = config_lib.default_config()
  before = config.to_json()
  for copied in (config, copy.deepcopy(config).lock()):
    group = overrides.at(copied.copy_and_resolve_references(), where)
    off = group[last]
    assert setting not in group
    assert hint in overrides.complaint(copied, f"{where}.{setting}", str)
    group[last] = value
    own = _fields(type(overrides.switched(group).usual(value)))
    assert setting in group
    assert {*group} <= own
    if copied.is_locked:
      with pytest.raises(AttributeError, match="stepz"):
        group.stepz = 1
    group[last] = off
    assert {*group} == {*overrides.at(config, where)}
  # A record of an earlier version has all settings.
  full = json.loads(before)
  record = functools.reduce(dict.get, where.split("."), full)
  usual = overrides.switched(overrides.at(config, where)).usual(off)
  for name in _fields(type(usual)) - {*record}:
    record[name] = json.loads(json.dumps(getattr(usual, name), default=vars))
  resolved = config_lib.resolve(config)
  assert config_lib.resolve(ml_collections.ConfigDict(full)) == resolved
  record[setting] = 7
  with pytest.raises((KeyError, TypeError, ValueError), match=setting):
    config_lib.resolve(ml_collections.ConfigDict(full))
  assert config.to_json() == before


def test_free_names_stay_free_when_a_switch_is_set():
  config = config_lib.default_config().lock()
  config.judge.rubric = "{completion}"
  config.judge.verdicts.maybe = 0.5
  config.judge.service.options.seed = 1
  with pytest.raises(AttributeError, match="stepz"):
    config.judge.service.stepz = 1


def test_settings_of_a_critic_are_there_if_there_is_one():
  assert {"critic", "value"} <= {*config_lib.default_config("ppo")}
  config = config_lib.default_config("grpo")
  for name in ("critic.trunk", "value.steps"):
    problem = overrides.complaint(config, name, str)
    assert "Algorithm 'grpo' has no critic; choose one" in problem
  config.critic = config_lib.default_config("ppo").critic
  config.critic.num_updates = 2
  with pytest.raises(ValueError, match=r"critic was set.*'grpo' has no critic"):
    config_lib.resolve(config)


@pytest.mark.parametrize("name", NAMES)
def test_json_brings_the_run_back(name):
  config = config_lib.default_config(name)
  config.profile_steps = (2, 3)
  config.data.task_options = {"min_len": 2}
  again = ml_collections.ConfigDict(json.loads(config.to_json()))
  assert config_lib.resolve(again) == config_lib.resolve(config)


def test_placeholders_keep_their_type():
  config = config_lib.default_config()
  assert config.mesh.data is None
  with pytest.raises(TypeError):
    config.mesh.data = "many"
  with pytest.raises(TypeError):
    config.sampling.top_p = "high"


def test_algorithm_config_takes_fields_and_refuses_others():
  config = config_lib.algorithm_config("gspo", clip_high=0.1)
  assert config.name == "gspo"
  assert config.clip_high == 0.1
  assert config.clip_low == 3e-4
  with pytest.raises(KeyError, match=r"'gspo' has no field 'clip_hi'.*clip_h"):
    config_lib.algorithm_config("gspo", clip_hi=0.1)
  with pytest.raises(KeyError, match="Did you mean 'gspo'"):
    config_lib.algorithm_config("gsp")


# --- sizes -------------------------------------------------------------------


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (
      {"num_prompts": 4, "group_size": 3, "num_minibatches": 5},
      "4 × 3 = 12 rows; num_minibatches 5, each of 2.4 rows;",
    ),
    (
      {"num_prompts": 4, "group_size": 4, "micro_batch_size": 3},
      "4 × 4 = 16 rows; num_minibatches 1, each of 16 rows;",
    ),
    (
      {"num_prompts": 4, "group_size": 4, "micro_batch_size": 32},
      "micro-batches of 32 rows",
    ),
    ({"num_prompts": 4, "micro_batch_size": 0}, "micro-batches of 0 rows"),
  ],
)
def test_sizes_that_do_not_divide_print_the_equation(fields, message):
  phase = phase_lib.RlConfig(**{"group_size": 1, **fields})
  with pytest.raises(ValueError, match="do not fit together") as caught:
    phase.check("rl")
  text = str(caught.value)
  assert message in text
  assert (
    "num_prompts × group_size = num_minibatches × (a whole number of) ×"
    " micro_batch_size" in text
  )
  assert "Change config.rl.num_prompts, group_size" in text


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
  st.integers(1, 64),
  st.integers(1, 32),
  st.integers(1, 8),
  st.integers(1, 5000),
  st.sampled_from(["cpu", "gpu", "tpu"]),
)
def test_automatic_micro_batches_divide(prompts, group, parts, length, backend):
  slots = length // 2, length - length // 2
  phase = phase_lib.RlConfig(
    num_prompts=prompts * parts, group_size=group, num_minibatches=parts
  )
  size = config_lib.micro_batch_size(phase, *slots, backend)
  minibatch = prompts * group
  assert 1 <= size <= minibatch
  assert minibatch % size == 0
  dataclasses.replace(phase, micro_batch_size=size).check("rl")
  if backend != "cpu":
    assert size == minibatch
  lengths = config_lib.lengths(phase, slots[1])
  assert sorted(lengths, reverse=True) == list(lengths)
  assert all(16 <= n < slots[1] for n in lengths)
  assert len(lengths) <= 3
  fixed = dataclasses.replace(phase, micro_batch_size=1)
  assert config_lib.micro_batch_size(fixed, *slots, backend) == 1


# --- files -------------------------------------------------------------------


def _differing(path: pathlib.Path) -> list[str]:
  """One algorithm of each sort that files ask for, and those a file names."""
  sorts = {}
  for name in NAMES:
    entry = algorithms.get_algorithm(name)
    sizes = entry.min_group_size, entry.max_group_size
    losses = entry.policy_loss is None, entry.critic_loss is None
    clips = hasattr(entry.config_class, "clip_high")
    sorts.setdefault((*sizes, *losses, clips), name)
  text = path.read_text("utf-8")
  return [x for x in NAMES if x in sorts.values() or f'"{x}"' in text]


@pytest.mark.parametrize(
  ("path", "name"),
  [
    # A file with GRPO, an algorithm with the quickstart, and, slow, a file with
    # an algorithm of each sort.
    pytest.param(
      path,
      name,
      id=f"{path.stem}-{name}",
      marks=()
      if name == "grpo" or path.stem == "quickstart"
      else pytest.mark.slow,
    )
    for path in sorted((_ROOT / "configs").glob("*.py"))
    for name in (NAMES if path.stem == "quickstart" else _differing(path))
  ],
)
def test_every_config_file_resolves_for_every_algorithm(path, name):
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config = module.get_config(name)
  if config.data.source == "jsonl" and not config.data.train_path:
    config.data.train_path = "mine.jsonl"  # Left to the user.
  run = config_lib.resolve(config)
  assert run.algorithm[0] == name
  assert run.phases


@pytest.mark.parametrize(
  ("number", "slots", "lengths"),
  [
    (1, 256, ()),
    (4, 256, (128, 64, 32)),
    (7, 256, (184, 128, 88, 64, 48, 32)),
    (4, 100, (48, 24, 16)),
    (4, 12, ()),
  ],
)
def test_lengths_go_down_to_an_eighth(number, slots, lengths):
  phase = phase_lib.RlConfig(num_lengths=number)
  assert config_lib.lengths(phase, slots) == lengths
