"""Clusters of prompts, and windows over them that move."""

import itertools

import jax
import numpy as np
import pytest

from grpo_jax.step import prompts
from tests.training import tiny

# Two clusters of five and three, and one that there is not.
ORDER = np.array([4, 0, 6, 2, 7, 1, 5, 3], np.int32)
SIZES = np.array([5, 3, 0], np.int32)


# Each operation outside a program would be a program of its own.
_mixed = jax.jit(prompts.mixed)
_moves = jax.jit(prompts.moves)


def make(**fields):
  own = {"num_drawn": 1, "window": 2, "rate": 0.3, "tolerance": 0.17}
  return prompts.Ads(ORDER, SIZES, **own | fields)


def programs(own):
  """(key, step) -> the state at the start, and a step of a schedule."""

  def advance(state, feedback, key, step):
    state = tiny.state_at(step, step, key, schedule=state)
    state, metrics = own.advance(state, feedback)
    return state.schedule, metrics

  return jax.jit(own.enter), jax.jit(advance)


def feedback(right, scored=8):
  right = np.float32(right)
  return prompts.Feedback(right, np.full(right.shape, scored, np.float32))


def test_shares_of_two_clusters_by_hand():
  both = np.ones(2, bool)
  found = _mixed(np.float32([0.5, 0.5]), np.float32([1, 0]), both, 0.3)
  np.testing.assert_allclose(found, [0.65, 0.35], rtol=1e-6)
  # Nothing is right anywhere: no cluster is better than another that there is.
  p, r = np.float32([0.9, 0.1, 0]), np.zeros(3, np.float32)
  found = _mixed(p, r, np.array([True, True, False]), 0.5)
  np.testing.assert_allclose(found, [0.7, 0.3, 0], rtol=1e-6)


def test_three_to_five_of_eight_right_completions_keep_a_prompt():
  found = _moves(np.arange(9, dtype=np.float32) / 8, 0.17)
  assert found.tolist() == [-1, -1, -1, 0, 0, 0, 1, 1, 1]


def by_hand(window, move, size):
  """The rule as loops over sets."""
  taken = [w for w, by in zip(window, move, strict=True) if not by]
  rows = sorted(zip(window, move, strict=True))
  easier = [w for w, by in rows if by < 0]
  harder = [w for w, by in reversed(rows) if by > 0]
  for position, step in [(w, -1) for w in easier] + [(w, 1) for w in harder]:
    target = min(max(position + step, 0), size - 1)
    ways = (
      range(target, -1 if step < 0 else size, step),
      range(target, size if step < 0 else -1, -step),
    )
    taken.append(next(x for x in itertools.chain(*ways) if x not in taken))
  return sorted(taken)


@pytest.fixture(scope="module")
def move():
  return jax.jit(prompts.moved)


@pytest.mark.parametrize(
  ("window", "by", "expected"),
  [
    ([0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 2, 3]),
    ([0, 1, 2, 3], [1, 1, 1, 1], [1, 2, 3, 4]),
    ([3, 4, 5, 6], [1, 1, 1, 1], [3, 4, 5, 6]),  # At the end of seven.
    ([0, 2, 4, 6], [-1, -1, -1, -1], [0, 1, 3, 5]),
    # 2 would become 1, where 1 stays: the nearest free one below is 0.
    ([1, 2, 4, 5], [0, -1, 0, 0], [0, 1, 4, 5]),
    # 4 has its place before 3 asks for it: that one goes on to 5.
    ([1, 3, 4, 6], [0, 1, 0, 0], [1, 4, 5, 6]),
    # Two change places.
    ([2, 3, 5, 6], [1, -1, 0, 0], [2, 3, 5, 6]),
    # 3 becomes easier first, and has 2, which 1 then passes by.
    ([1, 3, 5, 6], [1, -1, 0, 0], [2, 3, 5, 6]),
  ],
)
def test_windows_by_hand(move, window, by, expected):
  assert by_hand(window, by, 7) == expected
  found = move(np.int32(window), np.int32(by), 7)
  assert found.tolist() == expected


def test_windows_stay_whole_whatever_moves(move):
  rng = np.random.default_rng(0)
  for _ in range(200):
    size = int(rng.integers(4, 10))
    window = np.sort(rng.choice(size, 4, replace=False))
    by = rng.integers(-1, 2, 4)
    found = move(np.int32(window), np.int32(by), size).tolist()
    assert found == by_hand(window.tolist(), by.tolist(), size)
    assert len({*found}) == 4
    assert min(found) >= 0
    assert max(found) < size


def test_a_step_draws_the_windows_of_its_clusters():
  own = make(num_drawn=2)
  enter, _ = programs(own)
  state = jax.device_get(enter(jax.random.key(0), 0))
  order = state["clusters"].tolist()
  assert sorted(order) == [0, 1]
  expected = [x for k in order for x in ([4, 0], [1, 5])[k]]
  assert state["places"].tolist() == expected


@pytest.mark.slow
def test_all_right_shifts_the_window_by_one_until_the_end():
  own = prompts.Ads(np.arange(8), np.array([8]), num_drawn=1, window=2)
  assert own.period == 4
  key = jax.random.key(0)
  enter, step_on = programs(own)
  state = enter(key, 0)
  seen = []
  for step in range(1, 6):
    seen.append(state["places"].tolist())
    state, metrics = step_on(state, feedback([8, 8]), key, step)
    assert metrics["schedule/success"] == 1
  assert seen == [[0, 1], [1, 2], [2, 3], [3, 4], [0, 1]]  # Anew after four.
  assert metrics["schedule/seen"] == 5 / 8
  assert metrics["schedule/depth"] == pytest.approx(1 / 6)
  half = enter(key, 0)
  for step in range(1, 4):
    half, metrics = step_on(half, feedback([4, 4]), key, step)
    assert half["windows"].tolist() == [[0, 1]]
  assert metrics["schedule/depth"] == 0


@pytest.mark.slow
def test_what_is_known_of_a_cluster_follows_its_prompts():
  own = make(num_drawn=1, rate=0.5)
  assert own.period == 4
  state = jax.jit(own.init)() | {
    "clusters": np.int32([1]),
    "places": np.int32([1, 5]),
  }
  update = jax.jit(own.update)
  # Six of eight and one of two; nobody could score the last two.
  six_of_eight = prompts.Feedback(np.float32([6, 1]), np.float32([8, 2]))
  state, said = jax.device_get(update(state, six_of_eight, 0))
  np.testing.assert_allclose(state["r"], [0.5, 0.625, 0])
  np.testing.assert_allclose(
    state["p"], [0.25 + 0.5 * 0.5 / 1.125, 0.25 + 0.5 * 0.625 / 1.125, 0]
  )
  # 0 → 1, where 1 stays: → 2.
  assert state["windows"].tolist() == [[0, 1], [1, 2], [0, 1]]
  assert said["schedule/success"] == pytest.approx(0.5625)
  assert said["schedule/expected"] == 0.5
  assert said["schedule/largest_share"] == state["p"][1]
  before = state
  nothing = prompts.Feedback(*np.zeros((2, 2), np.float32))
  state, _ = jax.device_get(update(state, nothing, 1))
  np.testing.assert_allclose(state["r"], before["r"])
  assert state["windows"].tolist() == before["windows"].tolist()
  # The last step of a period: all begins anew, but for what was seen.
  state, _ = update(state, feedback([8, 8]), 3)
  assert state["p"].tolist() == state["r"].tolist() == [0.5, 0.5, 0]
  assert state["windows"].tolist() == 3 * [[0, 1]]
  assert state["visits"].tolist() == [0, 3, 0, 0, 0, 3, 0, 0]


@pytest.mark.slow
def test_shares_stay_a_distribution_and_draws_a_function_of_the_key():
  rng = np.random.default_rng(1)
  own = prompts.Ads(np.arange(40), np.full(8, 5), num_drawn=3, window=2)
  enter, step = programs(own)

  def run(seed):
    key = jax.random.key(seed)
    state = enter(key, 0)
    places = []
    for number, right in enumerate(rights, start=1):
      assert len({*state["clusters"].tolist()}) == 3
      places.append(state["places"].tolist())
      state, _ = step(state, feedback(right), key, number)
      p = np.asarray(state["p"])
      assert p.min() > 0
      assert p.sum() == pytest.approx(1)
    return places

  rights = rng.integers(0, 9, (12, 6))
  assert run(0) == run(0)
  assert run(0) != run(1)
