"""Contract of every algorithm of the table."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax import algorithms
from grpo_jax.algorithms.contract import cases, checks
from grpo_jax.algorithms.options import ClipConfig
from grpo_jax.ops import aggregation, divergences
from grpo_jax.types import PolicyOutputs
from tests.references import known
from tests.training import tiny

NAMES = tuple(algorithms.ALGORITHMS)


def _make(name, **fields):
  """Algorithm and config, with every common term switched on."""
  defaults = {"kl_coef": 0.1, "entropy_coef": 0.01}
  config = algorithms.make_config(name, **{**defaults, **fields})
  return algorithms.get_algorithm(name), config


def _plain(name):
  """Algorithm and config with the policy term alone."""
  algorithm, config = _make(
    name, kl_coef=0.0, entropy_coef=0.0, **known.KNOWN[name].plain
  )
  if algorithm.policy_loss is not None:
    algorithm = dataclasses.replace(algorithm, critic_loss=None)
  return algorithm, config


@pytest.mark.parametrize("name", tiny.each(NAMES))
class TestContract:
  """Properties that one program for each algorithm shows."""

  def test_masked_garbage_reaches_neither_loss_nor_gradient(self, name):
    checks.masked_garbage_reaches_neither_loss_nor_gradient(*_make(name))

  def test_unscored_rows_are_out(self, name):
    checks.unscored_rows_are_out(*_make(name))

  def test_order_of_rows_and_names_of_groups_are_irrelevant(self, name):
    algorithm, config = _make(name)
    if name == "clip_cov":  # Draws by place: let it take every candidate.
      config = dataclasses.replace(config, cov_fraction=1.0, cov_low=0.1)
    checks.order_of_rows_and_names_of_groups_are_irrelevant(algorithm, config)

  def test_degenerate_batches_give_zero_not_nan(self, name):
    checks.degenerate_batches_give_zero_not_nan(*_make(name))

  def test_constants_get_no_gradient(self, name):
    # What compares with the teacher over the vocabulary is made before the
    # loss; here it is a function of both.
    given = {"ref_logp"} if name == "opd_full" else set()
    checks.constants_get_no_gradient(*_make(name), given)

  def test_better_rewards_make_completions_likelier(self, name):
    algorithm, config = _make(name)
    checks.better_rewards_make_completions_likelier(algorithm, config)
    flipped = dataclasses.replace(
      algorithm, advantages=lambda *x: -algorithm.advantages(*x)
    )
    if name not in tiny.FAST:
      return
    with pytest.raises(AssertionError, match="is a sign wrong"):
      checks.better_rewards_make_completions_likelier(flipped, config)

  def test_functions_return_what_is_needed(self, name):
    checks.functions_return_what_is_needed(*_make(name))

  def test_completions_of_one_token_are_finite(self, name):
    checks.completions_of_one_token_are_finite(*_make(name))

  @pytest.mark.parametrize("shift", checks.SHIFTS)
  def test_extreme_ratios_stay_finite(self, name, shift):
    checks.extreme_ratios_stay_finite(*_make(name), (shift,))

  def test_impossible_tokens_are_left_out(self, name):
    checks.impossible_tokens_are_left_out(*_make(name))


@pytest.mark.parametrize("name", tiny.each(NAMES))
class TestPrograms:
  """Properties that need a program of their own."""

  @pytest.mark.slow
  def test_padding_columns_change_nothing(self, name):
    algorithm, config = _make(name)
    if name == "dapo":  # Punishes near the budget, which is what grows here.
      config = dataclasses.replace(config, overlong_cache=0.0)
    if algorithm.aggregate is aggregation.over_budget:
      # The other terms are not divided by the budget.
      algorithm, config = _plain(name)
    checks.padding_columns_change_nothing(algorithm, config)

  @pytest.mark.slow
  def test_micro_batches_add_up(self, name):
    checks.micro_batches_add_up(*_make(name))

  @pytest.mark.slow
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
      # Of those that share a loss, one off its anchor; the others at ratio 1,
      # by the program of the test below.
      has_anchor = name in tiny.OWN_LOSS
      outcome = cases.evaluate(algorithm, config, equal, has_anchor)
      if not known.KNOWN[name].compares:
        assert outcome.gradient.any()
        return
      assert not np.any(outcome.advantages)
      assert not outcome.gradient.any()

  @pytest.mark.slow
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
    if not known.KNOWN[name].is_policy_gradient:
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
    if known.KNOWN[name].share == known.ACTION:
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


@pytest.mark.slow  # A program for each.
@pytest.mark.parametrize("kind", [*divergences.KL_KINDS, "full", "in_reward"])
@pytest.mark.parametrize("name", ["grpo", "ppo", "rloo"])
def test_impossible_tokens_are_left_out_of_every_kl(name, kind):
  fields = {"kl_kind": kind, "kl_in_reward": False}
  if kind == "in_reward":
    fields = {"kl_kind": "k1", "kl_in_reward": True}
  checks.impossible_tokens_are_left_out(*_make(name, **fields))


@pytest.mark.parametrize(
  "name", tiny.each(x for x in NAMES if x in tiny.OWN_LOSS)
)
class TestLoss:
  """Properties of the policy's loss alone."""

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


@pytest.mark.slow  # Thousands of single operations.
@pytest.mark.parametrize("name", tiny.FAST)
def test_jit_changes_round_off_only(name):
  """Compiled, all of the table are compared with loops in reference_test.py."""
  algorithm, config = _make(name)
  case = cases.make_case()
  checks.assert_same(
    cases.evaluate_without_jit(algorithm, config, case),
    cases.evaluate(algorithm, config, case),
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

  def prepared(arrays):
    return cases.prepared(algorithm, config, cases.Case(**arrays))

  batch = jax.jit(prepared)(cases.arrays_of(cases.make_case()))
  return dataclasses.replace(
    batch,
    mask=np.ones_like(batch.mask),
    advantages=-np.ones_like(batch.rewards),
  )


class TestBounds:
  """Properties of the options of every algorithm with a `ClipConfig`."""

  @pytest.mark.parametrize("name", tiny.each(CLIPPED))
  def test_far_above_the_range_a_bad_completion_costs_the_bound(self, name):
    """Each −r A is c |A| at most, whatever r is a ratio of."""
    algorithm, config = algorithms.get_algorithm(name), _plain(name)[1]
    batch = _bad_batch()

    none = {"dual_clip": 0.0, "ratio_cap": 0.0}

    @jax.jit
    def losses(logp):
      outputs = PolicyOutputs(logp=logp, trainable=algorithm.init(config)[0])
      return [
        algorithm.policy_loss(
          dataclasses.replace(config, **bounds), outputs, batch
        )
        for bounds in (none, {"dual_clip": 3.0}, {"ratio_cap": 3.0})
      ]

    at_one, *same = losses(batch.old_logp)
    unbounded, *bounded = losses(batch.old_logp + 5.0)
    assert (at_one > 0).all()
    for low, high in zip(same, bounded, strict=True):
      np.testing.assert_allclose(low, at_one, 1e-6)
      np.testing.assert_allclose(high, 3 * at_one, 1e-5)
    assert (unbounded > 100 * at_one).all()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
  st.sampled_from([x for x in NAMES if x in tiny.OWN_LOSS]),
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
