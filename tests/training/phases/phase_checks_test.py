"""Tests of the checks before a phase is made."""

import dataclasses
import types

import pytest
from jax.sharding import AbstractMesh

from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import build
from grpo_jax.training.runtime import sharding

MESH = AbstractMesh((1, 1, 1, 2), sharding.AXES)


@pytest.mark.parametrize(
  ("algorithm", "num_prompts", "num_minibatches", "complaint"),
  [
    ("dpo", 32, 2, None),
    ("dpo", 16, 2, r"32 rows .*16 device.*whole groups of 4 .*'dpo' couples"),
    ("grpo", 16, 4, None),
    ("grpo", 16, 8, r"num_minibatches=8: .* 8 rows .*16 device\(s\) .*needed"),
    ("grpo", 24, 1, r"num_prompts=24 does not split over the 16 devices"),
  ],
)
def test_devices_have_equal_parts_of_a_minibatch_or_it_is_refused(
  algorithm, num_prompts, num_minibatches, complaint
):
  given = config_lib.default_config(algorithm)
  given.phases = ("rl",)
  given.rl.group_size = 4
  given.rl.num_prompts = num_prompts
  given.rl.num_minibatches = num_minibatches
  config = config_lib.resolve(given)
  mesh = AbstractMesh((2, 4, 2, 2), sharding.AXES)
  if complaint is None:
    return build.rows(config, "rl", mesh)
  with pytest.raises(ValueError, match=complaint):
    build.rows(config, "rl", mesh)


@pytest.mark.parametrize("split", [False, True])
def test_positions_split_over_the_devices_or_are_refused(split):
  given = config_lib.default_config("grpo")
  given.phases = ("rl",)
  config = config_lib.resolve(given)
  model = dataclasses.replace(config.model, split_positions=split)
  config = dataclasses.replace(config, model=model)

  def check(max_new_tokens):
    problem = types.SimpleNamespace(
      max_new_tokens=max_new_tokens,
      reward=types.SimpleNamespace(asks_host=False),
      sessions=None,
    )
    build.devices(config, problem, "rl", MESH)

  check(6)
  if not split:
    return check(7)
  with pytest.raises(ValueError, match=r"7 tokens .*tensor=2.*max_new_tokens"):
    check(7)


@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_gradient_steps_without_a_ratio_are_told(name, caplog):
  config = config_lib.default_config(name)
  config.rl.num_minibatches = 4
  phase = config_lib.resolve(config).section("rl")
  algorithm = algorithms.get_algorithm(name)
  once = dataclasses.replace(phase, num_minibatches=1)
  build.gradient_steps("rl", once, algorithm)
  assert not caplog.records
  build.gradient_steps("rl", phase, algorithm)
  said = [record.getMessage() for record in caplog.records]
  if name in ("reinforce", "remax", "opo", "gpg"):
    assert (
      f"{name!r} has no ratio, so nothing corrects the last 3 of the 4"
      in said[0]
    )
  else:
    assert not said
