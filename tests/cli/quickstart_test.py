"""The quickstart as users run it, at full size."""

import pytest

from grpo_jax.training.runtime import log
from tests.experiments import command


@pytest.mark.slow
def test_the_quickstart_learns(tmp_path, monkeypatch):
  """From at most half to at least 95 % of held-out problems right."""
  monkeypatch.delitem(command.ENVIRONMENT, "XLA_FLAGS", raising=False)
  status, out, err = command.run(
    "train", "--config=configs/quickstart.py", f"--workdir={tmp_path / 'run'}"
  )
  assert status == 0, err
  assert "PASS" in out
  lines = log.read_lines(tmp_path / "run" / log.METRICS)
  accuracy = [x["eval/accuracy"] for x in lines if "eval/accuracy" in x]
  assert accuracy[0] <= 0.5
  assert accuracy[-1] >= 0.95
