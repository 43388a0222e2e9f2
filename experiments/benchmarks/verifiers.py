"""The cost of slow and deadly rows in good rows, and the speed of scoring.

    python -m experiments.benchmarks.verifiers --slow=0.15
    python -m experiments.benchmarks.verifiers --rows=2000 --deadly=0.05 \
        --step_timeout_s=120

A slow row never ends, a deadly row ends its worker, and other rows take no
time. Measured on 2026-11-23 on two cores, while other programs ran, with 200
rows, two workers, 2 s for a row and 15 s for all rows: none of 176 good rows
beside 24 slow ones is lost, and none of 148 beside 52. With one try of 2 s for
each row in its turn, 68 and 83 were lost. 10 000 good rows take 0.6 s. 2 000
rows, every fifteenth of which is deadly, take 6 to 14 s, and 8 to 19 s without
a spare worker.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence


def misbehave(
  prompts: Sequence[str],
  completions: Sequence[str],
  ids: Sequence[int],
  extras: Sequence[dict],
) -> list[float]:
  """Reward function that misbehaves as the completion says."""
  del prompts, ids, extras
  if completions[0] == "slow":
    time.sleep(3600.0)
  if completions[0] == "deadly":
    os._exit(1)
  return [1.0]


def main() -> None:
  """Scores one batch and prints a line."""
  # Not above: workers import this module too.
  from grpo_jax.rewards.workers import host

  parser = argparse.ArgumentParser()
  parser.add_argument("--rows", type=int, default=200)
  parser.add_argument("--slow", type=float, default=0.0, help="share of rows")
  parser.add_argument("--deadly", type=float, default=0.0, help="share of rows")
  parser.add_argument("--row_timeout_s", type=float, default=2.0)
  parser.add_argument("--step_timeout_s", type=float, default=15.0)
  parser.add_argument("--num_workers", type=int, default=2)
  options = parser.parse_args()
  shares = [options.slow, options.deadly, 1.0 - options.slow - options.deadly]
  words = random.Random(0).choices(
    ["slow", "deadly", "good"], shares, k=options.rows
  )
  with host.HostScorer(
    {"reward": "experiments.benchmarks.verifiers:misbehave"},
    {"reward": 1.0},
    options.row_timeout_s,
    options.step_timeout_s,
    options.num_workers,
  ) as scorer:
    start = time.perf_counter()
    scores = scorer.score(
      [""] * len(words), words, range(len(words)), [{}] * len(words)
    )
    seconds = time.perf_counter() - start
  good = [word == "good" for word in words]
  print(
    f"lost {int(scores.failed[good].sum())} of {sum(good)} good rows,"
    f" {seconds:.1f} s, {len(words) / seconds:.0f} rows/s;"
    f" { ({kind: n for kind, n in scores.failures.items() if n}) }"
  )


if __name__ == "__main__":
  main()
