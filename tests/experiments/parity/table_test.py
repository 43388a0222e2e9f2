"""The table of differences, on a shipped checkpoint."""

import pathlib
import shutil

import jax
import numpy as np
import pytest

from experiments.parity import outputs, table
from grpo_jax.models.hf import weights
from tests.experiments import command

SHIPPED = command.ROOT / "tests/data/checkpoints/qwen2"


def spoilt(path: pathlib.Path) -> None:
  """Makes one logit of a reference another one."""
  with np.load(path) as archive:
    arrays = dict(archive)
  arrays["logits"][0, 10, 10] += 1e-3
  np.savez(path, **arrays)


@pytest.mark.slow
def test_cells_are_filled_when_there_is_what_they_compare(tmp_path):
  exported = tmp_path / "exported"
  cells = table.differences(SHIPPED, exported)
  assert cells.keys() == {"logits", "decoding", "greedy"}
  assert 0 < cells["logits"] < 2e-4
  assert 0 < cells["decoding"] < 2e-4
  assert cells["greedy"] == 1

  # What another program computes of the export, as far as it is ours.
  reference = outputs.read_reference(SHIPPED / "reference.npz")
  config, params = weights.load(exported)
  assert reference.images is None
  arrays = {k: x for k, x in reference._asdict().items() if k != "images"}
  arrays["logits"] = outputs.logits(config, params, *reference[:2])
  assert abs(arrays["logits"] - reference.logits).max() > 0.1
  np.savez(exported / "reference.npz", **arrays)
  assert table.differences(SHIPPED, exported)["exported"] < 1e-5
  spoilt(exported / "reference.npz")
  cells = table.differences(SHIPPED, exported)
  assert cells["exported"] == pytest.approx(1e-3, abs=1e-5)


@pytest.mark.slow
def test_the_gradient_is_compared_with_that_of_a_file(tmp_path):
  folder = tmp_path / "qwen2"
  shutil.copytree(SHIPPED, folder)
  reference = outputs.read_reference(SHIPPED / "reference.npz")
  config, params = weights.load(SHIPPED)
  found = outputs.gradient(config, params, *reference[:2])
  # Everything 1 % larger.
  params["trained"] = jax.tree.map(lambda x: 1.01 * x, found)
  weights.export(params, config, SHIPPED, tmp_path / "written")
  written = tmp_path / "written" / "model.safetensors"
  written.rename(folder / "gradient.safetensors")
  cells = table.differences(folder, None)
  assert cells["gradient"] == pytest.approx(0.01 / 1.01, rel=1e-3)


def test_a_share_is_of_the_largest_entry_of_a_tensor():
  there = {"a": np.float32([2.0, -4.0]), "b": np.float32([1e-3])}
  assert table.share({**there, "b": np.float32([9e-4])}, there) == (
    pytest.approx(0.1, rel=1e-3)
  )
  # Where nothing but round-off is, of the largest of all.
  there["b"] = np.float32([1e-7])
  assert table.share({**there, "b": np.float32([-1e-7])}, there) < 1e-7
  assert table.share({**there, "b": np.float32([0.4])}, there) == (
    pytest.approx(0.1, rel=1e-3)
  )


@pytest.mark.slow
def test_with_images_the_gradient_is_that_of_completions(tmp_path):
  source = SHIPPED.parent / "qwen2_vl"
  reference = outputs.read_reference(source / "reference.npz")
  config, params = weights.load(source)
  completions = np.array([[9, 40, 7], [12, 12, 60], [8, 30, 31]])
  whole = outputs.gradient_of_completions(
    config, params, *reference[:2], completions, reference.images
  )
  # The tower has one too.
  assert all(x.any() for x in jax.tree.leaves(jax.device_get(whole["tower"])))
  larger = {**params, "trained": jax.tree.map(lambda x: 1.01 * x, whole)}
  weights.export(larger, config, source, tmp_path / "written")
  written = tmp_path / "written" / "model.safetensors"
  written.rename(tmp_path / "gradient.safetensors")
  shutil.copy(source / "config.json", tmp_path)
  share = table._gradient(tmp_path, config, params, reference, completions)
  assert share == pytest.approx(0.01 / 1.01, rel=1e-3)


@pytest.mark.slow
def test_the_program_says_pass_or_fail(tmp_path):
  def run(*arguments):
    return command.run("parity.table", *arguments, cwd=tmp_path)

  status, _, err = run("--checkpoints=ck")
  assert status == 2
  assert "no folder in it has a reference.npz" in " ".join(err.split())

  shutil.copytree(SHIPPED, tmp_path / "ck/qwen2")
  spoilt(tmp_path / "ck/qwen2/reference.npz")
  status, out, err = run("--checkpoints=ck")
  assert status == 1, err
  header, _, row, verdict = out.splitlines()
  assert header.split()[:6] == [
    "|",
    "checkpoint",
    "|",
    "logits",
    "|",
    "decoding",
  ]
  assert row.split()[:4] == ["|", "qwen2", "|", "1.0e-03"]
  assert verdict == "FAIL: 1 checkpoints, tolerance 0.0002"
