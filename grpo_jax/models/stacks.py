"""Runs of layers that a scan repeats, where layers are in several stacks.

Layers of one kind are one stack of parameters. Their order in the model is a
pattern of kinds, which often repeats itself: dense, experts, dense, experts, …
A run is such a repetition. The scan over a run compiles one period of it, and
takes as many layers of each stack in a step as the period has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.types import PyTree

_MAX_PERIOD = 16  # Layers; longer patterns are cut.


class LayerRun(NamedTuple):
  """Layers whose kinds repeat.

  Attributes:
    first: Number of the first layer.
    period: Stacks of the layers of one repetition.
    repeats: Number of repetitions.
  """

  first: int
  period: tuple[str, ...]
  repeats: int


@functools.cache
def runs(names: tuple[str, ...]) -> tuple[LayerRun, ...]:
  """Cuts the layers into runs, so that as few layers as possible are compiled.

  Args:
    names: The stack of each layer.
  """
  best = _shortest(names, 0)[1]
  return tuple(LayerRun(*run) for run in best)


@functools.cache
def _shortest(names, first):
  """Number of compiled layers from the layer `first` on, and their runs."""
  if first == len(names):
    return 0, ()
  options = []
  for length in range(1, min(_MAX_PERIOD, len(names) - first) + 1):
    period, count = names[first : first + length], 1
    while names[(end := first + count * length) : end + length] == period:
      count += 1
    cost, rest = _shortest(names, end)
    options.append((cost + length, ((first, period, count), *rest)))
  return min(options, key=lambda option: option[0])


class Stacked(NamedTuple):
  """Arrays that are stacked over some of the layers.

  Attributes:
    tree: Arrays whose first axis is a layer.
    has: Whether they have an entry for each layer of the model.
  """

  tree: PyTree
  has: tuple[bool, ...]

  def grouped(self, run: LayerRun) -> PyTree:
    """The entries of a run, [repeats, entries of a period, …].

    An axis of 1 entry is left out. None if the run has no entries.
    """
    ends = run.first, run.first + len(run.period) * run.repeats
    start, stop = (sum(self.has[:end]) for end in ends)
    size = (stop - start) // run.repeats

    def leaf(x):
      x = x if (start, stop) == (0, len(x)) else x[start:stop]
      return x if size == 1 else x.reshape(run.repeats, size, *x.shape[1:])

    return jax.tree.map(leaf, self.tree) if size else None

  def entry(self, of_period: PyTree, run: LayerRun, place: int) -> PyTree:
    """The entry of a layer in a step of `grouped`; None if it has none."""
    has = self.has[run.first : run.first + len(run.period)]
    if not has[place]:
      return None
    number = sum(has[:place])
    if sum(has) == 1:
      return of_period
    return jax.tree.map(lambda x: x[number], of_period)


def scan(
  names: tuple[str, ...],
  layer: Callable[[str, PyTree, dict[str, PyTree]], tuple[PyTree, PyTree]],
  carry: PyTree,
  inputs: dict[str, Stacked],
) -> tuple[PyTree, Callable[[int, tuple[bool, ...]], PyTree]]:
  """Runs the layers, each run of them as a scan.

  Args:
    names: The stack of each layer.
    layer: (stack, carry, entries of the inputs) -> the carry, and a tuple of
      outputs.
    carry: The first carry.
    inputs: Inputs of the layers; layers without an entry receive None.

  Returns:
    The last carry; and a function of the number of an output and of flags of
    the layers that have it, which returns it, stacked over these layers. It
    returns None if there are none.
  """
  scans = []
  for run in runs(names):

    def step(carry, of_period, run=run):
      outputs = []
      for place, name in enumerate(run.period):
        entries = {
          key: inputs[key].entry(x, run, place) for key, x in of_period.items()
        }
        carry, of_layer = layer(name, carry, entries)
        outputs.append(of_layer)
      return carry, tuple(outputs)

    grouped = {key: stacked.grouped(run) for key, stacked in inputs.items()}
    carry, outputs = lax.scan(step, carry, grouped, length=run.repeats)
    scans.append((run, outputs))

  def collected(number, has):
    parts = []
    for run, outputs in scans:
      values = [
        of_layer[number]
        for of_layer, flag in zip(outputs, has[run.first :], strict=False)
        if flag
      ]
      if values:
        parts.append(_ungrouped(values))
    if len(parts) < 2:
      return parts[0] if parts else None
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)

  return carry, collected


def _ungrouped(trees: list[PyTree]) -> PyTree:
  """Leaves [repeats, …] of layers of a period as [repeats · layers, …]."""
  if len(trees) == 1:
    return trees[0]

  def leaf(*x):
    return jnp.stack(x, axis=1).reshape(-1, *x[0].shape[1:])

  return jax.tree.map(leaf, *trees)
