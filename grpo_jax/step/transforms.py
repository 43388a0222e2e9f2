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

A transform sees the rows of the whole batch, scored, before a model has looked
at them and before advantages. It is compiled into the step. It may lower
`mask` and `valid`, and change `rewards`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from grpo_jax.types import Metrics, TrainBatch

Transform = Callable[[TrainBatch], tuple[TrainBatch, Metrics]]
CHANGED = ("mask", "valid", "rewards")
PREFIX = "transform/"  # Of the names of metrics.


def apply(
  transforms: tuple[Transform, ...], batch: TrainBatch
) -> tuple[TrainBatch, Metrics]:
  """Applies transforms to a scored batch, one after another.

  A row that is not valid any more, or whose reward is not finite, is not
  trained, and its reward is 0. A token or a row that was left out before stays
  so.

  Args:
    transforms: Functions that return the batch and scalar metrics by name.
    batch: B rows before advantages.

  Returns:
    The batch, and the metrics, with `PREFIX` before their names.

  Raises:
    ValueError: A transform returns something else, changes another field or a
      shape, or has the metric of another one.
  """
  metrics: Metrics = {}
  for transform in transforms:
    made = transform(batch)
    if not (
      isinstance(made, tuple)
      and len(made) == 2
      and isinstance(made[0], TrainBatch)
      and isinstance(made[1], dict)
    ):
      raise ValueError(
        f"{_called(transform)} returns {type(made).__name__}; needed is the"
        " pair (batch, {name: metric})."
      )
    after, values = made
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
          f"{_called(transform)} has the metric {name!r} of shape"
          f" {jnp.shape(value)}; needed is a number, under a name that no other"
          " transform has."
        )
      metrics[PREFIX + name] = jnp.asarray(value, jnp.float32)
  return batch, metrics


def _check_fields(
  transform: Transform, before: TrainBatch, after: TrainBatch
) -> None:
  for field in dataclasses.fields(TrainBatch):
    old, new = getattr(before, field.name), getattr(after, field.name)
    if field.name not in CHANGED:
      if [*map(id, jax.tree.leaves(old))] != [*map(id, jax.tree.leaves(new))]:
        raise ValueError(
          f"{_called(transform)} changes {field.name!r}; needed is a batch in"
          f" which only {', '.join(CHANGED)} differ."
        )
      continue
    needed, given = ((jnp.shape(x), jnp.result_type(x)) for x in (old, new))
    if given != needed:
      raise ValueError(
        f"{_called(transform)} returns {field.name!r} with shape {given[0]} and"
        f" type {given[1]}; needed are {needed[0]} and {needed[1]}."
      )


def _called(transform: Transform) -> str:
  return f"the transform {getattr(transform, '__name__', repr(transform))!r}"
