"""Transforms: functions of one's own inside a step, between scores and losses.

    def short(batch, limit=200.0):
      \"\"\"Leaves out the groups whose mean length is above the limit.\"\"\"
      lengths = batch.mask.sum(axis=-1)  # [B] tokens
      rows = batch.valid, batch.group_id, batch.num_groups
      mean = baselines.group_statistics(lengths, *rows).mean  # [G]
      kept = mean <= limit
      valid = batch.valid & kept[batch.group_id]
      return dataclasses.replace(batch, valid=valid), {"kept": kept.mean()}

    config.rl.transforms = (short,)
    config.rl.transform_options = {"short": {"limit": 100.0}}

A transform sees the rows of the whole batch, scored, before a model has looked
at them and before advantages. It is compiled into the step. It may lower
`mask` and `valid`, and change `rewards`.

An object with a method `init` remembers something from step to step:

    class Centred:
      \"\"\"Subtracts the mean reward of earlier steps, which fades.\"\"\"

      def __init__(self, decay=0.9):
        self.decay = decay

      def init(self):
        return jnp.float32(0)

      def __call__(self, mean, batch):
        centred = dataclasses.replace(batch, rewards=batch.rewards - mean)
        now = masked.mean(batch.rewards, batch.valid)
        after = self.decay * mean + (1 - self.decay) * now
        return after, centred, {"baseline": mean}

A path of the class is enough: its options make the object. Its memory begins
anew in each phase, is saved with the run, and stays as it is in a step that
trains nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.step import update
from grpo_jax.types import Metrics, PyTree, TrainBatch, TrainState

# (batch) -> (batch, metrics), or (memory, batch) -> (memory, batch, metrics).
Transform = Callable[..., tuple[Any, ...]]
CHANGED = ("mask", "valid", "rewards")
PREFIX = "transform/"  # Of the names of metrics.


def bind(transform: Transform, options: Mapping[str, Any]) -> Transform:
  """Gives options to a transform; of a class, makes the object.

  Raises:
    TypeError: It has no such arguments, or needs others.
  """
  if isinstance(transform, type):
    return transform(**options)
  inspect.signature(transform).bind_partial(**options)
  bound = functools.partial(transform, **options)
  return functools.update_wrapper(bound, transform) if options else transform


def enter(transforms: tuple[Transform, ...]) -> dict[str, PyTree] | None:
  """The memories at the start of a phase, by the places of their transforms."""
  memories = {
    str(place): jax.tree.map(jnp.asarray, transform.init())
    for place, transform in enumerate(transforms)
    if hasattr(transform, "init")
  }
  return memories or None


def advance(
  transforms: tuple[Transform, ...],
  state: TrainState,
  batch: TrainBatch,
  trains: jax.Array | None,
) -> tuple[TrainState, TrainBatch, Metrics]:
  """Applies transforms in a step; without `trains` their memories stay."""
  batch, metrics, memories = apply(transforms, batch, state.transforms)
  memories = update.select(trains, memories, state.transforms)
  return dataclasses.replace(state, transforms=memories), batch, metrics


def apply(
  transforms: tuple[Transform, ...],
  batch: TrainBatch,
  memories: dict[str, PyTree] | None = None,
) -> tuple[TrainBatch, Metrics, dict[str, PyTree] | None]:
  """Applies transforms to a scored batch, one after another.

  A row that is not valid any more, or whose reward is not finite, is not
  trained, and its reward is 0. A token or a row that was left out before stays
  so.

  Args:
    batch: B rows before advantages.
    memories: As from `enter`, or from the step before.

  Returns:
    The batch; the metrics, with `PREFIX` before their names; and the memories.

  Raises:
    ValueError: A transform returns something else, changes another field or a
      shape, or has the metric of another one.
  """
  metrics: Metrics = {}
  after_step = dict(memories or {})
  for i, transform in enumerate(transforms):
    place = str(i)
    memory = [after_step[place]] if place in after_step else []
    result = transform(*memory, batch)
    if not (
      isinstance(result, tuple)
      and len(result) == len(memory) + 2
      and isinstance(result[-2], TrainBatch)
      and isinstance(result[-1], dict)
    ):
      form = "memory, batch" if memory else "batch"
      raise ValueError(
        f"{_label(transform)} returns {type(result).__name__}; needs"
        f" ({form}, {{name: metric}})."
      )
    *new_memory, after, values = result
    if memory:
      after_step[place] = _like(transform, memory[0], new_memory[0])
    _check_fields(transform, batch, after)
    valid = batch.valid & after.valid & jnp.isfinite(after.rewards)
    batch = dataclasses.replace(
      batch,
      mask=batch.mask & after.mask & valid[:, None],
      valid=valid,
      rewards=jnp.where(valid, after.rewards, 0.0),
    )
    for name, value in values.items():
      if PREFIX + name in metrics or jnp.shape(value):
        raise ValueError(
          f"{_label(transform)} has the metric {name!r} of shape"
          f" {jnp.shape(value)}; needs a number, under a name that no other"
          " transform has."
        )
      metrics[PREFIX + name] = jnp.asarray(value, jnp.float32)
  return batch, metrics, after_step or None


def _like(transform: Transform, before: PyTree, after: PyTree) -> PyTree:
  """Returns the new memory, which has the arrays of the memory before."""
  after = jax.tree.map(jnp.asarray, after)
  expected, actual = (
    jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", tree)
    for tree in (before, after)
  )
  if actual != expected:
    raise ValueError(
      f"{_label(transform)} returns the memory {actual}; needs one as from"
      f" its init, {expected}."
    )
  return after


def _check_fields(
  transform: Transform, before: TrainBatch, after: TrainBatch
) -> None:
  for field in dataclasses.fields(TrainBatch):
    old, new = getattr(before, field.name), getattr(after, field.name)
    if field.name not in CHANGED:
      if [*map(id, jax.tree.leaves(old))] != [*map(id, jax.tree.leaves(new))]:
        raise ValueError(
          f"{_label(transform)} changes {field.name!r}; needs a batch in"
          f" which only {', '.join(CHANGED)} differ."
        )
      continue
    expected, actual = ((jnp.shape(x), jnp.result_type(x)) for x in (old, new))
    if actual != expected:
      raise ValueError(
        f"{_label(transform)} returns {field.name!r} with shape {actual[0]} and"
        f" type {actual[1]}; needs {expected[0]} and {expected[1]}."
      )


def _label(transform: Transform) -> str:
  name = getattr(transform, "__name__", type(transform).__name__)
  return f"the transform {name!r}"
