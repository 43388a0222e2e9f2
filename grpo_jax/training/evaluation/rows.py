"""Rows of a step on the host, for logs and traces.

A step leaves its rows on the devices (`step/rows.py`). A reader of some rows
fetches these, and not all.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.step.rows import StepRows
from grpo_jax.training.evaluation import trace_rows
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import PyTree


@functools.cache
def _taker(mesh: Mesh) -> Any:
  return jax.jit(
    lambda tree, rows: jax.tree.map(lambda x: x[rows], tree),
    out_shardings=sharding.replicated(mesh),
  )


def take(mesh: Mesh, tree: PyTree, rows: Sequence[int] | np.ndarray) -> PyTree:
  """Fetches some rows of arrays as NumPy arrays, in every process.

  All processes call it with the same rows.

  Args:
    tree: Arrays on its devices, with rows first.
    rows: Numbers of the rows; another number of rows is compiled again.
  """
  with jax.transfer_guard("allow"):
    index = jax.device_put(
      np.asarray(rows, np.int32), sharding.replicated(mesh)
    )
    return jax.device_get(_taker(mesh)(tree, index))


def samples(
  problem: problem_lib.Problem,
  mesh: Mesh,
  batch: pipeline.PromptBatch,
  rows: StepRows,
  count: int,
) -> list[dict[str, Any]]:
  """The first rows of a step as texts for a person.

  Each of several processes knows the texts of the prompts that it feeds, and
  leaves out the others. A prompt of an earlier step is read from its tokens.
  Rows that are still being written, and contexts that do not exist, are left
  out.

  Args:
    count: Number of rows, at most.
  """
  arrays = take(
    mesh,
    {
      "tokens": rows.batch.tokens,
      "mask": rows.batch.completion_mask,
      "prompt_id": rows.prompt_id,
      "prompt_index": rows.batch.prompt_index,
      "reward": rows.rewards,
      "valid": rows.batch.valid,
      "correct": rows.batch.correct,
      "components": rows.components,
      "turn": rows.turn,
      "observed": rows.observed,
      "turn_rewards": rows.turn_rewards,
    },
    np.arange(min(count, len(rows.prompt_id))),
  )
  ids = batch.prompts.ids.tolist()
  prompts = dict(zip(ids, problem.prompt_texts(batch.records), strict=True))
  read = texts_of_prompts(problem, mesh, rows, arrays["prompt_index"])
  for prompt_id, text in zip(arrays["prompt_id"].tolist(), read, strict=True):
    if prompt_id < min(ids):  # Ids ascend along the stream.
      prompts[prompt_id] = text
  texts = problem.texts(arrays["tokens"], arrays["mask"])
  is_there = arrays["mask"].any(axis=1)
  if rows.batch.traces.order is None:
    is_there |= arrays["valid"]
  return [
    {
      "prompt": prompts[int(arrays["prompt_id"][i])],
      "completion": text,
      "reward": float(arrays["reward"][i]),
      "valid": bool(arrays["valid"][i]),
      "correct": bool(arrays["correct"][i]),
      "components": {k: float(v[i]) for k, v in arrays["components"].items()},
      **_turns(problem, arrays, i),
    }
    for i, text in enumerate(texts)
    if int(arrays["prompt_id"][i]) in prompts and is_there[i]
  ]


def _turns(
  problem: problem_lib.Problem, sample: dict[str, Any], row: int
) -> dict[str, Any]:
  """The calls of a row in an environment; empty without an environment."""
  if sample["turn"] is None:
    return {}
  arrays = {
    name: sample[name][row] for name in ("turn", "observed", "turn_rewards")
  }
  exists = sample["mask"][row]
  ids = sample["tokens"][row][exists]
  arrays["exists"] = exists
  return {"turns": list(trace_rows.calls(problem, arrays, ids))}


def texts_of_prompts(
  problem: problem_lib.Problem,
  mesh: Mesh,
  rows: StepRows,
  places: Sequence[int] | np.ndarray,
) -> list[str]:
  """Decodes prompts of a step from their tokens, without their records.

  All processes call it with the same places.

  Args:
    places: Places of the prompts in the batch of the step.
  """
  batch = rows.batch
  arrays = take(
    mesh, {"tokens": batch.prompts.tokens, "mask": batch.prompts.mask}, places
  )
  return problem.texts(arrays["tokens"], arrays["mask"])
