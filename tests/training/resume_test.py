"""A run that is stopped anywhere ends with the bytes of one that is not."""

import errno
import itertools
import json
import os
import pathlib
import signal
import time

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest
from orbax.checkpoint import checkpoint_manager

from grpo_jax.training import loop, steps
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import checkpoints, hyperparameters, log, traces
from tests.experiments import command, tiny_config
from tests.rewards.workers import judge_server
from tests.training import resume_table

TABLE = f"--config={command.ROOT / 'tests/training/resume_table.py'}"
KEY = "sk-secret-0123456789"


class Crash(Exception):
  """The end of a process."""


def _crash():
  raise Crash


def _terminate():
  signal.raise_signal(signal.SIGTERM)


def _no_space(*_):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Method of which a call, counted from each start on, is a moment -> what
# happens then. "kill" is another one, in a process of its own.
MOMENTS = {
  "compiling": (hyperparameters.Inputs, "reading", _terminate),
  "stepping": (steps.Batches, "next", _terminate),
  "evaluating": (evaluation.Evaluator, "completions", _terminate),
  "asking": (problem.Problem, "host_scores", _crash),
  "writing": (log.MetricsLog, "write_samples", _crash),
  "saving": (
    *(checkpoint_manager.CheckpointManager, "_finalize_checkpoint"),
    _no_space,
  ),
}


def everything(workdir: pathlib.Path) -> dict[str, bytes | dict]:
  """All that a finished run leaves and that no clock has a part in."""
  store = checkpoints.Checkpoints(workdir / "checkpoints", keep=2)
  step, extra = store.latest_step(), store.extra()
  store.close()
  del extra["log"][log.TIMINGS]
  with ocp.training.Checkpointer(workdir / "checkpoints") as checkpointer:
    arrays = checkpointer.load(step, checkpointer.metadata(step).metadata)
  result = {
    jax.tree_util.keystr(path): np.asarray(leaf).tobytes()
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays)
  }
  for pattern in ("*.jsonl", traces.FILE, "config.json"):
    for path in workdir.glob(pattern):
      if path.name != log.TIMINGS:
        result[path.name] = path.read_bytes()
  return result | {"extra": extra, "step": step}


def assert_same(actual: dict, expected: dict) -> None:
  assert actual.keys() == expected.keys()
  assert [k for k in expected if actual[k] != expected[k]] == []


def below(pid: int) -> list[int]:
  """Processes below one, by number."""
  found = []
  for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
    for child in map(int, task.read_text().split()):
      found += [child, *below(child)]
  return found


def kill(arguments: list[str], workdir: pathlib.Path, lines: int) -> None:
  """Starts the command, and kills it as soon as so many lines are written."""
  path = workdir / log.METRICS
  with command.start("train", *arguments, f"--workdir={workdir}") as process:
    while not path.exists() or path.read_bytes().count(b"\n") < lines:
      assert process.poll() is None, process.stderr.read()
      time.sleep(0.005)
    children = below(process.pid)
    process.kill()
    process.communicate()
  assert process.returncode == -signal.SIGKILL
  end = time.monotonic() + 10
  while any(os.path.exists(f"/proc/{child}") for child in children):
    assert time.monotonic() < end, "a process outlives its run"
    time.sleep(0.05)


def stop(config, workdir: pathlib.Path, moment: str, number: int) -> None:
  """Trains until a moment, at which the run is stopped or crashes."""
  owner, name, happen = MOMENTS[moment]
  original, calls = getattr(owner, name), itertools.count(1)

  def counted(*arguments, **named):
    if next(calls) == number:
      with jax.transfer_guard("allow"):
        happen()
    return original(*arguments, **named)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(owner, name, counted)
    if happen is _terminate:
      result = loop.train(config, workdir)
      assert result.preempted
      assert result.stopped == f"after step {result.step}, and saved"
    else:
      with pytest.raises((Crash, OSError)) as caught:
        loop.train(config, workdir)
      assert happen is _crash or "no space is left" in str(caught.value)


@pytest.fixture
def judge(monkeypatch):
  """A judge at an address that the environment names."""

  def longer_is_better(number, question):
    del number
    return judge_server.says("yes" if len(question) % 2 else "no")

  monkeypatch.setenv("JUDGE_API_KEY", KEY)
  with judge_server.serving(longer_is_better) as server:
    monkeypatch.setenv("JUDGE_URL", server.url)
    yield server


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=() if row.is_fast else pytest.mark.slow)
    for name, row in resume_table.TABLE.items()
  ],
)
def test_a_stopped_run_ends_with_the_same_bytes(name, tmp_path, judge):
  row = resume_table.TABLE[name]
  config = resume_table.get_config(f"{name}:{tmp_path}")
  whole, stopped = tmp_path / "whole", tmp_path / "stopped"
  result = loop.train(config, whole)
  expected = everything(whole)
  _check_features(row, expected)
  row.check(whole)
  for moment, number in row.stops:
    if moment == "kill":
      kill([f"{TABLE}:{name}:{tmp_path}"], stopped, number)
    else:
      stop(config, stopped, moment, number)
  assert loop.train(config, stopped) == result
  assert_same(everything(stopped), expected)
  if row.is_fast:
    # And once more at the end: it only reports.
    assert loop.train(config, stopped).step == result.step
    assert_same(everything(stopped), expected)
  for path in tmp_path.rglob("*"):
    assert path.is_dir() or KEY.encode() not in path.read_bytes()


def _check_features(row: resume_table.Row, whole: dict) -> None:
  """Checks that the features of a row had something to lose."""
  for start in row.state:
    assert any(key.startswith(start) for key in whole), start
  assert {*row.extra} <= whole["extra"].keys()
  lines = [json.loads(line) for line in whole[log.METRICS].splitlines()]
  for metric in row.shows:
    assert any(line.get(metric) for line in lines), metric


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
