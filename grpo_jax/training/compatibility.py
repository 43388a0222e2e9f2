"""Which features do not go together: one table, read before anything compiles.

A feature is something that a config switches on. A row says which two exclude
each other, why, and what to do. `tests/training/compatibility_test.py` tries
every row, and the pairs that the table allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from grpo_jax.types import Algorithm


@dataclasses.dataclass(frozen=True)
class Setup:
  """What a phase is made of.

  Attributes:
    config: Settings of the run.
    name: Name of the phase.
    phase: Its section of the config.
    problem: Prompts and judges.
    algorithm, objective: The objective of the phase and its config.
    required: Optional inputs that it reads.
  """

  config: Any
  name: str
  phase: Any
  problem: Any
  algorithm: Algorithm
  objective: Any
  required: frozenset[str]


class Feature(NamedTuple):
  """Something that a phase may have.

  Attributes:
    is_on: Whether it has it.
    shown: How a message names it: the setting and its value.
  """

  is_on: Callable[[Setup], bool]
  shown: Callable[[Setup], str]


class Row(NamedTuple):
  """Two features that exclude each other.

  Attributes:
    feature, excludes: Names of features.
    why: The clause of a message between the two and what to do.
    remedy: What to do; may have {name}, the name of the phase.
  """

  feature: str
  excludes: str
  why: str
  remedy: str


def _phase_setting(field: str) -> Callable[[Setup], str]:
  return lambda s: f"config.{s.name}.{field}={getattr(s.phase, field)!r}"


def _option(field: str) -> Callable[[Setup], str]:
  return lambda s: f"config.algorithm.{field}={getattr(s.objective, field)!r}"


def _environment(setup: Setup) -> str:
  if setup.problem.host_environment is not None:
    return f"config.data.environment={setup.config.data.environment!r}"
  return f"the environment of the task {setup.config.data.name!r}"


def _filters(setup: Setup) -> bool:
  drawn = setup.config.sampling
  return any(x is not None for x in (drawn.top_k, drawn.top_p, drawn.min_p))


FEATURES = {
  "lanes": Feature(
    lambda s: s.config.sampling.lanes is not None,
    lambda s: f"config.sampling.lanes={s.config.sampling.lanes}",
  ),
  "environment": Feature(
    lambda s: bool(s.problem.environment or s.problem.host_environment),
    _environment,
  ),
  "environment on the host": Feature(
    lambda s: s.problem.host_environment is not None, _environment
  ),
  "compaction": Feature(
    lambda s: s.problem.compaction is not None,
    lambda s: f"the task {s.config.data.name!r}, which compacts its contexts",
  ),
  "rounds": Feature(
    lambda s: s.phase.max_rounds > 1, _phase_setting("max_rounds")
  ),
  "staleness": Feature(
    lambda s: s.phase.staleness > 0, _phase_setting("staleness")
  ),
  "single completions": Feature(
    lambda s: s.phase.group_size == 1, _phase_setting("group_size")
  ),
  "dynamic sampling": Feature(
    lambda s: s.objective.dynamic_sampling, _option("dynamic_sampling")
  ),
  "no dynamic sampling": Feature(
    lambda s: not s.objective.dynamic_sampling, _option("dynamic_sampling")
  ),
  "scale of the group": Feature(
    lambda s: s.objective.advantage_scale == "group",
    _option("advantage_scale"),
  ),
  "max_live_groups": Feature(
    lambda s: s.objective.max_live_groups > 0, _option("max_live_groups")
  ),
  "overlong_cache": Feature(
    lambda s: s.objective.overlong_cache > 0, _option("overlong_cache")
  ),
  "coupled groups": Feature(
    lambda s: s.algorithm.couples_group,
    lambda s: f"algorithm {s.algorithm.name!r}, which couples completions",
  ),
  "whole completions": Feature(
    lambda s: s.algorithm.whole_completions,
    lambda s: f"algorithm {s.algorithm.name!r}, which reads whole completions",
  ),
  "text in the graph": Feature(
    lambda s: s.config.rewards.in_graph,
    lambda s: f"config.rewards.in_graph={s.config.rewards.in_graph}",
  ),
  "steps of a text": Feature(
    lambda s: bool(s.config.rewards.steps),
    lambda s: f"config.rewards.steps={s.config.rewards.steps!r}",
  ),
  "weights that change": Feature(
    lambda s: bool(s.config.rewards.schedules),
    lambda s: f"config.rewards.schedules={dict(s.config.rewards.schedules)}",
  ),
  "verifiers in the graph only": Feature(
    lambda s: s.problem.judge.on_host is None,
    lambda s: f"config.data.source={s.config.data.source!r}",
  ),
  "no correction": Feature(
    lambda s: "behavior_logp" not in s.required,
    lambda s: f"algorithm {s.algorithm.name!r} without a correction",
  ),
  "sampling mask": Feature(
    lambda s: "kept_ids" in s.required, _option("keep_sampling_mask")
  ),
  "no top_k": Feature(
    lambda s: s.config.sampling.top_k is None,
    lambda s: "config.sampling.top_k=None",
  ),
  "filters without a record": Feature(
    lambda s: _filters(s) and "kept_ids" not in s.required,
    lambda s: (
      "config.sampling, which filters tokens (top_k, top_p or min_p) and"
      " records nothing of it,"
    ),
  ),
  "recorded log-probs": Feature(
    lambda s: "behavior_logp" in s.required,
    lambda s: f"algorithm {s.algorithm.name!r}, which compares log-probs",
  ),
  "several teachers": Feature(
    lambda s: len(s.phase.reference_workdirs) > 1,
    _phase_setting("reference_workdirs"),
  ),
  "rewards by domain": Feature(
    lambda s: bool(s.config.rewards.domains),
    lambda s: f"config.rewards.domains={dict(s.config.rewards.domains)}",
  ),
  "prompts without domains": Feature(
    lambda s: "domain" not in s.problem.provides,
    lambda s: f"config.data.source={s.config.data.source!r} without domains",
  ),
  "distributions of the reference": Feature(
    lambda s: "ref_kl" in s.required,
    lambda s: (
      f"algorithm {s.algorithm.name!r}, which compares whole distributions"
    ),
  ),
  "reward model": Feature(
    lambda s: bool(s.problem.judge.by_members),
    lambda s: f"config.rewards.functions={s.config.rewards.functions}",
  ),
  "canaries with a KL": Feature(
    lambda s: (
      s.config.guards.on
      and s.config.guards.canary_every > 0
      and s.config.guards.canary_max_kl > 0
    ),
    lambda s: f"config.guards.canary_max_kl={s.config.guards.canary_max_kl}",
  ),
}

TABLE = (
  Row(
    "canaries with a KL",
    "compaction",
    "the KL of a canary is of completions in one row",
    "set config.guards.canary_max_kl=0, or choose another task",
  ),
  Row(
    "lanes",
    "environment",
    "the rows of an environment are all decoded at once",
    "set config.sampling.lanes=None",
  ),
  Row(
    "staleness",
    "environment on the host",
    "its rollouts are drawn turn after turn with the host between them, and"
    " none can be on its way while another one is",
    "set config.{name}.staleness=0",
  ),
  Row(
    "rounds",
    "environment on the host",
    "its episodes are drawn in one round",
    "set config.{name}.max_rounds=1, which leaves groups without different"
    " rewards out of the loss",
  ),
  Row(
    "rounds",
    "compaction",
    "a rollout whose context is compacted is several rows, which rounds do not"
    " sort",
    "set config.{name}.max_rounds=1",
  ),
  Row(
    "coupled groups",
    "compaction",
    "a rollout whose context is compacted is several rows of a group",
    "choose another algorithm, or a task without compaction",
  ),
  Row(
    "whole completions",
    "compaction",
    "a rollout whose context is compacted has its tokens in several rows",
    "choose another algorithm, such as 'grpo' or 'compaction_rl', or a task"
    " without compaction",
  ),
  Row(
    "overlong_cache",
    "compaction",
    "it is a share of the budget of a completion, and a rollout whose context"
    " is compacted has one for each context",
    "set config.algorithm.overlong_cache=0",
  ),
  Row(
    "reward model",
    "compaction",
    "a reward model reads a completion in one row",
    "leave it out of config.rewards.functions, or choose another task",
  ),
  Row(
    "reward model",
    "environment on the host",
    "what its sessions say is the whole reward of an episode",
    "leave it out of config.rewards.functions, or use an environment in the"
    " graph",
  ),
  Row(
    "rounds",
    "no dynamic sampling",
    "rounds are drawn until enough groups have rewards that differ, which"
    " dynamic sampling alone asks for",
    "set config.algorithm.dynamic_sampling=True, or config.{name}.max_rounds=1",
  ),
  Row(
    "rounds",
    "max_live_groups",
    "they are two ways to a batch of live groups",
    "to draw on until there are enough, set config.{name}.num_prompts to their"
    " number and config.algorithm.max_live_groups=0; to choose them from one"
    " large batch, set config.{name}.max_rounds=1",
  ),
  Row(
    "dynamic sampling",
    "single completions",
    "it compares the completions of a prompt, and nothing would be trained",
    "set config.algorithm.dynamic_sampling=False, or config.{name}.group_size"
    " to 2 or more",
  ),
  Row(
    "scale of the group",
    "single completions",
    "it compares the completions of a prompt, and nothing would be trained",
    "set config.algorithm.advantage_scale='none', or config.{name}.group_size"
    " to 2 or more",
  ),
  Row(
    "staleness",
    "verifiers in the graph only",
    "the device goes on while the host verifies, and these answers are"
    " verified on the device, in the program of the step",
    "set config.{name}.staleness=0, or take data with verifiers on the host"
    " (config.data.source='jsonl' or 'tfds')",
  ),
  Row(
    "staleness",
    "rounds",
    "the next batches are drawn before this one is verified, and rounds draw"
    " more of this one after that",
    "set config.{name}.staleness=0, or config.{name}.max_rounds=1",
  ),
  Row(
    "staleness",
    "no correction",
    "completions of earlier parameters would be taken for the current ones'",
    "set config.algorithm.importance_mode='truncate' or 'mask', or"
    " config.algorithm.rejection; or set config.{name}.staleness=0",
  ),
  Row(
    "sampling mask",
    "no top_k",
    "top_k bounds the number of tokens that are recorded",
    "set config.sampling.top_k",
  ),
  Row(
    "recorded log-probs",
    "filters without a record",
    "the recorded log-probs are not of the policy that is trained",
    "set config.algorithm.keep_sampling_mask=True, or leave the filters out",
  ),
  Row(
    "several teachers",
    "prompts without domains",
    "the domain of a prompt chooses its teacher",
    "give records an integer 'domain', or name one teacher",
  ),
  Row(
    "rewards by domain",
    "prompts without domains",
    "the domain of a prompt says which rewards are for it",
    "give records an integer 'domain', or leave config.rewards.domains empty",
  ),
  Row(
    "text in the graph",
    "steps of a text",
    "steps of a text are scored by functions on the host",
    "set config.rewards.in_graph=False, or leave config.rewards.steps empty",
  ),
  Row(
    "weights that change",
    "environment on the host",
    "scores of sessions are added up where they come in, without the step",
    "leave config.rewards.schedules empty",
  ),
  Row(
    "several teachers",
    "distributions of the reference",
    "one head at a time makes the logits of a reference",
    "choose 'opd_token' or 'opd_topk', or name one teacher",
  ),
)


def check(setup: Setup) -> None:
  """Raises ValueError if two features of a phase do not go together."""
  for row in TABLE:
    found = [FEATURES[name] for name in (row.feature, row.excludes)]
    if all(feature.is_on(setup) for feature in found):
      one, other = (feature.shown(setup) for feature in found)
      raise ValueError(
        f"{one} and {other} do not go together: {row.why};"
        f" {row.remedy.format(name=setup.name)}."
      )
