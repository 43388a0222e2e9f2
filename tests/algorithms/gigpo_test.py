"""GiGPO's advantages by hand, and 0 where episodes are the same."""

import types

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import gigpo
from grpo_jax.types import TurnFields


def _advantages(episodes, groups, lengths, num_slots, valid=None, **fields):
  """Advantages of episodes of (state, reward), a row for each action."""
  shape = len(episodes), num_slots
  turn, state = np.zeros(shape, np.int32), np.full(shape, 99, np.int32)
  rewards, mask = np.zeros(shape, np.float32), np.zeros(shape, bool)
  valid = np.ones(len(episodes), bool) if valid is None else np.array(valid)
  spans = []
  for i, episode in enumerate(episodes):
    t = 0
    for n, (where, reward) in enumerate(episode):
      size = lengths[(i + n) % len(lengths)]
      mask[i, t : t + size] = valid[i]
      state[i, t : t + size], turn[i, t : t + size + 1] = where, n
      rewards[i, t + size - 1] = reward
      spans.append((i, slice(t, t + size)))
      t += size + 1  # A token of the environment.
  arrays = {
    "turns": TurnFields(turn, np.where(mask, rewards, 0), state),
    "mask": mask,
    "valid": valid,
    "group_id": np.array(groups),
  }
  config = algorithms.make_config("gigpo", **fields)

  @jax.jit  # One program, not a hundred of one operation each.
  def advantages(arrays):
    batch = types.SimpleNamespace(**arrays, num_groups=3)
    return gigpo.advantages(config, batch)

  found = np.asarray(advantages(arrays))
  assert not found[~mask].any()
  return [found[i, span] for i, span in spans]


@pytest.mark.slow
def test_three_episodes_by_hand():
  """A → B (0, 1), A → C (0, 0), A → B (0, 0), with γ = 1/2.

  R is 1, 0, 0: mean 1/3, deviation √(1/3). G in A is 1/2, 0, 0, the same
  times 1/2; in B 1 and 0: mean 1/2, deviation √(1/2). C is met once.
  """
  a, b, c = 7, 3, 5
  episodes = [[(a, 0), (b, 1)], [(a, 0), (c, 0)], [(a, 0), (b, 0)]]
  # Another group, whose A is another A, and an episode that was not scored.
  episodes += [[(a, 9)], [(b, 4)], [(a, 0), (b, 1)]]
  case = episodes, [0, 0, 0, 1, 1, 0], (2, 1), 6, [True] * 5 + [False]
  e, s = np.sqrt(1 / 3), np.sqrt(1 / 2)
  expected = [4 * e, 2 * e + s, -2 * e, -e, -2 * e, -e - s, s, -s, 0, 0]
  found = _advantages(*case, gamma=0.5)
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5)

  expected = [4, 5, -2, -1, -2, -4, 7.5, -7.5, 0, 0]  # / 3
  found = _advantages(*case, gamma=0.5, omega=2.0, normalize=False)
  for one, other in zip(found, expected, strict=True):
    np.testing.assert_allclose(one, other / 3, rtol=1e-5)

  without = _advantages(*case, gamma=0.5, omega=0.0)
  expected = [2 * e, 2 * e, -e, -e, -e, -e, s, -s, 0, 0]
  for one, other in zip(without, expected, strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
def test_the_same_episodes_in_other_slots_are_equal(normalize):
  """The positions of tokens decide the order of sums, and nothing else."""
  rng = np.random.default_rng(0)
  episode = list(enumerate(rng.normal(size=20)))
  found = _advantages(
    [episode] * 7, [0] * 7, (2, 5, 1, 3), 90, normalize=normalize
  )
  assert not any(x.any() for x in found)


def test_more_than_one_discount_is_refused():
  with pytest.raises(ValueError, match=r"GiGPOConfig: gamma=1.5 must be in"):
    algorithms.make_config("gigpo", gamma=1.5)
  for fields in (
    {"overlong_cache": 0.5},
    {"kl_in_reward": True, "kl_kind": "k1"},
  ):
    with pytest.raises(ValueError, match="which this algorithm does not read"):
      algorithms.make_config("gigpo", **fields)
