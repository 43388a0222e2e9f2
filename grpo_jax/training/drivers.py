"""How a batch advances the state: one program, or two with the host between.

A driver takes the state and a batch from the stream, dispatches the compiled
stages of `step.py` and returns at once: what the step will have to say is
fetched later, while the next step runs. Only the split driver waits, for the
host's verifiers.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.training import problem as problem_lib
from grpo_jax.training import sharding, step
from grpo_jax.types import Rollout, TrainState


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What one dispatched step will have to say.

  Attributes:
    metrics: Waits for the step; its numbers.
    samples: Waits for the step; some of its completions as texts.
  """

  metrics: Callable[[], dict[str, float]]
  samples: Callable[[], list[dict[str, Any]]]


Driver = Callable[[TrainState, Any], tuple[TrainState, Outcome]]


def make_driver(
  problem: problem_lib.Problem, mesh: Mesh, parts: step.Parts
) -> Driver:
  """The driver of a phase: given completions, fused, or split."""
  if parts.sample is None:
    return _supervised(mesh, parts)
  if problem.scorer is None:
    return _fused(problem, mesh, parts)
  return _split(problem, mesh, parts)


def _supervised(mesh: Mesh, parts: step.Parts) -> Driver:
  """Advances the state by a batch of given completions."""
  advance = jit_step(mesh, step.supervised_step, parts)
  rows = sharding.by_rows(mesh)

  def driver(state: TrainState, batch: pipeline.SupervisedBatch):
    placed = jax.device_put(problem_lib.train_batch(batch), rows)
    state, metrics = advance(state, placed)
    return state, Outcome(lambda: _numbers(metrics), lambda: [])

  return driver


def _fused(
  problem: problem_lib.Problem, mesh: Mesh, parts: step.Parts
) -> Driver:
  """Advances the state by the one program: sample, score, update."""
  advance = jit_step(mesh, step.fused_step, parts)
  rows = sharding.by_rows(mesh)

  def driver(state: TrainState, batch: pipeline.PromptBatch):
    prompts = jax.device_put(batch.prompts, rows)
    state, metrics, samples = advance(state, prompts)
    return state, Outcome(
      lambda: _numbers(metrics), lambda: _texts(problem, batch, samples)
    )

  return driver


def _split(
  problem: problem_lib.Problem, mesh: Mesh, parts: step.Parts
) -> Driver:
  """The same stages with the host's verifiers between them."""
  sample, greedy = (
    jax.jit(
      functools.partial(stage, parts=parts),
      out_shardings=sharding.replicated(mesh),
    )
    for stage in (step.sample_stage, step.greedy_stage)
  )
  learn = jit_step(mesh, step.learn_stage, parts)
  rows, whole = sharding.by_rows(mesh), sharding.replicated(mesh)

  def placed(x):  # The weights of the components are scalars.
    return jax.device_put(x, rows if x.ndim else whole)

  def driver(state: TrainState, batch: pipeline.PromptBatch):
    prompts = jax.device_put(batch.prompts, rows)
    rollout = sample(state, prompts)
    baseline = greedy(state, prompts)
    fetched = jax.device_get(
      (_for_verifiers(rollout), _for_verifiers(baseline))
    )
    started = time.perf_counter()
    with jax.transfer_guard("allow"):
      scored, failures, errors = problem.score_on_host(batch, fetched[0])
      if baseline is not None:
        baseline, *_ = problem.score_on_host(batch, fetched[1])
    counts = {f"unscored/{kind}": float(n) for kind, n in failures.items()}
    counts["time/verifier_s"] = time.perf_counter() - started
    for message in errors:
      logging.warning("a verifier failed, its row is unscored: %s", message)
    scored, baseline = jax.tree.map(placed, (scored, baseline))
    state, metrics, samples = learn(state, prompts, rollout, scored, baseline)
    return state, Outcome(
      lambda: _numbers(metrics) | counts,
      lambda: _texts(problem, batch, samples),
    )

  return driver


def jit_step(mesh: Mesh, function: Callable, parts: step.Parts) -> Callable:
  """Compiles a stage that consumes the state and returns the next one."""
  return jax.jit(
    functools.partial(function, parts=parts),
    donate_argnums=0,
    # The new state lies where the old one did; left to itself the compiler
    # may choose another layout, and the next step would not fit it.
    out_shardings=sharding.replicated(mesh),
  )


def _for_verifiers(rollout: Rollout | None) -> Rollout | None:
  """Without the large records, which verifiers do not read."""
  if rollout is None:
    return None
  return dataclasses.replace(
    rollout, kept_ids=None, routing=None, prompt_routing=None
  )


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
  return {k: float(v) for k, v in jax.device_get(metrics).items()}


def _texts(
  problem: problem_lib.Problem, batch: pipeline.PromptBatch, samples: Any
) -> list[dict[str, Any]]:
  """The sampled rows of a step as a person reads them."""
  rows = jax.device_get(samples)
  prompts = problem.prompt_texts(batch.records)
  texts = problem.texts(rows["tokens"], rows["mask"])
  return [
    {
      "prompt": prompts[rows["prompt_index"][i]],
      "completion": text,
      "reward": float(rows["reward"][i]),
      "valid": bool(rows["valid"][i]),
      "correct": bool(rows["correct"][i]),
      "components": {k: float(v[i]) for k, v in rows["components"].items()},
    }
    for i, text in enumerate(texts)
  ]
