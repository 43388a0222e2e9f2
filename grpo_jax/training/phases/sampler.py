"""The sampler of the completions of a phase.

In the graph a sampler is a function of arrays. With an environment on the host
it is a set of compiled parts, between which episodes are played turn after turn
(`host_sampler.py`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax

from grpo_jax.rollout import sampling, seats
from grpo_jax.settings import config as config_lib
from grpo_jax.step import models
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.types import (
  Compaction,
  Environment,
  EpisodeSampler,
  Policy,
  Prompts,
  PyTree,
  Rollout,
  Sampler,
)

if TYPE_CHECKING:
  from grpo_jax.rollout import hints


def make_sample(
  policy: Policy,
  problem: problem_lib.Problem,
  opponents: seats.Opponents | None = None,
) -> Callable:
  """Makes (params, prompts, key, config=…, group_size=…) -> a rollout.

  With opponents `params` are those of all models, as in `sampling.sample`.
  """
  if problem.compaction is None:
    sample: Callable = sampling.sample
    if problem.limits:
      sample = functools.partial(_sample_within, of_domains=problem.limits)
    return functools.partial(
      sample, policy, environment=problem.environment, opponents=opponents
    )
  from grpo_jax.rollout import compaction

  assert problem.environment is not None
  assert isinstance(problem.compaction, Compaction)
  return functools.partial(
    compaction.sample,
    policy,
    environment=problem.environment,
    compaction=problem.compaction,
  )


def _sample_within(
  policy: Policy,
  params: PyTree,
  prompts: Prompts,
  key: jax.Array,
  config: sampling.SamplerConfig,
  group_size: int,
  *,
  of_domains: tuple[int, ...],
  environment: Environment | None,
  opponents: seats.Opponents | None,
) -> Rollout:
  """Samples as `sampling.sample`, with a token budget for each domain.

  Prompts without a domain, such as those of a user, have all slots.
  """
  from grpo_jax.rollout import resumed

  limits = resumed.budgets(
    of_domains, prompts, group_size, config.max_new_tokens
  )
  return sampling.sample(
    policy,
    params,
    prompts,
    key,
    config,
    group_size,
    limits=limits,
    environment=environment,
    opponents=opponents,
  )


def make_sampler(
  policy: Policy,
  problem: problem_lib.Problem,
  config: config_lib.SamplingConfig,
  group_size: int,
  required: frozenset[str],
  table: Table | None = None,
  corrects: hints.Correction | None = None,
) -> Sampler | EpisodeSampler:
  """Makes the sampler of the completions of a phase.

  Args:
    table: Models in the other seats of the environment; None: the policy.
    corrects: Correction of wrong completions; None: there is none.
  """
  sampler = config.sampler(
    problem.max_new_tokens,
    problem.tokenizer.end_ids,
    problem.tokenizer.pad_id,
    record_kept="kept_ids" in required,
    record_routing="routing" in required,
    mix_until=_mix_until(problem, config),
  )
  greedy = dataclasses.replace(
    sampler, temperature=0.0, record_kept=False, record_routing=False, mix=None
  )
  has_greedy = "greedy_rewards" in required
  if problem.host_environment is not None:
    from grpo_jax.training.phases import host_sampler  # Starts processes.

    turns = functools.partial(host_sampler.make_turns, policy, problem)
    return EpisodeSampler(
      turns(sampler, group_size),
      turns(greedy, 1) if has_greedy else None,
      tuple(sorted(problem.score_names)),
    )
  if table is None:
    sample = make_sample(policy, problem)
    bind = functools.partial(models.by_policy, sample)
  else:
    sample = make_sample(policy, problem, table.opponents)
    bind = functools.partial(models.by_models, sample, table.views)
  correct = None
  if corrects is not None:
    from grpo_jax.rollout import hints as hints_lib

    correct = models.by_policy(
      functools.partial(hints_lib.correct, policy),
      config=sampler,
      correction=corrects,
    )
  return Sampler(
    bind(config=sampler, group_size=group_size),
    bind(config=greedy, group_size=1) if has_greedy else None,
    correct,
  )


def _mix_until(
  problem: problem_lib.Problem, sampling: config_lib.SamplingConfig
) -> tuple[int, ...]:
  """The token after which inputs are mixed no more; empty if there is none.

  Raises:
    ValueError: Its text is not one token.
  """
  if not sampling.mix_rate or not sampling.mix_until:
    return ()
  from grpo_jax.training.problem import tokens  # Tokenizers of text.

  where = "config.sampling.mix_until ('' mixes whole completions): mixing ends"
  return tuple(
    tokens.single_ids(problem.tokenizer, [sampling.mix_until], where)
  )


class Table(NamedTuple):
  """Opponents of the policy at a game's table.

  Attributes:
    opponents: Models of the opponents, and the seat that each plays.
    views: For each of the models, (parameters of all models) -> its view.
  """

  opponents: seats.Opponents
  views: tuple[Callable[[models.Params], models.ModelView], ...]
