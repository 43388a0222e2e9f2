"""Runs as one program, each on a device of its own."""

import jax
import pytest

from grpo_jax.training import loop, many
from tests.training import many_test


@pytest.mark.slow
def test_eight_runs_on_eight_devices_are_those_on_one(tmp_path, capsys):
  configs = [many_test.make_config(seed=seed) for seed in range(8)]
  for config in configs:
    config.mesh.data = jax.device_count()
  workdirs = [tmp_path / str(seed) for seed in range(8)]
  results = many.train(configs, workdirs)
  assert "8 runs as one program on 8 devices" in capsys.readouterr().out
  for seed in (0, 5):
    config = many_test.make_config(seed=seed)  # On one device.
    alone = tmp_path / f"alone{seed}"
    assert loop.train(config, alone) == results[seed]
    many_test.assert_close_run(workdirs[seed], alone)
