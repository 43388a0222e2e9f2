"""What every algorithm of the table owes its users."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import algorithms
from tests.algorithms import cases

NAMES = tuple(algorithms.ALGORITHMS)
GARBAGE = (np.nan, np.inf, -np.inf, -1e9, 1e9)


def _make(name, **fields):
  """Algorithm and config, with every common term switched on."""
  config = algorithms.make_config(
    name, **{"kl_coef": 0.1, "entropy_coef": 0.01, **fields}
  )
  return algorithms.get_algorithm(name), config


def _assert_same(one, other, rtol=1e-5):
  np.testing.assert_allclose(one.loss, other.loss, rtol, 1e-7)
  np.testing.assert_allclose(one.gradient, other.gradient, rtol, 1e-7)


@pytest.mark.parametrize("name", NAMES)
class TestContract:
  def test_masked_garbage_reaches_neither_loss_nor_gradient(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    clean = cases.evaluate(algorithm, config, case)
    assert np.any(clean.gradient != 0)
    for value in GARBAGE:
      for field in ("logp", "old_logp", "ref_logp", "entropy"):
        dirty = dataclasses.replace(
          case, **{field: np.where(case.mask, getattr(case, field), value)}
        )
        outcome = cases.evaluate(algorithm, config, dirty)
        np.testing.assert_array_equal(outcome.loss, clean.loss)
        np.testing.assert_array_equal(outcome.gradient, clean.gradient)

  def test_unscored_rows_are_out(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    for value in (1e9, np.nan):
      dirty = dataclasses.replace(
        case, rewards=np.where(case.valid, case.rewards, value)
      )
      outcome = cases.evaluate(algorithm, config, dirty)
      assert not outcome.gradient[~case.valid].any()
      _assert_same(outcome, cases.evaluate(algorithm, config, case))

  def test_padding_columns_change_nothing(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    # Dr. GRPO divides by the budget and DAPO punishes near it: the budget is
    # part of their definition, so compare at a fixed one.
    wide = {
      field: np.pad(getattr(case, field), ((0, 0), (0, 3)))
      for field in ("logp", "old_logp", "ref_logp", "entropy", "mask")
    }
    if name == "dapo":
      config = dataclasses.replace(config, overlong_cache=0.0)
    narrow = cases.evaluate(algorithm, config, case)
    padded = cases.evaluate(
      algorithm, config, dataclasses.replace(case, **wide)
    )
    assert not padded.gradient[:, -3:].any()
    if name == "dr_grpo":
      plain = dataclasses.replace(config, kl_coef=0.0, entropy_coef=0.0)
      scale = (cases.BUDGET + 3) / cases.BUDGET
      narrow = cases.evaluate(algorithm, plain, case)
      padded = cases.evaluate(
        algorithm, plain, dataclasses.replace(case, **wide)
      )
      np.testing.assert_allclose(padded.loss * scale, narrow.loss, 1e-5)
      return
    np.testing.assert_allclose(narrow.loss, padded.loss, 1e-5)
    np.testing.assert_allclose(
      narrow.gradient, padded.gradient[:, :-3], 1e-5, 1e-7
    )

  def test_order_of_rows_and_names_of_groups_are_irrelevant(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    order = np.random.default_rng(1).permutation(len(case.mask))
    shuffled = case.take(order)
    shuffled.group_id = np.array([2, 3, 0, 1])[shuffled.group_id]
    outcome = cases.evaluate(algorithm, config, shuffled)
    expected = cases.evaluate(algorithm, config, case)
    np.testing.assert_allclose(outcome.loss, expected.loss, 1e-5)
    np.testing.assert_allclose(
      outcome.gradient, expected.gradient[order], 1e-5, 1e-7
    )

  def test_degenerate_batches_give_zero_not_nan(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    empty = dataclasses.replace(case, mask=np.zeros_like(case.mask))
    unscored = dataclasses.replace(case, valid=np.zeros_like(case.valid))
    for batch in (empty, unscored):
      outcome = cases.evaluate(algorithm, config, batch)
      assert outcome.loss == 0
      assert not outcome.gradient.any()

  def test_equal_rewards_give_no_policy_gradient(self, name):
    algorithm, config = _make(name, kl_coef=0.0, entropy_coef=0.0)
    case = cases.make_case()
    if name in ("reinforce", "sft"):  # No group baseline: these do push.
      case.rewards[:] = 0.7
      assert cases.evaluate(algorithm, config, case).gradient.any()
      return
    if name == "dapo":
      config = dataclasses.replace(config, overlong_cache=0.0)
    # 0.7 and 0.1 have float32 means that are one ulp off.
    for reward in (0.7, 0.1, 0.0, 1.0):
      equal = dataclasses.replace(
        case, rewards=np.full_like(case.rewards, reward)
      )
      outcome = cases.evaluate(algorithm, config, equal)
      assert not np.any(outcome.advantages)
      assert not outcome.gradient.any()

  @pytest.mark.parametrize("shift", [30.0, -30.0, 100.0, -100.0])
  def test_extreme_ratios_stay_finite(self, name, shift):
    algorithm, config = _make(name)
    case = cases.make_case()
    far = dataclasses.replace(
      case,
      old_logp=case.old_logp + np.float32(shift),
      ref_logp=case.ref_logp - np.float32(shift),
    )
    outcome = cases.evaluate(algorithm, config, far)
    assert np.isfinite(outcome.loss)
    assert np.isfinite(outcome.gradient).all()

  def test_impossible_tokens_are_left_out(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    impossible = case.logp.copy()
    impossible[0, 2] = -np.inf
    outcome = cases.evaluate(
      algorithm, config, dataclasses.replace(case, logp=impossible)
    )
    assert np.isfinite(outcome.loss)
    assert np.isfinite(outcome.gradient).all()
    assert outcome.gradient[0, 2] == 0

  def test_first_update_has_ratio_one_and_clips_nothing(self, name):
    algorithm, config = _make(name)
    for dtype in (np.float32, jax.numpy.bfloat16):
      case = cases.make_case(dtype=dtype)
      outcome = cases.evaluate(algorithm, config, case, use_anchor=False)
      if "old_logp" in algorithm.needs:
        assert outcome.metrics["ratio/max"] == 1.0
        assert outcome.metrics["ratio/max_deviation"] == 0.0
        assert outcome.metrics["clip_fraction"] == 0.0

  def test_ratio_one_gradient_is_the_policy_gradient(self, name):
    """−A/weight per token, with the weights that the aggregation states."""
    algorithm, config = _make(name, kl_coef=0.0, entropy_coef=0.0)
    case = cases.make_case()
    outcome = cases.evaluate(algorithm, config, case, use_anchor=False)
    mask = outcome.mask
    lengths = np.maximum(mask.sum(1, keepdims=True), 1)
    rows = mask.any(1).sum()
    per_token = {
      "grpo": 1 / (lengths * rows),
      "gspo": 1 / (lengths * rows),
      "dr_grpo": 1 / (cases.BUDGET * rows),
      "dapo": 1 / mask.sum(),
      "reinforce": 1 / rows,
      "sft": 1 / mask.sum(),
    }[name]
    advantages = outcome.advantages[:, None]
    if name == "sft":
      advantages = np.ones_like(advantages)
    expected = np.where(mask, -advantages * per_token, 0.0)
    np.testing.assert_allclose(outcome.gradient, expected, 1e-5, 1e-7)

  def test_constants_get_no_gradient(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    case.rewards[:4] = 0.5  # A group whose deviation is 0, too.
    outcome = cases.evaluate(algorithm, config, case)
    for field, gradient in outcome.constants.items():
      assert not np.any(gradient), field

  def test_bfloat16_inputs_are_upcast(self, name):
    algorithm, config = _make(name)
    case = cases.make_case(dtype=jax.numpy.bfloat16)
    wide = cases.Case(
      **{
        field.name: (
          value.astype(np.float32)
          if value.dtype == jax.numpy.bfloat16
          else value
        )
        for field in dataclasses.fields(case)
        for value in [getattr(case, field.name)]
      }
    )
    low = cases.evaluate(algorithm, config, case)
    high = cases.evaluate(algorithm, config, wide)
    # Rewards enter statistics in their own precision; compare the loss.
    assert low.loss.dtype == np.float32
    np.testing.assert_allclose(low.loss, high.loss, rtol=0.03, atol=3e-3)

  def test_clip_fraction_counts_tokens_without_gradient(self, name):
    algorithm, config = _make(name, kl_coef=0.0, entropy_coef=0.0)
    if "old_logp" not in algorithm.needs:
      assert (
        "clip_fraction"
        not in cases.evaluate(algorithm, config, cases.make_case()).metrics
      )
      return
    outcome = cases.evaluate(algorithm, config, cases.make_case(spread=1.0))
    live = outcome.mask & (outcome.advantages != 0)[:, None]
    clipped = (live & (outcome.gradient == 0)).sum() / outcome.mask.sum()
    assert 0 < outcome.metrics["clip_fraction"] < 1
    np.testing.assert_allclose(outcome.metrics["clip_fraction"], clipped, 1e-6)
    np.testing.assert_allclose(
      outcome.metrics["clip_fraction/low"]
      + outcome.metrics["clip_fraction/high"],
      clipped,
      1e-6,
    )


@settings(max_examples=25, deadline=None)
@given(
  st.sampled_from(NAMES),
  st.lists(st.integers(0, cases.BUDGET), min_size=10, max_size=10),
  st.lists(st.integers(0, 3), min_size=10, max_size=10),
  st.lists(st.sampled_from([0.0, 1.0, 0.7]), min_size=10, max_size=10),
)
def test_any_masks_and_groups(name, lengths, groups, rewards):
  """Micro-batches of any split add up to the whole; nothing is NaN."""
  algorithm, config = _make(name)
  case = cases.make_case()
  case.mask = np.arange(cases.BUDGET) < np.array(lengths)[:, None]
  case.group_id = np.array(groups)
  case.rewards = np.array(rewards, np.float32)
  outcome = cases.evaluate(algorithm, config, case)
  assert np.isfinite(outcome.loss)
  assert np.isfinite(outcome.gradient).all()
  assert not outcome.gradient[~outcome.mask].any()
