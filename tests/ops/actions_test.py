"""Sums over actions, and states of turns as a critic."""

import itertools

import jax
import numpy as np
import pytest

from grpo_jax.ops import actions

# Row 0: actions of 2 and 1 tokens that touch, a hole, an action of 2. Row 1:
# nothing. Row 2: one action between holes.
MASK = np.array(
  [[1, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 0]], bool
)
TURN = np.array([[0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]])

# One program for all tests of the same shapes.
SLOTS = 16
grouped_state_advantages = jax.jit(
  actions.grouped_state_advantages, static_argnames="num_groups"
)


@jax.jit
def _first_total_lengths(x):
  return (
    actions.first(TURN, MASK),
    actions.total(x, TURN, MASK),
    actions.lengths(TURN, MASK),
  )


def test_first_tokens_and_sums_by_hand():
  x = np.where(MASK, np.arange(1.0, 19.0).reshape(3, 6), np.nan)
  first, total, lengths = _first_total_lengths(x)
  np.testing.assert_array_equal(
    first, [[1, 0, 1, 0, 1, 0], [0] * 6, [0, 1, 0, 0, 0, 0]]
  )
  np.testing.assert_array_equal(
    total, [[3, 3, 3, 0, 11, 11], [0] * 6, [0, 45, 45, 45, 0, 0]]
  )
  np.testing.assert_array_equal(
    lengths, [[2, 2, 1, 1, 2, 2], [1] * 6, [1, 3, 3, 3, 1, 1]]
  )


def test_ratio_and_its_gradient():
  rng = np.random.default_rng(0)
  logp, old = rng.normal(size=(2, 3, 6)).astype(np.float32)
  dirty = np.where(MASK, logp, np.nan)

  def total(logp):
    ratio = actions.ratio(logp, old, TURN, MASK)
    return ratio.sum(), ratio

  slope, ratio = jax.device_get(jax.jit(jax.grad(total, has_aux=True))(dirty))
  for i, t in np.ndindex(MASK.shape):
    if not MASK[i, t]:
      assert ratio[i, t] == 1
      assert slope[i, t] == 0
      continue
    same = MASK[i] & (TURN[i] == TURN[i, t])
    expected = np.exp((logp - old)[i][same].mean())
    np.testing.assert_allclose(ratio[i, t], expected, 1e-5)
    # n tokens with the same ratio, each with 1 / n of every token's slope.
    np.testing.assert_allclose(slope[i, t], expected, 1e-5)


def _laid_out(episodes, lengths=None):
  """Episodes of (state, reward) with actions of these lengths.

  Returns:
    The arrays, and the first slots of each row's actions.
  """
  shape = len(episodes), SLOTS
  arrays = {
    "turn_rewards": np.zeros(shape, np.float32),
    "turn": np.zeros(shape, np.int32),
    "state_id": np.full(shape, 99, np.int32),
    "mask": np.zeros(shape, bool),
  }
  starts = []
  for i, episode in enumerate(episodes):
    t, begun = 0, []
    for turn, (state, reward) in enumerate(episode):
      size = 1 if lengths is None else lengths[(i + turn) % len(lengths)]
      at = slice(t, t + size)
      begun.append(t)
      arrays["mask"][i, at], arrays["state_id"][i, at] = True, state
      arrays["turn_rewards"][i, t + size - 1] = reward
      arrays["turn"][i, t : t + size + 1] = turn
      t += size + (turn % 2)  # A hole after every other one.
    arrays["turn"][i, t:] = len(episode)
    assert t < SLOTS
    starts.append(begun)
  return arrays, starts


def _at_starts(found, starts):
  """The entries at these slots of each row; there are no others."""
  firsts = np.zeros(np.shape(found), bool)
  for i, begun in enumerate(starts):
    firsts[i, begun] = True
  assert not np.asarray(found)[~firsts].any()
  return [np.asarray(found)[i, begun] for i, begun in enumerate(starts)]


def _advantages(episodes, groups, gamma, lam, lengths=None):
  """Advantages of episodes of (state, reward), by lengths of actions."""
  arrays, starts = _laid_out(episodes, lengths)
  found = grouped_state_advantages(
    **arrays,
    group_id=np.array(groups),
    num_groups=max(groups) + 1,
    gamma=gamma,
    lam=lam,
  )
  return _at_starts(found, starts)


def _plain(episodes, groups, gamma, lam):
  """The same, as loops."""
  visits = {}
  for episode, group in zip(episodes, groups, strict=True):
    future = 0.0
    for state, reward in reversed(episode):
      future = reward + gamma * future
      visits.setdefault((group, state), []).append(future)
  value = {key: sum(found) / len(found) for key, found in visits.items()}
  result = []
  for episode, group in zip(episodes, groups, strict=True):
    advantage, after, row = 0.0, 0.0, []
    for state, reward in reversed(episode):
      here = value[group, state]
      advantage = reward + gamma * after - here + gamma * lam * advantage
      after = here
      row.append(advantage)
    result.append(row[::-1])
  return result


@pytest.mark.slow
def test_golden_of_three_rollouts():
  """A → B (0, 1), A → C (0, 0), A → B (0, 0); V is 0.3, 0.5 and 0."""
  a, b, c = 7, 3, 5
  episodes = [[(a, 0), (b, 1)], [(a, 0), (c, 0)], [(a, 0), (b, 0)]]
  found = _advantages(episodes, [0, 0, 0], 0.9, 0.9)
  expected = [(0.555, 0.5), (-0.3, 0.0), (-0.255, -0.5)]
  np.testing.assert_allclose(found, expected, atol=1e-6)
  # Names of states are names, also those of other groups.
  renamed = [[({a: 0, b: 1, c: 2}[s], r) for s, r in e] for e in episodes]
  again = _advantages(renamed + episodes, [1, 1, 1, 0, 0, 0], 0.9, 0.9)
  np.testing.assert_allclose(again[:3], expected, atol=1e-6)
  # Small rewards are no round-off of another group's large ones.
  small = [[(s, 1e-3 * r) for s, r in e] for e in episodes]
  large = [[(s, 1e3 * r) for s, r in e] for e in episodes]
  both = _advantages(small + large, [0, 0, 0, 1, 1, 1], 0.9, 0.9)
  np.testing.assert_allclose(both[:3], 1e-3 * np.array(expected), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (1.0, 1.0), (0.5, 0.0)])
def test_equals_loops(seed, gamma, lam):
  rng = np.random.default_rng(seed)
  episodes = [
    [
      (int(rng.integers(4)), float(rng.normal()))
      for _ in range(rng.integers(1, 6))
    ]
    for _ in range(7)
  ]
  groups = rng.integers(2, size=7).tolist()
  expected = _plain(episodes, groups, gamma, lam)
  for lengths in (None, (2, 1), (1, 3, 2)):
    found = _advantages(episodes, groups, gamma, lam, lengths)
    for one, other in itertools.zip_longest(found, expected):
      np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_returns_and_anchors_by_hand():
  """Two episodes of one group that meet in a state, and one of another."""
  episodes = [[(7, 1.0), (3, -2.0), (7, 4.0)], [(3, 0.5)], [(7, 1.0), (7, 0.0)]]
  arrays, starts = _laid_out(episodes, (2, 1))
  state_id = arrays.pop("state_id")

  @jax.jit
  def returns_and_anchors(arrays, state_id, group_id):
    first = actions.first(arrays["turn"], arrays["mask"])
    return (
      actions.returns_to_go(**arrays, gamma=0.5),
      first,
      actions.anchors(state_id, first, group_id),
    )

  found, first, number = jax.device_get(
    returns_and_anchors(arrays, state_id, np.array([1, 1, 0]))
  )
  expected = [(1.0, 0.0, 4.0), (0.5,), (1.0, 0.0)]
  for one, other in zip(_at_starts(found, starts), expected, strict=True):
    np.testing.assert_array_equal(one, other)

  a, b, c = (number[i, at] for i, at in enumerate(starts))
  assert a[0] == a[2] != a[1] == b[0]
  assert c[0] == c[1] != a[0]
  nowhere = set(number[~first])
  assert not nowhere & {*a, *b, *c}
  assert number.min() >= 0
  assert number.max() < number.size
