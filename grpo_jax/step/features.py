"""The optional features of a step, each as it is in a phase without it.

A step calls all of them, each at its place. The classes here read no arguments,
do nothing, and add nothing to the program. The features derive from them. What
they remember is in the state: in `schedule`, `waiting`, `reservoir`, `guards`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from grpo_jax.types import Metrics, Policy, PyTree, TrainBatch, TrainState


class Schedule:
  """The choice of the next prompts (`prompts.py`): the order of the data."""

  chooses = False

  def enter(self, key: jax.Array, step: Any) -> PyTree:
    """The schedule at the start of a phase, at `step` of the run."""
    return None

  def feedback(self, groups: Any) -> Any:
    """The results of the prompts of a step."""
    return None

  def with_samples(
    self,
    plan: Any,
    policy: Policy,
    state: TrainState,
    groups: Any,
    batch: TrainBatch,
    feedback: Any,
  ) -> Any:
    """Adds a completion of each prompt, and the policy's drift, to feedback."""
    return feedback

  def expected(self, state: TrainState, groups: Any) -> Any:
    """The estimated probability that a row is right, [B]."""
    return None

  def advance(
    self, state: TrainState, feedback: Any
  ) -> tuple[TrainState, Metrics]:
    """Draws the prompts of the next step."""
    return state, {}


class WaitingGroups:
  """Groups that wait for later steps (`dynamic_sampling.py`): none do."""

  waits = False

  def enter(self, draw: Callable[..., Any]) -> PyTree:
    """The groups at the start of a phase; `draw` draws a round."""
    return None

  def mix(
    self, state: TrainState, groups: Any, key: jax.Array, constrain_rows: Any
  ) -> tuple[TrainState, Any, Metrics]:
    """Replaces dead groups by replayed ones."""
    return state, groups, {}


class OldGroupMix(NamedTuple):
  """A batch of fresh and old groups.

  Attributes:
    state: The state, with fresh groups in the reservoir.
    is_old: True on rows that an old row has replaced, [B]; None: there are
      none.
  """

  state: TrainState
  batch: TrainBatch
  is_old: Any
  metrics: Metrics


class OldGroups:
  """Old groups for a reward model (`reservoir.py`): there are none."""

  def enter(self, past: PyTree) -> PyTree:
    """The reservoir at the start of a phase, from that of the phase before."""
    return past

  def mix(
    self, state: TrainState, batch: TrainBatch, key: jax.Array
  ) -> OldGroupMix:
    """Replaces some groups by old ones."""
    return OldGroupMix(state, batch, None, {})

  def shown(
    self, fresh: TrainBatch, batch: TrainBatch, is_old: Any
  ) -> TrainBatch:
    """The rows of the update, with the fresh rows in their places."""
    return batch


class PrefixValues:
  """Values of prefixes (`prefix_value.py`): no algorithm reads them."""

  def with_candidates(self, prompts: Any, batch: TrainBatch) -> TrainBatch:
    """Adds segments, and the answers to append after them."""
    return batch

  def with_utilities(
    self, plan: Any, view: Any, batch: TrainBatch, couples_group: bool
  ) -> TrainBatch:
    """Adds the value of each prefix."""
    return batch

  def metrics(self, batch: TrainBatch) -> Metrics:
    """Metrics of the values that `with_utilities` has added."""
    return {}


class StepGuards:
  """Bounds on the influence of a prompt (`guards.py`): there are none."""

  def enter(self) -> PyTree:
    """The memory at the start of a phase."""
    return None

  def admit(
    self, state: TrainState, groups: Any, batch: TrainBatch
  ) -> tuple[TrainBatch, Metrics]:
    """Leaves out the groups that a guard does not admit."""
    return batch, {}

  def weigh(
    self, state: TrainState, batch: TrainBatch, metrics: Metrics
  ) -> tuple[TrainState, TrainBatch, Metrics]:
    """Scales groups down, and remembers them."""
    return state, batch, metrics
