"""Tests that workers inherit little, and that no process below them stays."""

import subprocess

import pytest

from grpo_jax.rewards.workers import processes
from tests.rewards.workers import host_test

# A shell whose child has left its group, and prints its own child's number.
TREE = "setsid sh -c 'sleep 600 & echo $!; wait' & wait"


@pytest.fixture
def tree():
  parent = subprocess.Popen(
    ["sh", "-c", TREE], stdout=subprocess.PIPE, text=True
  )
  yield parent, int(parent.stdout.readline())
  parent.kill()
  parent.wait()
  parent.stdout.close()


@pytest.mark.parametrize("says", [True, False])
def test_descendants_are_found_and_killed(monkeypatch, tree, says):
  parent, leaf = tree
  if not says:
    monkeypatch.setattr(processes, "_says_children", lambda pid: False)
  found = processes.below(parent.pid)
  assert leaf in found
  assert len(found) == 2
  processes.end_below(parent.pid)
  assert host_test.wait_until(lambda: all(map(host_test.is_gone, found)))
  assert processes.below(parent.pid) == set()


def test_a_tree_ends_with_its_root(tree):
  parent, leaf = tree
  processes.end_tree(parent.pid)
  assert parent.wait(timeout=5.0) is not None
  assert host_test.wait_until(lambda: host_test.is_gone(leaf))


def test_a_process_that_is_not_there_has_nothing_below_it():
  ended = subprocess.Popen(["true"])
  ended.wait()
  assert processes.below(ended.pid) == set()
  processes.end_below(ended.pid)


def test_the_environment_has_what_is_listed_and_what_is_named(monkeypatch):
  for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "MY_KEY"):
    monkeypatch.setenv(name, "secret")
  monkeypatch.setenv("LC_ALL", "C")
  monkeypatch.setenv("JAX_PLATFORMS", "tpu")
  found = processes.environment(["MY_KEY", "NOT_SET"])
  assert [name for name, value in found.items() if value == "secret"] == [
    "MY_KEY"
  ]
  assert found["LC_ALL"] == "C"
  assert found["JAX_PLATFORMS"] == "cpu"
  assert "PATH" in found
  assert "NOT_SET" not in found
