"""Sweeps as a user starts them: processes that fail, stop and continue."""

import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from grpo_jax.training.runtime import log as log_lib
from tests.cli.programs_test import assert_fits, assert_refused
from tests.experiments import command

pytestmark = pytest.mark.slow

CONFIG = """
from tests.experiments import tiny_config
get_config = tiny_config.get_config

def sweep(add):
  add()
  add(**{"sft.optimizer.learning_rate": 1e30})

def search(trial):
  rate = trial.suggest_float("rate", 1e-4, 1e-2, log=True)
  return {"rl.optimizer.learning_rate": rate}
"""
BAD = "sft.optimizer.learning_rate=1e+30"
COMMON = ("--config=config.py", "--root=root")
# Enough for the bad cell to fail, and the other one to end.
FEW = ("--config.sft.steps=3", "--config.rl.steps=2")


@pytest.fixture
def cwd(tmp_path) -> pathlib.Path:
  (tmp_path / "config.py").write_text(CONFIG, encoding="utf-8")
  return tmp_path


def logs(root: pathlib.Path) -> dict[str, str]:
  return {path.parent.name: path.read_text() for path in root.glob("*/log.txt")}


def results(root: pathlib.Path) -> list[str]:
  return sorted(path.parent.name for path in root.glob("*/result.json"))


def assert_fits_but_paths(*outputs: str) -> None:
  """A path that is longer than a line has one of its own."""
  assert_fits(*(re.sub(r"(?m)^\S+$", "", output) for output in outputs))


def test_commands_are_printed_for_each_cell(cwd):
  status, out, err = command.run(
    "sweeps.run",
    *COMMON,
    "--launcher=print",
    "--config.phases=('rl',)",
    cwd=cwd,
  )
  assert status == 0, err
  train = ["python", "-m", "experiments.train", "--config=config.py"]
  assert [shlex.split(line) for line in out.splitlines()] == [
    [*train, "--config.phases=('rl',)", "--workdir=root/base"],
    [
      *train,
      "--config.phases=('rl',)",
      f"--config.{BAD}",
      f"--workdir=root/{BAD}",
    ],
  ]
  assert "2 cells in root, 0 of them have ended" in err
  assert_fits(err)


def test_a_bad_cell_is_refused_before_anything_is_written(cwd):
  (cwd / "config.py").write_text(CONFIG.replace("1e30", "'fast'"))
  result = command.run("sweeps.run", *COMMON, cwd=cwd)
  assert_refused(
    result, "cell learning_rate=fast", "received 'fast'; needs a number"
  )
  assert not (cwd / "root").exists()


def test_what_failed_is_tried_again_and_what_ended_is_not(cwd):
  root = cwd / "root"
  printed = ("sweeps.run", *COMMON, *FEW, "--launcher=print")
  first, second = command.run(*printed, cwd=cwd)[1].splitlines()
  subprocess.run(
    [sys.executable, *shlex.split(first)[1:]],
    cwd=cwd,
    env=command.ENVIRONMENT,
    check=True,
  )
  assert results(root) == ["base"]
  assert command.run(*printed, cwd=cwd)[1].splitlines() == [second]
  written = (root / "base" / log_lib.RESULT).stat().st_mtime_ns

  for attempt in range(1, 3):
    status, out, err = command.run("sweeps.run", *COMMON, *FEW, cwd=cwd)
    assert status == 1, err
    assert f"[1/1] FAILED, exit status 2: {BAD[14:]}" in out
    assert f"The end of root/{BAD}/log.txt:\n" in out
    assert "is nan" in out
    assert "1 of 2 cells done." in out
    assert_fits_but_paths(out, err)
    log = (root / BAD / "log.txt").read_text()
    assert log.count("error: phase sft, step ") == attempt
  assert results(root) == ["base"]
  assert (root / "base" / log_lib.RESULT).stat().st_mtime_ns == written

  result = command.run("sweeps.run", *COMMON, *FEW, "--config.seed=3", cwd=cwd)
  assert_refused(result, "another --root", "seed: 0 stored, 3 given")

  status, out, err = command.run("sweeps.collect", "--root=root", cwd=cwd)
  assert status == 0, err
  assert_fits_but_paths(out, err)
  assert "Cells without a value, which no number contains: 1" in out
  assert "failed: phase sft, step " in out
  for name in ("results.csv", "results.md", "results.tex", "results.png"):
    assert (root / name).stat().st_size


def test_a_sweep_of_one_program_goes_on_after_a_failure(cwd):
  bad = CONFIG.replace("  add()\n", "").replace("1e30})", "1e30})\n  add()")
  (cwd / "config.py").write_text(bad, encoding="utf-8")
  status, out, err = command.run(
    "sweeps.run", *COMMON, *FEW, "--launcher=vmap", cwd=cwd
  )
  assert status == 1, err
  assert "program 1 of 1, of 2 runs" in out
  failed, ended = (out.index(text) for text in ("[1/2] FAILED", "[2/2] eval/"))
  assert failed < ended
  assert results(cwd / "root") == ["base"]
  assert "error: phase sft, step " in logs(cwd / "root")[BAD]


def _wait_for(happened) -> None:
  deadline = time.monotonic() + 120  # seconds
  while not happened():
    assert time.monotonic() < deadline
    time.sleep(0.05)


def test_a_sweep_that_was_stopped_continues_to_the_same_bytes(cwd):
  (cwd / "config.py").write_text(re.sub("  add.*1e30.*\n", "", CONFIG))
  root = cwd / "root"
  many_steps = (  # It is stopped before the last one.
    "--config.rl.steps=60",
    "--config.eval.every=0",
    "--config.checkpoint.every=50",
  )
  with command.start("sweeps.run", *COMMON, *many_steps, cwd=cwd) as process:
    metrics = root / "base" / log_lib.METRICS
    _wait_for((root / "base").exists)
    # Two processes must not write to one folder. The cell compiles meanwhile.
    assert_refused(
      command.run("sweeps.run", *COMMON, *many_steps, cwd=cwd),
      "another sweep",
      "under way",
    )
    _wait_for(lambda: metrics.exists() and metrics.stat().st_size)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
  assert process.returncode == 143, err
  assert "0 of 1 cell done.\nStopped by a signal" in out
  assert "stopped by SIGTERM after step" in logs(root)["base"]

  status, out, err = command.run("sweeps.run", *COMMON, *many_steps, cwd=cwd)
  assert status == 0, err
  assert "continuing after step" in logs(root)["base"]
  alone = "--config=config.py", "--workdir=alone", *many_steps
  status, out, err = command.run("train", *alone, cwd=cwd)
  assert status == 0, err
  expected = (cwd / "alone" / log_lib.METRICS).read_bytes()
  assert metrics.read_bytes() == expected


def test_a_search_continues_its_study(cwd):
  import optuna

  def search(num_trials: int, *more: str) -> tuple[int, str, str]:
    return command.run(
      "sweeps.run", *COMMON, *FEW, f"--trials={num_trials}", *more, cwd=cwd
    )

  status, out, err = search(1)
  assert status == 0, err
  root = cwd / "root"
  before = logs(root)
  assert len(before) == 1

  status, out, err = search(3, "--parallel=2")
  assert status == 0, err
  assert "sweep: 1 of 3 trials were begun in root" in out
  after = logs(root)
  assert len(after) == 3
  assert before.items() <= after.items()
  study = optuna.load_study(
    study_name="sweep", storage=f"sqlite:///{root / 'study.db'}"
  )
  for trial in study.trials:
    (workdir,) = root.glob(f"{trial.number:04d},*")
    result = json.loads((workdir / log_lib.RESULT).read_text())
    assert trial.value == result["after"]["eval/accuracy"]
    config = json.loads((workdir / "config.json").read_text())
    rate = config["rl"]["optimizer"]["learning_rate"]
    assert trial.params == {"rate": rate}
  best = f"Best, with eval/accuracy {study.best_value:.4g}: root/0"
  assert best in " ".join(out.split())
  assert_fits_but_paths(out, err)

  assert_refused(search(3, "--metric=eval/reward"), "pass another --root")


def test_a_search_without_optuna_names_the_extra(cwd):
  code = (
    "import runpy, sys; sys.modules['optuna'] = None;"
    f" sys.argv = ['sweep', *{COMMON!r}, '--trials=1'];"
    " runpy.run_module('experiments.sweeps.run', run_name='__main__')"
  )
  result = subprocess.run(
    [sys.executable, "-c", code],
    cwd=cwd,
    env=command.ENVIRONMENT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert_refused(
    (result.returncode, result.stdout, result.stderr), "grpo_jax[search]"
  )
