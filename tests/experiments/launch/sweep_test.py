"""Sweeps on other machines: the commands of their cells, and the cap."""

import pathlib
import shlex
import subprocess
import sys

import pytest

from experiments.sweeps import clouds, pool
from experiments.sweeps.cells import Source
from tests.experiments.launch import conftest

_SWEEP = """
from grpo_jax.configs.quickstart import get_config
from grpo_jax.settings import grids


def sweep(add):
  for cell in grids.product({"rl.steps": (3, 4)}, grids.seeds(1)):
    add(**cell)
"""
_FLAGS = "--project=p --topology=v5e-16 --spot --mesh=fsdp:16"
_BUCKET = "gs://bucket/sweeps/lr"


@pytest.fixture
def cells(repository):
  (repository / "configs/sweep.py").write_text(_SWEEP)
  conftest.git("add", ".")
  conftest.git("commit", "--quiet", "--message=Two")
  source = Source("configs/sweep.py", {})
  return source.cells(pathlib.Path("runs/LR sweep"))


def test_a_cell_is_a_run_of_the_launcher(cells):
  for launcher in clouds.CLOUDS:
    cloud = clouds.Cloud(launcher, "LR sweep", _BUCKET, _FLAGS)
    name = clouds.name_of("LR sweep", cells[0])
    assert name.startswith("lr-sweep-")
    assert len(clouds.name_of("x" * 90, cells[0])) <= 28
    assert cloud.start(cells[0]) == [
      *(sys.executable, "-m", f"experiments.launch.{launcher}", "run"),
      *(f"--name={name}", "--wait", f"--workdir={_BUCKET}/rl.steps=3,seed=0"),
      *("--config=configs/sweep.py", *shlex.split(_FLAGS), "--"),
      *("--config.rl.steps=3", "--config.seed=0"),
    ]
  fetched = clouds.Cloud("xpk", "a", _BUCKET, _FLAGS).finish(cells[0])
  assert fetched[:4] == ["gcloud", "storage", "rsync", "--recursive"]
  assert fetched[-2:] == [
    f"{_BUCKET}/rl.steps=3,seed=0",
    "runs/LR sweep/rl.steps=3,seed=0",
  ]


def test_every_cell_is_looked_at_before_the_first_starts(cells):
  clouds.Cloud("skypilot", "a", _BUCKET, _FLAGS).check(cells)
  wrong = _FLAGS.replace("fsdp:16", "fsdp:3")
  with pytest.raises(ValueError, match=r"cell rl\.steps=3.*not 16 devices"):
    clouds.Cloud("skypilot", "a", _BUCKET, wrong).check(cells)
  with pytest.raises(ValueError, match="cluster is missing"):
    clouds.Cloud("xpk", "a", _BUCKET, f"--zone=z {_FLAGS}").check(cells)
  with pytest.raises(ValueError, match="needs gs://BUCKET/FOLDER"):
    clouds.Cloud("xpk", "a", "runs", _FLAGS)


def test_no_more_cells_run_at_once_than_are_allowed(cells, tmp_path):
  """Each notes how many others are there."""
  (tmp_path / "root").mkdir()
  program = (
    "import pathlib, sys, time; here = pathlib.Path(sys.argv[1]);"
    "me = here / sys.argv[2]; me.touch(); time.sleep(0.2);"
    "(here / f'saw-{sys.argv[2]}').write_text(str(len(list(here.glob('c*')))));"
    "me.unlink()"
  )
  waiting = [*cells, *cells]
  numbers = iter(range(9))
  ended = []
  pool.run(
    tmp_path / "root",
    lambda: waiting.pop() if waiting else None,
    lambda cell, status: ended.append(status),
    2,
    lambda cell: [
      *(sys.executable, "-I", "-S", "-c", program),
      *(str(tmp_path), f"c{next(numbers)}"),
    ],
  )
  assert ended == [0] * 4
  most = max(int(x.read_text()) for x in tmp_path.glob("saw-*"))
  assert 1 <= most <= 2


def test_an_array_of_slurm_has_the_cap_and_a_case_for_each_cell(
  cells, tmp_path
):
  path, text, command = clouds.slurm(tmp_path, cells, 4, "--partition=tpu")
  assert command == [
    *("sbatch", "--array=0-1%4", f"--job-name={tmp_path.name}"),
    *(f"--output={tmp_path}/slurm-%A_%a.txt", "--partition=tpu", str(path)),
  ]
  stub = tmp_path / "python"
  stub.write_text('#!/bin/sh\necho "$@"\n')
  stub.chmod(0o755)
  text = text.replace(sys.executable, str(stub))
  said = subprocess.run(
    ["bash", "-c", text],
    env={"SLURM_ARRAY_TASK_ID": "1", "PATH": "/usr/bin:/bin"},
    capture_output=True,
    text=True,
    check=True,
  ).stdout
  assert said == (
    "-m experiments.train --config=configs/sweep.py --config.rl.steps=4"
    " --config.seed=0 --workdir=runs/LR sweep/rl.steps=4,seed=0\n"
  )
