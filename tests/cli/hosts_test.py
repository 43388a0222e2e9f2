"""Runs of several processes, for real: on a CPU, over gloo.

Every run has two devices in all, so that every one computes the same program
on the same mesh, whoever has the devices.
"""

import collections
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import checkpoints, hosts, lock, log
from tests.cli import hosts_config
from tests.experiments import command
from tests.training import resume_test
from tests.training.phases import schedules_test

pytestmark = pytest.mark.slow

CONFIG = f"--config={command.ROOT / 'tests/cli/hosts_config.py'}"
TIMEOUT_S = 10.0  # Of the config.
# Silence, words to the others, a save that is waited for and looked at, and how
# long the process that serves the others stays; a hang lasts minutes.
LOST_S = TIMEOUT_S + hosts._TELL_S + 2 * hosts._SAVE_S + hosts._LINGER_S


@dataclasses.dataclass(frozen=True)
class Finished:
  """End of the processes of a run, and the rows that each has scored."""

  workdir: pathlib.Path
  statuses: list[int]
  out: list[str]
  err: list[str]
  scored: list[list[str]]

  def metrics(self) -> list[dict]:
    return log.read_lines(self.workdir / log.METRICS)


def start(
  workdir: pathlib.Path, count: int, kind: str
) -> list[subprocess.Popen]:
  workdir.mkdir(exist_ok=True)
  return command.start_all(
    count,
    2 // count,
    "train",
    f"{CONFIG}:{kind}",
    f"--workdir={workdir}",
    environment={
      "SCORED": str(workdir / "scored"),
      # One compiles for both; they would wait for ever for another program.
      "JAX_SHARE_BINARY_BETWEEN_HOSTS": "true",
    },
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
    # Every process tries its verifiers on a teacher's completions first,
    if not ("<think>" in row and "</answer>" in row):
      by_pid[int(pid)].append(row)
  return Finished(
    workdir,
    *map(list, zip(*results, strict=True)),
    [by_pid[process.pid][4:] for process in processes],  # and on empty ones.
  )


def succeed(workdir: pathlib.Path, count: int, kind: str):
  finished = finish(workdir, start(workdir, count, kind))
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
  for name in (log.METRICS, log.SAMPLES):
    result[name] = (workdir / name).read_bytes()
  return result


def assert_close(actual: list[dict], expected: list[dict]) -> None:
  """The same lines, with numbers that differ by rounding."""
  for x, y in zip(actual, expected, strict=True):
    assert x.keys() == y.keys()
    for name, value in y.items():
      if isinstance(value, float):
        value = pytest.approx(value, rel=2e-5, abs=2e-6)
      assert x[name] == value, name


def test_processes_do_what_one_does(tmp_path):
  one, two = (succeed(tmp_path / str(n), n, "both") for n in (1, 2))
  assert [line["step"] for line in two.metrics()] == [1, 1, 2, 3, 4, 5]
  assert_close(two.metrics(), one.metrics())

  # Both hold all rows, and verify as many each,
  assert len(two.scored[0]) == len(two.scored[1])
  assert sorted(two.scored[0] + two.scored[1]) == sorted(one.scored[0])

  # and the first one speaks.
  assert "of 2 processes" in two.out[0]
  assert "held-out" in two.out[0]
  others = [  # Gloo's threads write over one another.
    line
    for line in two.out[1].splitlines()
    if not re.search(r"\[Gloo\]|peer ranks|^\d*$", line)
  ]
  assert others == []
  assert two.err[1] == ""

  tables = []
  for count in (1, 2):
    results = command.finish_all(
      command.start_all(
        count,
        2 // count,
        "evaluate",
        f"--workdir={two.workdir}",
        "--num_samples=2",
        environment={"SCORED": str(two.workdir / "scored")},
      )
    )
    assert [status for status, *_ in results] == [0] * count, results
    tables.append(json.loads((two.workdir / "evaluation.json").read_text()))
  assert tables[0] == tables[1]


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
  """A run of two processes, each with sessions, that nobody disturbs."""
  return succeed(tmp_path_factory.mktemp("episodes"), 2, "sessions")


@pytest.mark.long
def test_each_process_plays_its_own_episodes(tmp_path, episodes):
  one, two = succeed(tmp_path, 1, "sessions"), episodes
  steps = [line["step"] for line in two.metrics()]
  assert steps == list(range(hosts_config.SESSION_STEPS + 1))
  # Later, a token that is as likely as another one may be drawn for it.
  assert_close(two.metrics()[:5], one.metrics()[:5])
  assert two.metrics()[4]["staleness/mean"] == 1
  assert two.metrics()[-1]["unscored"] == 0
  assert two.metrics()[-1]["reward/malformed"] > 0


def told_where(scored: pathlib.Path) -> set[int]:
  """The processes of a run, those of its verifiers and sessions included."""
  wanted = f"SCORED={scored}".encode()
  found = set()
  for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
      variables = (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # It has just ended.
      continue
    if wanted in variables:
      found.add(int(folder.name))
  return found


@pytest.mark.long
def test_processes_draw_ahead_and_cut_what_one_does(tmp_path):
  one, two = (succeed(tmp_path / str(n), n, "partial") for n in (1, 2))
  assert_close(two.metrics(), one.metrics())
  ages = [x["staleness/max"] for x in two.metrics() if "staleness/max" in x]
  assert max(age for age in ages if age is not None) >= 1


def prompts_of_steps(run):
  found = collections.defaultdict(list)
  for line in log.read_lines(run.workdir / log.SAMPLES):
    found[line["step"]].append(line["prompt"])
  return found


@pytest.mark.long
def test_each_process_compacts_its_own_contexts_of_the_same_prompts(
  tmp_path, monkeypatch
):
  """By a schedule whose file both read, and whose state both keep."""
  for folder in (tmp_path / "1", tmp_path / "2"):
    folder.mkdir()
    monkeypatch.setenv("SCORED", str(folder / "scored"))
    settings = config_lib.resolve(hosts_config.get_config("summaries"))
    made = problem.make_problem(settings)
    schedules_test.write_clusters(
      folder / "clusters.npz",
      [made.train[i] for i in range(12)],
      3 * [0, 1, 2, 1],
    )
    made.close()
  one, two = (succeed(tmp_path / str(n), n, "summaries") for n in (1, 2))
  assert_close(two.metrics(), one.metrics())
  assert two.metrics()[-1]["unscored"] == 0
  assert two.metrics()[-1]["contexts/mean"] == 3
  seen = [x["schedule/seen"] for x in two.metrics() if "schedule/seen" in x]
  assert len(seen) == 4
  assert seen[0] == pytest.approx(1 / 3)  # Four different ones of twelve.
  of_one, of_two = map(prompts_of_steps, (one, two))
  assert of_one.keys() == of_two.keys()
  for step, prompts in of_two.items():  # Samples are of the first process.
    assert prompts
    assert of_one[step][: len(prompts)] == prompts


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
  workdir: pathlib.Path, processes: list[subprocess.Popen], after: str = ""
) -> None:
  """Waits for the checkpoint of a step, another one than `after`."""
  while True:
    last = checkpoints.describe(workdir / "checkpoints")
    if last != after and re.search(r"is step \d+\.", last):
      return
    ended = [process for process in processes if process.poll() is not None]
    assert not ended, [process.communicate() for process in ended]
    time.sleep(0.05)


def lose_process(
  processes: list[subprocess.Popen], number: int, lost: int
) -> None:
  """Disturbs one process; the other one ends, and says why."""
  other = processes[1 - lost]
  processes[lost].send_signal(number)
  started = time.monotonic()
  _, err = other.communicate(timeout=120)
  seconds = time.monotonic() - started
  processes[lost].kill()
  processes[lost].communicate()

  assert other.returncode == hosts.EXIT_LOST, err
  assert seconds < LOST_S
  assert f"process {1 - lost} of 2 (host" in err
  assert f": process {lost} of 2" in err or f"because process {lost} of" in err
  assert re.search(r"The last checkpoint in \S+ is step \d+\.", err)
  assert "Start all processes again with the same command" in err


@pytest.mark.long
def test_a_run_that_loses_processes_continues_to_the_same_bytes(
  tmp_path, episodes
):
  disturbed = tmp_path / "disturbed"
  path = disturbed / "checkpoints"

  # A signal to one process stops all after the same step.
  processes = start(disturbed, 2, "sessions")
  pids = {process.pid for process in processes}
  wait_for_checkpoint(disturbed, processes)
  assert len(told_where(disturbed / "scored") - pids) >= 2  # Workers of each.
  processes[1].send_signal(signal.SIGTERM)
  finished = finish(disturbed, processes)
  assert finished.statuses == [143, 143], finished.err
  stopped = re.search(r"by SIGTERM after step (\d+)", finished.out[0])[1]
  assert checkpoints.describe(path).endswith(f" is step {stopped}.")

  for number, lost in ((signal.SIGKILL, 0), (signal.SIGSTOP, 1)):
    before = checkpoints.describe(path)
    processes = start(disturbed, 2, "sessions")
    wait_for_checkpoint(disturbed, processes, before)
    lose_process(processes, number, lost)
    # No session stays behind.
    deadline = time.monotonic() + 10
    while left := told_where(disturbed / "scored"):
      assert time.monotonic() < deadline, left
      time.sleep(0.1)

  finished = succeed(disturbed, 2, "sessions")
  (step,) = re.findall(r"continuing after step (\d+)", finished.out[0])
  assert int(stopped) < int(step) < hosts_config.SESSION_STEPS
  resume_test.assert_same(everything(disturbed), everything(episodes.workdir))


def test_a_process_that_is_started_twice_ends_the_run_and_hangs_nobody(
  tmp_path,
):
  processes = start(tmp_path, 2, "long")
  wait_for_checkpoint(tmp_path, processes)
  started = time.monotonic()
  again = subprocess.Popen(
    processes[1].args,
    cwd=command.ROOT,
    env=command.ENVIRONMENT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  try:
    for process, (status, _, err) in enumerate(
      command.finish_all(processes, timeout_s=120)
    ):
      assert status == hosts.EXIT_LOST, err
      assert f"process {process} of 2 (host" in err
      assert "or because a process was started twice" in err
      assert re.search(r"The last checkpoint in \S+ is step \d+\.", err)
    assert time.monotonic() - started < LOST_S
  finally:
    again.kill()
    again.wait()


def test_every_process_of_a_second_run_in_a_folder_ends(tmp_path):
  with lock.held(tmp_path):
    finished = finish(tmp_path, start(tmp_path, 2, "long"))
  assert finished.statuses == [2, 2], finished.err
  for err in finished.err:
    assert f"is in use by process {os.getpid()} on " in " ".join(err.split())
  assert not (tmp_path / log.METRICS).exists()
