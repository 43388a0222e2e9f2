"""Scores for an evaluation, which asks verifiers that time out once more.

In training a row whose verifier timed out is unscored: the time says as much of
the load as of the row. A policy that is evaluated must not be able to choose
that by what it writes. So each such row is scored once more, alone, and is then
wrong.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo_jax.rewards.workers import host

_TIMEOUTS = ("timeout", "step_timeout")


def score(
  scorer: host.HostScorer,
  prompts: Sequence[str],
  completions: Sequence[str],
  ids: Sequence[int],
  extras: Sequence[Mapping[str, Any]],
  tokens: Sequence[Sequence[int]] | None = None,
  *,
  correct: str,
) -> host.HostScores:
  """Scores B rows as `HostScorer.score` does, and time-outs once more.

  The second tries are made one after another, so that no other row takes their
  time, and have `step_timeout_s` for all of them: rows that none is left for
  stay unscored. Where a function compares the completions of a prompt, they are
  tried again together.

  Args:
    scorer: The scorer of the rows.
    prompts: As there, and so are the next four.
    completions: The completions of each row.
    ids: The ids of each row.
    extras: The extras of each row.
    tokens: The tokens of each row.
    correct: The component that is 0 where a row times out again.

  Returns:
    Components and failed rows after the second try; counts and messages of the
    first.
  """
  columns: list[Sequence[Any]] = [prompts, completions, ids, extras]
  if tokens is not None:
    columns.append(tokens)
  first = scorer.score(*columns)
  if not _timed_out(first):
    return first
  components = {name: x.copy() for name, x in first.components.items()}
  failed = first.failed.copy()
  steps = None if first.steps is None else list(first.steps)
  end = time.monotonic() + scorer.step_timeout_s
  # Which row failed in which way is not said: all of them are asked.
  for rows in _units(scorer, ids, np.flatnonzero(first.failed).tolist()):
    if time.monotonic() >= end:
      break
    chosen: list[Any] = [[column[b] for b in rows] for column in columns]
    alone = scorer.score(*chosen)
    for name, values in alone.components.items():
      components[name][rows] = values
    failed[rows] = alone.failed
    for b, of_row in zip(rows, alone.steps or (), strict=False):
      assert steps is not None
      steps[b] = of_row
    if _timed_out(alone):
      late = [b for b, bad in zip(rows, alone.failed, strict=True) if bad]
      failed[late] = False
      components[correct][late] = np.nan_to_num(components[correct][late])
  return first._replace(components=components, failed=failed, steps=steps)


def _units(
  scorer: host.HostScorer, ids: Sequence[int], failed: Sequence[int]
) -> list[list[int]]:
  """What is tried again at a time."""
  if not scorer.sees_groups:
    return [[b] for b in failed]
  again = dict.fromkeys(ids[b] for b in failed)
  return [[b for b, id_ in enumerate(ids) if id_ == one] for one in again]


def _timed_out(scores: host.HostScores) -> int:
  return sum(scores.failures[kind] for kind in _TIMEOUTS)
