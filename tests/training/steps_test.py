"""Tests of the batches that the steps of a phase get."""

import types
from typing import Any

import pytest

from grpo_jax.training import steps


def test_the_saved_position_of_the_data_is_that_of_the_next_step():
  """Also where batches of later steps have been read already."""

  class Stream:
    position = 0

    def get_state(self):
      return self.position

    def __next__(self):
      self.position += 1
      return self.position - 1

  parts = types.SimpleNamespace(num_ahead=2, is_told_prompts=False)
  phase = types.SimpleNamespace(phase=parts)
  run = types.SimpleNamespace(streams=[Stream()], phases=[phase], failure=None)
  nobody: Any = None
  feed = steps.Batches([run], 0, nobody)
  assert feed.position(0) == 0
  for step in range(5):
    (batches,) = feed.next(5 - step)
    assert batches == [*range(step, min(step + 3, 5))]
    assert feed.position(0) == step + 1


def test_a_run_without_data_is_left_behind_unless_it_is_alone(tmp_path):
  class Stream:
    def __init__(self, batches):
      self.batches = batches

    def get_state(self):
      if not self.batches:
        raise ValueError("it has no completion to imitate")

    def __next__(self):
      return self.batches.pop(0)

  parts = types.SimpleNamespace(num_ahead=0, is_told_prompts=False)
  phase = types.SimpleNamespace(phase=parts)

  def feed(*streams):
    runs: list[Any] = [
      types.SimpleNamespace(
        streams=[Stream(x)],
        phases=[phase],
        failure=None,
        store=types.SimpleNamespace(directory=tmp_path / "checkpoints"),
      )
      for x in streams
    ]
    nobody: Any = None
    return runs, steps.Batches(runs, 0, nobody)

  runs, together = feed([], [1, 2], [3])
  assert together.next(9) == [[1], [1], [3]]
  assert together.next(9) == [[2], [2], [2]]
  assert [run.failure is None for run in runs] == [False, True, False]
  for streams in ([[]], [[], []]):
    with pytest.raises(ValueError, match="no completion to imitate"):
      feed(*streams)[1].next(9)
