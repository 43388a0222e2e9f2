"""The fixed functions of a phase, which the stages of its steps are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from grpo_jax.algorithms import options
from grpo_jax.rollout import host_turns
from grpo_jax.step import (
  forced_answers,
  kept,
  members,
  partial,
  reservoir,
  schedules,
)
from grpo_jax.step import guards as guards_lib
from grpo_jax.step import update as update_lib
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.types import Algorithm, Judge, Player, Policy, PyTree


@dataclasses.dataclass(frozen=True)
class Parts:
  """The fixed functions of a phase.

  Attributes:
    policy: The model.
    algorithm: The objective.
    config: Its config.
    plan: Epochs, minibatches, micro-batches.
    members: The models of the phase, by name; what they say of a batch is asked
      in this order.
    losses: What trains them.
    player: Who writes completions; None in phases whose completions are given.
    judge: Who scores them; None in phases whose completions are given.
    keeps: Names of members that a later phase needs and this one has not.
    constrain_rows: Keeps row-indexed arrays sharded over the mesh.
    constrain_trained: Keeps {member: its trained leaves} so.
    max_rounds: R. A step gets R · P prompts and trains on P groups, which it
      draws in up to R rounds; see `rounds.py`.
    when_short: What the step does if it finds fewer; see `rounds.py`.
    staleness: Updates between the parameters that draw a rollout and those
      that it trains, at most.
    partial: How rollouts are cut where a step ends; None: they are drawn whole.
    guards: Bounds of what one prompt can do; None: none.
    history: Old groups among those that a reward model learns from; None: none.
    kept: What waits of the groups that are drawn for later steps; None:
      nothing does.
    domains: Names of the domains of prompts, whose metrics are told apart.
    forced: The answers that are forced after segments; None: no algorithm asks
      what is expected of a prefix.
    schedule: Which prompts of a pool come next; None: they come in an order of
      their own.
    proxy: Components of a reward model that judges and of what is true, and
      whether scores are logits; None: none judges.
    consistent: The component that says whether answers follow from the
      reasoning; or empty.
  """

  policy: Policy
  algorithm: Algorithm
  config: Any
  plan: UpdatePlan
  members: dict[str, members.Member]
  losses: tuple[update_lib.Loss, ...]
  player: Player | host_turns.HostPlayer | None = None
  judge: Judge | None = None
  keeps: frozenset[str] = frozenset()
  constrain_rows: Callable[[PyTree], PyTree] = lambda rows: rows
  constrain_trained: Callable[[PyTree], PyTree] = lambda trained: trained
  max_rounds: int = 1
  when_short: str = "fewer"
  staleness: int = 0
  partial: partial.Partial | None = None
  guards: guards_lib.Guards | None = None
  history: reservoir.Reservoir | None = None
  kept: kept.Kept | None = None
  domains: tuple[str, ...] = ()
  forced: forced_answers.ForcedAnswers | None = None
  schedule: schedules.Schedule | None = None
  proxy: tuple[str, str, bool] | None = None
  consistent: str = ""

  def __post_init__(self):
    required = options.needs(self.algorithm, self.config)
    if required & {"routing", "router"} and not self.policy.num_experts:
      raise ValueError(
        f"algorithm {self.algorithm.name!r}: keep_routing, balance_coef and"
        " router_bias_step are about experts, and the model has none; leave"
        " them out, or use a model with experts (config.model.num_experts)."
      )

  @property
  def update(self) -> update_lib.Update:
    """What the gradient steps need."""
    return update_lib.Update(
      self.plan,
      self.members,
      self.losses,
      self.algorithm.couples_group,
      self.constrain_rows,
      self.constrain_trained,
    )

  @property
  def num_ahead(self) -> int:
    """Batches whose rollouts are drawn before their step."""
    return 0 if self.partial is not None else self.staleness

  @property
  def is_told_prompts(self) -> bool:
    """Whether the state says which prompts a step has."""
    return self.schedule is not None or self.partial is not None

  @property
  def trains_policy(self) -> bool:
    """Whether some loss changes what draws completions."""
    return any("policy" in loss.trains for loss in self.losses)
