"""Rows of `accelerator.py` that torch computes; without JAX."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from experiments.benchmarks import trl_step, workload

_COUNT = 10  # Products or copies that are timed together.
_REPEATS = 3


def _seconds(run: Callable[[], Any]) -> float:
  """Seconds until the devices have done what was asked of them."""
  start = time.perf_counter()
  run()
  if torch.cuda.is_available():
    torch.cuda.synchronize()
  return time.perf_counter() - start


def ceiling(dtype: str | None, size: int = 8192) -> dict[str, float]:
  """The rate of products of square matrices, or of copies without a dtype."""
  with torch.device(trl_step.device()):
    if dtype is None:
      x = torch.ones(size**2 * 8)
      y = torch.empty_like(x)
      run, unit = (lambda: y.copy_(x)), "GB/s"
      amount = 2 * x.nbytes / 1e9
    else:
      x, y = torch.randn(2, size, size).to(getattr(torch, dtype))
      run, unit, amount = (lambda: x @ y), "TFLOP/s", 2 * size**3 / 1e12
  _seconds(run)
  seconds = [
    _seconds(lambda: [run() for _ in range(_COUNT)]) for _ in range(_REPEATS)
  ]
  return {unit: _COUNT * amount / min(seconds)}


def generate(**sizes: Any) -> dict[str, float]:
  """Draws completions of full length by `generate` of transformers."""
  of = workload.of_preset(**sizes)
  model = trl_step.make_model(of).to(torch.bfloat16).eval()
  shape = of.prompts, of.prompt_len
  tokens = torch.randint(of.vocab - 2, shape, device=trl_step.device())
  tokens = tokens.repeat_interleave(of.group, dim=0)  # [B, S]

  def run(count: int) -> float:
    return _seconds(
      lambda: model.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        min_new_tokens=count,
        max_new_tokens=count,
        do_sample=True,
        top_k=0,
      )
    )

  run(2)  # Not counted.
  return {"tokens/s": of.rows * of.completion_len / run(of.completion_len)}


def step(**sizes: Any) -> dict[str, float]:
  """Times TRL's step with two sizes of a micro-batch."""
  of = workload.of_preset(**sizes)
  found = {
    rows: min(trl_step.seconds(of, rows, 2)) for rows in (of.rows // 2, of.rows)
  }
  best = min(found, key=lambda rows: found[rows])
  return {
    "tokens/s": of.rows * of.completion_len / found[best],
    "step, s": found[best],
    "rows at once": best,
  }
