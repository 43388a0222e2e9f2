"""Rows of a rollout that a process judges, and reports of sessions on them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.step import dynamic_sampling
from grpo_jax.training.problem import rewards
from grpo_jax.training.runtime import hosts, jit, sharding
from grpo_jax.types import PyTree, Rollout


def scoring_program(reward: rewards.RewardSum, mesh: Mesh) -> jit.Program:
  """Returns the program of `reward.score`, for rewards without models."""
  split = sharding.row_constraint(mesh)
  return jit.Program(
    lambda *inputs: split(reward.score({}, *inputs)), sharding.replicated(mesh)
  )


def to_judge(mesh: Mesh, rows: PyTree, num_rows: int) -> PyTree:
  """Fetches the rows `judged_rows` of arrays that are split by rows.

  Args:
    rows: Arrays on all devices, split by rows.
  """
  local_rows = sharding.local_rows(sharding.by_rows(mesh), num_rows)
  index = np.searchsorted(local_rows, judged_rows(mesh, num_rows))
  return jax.tree.map(lambda x: x[index], sharding.to_local(rows))


def judged_rows(mesh: Mesh, num_rows: int) -> np.ndarray:
  """The rows of a rollout that this process, and no other one, judges."""
  return sharding.local_rows(sharding.by_rows_once(mesh), num_rows)


# Messages of rows, by the id of their prompt and their place in its group.
Errors = dict[tuple[int, int], str]


class HostReport(NamedTuple):
  """The report of sessions on a rollout, beside rewards.

  Attributes:
    counts: Numbers of this process, by their names in the log.
    errors: Error messages of failed rows that this process judges.
  """

  counts: dict[str, float]
  errors: Errors


def gather_reports(reports: Sequence[HostReport]) -> list[dict[str, Any]]:
  """Gathers the reports of all processes, as JSON; every process calls it."""
  everyone = hosts.gather(
    [
      [x.counts, [[*key, text] for key, text in x.errors.items()]]
      for x in reports
    ]
  )
  return [
    {
      "counts": {
        name: sum(counts[name] for counts, _ in each) for name in each[0][0]
      },
      "errors": [error for _, errors in each for error in errors],
    }
    for each in zip(*everyone, strict=True)
  ]


def read_reports(items: Sequence[Mapping[str, Any]]) -> tuple[HostReport, ...]:
  """Returns the reports of a checkpoint; the first process has all of them.

  Other processes get counts of 0 and no errors.
  """
  return tuple(
    HostReport(
      {
        name: count if hosts.is_main() else 0.0
        for name, count in report["counts"].items()
      },
      {
        (prompt_id, place): text
        for prompt_id, place, text in report["errors"]
        if hosts.is_main()
      },
    )
    for report in items
  )


def errors_of(
  mesh: Mesh,
  batch: pipeline.PromptBatch,
  num_rows: int,
  messages: Mapping[int, str],
) -> Errors:
  """Returns the messages of rows that this process judges, by prompt and place.

  These keys stay valid when the rows move to other places of the batch.

  Args:
    messages: Messages by number of the row among those of `judged_rows`.
  """
  split = sharding.by_rows(mesh)
  num_prompts = sharding.num_rows(split, len(batch.prompts.ids))
  fed = sharding.local_rows(split, num_prompts)
  rows = judged_rows(mesh, num_rows)
  size = num_rows // num_prompts
  ids = np.asarray(batch.prompts.ids)
  return {
    (int(ids[np.searchsorted(fed, rows[i] // size)]), int(rows[i] % size)): text
    for i, text in messages.items()
  }


def rollout_to_judge(mesh: Mesh, rollout: Rollout) -> Rollout:
  """Fetches the rows that this process judges, without the large records.

  The `prompt_index` of the result counts the prompts that this process feeds.
  """
  records = ("kept_ids", "routing", "prompt_routing", "version")
  nothing: dict[str, Any] = dict.fromkeys((*records, "mix_ids", "mix_weights"))
  read = dataclasses.replace(rollout, **nothing)
  local = to_judge(mesh, read, len(rollout.prompt_index))
  prompts = sharding.local_rows(sharding.by_rows(mesh), rollout.num_groups)
  return dataclasses.replace(
    local, prompt_index=np.searchsorted(prompts, local.prompt_index)
  )


def errors_here(
  batch: pipeline.PromptBatch, reports: Sequence[HostReport]
) -> Errors:
  """Returns messages of rows whose prompts are in a batch.

  The rows of other prompts have been trained.
  """
  prompt_ids = {int(x) for x in batch.prompts.ids}
  return {
    place: text
    for report in reports
    for place, text in report.errors.items()
    if place[0] in prompt_ids
  }


def collect(
  draw: Callable[[pipeline.PromptBatch], tuple[dynamic_sampling.Groups, dict]],
  add: Callable[..., dynamic_sampling.Collected],
  batch: pipeline.PromptBatch,
  max_rounds: int,
  recycled: dynamic_sampling.Groups | None,
) -> tuple[dynamic_sampling.Collected, dict[str, float]]:
  """Collects groups as `dynamic_sampling.collect`, with the host in between.

  Returns:
    The groups, and the sums of the counts of all rounds.
  """
  size = len(batch.records) // max_rounds
  collected: dynamic_sampling.Collected | None = None
  counts: dict[str, float] = collections.defaultdict(float)
  for start in range(0, len(batch.records), size):
    part = slice(start, start + size)
    prompts = jax.tree.map(lambda x, index=part: x[index], batch.prompts)
    groups, of_round = draw(pipeline.PromptBatch(prompts, batch.records[part]))
    for name, value in of_round.items():
      counts[name] += value
    collected = add(collected, groups, recycled if collected is None else None)
    if jax.device_get(collected.full):
      break
  assert collected is not None  # There is at least one round.
  return collected, dict(counts)
