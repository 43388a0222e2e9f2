"""Runs that differ in numbers are one program, and compute what they should."""

import collections
import contextlib
import dataclasses
import pathlib
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from grpo_jax import algorithms
from grpo_jax.algorithms.contract import cases
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training import loop, many
from grpo_jax.training import run as run_lib
from grpo_jax.training.phases import checkpointed, executors, optimizers
from grpo_jax.training.runtime import hyperparameters, jit
from tests.experiments import tiny_config
from tests.training import tiny

_DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
X = np.float32([0.1, 0.5, 2.0])


def of(value, name="rate"):
  return hyperparameters.TracedNumber(name, (value,))


def text(function, *arguments):
  """The program that a function is lowered to."""
  return jit.Program(function).lower(*arguments).as_text()


def in_a_loop(number, x):
  return jax.lax.scan(lambda total, y: (total * number + y, y), x[0], x)[0]


def in_a_branch(number, x):
  return jax.lax.cond(x[0] > 0, lambda y: y * number, lambda y: y, x)


def in_a_gradient(number, x):
  return jax.grad(lambda y: (jnp.tanh(y) ** number).sum())(x)


def in_a_gradient_that_is_run_again(number, x):
  return jax.grad(jax.checkpoint(lambda y: (jnp.exp(y) * number).sum()))(x)


FUNCTIONS = {
  "product": lambda number, x: x * number,
  "formula": lambda number, x: x * (1 - number) + number**2 / 3,
  "range": lambda number, x: jnp.clip(x, 1 - number, 1 + number),
  "choice": lambda number, x: jnp.where(x > number, number, x),
  "list": lambda number, x: x * jnp.asarray((number, 1 / number, 1.0)),
  "jit": lambda number, x: jax.jit(lambda y: y * number)(x),
  "vmap": lambda number, x: jax.vmap(lambda y: y * number)(x),
  "loop": in_a_loop,
  "branch": in_a_branch,
  "gradient": in_a_gradient,
  "gradient that is run again": in_a_gradient_that_is_run_again,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_is_an_input_wherever_it_meets_an_array(name):
  function = FUNCTIONS[name]
  one, other = (
    text(lambda x, v=value: function(of(v), x), X) for value in (0.2, 0.3)
  )
  assert one == other
  actual = jit.Program(lambda x: function(of(0.3), x))(X)
  expected = jax.jit(lambda x: function(0.3, x))(X)
  np.testing.assert_allclose(actual, expected, rtol=5e-7)


@pytest.mark.slow
@hypothesis.given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
@hypothesis.settings(max_examples=25, deadline=None)
def test_formulas_of_numbers_are_computed_in_float64(a, b):
  def function(x):
    return x * ((1 - of(a, "a")) / (3 * of(b, "b"))) + of(a, "a")

  program = jit.Program(function)
  program.lower(X)
  assert program.names == ("truediv(sub(1, a), mul(3, b))", "a")
  floats, _ = program.inputs
  assert list(floats[:2]) == [np.float32((1 - a) / (3 * b)), np.float32(a)]


def test_where_python_branches_the_value_decides():
  def function(number, x):
    return x * number if number > 0.25 else x

  texts = [
    text(lambda x, v=value: function(of(v), x), X) for value in (0.2, 0.3, 0.4)
  ]
  assert texts[0] != texts[1] == texts[2]


def test_what_finds_no_input_is_a_constant():
  slots = hyperparameters.Inputs(num_floats=2, num_ints=0)
  with slots.reading(((jnp.float32(7), jnp.float32(8)), ())):
    assert jnp.asarray(of(0.25, "a")) == 7
    # Of the same name, and another number.
    assert jnp.asarray(of(0.5, "a")) == 0.5
    assert jnp.asarray(of(0.5, "b")) == 8
    assert jnp.asarray(of(0.75, "c")) == 0.75
    assert jnp.asarray(of(3, "count")) == 3
  slots = hyperparameters.Inputs(num_floats=2, num_ints=0)
  with slots.reading(((jnp.float32(7), jnp.float32(8)), ())):
    assert jnp.asarray(of(0.25, "a")) == 7
  assert slots.filled() == ((0.25, 0.0), ())
  with slots.reading(((jnp.float32(7), jnp.float32(8)), ())):
    assert jnp.asarray(of(0.25, "a")) == 7
    assert jnp.asarray(of(0.5, "b")) == 0.5  # Nobody would fill it.
  assert jnp.asarray(of(0.25, "a")) == 0.25  # No program is traced.


def test_a_program_writes_over_what_it_is_given():
  program = jit.Program(lambda x, y: x + of(0.5) * y, donate=0)
  x = jnp.ones(3)
  np.testing.assert_array_equal(program(x, jnp.ones(3)), [1.5] * 3)
  assert x.is_deleted()
  # Another shape is another program with the same numbers.
  np.testing.assert_array_equal(program(jnp.ones(2), jnp.ones(2)), [1.5] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_schedules_differ_in_numbers_and_whole_numbers(schedule):
  count = np.int32(7)

  def rate_of(peak, warmup, steps, final):
    return phase_lib.OptimizerConfig(
      learning_rate=peak,
      warmup_steps=warmup,
      schedule=schedule,
      final_fraction=final,
    ), steps

  def program(config, steps):
    config = jit.numbers("rl.optimizer", config)
    steps = jit.number("rl.steps", steps)
    return jit.Program(
      lambda n: jnp.asarray(optimizers.schedule(config, steps)(n))
    )

  # Warm-ups of one step, or longer than the phase, are nothing special.
  chosen = [
    rate_of(0.1, 5, 20, 0.1),
    rate_of(0.3, 9, 50, 0.2),
    rate_of(0.3, 1, 50, 0.2),
    rate_of(0.3, 9, 5, 0.2),
  ]
  texts = {program(*each).lower(count).as_text() for each in chosen}
  assert len(texts) == 1
  for config, steps in chosen:
    made = program(config, steps)
    expected = jax.jit(optimizers.schedule(config, steps))
    for n in np.int32([0, 4, 12, 30]):
      np.testing.assert_allclose(made(n), expected(n), rtol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.each(algorithms.ALGORITHMS))
def test_an_algorithm_is_one_program_for_all_numbers(name):
  algorithm = algorithms.get_algorithm(name)
  given = config_lib.algorithm_config(name, kl_coef=0.1)
  arrays = cases.arrays_of(cases.make_case())

  def lowered(settings):
    fields = {k: v for k, v in settings.items() if k != "name"}
    config = jit.numbers("algorithm", algorithms.make_config(name, **fields))
    program = jit.Program(
      lambda x: cases.terms_of(algorithm, config, x, True, None, 0.3)
    )
    return program.lower(arrays).as_text(), program.names

  changed = {
    key: value * 0.9 if type(value) is float and value not in (0, 1) else value
    for key, value in given.items()
    if f"algorithm.{key}" not in hyperparameters.CONSTANT
  }
  one, names = lowered(given)
  assert one == lowered(changed)[0]
  assert names


def other_numbers(config):
  """The config with every number changed that is neither 0 nor 1."""
  config = config.copy_and_resolve_references()

  def walk(group, name):
    for key, value in list(group.items()):
      full = f"{name}.{key}"
      if isinstance(value, ml_collections.ConfigDict):
        if value.get("name") != "epochs":  # Which refuses numbers of others.
          walk(value, full)
      elif type(value) is float and value not in (0.0, 1.0):
        if full not in hyperparameters.CONSTANT:
          group[key] = 0.9 * value
      elif key in ("steps", "warmup_steps") and value > 0:
        group[key] = value + 1

  groups = ["algorithm", "sampling"]
  if config.algorithm.name == "ppo":
    groups.append("critic")
  if "reward_model" in config.rewards.functions:
    groups.append("reward_model")
  for name in config.phases:
    if config[name].kind in ("rl", "supervised"):
      groups.append(name)
  for name in groups:
    walk(config[name], name)
  config.rewards.weights = tuple(0.9 * w for w in config.rewards.weights)
  config.seed = 5
  return config


def phase_programs(config):
  """The program of each phase, as text, and the names of its numbers."""
  run = tiny.assembled(config)
  with jax.set_mesh(run.mesh), contextlib.closing(run.problem):
    start = checkpointed.abstract_start(run.policy, run.config.seed)
    found = {}
    for index, name in enumerate(run.config.phases):
      phase = run.phases[index].phase
      step = step_lib.supervised_step
      if phase.sampler is not None:
        step = step_lib.fused_step
      program = executors.jit_step(run.mesh, step, phase)
      stream = run_lib.make_stream(run.config, run.problem, run.mesh, index)
      batch = next(stream)
      state = checkpointed.abstract_state(run.phases[: index + 1], start)
      lowered = program.lower(state, many._arrays(batch))
      found[name] = lowered.as_text(), program.names
  return found


@pytest.mark.slow
def test_a_warm_up_is_one_program_for_all_numbers():
  config = tiny_config.get_config("grpo")
  config.phases = ("sft",)
  one = phase_programs(config)
  assert one == phase_programs(other_numbers(config))
  assert "config.sft.optimizer.clip_norm" in one["sft"][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "agent", "judged"])
def test_a_phase_is_one_program_for_all_numbers(name):
  config = tiny_config.get_config(name)
  config.sampling.temperature = 0.8
  reward = config.rewards.functions[0]
  config.rewards.schedules = {reward: ((0, 1.0), (5, 0.5))}
  one = phase_programs(config)
  changed = other_numbers(config)
  changed.rewards.schedules = {reward: ((0, 0.9), (7, 0.4))}
  assert one == phase_programs(changed)
  _, names = one["rl"]
  for setting in (
    "config.sampling.temperature",
    f"config.rewards.schedules.{reward}.1.step",
    "config.rl.optimizer.clip_norm",
    "sub(1, config.rl.ema_decay)",
  ):
    assert setting in names


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "agent", "judged"])
def test_numbers_widen_nothing_in_a_bfloat16_model(name, monkeypatch):
  """Each array is as narrow as with plain numbers in their place."""
  config = tiny_config.get_config(name)
  config.model.dtype = config.model.param_dtype = "bfloat16"
  config.model.remat = "full"
  config.sampling.temperature = 0.8
  config.algorithm.importance_mode = "truncate"
  if name == "grpo":
    config.model.lora_rank = 2

  def narrow():
    return {
      phase: collections.Counter(
        re.findall(r"= \W*([\w.]+).*tensor<(\d\S+bf16)>$", text, re.MULTILINE)
      )
      for phase, (text, _) in phase_programs(config).items()
    }

  found = narrow()
  assert all(sum(kinds.values()) > 100 for kinds in found.values())
  monkeypatch.setattr(jit, "number", lambda name, value: value)
  monkeypatch.setattr(jit, "schedule", lambda name, points: points)
  monkeypatch.setattr(jit, "with_inputs", lambda config, phase: config)
  assert narrow() == found


@pytest.mark.slow
def test_a_run_with_other_numbers_compiles_nothing(tmp_path):
  """Nor does one that is logged, evaluated and saved otherwise."""
  config = tiny_config.get_config("grpo")
  config.log.trackers = ()
  config.sampling.temperature, config.eval.temperature = 0.8, 0.5
  config.phases = ("rl",)
  config.rl.steps = 2
  config.rl.optimizer.warmup_steps = 1
  config.algorithm.kl_coef, config.algorithm.entropy_coef = 0.1, 0.01
  changed = other_numbers(config)
  changed.eval.temperature = 0.6
  changed.eval.every = 1
  changed.checkpoint.every = 2
  changed.log.num_samples = 7
  changed.log.samples_every = 2
  changed.log.traces_every = changed.log.trace_groups = 1
  folder = tmp_path / "programs"

  def compiled():
    # That which takes the rows to log is compiled in milliseconds.
    names = sorted(path.name for path in folder.glob("jit_*-cache"))
    return [n for n in names if "fused_step" in n or "complete" in n]

  before = jax.config.jax_compilation_cache_dir
  compilation_cache.reset_cache()
  compilation_cache.set_cache_dir(str(folder))
  try:
    loop.train(config, tmp_path / "one")
    first = compiled()
    loop.train(changed, tmp_path / "other")
  finally:
    compilation_cache.reset_cache()
    jax.config.update("jax_compilation_cache_dir", before)
  assert len(first) == 2
  assert compiled() == first
  one, other = (
    (tmp_path / name / "metrics.jsonl").read_text() for name in ("one", "other")
  )
  assert one != other


@pytest.mark.slow
def test_the_page_names_the_settings_that_are_inputs():
  page = (_DOCS / "speed.md").read_text(encoding="utf-8")
  _, _, table = page.partition("These settings are inputs:")
  table, *_ = table.split("A program can depend")
  rows = {}
  for line in table.strip().splitlines()[2:]:
    groups, settings = line.strip("|").split("|")
    for group in re.findall("`(\\w+)`", groups) or [groups.strip()]:
      rows[group] = set(re.findall("`(\\w+)`", settings))

  def inputs(name, settings):
    return {
      field.name
      for field in dataclasses.fields(settings)
      if isinstance(
        getattr(jit.numbers(name, settings), field.name),
        hyperparameters.TracedNumber,
      )
    }

  rule = inputs("rl.optimizer", phase_lib.OptimizerConfig())
  groups = {"optimizer", "schedule", "correction"}
  assert rows["each phase"] - groups == rule | inputs(
    "rl", phase_lib.RlConfig(ema_decay=0.5)
  )
  draws = config_lib.SamplingConfig(temperature=0.7, top_p=0.9, min_p=0.1)
  assert rows["sampling"] == inputs("sampling", draws)
  for name, algorithm in algorithms.ALGORITHMS.items():
    floats = {
      field.name
      for field in dataclasses.fields(algorithm.config_class)
      if type(getattr(algorithm.config_class(), field.name)) is float
    }
    found = inputs("algorithm", algorithm.config_class())
    assert found == floats - rows["algorithm"], name
