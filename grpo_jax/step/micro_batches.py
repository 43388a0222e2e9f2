"""Division of the rows of a gradient step into micro-batches of similar cost.

Rows with a similar number of trained tokens go together, the longest first. A
micro-batch has the smallest of a few compiled lengths that fits its longest
row; the shorter it is, the more rows it has. Rows without trained tokens (dead
groups of dynamic sampling, completions that were filtered out) are not run. If
there is only one length, rows keep their order and all are run. Each device has
rows of its own, and its part in every micro-batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from grpo_jax.types import (
  PromptFields,
  PyTree,
  TrainBatch,
  first_slots,
  row_arrays,
  set_fields,
)


@dataclasses.dataclass(frozen=True)
class UpdatePlan:
  """The division of one batch of rows into gradient steps and micro-batches.

  Attributes:
    num_minibatches: Gradient steps per pass; must divide the rows.
    micro_batch_size: Rows of all T slots per forward/backward pass; must divide
      the rows of a minibatch. Changes time and memory, never the gradient.
    temperature: Temperature of the log-probs (the sampling temperature).
    chunk_bytes: Bytes of the logits that exist at a time, over all devices.
    group_size: Adjacent rows of the same prompt. They stay together in
      minibatches of whole groups, and share one forward pass of their prompt. 1
      if rows are independent.
    num_shards: Number of devices. Each has adjacent rows of the batch, and an
      equal part in every micro-batch, whose rows their number divides.
    group_parts: Number of devices over which the rows of a group are split;
      each runs the prompt for its rows. 1 if a device has whole groups.
    lengths: Completion slots that micro-batches may have instead of all.
    by_domain: True if rows of one domain are adjacent, among the rows that need
      micro-batches of the same length.
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
    """True if several rows read one forward pass of their prompt."""
    return self.rows_of_prompt > 1

  def sizes(self, num_rows: int, num_slots: int) -> list[tuple[int, int]]:
    """Sizes (slots, rows per device) of micro-batches, the longest first.

    All have about the same number of tokens.
    """
    num_local = num_rows // self.num_shards
    lengths = {n for n in self.lengths if n < num_slots} | {num_slots}
    return [
      (n, min(num_local, self.shard_size * (num_slots // n)))
      for n in sorted(lengths, reverse=True)
    ]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
  """The rows of a gradient step in the order in which D devices run them.

  Attributes:
    arrays: The row-indexed fields of a `TrainBatch`, each [D, N, ...]: N rows
      on each device, the last ones padding without tokens.
    length: Slots up to the last trained token, of a row or of its group.
    order: Former place of each row on its device; None if rows did not move.
  """

  arrays: dict[str, jax.Array]
  length: jax.Array  # [D, N] int32
  order: jax.Array | None  # [D, N] int32


def arrange(plan: UpdatePlan, batch: TrainBatch, couples_group: bool) -> Rows:
  """Arranges the rows of a batch in the order in which they are run.

  Args:
    couples_group: True if groups stay together, ordered by their longest row.
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
  # Stable, so that equally long groups stay whole.
  if plan.by_domain:
    # By the length of the micro-batch that a row needs; rows without tokens
    # come last.
    level = sum(rank > slots for slots in (0, *(n for n, _ in sizes)))
    order = jnp.lexsort((arrays["domain"], -level), axis=1)  # [D, N]
  else:
    order = jnp.argsort(-rank, axis=1, stable=True)
  missing = max(rows for _, rows in sizes) - 1

  def sorted_rows(x):
    x = jax.vmap(lambda x, order: x[order])(x, order)
    return jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))

  return Rows(jax.tree.map(sorted_rows, arrays), sorted_rows(rank), order)


def unsort(rows: Rows, x: jax.Array) -> jax.Array:  # [D, N, ...] -> [B, ...]
  """Returns an array of the rows in the order of the batch."""
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
  """Runs a function over all micro-batches in turn; returns the last total.

  Args:
    function: (total, micro-batch, first) -> total; the micro-batch has the rows
      of each device from `first` on.
    total: Total before the first; may be None for a single micro-batch.
  """
  num_rows, num_slots = batch.mask.shape
  num_local = num_rows // plan.num_shards
  sizes = plan.sizes(num_rows, num_slots)

  def run(total, start, slots, count):
    def take(x):
      x = lax.dynamic_slice_in_dim(x, start, count, axis=1)
      return x.reshape(-1, *x.shape[2:])

    arrays = first_slots(jax.tree.map(take, rows.arrays), slots)
    return function(total, set_fields(batch, arrays), start)

  if len(sizes) == 1:
    ((slots, count),) = sizes
    if count == num_local:
      return run(total, 0, slots, count)
    return lax.fori_loop(
      0,
      num_local // count,
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
) -> tuple[TrainBatch, PromptFields | None]:
  """Numbers the prompts of each device from 0.

  Returns:
    The batch, whose `prompt_index` is the number on the row's device; and the
    prompts, each field [D, P / D, ...]. If rows do not share prompts, the
    batch unchanged, and None.
  """
  if not plan.shares_prompts:
    return batch, None
  own = batch.prompt_index[:: plan.rows_of_prompt]  # [P], or fewer.
  # All rows are present, in the order of the prompts, so prompts are already on
  # the devices of their rows. The compiler does not see that in a lookup, and
  # would send the prompts of the whole pod to every device.
  in_place = plan.num_minibatches == 1 and len(own) == len(batch.prompts.tokens)

  # Images of a single prompt per device are looked up twice: a lookup of one is
  # compiled to a slice of an all-gather, and libtpu 0.0.42 aborts at some of
  # these (AllGatherDynamicSliceCancellation).
  twice = jnp.stack([own, own], axis=1)
  is_single = len(own) == plan.num_shards > 1

  def of_devices(path, x):
    if not in_place:
      is_image = path[0].name == "images"
      x = x[twice][:, 0] if is_single and is_image else x[own]
    return x.reshape(plan.num_shards, -1, *x.shape[1:])

  prompts = jax.tree_util.tree_map_with_path(of_devices, batch.prompts)
  size = len(batch.prompt_index) // plan.num_shards
  index = jnp.tile(jnp.arange(size) // plan.rows_of_prompt, plan.num_shards)
  return dataclasses.replace(batch, prompt_index=index), prompts


def with_prompts(
  plan: UpdatePlan,
  part: TrainBatch,
  prompts: PromptFields,  # each [D, P / D, ...]
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

  prompts = jax.tree.map(of_prompts, prompts)
  rows = jnp.arange(index.size, dtype=part.prompt_index.dtype)
  part = dataclasses.replace(part, prompts=prompts, prompt_index=rows)
  return part, jax.tree.map(of_prefix, prefix)


def summed_over_rows(
  plan: UpdatePlan,
  prompt_index: jax.Array,  # [rows]
  x: PyTree,  # each [N, rows, ...]
  prefix: PyTree,  # each [N, D, P / D, ...]
) -> PyTree:  # like the prefix
  """Sums over the rows of a micro-batch for each prompt.

  The sum is a matrix product: on a GPU, scattered additions run one after
  another, in an order that is not fixed.
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
  """Splits […, D, P / D, ...] into chunks [chunks, …, prompts, ...].

  A chunk has equally many prompts of each of the D devices, and at most as many
  as a micro-batch has rows. `axis` is that of D.
  """

  def split(x):
    count = x.shape[axis + 1]
    size = max(n for n in range(1, plan.shard_size + 1) if count % n == 0)
    x = x.reshape(*x.shape[: axis + 1], -1, size, *x.shape[axis + 2 :])
    x = jnp.moveaxis(x, axis + 1, 0)
    return x.reshape(*x.shape[: axis + 1], -1, *x.shape[axis + 3 :])

  return jax.tree.map(split, x)


def joined_prompts(plan: UpdatePlan, x: PyTree, axis: int = 0) -> PyTree:
  """The inverse of `split_prompts`."""

  def join(x):
    shape = *x.shape[: axis + 1], plan.num_shards, -1, *x.shape[axis + 2 :]
    x = jnp.moveaxis(x.reshape(shape), 0, axis + 1)
    return x.reshape(*x.shape[: axis + 1], -1, *x.shape[axis + 3 :])

  return jax.tree.map(join, x)
