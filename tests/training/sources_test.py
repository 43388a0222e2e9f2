"""Runs on each source of text.

A run that is stopped on a stream of lines is in tests/training/resume_test.py,
and a stream of each source goes on where it was in
tests/training/problem/records_test.py.
"""

import pytest

from grpo_jax.training import loop
from grpo_jax.training.runtime import log
from tests.training import sources_config
from tests.training.problem import records_test


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({*records_test.KINDS} - {"streaming"}))
def test_a_run_learns_from_each_source(kind, tmp_path, monkeypatch):
  settings = records_test.settings_of(kind, tmp_path, monkeypatch)
  config = sources_config.get_config(kind)
  config.data.train_path = settings.get("train_path", "")
  for phase in config.phases:
    config[phase].steps = 2
  assert loop.train(config, tmp_path / "run").step == 2 * len(config.phases)
  lines = log.read_lines(tmp_path / "run" / log.METRICS)
  assert len({line["loss"] for line in lines if "loss" in line}) > 1
