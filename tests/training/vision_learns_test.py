"""A tower from scratch learns to see, through the loop that users run."""

from __future__ import annotations

import numpy as np
import pytest

from configs import vision
from grpo_jax.training import loop, metrics_log

# A policy that does not look at the image knows at most how sides (1 to 3
# pixels) and places are distributed, and all of the frame: of 14 tokens
# ln 3 + 2 · mean(ln 8, ln 7, ln 6) nats are left.
BLIND = (np.log(3) + 2 * np.log([8, 7, 6]).mean()) / 14


@pytest.mark.slow
def test_boxes_are_seen_and_not_guessed(tmp_path):
  config = vision.get_config()
  config.data.task_options = {"questions": "box"}
  config.model.num_layers = 1
  config.phases = ("sft",)
  config.sft.steps = 400
  config.sft.num_lengths = 1
  config.eval.every = config.checkpoint.every = 0
  config.log.tensorboard = False
  loop.train(config, tmp_path)
  lines = metrics_log.read_lines(tmp_path / metrics_log.METRICS)
  losses = [line["loss"] for line in lines]
  assert len(losses) == 400
  assert losses[0] > 2 * BLIND
  assert np.mean(losses[-20:]) < 0.93 * BLIND
