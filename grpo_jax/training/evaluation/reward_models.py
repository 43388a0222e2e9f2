"""Evaluation of a reward model on held-out pairs or steps.

In a phase that trains a reward model, held-out prompts are completed and judged
as those of the phase are, once, and the model scores the same completions again
and again. If pairs come with the data, held-out pairs are taken.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from grpo_jax.algorithms import objective
from grpo_jax.data import pipeline
from grpo_jax.ops import values as values_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.step import models, reward_models, step
from grpo_jax.training.phases import executors
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import Maximum, Prompts, TrainBatch, TrainState, Weighted


class HeldOut:
  """Held-out pairs, or steps, of a phase that trains a reward model."""

  def __init__(
    self,
    config: config_lib.RunConfig,
    problem: problem_lib.Problem,
    mesh: Mesh,
    name: str,
    phase: step.Phase,
  ):
    """Fixes the prompts; draws and compiles nothing yet.

    Raises:
      ValueError: There are no held-out pairs that fit.
    """
    settings = config.section(name)
    self._problem, self._mesh = problem, mesh
    self._phase = dataclasses.replace(phase, max_rounds=1)
    self._batches: list[TrainBatch] = []
    replicated = sharding.replicated(mesh)
    self._measure = jit.Program(
      functools.partial(_measure, self._phase),
      replicated,
      out_shardings=replicated,
    )
    # Whole batches: the pass over them has the phase's shapes.
    available = min(config.eval.num_prompts, len(problem.held_out))
    size, length = settings.num_prompts, settings.max_prompt_len
    if not settings.samples:
      held_out = dataclasses.replace(problem, train=problem.held_out)
      rows = executors.rows_to_feed(problem, mesh, settings)
      stream = held_out.pair_stream(0, size, length, rows.tolist())
      batches = [next(stream) for _ in range(max(available // size, 1))]
      self._make: Callable[[TrainState], list[TrainBatch]] = lambda state: [
        self._from_data(batch) for batch in batches
      ]
      return
    prompts = pipeline.evaluation_batches(
      problem.held_out,
      problem.encoder,
      available,
      batch_size=size,
      max_prompt_len=problem.max_prompt_len,
      pad_id=problem.tokenizer.pad_id,
      rows=sharding.local_rows(sharding.by_rows(mesh), size).tolist(),
    )
    self._draw = executors.make_draw(problem, mesh, self._phase)
    self._join = jit.Program(
      functools.partial(_real_rows, self._phase, available), replicated
    )
    self._make = lambda state: [self._from_policy(state, x) for x, _ in prompts]

  def forget(self) -> None:
    """Forgets the completions, so that the next call draws new ones."""
    self._batches = []

  def measure(self, state: TrainState) -> dict[str, float]:
    """Measures the reward model of a state.

    Returns:
      `eval/reward_model/accuracy`, `eval/reward_model/calibration_error` and,
      for pairs, `eval/reward_model/margin`, with the number of pairs or steps,
      `eval/reward_model/count`; see the table of metrics. A mean is NaN if
      there are no pairs or steps.
    """
    with jax.transfer_guard("allow"):
      if not self._batches:
        self._batches = self._make(state)
      phase = [
        jax.device_get(self._measure(state.params, batch))
        for batch in self._batches
      ]
      total = {name: _together([x[name] for x in phase]) for name in phase[0]}
      metrics = {
        name: float(x.value if isinstance(x, Maximum) else values_lib.mean(x))
        for name, x in total.items()
      }
    metrics["count"] = float(total["accuracy"].weight)
    return {f"eval/reward_model/{name}": x for name, x in metrics.items()}

  def _from_data(self, batch: pipeline.SupervisedBatch) -> TrainBatch:
    rows = sharding.by_rows(self._mesh)
    num_rows = sharding.num_rows(rows, len(batch.tokens))
    numbers = sharding.local_rows(rows, num_rows)
    arrays = executors.train_batch(batch, numbers, num_rows)
    return sharding.from_local(arrays, rows)

  def _from_policy(
    self, state: TrainState, batch: pipeline.PromptBatch
  ) -> TrainBatch:
    # The draws do not depend on the step at which they are made.
    start = dataclasses.replace(
      state, step=jnp.int32(0), phase_step=jnp.int32(0), queue=()
    )
    groups = self._draw(start, batch)
    return self._join(
      groups.prompts, groups.rollout, groups.scored, state.algorithm_state
    )


def _real_rows(
  phase: step.Phase, num_prompts: int, prompts: Prompts, rollout, scored, state
) -> TrainBatch:
  """A batch without the rows that fill it up."""
  batch = objective.make_train_batch(
    phase.algorithm, phase.config, prompts, rollout, scored, state
  )
  real = prompts.ids[batch.prompt_index] < num_prompts
  return dataclasses.replace(
    batch, valid=batch.valid & real, mask=batch.mask & real[:, None]
  )


def _together(phase: Sequence[Any]) -> Any:
  """Combines a metric of several batches."""
  reduce = np.max if isinstance(phase[0], Maximum) else np.sum
  return jax.tree.map(lambda *x: reduce(x, axis=0), *phase)


def _measure(
  phase: step.Phase, params: models.Params, batch: TrainBatch
) -> Mapping[str, Weighted | Maximum]:
  """The algorithm's metrics of the reward model, as totals and weights."""
  algorithm, config = phase.algorithm, phase.config
  assert algorithm.critic_metrics is not None
  view: Any = phase.models["reward"].view
  batch = objective.without_overlong(config, batch)
  batch = algorithm.prepare(config, batch)
  values = reward_models.of_batch(
    phase.plan, view(params), batch, algorithm.couples_group
  )
  return algorithm.critic_metrics(config, values, batch)
