"""Passes of models over the rows of a batch, one micro-batch at a time.

The policy, its reference and its critic run over the same rows in the same
order: forward only (`fields`), or with the gradient of a loss (`gradient`).
Rows that share a prompt share one forward pass of the prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.ops import aggregation, masked
from grpo_jax.step import micro_batches
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.types import (
  Maximum,
  Policy,
  PromptFields,
  PyTree,
  TrainBatch,
  Weighted,
)


class Trunk(NamedTuple):
  """A model without its head, with its parameters.

  Attributes:
    is_free: True if the model's router chooses the experts of tokens, instead
      of the experts that the batch recorded. Mixed inputs are always those of
      the record.
  """

  policy: Policy
  params: PyTree
  is_free: bool = False

  def hidden(self, batch: TrainBatch, prefix: PyTree):
    """Teacher-forced hidden states [B, T, D] of rows, and `aux`."""
    return self.policy.hidden(
      self.params,
      batch.prompts.tokens,
      batch.prompts.mask,
      batch.tokens,
      batch.completion_mask,
      batch.prompt_index,
      self._extras(batch),
      prefix,
    )

  def prefix(self, batch: TrainBatch, prompts: PromptFields) -> PyTree:
    """The prefix that rows read of some prompts; see `Policy`."""
    extras = self._extras(dataclasses.replace(batch, prompts=prompts))
    return self.policy.prefix(self.params, prompts.tokens, prompts.mask, extras)

  def prefixes(
    self, plan: UpdatePlan, batch: TrainBatch, prompts: PromptFields | None
  ) -> PyTree:  # each [N, D, P / D, ...]
    """The prefixes of all prompts; None unless rows share prompts."""
    if not plan.shares_prompts:
      return None
    chunks = micro_batches.split_prompts(plan, prompts)
    if len(chunks.tokens) == 1:
      first = self.prefix(batch, jax.tree.map(lambda x: x[0], chunks))
      prefix = jax.tree.map(lambda x: x[None], first)
    else:
      prefix = jax.lax.map(lambda chunk: self.prefix(batch, chunk), chunks)
    return micro_batches.joined_prompts(plan, prefix, axis=1)

  def _extras(self, batch: TrainBatch) -> dict[str, Any] | None:
    """Model inputs beside tokens: images, mixed inputs, recorded experts."""
    extras: dict[str, Any] = {}
    if batch.prompts.images is not None:
      extras["images"] = batch.prompts.images
    if batch.sampler.mix_ids is not None:
      extras["mix_ids"] = batch.sampler.mix_ids
      extras["mix_weights"] = batch.sampler.mix_weights
    if batch.sampler.routing is not None and not self.is_free:
      extras["prompt_routing"] = batch.prompts.routing
      extras["routing"] = batch.sampler.routing
    return extras or None


def _with_prompts(plan, part, prompts, prefixes):
  """A micro-batch with its prompts, and the prefixes of these prompts."""
  if not plan.shares_prompts:
    return part, None
  return micro_batches.with_prompts(plan, part, prompts, prefixes)


def fields(
  plan: UpdatePlan,
  trunk: Trunk,
  batch: TrainBatch,
  outputs: Callable[[TrainBatch, PyTree], dict[str, jax.Array]],
  couples_group: bool,
) -> dict[str, Any]:
  """Outputs of a forward pass over all rows, by name, without gradient.

  The functions and shapes are those of the update, so that the anchor of the
  importance ratio has the same rounding. Slots that are not trained may be 0.

  Args:
    outputs: (micro-batch, its prefix) -> arrays [rows, slots, ...] or [rows]
      by name.
  """
  num_slots = batch.mask.shape[1]
  local, prompts = micro_batches.own_prompts(plan, batch)
  prefixes = trunk.prefixes(plan, batch, prompts)
  rows = micro_batches.arrange(plan, local, couples_group)

  def of_rows(part):
    return outputs(*_with_prompts(plan, part, prompts, prefixes))

  def write(fields, part, first):
    def put(buffer, x):
      x = x.reshape(plan.num_shards, -1, *x.shape[1:]).astype(buffer.dtype)
      start = 0, first, *[0] * (buffer.ndim - 2)
      return jax.lax.dynamic_update_slice(buffer, x, start)

    return jax.tree.map(put, fields, of_rows(part))

  shape = *rows.length.shape, num_slots
  buffers = jax.tree.map(
    lambda x: jnp.zeros((*shape[: x.ndim + 1], *x.shape[2:]), x.dtype),
    jax.eval_shape(of_rows, local),
  )
  buffers = micro_batches.sweep(plan, local, rows, write, buffers)
  buffers = {name: micro_batches.unsort(rows, x) for name, x in buffers.items()}
  return jax.lax.stop_gradient(buffers)


class Total(NamedTuple):
  """Sums over micro-batches.

  Attributes:
    metrics: Metrics; of a maximum, the largest and not the sum.
    of_prefixes: Gradient with respect to the prefixes of prompts.
  """

  gradients: PyTree
  terms: dict[str, jax.Array]
  metrics: dict[str, Weighted | Maximum]
  of_prefixes: PyTree


def _sum(x: PyTree, y: PyTree) -> PyTree:
  """Adds trees x + y in the dtypes of x."""
  return jax.tree.map(lambda x, y: x + y.astype(x.dtype), x, y)


def _plus(total: Total | None, new: Total) -> Total:
  if total is None:
    return new
  added = _sum(total._replace(metrics={}), new._replace(metrics={}))
  metrics = {
    name: aggregation.combined(x, new.metrics[name])
    for name, x in total.metrics.items()
  }
  return added._replace(metrics=metrics)


def gradient(
  plan: UpdatePlan,
  trunk: Callable[[PyTree], Trunk],
  trained: PyTree,
  batch: TrainBatch,
  loss: Callable[[PyTree, PyTree, TrainBatch], tuple[jax.Array, Any]],
  couples_group: bool = False,
  constrain: Callable[[PyTree], PyTree] = lambda trained: trained,
  enters_trunk: bool = True,
) -> Total:
  """The sum of the gradients of all micro-batches.

  If rows share prompts, the prompts run forward once before all rows. After the
  rows, the prompts run once more, with the backward pass: its input is the sum
  of the gradients from their rows, at least in float32.

  Args:
    trunk: (trained) -> the `Trunk` of the rows.
    trained: Parameters with respect to which the gradient is taken.
    loss: (trained, prefix, micro-batch) -> the micro-batch's part of the loss,
      and (terms, metrics).
    constrain: Keeps trees like `trained` sharded over the mesh.
    enters_trunk: True if the loss has a gradient with respect to the trunk.
  """
  local, prompts = micro_batches.own_prompts(plan, batch)
  arguments = (0, 1) if enters_trunk else (0,)
  differentiated = jax.grad(loss, arguments, has_aux=True)

  def with_rows(total, part, first):
    del first
    index = part.prompt_index
    part, prefix = _with_prompts(plan, part, prompts, prefixes)
    (gradients, *of_rows), (terms, metrics) = differentiated(
      trained, prefix, part
    )
    of_prefixes = None
    if enters_trunk:
      of_prefixes = micro_batches.summed_over_rows(
        plan, index, of_rows[0], prefixes
      )
    new = Total(constrain(gradients), terms, metrics, of_prefixes)
    return _plus(total, new)

  def with_prompts(gradients, inputs):
    chunk, of_chunk = inputs
    chunk_prefix, pull_back = jax.vjp(
      lambda trained: trunk(trained).prefix(batch, chunk), trained
    )
    (of_prompts,) = pull_back(
      jax.tree.map(lambda x, y: x.astype(y.dtype), of_chunk, chunk_prefix)
    )
    return _sum(gradients, constrain(of_prompts))

  prefixes = trunk(trained).prefixes(plan, batch, prompts)
  rows = micro_batches.arrange(plan, local, couples_group)
  total = None  # A single micro-batch keeps the dtypes of parameters.
  if batch.mask.shape[0] > plan.micro_batch_size or rows.order is not None:
    total = masked.wide(
      jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype),
        jax.eval_shape(with_rows, None, local, 0),
      )
    )
    total = total._replace(gradients=constrain(total.gradients))
  total = micro_batches.sweep(plan, local, rows, with_rows, total)
  if prefixes is not None and enters_trunk:
    chunks = micro_batches.split_prompts(plan, prompts)
    of_chunks = micro_batches.split_prompts(plan, total.of_prefixes, axis=1)
    gradients = _over(with_prompts, total.gradients, (chunks, of_chunks))
    total = total._replace(gradients=gradients)
  return total


def _over(
  function: Callable[[Any, PyTree], Any], total: Any, inputs: PyTree
) -> Any:
  """Folds function(total, x) over the leading axis of inputs."""
  if jax.tree.leaves(inputs)[0].shape[0] == 1:
    return function(total, jax.tree.map(lambda x: x[0], inputs))
  return jax.lax.scan(lambda t, x: (function(t, x), None), total, inputs)[0]
