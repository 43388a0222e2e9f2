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

from grpo_jax.rewards import host

_TIMEOUTS = ("timeout", "step_timeout")


def score(
  scorer: host.HostScorer,
  prompts: Sequence[str],
  completions: Sequence[str],
  ids: Sequence[int],
  extras: Sequence[Mapping[str, Any]],
  correct: str,
) -> host.HostScores:
  """Scores B rows as `HostScorer.score` does, and time-outs once more.

  The second tries are made one after another, so that no other row takes their
  time, and have `step_timeout_s` for all of them: rows that none is left for
  stay unscored.

  Args:
    scorer: Of the rows.
    prompts: As there, and so are the next three.
    completions: Of each row.
    ids: Of each row.
    extras: Of each row.
    correct: The component that is 0 where a row times out again.

  Returns:
    Components and failed rows after the second try; counts and messages of the
    first.
  """
  first = scorer.score(prompts, completions, ids, extras)
  if not _timed_out(first):
    return first
  components = {name: x.copy() for name, x in first.components.items()}
  failed = first.failed.copy()
  end = time.monotonic() + scorer.step_timeout_s
  # Which row failed in which way is not said: all of them are asked.
  for b in np.flatnonzero(first.failed).tolist():
    if time.monotonic() >= end:
      break
    alone = scorer.score([prompts[b]], [completions[b]], [ids[b]], [extras[b]])
    for name, values in alone.components.items():
      components[name][b] = values[0]
    failed[b] = alone.failed[0]
    if _timed_out(alone):
      failed[b] = False
      components[correct][b] = np.nan_to_num(components[correct][b])
  return first._replace(components=components, failed=failed)


def _timed_out(scores: host.HostScores) -> int:
  return sum(scores.failures[kind] for kind in _TIMEOUTS)
