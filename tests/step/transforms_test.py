"""Transforms of a scored batch: what they may change, and what is refused."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms, imports
from grpo_jax.algorithms.contract import cases
from grpo_jax.ops import baselines
from grpo_jax.step import step as step_lib
from grpo_jax.step import transforms
from tests.training import tiny


@pytest.fixture(scope="module")
def batch():
  config = algorithms.make_config("grpo")
  return cases.prepared(
    algorithms.get_algorithm("grpo"), config, cases.make_case()
  )


def short(batch, limit):
  """Leaves out the groups whose mean length is above the limit."""
  lengths = batch.mask.sum(axis=-1)
  mean = baselines.group_statistics(
    lengths, batch.valid, batch.group_id, batch.num_groups
  ).mean
  valid = batch.valid & (mean <= limit)[batch.group_id]
  return dataclasses.replace(batch, valid=valid), {"kept": valid.mean()}


def all_again(batch):
  ones = {"mask": batch.mask | True, "valid": batch.valid | True}
  return dataclasses.replace(batch, **ones, rewards=batch.rewards + 1), {}


def test_long_groups_are_left_out(batch):
  lengths = np.asarray(batch.mask).sum(axis=1)
  groups, valid = np.asarray(batch.group_id), np.asarray(batch.valid)
  means = {g: lengths[valid & (groups == g)].mean() for g in {*groups[valid]}}
  limit = min(means.values())
  kept = valid & [means.get(g, 0) <= limit for g in groups]
  assert 0 < kept.sum() < valid.sum()
  cut = functools.partial(short, limit=limit)
  after, metrics = transforms.apply((cut,), batch)
  np.testing.assert_array_equal(after.valid, kept)
  np.testing.assert_array_equal(after.mask, batch.mask & kept[:, None])
  np.testing.assert_array_equal(after.rewards, np.where(kept, batch.rewards, 0))
  assert metrics["transform/kept"] == np.float32(kept.mean())
  # A later one sees the batch of the earlier one, and brings nothing back.
  again, _ = transforms.apply((cut, all_again), batch)
  np.testing.assert_array_equal(again.mask, after.mask)
  np.testing.assert_array_equal(
    again.rewards, np.where(kept, batch.rewards + 1, 0)
  )


def test_a_reward_that_is_not_finite_leaves_the_loss(batch):
  bad = batch.rewards.at[1].set(jnp.nan)
  after, _ = transforms.apply(
    (lambda b: (dataclasses.replace(b, rewards=bad), {}),), batch
  )
  assert not after.valid[1]
  assert after.rewards[1] == 0
  assert not after.mask[1].any()
  assert (after.valid == batch.valid).sum() == len(batch.valid) - 1


@pytest.mark.parametrize(
  ("made", "message"),
  [
    (lambda b: b, "returns TrainBatch; needed is the pair (batch, {name"),
    (lambda b: (b, 1.0), "returns tuple; needed is the pair"),
    (
      lambda b: (dataclasses.replace(b, tokens=b.tokens + 1), {}),
      "changes 'tokens'; needed is a batch in which only mask, valid, rewards",
    ),
    (
      lambda b: (dataclasses.replace(b, policy_weight=b.advantages), {}),
      "changes 'policy_weight'",
    ),
    (
      lambda b: (dataclasses.replace(b, rewards=b.rewards[:1]), {}),
      "returns 'rewards' with shape (1,)",
    ),
    (
      lambda b: (dataclasses.replace(b, mask=b.mask * 1.0), {}),
      "and type float32; needed are",
    ),
    (lambda b: (b, {"x": b.rewards}), "has the metric 'x' of shape (10,)"),
  ],
)
def test_what_is_not_a_transform_is_refused(batch, made, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    transforms.apply((made,), batch)


def test_two_metrics_of_a_name_are_refused(batch):
  counted = lambda b: (b, {"x": 1})  # noqa: E731
  with pytest.raises(ValueError, match="no other transform has"):
    transforms.apply((counted, counted), batch)


@pytest.mark.parametrize(
  ("path", "message"),
  [
    ("short", "config.rl.transforms 'short': needed is an import path"),
    ("math:pi", "config.rl.transforms 'math:pi' is 3.14"),
    ("tests.step.transforms_test:shrt", "Did you mean"),
  ],
)
def test_paths_without_a_function_are_refused(path, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    imports.load(path, "config.rl.transforms", "function")


@pytest.mark.slow
def test_a_step_trains_what_a_transform_leaves():
  def first_group(batch):
    valid = batch.valid & (batch.group_id == 0)
    return dataclasses.replace(batch, valid=valid), {"rows": valid.sum()}

  parts = dataclasses.replace(
    tiny.make_parts("grpo"), transforms=(first_group,)
  )
  step = jax.jit(functools.partial(step_lib.fused_step, parts=parts))
  state = tiny.make_state(parts)
  _, metrics, rows = step(state, tiny.make_prompts(4))
  assert metrics["transform/rows"] == 4
  written = np.asarray(rows.batch.completion_mask)[:4].sum()
  assert metrics["tokens/trained"] == written > 0
