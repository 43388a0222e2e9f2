"""Runs on each source of text; those that are killed end with the same bytes.

A run that is killed on files of lines is in tests/training/resume_test.py, and
a stream of each source goes on where it was in
tests/training/problem/records_test.py.
"""

import json
import time

import pytest

from grpo_jax.training import loop
from grpo_jax.training.runtime import log
from tests.experiments import command
from tests.training import resume_test, sources_config
from tests.training.problem import records_test

_CONFIG = command.ROOT / "tests/training/sources_config.py"


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


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(tmp_path):
  rows = [{"prompt": f"{i}", "completion": f"is {i}"} for i in range(10)]
  path = records_test.write_lines(tmp_path, *rows)

  def start(workdir):
    return command.start(
      "train",
      f"--config={_CONFIG}:streaming",
      f"--workdir={workdir}",
      f"--config.data.train_path={path}",
    )

  def finish(workdir):
    with start(workdir) as process:
      _, err = process.communicate()
    assert process.returncode == 0, err
    return resume_test.everything(workdir)

  whole = finish(tmp_path / "whole")
  broken = tmp_path / "broken"
  for count in (5, 13):  # Behind the first checkpoint, and in each phase.
    due = resume_test.lines(count)
    with start(broken) as process:
      while not due(broken):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
      process.kill()
    assert (broken / "checkpoints").exists()
  found = finish(broken)
  resume_test.assert_same(found, whole)
  lines = (broken / "metrics.jsonl").read_text().splitlines()
  losses = {json.loads(line).get("loss") for line in lines}
  assert len(losses) > 14  # Most numbers move, so other data would be seen.
