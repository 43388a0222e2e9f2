"""Partial rollouts of a phase, from the settings of a run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from grpo_jax.data import pipeline
from grpo_jax.rollout import resumed
from grpo_jax.settings import config as config_lib
from grpo_jax.step import models, partial
from grpo_jax.training.phases import kept_groups
from grpo_jax.training.problem.problem import Problem
from grpo_jax.types import Policy


def make(
  config: config_lib.RunConfig,
  problem: Problem,
  policy: Policy,
  name: str,
  required: frozenset[str],
) -> partial.Partial:
  """Makes the partial rollouts of the phase `name`, which has some."""
  phase = config.section(name)
  num_slots, pad_id = problem.max_new_tokens, problem.tokenizer.pad_id
  sampler = config.sampling.sampler(
    num_slots,
    problem.tokenizer.end_ids,
    pad_id,
    record_kept="kept_ids" in required,
  )
  assert phase.partial_len is not None
  length = min(phase.partial_len, num_slots)
  # If every completion ends before the bound, none ever gets more tokens.
  is_bounded = length * (phase.staleness + 1) < num_slots
  return partial.Partial(
    go_on=models.by_policy(
      functools.partial(resumed.continue_rows, policy),
      config=sampler,
      most=num_slots if is_bounded else length,
      environment=problem.environment,
    ),
    prompts=kept_groups.prompt_shapes(
      problem, phase.num_prompts, phase.max_prompt_len or problem.max_prompt_len
    ),
    group_size=phase.group_size,
    pad_id=pad_id,
    length=length,
    staleness=phase.staleness,
    limits=problem.limits,
    environment=problem.environment,
    on_host=problem.host_environment is not None,
  )


def stream(
  problem: Problem, phase: Any, seed: int, rows: Sequence[int]
) -> pipeline.PlacedPrompts:
  """The prompts of a phase with partial rollouts.

  Args:
    phase: Its section of the config.
    rows: Rows of each batch that this process makes.
  """
  return pipeline.PlacedPrompts(
    problem.of_domains(problem.train, phase.domains),
    problem.encoder,
    batch_size=phase.num_prompts,
    max_prompt_len=phase.max_prompt_len or problem.max_prompt_len,
    seed=seed,
    pad_id=problem.tokenizer.pad_id,
    rows=rows,
    more=problem.arrays(),
  )
