"""What a policy is held to: its reference, or one or several teachers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

from grpo_jax.settings import config as config_lib
from grpo_jax.step import members, teachers
from grpo_jax.step.members import Member
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.training.phases.outside import Outside
from grpo_jax.types import MemberState, Policy, PyTree

MEMBER = "reference"


def paths(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """Member -> workdir or checkpoint, of references from outside of the run."""
  found = phase.reference_workdirs
  if len(found) == 1:
    return {MEMBER: found[0]}
  return {f"{MEMBER}{number}": path for number, path in enumerate(found)}


@dataclasses.dataclass(frozen=True)
class References:
  """The reference of a phase, or its teachers.

  Attributes:
    algorithm: Name of the algorithm of the phase, for messages.
    phase: Settings of the phase.
    policy: The policy.
    outside: Models that are not of this run, by the name of the member, with
      those of `paths` among them.
  """

  algorithm: str
  phase: config_lib.PhaseConfig
  policy: Policy
  outside: Mapping[str, Outside]

  def made(
    self, plan: UpdatePlan, required: frozenset[str], topk: int
  ) -> dict[str, Member]:
    """By name.

    Args:
      plan: How rows become micro-batches.
      required: Optional inputs that the objective reads.
      topk: How many likeliest tokens of a teacher it reads.
    """
    fields = functools.partial(members.reference_fields, plan, required, topk)
    models = [*paths(self.phase)]
    if not models:
      return {
        MEMBER: Member(
          start=self._start,
          view=self._view(),
          fields=fields,
          scope="reference",
          continues=not self.phase.set_reference,
        )
      }
    found = {}
    for number, name in enumerate(models):
      model = self.outside[name]
      found[name] = Member(start=model.start(name), read=model.read)
      if self.phase.reference_mixture and number > 0:
        continue  # The first one speaks for all.
      found[name] = dataclasses.replace(
        found[name],
        view=self._view(name),
        fields=fields,
        domain=number if self.phase.has_teachers_of_domains else None,
        scope="reference",
      )
    return found

  def head(self) -> Callable[..., teachers.Head]:
    """(parameters of all members, rows) -> what makes logits of `ref_h`."""
    if self.phase.has_teachers_of_domains:
      return functools.partial(teachers.head_of_domains, self._teachers())
    view = self._view()
    return lambda params, batch: view(params).head

  def _view(self, name: str = MEMBER) -> Callable[..., members.View]:
    """How a reference is run, or the mixture of all."""
    if self.phase.reference_mixture:
      return functools.partial(
        teachers.mixture_view, self._teachers(), self.phase.reference_mixture
      )
    if (model := self.outside.get(name)) is not None:
      return functools.partial(members.outside_view, model.policy, name)
    return functools.partial(members.frozen_view, self.policy, name)

  def _teachers(self) -> tuple[teachers.Teacher, ...]:
    found = {name: self.outside[name] for name in paths(self.phase)}
    return tuple(
      teachers.Teacher(model.policy, name, model.width)
      for name, model in found.items()
    )

  def _start(self, before: Mapping[str, MemberState]) -> PyTree:
    if self.phase.set_reference:
      return members.moving(before["policy"].params)
    if MEMBER in before:
      return before[MEMBER].params
    raise ValueError(
      f"algorithm {self.algorithm!r} needs a reference policy, and there is"
      " none yet; set set_reference=True in the phase, or kl_coef=0."
    )
