"""Rollouts that are cut, and go on later, on several devices as on one."""

import jax
import pytest

from grpo_jax.training import loop
from tests.training import many_test, stale_test


def get_config(num_devices):
  config = stale_test.get_config()
  config.rl.num_prompts = 8
  config.rl.steps = 4
  config.rl.partial_len = 3
  config.sampling.max_new_tokens = 6
  config.mesh.data = num_devices
  return config


@pytest.mark.slow
def test_eight_devices_are_as_one(tmp_path):
  counts = 1, jax.device_count()
  for count in counts:
    loop.train(get_config(count), tmp_path / str(count))
  one, many = (tmp_path / str(count) for count in counts)
  many_test.assert_close_run(many, one)
  last = many_test.rows(many)[-1]
  assert last["staleness/max"] == 1
  assert last["gradient_norm"] > 0
