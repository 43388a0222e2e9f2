"""How the rows of a gradient step become micro-batches of about equal cost.

Rows of about the same number of trained tokens go together, the longest first.
A micro-batch is as long as its longest row needs, of a few lengths that are
compiled, and has the more rows the shorter it is. Rows without any trained
token (dead groups of dynamic sampling, completions that were filtered out) are
not run. If there is only one length, rows keep their order and all are run.
Each device has rows of its own, and its part in every micro-batch.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.types import (
  PyTree,
  TrainBatch,
  fields_where,
  first_slots,
  row_arrays,
)


@dataclasses.dataclass(frozen=True)
class UpdatePlan:
  """How one batch of rows becomes gradient steps.

  Attributes:
    num_epochs: Passes over the batch.
    num_minibatches: Gradient steps per pass; must divide the rows.
    micro_batch_size: Rows of all T slots per forward/backward pass; must divide
      the rows of a minibatch. Changes time and memory, never the gradient.
    temperature: Of the log-probs (the sampling temperature).
    chunk_bytes: Of the logits that exist at a time, over all devices.
    group_size: Adjacent rows of the same prompt, which stay together in
      minibatches of whole groups, and share one pass over their prompt; 1
      where each row goes its own way.
    num_shards: Devices, each with adjacent rows of the batch, that have an
      equal part in every micro-batch; its rows divide by their number.
    group_parts: Devices that have a part each of the rows of a group, and run
      the prompt for these; 1 where a device has whole groups of a minibatch.
    lengths: Completion slots that micro-batches may have instead of all.
    by_domain: Whether rows of one domain stand next to each other, among those
      that need micro-batches of the same slots.
  """

  num_epochs: int = 1
  num_minibatches: int = 1
  micro_batch_size: int = 1
  temperature: float = 1.0
  chunk_bytes: int = 2**26
  group_size: int = 1
  num_shards: int = 1
  group_parts: int = 1
  lengths: tuple[int, ...] = ()
  by_domain: bool = False

  @property
  def num_updates(self) -> int:
    """Gradient steps per batch."""
    return self.num_epochs * self.num_minibatches

  @property
  def shard_size(self) -> int:
    """Rows of a micro-batch on each device."""
    return self.micro_batch_size // self.num_shards

  @property
  def rows_of_prompt(self) -> int:
    """Adjacent rows that read one forward pass of their prompt."""
    return self.group_size // self.group_parts

  @property
  def shares_prompts(self) -> bool:
    """Whether several rows read one forward pass of their prompt."""
    return self.rows_of_prompt > 1

  def sizes(self, num_rows: int, num_slots: int) -> list[tuple[int, int]]:
    """(slots, rows per device) of micro-batches, the longest first.

    All have about the same number of tokens.
    """
    own = num_rows // self.num_shards
    lengths = {n for n in self.lengths if n < num_slots} | {num_slots}
    return [
      (n, min(own, self.shard_size * (num_slots // n)))
      for n in sorted(lengths, reverse=True)
    ]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of a gradient step as devices take them, D devices.

  Attributes:
    arrays: The row-indexed fields of a `TrainBatch`, each [D, N, ...], N rows
      on each device and some without tokens at the end.
    length: Slots up to the last trained token, of a row or of its group.
    order: Where on its device each row stood; None if it still does.
  """

  arrays: dict[str, jax.Array | None]
  length: jax.Array  # [D, N] int32
  order: jax.Array | None  # [D, N] int32


def arrange(plan: UpdatePlan, batch: TrainBatch, couples_group: bool) -> Rows:
  """The rows of a batch in the order in which they are run.

  Args:
    plan: The plan of the update.
    batch: B rows.
    couples_group: Whether groups stay together, by their longest row.
  """
  num_rows, num_slots = batch.mask.shape
  arrays = jax.tree.map(
    lambda x: x.reshape(plan.num_shards, -1, *x.shape[1:]), row_arrays(batch)
  )
  position = jnp.arange(1, num_slots + 1)
  length = jnp.max(arrays["mask"] * position, axis=-1).astype(jnp.int32)
  sizes = plan.sizes(num_rows, num_slots)
  if len(sizes) == 1:
    return Rows(arrays, length, None)
  rank = length
  if couples_group:
    groups = length.reshape(plan.num_shards, -1, plan.group_size)
    rank = jnp.repeat(groups.max(axis=-1), plan.group_size, axis=1)
  # Stable: equally long groups stay whole.
  if plan.by_domain:
    # By the micro-batches that they need; those without tokens are the last.
    needed = sum(rank > slots for slots in (0, *(n for n, _ in sizes)))
    order = jnp.lexsort((arrays["domain"], -needed), axis=1)  # [D, N]
  else:
    order = jnp.argsort(-rank, axis=1, stable=True)
  missing = max(rows for _, rows in sizes) - 1

  def sorted_rows(x):
    x = jax.vmap(lambda x, order: x[order])(x, order)
    return jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))

  return Rows(jax.tree.map(sorted_rows, arrays), sorted_rows(rank), order)


def restored(rows: Rows, x: jax.Array) -> jax.Array:  # [D, N, ...] -> [B, ...]
  """What belongs to the rows, in the order of the batch."""
  if rows.order is not None:
    back = jnp.argsort(rows.order, axis=1)
    x = jax.vmap(lambda x, back: x[back])(x, back)
  return x.reshape(-1, *x.shape[2:])


def sweep(
  plan: UpdatePlan,
  batch: TrainBatch,
  rows: Rows,
  function: Callable[[Any, TrainBatch, jax.Array | int], Any],
  total: Any,
) -> Any:
  """Runs a function over all micro-batches, one after another.

  Args:
    plan: The plan of the update.
    batch: Of which `rows` are.
    rows: From `arrange`.
    function: (total, micro-batch, first) -> total, where the micro-batch has
      the rows from `first` on of each device.
    total: Before the first; may be None if there is only one micro-batch.

  Returns:
    The last total.
  """
  num_rows, num_slots = batch.mask.shape
  own = num_rows // plan.num_shards
  sizes = plan.sizes(num_rows, num_slots)

  def run(total, start, slots, count):
    def take(x):
      x = lax.dynamic_slice_in_dim(x, start, count, axis=1)
      return x.reshape(-1, *x.shape[2:])

    taken: dict[str, Any] = first_slots(jax.tree.map(take, rows.arrays), slots)
    return function(total, dataclasses.replace(batch, **taken), start)

  if len(sizes) == 1:
    ((slots, count),) = sizes
    if count == own:
      return run(total, 0, slots, count)
    return lax.fori_loop(
      0,
      own // count,
      lambda i, total: run(total, i * count, slots, count),
      total,
    )
  longest = jnp.append(rows.length.max(axis=0), 0)  # [N + 1]
  carry = jnp.int32(0), total

  def run_while_longer(carry, slots, count, shorter):
    def run_next(carry):
      start, total = carry
      return start + count, run(total, start, slots, count)

    return lax.while_loop(
      lambda carry: longest[carry[0]] > shorter, run_next, carry
    )

  for i, (slots, count) in enumerate(sizes):
    shorter = sizes[i + 1][0] if i + 1 < len(sizes) else 0
    carry = run_while_longer(carry, slots, count, shorter)
  return carry[1]


def own_prompts(
  plan: UpdatePlan, batch: TrainBatch
) -> tuple[TrainBatch, dict[str, PyTree]]:
  """Rows that count the prompts of their device, and those prompts.

  Returns:
    The batch, whose `prompt_index` is that of a prompt on its device; and the
    fields of a `TrainBatch` about prompts, each [D, P / D, ...]. Where rows do
    not share prompts, the batch as it was, and nothing.
  """
  if not plan.shares_prompts:
    return batch, {}
  own = batch.prompt_index[:: plan.rows_of_prompt]  # [P], or of a minibatch.
  # All rows are there, in the order of the prompts, so that these are where
  # their rows are. The compiler does not see that in a lookup, and sends the
  # prompts of the whole pod to every device.
  in_place = plan.num_minibatches == 1 and len(own) == len(batch.prompt_tokens)

  # Images of one prompt on each device are looked up twice: a lookup of one is
  # a slice of what all devices have, and libtpu 0.0.42 aborts at some of them
  # (AllGatherDynamicSliceCancellation).
  twice = jnp.stack([own, own], axis=1)
  is_single = len(own) == plan.num_shards > 1

  def of_devices(name, x):
    if not in_place:
      x = x[twice][:, 0] if is_single and name == "images" else x[own]
    return x.reshape(plan.num_shards, -1, *x.shape[1:])

  fields = {
    name: jax.tree.map(functools.partial(of_devices, name), value)
    for name in fields_where(TrainBatch, kind="prompt")
    if (value := getattr(batch, name)) is not None
  }
  each = len(batch.prompt_index) // plan.num_shards
  index = jnp.tile(jnp.arange(each) // plan.rows_of_prompt, plan.num_shards)
  return dataclasses.replace(batch, prompt_index=index), fields


def with_prompts(
  plan: UpdatePlan,
  part: TrainBatch,
  prompts: dict[str, PyTree],  # each [D, P / D, ...]
  prefix: PyTree,  # each [N, D, P / D, ...]
) -> tuple[TrainBatch, PyTree]:
  """A micro-batch with a prompt of its own for each row, and its prefix."""
  index = part.prompt_index.reshape(plan.num_shards, -1)  # [D, rows]

  def of_prompts(x):
    x = jax.vmap(lambda x, index: x[index])(x, index)
    return x.reshape(-1, *x.shape[2:])

  def of_prefix(x):
    x = jax.vmap(lambda x, index: x[:, index], (1, 0), 1)(x, index)
    return x.reshape(x.shape[0], -1, *x.shape[3:])

  fields: dict[str, Any] = jax.tree.map(of_prompts, prompts)
  rows = jnp.arange(index.size, dtype=part.prompt_index.dtype)
  part = dataclasses.replace(part, **fields, prompt_index=rows)
  return part, jax.tree.map(of_prefix, prefix)


def summed_over_rows(
  plan: UpdatePlan,
  prompt_index: jax.Array,  # [rows]
  x: PyTree,  # each [N, rows, ...]
  prefix: PyTree,  # each [N, D, P / D, ...]
) -> PyTree:  # like the prefix
  """What the rows of a micro-batch add up to for each prompt.

  As a product: adding at indices takes turns on a GPU, in no fixed order.
  """
  index = prompt_index.reshape(plan.num_shards, -1)

  def summed(x, like):
    prompts = jnp.arange(like.shape[2])
    is_of = prompts[:, None] == index[:, None]  # [D, P / D, rows]
    by_device = x.reshape(x.shape[0], *index.shape, -1)
    total = jnp.einsum(
      "dpr,ndrk->ndpk",
      is_of.astype(x.dtype),
      by_device,
      precision=lax.Precision.HIGHEST,
      preferred_element_type=jnp.promote_types(x.dtype, jnp.float32),
    )
    return total.reshape(like.shape)

  return jax.tree.map(summed, x, prefix)


def split_prompts(plan: UpdatePlan, x: PyTree, axis: int = 0) -> PyTree:
  """[…, D, P / D, ...] as chunks [chunks, …, prompts, ...] of all devices.

  A chunk has no more prompts than a micro-batch has rows.
  """

  def split(x):
    each = x.shape[axis + 1]
    size = max(n for n in range(1, plan.shard_size + 1) if each % n == 0)
    x = x.reshape(*x.shape[: axis + 1], -1, size, *x.shape[axis + 2 :])
    x = jnp.moveaxis(x, axis + 1, 0)
    return x.reshape(*x.shape[: axis + 1], -1, *x.shape[axis + 3 :])

  return jax.tree.map(split, x)


def joined_prompts(plan: UpdatePlan, x: PyTree, axis: int = 0) -> PyTree:
  """The inverse of `split_prompts`."""

  def joined(x):
    shape = *x.shape[: axis + 1], plan.num_shards, -1, *x.shape[axis + 2 :]
    x = jnp.moveaxis(x.reshape(shape), 0, axis + 1)
    return x.reshape(*x.shape[: axis + 1], -1, *x.shape[axis + 3 :])

  return jax.tree.map(joined, x)
