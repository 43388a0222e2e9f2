"""A policy with a tower learns from images of files, also after a crash."""

import json
import signal
import time

import jax
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest

from grpo_jax.training.runtime import log
from tests.experiments import command
from tests.training import images_config, pictures, resume_test

CONFIG = command.ROOT / "tests/training/images_config.py"
# A model from scratch, and checkpoints of families with towers.
FAMILIES = (
  "siglip",
  *(x for x in ("qwen2_5_vl",) if (pictures.CHECKPOINTS / x).exists()),
)


def start(family, folder, workdir):
  return command.start(
    "train", f"--config={CONFIG}:{family}:{folder}", f"--workdir={workdir}"
  )


def arrays(workdir, step):
  """The leaves of a checkpoint by name."""
  with ocp.training.Checkpointer(workdir / "checkpoints") as checkpointer:
    found = checkpointer.load(step, checkpointer.metadata(step).metadata)
  return {
    jax.tree_util.keystr(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(found)
  }


def killed_after(step, process, workdir):
  """Ends a run as soon as a checkpoint of this step is complete."""
  while not (workdir / "checkpoints" / str(step)).exists():
    assert process.poll() is None, process.stderr.read()
    time.sleep(0.001)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert process.returncode == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_that_is_killed_ends_with_the_bytes_of_one_that_is_not(
  family, tmp_path
):
  """One of two; whoever made the policy, its run is saved by the same code."""
  folder = tmp_path / "data"
  folder.mkdir()
  pictures.write_records(folder)
  pictures.write_tokenizer(folder)
  whole, broken = tmp_path / "whole", tmp_path / "broken"
  with start(family, folder, whole) as process:
    _, err = process.communicate()
  assert process.returncode == 0, err
  lines = (whole / log.METRICS).read_text().splitlines()
  steps = [x for x in map(json.loads, lines) if "gradient_norm" in x]
  assert len(steps) == images_config.STEPS
  assert [x["ratio/max_deviation"] for x in steps] == [0.0] * len(steps)
  assert all(x["gradient_norm"] > 0 for x in steps)
  assert sum(x["data/unusable"] for x in steps) > 0  # A third is broken.
  before, after = (arrays(whole, images_config.STEPS - n) for n in (1, 0))
  towers = [x for x in after if "policy" in x and "tower" in x]
  assert any((before[x] != after[x]).any() for x in towers)
  if family != FAMILIES[-1]:
    return

  with start(family, folder, broken) as process:
    killed_after(1, process, broken)
  with start(family, folder, broken) as process:
    out, err = process.communicate()
  assert process.returncode == 0, err
  assert "continuing after step" in out
  resume_test.assert_same(*map(resume_test.everything, (broken, whole)))
