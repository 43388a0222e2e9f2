"""What has to fit together before a phase is made."""

import dataclasses
import types

import pytest
from jax.sharding import AbstractMesh

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
