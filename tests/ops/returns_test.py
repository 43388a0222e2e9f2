"""Returns and advantages: by hand, against direct sums, and over holes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.ops import returns
from tests.references import contexts

# One program for all tests of the same shapes.
advantages_of = jax.jit(returns.generalized_advantages)
to_go_of = jax.jit(returns.returns_to_go, static_argnames="holes")
outcomes_of = jax.jit(returns.outcome_rewards)
adaptive_lambda_of = jax.jit(returns.length_adaptive_lambda)
subtraces_of = jax.jit(
  returns.subtrace_advantages, static_argnames=("boundary", "reward")
)

GARBAGE = (np.nan, np.inf, -np.inf, 1e9)


def _random_case(seed, num_rows=4, num_slots=6):
  """Rewards, values and a mask with holes and, mostly, an empty row."""
  rng = np.random.default_rng(seed)
  shape = (num_rows, num_slots)
  mask = rng.random(shape) < 0.6
  mask[rng.integers(num_rows)] = False
  return rng.normal(size=shape), rng.normal(size=shape), mask


def _direct_advantages(rewards, values, gamma, lam, beyond=0.0):
  """A_t = Σ_{s ≥ t} (γλ)^{s − t} δ_s of one row without holes."""
  following = np.append(values[1:], beyond)[: len(values)]
  errors = rewards + gamma * following - values
  return np.array(
    [
      sum((gamma * lam) ** (s - t) * errors[s] for s in range(t, len(errors)))
      for t in range(len(errors))
    ]
  )


def test_outcome_is_paid_on_the_last_token():
  mask = np.array([[1, 1, 1], [1, 0, 1], [1, 0, 0], [0, 0, 0]], bool)
  found = outcomes_of(np.array([1.0, 2.0, 3.0, np.nan]), mask)
  np.testing.assert_array_equal(
    found, [[0, 0, 1], [0, 0, 2], [3, 0, 0], [0, 0, 0]]
  )


def test_returns_by_hand():
  rewards = np.array([[1.0, 9.0, 2.0, 4.0]])
  mask = np.array([[True, False, True, True]])
  # 4; 2 + 4/2; over the hole 1 + 4/2.
  np.testing.assert_array_equal(to_go_of(rewards, mask, 0.5), [[3, 0, 4, 4]])
  np.testing.assert_array_equal(to_go_of(rewards, mask), [[7, 0, 6, 4]])
  # Starting anew at the hole, the first token sees its own reward only.
  np.testing.assert_array_equal(
    to_go_of(rewards, mask, 0.5, "reset"), [[1, 0, 4, 4]]
  )


def test_returns_name_the_ways_over_holes():
  with pytest.raises(ValueError, match=r"'cut'.*skip.*reset"):
    to_go_of(np.ones((1, 1)), np.ones((1, 1), bool), 1.0, "cut")


def test_length_adaptive_lambda_by_hand():
  lengths = np.arange(1000)
  # 1 − 1/(n/20); below 20 tokens it would be negative.
  lam = np.asarray(adaptive_lambda_of(lengths, 0.05))
  np.testing.assert_allclose(
    lam[[0, 1, 20, 40, 200]], [0, 0, 0, 0.5, 0.9], atol=1e-6
  )
  lam = np.asarray(adaptive_lambda_of(lengths, 1.5))
  assert (np.diff(lam) >= 0).all()
  assert lam.min() >= 0
  assert lam.max() < 1


def test_advantages_by_hand():
  # λ = 1 − 1/(1.5 · 3) = 7/9; errors 0.3, 0.1, 0.4:
  # 0.1 + 7/9 · 0.4 = 0.411111, 0.3 + 7/9 · 0.411111 = 0.619753.
  values = np.array([[0.2, 0.5, 0.6]])
  mask = np.ones((1, 3), bool)
  rewards = outcomes_of(np.ones(1), mask)
  lam = adaptive_lambda_of(np.array([3]), 1.5)
  advantages, targets = jax.device_get(
    advantages_of(rewards, values, mask, 1.0, lam)
  )
  np.testing.assert_allclose(advantages, [[0.619753, 0.411111, 0.4]], rtol=1e-5)
  np.testing.assert_allclose(targets, advantages + values)


@settings(deadline=None, max_examples=25)
@given(
  seed=st.integers(0, 10_000),
  gamma=st.sampled_from([1.0, 0.9, 0.0]),
  lam=st.sampled_from([1.0, 0.95, 0.5, 0.0]),
)
def test_advantages_are_direct_sums_that_skip_holes(seed, gamma, lam):
  rewards, values, mask = _random_case(seed)
  beyond = np.random.default_rng(seed).normal(size=4)
  with jax.enable_x64(True):
    advantages, targets = advantages_of(
      rewards, values, mask, gamma, np.full(4, lam), beyond
    )
  expected = np.zeros_like(rewards)
  for i in range(4):
    at = mask[i]
    expected[i, at] = _direct_advantages(
      rewards[i, at], values[i, at], gamma, lam, beyond[i]
    )
  np.testing.assert_allclose(advantages, expected, atol=1e-12)
  np.testing.assert_allclose(
    targets, np.where(mask, expected + values, 0), atol=1e-12
  )


def test_episodes_of_one_row_are_those_of_several():
  rng = np.random.default_rng(7)
  rewards, values = rng.normal(size=(2, 1, 6))
  ends = np.array([[False, True, False, False, True, False]])
  mask = np.array([[True, True, False, True, True, True]])  # With a hole.
  beyond = np.array([0.7])
  with jax.enable_x64(True):
    together = jax.device_get(
      advantages_of(rewards, values, mask, 0.9, 0.8, beyond, ends)
    )
    to_go = np.asarray(to_go_of(rewards, mask, 0.9, ends=ends))
    for part, after in (
      (slice(2), 0.0),
      (slice(2, 5), 0.0),
      (slice(5, 6), 0.7),
    ):
      alone = np.zeros_like(mask)  # All else is a hole.
      alone[:, part] = mask[:, part]
      expected = advantages_of(
        rewards, values, alone, 0.9, 0.8, np.array([after])
      )
      np.testing.assert_allclose(
        [np.where(alone, x, 0) for x in together], expected, atol=1e-12
      )
      np.testing.assert_allclose(
        np.where(alone, to_go, 0), to_go_of(rewards, alone, 0.9), atol=1e-12
      )


@jax.jit
def _everything_and_slopes(rewards, values, weights, mask):
  """All results, and the slopes of their weighted sum."""
  others = {"trace_id": np.array([0, 1, 1, 0]), "order": np.array([1, 0, 1, 0])}

  def total(rewards, values):
    results = [
      to_go_of(rewards, mask, 0.9),
      to_go_of(rewards, mask, 0.9, "reset"),
      *advantages_of(rewards, values, mask, 0.9, 0.5),
      *(
        x
        for boundary in returns.BOUNDARIES
        for x in subtraces_of(
          rewards,
          jnp.arange(4.0),
          values,
          mask,
          gamma=0.9,
          lam=0.5,
          boundary=boundary,
          **others,
        )
      ),
    ]
    return sum((x * weights).sum() for x in results), results

  slopes, results = jax.grad(total, (0, 1), has_aux=True)(rewards, values)
  return results, slopes


@pytest.mark.slow
@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_slots_reach_nothing(garbage):
  rewards, values, mask = _random_case(5)

  def everything(*arrays):
    return jax.device_get(_everything_and_slopes(*arrays, rewards, mask))

  clean, _ = everything(rewards, values)
  dirty, slopes = everything(
    *(np.where(mask, x, garbage) for x in (rewards, values))
  )
  for found, expected in zip(dirty, clean, strict=True):
    np.testing.assert_array_equal(found, expected)
    assert not found[~mask].any()
    assert found.any()
  for slope in slopes:
    np.testing.assert_array_equal(slope, 0)


def test_float32_stays_and_float64_stays():
  rewards, values, mask = _random_case(6)
  for dtype in (np.float32, np.float64):
    with jax.enable_x64(True):
      found = advantages_of(
        rewards.astype(dtype), values.astype(dtype), mask, 0.9, 0.5
      )
    assert [x.dtype for x in found] == [dtype, dtype]


# --- Sub-traces --------------------------------------------------------------


def _subtraces(case, boundary, gamma=0.95, lam=0.9, reward="terminal"):
  """Advantages of a case (rewards, outcome, values, mask, trace, order)."""
  num_rows, num_slots = case[0].shape
  # Empty rows of another rollout, so that all tests share their programs.
  more, names = 6 - num_rows, (0, 0, 0, 0, 99, 0)
  padded = [
    np.pad(x, ((0, more), (0, 5 - num_slots))[: x.ndim], constant_values=name)
    for x, name in zip(case, names, strict=True)
  ]
  lams = np.pad(np.broadcast_to(lam, num_rows), (0, more))
  with jax.enable_x64(True):
    found = subtraces_of(
      *padded, gamma=gamma, lam=lams, boundary=boundary, reward=reward
    )
  return [np.asarray(x)[:num_rows, :num_slots] for x in found]


def _two_rows():
  """A rollout in two rows, of 3 and 2 tokens, that ends with R = 1."""
  mask = np.array([[True] * 3, [True, True, False]])
  outcome, trace, order = np.ones(2), np.array([7, 7]), np.array([0, 1])
  return np.zeros((2, 3)), outcome, np.zeros((2, 3)), mask, trace, order


@pytest.mark.parametrize("boundary", ["chain", "compaction_rl"])
def test_discount_across_rows_by_hand(boundary):
  # 0.9 to the number of tokens that follow: 4, 3, 2 and 1, 0.
  found, _ = _subtraces(_two_rows(), boundary, gamma=0.9, lam=1.0)
  np.testing.assert_allclose(
    found, [[0.6561, 0.729, 0.81], [0.9, 1.0, 0.0]], rtol=1e-12
  )


def test_boundaries_by_hand():
  rewards, outcome, _, mask, trace, order = _two_rows()
  values = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 9.0]])
  arguments = (rewards, outcome, values, mask, trace, order)
  # γ = 1, λ = 1/2. Errors of the last row: 0.1 and 1 − 0.5.
  last = [0.1 + 0.5 * 0.5, 0.5, 0]
  for boundary, final in (
    ("outcome", 1 - 0.3),  # R here too.
    ("bootstrap", 0.4 - 0.3),  # The next row's value.
    ("chain", 0.4 - 0.3 + 0.5 * last[0]),  # And its advantage.
  ):
    found, targets = _subtraces(arguments, boundary, gamma=1.0, lam=0.5)
    middle = 0.1 + 0.5 * final
    expected = np.array([[0.1 + 0.5 * middle, middle, final], last])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(targets, np.where(mask, expected + values, 0))
  compacted, _ = _subtraces(arguments, "compaction_rl", gamma=1.0, lam=0.5)
  local, _ = _subtraces(arguments, "outcome", gamma=1.0, lam=0.5)
  factors = np.array([[0.25], [1.0]])  # Two tokens later, none later.
  np.testing.assert_allclose(compacted, local * factors, rtol=1e-12)


@pytest.mark.parametrize(
  ("boundary", "first", "second"),
  [
    ("outcome", [0.405, 0.45, 0.5], [0.45, 0.5, 0]),  # 0.5 · 0.9^n.
    # Half of Eq. 15.
    ("compaction_rl", [0.32805, 0.3645, 0.405], [0.45, 0.5, 0]),
    # 0.9^(2, 1, 0) of what is paid there and of 0.9 · 0.45 after it.
    ("chain", [0.73305, 0.8145, 0.905], [0.45, 0.5, 0]),
    ("bootstrap", [0.405, 0.45, 0.5], [0.45, 0.5, 0]),
  ],
)
def test_shares_of_a_reward_by_hand(boundary, first, second):
  found, _ = _subtraces(
    _two_rows(), boundary, gamma=0.9, lam=1.0, reward="split"
  )
  np.testing.assert_allclose(found, [first, second], rtol=1e-12)


def _random_traces(seed, num_rows=6, num_slots=5):
  rewards, values, mask = _random_case(seed, num_rows, num_slots)
  rng = np.random.default_rng(seed)
  names = np.array([-3, 8, 2])
  trace = names[rng.integers(3, size=num_rows)]
  order = rng.permutation(num_rows) * 10
  outcome = rng.normal(size=9)[trace]
  return rewards, outcome, values, mask, trace, order


@settings(deadline=None, max_examples=10)
@given(
  seed=st.integers(0, 10_000),
  gamma=st.sampled_from([1.0, 0.9]),
  alpha=st.sampled_from([0.3, 1.5]),
  unit=st.sampled_from(["trace", "context"]),
)
@pytest.mark.parametrize("reward", returns.REWARDS)
@pytest.mark.parametrize("boundary", returns.BOUNDARIES)
def test_every_boundary_is_that_of_plain_loops(
  boundary, reward, seed, gamma, alpha, unit
):
  case = _random_traces(seed)
  rewards, outcome, values, mask, trace, order = case
  lams = np.array(contexts.lambdas(mask, trace, alpha, unit))
  found = _subtraces(case, boundary, gamma=gamma, lam=lams, reward=reward)
  expected = contexts.advantages(
    *(outcome, mask, values, trace, order),
    token_rewards=rewards,
    gamma=gamma,
    lams=lams,
    boundary=boundary,
    reward=reward,
  )
  np.testing.assert_allclose(found, expected, atol=1e-12)


def test_subtraces_name_the_boundaries_and_the_rewards():
  with pytest.raises(ValueError, match=r"'none'.*outcome.*compaction_rl"):
    _subtraces(_two_rows(), "none")
  with pytest.raises(ValueError, match=r"reward='half'.*terminal.*split"):
    _subtraces(_two_rows(), "chain", reward="half")
