"""A run that is stopped anywhere ends with the bytes of one that is not."""

import errno
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest
from orbax.checkpoint import checkpoint_manager

from grpo_jax.training import loop
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.phases import executors
from grpo_jax.training.runtime import checkpoints, log, traces
from tests.experiments import command, tiny_config

STEPS = 20  # Ten of each phase; see tests/experiments/tiny_config.py.


def start(workdir: pathlib.Path, algorithm: str) -> subprocess.Popen:
  return command.start(
    "train", f"{command.TINY}:{algorithm}", f"--workdir={workdir}"
  )


def finish(workdir: pathlib.Path, algorithm: str) -> str:
  """Lets the run go on to its end; returns what it printed."""
  with start(workdir, algorithm) as process:
    out, err = process.communicate()
  assert process.returncode == 0, err
  return out


def everything(
  workdir: pathlib.Path, steps: int = STEPS
) -> dict[str, bytes | dict]:
  """All that a finished run leaves and that no clock has a part in."""
  store = checkpoints.Checkpoints(workdir / "checkpoints", keep=2)
  assert store.latest_step() == steps
  extra = store.extra()
  store.close()
  del extra["log"][log.TIMINGS]
  with ocp.training.Checkpointer(workdir / "checkpoints") as checkpointer:
    arrays = checkpointer.load(steps, checkpointer.metadata(steps).metadata)
  result = {
    jax.tree_util.keystr(path): np.asarray(leaf).tobytes()
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
  }
  kept = [path.name for path in workdir.glob("data-*.jsonl")]
  for name in (log.METRICS, log.SAMPLES, traces.FILE, *kept):
    result[name] = (workdir / name).read_bytes()
  result["config.json"] = (workdir / "config.json").read_bytes()
  return result | {"extra": extra}


def assert_same(actual: dict, expected: dict) -> None:
  assert actual.keys() == expected.keys()
  assert [k for k in expected if actual[k] != expected[k]] == []


def lines(count: int):
  """True as soon as so many lines of metrics are there."""

  def due(workdir: pathlib.Path) -> bool:
    path = workdir / log.METRICS
    return path.exists() and path.read_bytes().count(b"\n") >= count

  return due


def writing(step: int):
  """True while a checkpoint of this step or a later one is being written."""

  def due(workdir: pathlib.Path) -> bool:
    names = [path.name for path in (workdir / "checkpoints").glob("*.*")]
    unfinished = [re.match(r"(\d+)\.", name) for name in names]
    return any(found and int(found[1]) >= step for found in unfinished)

  return due


def later(due, seconds: float):
  """True from so many seconds on after another moment."""
  since = []

  def passed(workdir: pathlib.Path) -> bool:
    if not since and due(workdir):
      since.append(time.monotonic())
    return bool(since) and time.monotonic() >= since[0] + seconds

  return passed


def stop_when(due, number: int, workdir: pathlib.Path, algorithm: str) -> str:
  """Starts or continues the run, and sends a signal at a certain moment."""
  with start(workdir, algorithm) as process:
    while True:
      assert process.poll() is None, process.stderr.read()
      if due(workdir):
        # Frozen, so that the moment does not pass between look and signal.
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.01)
        if due(workdir):
          break
        process.send_signal(signal.SIGCONT)
      time.sleep(0.001)
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate()
  expected = 143 if number == signal.SIGTERM else -number
  assert process.returncode == expected, err
  return out


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
  """Results of an algorithm's run that was not stopped."""
  results = {}

  def run(algorithm: str) -> dict:
    if algorithm not in results:
      workdir = tmp_path_factory.mktemp(algorithm)
      assert "continuing" not in finish(workdir, algorithm)
      results[algorithm] = everything(workdir)
    return results[algorithm]

  return run


@pytest.mark.slow
def test_stopped_in_every_phase_and_while_saving(tmp_path, unbroken):
  # The baseline of REINFORCE is part of the state, and what a reward model
  # has to compare with lies between its phases.
  algorithm = "iterative"

  def terminate(due) -> int:
    out = stop_when(due, signal.SIGTERM, tmp_path, algorithm)
    found = re.search(r"stopped by SIGTERM after step (\d+), and sa", out)
    store = checkpoints.Checkpoints(tmp_path / "checkpoints", keep=2)
    assert store.latest_step() == int(found[1])
    store.close()
    return int(found[1])

  terminate(lines(4))
  # Of the third of five phases, from step 10 to step 13.
  stop_when(writing(10), signal.SIGKILL, tmp_path, algorithm)
  assert writing(10)(tmp_path)
  step = terminate(writing(15))
  assert step >= 15
  out = finish(tmp_path, algorithm)
  assert re.search(rf"continuing after step {step} \((rm|rl)\)", out)

  expected = unbroken(algorithm)
  policy, reference = (f"['members']['{x}']" for x in ("policy", "reference"))
  for part in (
    *(f"{policy}['{x}']" for x in ("params", "opt_state", "average")),
    *(f"{reference}['params']", "['members']['reward']['params']"),
    *("['algorithm_state']", "['key']", "['reservoir']"),
  ):
    assert any(name.startswith(part) for name in expected), part
  assert expected["extra"]["stream"]
  metrics = map(json.loads, expected[log.METRICS].splitlines())
  old = [line.get("history/groups") for line in metrics]
  assert [n for n in old if n is not None] == [0, 0, 0, 2, 2, 2]
  assert_same(everything(tmp_path), expected)

  # And once more at the end: it only reports.
  assert loop.train(tiny_config.get_config(algorithm), tmp_path).step == STEPS
  assert_same(everything(tmp_path), expected)


@pytest.mark.parametrize(
  "evaluation_number", [1, pytest.param(2, marks=pytest.mark.slow)]
)
def test_sigterm_during_an_evaluation(tmp_path, monkeypatch, evaluation_number):
  calls = []

  def summarize(results, *about):
    calls.append(results)
    if len(calls) == evaluation_number:
      signal.raise_signal(signal.SIGTERM)
    return original(results, *about)

  original = evaluation.summarize
  monkeypatch.setattr(evaluation, "summarize", summarize)
  result = loop.train(tiny_config.get_config(), tmp_path)
  assert result.preempted
  # The one before the second phase, and the one after its fourth step, where
  # no checkpoint is due.
  assert result.step == {1: 10, 2: 15}[evaluation_number]
  store = checkpoints.Checkpoints(tmp_path / "checkpoints", keep=2)
  assert store.latest_step() == result.step
  store.close()
  assert result.stopped == f"after step {result.step}, and saved"


@pytest.mark.slow
def test_a_save_that_fails_in_the_background_ends_the_next_step(
  tmp_path, monkeypatch
):
  def cannot_finish(manager, step):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  def save(store, *arguments):
    original(store, *arguments)
    while store.is_saving():
      time.sleep(0.01)

  original = checkpoints.Checkpoints.save
  monkeypatch.setattr(
    checkpoint_manager.CheckpointManager, "_finalize_checkpoint", cannot_finish
  )
  monkeypatch.setattr(checkpoints.Checkpoints, "save", save)
  config = tiny_config.get_config()
  first = config.checkpoint.every
  with pytest.raises(OSError, match="cannot be written: no space is left"):
    loop.train(config, tmp_path)
  # The step that was under way is the last, and not the one of the next save.
  metrics = (tmp_path / log.METRICS).read_text().splitlines()
  assert max(json.loads(line)["step"] for line in metrics) <= first + 1


@pytest.mark.slow
def test_sigterm_while_compiling(tmp_path, monkeypatch, unbroken):
  make_driver = executors.make_driver

  def interrupted(*arguments):
    advance = make_driver(*arguments)

    def first(*batches):
      once = iter((True,))

      def terminate(event, duration, **_):
        if event.startswith("/jax/core/compile/") and next(once, False):
          signal.raise_signal(signal.SIGTERM)

      jax.monitoring.register_event_duration_secs_listener(terminate)
      try:
        return advance(*batches)
      finally:
        jax.monitoring.unregister_event_duration_listener(terminate)
        assert not next(once, False)  # It was sent.

    return first

  with monkeypatch.context() as patch:
    patch.setattr(executors, "make_driver", interrupted)
    result = loop.train(tiny_config.get_config("on_host"), tmp_path)
  assert result.preempted
  assert result.step == 1
  # In this process, and with the bytes of another one.
  assert loop.train(tiny_config.get_config("on_host"), tmp_path).step == STEPS
  assert_same(everything(tmp_path), unbroken("on_host"))


# Sessions that are played ahead are killed in experiments/hosts_test.py.
@pytest.mark.slow
def test_killed_at_random_moments(tmp_path, unbroken):
  algorithm = "on_host"
  rng = random.Random(0)
  kills, attempt = 0, 0
  while kills < 2:
    workdir = tmp_path / str(attempt)
    with start(workdir, algorithm) as process:
      process.stderr.readline()  # Its first step is done.
      time.sleep(rng.uniform(0, 2))
      process.kill()
      _, err = process.communicate()
    if process.returncode == -signal.SIGKILL:
      kills += 1
    else:
      assert process.returncode == 0, err
      assert_same(everything(workdir), unbroken(algorithm))
      attempt += 1
  finish(workdir, algorithm)
  assert_same(everything(workdir), unbroken(algorithm))


# A run of five phases takes long to start, and is soon through with each: so
# moments are drawn as numbers of lines. Where completions are kept for a phase
# that comes later, and where that phase or the last one runs.
@pytest.mark.slow
def test_killed_in_random_steps_of_many_phases(tmp_path, unbroken):
  algorithm = "r1"
  expected = unbroken(algorithm)
  # There is something to lose between phases.
  assert expected["data-3-rejection.jsonl"].count(b"\n") > 1
  rng = random.Random(0)
  for first in (8, 14):
    moment = later(lines(rng.randrange(first, first + 5)), rng.uniform(0, 0.05))
    stop_when(moment, signal.SIGKILL, tmp_path, algorithm)
  finish(tmp_path, algorithm)
  assert_same(everything(tmp_path), expected)
