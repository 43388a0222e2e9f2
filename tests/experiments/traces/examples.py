"""Runs that look like real ones, made of random numbers."""

from __future__ import annotations

import json

import numpy as np

from grpo_jax.training.runtime import log, traces

FLOATS = (
  *("sampler_logp", "old_logp", "new_logp", "ratio", "entropy"),
  *("advantage", "value", "kl"),
)


def row(text="42", **fields):
  """Makes a completion whose fields are empty unless given."""
  defaults = {
    **{"row": 0, "sample": 0, "context": 0, "text": text, "tokens": ()},
    **{"ids": np.zeros(0, np.int32), "reward": 1.0, "correct": True},
    **{"terminated": True, "components": {}},
  }
  return traces.TraceRow(**defaults | fields)


def group(*rows, **fields):
  """A group at step 1 of the rows."""
  defaults = {
    **{"step": 1, "phase": "rl", "split": "train", "prompt_id": 0},
    **{"record": 0, "prompt": "6 * 7 =", "chosen": ("random",)},
  }
  return traces.Group(rows=rows, **defaults | fields)


def with_tokens(words, rng, names=FLOATS, **fields):
  """A completion with tokens and random numbers for them."""
  size = len(words)
  values = {n: rng.normal(size=size).astype(np.float32) for n in names}
  values["trained"] = np.ones(size, bool)
  ids = rng.integers(0, 1000, size).astype(np.int32)
  text = "".join(words)
  return row(text, tokens=tuple(words), ids=ids, values=values, **fields)


def write(folder, groups=(), metrics=None, samples=(), result=None):
  """The files of a run, as it would write them."""
  folder.mkdir(parents=True, exist_ok=True)
  if metrics is None:
    metrics = [
      {"step": i, "phase": "rl", "reward/mean": i / 10} for i in range(1, 11)
    ]
  for name, lines in (
    (log.METRICS, metrics),
    (log.SAMPLES, samples),
  ):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / name).write_text(text)
  config = {"algorithm": {"name": "grpo"}}
  (folder / log.CONFIG).write_text(json.dumps(config))
  if result is not None:
    (folder / log.RESULT).write_text(json.dumps(result))
  by_step = {}
  for x in groups:
    by_step.setdefault(x.step, []).append(traces.line(x))
  content = b"".join(traces.member(lines) for lines in by_step.values())
  (folder / traces.FILE).write_bytes(content)
  return folder
