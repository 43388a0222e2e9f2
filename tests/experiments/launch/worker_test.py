"""worker.sh on a folder that plays the home of a TPU VM."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest

from tests.experiments import command
from tests.experiments.launch import fake_gcloud

_SCRIPT = "experiments/launch/worker.sh"


@pytest.fixture
def worker(cloud):
  """Runs worker.sh with arguments; returns the state that it prints."""
  home = cloud.folder / "vms/node/0"
  script = home / "grpo_jax_runs/sort/code" / _SCRIPT
  script.parent.mkdir(parents=True)
  shutil.copy(command.ROOT / _SCRIPT, script)
  (home / "bin").mkdir()
  (home / "bin/python3").write_text(fake_gcloud.PYTHON)
  (home / "bin/python3").chmod(0o755)

  def run(*arguments: str) -> str:
    out = subprocess.run(
      ["bash", str(script), *arguments],
      env=os.environ | {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin:/bin"},
      stdout=subprocess.PIPE,
      text=True,
      check=True,
    ).stdout
    assert out.startswith("grpo_jax worker ")
    return " ".join(out.split()[3:])

  run.home = home / "grpo_jax_runs/sort"
  return run


def _wait_until(condition) -> None:
  deadline = time.monotonic() + 30
  while not condition():
    assert time.monotonic() < deadline
    time.sleep(0.02)


def test_a_run_from_start_to_stop(cloud, worker):
  cloud.set(plan=["wait", 0], lives=[])
  assert worker("status") == "absent"
  assert worker("start", "tpu", "--config=a.py:b", "two words") == "running"
  log = worker.home / "log"
  _wait_until(lambda: log.exists() and "training: wait\n" in log.read_text())
  # A session of its own outlives that of ssh.
  pid = int((worker.home / "pid").read_text())
  assert os.getsid(pid) == pid
  # Another start is not another program.
  assert worker("start", "tpu", "--config=c.py") == "running"
  assert worker("stop") == "exited 143"
  assert worker("status") == worker("stop") == "exited 143"
  assert cloud.starts() == ["--config=a.py:b two words"]
  text = log.read_text()
  assert "experiments.train --config=a.py:b two words\n" in text
  assert text.endswith("training: wait\nsaved\n")
  worker("start", "tpu", "--secrets=p,A=b", "--config=d.py", "two words")
  _wait_until(lambda: worker("status") == "exited 0")
  assert cloud.starts()[1:] == ["--config=d.py two words"]
  assert "secrets: p,A=b\n" in log.read_text()


def test_installation_that_fails_is_not_an_end_of_the_program(cloud, worker):
  cloud.set(plan=[0], lives=[])
  (cloud.folder / "no-network").touch()
  worker("start", "tpu")
  _wait_until(lambda: worker("status") == "exited 69")
  assert cloud.starts() == []


def test_program_that_vanished_is_lost(cloud, worker):
  cloud.set(plan=["wait"], lives=[])
  worker("start", "tpu")
  _wait_until(cloud.starts)
  pid = int((worker.home / "pid").read_text())
  os.killpg(pid, 9)
  _wait_until(lambda: not pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
  assert worker("status") == "lost"
