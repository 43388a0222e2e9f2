"""What every algorithm of the table owes its users."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import algorithms
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation
from grpo_jax.types import PolicyOutputs
from tests.algorithms import cases
from tests.training import tiny

NAMES = tuple(algorithms.ALGORITHMS)
# The first of the table with their loss of the policy, and some that share it;
# for the others the contract is slow tests, without what is about that alone.
# What needs programs of its own is slow for all but `tiny.FAST`.
OWN_LOSS = {
  *{
    algorithm.policy_loss: name
    for name, algorithm in reversed(algorithms.ALGORITHMS.items())
  }.values(),
  *tiny.VARIED,
}
GARBAGE = (np.nan, np.inf, -np.inf, -1e9, 1e9)

# Trained without comparing the completions of a group, or on more than their
# rewards: equal rewards leave a gradient.
PUSHED_BY_EQUAL_REWARDS = {
  "reinforce",  # A moving baseline.
  "remax",  # The greedy completion.
  "ppo",  # A critic.
  "vc_ppo",
  "vapo",
  "sao",
  "compaction_rl",
  "gagpo",  # Turns have rewards.
  "gigpo",
  "gtpo",  # Entropy distinguishes right completions,
  "grpo_s",  # of a token and of a row.
  "grpo_ps",  # Steps have rewards.
  "opd_token",  # A teacher judges.
  "opd_full",
  "opd_topk",
  "sft",
}
# No policy gradient at ratio 1: preferences, and distances to a teacher.
NO_POLICY_GRADIENT = {"dpo", "bradley_terry", "opd_full", "opd_topk"}
# What switches off the terms that are not the policy gradient.
PLAIN = {
  "kl_cov": {"cov_kl_coef": 0.0},
  "two_grpo_dpo": {"dpo_coef": 0.0},
  "clip_cov": {"cov_low": 1e3, "cov_high": 2e3},
  "dapo": {"overlong_cache": 0.0},
  "vapo": {"positive_nll_coef": 0.0},
}


def _make(name, **fields):
  """Algorithm and config, with every common term switched on."""
  defaults = {"kl_coef": 0.1, "entropy_coef": 0.01}
  config = algorithms.make_config(name, **{**defaults, **fields})
  return algorithms.get_algorithm(name), config


def _plain(name):
  """Algorithm and config with the policy term alone."""
  algorithm, config = _make(
    name, kl_coef=0.0, entropy_coef=0.0, **PLAIN.get(name, {})
  )
  if algorithm.policy_loss is not None:
    algorithm = dataclasses.replace(algorithm, critic_loss=None)
  return algorithm, config


def _assert_same(one, other, rtol=1e-5):
  np.testing.assert_allclose(one.loss, other.loss, rtol, 1e-7)
  np.testing.assert_allclose(one.gradient, other.gradient, rtol, 1e-7)


@pytest.mark.parametrize("name", tiny.each(NAMES, OWN_LOSS))
class TestContract:
  """What one program for each algorithm shows."""

  def test_masked_garbage_reaches_neither_loss_nor_gradient(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    clean = cases.evaluate(algorithm, config, case)
    assert np.any(clean.gradient != 0)
    for value in GARBAGE:
      everywhere = {
        field: np.where(case.mask, getattr(case, field), value)
        for field in cases.TOKEN_FIELDS
      }
      dirty = dataclasses.replace(case, **everywhere)
      outcome = cases.evaluate(algorithm, config, dirty)
      np.testing.assert_array_equal(outcome.loss, clean.loss)
      np.testing.assert_array_equal(outcome.gradient, clean.gradient)

  def test_unscored_rows_are_out(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    clean = cases.evaluate(algorithm, config, case)
    for value in (1e9, np.nan):
      dirty = dataclasses.replace(
        case,
        rewards=np.where(case.valid, case.rewards, value),
        components=np.where(case.valid[:, None], case.components, value),
      )
      outcome = cases.evaluate(algorithm, config, dirty)
      assert not outcome.gradient[~case.valid].any()
      _assert_same(outcome, clean)

  def test_order_of_rows_and_names_of_groups_are_irrelevant(self, name):
    algorithm, config = _make(name)
    if name == "clip_cov":  # Draws by place: let it take every candidate.
      config = dataclasses.replace(config, cov_fraction=1.0, cov_low=0.1)
    case = cases.make_case()
    order = np.random.default_rng(1).permutation(len(case.mask))
    shuffled = case.take(order)
    shuffled.group_id = np.array([2, 3, 0, 1])[shuffled.group_id]
    outcome = cases.evaluate(algorithm, config, shuffled)
    expected = cases.evaluate(algorithm, config, case)
    np.testing.assert_allclose(outcome.loss, expected.loss, 1e-5, 1e-7)
    np.testing.assert_allclose(
      outcome.gradient, expected.gradient[order], 1e-5, 1e-6
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

  def test_constants_get_no_gradient(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    case.rewards[:4] = 0.5  # A group whose deviation is 0, too.
    outcome = cases.evaluate(algorithm, config, case)
    given = {"ref_logp"} if algorithm.name == "opd_full" else set()
    for field, gradient in outcome.constants.items():
      # What compares with the teacher over the vocabulary is made before the
      # loss; here it is a function of both.
      assert field in given or not np.nan_to_num(gradient).any(), field

  def test_completions_of_one_token_are_finite(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    short = dataclasses.replace(case, mask=np.arange(cases.BUDGET) < 1)
    short.mask = np.tile(short.mask, (len(case.rewards), 1))
    outcome = cases.evaluate(algorithm, config, short)
    assert np.isfinite(outcome.loss)
    assert np.isfinite(outcome.gradient).all()
    assert outcome.gradient[:, 0].any()
    assert not outcome.gradient[:, 1:].any()

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


@pytest.mark.parametrize("name", tiny.each(NAMES))
class TestPrograms:
  """What needs a program of its own."""

  def test_padding_columns_change_nothing(self, name):
    algorithm, config = _make(name)
    if name == "dapo":  # Punishes near the budget, which is what grows here.
      config = dataclasses.replace(config, overlong_cache=0.0)
    case = cases.make_case()
    padded = dataclasses.replace(
      case,
      **{
        field: np.pad(getattr(case, field), ((0, 0), (0, 3)))
        for field in cases.SLOT_FIELDS
      },
    )
    scale = 1.0
    if algorithm.aggregate is aggregation.over_budget:
      # Divides by the budget, by definition; the other terms do not.
      algorithm, config = _plain(name)
      scale = (cases.BUDGET + 3) / cases.BUDGET
    narrow = cases.evaluate(algorithm, config, case)
    wide = cases.evaluate(algorithm, config, padded)
    assert not wide.gradient[:, -3:].any()
    np.testing.assert_allclose(scale * wide.loss, narrow.loss, 1e-5, 1e-7)
    np.testing.assert_allclose(
      scale * wide.gradient[:, :-3], narrow.gradient, 1e-5, 1e-7
    )

  def test_micro_batches_add_up(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    splits = ((0, 1, 2, 9), (3, 4, 5, 6, 7, 8))
    if algorithm.couples_group:
      splits = ((0, 1, 2, 3), (4, 5, 6, 7, 8, 9))
    whole = cases.evaluate(algorithm, config, case, trainable=0.3)
    parts = cases.evaluate(algorithm, config, case, True, splits, 0.3)
    _assert_same(parts, whole)
    np.testing.assert_allclose(parts.trainable, whole.trainable, 1e-4, 1e-7)
    # Its gradient exists where the algorithm has parameters of its own.
    assert (whole.trainable != 0) == bool(algorithm.init(config)[0])

  def test_equal_rewards_give_no_policy_gradient(self, name):
    algorithm, config = _plain(name)
    case = cases.make_case()
    # 0.7 and 0.1 have float32 means that are one ulp off.
    for reward in (0.7, 0.1, 0.0, 1.0):
      equal = dataclasses.replace(
        case,
        rewards=np.full_like(case.rewards, reward),
        components=np.full_like(case.components, reward),
      )
      outcome = cases.evaluate(algorithm, config, equal)
      if name in PUSHED_BY_EQUAL_REWARDS:
        assert outcome.gradient.any()
        return
      assert not np.any(outcome.advantages)
      assert not outcome.gradient.any()

  def test_first_update_is_the_policy_gradient(self, name):
    """At ratio 1, −A/weight per token, as the aggregation weighs tokens."""
    algorithm, config = _plain(name)
    case = cases.make_case()
    if "old_logp" not in algorithm.needs:  # A ratio is to the sampler.
      case = dataclasses.replace(case, behavior_logp=case.logp)
    outcome = cases.evaluate(algorithm, config, case, use_anchor=False)
    if "old_logp" in algorithm.needs:
      assert outcome.metrics["ratio/max"] == 1.0
      assert outcome.metrics["ratio/max_deviation"] == 0.0
      assert outcome.metrics["clip_fraction"] == 0.0
    if name in NO_POLICY_GRADIENT:
      assert outcome.gradient.any()  # The reference test says which.
      return
    mask = outcome.mask
    lengths = np.maximum(mask.sum(1, keepdims=True), 1)
    rows = mask.any(1).sum()
    weight = {
      aggregation.over_sequences: lengths * rows,
      aggregation.over_sequence_sums: rows,
      aggregation.over_budget: cases.BUDGET * rows,
      aggregation.over_tokens: mask.sum(),
    }[algorithm.aggregate]
    if name in ("rloo", "tic_grpo"):  # The completion is one action.
      weight = rows
    if name == "gagpo":  # Two tokens are one, but for the last of odd rows.
      actions = (lengths + 1) // 2
      alone = (np.arange(cases.BUDGET) == lengths - 1) & (lengths % 2 == 1)
      weight = np.where(alone, 1, 2) * actions[mask.any(1)].sum()
    advantages = outcome.advantages
    if name == "sft":
      advantages = np.ones_like(advantages)
    if advantages.ndim == 1:
      advantages = advantages[:, None]
    expected = np.where(mask, -advantages / weight, 0.0)
    np.testing.assert_allclose(outcome.gradient, expected, 1e-5, 1e-7)


@pytest.mark.parametrize("name", [x for x in NAMES if x in OWN_LOSS])
class TestLoss:
  """What is about the loss of the policy alone."""

  @pytest.mark.slow  # Two programs for each algorithm.
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
    assert low.loss.dtype == np.float32
    # What the case itself derives, values among it, is rounded to bfloat16 in
    # one of the two: 0.004 of a value of 1, and the mean is over 50 tokens.
    np.testing.assert_allclose(low.loss, high.loss, 1e-3, 5e-4)

  @pytest.mark.slow  # Thousands of single operations.
  def test_jit_changes_round_off_only(self, name):
    algorithm, config = _make(name)
    case = cases.make_case()
    _assert_same(
      cases.evaluate_without_jit(algorithm, config, case),
      cases.evaluate(algorithm, config, case),
    )

  def test_clip_fraction_counts_tokens_without_gradient(self, name):
    algorithm, config = _plain(name)
    outcome = cases.evaluate(algorithm, config, cases.make_case(spread=1.0))
    if "old_logp" not in algorithm.needs:
      assert "clip_fraction" not in outcome.metrics
      return
    advantages = outcome.advantages
    if advantages.ndim == 1:
      advantages = advantages[:, None]
    live = outcome.mask & (advantages != 0)
    clipped = (live & (outcome.gradient == 0)).sum() / outcome.mask.sum()
    assert outcome.metrics["clip_fraction"] < 1
    np.testing.assert_allclose(outcome.metrics["clip_fraction"], clipped, 1e-6)
    np.testing.assert_allclose(
      outcome.metrics["clip_fraction/low"]
      + outcome.metrics["clip_fraction/high"],
      clipped,
      1e-6,
    )


CLIPPED = [
  name
  for name, algorithm in algorithms.ALGORITHMS.items()
  if issubclass(algorithm.config_class, ClipConfig)
]


@functools.cache
def _bad_batch():
  """A prepared batch whose completions are all bad and full."""
  algorithm, config = _plain("gagpo")  # A ratio of turns needs turns.
  with jax.disable_jit():
    batch = cases.prepared(algorithm, config, cases.make_case())
  return dataclasses.replace(
    batch,
    mask=np.ones_like(batch.mask),
    advantages=-np.ones_like(batch.rewards),
  )


class TestBounds:
  """What every algorithm with a `ClipConfig` owes to its options."""

  @pytest.mark.parametrize("name", CLIPPED)
  def test_far_above_the_range_a_bad_completion_costs_the_bound(self, name):
    """Each −r A is c |A| at most, whatever r is a ratio of."""
    algorithm, config = algorithms.get_algorithm(name), _plain(name)[1]
    batch = _bad_batch()

    def losses(shift, **bounds):
      with jax.disable_jit():
        return algorithm.policy_loss(
          dataclasses.replace(config, **bounds),
          PolicyOutputs(
            logp=batch.old_logp + shift, trainable=algorithm.init(config)[0]
          ),
          batch,
        )

    at_one = losses(0.0)
    assert (at_one > 0).all()
    for bounds in ({"dual_clip": 3.0}, {"ratio_cap": 3.0}):
      np.testing.assert_allclose(losses(0.0, **bounds), at_one, 1e-6)
      np.testing.assert_allclose(losses(5.0, **bounds), 3 * at_one, 1e-5)
    assert (losses(5.0) > 100 * at_one).all()


@settings(max_examples=60, deadline=None)
@given(
  st.sampled_from(NAMES),
  st.lists(st.integers(0, cases.BUDGET), min_size=10, max_size=10),
  st.lists(st.integers(0, 3), min_size=10, max_size=10),
  st.lists(st.sampled_from([0.0, 1.0, 0.7]), min_size=10, max_size=10),
  st.lists(st.booleans(), min_size=10, max_size=10),
)
def test_any_masks_and_groups(name, lengths, groups, rewards, valid):
  """Nothing is NaN, and nothing outside the mask has a gradient."""
  algorithm, config = _make(name)
  case = cases.make_case()
  case.mask = np.arange(cases.BUDGET) < np.array(lengths)[:, None]
  case.group_id = np.array(groups)
  case.rewards = np.array(rewards, np.float32)
  case.valid = np.array(valid)
  outcome = cases.evaluate(algorithm, config, case)
  assert np.isfinite(outcome.loss)
  assert np.isfinite(outcome.gradient).all()
  assert not outcome.gradient[~outcome.mask].any()
