"""How a batch advances the state: one program, or two with the host between.

A driver takes the state and a batch from the stream, dispatches the compiled
stages of `step.py` and returns at once: what the step will have to say is
fetched later, while the next step runs. Only the split driver waits, for the
host's verifiers. If it is given the batches that come next too, the device
draws their rollouts meanwhile; they wait in `TrainState.queue`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from grpo_jax.data import pipeline
from grpo_jax.training import problem as problem_lib
from grpo_jax.training import rounds, sharding, step
from grpo_jax.types import Drawn, Rollout, TrainState


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What one dispatched step will have to say.

  Attributes:
    metrics: Waits for the step; its numbers.
    samples: Waits for the step; some of its completions as texts.
  """

  metrics: Callable[[], dict[str, float]]
  samples: Callable[[], list[dict[str, Any]]]


# (state, batch, *batches that come next) -> the state one step on, and more.
Driver = Callable[..., tuple[TrainState, Outcome]]


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
  """The same stages with the host's verifiers between them.

  The device works through what is dispatched in its order. A rollout that is
  drawn ahead is dispatched before the host verifies, so it is drawn while the
  host does; the update, which needs the scores, comes after it.
  """
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

  def draw(state: TrainState, batch: pipeline.PromptBatch, ahead: int) -> Drawn:
    prompts = jax.device_put(batch.prompts, rows)
    steps = jax.device_put(np.int32(ahead), whole)
    return Drawn(sample(state, prompts, steps), greedy(state, prompts, steps))

  def judged(batch: pipeline.PromptBatch, drawn: Drawn):
    """Scored groups of the batch, and what is counted on the way."""
    fetched = jax.device_get(
      (_for_verifiers(drawn.rollout), _for_verifiers(drawn.greedy))
    )
    baseline = None
    started = time.perf_counter()
    with jax.transfer_guard("allow"):
      scored, failures, errors = problem.score_on_host(batch, fetched[0])
      if fetched[1] is not None:
        baseline, *_ = problem.score_on_host(batch, fetched[1])
    counts = {f"unscored/{kind}": float(n) for kind, n in failures.items()}
    counts["time/verifier_s"] = time.perf_counter() - started
    for message in errors:
      logging.warning("a verifier failed, its row is unscored: %s", message)
    scored, baseline = jax.tree.map(placed, (scored, baseline))
    prompts = jax.device_put(batch.prompts, rows)
    return rounds.Groups(prompts, drawn.rollout, scored, baseline), counts

  add, describe = (
    jax.jit(function, out_shardings=whole)
    for function in (rounds.add, rounds.metrics)
  )

  def driver(
    state: TrainState,
    batch: pipeline.PromptBatch,
    *following: pipeline.PromptBatch,
  ):
    queue = list(state.queue)
    state = dataclasses.replace(state, queue=())
    of_rounds: dict[str, jax.Array] = {}
    if parts.max_rounds == 1:
      for ahead, one in enumerate((batch, *following)):
        if ahead >= len(queue):
          queue.append(draw(state, one, ahead))
      groups, counts = judged(batch, queue.pop(0))
    else:
      collected, counts = _collect(
        lambda batch: judged(batch, draw(state, batch, 0)),
        add,
        batch,
        parts.max_rounds,
      )
      groups, of_rounds = collected.groups, describe(collected)
    state, metrics, samples = learn(
      state, groups.prompts, groups.rollout, groups.scored, groups.greedy
    )
    return dataclasses.replace(state, queue=tuple(queue)), Outcome(
      lambda: _numbers(metrics | of_rounds) | counts,
      lambda: _texts(problem, batch, samples),
    )

  return driver


def _collect(
  draw: Callable[[pipeline.PromptBatch], tuple[rounds.Groups, dict]],
  add: Callable[[rounds.Collected | None, rounds.Groups], rounds.Collected],
  batch: pipeline.PromptBatch,
  max_rounds: int,
) -> tuple[rounds.Collected, dict[str, float]]:
  """`rounds.collect` with the host between the rounds; sums what they count."""
  size = len(batch.records) // max_rounds
  collected: rounds.Collected | None = None
  counts: dict[str, float] = collections.defaultdict(float)
  for start in range(0, len(batch.records), size):
    chosen = slice(start, start + size)
    prompts = jax.tree.map(lambda x, at=chosen: x[at], batch.prompts)
    groups, of_round = draw(
      pipeline.PromptBatch(prompts, batch.records[chosen])
    )
    for name, value in of_round.items():
      counts[name] += value
    collected = add(collected, groups)
    if jax.device_get(collected.full):
      break
  assert collected is not None  # There is at least one round.
  return collected, dict(counts)


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
    rollout, kept_ids=None, routing=None, prompt_routing=None, version=None
  )


def _numbers(metrics: dict[str, jax.Array]) -> dict[str, float]:
  return {k: float(v) for k, v in jax.device_get(metrics).items()}


def _texts(
  problem: problem_lib.Problem, batch: pipeline.PromptBatch, samples: Any
) -> list[dict[str, Any]]:
  """The sampled rows of a step as a person reads them."""
  rows = jax.device_get(samples)
  ids = batch.prompts.ids.tolist()
  prompts = dict(zip(ids, problem.prompt_texts(batch.records), strict=True))
  texts = problem.texts(rows["tokens"], rows["mask"])
  return [
    {
      "prompt": prompts[int(rows["prompt_id"][i])],
      "completion": text,
      "reward": float(rows["reward"][i]),
      "valid": bool(rows["valid"][i]),
      "correct": bool(rows["correct"][i]),
      "components": {k: float(v[i]) for k, v in rows["components"].items()},
    }
    for i, text in enumerate(texts)
  ]
