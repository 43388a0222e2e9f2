"""Cosines between the gradients of domains: do they help or hinder each other?

    result = interference.measure(run.loaded, num_prompts=64)
    result.cosines[0, 1]   # Between the gradients of two domains.

For each domain a policy completes prompts of that domain alone, and the
gradient of the phase's objective is taken at its parameters, without clipping
and before the optimizer. A cosine below 0 means that a small step for one
domain is a step back for the other. A gradient of few prompts is noisy. The
cosine of two batches of one domain, on the diagonal, shows the noise, and
bounds the cosines between domains.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.algorithms import objective
from grpo_jax.ops import masked
from grpo_jax.step import step
from grpo_jax.step import update as update_lib
from grpo_jax.training.phases import checkpointed, judging, policy
from grpo_jax.training.runtime import jit, sharding
from grpo_jax.types import Prompts, PyTree, Rollout, Scored, TrainState


@dataclasses.dataclass(frozen=True)
class Interference:
  """Compared gradients of D domains.

  Attributes:
    cosines: Mean cosine of gradients from different batches [D, D]; those on
      the diagonal are of two batches of one domain. NaN if all gradients of a
      domain are 0, since no group had different rewards.
    norms: Mean norm of the gradients of each domain [D].
  """

  names: tuple[str, ...]
  cosines: np.ndarray
  norms: np.ndarray


def measure(
  loaded: checkpointed.Loaded,
  *,
  phase: str = "",
  num_prompts: int = 64,
  num_batches: int = 4,
  seed: int = 0,
) -> Interference:
  """Compares the gradients of all domains at the parameters of a run.

  Args:
    loaded: A trained policy, whose data have domains.
    phase: Name of the phase with the objective; empty: the last one that draws
      completions and trains the policy.
    num_prompts: Prompts of a batch; each has as many completions as in the
      phase.
    num_batches: Batches of each domain, 2 or more.
    seed: Seed of the prompts and of the draws.

  Raises:
    ValueError: There are no domains, no such phase, or too few batches.
  """
  config, problem = loaded.config, loaded.problem
  if not problem.domains:
    raise ValueError(
      "interference: the prompts of the run have no domains (docs/domains.md);"
      " there are no gradients to compare."
    )
  if num_batches < 2:
    raise ValueError(
      f"interference: num_batches is {num_batches}; needs 2 or more, to"
      " tell a difference from noise."
    )
  name = _phase(loaded, phase)
  config = config.with_section(
    name,
    num_prompts=num_prompts,
    max_rounds=1,
    when_short="fewer",
    recycle_surplus=False,
    replay_size=0,
  )
  index = config.phases.index(name)
  mesh = loaded.mesh
  with jax.set_mesh(mesh):
    entered = checkpointed.make_phases(config, problem, loaded.policy, mesh)[
      index
    ]
    start = policy.state_of(loaded.params, loaded.policy, seed)
    state = entered.enter(checkpointed.with_outside(start, entered.phase))
    gradient = _gradient(loaded, entered.phase)
    gradients = []  # [D][batches], each a flat vector.
    for domain in problem.domains:
      stream = problem.prompt_stream(
        seed,
        num_prompts,
        None,
        names=(domain,),
        hints=policy.hints(config, problem, name),
      )
      vectors = []
      for _ in range(num_batches):
        batch = next(stream)
        # The key of a step depends on its number, so each batch has own draws.
        state = dataclasses.replace(state, step=state.step + 1)
        vectors.append(gradient(state, batch))
      gradients.append(vectors)
  return compared(problem.domains, np.array(gradients))


def compared(
  names: tuple[str, ...],
  gradients: np.ndarray,  # [D, batches, parameters]
) -> Interference:
  """Compares gradients, each of a batch of its own, by their cosines."""
  norms = np.linalg.norm(gradients, axis=-1)  # [D, batches]
  with np.errstate(invalid="ignore", divide="ignore"):
    unit = gradients / norms[..., None]
  products = np.einsum("ian,jbn->ijab", unit, unit)  # [D, D, batches, batches]
  is_other = ~np.eye(gradients.shape[1], dtype=bool)
  cosines = np.full((len(names),) * 2, np.nan)
  for i, row in enumerate(products):
    for j, cell in enumerate(row):
      # Batches of two domains always differ, also those of equal number.
      values = cell[is_other] if i == j else cell
      finite = values[np.isfinite(values)]
      if finite.size:
        cosines[i, j] = finite.mean()
  return Interference(names, cosines, norms.mean(axis=1))


def _phase(loaded: checkpointed.Loaded, phase: str) -> str:
  """The name of the phase with the objective."""
  config = loaded.config
  phases = [
    name
    for name in config.phases
    if config.section(name).samples and "policy" in config.section(name).trains
  ]
  if not phases or (phase and phase not in phases):
    raise ValueError(
      f"interference: phase={phase!r}; those of the run that draw completions"
      f" and train the policy are {', '.join(phases) or 'none'}."
    )
  return phase or phases[-1]


def _gradient(
  loaded: checkpointed.Loaded, phase: step.Phase
) -> Callable[[TrainState, Any], np.ndarray]:
  """Makes (state, batch of prompts) -> the gradient of the policy, flat."""
  problem, mesh = loaded.problem, loaded.mesh
  rows, replicated = sharding.by_rows(mesh), sharding.replicated(mesh)
  if problem.sessions is not None:
    raise ValueError(
      "interference: the episodes of this run are played on the host, which"
      " this program does not; use data without config.data.environment."
    )
  reward: Any = phase.reward
  sampler: Any = phase.sampler
  if sampler.greedy is not None:
    raise ValueError(
      f"interference: algorithm {phase.algorithm.name!r} compares with greedy"
      " completions, which this program does not draw; choose another one."
    )
  if "expected" in phase.algorithm.needs:
    raise ValueError(
      f"interference: algorithm {phase.algorithm.name!r} compares with what a"
      " schedule knows of its prompts, and these prompts are drawn by none;"
      " choose another one."
    )
  (loss,) = [x for x in phase.losses if "policy" in x.trains]

  def of_rows(
    state: TrainState, prompts: Prompts, rollout: Rollout, scored: Scored
  ) -> PyTree:
    batch = objective.make_train_batch(
      phase.algorithm,
      phase.config,
      prompts,
      rollout,
      scored,
      state.algorithm_state,
      None,
    )
    batch = step.prepare(state, batch, step.step_keys(state)[1], phase=phase)
    gradients, _ = update_lib.gradient(phase.update, loss, state.params, batch)
    leaves = jax.tree.leaves(masked.wide(gradients["policy"]))
    return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])

  sample = jit.Program(
    functools.partial(step.sample_stage, phase=phase),
    replicated,
    out_shardings=rows,
  )
  learn = jit.Program(
    lambda state, prompts, rollout, host_scores: of_rows(
      state,
      prompts,
      rollout,
      reward.score(
        state.params, prompts, rollout, host_scores, step=state.phase_step
      ),
    ),
    replicated,
  )

  def gradient(state: TrainState, batch: Any) -> np.ndarray:
    prompts = sharding.from_local(batch.prompts, rows)
    rollout = sample(state, prompts)
    host_scores = None
    if problem.reward.on_host is not None:
      local = judging.rollout_to_judge(mesh, rollout)
      scores, _, _ = problem.host_scores(batch, local)
      host_scores = sharding.from_local(scores, sharding.by_rows_once(mesh))
    return np.asarray(learn(state, prompts, rollout, host_scores))

  return gradient


def table(result: Interference) -> list[str]:
  """Formats the cosines as lines, one for each domain."""
  width = max(8, *(min(len(name), 12) for name in result.names))
  names = [name[:width] for name in result.names]
  head = "".join(f" {name:>{width}}" for name in [*names, "norm"])
  lines = [f"{'cosine':<{width}}{head}"]
  for name, row, norm in zip(names, result.cosines, result.norms, strict=True):
    cells = "".join(f" {'–' if x != x else f'{x:.3f}':>{width}}" for x in row)
    lines.append(f"{name:<{width}}{cells} {norm:>{width}.3g}")
  return lines
