"""Group advantages: by hand, in any order, and exactly 0 without signal."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import baselines

# Groups 3 and 1 of 5, not sorted; group 4 has one row, 0 and 2 have none.
REWARDS = np.array([1.0, 0.0, 4.0, 2.0, 9.0, 3.0], np.float32)
GROUPS = np.array([3, 1, 1, 3, 4, 3])
EVERYONE = np.ones(6, bool)
LENGTHS = np.array([2, 1, 3, 1, 5, 1])


def _length_weighted(rewards, valid, group_id, num_groups):
  """With lengths that follow from the rewards, so that they move with them."""
  lengths = 1 + jnp.where(valid, jnp.abs(rewards), 0).astype(int) % 3
  return baselines.length_weighted(
    rewards, lengths, valid, group_id, num_groups
  )


CENTERED = (
  baselines.group_centered,
  baselines.group_standardized,
  baselines.leave_one_out,
)
ESTIMATORS = (*CENTERED, baselines.best_of_group, _length_weighted)


@functools.cache  # One program for all tests of the same shapes.
def _compiled(function):
  static = {"num_groups", "scale", "zero_tail"}
  names = inspect.signature(function).parameters
  return jax.jit(function, static_argnames=sorted(static & set(names)))


def _jitted(function):
  """The function, compiled, with NumPy arrays as its results."""
  return lambda *x, **options: jax.device_get(
    _compiled(function)(*x, **options)
  )


def _advantages(function, rewards, valid, groups, num_groups=5, **options):
  return _jitted(function)(rewards, valid, groups, num_groups, **options)


def test_advantages_by_hand():
  # Group 3: 1, 2, 3 with mean 2; group 1: 0, 4 with mean 2; a group of one: 0.
  np.testing.assert_allclose(
    _advantages(baselines.group_centered, REWARDS, EVERYONE, GROUPS),
    [-1, -2, 2, 0, 0, 1],
  )
  # Sample deviations: 1 in group 3; √((4 + 4) / 1) = 2.8284 in group 1.
  np.testing.assert_allclose(
    _advantages(baselines.group_standardized, REWARDS, EVERYONE, GROUPS),
    [-1, -(0.5**0.5), 0.5**0.5, 0, 0, 1],
    rtol=1e-5,
  )
  # Of the population: √(2/3) in group 3; 2 in group 1.
  np.testing.assert_allclose(
    _advantages(
      baselines.group_standardized, REWARDS, EVERYONE, GROUPS, ddof=0, eps=0.5
    )[1:3],
    [-2 / 2.5, 2 / 2.5],
    rtol=1e-6,
  )


def test_more_advantages_by_hand():
  # Group 3: 1 − (2 + 3) / 2, 2 − (1 + 3) / 2, 3 − (1 + 2) / 2; group 1: ∓4.
  np.testing.assert_allclose(
    _advantages(baselines.leave_one_out, REWARDS, EVERYONE, GROUPS),
    [-1.5, -4, 4, 0, 0, 1.5],
    rtol=1e-6,
  )
  # The best of group 3 leads by 3 − 2, of group 1 by 4 − 0.
  np.testing.assert_array_equal(
    _advantages(baselines.best_of_group, REWARDS, EVERYONE, GROUPS),
    [0, 0, 4, 0, 0, 1],
  )
  # Baselines (2·1 + 1·2 + 1·3) / 4 = 7/4 and (1·0 + 3·4) / 4 = 3.
  np.testing.assert_allclose(
    _jitted(baselines.length_weighted)(REWARDS, LENGTHS, EVERYONE, GROUPS, 5),
    [-0.75, -3, 1, 0.25, 0, 1.25],
    rtol=1e-6,
  )


def test_length_weighted_counts_rows_without_tokens_for_nothing():
  lengths = np.array([0, 0, 3, 1, 0, 1])
  # Group 3: (2 + 3) / 2; group 1: 4; group 4 has no tokens: 0.
  np.testing.assert_allclose(
    _jitted(baselines.length_weighted)(REWARDS, lengths, EVERYONE, GROUPS, 5),
    [-1.5, -4, 0, -0.5, 9, 0.5],
    rtol=1e-6,
  )


def test_a_tie_for_the_best_gives_nothing():
  rewards = np.array([2, 1, 2, 5, 4, 4], np.float32)
  groups = np.array([0, 0, 0, 1, 1, 1])
  np.testing.assert_array_equal(
    _advantages(baselines.best_of_group, rewards, EVERYONE, groups, 2),
    [0, 0, 0, 1, 0, 0],
  )


def test_scaled_by_hand():
  advantages = np.arange(1.0, 7.0, dtype=np.float32)
  arguments = (REWARDS, EVERYONE, GROUPS, 5)
  np.testing.assert_array_equal(
    _jitted(baselines.scaled)(advantages, *arguments, "none"), advantages
  )
  # Deviations 1 and √8; a group of one has none.
  group = [1, 2 / 8**0.5, 3 / 8**0.5, 4, 0, 6]
  np.testing.assert_allclose(
    _jitted(baselines.scaled)(advantages, *arguments, "group"), group, rtol=1e-5
  )
  per_token = np.stack([advantages, 2 * advantages], axis=1)
  np.testing.assert_allclose(
    _jitted(baselines.scaled)(per_token, *arguments, "group"),
    np.stack([group, 2 * np.array(group)], axis=1),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    _jitted(baselines.scaled)(advantages, *arguments, "batch", ddof=0, eps=0.5),
    advantages / (REWARDS.std() + 0.5),
    rtol=1e-6,
  )
  valid = np.array([True, True, False, True, True, True])
  np.testing.assert_allclose(
    _jitted(baselines.scaled)(
      advantages, np.where(valid, REWARDS, np.nan), valid, GROUPS, 5, "batch"
    ),
    np.where(valid, advantages / (REWARDS[valid].std(ddof=1) + 1e-6), 0),
    rtol=1e-5,
  )


def test_rewards_without_spread_have_no_scale():
  same = np.full(6, 0.7, np.float32)
  for scale in ("group", "batch"):
    scaled = _jitted(baselines.scaled)(
      REWARDS, same, EVERYONE, GROUPS, 5, scale
    )
    np.testing.assert_array_equal(scaled, 0)


def test_scaled_names_the_scales_it_knows():
  with pytest.raises(ValueError, match=r"'std'.*none.*group.*batch"):
    _jitted(baselines.scaled)(REWARDS, REWARDS, EVERYONE, GROUPS, 5, "std")


def test_statistics_by_hand():
  valid = EVERYONE.copy()
  valid[3] = False
  statistics = _jitted(baselines.group_statistics)(REWARDS, valid, GROUPS, 5)
  np.testing.assert_array_equal(statistics.num_valid, [0, 2, 0, 2, 1])
  np.testing.assert_array_equal(statistics.mean, [0, 2, 0, 2, 9])
  np.testing.assert_array_equal(statistics.variance, [0, 8, 0, 2, 0])
  np.testing.assert_array_equal(statistics.least, [np.inf, 0, np.inf, 1, 9])
  np.testing.assert_array_equal(
    statistics.greatest, [-np.inf, 4, -np.inf, 3, 9]
  )
  np.testing.assert_array_equal(
    _jitted(baselines.live_groups)(REWARDS, valid, GROUPS, 5),
    [False, True, False, True, False],
  )


@pytest.mark.parametrize("function", ESTIMATORS)
def test_equal_rewards_give_exactly_zero(function):
  """Their float32 mean may be off by one unit in the last place."""
  sizes = [12, 16, 7, 4, 5]
  rewards = np.repeat(np.float32([0.7, 0.7, 0.1, 0.0, -3.3]), sizes)
  groups = np.repeat(np.arange(5), sizes)
  advantages = _advantages(function, rewards, np.ones(44, bool), groups)
  np.testing.assert_array_equal(advantages, 0.0)


def test_sums_that_differ_by_round_off_are_equal():
  rng = np.random.default_rng(0)
  terms = rng.normal(size=20).astype(np.float32)
  x, size = np.zeros((2, 12), np.float32)
  for i in range(8):  # Group 0: one sum, in eight orders.
    for term in rng.permutation(terms):
      x[i] += term
      size[i] += abs(term)
  assert np.ptp(x[:8]) > 0
  x[8:], size[8:] = [1.0, 1.001, np.nan, 5.0], [2.0, 2.0, np.nan, 5.0]
  valid = np.arange(12) != 10
  groups = np.array([0] * 8 + [2, 2, 2, 1])
  found = _jitted(baselines.without_round_off)(x, size, valid, groups, 3)
  np.testing.assert_array_equal(found[:8], x[:8].min())
  np.testing.assert_array_equal(found[8:], np.float32([1.0, 1.001, 0.0, 5.0]))


@pytest.mark.parametrize("function", ESTIMATORS)
@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e9, -1e9])
def test_unscored_rows_enter_nothing(function, garbage):
  # Group 3 keeps 1 and 3, group 1 one row, and group 4 none.
  valid = np.array([True, True, False, False, False, True])
  dirty = np.where(valid, REWARDS, np.float32(garbage))
  advantages = _advantages(function, dirty, valid, GROUPS)
  clean = _advantages(function, REWARDS[valid], EVERYONE[:3], GROUPS[valid])
  np.testing.assert_array_equal(advantages[valid], clean)
  assert clean.any()
  np.testing.assert_array_equal(advantages[~valid], 0)
  np.testing.assert_array_equal(
    _jitted(baselines.live_groups)(dirty, valid, GROUPS, 5),
    [False, False, False, True, False],
  )
  nobody = np.zeros_like(valid)
  np.testing.assert_array_equal(
    _advantages(function, dirty, nobody, GROUPS), np.zeros(6)
  )


@pytest.mark.parametrize("function", ESTIMATORS)
def test_order_names_and_spare_groups_are_irrelevant(function):
  expected = _advantages(function, REWARDS, EVERYONE, GROUPS)
  order = np.array([4, 2, 0, 5, 1, 3])
  shuffled = _advantages(function, REWARDS[order], EVERYONE, GROUPS[order])
  np.testing.assert_allclose(shuffled, expected[order], rtol=1e-6)
  renamed = _advantages(function, REWARDS, EVERYONE, 99 - GROUPS, 100)
  np.testing.assert_allclose(renamed, expected, rtol=1e-6)


@pytest.mark.parametrize("function", ESTIMATORS)
def test_advantages_are_constants(function):
  slope = jax.jit(
    jax.grad(
      lambda rewards: (REWARDS * function(rewards, EVERYONE, GROUPS, 5)).sum()
    )
  )(REWARDS)
  np.testing.assert_array_equal(slope, 0)


# --- Token baselines ---------------------------------------------------------

# Two rows of one group and a lone row; the second row is shorter.
TOKENS = np.array([[True, True], [True, False], [True, True]])
TOKEN_GROUPS = np.array([1, 1, 0])
TO_GO = np.array([[1.0, 1.0], [0.0, 0.0], [5.0, 5.0]], np.float32)
LOGP = np.log(np.array([[0.5, 0.5], [0.25, 1], [0.5, 0.5]], np.float32))
SQUARES = np.array([[0.5, 0.5], [0.25, 1], [0.5, 0.5]], np.float32)


def test_optimal_token_by_hand():
  # Energies w: 1 − 2·1/2 + 1/2 = 1/2 and 1 − 2·1/4 + 1/4 = 3/4. Slot 0:
  # b = (1/2 · 1 + 3/4 · 0) / (5/4) = 0.4. Slot 1 has one row only.
  arguments = (TO_GO, LOGP, SQUARES, TOKENS, TOKEN_GROUPS, 2)
  np.testing.assert_allclose(
    _jitted(baselines.optimal_token)(*arguments),
    [[0.6, 0], [-0.4, 0], [0, 0]],
    rtol=1e-6,
  )
  # Without a baseline beyond the second longest; of a lone row that is all.
  np.testing.assert_allclose(
    _jitted(baselines.optimal_token)(*arguments, zero_tail=True),
    [[0.6, 1], [-0.4, 0], [5, 5]],
    rtol=1e-6,
  )


def test_optimal_token_accumulates_energy():
  mask = np.ones((2, 3), bool)
  to_go = np.array([[3.0, 2.0, 1.0], [0.0, 0.0, 0.0]], np.float32)
  logp = np.log(np.array([[0.5] * 3, [0.25] * 3], np.float32))
  squares = np.array([[0.5] * 3, [0.25, 1.5, 1.0]], np.float32)
  # W: (1/2, 1, 3/2) and (3/4, 3/4 + 2, 11/4 + 3/2); b_t = W_0t G_0t / ΣW_t.
  baseline = np.array([3 * 0.5 / 1.25, 2 * 1 / 3.75, 1 * 1.5 / 5.75])
  found = _jitted(baselines.optimal_token)(
    to_go, logp, squares, mask, np.zeros(2, int), 1
  )
  np.testing.assert_allclose(found, to_go - baseline, rtol=1e-6)


def test_the_tail_is_measured_in_slots():
  """A row with a hole may have fewer tokens and yet end last."""
  mask = np.array([[True, True, True, False], [True, False, False, True]])
  zeros = np.zeros((2, 4), np.float32)
  to_go = np.array([[1.0] * 4, [2.0] * 4], np.float32)
  logp, squares = zeros + np.log(0.5), zeros + 0.5
  found = _jitted(baselines.optimal_token)(
    to_go, logp, squares, mask, np.zeros(2, int), 1, zero_tail=True
  )
  # Slot 0: b = 3/2. Slots 1 and 2: row 0 alone, but not its group's tail.
  np.testing.assert_allclose(found, [[-0.5, 0, 0, 0], [0.5, 0, 0, 2]])


@pytest.mark.slow
def test_optimal_token_of_sure_tokens_is_finite():
  """π = 1: no energy, and float32 round-off may make it negative."""
  sure = np.full((3, 2), -1e-7, np.float32)
  found = _jitted(baselines.optimal_token)(
    TO_GO, sure, np.ones((3, 2), np.float32), TOKENS, TOKEN_GROUPS, 2
  )
  assert np.abs(found).max() <= np.abs(TO_GO).max()


# --- Process supervision -----------------------------------------------------

STEPS = np.array([[False, True, False, True]] * 2)
STEP_REWARDS = np.array([[9.0, 1, 9, 0], [9.0, 0, 9, 1]], np.float32)
FOUR = np.ones((2, 4), bool)
BOTH = np.ones(2, bool)
ONE_GROUP = np.zeros(2, int)


def test_process_supervision_by_hand():
  # All steps of the group: 1, 0, 0, 1, of which the deviation is 1/√3; sums
  # from the end.
  np.testing.assert_allclose(
    _jitted(baselines.process_supervision)(
      STEP_REWARDS, STEPS, FOUR, BOTH, ONE_GROUP, 1
    )[:, 2],
    [-(0.75**0.5), 0.75**0.5],
    rtol=1e-5,
  )


def test_process_supervision_ignores_what_is_no_step():
  valid = np.array([True, False])
  dirty = np.where(STEPS & valid[:, None], STEP_REWARDS, np.nan)
  found = _jitted(baselines.process_supervision)(
    dirty, STEPS, FOUR, valid, ONE_GROUP, 1
  )
  # Steps 1 and 0 of the first row alone.
  z = 0.5**0.5
  np.testing.assert_allclose(
    found, [[0, 0, -z, -z], [0] * 4], rtol=1e-5, atol=1e-5
  )
  # Equal step rewards, and a single step.
  same = np.full((2, 4), 0.7, np.float32)
  for ends in (STEPS, STEPS & np.array([[True], [False]]) & (np.arange(4) > 1)):
    found = _jitted(baselines.process_supervision)(
      same, ends, FOUR, BOTH, ONE_GROUP, 1
    )
    np.testing.assert_array_equal(found, 0)


# --- Several objectives ------------------------------------------------------

OBJECTIVES = np.array([[1, 10], [0, 20], [1, 30], [0, 40]], np.float32)
APPLIES = np.ones((4, 2), bool)
SAMPLE = (3 / 4) ** 0.5  # The population's deviation by the sample's.
ALONE = {"valid": np.ones(4, bool), "group_id": np.zeros(4, int)}


def _objectives(components, applicable=APPLIES, weights=(1, 1), **options):
  options = {**ALONE, "num_groups": 1, "eps": 0.0, **options}
  return np.asarray(
    _jitted(baselines.objectives_standardized)(
      components, applicable, np.array(weights, np.float32), **options
    )
  )


def test_objectives_by_hand():
  # With the population's deviation z_1 = ±1 and z_2 = (−15, −5, 5, 15) / √125 =
  # ∓1.341641, ∓0.447214.
  expected = np.array([-0.341641, -1.447214, 1.447214, 0.341641]) * SAMPLE
  found = _objectives(OBJECTIVES)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  for k in range(2):  # Each has the same say.
    correlation = np.corrcoef(found, OBJECTIVES[:, k])[0, 1]
    np.testing.assert_allclose(correlation, 0.525731, rtol=1e-5)
  np.testing.assert_allclose(  # GDPO of this single group.
    _jitted(baselines.batch_standardized)(found, ALONE["valid"], eps=0.0),
    np.array([-0.32492, -1.376382, 1.376382, 0.32492]) * SAMPLE,
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    _objectives(OBJECTIVES, weights=(2, 0)),
    np.array([2, -2, 2, -2]) * SAMPLE,
    rtol=1e-6,
  )


def test_objectives_that_say_nothing_add_nothing():
  constant = OBJECTIVES.copy()
  constant[:, 1] = 0.7
  # Does not apply to row 2, invalid in row 3: z_1 of 1, 0 and −, −.
  np.testing.assert_allclose(
    _objectives(constant, eps=1e-6),
    np.array([1, -1, 1, -1]) * SAMPLE,
    rtol=1e-5,
  )
  applies = np.ones((4, 2), bool)
  applies[2, 0] = False
  valid = np.array([True, True, True, False])
  dirty = np.where(applies & valid[:, None], OBJECTIVES, np.nan)
  found = _objectives(dirty, applies, valid=valid)
  # z_1 = √½, −√½, none; z_2 of 10, 20, 30 = −1, 0, 1.
  root = 0.5**0.5
  np.testing.assert_allclose(found, [root - 1, -root, 1, 0], rtol=1e-5)


def test_batch_standardized_by_hand():
  x = np.array([1.0, 2.0, 3.0, np.nan], np.float32)
  valid = np.array([True, True, True, False])
  np.testing.assert_allclose(
    _jitted(baselines.batch_standardized)(x, valid), [-1, 0, 1, 0], rtol=1e-5
  )
  same = np.full(12, 0.7, np.float32)
  np.testing.assert_array_equal(
    _jitted(baselines.batch_standardized)(same, np.ones(12, bool)), 0
  )


# --- Length preference -------------------------------------------------------


def _preference(lam, lengths=(2, 4, 3, 3, 3), rows=(True,) * 5, **options):
  return _compiled(baselines.length_preference)(
    np.array(lengths),
    np.array(rows),
    lam,
    np.array([1, 1, 0, 0, 0]),
    2,
    **options,
  )


def test_length_preference_by_hand():
  # z = ∓1, h = 8/9 and 10/9, f = 2 softmax(h^λ); the other group: all 1.
  for lam in (1.0, 2.0, -1.0):
    power = np.array([8 / 9, 10 / 9]) ** lam
    expected = 2 * np.exp(power) / np.exp(power).sum()
    np.testing.assert_allclose(
      _preference(lam), [*expected, 1, 1, 1], rtol=1e-5
    )
  np.testing.assert_array_equal(_preference(0.0), 1)


def test_rows_left_out_have_no_weight_and_no_say():
  rows = (True, True, True, True, False)
  found = np.asarray(_preference(1.0, (2, 4, 5, 7, 1000), rows))
  equal = np.asarray(_preference(1.0))
  np.testing.assert_allclose(found[2:4], equal[:2], rtol=1e-6)
  assert found[4] == 0
  np.testing.assert_array_equal(_preference(1.0, rows=(False,) * 5), 0)


def test_extreme_preferences_are_finite():
  # ρ = 1 gives h = 0 for the shorter row, which the bound keeps above 0.
  both = jax.jit(
    lambda x: jax.jvp(lambda x: _preference(x, rho=1.0), (x,), (1.0,))
  )
  for lam in np.float32([-1e4, -30.0, 30.0, 1e4]):
    weights, slope = jax.device_get(both(lam))
    assert np.isfinite(weights).all()
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(weights[:2].sum(), 2, rtol=1e-6)


def test_the_rank_in_a_group_by_hand():
  # Group 0: costs 5, 3, 3 at places 0, 2, 4; group 7: 1 and an invalid row.
  cost = np.array([5.0, 1.0, 3.0, np.nan, 3.0])
  valid = np.array([True, True, True, False, True])
  group_id = np.array([0, 7, 0, 7, 0])
  rank = _jitted(baselines.rank_in_group)(cost, valid, group_id)
  np.testing.assert_array_equal(rank, [2, 0, 0, 1, 1])
