"""Tests of micro-batches: their rows and lengths; no row is forgotten."""

import dataclasses
import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.step import micro_batches
from grpo_jax.types import PromptFields, SamplerFields, ScoreFields, set_fields
from tests.training import tiny

SLOTS = 8


def make_batch(lengths):
  """Rows with so many tokens; row b has advantage b + 1."""
  # Of NumPy's arrays: nothing is compiled for them.
  batch = jax.device_get(tiny.ragged_batch(tiny.make_phase()))
  lengths = np.array(lengths) if isinstance(lengths, list) else lengths
  num_rows = len(lengths)
  mask = np.arange(SLOTS) < lengths[:, None]
  return set_fields(
    batch,
    {
      "tokens": np.arange(num_rows * SLOTS).reshape(num_rows, SLOTS),
      "completion_mask": mask,
      "mask": mask,
      "advantages": 1 + np.arange(num_rows, dtype=np.float32),
      "rewards": 1 + np.arange(num_rows, dtype=np.float32),
      "valid": np.ones(num_rows, bool),
      "terminated": np.ones(num_rows, bool),
      "correct": np.ones(num_rows, bool),
      "sampler": SamplerFields(),
      # As many components as slots.
      "scores": ScoreFields(np.ones((num_rows, SLOTS), np.float32)),
      "prompt_index": np.arange(num_rows),
      "group_id": np.arange(num_rows),
    },
  )


def swept(plan, lengths, couples_group=False):
  """(tokens run of each row, slots, micro-batches, that of each row)."""
  return _swept(plan, np.array(lengths), couples_group)


_arrange = jax.jit(micro_batches.arrange, static_argnums=(0, 2))
_restored = jax.jit(micro_batches.unsort)
_split = jax.jit(
  micro_batches.split_prompts, static_argnums=0, static_argnames="axis"
)
_joined = jax.jit(
  micro_batches.joined_prompts, static_argnums=0, static_argnames="axis"
)
_with_prompts = jax.jit(micro_batches.with_prompts, static_argnums=0)
_summed = jax.jit(micro_batches.summed_over_rows, static_argnums=0)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _swept(plan, lengths, couples_group):
  batch = make_batch(lengths)
  rows = micro_batches.arrange(plan, batch, couples_group)
  num_rows = len(batch.mask)

  def function(total, part, first):
    del first
    count, slots, number, seen = total
    index = jnp.where(part.mask.any(axis=1), part.advantages - 1, num_rows)
    index = index.astype(jnp.int32)
    assert part.scores.components.shape[1] == SLOTS
    seen = seen.at[index].set(number, mode="drop")
    tokens = part.mask.sum(axis=1)
    return (
      count.at[index].add(tokens, mode="drop"),
      slots + part.mask.size,
      number + 1,
      seen,
    )

  zeros = jnp.zeros(num_rows, jnp.int32)
  total = zeros, jnp.int32(0), jnp.int32(0), zeros - 1
  return micro_batches.sweep(plan, batch, rows, function, total)


@pytest.mark.slow
@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
  st.lists(st.integers(0, SLOTS), min_size=8, max_size=8),
  st.sampled_from([(), (1, 4), (3, 6)]),
  st.sampled_from([(1, 1), (4, 1), (4, 2)]),
)
def test_every_token_is_run_once(lengths, sizes, micro_and_shards):
  micro, shards = micro_and_shards
  plan = micro_batches.UpdatePlan(
    micro_batch_size=micro, num_shards=shards, lengths=sizes
  )
  count, slots, *_ = swept(plan, lengths)
  np.testing.assert_array_equal(count, lengths)
  if not sizes:
    assert slots == 8 * SLOTS
  elif shards == 1:
    # Each of one length as long as the longest row that is left needs.
    want, left = 0, sorted(lengths, reverse=True)
    while left and left[0]:
      length = min(n for n in (*sizes, SLOTS) if n >= left[0])
      rows = min(8, micro * (SLOTS // length))
      want, left = want + rows * length, left[rows:]
    assert slots == want


def test_short_rows_go_together_and_empty_ones_are_left_out():
  plan = micro_batches.UpdatePlan(micro_batch_size=2, lengths=(2,))
  _, slots, number, seen = swept(plan, [1, 8, 0, 2, 7, 1, 0, 5])
  # 8 and 7; 5 with one of the short rows; the other two of up to eight.
  np.testing.assert_array_equal(seen, [2, 0, -1, 1, 0, 2, -1, 1])
  assert number == 3
  assert slots == 2 * 8 + 2 * 8 + 8 * 2


def test_rows_of_a_domain_go_together():
  """Among those of about the same length; empty rows are the last."""
  plan = micro_batches.UpdatePlan(
    micro_batch_size=2, lengths=(2,), by_domain=True
  )
  batch = dataclasses.replace(
    make_batch([1, 8, 0, 2, 7, 1, 6, 5]),
    domain=np.array([1, 1, 0, 0, 0, 1, 1, 0]),
  )
  rows = _arrange(plan, batch, False)
  np.testing.assert_array_equal(rows.order, [[4, 7, 1, 6, 3, 0, 5, 2]])


def test_groups_stay_together_where_they_must():
  plan = micro_batches.UpdatePlan(
    micro_batch_size=2, group_size=2, lengths=(2, 4)
  )
  lengths = [1, 2, 0, 8, 3, 3, 2, 2]
  *_, number, seen = swept(plan, lengths, couples_group=True)
  np.testing.assert_array_equal(seen[1::2], [1, 0, 1, 2])
  np.testing.assert_array_equal(seen[::2], [1, -1, 1, 2])
  assert number == 3


def test_rows_come_back_in_their_order():
  plan = micro_batches.UpdatePlan(
    micro_batch_size=2, num_shards=2, lengths=(2,)
  )
  batch = make_batch([1, 8, 0, 2, 7, 1, 0, 5])
  rows = _arrange(plan, batch, False)
  np.testing.assert_array_equal(rows.order, [[1, 3, 0, 2], [0, 3, 1, 2]])
  advantages = np.asarray(rows.arrays["advantages"])[:, :4]
  back = _restored(rows, advantages)
  np.testing.assert_array_equal(back, batch.advantages)


def test_prompts_are_cut_and_joined():
  """Two devices with four prompts each, two at a time."""
  plan = micro_batches.UpdatePlan(micro_batch_size=4, num_shards=2)
  x = np.arange(16).reshape(2, 4, 2)
  chunks = np.asarray(_split(plan, x))
  np.testing.assert_array_equal(
    chunks[..., 0] // 2, [[0, 1, 4, 5], [2, 3, 6, 7]]
  )
  np.testing.assert_array_equal(_joined(plan, chunks), x)
  layers = np.stack([x, 100 + x])
  chunks = _split(plan, layers, axis=1)
  assert chunks.shape == (2, 2, 4, 2)
  np.testing.assert_array_equal(_joined(plan, chunks, axis=1), layers)


def test_what_rows_add_up_to_goes_to_their_prompts():
  plan = micro_batches.UpdatePlan(
    micro_batch_size=4, group_size=2, num_shards=2
  )
  tokens = np.arange(4).reshape(2, 2, 1)
  prompts = PromptFields(tokens, tokens > 0)
  prefix = np.tile(np.float32([[0, 1], [2, 3]])[None, ..., None], (3, 1, 1, 1))
  batch = make_batch([1, 1, 1, 1])
  part = dataclasses.replace(batch, prompt_index=np.array([1, 1, 0, 1]))
  own, of_rows = jax.device_get(_with_prompts(plan, part, prompts, prefix))
  np.testing.assert_array_equal(own.prompts.tokens[:, 0], [1, 1, 2, 3])
  np.testing.assert_array_equal(own.prompt_index, np.arange(4))
  np.testing.assert_array_equal(of_rows[0, :, 0], [1, 1, 2, 3])
  added = np.asarray(
    _summed(plan, part.prompt_index, np.float32(10) ** of_rows, prefix)
  )
  np.testing.assert_array_equal(added[0, ..., 0], [[0, 20], [100, 1000]])
