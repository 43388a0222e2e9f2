"""Transforms of a scored batch: what they may change, and what is refused."""

import dataclasses
import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms, imports
from grpo_jax.algorithms.contract import cases
from grpo_jax.ops import baselines, masked
from grpo_jax.step import step as step_lib
from grpo_jax.step import transforms
from grpo_jax.training.phases import build
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


class Centred:
  """Subtracts the mean reward of earlier steps."""

  def __init__(self, decay=0.9):
    self.decay = decay

  def init(self):
    return jnp.float32(0)

  def __call__(self, mean, batch):
    centred = dataclasses.replace(batch, rewards=batch.rewards - mean)
    now = masked.mean(batch.rewards, batch.valid)
    after = self.decay * mean + (1 - self.decay) * now
    return after, centred, {"baseline": mean}


CENTRED = Centred()
BOTH = "short", "Centred"


def test_long_groups_are_left_out(batch):
  lengths = np.asarray(batch.mask).sum(axis=1)
  groups, valid = np.asarray(batch.group_id), np.asarray(batch.valid)
  means = {g: lengths[valid & (groups == g)].mean() for g in {*groups[valid]}}
  limit = min(means.values())
  kept = valid & [means.get(g, 0) <= limit for g in groups]
  assert 0 < kept.sum() < valid.sum()
  cut = functools.partial(short, limit=limit)
  after, metrics, _ = transforms.apply((cut,), batch)
  np.testing.assert_array_equal(after.valid, kept)
  np.testing.assert_array_equal(after.mask, batch.mask & kept[:, None])
  np.testing.assert_array_equal(after.rewards, np.where(kept, batch.rewards, 0))
  assert metrics["transform/kept"] == np.float32(kept.mean())
  # A later one sees the batch of the earlier one, and brings nothing back.
  again, *_ = transforms.apply((cut, all_again), batch)
  np.testing.assert_array_equal(again.mask, after.mask)
  np.testing.assert_array_equal(
    again.rewards, np.where(kept, batch.rewards + 1, 0)
  )


def test_a_memory_is_that_of_the_step_before(batch):
  both = (lambda b: (b, {}), CENTRED)
  assert transforms.enter(both[:1]) is None
  memories = transforms.enter(both)
  rewards, valid = np.asarray(batch.rewards), np.asarray(batch.valid)
  now, mean = rewards[valid].mean(), 0.0
  for _ in range(2):
    after, metrics, memories = transforms.apply(both, batch, memories)
    wanted = np.where(valid, rewards - mean, 0)
    np.testing.assert_allclose(after.rewards, wanted, atol=1e-6)
    assert metrics["transform/baseline"] == pytest.approx(mean, abs=1e-6)
    mean = 0.9 * mean + 0.1 * now
  assert mean != 0
  assert memories == {"1": pytest.approx(mean, abs=1e-6)}


@pytest.mark.parametrize(
  ("made", "message"),
  [
    (lambda mean, b: (b, {}), "returns tuple; needs (memory, batch, {name"),
    (
      lambda mean, b: (mean > 0, b, {}),
      "the memory bool[]; needs one as from its init, float32[]",
    ),
    (lambda mean, b: ((mean, mean), b, {}), "('float32[]', 'float32[]'); nee"),
  ],
)
def test_a_memory_of_another_kind_is_refused(batch, made, message):
  made.init = lambda: 0.0
  with pytest.raises(ValueError, match=re.escape(message)):
    transforms.apply((made,), batch, transforms.enter((made,)))


def test_a_reward_that_is_not_finite_leaves_the_loss(batch):
  bad = batch.rewards.at[1].set(jnp.nan)
  after, *_ = transforms.apply(
    (lambda b: (dataclasses.replace(b, rewards=bad), {}),), batch
  )
  assert not after.valid[1]
  assert after.rewards[1] == 0
  assert not after.mask[1].any()
  assert (after.valid == batch.valid).sum() == len(batch.valid) - 1


@pytest.mark.parametrize(
  ("made", "message"),
  [
    (lambda b: b, "returns TrainBatch; needs (batch, {name"),
    (lambda b: (b, 1.0), "returns tuple; needs (batch, "),
    (
      lambda b: (dataclasses.replace(b, tokens=b.tokens + 1), {}),
      "changes 'tokens'; needs a batch in which only mask, valid, rewards",
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
      "and type float32; needs",
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
    ("short", "config.rl.transforms 'short': needs an import path"),
    ("math:pi", "config.rl.transforms 'math:pi' is 3.14"),
    ("tests.step.transforms_test:shrt", "Did you mean"),
  ],
)
def test_paths_without_a_function_are_refused(path, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    imports.load(path, "config.rl.transforms", "function")


def _made(options, *names):
  phase = types.SimpleNamespace(
    transforms=tuple(f"tests.step.transforms_test:{name}" for name in names),
    transform_options=options,
  )
  return build._transforms(phase, "config.rl")


def test_options_are_arguments(batch):
  made = _made({"short": {"limit": 0.0}, "Centred": {"decay": 0.5}}, *BOTH)
  memories = transforms.enter(made)
  after, metrics, memories = transforms.apply(made, batch, memories)
  assert not after.valid.any()
  assert metrics.keys() == {"transform/kept", "transform/baseline"}
  assert made[1].decay == 0.5
  assert made[0].__name__ == "short"


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"shrt": {}}, "transform_options has ['shrt']; needs names of config"),
    ({"short": {"limt": 1}}, "'short' got {'limt': 1}: got an unexpected keyw"),
    ({"Centred": {"x": 1}}, "its arguments are (decay=0.9)"),
  ],
)
def test_options_of_nothing_are_refused(options, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    _made(options, *BOTH)


@pytest.mark.slow
def test_a_step_trains_what_a_transform_leaves():
  def first_group(batch):
    valid = batch.valid & (batch.group_id == 0)
    return dataclasses.replace(batch, valid=valid), {"rows": valid.sum()}

  phase = dataclasses.replace(
    tiny.make_phase("grpo"), transforms=(first_group, CENTRED)
  )
  state, prompts = tiny.make_state(phase), tiny.make_prompts(4)
  state = step_lib.enter_phase(state, phase, 0)
  groups = jax.jit(functools.partial(step_lib.draw_stage, phase=phase))(
    state, prompts
  )
  scored = groups.scored
  scored = dataclasses.replace(scored, rewards=scored.rewards + 1)
  groups = dataclasses.replace(groups, scored=scored)
  learn = jax.jit(functools.partial(step_lib.learn_stage, phase=phase))
  after, metrics, rows = learn(state, groups, True)
  assert metrics["transform/rows"] == 4
  written = np.asarray(rows.batch.completion_mask)[:4].sum()
  assert metrics["tokens/trained"] == written > 0
  mean = np.asarray(scored.rewards)[:4].mean()
  assert after.transforms == {"1": pytest.approx(0.1 * mean)}
  assert mean > 0
  idle, *_ = learn(state, groups, False)
  assert idle.transforms == {"1": 0}
