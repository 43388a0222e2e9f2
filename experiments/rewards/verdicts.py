"""Verifiers that score the same completions, and the speed of each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from experiments.rewards import mutations
from grpo_jax.rewards.in_graph import accuracy, numbers, text
from grpo_jax.rewards.workers import host

BATCH, MAX_BYTES = 1024, 1024
_CHUNK = 2000  # Rows of one call of the host scorer.


class Verdicts(NamedTuple):
  """Scores of a verifier; NaN for rows on which it failed.

  Attributes:
    scores: [N] float32
    rows_per_s: Rows per second.
  """

  scores: np.ndarray
  rows_per_s: float


def in_program(cases: Sequence[mutations.Case]) -> Verdicts:
  """The compiled verifier; the time is that of the program alone."""
  made = [numbers.gold(case.gold) for case in cases]
  golds = [gold for gold in made if gold is not None]
  if len(golds) < len(cases):
    raise ValueError(
      f"verdicts: {len(cases) - len(golds)} gold answers need the host."
    )
  program = jax.jit(accuracy.accuracy)
  scores, seconds = [], 0.0
  for k in range(0, len(cases), BATCH):
    some = list(range(k, min(k + BATCH, len(cases))))
    padded = some + some[:1] * (BATCH - len(some))
    rows = text.encoded([cases[i].text for i in padded], MAX_BYTES)
    gold = {key: np.stack([golds[i][key] for i in padded]) for key in golds[0]}
    if k == 0:
      jax.block_until_ready(program(rows, gold))  # Compiles.
    start = time.perf_counter()
    batch = jax.block_until_ready(program(rows, gold))
    seconds += time.perf_counter() - start
    scores.append(np.asarray(batch)[: len(some)])
  batches = -(-len(cases) // BATCH)
  return Verdicts(np.concatenate(scores), batches * BATCH / seconds)


def on_host(cases: Sequence[mutations.Case], function: str) -> Verdicts:
  """Scores of a function of the host, through two processes."""
  scores = []
  with host.HostScorer(
    {"reward": function}, {"reward": 1.0}, step_timeout_s=600.0
  ) as scorer:
    start = time.perf_counter()
    for k in range(0, len(cases), _CHUNK):
      some = cases[k : k + _CHUNK]
      found = scorer.score(
        [""] * len(some),
        [case.text for case in some],
        range(len(some)),
        [{"answer": case.gold} for case in some],
      )
      scores.append(found.components["reward"])
    seconds = time.perf_counter() - start
  return Verdicts(np.concatenate(scores), len(cases) / seconds)
