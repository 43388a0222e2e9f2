"""Runs of several processes, for real: on a CPU, over gloo.

Every run has four devices in all, so that every one computes the same program
on the same mesh, whoever has the devices.
"""

import collections
import dataclasses
import json
import pathlib
import re
import signal
import subprocess
import time

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from grpo_jax.training import checkpoints, hosts, metrics_log
from tests.experiments import command

pytestmark = pytest.mark.slow

CONFIG = f"--config={command.ROOT / 'tests/experiments/hosts_config.py'}"
TIMEOUT_S = 10.0  # Of the config.


@dataclasses.dataclass(frozen=True)
class Finished:
  """How the processes of a run ended, and who scored what."""

  workdir: pathlib.Path
  statuses: list[int]
  out: list[str]
  err: list[str]
  scored: list[list[str]]

  def metrics(self) -> list[dict]:
    return metrics_log.read_lines(self.workdir / metrics_log.METRICS)


def start(
  workdir: pathlib.Path,
  count: int,
  *arguments: str,
  devices: int = 4,
  kind: str = "both",
) -> list[subprocess.Popen]:
  workdir.mkdir(exist_ok=True)
  return command.start_all(
    count,
    devices // count,
    "train",
    f"{CONFIG}:{kind}",
    f"--workdir={workdir}",
    *arguments,
    environment={"SCORED": str(workdir / "scored")},
  )


def finish(
  workdir: pathlib.Path, processes: list[subprocess.Popen]
) -> Finished:
  results = command.finish_all(processes)
  by_pid = collections.defaultdict(list)
  scored = workdir / "scored"
  lines = scored.read_text("utf-8").splitlines() if scored.exists() else []
  for line in lines:
    pid, _, row = line.partition(" ")
    by_pid[int(pid)].append(row)
  return Finished(
    workdir,
    *map(list, zip(*results, strict=True)),
    [by_pid[process.pid] for process in processes],
  )


def succeed(workdir: pathlib.Path, count: int, *arguments, **options):
  finished = finish(workdir, start(workdir, count, *arguments, **options))
  assert finished.statuses == [0] * count, "\n".join(finished.err)
  return finished


def everything(workdir: pathlib.Path) -> dict[str, bytes]:
  """All that a finished run leaves and that no clock has a part in."""
  path = workdir / "checkpoints"
  device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  with ocp.training.Checkpointer(path) as checkpointer:
    step = checkpointer.latest.step
    arrays = checkpointer.load(
      step,
      jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        checkpointer.metadata(step).metadata,
      ),
    )
  result = {
    jax.tree_util.keystr(path): np.asarray(leaf).tobytes()
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
  }
  for name in (metrics_log.METRICS, metrics_log.SAMPLES):
    result[name] = (workdir / name).read_bytes()
  return result


def assert_same(actual: dict, expected: dict) -> None:
  assert actual.keys() == expected.keys()
  assert [k for k in expected if actual[k] != expected[k]] == []


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A run of so many processes that nobody disturbs."""
  results = {}

  def make(count: int, kind: str = "both") -> Finished:
    if (count, kind) not in results:
      workdir = tmp_path_factory.mktemp(f"{kind}{count}")
      results[count, kind] = succeed(workdir, count, kind=kind)
    return results[count, kind]

  return make


@pytest.mark.parametrize("count", [2, 4])
def test_processes_compute_what_one_does(run, count):
  one, several = run(1).metrics(), run(count).metrics()
  assert [line["step"] for line in several] == [1, 1, 2, 3, 4, 5]
  for expected, actual in zip(one, several, strict=True):
    assert expected.keys() == actual.keys()
    for name, value in expected.items():
      if isinstance(value, float):
        assert actual[name] == pytest.approx(value, rel=2e-5, abs=2e-6), name
      else:
        assert actual[name] == value, name


@pytest.mark.parametrize("count", [2, 4])
def test_each_process_scores_its_own_rows(run, count):
  scored = run(count).scored
  sizes = {len(rows) for rows in scored}
  assert len(sizes) == 1  # As many each,
  together = [row for rows in scored for row in rows]
  assert sorted(together) == sorted(run(1).scored[0])  # and none twice.


@pytest.mark.parametrize("tensor", [1, 2])
def test_each_process_plays_its_own_episodes(tmp_path, tensor):
  axes = f"--config.mesh.tensor={tensor}", "--config.model.num_kv_heads=2"
  one, two = (
    succeed(tmp_path / str(count), count, *axes, devices=2, kind="sessions")
    for count in (1, 2)
  )
  expected, actual = one.metrics(), two.metrics()
  assert [line["step"] for line in actual] == [0, 1, 2, 3, 4]
  for x, y in zip(expected, actual, strict=True):
    assert x.keys() == y.keys()
    for name, value in x.items():
      if isinstance(value, float):
        assert y[name] == pytest.approx(value, rel=2e-5, abs=2e-6), name
  assert actual[-1]["unscored"] == 0
  assert actual[-1]["reward/malformed"] > 0


def test_only_the_first_process_prints(run):
  finished = run(2)
  assert "of 2 processes" in finished.out[0]
  assert "held-out" in finished.out[0]
  # Gloo's threads write over one another.
  others = [
    line
    for line in finished.out[1].splitlines()
    if "[Gloo]" not in line and not line.isdigit()
  ]
  assert others == []
  assert finished.err[1] == ""


def test_processes_that_hold_the_same_rows_split_their_scoring(run, tmp_path):
  axes = ("--config.mesh.tensor=2", "--config.model.num_kv_heads=2")
  one = succeed(tmp_path / "one", 1, *axes, devices=2)
  two = succeed(tmp_path / "two", 2, *axes, devices=2)
  assert len(two.scored[0]) == len(two.scored[1])
  assert sorted(two.scored[0] + two.scored[1]) == sorted(one.scored[0])
  losses = [
    [line["loss"] for line in finished.metrics() if "loss" in line]
    for finished in (one, two)
  ]
  np.testing.assert_allclose(losses[1], losses[0], rtol=2e-5, atol=2e-6)


def test_processes_of_different_runs_refuse_to_work_together(tmp_path):
  results = command.finish_all(
    command.start_all(
      2,
      1,
      "train",
      f"{CONFIG}:long",
      f"--workdir={tmp_path / 'run'}",
      last=["--config.seed=1"],
    )
  )
  for process, (status, _, err) in enumerate(results):
    assert status == 2, err
    assert f"process {process} of 2 (host" in err
    assert "differ in config" in " ".join(err.split())
  assert not (tmp_path / "run").exists()


def wait_for_checkpoint(
  workdir: pathlib.Path, processes: list[subprocess.Popen]
) -> None:
  while not checkpoints.describe(workdir / "checkpoints").endswith("0."):
    ended = [process for process in processes if process.poll() is not None]
    assert not ended, [process.communicate() for process in ended]
    time.sleep(0.05)


def assert_continues(run, workdir: pathlib.Path) -> None:
  """Started again, it ends with the bytes of a run that was let alone."""
  finished = succeed(workdir, 2, kind="long")
  assert "continuing after step" in finished.out[0]
  assert_same(everything(workdir), everything(run(2, "long").workdir))


@pytest.mark.parametrize(
  ("number", "lost"),
  [(signal.SIGKILL, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 1)],
)
def test_a_lost_process_ends_the_run_which_then_continues(
  run, tmp_path, number, lost
):
  processes = start(tmp_path, 2, kind="long")
  other = processes[1 - lost]
  wait_for_checkpoint(tmp_path, processes)
  processes[lost].send_signal(number)
  started = time.monotonic()
  _, err = other.communicate(timeout=120)
  seconds = time.monotonic() - started
  processes[lost].kill()
  processes[lost].communicate()
  print(f"{number.name} of process {lost}: {seconds:.1f} s\n{err}")

  assert other.returncode == hosts.EXIT_LOST, err
  # Silence, then a save that may be waited for.
  assert seconds < TIMEOUT_S + 25
  assert f"process {1 - lost} of 2 (host" in err
  assert f": process {lost} of 2" in err or f"because process {lost} of" in err
  assert re.search(r"The last checkpoint in \S+ is step \d+\.", err)
  assert "Start all processes again with the same command" in err
  assert_continues(run, tmp_path)


def test_sigterm_to_one_process_stops_all_after_the_same_step(run, tmp_path):
  processes = start(tmp_path, 2, kind="long")
  wait_for_checkpoint(tmp_path, processes)
  processes[1].send_signal(signal.SIGTERM)
  finished = finish(tmp_path, processes)
  assert finished.statuses == [143, 143], finished.err
  step = int(re.search(r"by SIGTERM after step (\d+)", finished.out[0])[1])
  assert step < 200
  last = checkpoints.describe(tmp_path / "checkpoints")
  assert last.endswith(f" is step {step}.")
  assert_continues(run, tmp_path)


def test_evaluation_of_several_processes_is_that_of_one(run):
  tables = []
  for count in (1, 2):
    workdir = run(2).workdir
    results = command.finish_all(
      command.start_all(
        count,
        4 // count,
        "evaluate",
        f"--workdir={workdir}",
        "--num_samples=2",
        environment={"SCORED": str(workdir / "scored")},
      )
    )
    assert [status for status, *_ in results] == [0] * count, results
    tables.append(json.loads((workdir / "evaluation.json").read_text()))
  assert tables[0] == tables[1]
