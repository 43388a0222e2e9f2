"""Batches of completions that are given, and not drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from grpo_jax.data import pipeline
from grpo_jax.types import TrainBatch


def train_batch(
  batch: pipeline.SupervisedBatch, rows: np.ndarray, num_rows: int
) -> TrainBatch:
  """A batch of given completions in the layout of every other batch.

  Of a pair, the row that was preferred is right, and has the reward 1.

  Args:
    batch: Rows of one process.
    rows: Which ones of the whole batch they are.
    num_rows: How many the whole batch has.
  """
  everyone = np.ones(len(rows), bool)
  group_size = len(batch.tokens) // len(batch.prompt_tokens)
  is_pair = group_size == 2
  is_chosen = (rows % group_size == 0) & is_pair
  groups = (rows // group_size).astype(np.int32)
  arrays: dict[str, Any] = {
    "prompt_tokens": batch.prompt_tokens,
    "prompt_mask": batch.prompt_mask,
    "images": batch.images,
    "prompt_index": groups,
    "group_id": groups,
    "tokens": batch.tokens,
    "completion_mask": batch.completion_mask,
    "mask": batch.completion_mask & ~batch.observed,
    "rewards": is_chosen.astype(np.float32),
    "valid": everyone,
    "terminated": everyone,
    "correct": is_chosen | (not is_pair),
  }
  return TrainBatch(**arrays, num_groups=num_rows // group_size)
