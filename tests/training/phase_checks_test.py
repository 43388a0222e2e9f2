"""What has to fit together before a phase is made."""

import dataclasses
import types

import pytest
from jax.sharding import AbstractMesh

from grpo_jax import algorithms
from grpo_jax.training import config as config_lib
from grpo_jax.training import phase_checks, sharding

MESH = AbstractMesh((1, 1, 1, 2), sharding.AXES)


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
      judge=types.SimpleNamespace(asks_host=False),
      sessions=None,
    )
    phase_checks.devices(config, problem, "rl", MESH)

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
  phase_checks.gradient_steps("rl", once, algorithm)
  assert not caplog.records
  phase_checks.gradient_steps("rl", phase, algorithm)
  said = [record.getMessage() for record in caplog.records]
  if name in ("reinforce", "remax", "opo", "gpg"):
    assert (
      f"{name!r} has no ratio, so nothing corrects the last 3 of the 4"
      in said[0]
    )
  else:
    assert not said
