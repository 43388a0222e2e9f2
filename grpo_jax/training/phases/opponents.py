"""Who plays with the policy, in environments that have seats for others.

    config.rl.opponents = ("start", "runs/another")

Each is a frozen member of the phase, "opponent1", "opponent2", …; "self" is the
policy as it is, which needs none.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from grpo_jax.rollout import seats
from grpo_jax.settings import config as config_lib
from grpo_jax.step import members
from grpo_jax.step.members import Member
from grpo_jax.training.phases import outside as outside_lib
from grpo_jax.training.phases import players
from grpo_jax.types import MemberState, Policy, PyTree

SELF = "self"
START = "start"


def _models(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """Member -> what it is, each once, of opponents that are not the policy."""
  others = dict.fromkeys(name for name in phase.opponents if name != SELF)
  return {f"opponent{i}": name for i, name in enumerate(others, 1)}


def from_outside(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """Member -> workdir or checkpoint, of those that are not of this run."""
  return {k: where for k, where in _models(phase).items() if where != START}


def made(
  phase: config_lib.PhaseConfig,
  policy: Policy,
  outside: Mapping[str, outside_lib.Outside],
) -> dict[str, Member]:
  """The members that the opponents of a phase are, by name.

  Args:
    phase: Settings of the phase.
    policy: The policy.
    outside: By name of the member, those of `from_outside`.
  """

  def start(before: Mapping[str, MemberState]) -> PyTree:
    return members.moving(before["policy"].params)

  found = {}
  for name in _models(phase):
    if (model := outside.get(name)) is not None:
      found[name] = Member(
        start=model.start(name),
        view=functools.partial(members.outside_view, model.policy, name),
        read=model.read,
      )
    else:
      view = functools.partial(members.frozen_view, policy, name)
      found[name] = Member(start=start, view=view)
  return found


def table(
  phase: config_lib.PhaseConfig,
  policy: Policy,
  all_members: Mapping[str, Member],
  outside: Mapping[str, outside_lib.Outside],
) -> players.Table | None:
  """Who sits where in a phase; None if the policy has all seats.

  Args:
    phase: Settings of the phase.
    policy: The policy.
    all_members: Those of `made` among them.
    outside: As in `made`.
  """
  if not phase.opponents:
    return None
  others = _models(phase)
  policies = [outside[k].policy if k in outside else policy for k in others]
  views = [all_members[name].view for name in others]
  number = {SELF: 0, **{name: i for i, name in enumerate(others.values(), 1)}}
  return players.Table(
    seats.Opponents(
      tuple(policies), tuple(number[name] for name in phase.opponents)
    ),
    tuple(view for view in views if view is not None),
  )
