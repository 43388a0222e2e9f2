"""Models of a phase beside the policy: references, opponents, reward models.

A reference, or one or several teachers, is what a KL divergence of the policy
is measured to (`References`).

Opponents play with the policy in environments that have seats for others:

    config.rl.opponents = ("start", "runs/another")

Each opponent is a frozen model of the phase, "opponent1", "opponent2", …;
"self" is the policy as it is, which needs no further model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.rollout import seats
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.phase import RewardModelConfig
from grpo_jax.step import models as models_lib
from grpo_jax.step import reward_models
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.models import Model
from grpo_jax.training.phases import sampler
from grpo_jax.types import ModelState, Policy, PyTree


@dataclasses.dataclass(frozen=True)
class Outside:
  """A model that is not of this run.

  Attributes:
    policy: The model, of its own architecture, with as many logits as the
      policy of the run. Rows of its table that no token has are left out, and
      ids for which it has no row get the lowest of its logits.
    shapes: Shapes of its parameters, which share nothing with those of the run.
    read: () -> its parameters, on the mesh of the run.
    width: Width of its hidden states.
  """

  policy: Policy
  shapes: PyTree
  read: Callable[[], PyTree]
  width: int

  def start(self, name: str) -> Callable[[Any], PyTree]:
    """Makes `Model.start` of a model that is read before its phase begins."""

    def start(before):
      if name in before:
        return before[name].params
      return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.shapes)

    return start


MEMBER = "reference"


def paths(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """The workdir or checkpoint of each reference from outside, by name."""
  workdirs = phase.reference_workdirs
  if len(workdirs) == 1:
    return {MEMBER: workdirs[0]}
  return {f"{MEMBER}{number}": path for number, path in enumerate(workdirs)}


@dataclasses.dataclass(frozen=True)
class References:
  """The reference of a phase, or its teachers.

  Attributes:
    algorithm: Name of the algorithm of the phase, for messages.
    outside: Models from outside of the run, by name, with those of `paths`
      among them.
  """

  algorithm: str
  phase: config_lib.PhaseConfig
  policy: Policy
  outside: Mapping[str, Outside]

  def make(
    self, plan: UpdatePlan, required: frozenset[str], topk: int
  ) -> dict[str, Model]:
    """Makes the models, by name.

    Args:
      topk: Number of likeliest tokens of a teacher that it reads.
    """
    fields = functools.partial(
      models_lib.reference_fields, plan, required, topk
    )
    names = [*paths(self.phase)]
    if not names:
      return {
        MEMBER: Model(
          start=self._start,
          view=self._view(),
          fields=fields,
          scope="reference",
          continues=not self.phase.set_reference,
        )
      }
    models = {}
    for number, name in enumerate(names):
      model = self.outside[name]
      models[name] = Model(start=model.start(name), read=model.read)
      if self.phase.reference_mixture and number > 0:
        continue  # The view of the first one is that of the mixture.
      models[name] = dataclasses.replace(
        models[name],
        view=self._view(name),
        fields=fields,
        domain=number if self.phase.has_teachers_of_domains else None,
        scope="reference",
      )
    return models

  def head(self) -> Callable[..., models_lib.Head]:
    """Returns (all parameters, rows) -> the head for `reference.h`."""
    if self.phase.has_teachers_of_domains:
      return functools.partial(models_lib.head_of_domains, self._teachers())
    view = self._view()
    return lambda params, batch: view(params).head

  def _view(self, name: str = MEMBER) -> Callable[..., models_lib.ModelView]:
    """The view of a reference, or of the mixture of all references."""
    if self.phase.reference_mixture:
      return functools.partial(
        models_lib.mixture_view, self._teachers(), self.phase.reference_mixture
      )
    if (model := self.outside.get(name)) is not None:
      return functools.partial(models_lib.outside_view, model.policy, name)
    return functools.partial(models_lib.frozen_view, self.policy, name)

  def _teachers(self) -> tuple[models_lib.Teacher, ...]:
    models = {name: self.outside[name] for name in paths(self.phase)}
    return tuple(
      models_lib.Teacher(model.policy, name, model.width)
      for name, model in models.items()
    )

  def _start(self, before: Mapping[str, ModelState]) -> PyTree:
    if self.phase.set_reference:
      return models_lib.moving(before["policy"].params)
    if MEMBER in before:
      return before[MEMBER].params
    raise ValueError(
      f"algorithm {self.algorithm!r} needs a reference policy, and there is"
      " none yet; set set_reference=True in the phase, or kl_coef=0."
    )


SELF = "self"
START = "start"


def _models(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """The opponents of a phase that are not the policy, each once, by name."""
  others = dict.fromkeys(name for name in phase.opponents if name != SELF)
  return {f"opponent{i}": name for i, name in enumerate(others, 1)}


def from_outside(phase: config_lib.PhaseConfig) -> dict[str, str]:
  """The workdir or checkpoint of each opponent from outside, by name."""
  return {k: where for k, where in _models(phase).items() if where != START}


def opponents(
  phase: config_lib.PhaseConfig, policy: Policy, outside: Mapping[str, Outside]
) -> dict[str, Model]:
  """Makes the models of the opponents of a phase, by name.

  Args:
    outside: Models of `from_outside`, by name.
  """

  def start(before: Mapping[str, ModelState]) -> PyTree:
    return models_lib.moving(before["policy"].params)

  models = {}
  for name in _models(phase):
    if (model := outside.get(name)) is not None:
      models[name] = Model(
        start=model.start(name),
        view=functools.partial(models_lib.outside_view, model.policy, name),
        read=model.read,
      )
    else:
      view = functools.partial(models_lib.frozen_view, policy, name)
      models[name] = Model(start=start, view=view)
  return models


def table(
  phase: config_lib.PhaseConfig,
  policy: Policy,
  all_models: Mapping[str, Model],
  outside: Mapping[str, Outside],
) -> sampler.Table | None:
  """Assigns the seats of a phase; None if the policy has all seats.

  Args:
    all_models: Models of the phase, with those of `opponents` among them.
    outside: As in `opponents`.
  """
  if not phase.opponents:
    return None
  others = _models(phase)
  policies = [outside[k].policy if k in outside else policy for k in others]
  views = [all_models[name].view for name in others]
  number = {SELF: 0, **{name: i for i, name in enumerate(others.values(), 1)}}
  return sampler.Table(
    seats.Opponents(
      tuple(policies), tuple(number[name] for name in phase.opponents)
    ),
    tuple(view for view in views if view is not None),
  )


def steps(
  settings: RewardModelConfig, tokenizer: Any
) -> reward_models.Steps | None:
  """Finds the tokens that end a step; None without a process reward model.

  Raises:
    ValueError: No token has such an end, or the tokenizer does not say.
  """
  if not settings.step_ends:
    return None
  ends = tuple(text.encode() for text in settings.step_ends)
  is_end = np.array([x.endswith(ends) for x in tokenizer.token_bytes()])
  if not is_end.any():
    raise ValueError(
      f"config.reward_model.step_ends={settings.step_ends}: no token of the"
      " tokenizer ends so, and no step would end; name the last characters of a"
      " token, such as ';'."
    )
  return reward_models.Steps(is_end, settings.of_steps)
