"""Runs on each source of text that are killed end with the bytes of others."""

import json
import time

import pytest

from tests.experiments import command
from tests.training import opening_test, resume_test

_CONFIG = command.ROOT / "tests/experiments/sources_config.py"


@pytest.mark.slow
@pytest.mark.parametrize("kind", opening_test.KINDS)
def test_a_killed_run_ends_with_the_same_bytes(kind, tmp_path, monkeypatch):
  settings = opening_test.settings_of(kind, tmp_path, monkeypatch)
  path = settings.get("train_path", "")
  if kind == "streaming":
    rows = [{"prompt": f"{i}", "completion": f"is {i}"} for i in range(10)]
    path = opening_test.write_lines(tmp_path, *rows)

  def start(workdir):
    return command.start(
      "train",
      f"--config={_CONFIG}:{kind}",
      f"--workdir={workdir}",
      f"--config.data.train_path={path}",
      environment={"TFDS_DATA_DIR": str(tmp_path)},
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
