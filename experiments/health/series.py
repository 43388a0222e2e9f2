"""Metrics of runs that are well, made up with the noise of real ones.

Noise of neighbouring steps is related, as in training, where the same
parameters draw one batch after another: a sum of white noise and of an
autoregressive process with a memory of about five steps. Shares are those of a
batch's number of rows, so a batch may be all right by luck.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from grpo_jax.training.rules.rules import Stage

ROWS, GROUP, EVAL_EVERY, NUM_EVAL = 128, 8, 20, 256
STAGE = Stage(
  name="rl",
  kind="rl",
  steps=1000,
  last=1000,
  group_size=GROUP,
  num_rows=ROWS,
  correct="accuracy",
  rewarded=("accuracy", "format"),
  num_eval=NUM_EVAL,
)
Lines = list[dict[str, float]]


def noise(rng: np.random.Generator, steps: int, memory: float = 0.8):
  """Deviations of variance 1, half of them with a memory, [steps]."""
  slow = np.zeros(steps)
  white = rng.normal(size=(2, steps))
  for i in range(1, steps):
    slow[i] = memory * slow[i - 1] + np.sqrt(1 - memory**2) * white[0, i]
  return np.sqrt(0.5) * (slow + white[1])


def constant(rng: np.random.Generator, steps: int) -> Lines:
  """A run that stays at its means: any alarm is a false one."""
  level = rng.uniform(0.15, 0.85)
  return _lines(rng, np.full(steps, level), np.full(steps, 0.9))


def slow(rng: np.random.Generator, steps: int) -> Lines:
  """A constant run whose rollouts remember the last thirty steps."""
  level = rng.uniform(0.15, 0.85)
  return _lines(
    rng, np.full(steps, level), np.full(steps, 0.9), memory=1 - 1 / 30
  )


def learning(rng: np.random.Generator, steps: int) -> Lines:
  """A run that learns: accuracy, format, entropy and length move.

  No task is solved here, because H12 is meant to warn of solved tasks.
  """
  x = np.arange(steps) / steps
  first, last = rng.uniform(0.05, 0.3), rng.uniform(0.6, 0.9)
  accuracy = first + (last - first) * (1 - np.exp(-4 * x))
  form = 1 - 0.6 * np.exp(-30 * x)
  length = rng.choice([1.0, -0.6]) * x  # 120 to 240 tokens, or to 66.
  return _lines(rng, accuracy, form, entropy=np.exp(-1.2 * x), length=length)


def supervised(rng: np.random.Generator, steps: int) -> Lines:
  """A run of imitation: a loss that falls, and a gradient."""
  loss = 0.1 + 2 * np.exp(-5 * np.arange(steps) / steps)
  loss *= np.exp(0.1 * noise(rng, steps))
  gradient = np.exp(0.3 * noise(rng, steps))
  return [
    {"loss": float(a), "gradient_norm": float(b), "tokens/trained": 900.0}
    for a, b in zip(loss, gradient, strict=True)
  ]


def _lines(
  rng: np.random.Generator,
  accuracy: np.ndarray,
  form: np.ndarray,
  entropy: np.ndarray | float = 1.0,
  length: np.ndarray | float = 0.0,
  memory: float = 0.8,
) -> Lines:
  """Lines of a run with these means, each [steps]."""
  steps = len(accuracy)
  groups = ROWS // GROUP

  def wandering():
    return noise(rng, steps, memory)

  def level(mean, deviation):
    return mean * np.exp(deviation * wandering())

  # The policy wanders: batches are drawn around a moving mean.
  mean = np.clip(accuracy + 0.03 * wandering(), 0.01, 0.97)
  # Prompts are harder or easier than the mean, so groups differ.
  own = rng.beta(2 * mean[:, None], 2 * (1 - mean)[:, None], (steps, groups))
  right = rng.binomial(GROUP, own)  # [steps, groups]
  share = right.sum(axis=1) / ROWS
  good = rng.binomial(ROWS, np.clip(form, 0, 0.999)) / ROWS
  lengths = 120 * (1 + length) + 6 * wandering()
  columns = {
    "accuracy": share,
    "reward/accuracy": share,
    "reward/format": good,
    "reward_range/accuracy": ((share > 0) & (share < 1)).astype(float),
    "reward_range/format": ((good > 0) & (good < 1)).astype(float),
    "reward_correlation/accuracy": 0.9 + 0.02 * wandering(),
    "reward_correlation/format": 0.15 + 0.12 * wandering(),
    "applicable/accuracy": np.ones(steps),
    "applicable/format": np.ones(steps),
    "reward/mean": share + good,
    "reward/std": np.sqrt(share * (1 - share) + good * (1 - good)) + 1e-3,
    "dead_groups": ((right == 0) | (right == GROUP)).mean(axis=1),
    "unscored": rng.binomial(ROWS, 0.01, steps).astype(float),
    "entropy/mean": level(0.5 * entropy, 0.1),
    "length/mean": lengths,
    "length/min": lengths - 40 + wandering(),
    "length/max": lengths + 60,
    "truncated": rng.binomial(ROWS, 0.1, steps) / ROWS,
    "gradient_norm": level(0.4, 0.4),
    "clip_fraction": level(0.03, 0.5),
    "kl/update": level(2e-3, 0.5),
    "ratio/max_deviation": level(0.8, 0.6),
    "sampler_gap/mean": level(4e-3, 0.3),
    "reward/blocked": level(0.08, 0.4),
    "tokens/trained": ROWS * lengths,
    "reasoning_steps/per_completion": level(3.0, 0.2),
  }
  lines = [
    {name: float(column[i]) for name, column in columns.items()}
    for i in range(steps)
  ]
  for i in range(EVAL_EVERY - 1, steps, EVAL_EVERY):
    held_out = rng.binomial(NUM_EVAL, mean[i]) / NUM_EVAL
    lines[i]["eval/accuracy"] = float(held_out)
  return lines


KINDS: dict[str, Callable[[np.random.Generator, int], Lines]] = {
  "constant": constant,
  "slow": slow,
  "learning": learning,
  "supervised": supervised,
}
