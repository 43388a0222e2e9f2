"""The supervisor of TPU VMs against a gcloud that plays a cloud."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

import pytest

from experiments.launch import tpu_vm
from tests.experiments import command

_PLACE = ("--name=sort", "--project=my-project", "--zone=us-central1-a")
_RUN = (
  "run",
  *_PLACE,
  "--topology=v5e-16",
  "--spot",
  "--workdir=gs://bucket/sort",
  "--config=configs/quickstart.py",
  "--poll_s=0.02",
  "--max_restarts=2",
)
_WAITING, _ACTIVE = "WAITING_FOR_RESOURCES", "ACTIVE"
_UP = [[_ACTIVE]]
# Looks of a life: one before the start, some while the program runs.
_PREEMPTED = [_WAITING, _ACTIVE, _ACTIVE, _ACTIVE, "SUSPENDING", "SUSPENDED"]

pytestmark = pytest.mark.usefixtures("repository")


def _launch(*arguments: str) -> int:
  return tpu_vm.main(["tpu_vm", *arguments])


def test_preempted_run_is_started_again_on_another_slice(cloud, capfd):
  cloud.set(plan=["wait", 0], lives=[_PREEMPTED, [_WAITING, _ACTIVE]])
  assert _launch(*_RUN, "--", "--config.rl.steps=5") == 0
  assert cloud.verbs("create", "delete") == ["create", "delete", "create"]
  for worker in (0, 1):
    assert (
      cloud.starts(worker)
      == [
        "--config=configs/quickstart.py --workdir=gs://bucket/sort"
        " --config.rl.steps=5"
      ]
      * 2
    )
  out = capfd.readouterr().out
  events = [
    "sort is WAITING_FOR_RESOURCES",
    "sort is ACTIVE",
    "sending commit ",
    "workers: 2 running",
    "sort is SUSPENDING",
    "lost the slice: SUSPENDED",
    "restart 1 of 2",
    "sending commit ",
    "experiments.train ended with exit status 0",
    "training: 0",  # The end of the log.
  ]
  where = -1
  for event in events:
    where = out.index(event, where + 1)
  times = re.findall(r"(?m)^(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ) ", out)
  assert len(times) >= len(events) - 1
  assert times == sorted(times)


def _unprinted(cloud, capsys, *arguments: str) -> list[list[str]]:
  """Runs, and returns the calls of gcloud that a dry run does not print."""
  assert (
    _launch(
      *_RUN, *arguments, "--dry_run", "--", "--config.log.wandb_name='1 2'"
    )
    == 0
  )
  lines = capsys.readouterr().out.splitlines()
  assert not (cloud.folder / "calls.jsonl").exists()
  printed = [shlex.split(line, comments=True) for line in lines]
  assert _launch(*_RUN, *arguments, "--", "--config.log.wandb_name='1 2'") == 0
  return [call for call in cloud.calls() if call not in printed]


def test_dry_run_prints_what_a_run_executes(cloud, capsys):
  cloud.set(plan=[0], lives=[["FAILED"], [_ACTIVE]])
  assert _unprinted(cloud, capsys) == []


@pytest.mark.slow
def test_dry_run_prints_what_a_run_on_two_slices_executes(cloud, capsys):
  cloud.set(plan=["wait", 0], lives=[_PREEMPTED, [_ACTIVE]])
  assert _unprinted(cloud, capsys, "--slices=2") == []
  assert [len(cloud.starts(worker)) for worker in range(4)] == [2] * 4


@pytest.mark.parametrize("status", [1, 2, 3])
def test_end_of_the_program_is_the_end_of_the_run(cloud, status):
  cloud.set(plan=[status], lives=_UP)
  assert _launch(*_RUN) == status
  assert len(cloud.starts()) == 1
  assert cloud.verbs("create", "delete") == ["create"]


def test_stopped_program_is_started_again_on_the_same_slice(cloud, capfd):
  cloud.set(plan=[143, 134, 0], lives=_UP)
  assert _launch(*_RUN, "--max_restarts=1") == 3
  assert len(cloud.starts()) == 2
  assert cloud.verbs("create", "delete") == ["create"]
  assert "gave up after 1 restarts" in capfd.readouterr().out


@pytest.mark.slow
def test_failed_request_is_made_again_and_explained(cloud, capfd):
  cloud.set(plan=[0], lives=[[_WAITING, "FAILED"], [_ACTIVE]])
  assert _launch(*_RUN) == 0
  assert cloud.verbs("create", "delete") == ["create", "delete", "create"]
  assert "lost the slice: FAILED no capacity" in capfd.readouterr().out


@pytest.mark.slow
def test_vm_that_is_gone_is_noticed_while_the_request_seems_active(cloud):
  lives = [[_ACTIVE, _ACTIVE, _ACTIVE, "ACTIVE/PREEMPTED"], [_ACTIVE]]
  cloud.set(plan=["wait", 0], lives=lives)
  assert _launch(*_RUN) == 0
  assert cloud.verbs("create", "delete") == ["create", "delete", "create"]


@pytest.mark.slow
def test_vm_that_never_answers_again_is_replaced(cloud, capfd):
  lives = [[_ACTIVE, _ACTIVE, _ACTIVE, "ACTIVE/SILENT"], [_ACTIVE]]
  cloud.set(plan=["wait", 0], lives=lives)
  assert _launch(*_RUN) == 0
  assert cloud.verbs("create", "delete") == ["create", "delete", "create"]
  assert "lost the slice: a worker does not answer" in capfd.readouterr().out


@pytest.mark.slow
def test_slice_that_somebody_deleted_is_not_requested_again(cloud, capfd):
  cloud.set(plan=["wait"], lives=[[_ACTIVE, _ACTIVE, _ACTIVE, "GONE"]])
  assert _launch(*_RUN) == 3
  assert cloud.verbs("create", "delete") == ["create"]
  assert "was deleted by somebody" in capfd.readouterr().out


@pytest.mark.slow
def test_workers_that_wait_for_a_failed_one_are_stopped(cloud, capfd):
  cloud.set(plan=["wait"], plan_1=[1], lives=_UP)
  assert _launch(*_RUN) == 1
  out = capfd.readouterr().out
  assert "workers: 1 exited 1, 1 running" in out
  assert "stopping the workers that are left" in out
  assert re.search(r"(?m)^grpo_jax worker \S+ exited 143$", out)


@pytest.mark.slow
def test_failure_beside_a_preempted_worker_is_tried_again(cloud):
  cloud.set(plan=[143, 0], plan_1=[1, 0], lives=_UP)
  assert _launch(*_RUN) == 0


@pytest.fixture
def sigint():
  """SIGINT reaches what is started: a shell's background jobs ignore it."""
  handler = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("sigint")
def test_interrupted_supervisor_leaves_the_run_and_finds_it_again(cloud, capfd):
  cloud.set(plan=["wait"], lives=_UP)
  with subprocess.Popen(
    [sys.executable, "-m", "experiments.launch.tpu_vm", *_RUN],
    env=os.environ | {"PYTHONPATH": str(command.ROOT)},
    stdout=subprocess.PIPE,
    text=True,
  ) as first:
    while "workers: 2 running" not in first.stdout.readline():
      assert first.poll() is None
    first.send_signal(signal.SIGINT)
    assert first.wait() == 130
  before = len(cloud.calls())
  # Of the three looks to come, none reaches the workers.
  looks = json.loads((cloud.folder / "now.json").read_text())["looks"]
  life = [_ACTIVE] * looks + ["ACTIVE/SILENT"] * 3 + [_ACTIVE]
  (cloud.folder / "lives.json").write_text(json.dumps([life]))

  def end_it() -> None:
    # Four looks at the slice, three at the workers, two at the VM.
    while len(cloud.calls()) < before + 10:
      time.sleep(0.05)
    (cloud.folder / "go").touch()

  end = threading.Thread(target=end_it, daemon=True)
  end.start()
  assert _launch(*_RUN) == 0
  end.join()
  out = capfd.readouterr().out
  assert "no answer: " in out
  assert "the run is going on" in out
  assert "sending commit" not in out
  assert len(cloud.starts()) == 1


def test_single_steps(cloud, capfd):
  cloud.set(plan=["wait"], lives=_UP)
  assert _launch("create", *_PLACE, "--topology=v5e-16") == 0
  assert _launch("status", *_PLACE) == 0
  out = capfd.readouterr().out
  assert "sort is ACTIVE" in out
  assert len(re.findall(r"(?m)^grpo_jax worker \S+ absent$", out)) == 2
  assert _launch("delete", *_PLACE) == 0
  assert _launch("status", *_PLACE) == 0
  assert "sort is not there" in capfd.readouterr().out
  # What gcloud refuses is its message, and exit status 2.
  assert _launch("delete", *_PLACE) == 2
  err = capfd.readouterr().err
  assert "NOT_FOUND: sort" in err
  assert "error: exit status 1 of gcloud compute tpus queued-resources" in err


def test_missing_gcloud_is_explained(tmp_path, monkeypatch, capsys):
  (tmp_path / "bin").mkdir()
  monkeypatch.setenv("PATH", str(tmp_path / "bin"))
  assert _launch("status", *_PLACE) == 2
  message = capsys.readouterr().err
  assert message.startswith("error: gcloud is not installed")


def test_a_secret_is_made_once_and_its_value_is_in_no_command(
  cloud, capfd, monkeypatch
):
  cloud.set(plan=[0, 0], lives=[[_ACTIVE]])
  assert _launch(*_RUN, "--env=HF_TOKEN") == 2
  assert "HF_TOKEN is not set here" in capfd.readouterr().err
  monkeypatch.setenv("HF_TOKEN", "s3cret")
  assert _launch(*_RUN, "--env=HF_TOKEN") == 0
  assert (cloud.folder / "secrets/HF_TOKEN").read_text() == "s3cret"
  monkeypatch.delenv("HF_TOKEN")
  assert _launch(*_RUN, "--env=HF_TOKEN") == 0  # It is there.
  calls = (cloud.folder / "calls.jsonl").read_text()
  assert calls.count('"secrets", "create"') == 1
  assert "s3cret" not in calls + capfd.readouterr().out
