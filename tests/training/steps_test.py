"""Tests of the batches that the steps of a phase get."""

import types
from typing import Any

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
  run = types.SimpleNamespace(streams=[Stream()], phases=[phase])
  nobody: Any = None
  feed = steps.Batches([run], 0, nobody)
  assert feed.position(0) == 0
  for step in range(5):
    (batches,) = feed.next(5 - step)
    assert batches == [*range(step, min(step + 3, 5))]
    assert feed.position(0) == step + 1
