"""Tests that a number of processes restore the checkpoint of another number."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest

from tests.experiments import command

pytestmark = pytest.mark.slow
_MARKER = "grpo_jax_checkpoints.txt"


def _run(
  action: str, directories: list[pathlib.Path], mesh: tuple[int, ...]
) -> list[tuple[int, str]]:
  """Status and output of each process; eight devices between them."""
  with socket.socket() as found:
    found.bind(("localhost", 0))
    coordinator = f"localhost:{found.getsockname()[1]}"
  count = len(directories)
  devices = f"--xla_force_host_platform_device_count={8 // count}"
  environment = command.ENVIRONMENT | {
    "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {devices}"
  }
  processes = [
    subprocess.Popen(
      [sys.executable, "-m", "tests.training.runtime.checkpoint_worker"]
      + [action, str(directory), coordinator, str(count), str(process)]
      + [str(size) for size in mesh],
      cwd=command.ROOT,
      env=environment,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for process, directory in enumerate(directories)
  ]
  try:
    outputs = [process.communicate(timeout=300)[0] for process in processes]
  finally:
    for process in processes:
      process.kill()
  return [
    (process.returncode, output)
    for process, output in zip(processes, outputs, strict=True)
  ]


def _all_done(results: list[tuple[int, str]]) -> None:
  for process, (status, output) in enumerate(results):
    assert status == 0, output
    assert f"process {process} of {len(results)} is done" in output, output


def test_two_processes_save_and_one_and_four_restore(tmp_path):
  directory = tmp_path / "checkpoints"
  _all_done(_run("save", [directory] * 2, (2, 2, 2)))
  assert (directory / _MARKER).exists()
  copy = tmp_path / "copy"
  subprocess.run(["cp", "-r", directory, copy], check=True)
  _all_done(_run("restore", [directory], (1, 8, 1)))
  _all_done(_run("restore", [copy] * 4, (1, 2, 4)))


def test_one_process_saves_and_two_restore(tmp_path):
  _all_done(_run("save", [tmp_path / "c"], (1, 2, 4)))
  _all_done(_run("restore", [tmp_path / "c"] * 2, (8, 1, 1)))


def test_folders_that_are_not_shared_are_refused(tmp_path):
  here, there = tmp_path / "here", tmp_path / "there"
  _all_done(_run("save", [here], (1, 8, 1)))
  for status, output in _run("restore", [here, there], (1, 8, 1)):
    assert status == 2, output
    assert "process 0 sees step 3, process 1 sees none" in output
    assert "gs://BUCKET/FOLDER or a network disk" in output
  assert not there.exists()


def test_new_folders_that_are_not_shared_are_refused(tmp_path):
  for status, output in _run(
    "save", [tmp_path / "here", tmp_path / "there"], (1, 8, 1)
  ):
    assert status == 2, output
    assert "processes [1] do not see it after 1 s" in output
  assert not (tmp_path / "there").exists()
