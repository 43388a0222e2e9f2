"""Rows through verifiers and records through the tokenizer, beside loops."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from experiments.benchmarks import memory
from grpo_jax.data import pipeline, tokenizer
from grpo_jax.data.encoder import Encoder
from grpo_jax.rewards import registry
from grpo_jax.rewards.workers import host, reward_worker

_GROUP = 8
_BATCH = 256
_MAX_PROMPT_LEN = 256
_STEP_TIMEOUT_S = 3600.0
_FLOOR_PARTS = 5  # The loop beside a call has this part of its rows.
_WORDS = ("so", "we", "add", "both", "numbers", "carry", "one", "then", "check")
_PROGRAM = "```python\na, b = map(int, input().split())\nprint(a {sign} b)\n```"

# Name -> import paths of the reward functions of a mix.
MIXES: dict[str, dict[str, str]] = {
  "format": {"format": "grpo_jax.rewards.form:think_answer_format"},
  "math + format": {
    "accuracy": "math_accuracy",
    "format": "grpo_jax.rewards.form:think_answer_format",
  },
  "code": {"code": "code"},
}

# Prompts, completions, ids and extras.
Rows = tuple[list[str], list[str], list[int], list[dict[str, Any]]]


class _Time(NamedTuple):
  """Seconds of a clock, and of processors."""

  seconds: float
  busy: float


def _timed(function: Callable[[], Any]) -> _Time:
  busy, start = memory.processor_s(), time.perf_counter()
  function()
  seconds = time.perf_counter() - start
  return _Time(seconds, memory.processor_s() - busy)


def make_rows(mix: str, num_rows: int) -> Rows:
  """Draws sums, and completions half of which are right."""
  rng = random.Random(0)
  rows: Rows = ([], [], [], [])
  for number in range(num_rows):
    a, b = rng.randrange(1000), rng.randrange(1000)
    sign = rng.choice("+-")
    thought = " ".join(rng.choices(_WORDS, k=60))
    answer = a + b if sign == "+" else a - b
    said = f"<think>{thought}</think> <answer>{answer}</answer>"
    extra: dict[str, Any] = {"answer": str(a + b)}
    if mix == "code":
      said = _PROGRAM.replace("{sign}", sign)
      extra = {"tests": [{"input": f"{a} {b}\n", "output": str(a + b)}]}
    for column, value in zip(
      rows, (f"What is {a} + {b}?", said, number // _GROUP, extra), strict=True
    ):
      column.append(value)
  return rows


def scored(
  mix: str, num_rows: int, workers: Sequence[int]
) -> Iterator[dict[str, float | str]]:
  """Yields a row of the table of verifiers for each number of workers.

  The loop over the functions alone runs before and after it. "added" is the
  time of a row beyond that of the loop. "processor" is the time of processors,
  with that of workers: other programs disturb it less. "parent" is the growth
  of this process, and "largest worker" the peak of one.
  """
  rows = make_rows(mix, num_rows)
  paths = MIXES[mix]
  loaded = {name: registry.load_function(path) for name, path in paths.items()}
  for function in loaded.values():
    getattr(function, "warm_up", lambda: None)()
  part = tuple(column[: -(-num_rows // _FLOOR_PARTS)] for column in rows)

  def loop() -> None:
    for prompt, completion, id_, extra in zip(*part, strict=True):
      for function in loaded.values():
        function([prompt], [completion], [id_], [extra])

  for num_workers in workers:
    before = _timed(loop)
    if num_workers:
      took, parent, largest = _in_pool(paths, rows, num_workers)
    else:
      took, parent, largest = _in_process(loaded, rows)
    after, looped = _timed(loop), 2 * len(part[0])
    seconds = took.seconds / num_rows
    floor = (before.seconds + after.seconds) / looped
    busy = (before.busy + after.busy) / looped
    yield {
      "rewards": mix,
      "rows": num_rows,
      "workers": num_workers,
      "rows/s": 1 / seconds,
      "added, µs a row": 1e6 * (seconds - floor),
      "seconds : loop": seconds / floor,
      "processor : loop": took.busy / num_rows / busy if busy else math.nan,
      "parent, MB": parent / 1e6,
      "largest worker, MB": largest / 1e6,
    }


def _in_process(
  loaded: dict[str, registry.RewardFunction], rows: Rows
) -> tuple[_Time, int, int]:
  """Scores each row as a worker does, in this process."""
  said: list[reward_worker.UnitRewards] = []
  with memory.growth() as grown:
    took = _timed(
      lambda: said.extend(
        reward_worker.score_unit(loaded, [row])
        for row in zip(*rows, strict=True)
      )
    )
  assert all(failure is None for _, failure in said)
  return took, grown.peak, 0


def _in_pool(
  paths: dict[str, str], rows: Rows, num_workers: int
) -> tuple[_Time, int, int]:
  found: list[host.WorkerScores] = []
  with host.HostScorer(
    paths,
    dict.fromkeys(paths, 1.0),
    step_timeout_s=_STEP_TIMEOUT_S,
    num_workers=num_workers,
  ) as scorer:
    with memory.growth() as grown:
      took = _timed(lambda: found.append(scorer.score(*rows)))
    largest = memory.largest_below()
  failed = found[0].failed
  if failed.any():
    raise RuntimeError(
      f"benchmarks.host: {failed.sum()} of {failed.size} rows are unscored:"
      f" {found[0].errors}"
    )
  return took, grown.peak, largest


def encoded(
  num_rows: int, threads: Sequence[int]
) -> Iterator[dict[str, float | str]]:
  """Yields a row of the table of the tokenizer for each number of threads.

  The tokenizer runs in a loop before and after it. Until the first batch is
  there, all records are encoded once, to find those that are too long.
  """
  prompts, completions, _, extras = make_rows("math + format", num_rows)
  source = [
    {
      "prompt": f"{prompt} {completion}",
      "answer": extra["answer"],
      "completion": None,
      "extras": {},
    }
    for prompt, completion, extra in zip(
      prompts, completions, extras, strict=True
    )
  ]
  encoder = Encoder(tokenizer.Tokenizer())
  texts = [record["prompt"] for record in source]
  bare = encoder.tokenizer._tokenizer

  def loop() -> None:
    for text in texts:
      bare.encode(text, add_special_tokens=False)

  for num_threads in threads:
    before = _timed(loop).seconds
    with memory.growth() as grown:
      start = time.perf_counter()
      stream = pipeline.prompt_stream(
        source,
        encoder,
        batch_size=min(_BATCH, num_rows),
        max_prompt_len=_MAX_PROMPT_LEN,
        seed=0,
        pad_id=encoder.tokenizer.pad_id,
        num_threads=num_threads,
      )
      next(stream)
      first = time.perf_counter() - start
      num_batches = max(num_rows // _BATCH, 1)
      batches = itertools.islice(stream, num_batches)
      took = _timed(functools.partial(collections.deque, batches, 0))
    del stream, batches
    floor = (before + _timed(loop).seconds) / 2 / num_rows
    seconds = took.seconds / (num_batches * min(_BATCH, num_rows))
    yield {
      "threads": num_threads,
      "prompts": num_rows,
      "prompts/s": 1 / seconds,
      "seconds : loop": seconds / floor,
      "first batch : loop": first / num_rows / floor,
      "memory, MB": grown.peak / 1e6,
    }
