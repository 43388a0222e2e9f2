"""Fingerprints, influence and its cap, against loops over NumPy float64."""

from __future__ import annotations

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.ops import influence

_capped = jax.jit(influence.capped)
of_groups = jax.jit(influence.of_groups, static_argnums=3)
fingerprint = jax.jit(influence.fingerprint)
# Few shapes, so that few programs are compiled.
P, W = 5, 3


def reference(keys, now, past_keys, past, cap):
  """Scales by plain iteration, one prompt after another, from the equation."""
  owed, before = {}, {}
  for key, x in zip(keys, now, strict=True):
    owed[key] = owed.get(key, 0.0) + x
  for key, x in zip(past_keys, past, strict=True):
    before[key] = before.get(key, 0.0) + x
  prompts = {*owed, *before}
  live = sum(owed.get(x, 0) + before.get(x, 0) > 0 for x in prompts)
  limit = min(max(cap, 2 / max(live, 1)), 1.0)
  if limit >= 1:
    return [1.0] * len(keys), limit
  total = sum(owed.values()) + sum(before.values())
  for _ in range(20_000):
    new = 0.0
    for x in prompts:
      room = max(limit * total - before.get(x, 0.0), 0.0)
      new += before.get(x, 0.0) + min(owed.get(x, 0.0), room)
    if total - new <= 1e-13 * total:
      break
    total = new
  scale = {}
  for x, mine in owed.items():
    room = max(limit * total - before.get(x, 0.0), 0.0)
    scale[x] = 1.0 if mine <= room else room / mine
  return [scale[key] for key in keys], limit


sizes = st.one_of(st.just(0.0), st.floats(2**-10, 1024, width=32))
windows = st.tuples(
  st.lists(st.integers(1, 12), min_size=P, max_size=P),
  st.lists(sizes, min_size=P, max_size=P),
  st.lists(st.integers(1, 12), min_size=W * P, max_size=W * P),
  st.lists(sizes, min_size=W * P, max_size=W * P),
  st.sampled_from((0.05, 0.2, 0.5)),
)


def solve(keys, now, past_keys, past, cap):
  return jax.device_get(
    _capped(
      np.array(keys, np.uint32),
      np.array(now, np.float32),
      np.array(past_keys, np.uint32).reshape(W, P),
      np.array(past, np.float32).reshape(W, P),
      cap,
    )
  )


@pytest.mark.slow
@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(windows)
def test_the_cap_is_a_fixed_point_and_leaves_the_others_alone(window):
  keys, now, past_keys, past, _ = window
  found = solve(*window)
  wanted, limit = reference(*window)
  assert found.cap == pytest.approx(limit, rel=1e-6)
  np.testing.assert_allclose(found.scale, wanted, rtol=2e-3, atol=2e-3)
  # Every share is at most the cap afterwards, but for what has been before.
  after = dict.fromkeys([*keys, *past_keys], 0.0)
  before = dict(after)
  for key, x in zip(past_keys, past, strict=True):
    after[key] += x
    before[key] += x
  for key, x, scale in zip(keys, now, found.scale, strict=True):
    after[key] += x * float(scale)
    assert scale == 1.0 or scale < 1.0
  total = sum(after.values())
  for key, scale in zip(keys, found.scale, strict=True):
    if scale == 0.0:
      assert before[key] >= found.cap * total * (1 - 1e-4)
    elif scale < 1.0:
      assert after[key] <= found.cap * total * (1 + 1e-4)


@pytest.mark.parametrize("cap", [0.05, 0.5])
def test_a_uniform_batch_is_never_scaled(cap):
  keys = np.arange(1, P + 1)
  past_keys = np.tile(keys, W)
  for past in (np.zeros(W * P), np.ones(W * P)):
    found = solve(keys, np.ones(P), past_keys, past, cap)
    np.testing.assert_array_equal(found.scale, 1.0)


def test_copies_of_a_prompt_share_one_allowance():
  # Two of five groups are one prompt with 4 of 7: the cap is 2 / 4 live ones.
  found = solve(
    [7, 7, 1, 2, 3], [2, 2, 1, 1, 1], [0] * W * P, [0] * W * P, 0.05
  )
  assert found.cap == 0.5
  assert found.share.tolist() == pytest.approx([4 / 7] * 2 + [1 / 7] * 3)
  # Afterwards 3 of 6.
  assert found.scale.tolist() == pytest.approx([0.75, 0.75, 1, 1, 1], rel=1e-4)


def test_what_has_had_its_share_gets_nothing_more():
  past_keys = [9, *range(11, 11 + W * P - 1)]
  past = [50.0] + [1.0] * (W * P - 1)
  found = solve([9, 1, 2, 3, 4], [1.0] * P, past_keys, past, 0.1)
  assert found.scale.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]


def test_influence_is_advantage_times_trained_tokens():
  mask = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]], bool)
  groups = np.array([0, 0, 1, 1])
  of_rows = np.array([-2.0, 3.0, np.nan, 0.5])
  found = of_groups(of_rows, mask, groups, 3)
  assert found.tolist() == [2 * 2 + 3 * 1, 0.5 * 3, 0.0]
  of_tokens = np.where(mask, of_rows[:, None], np.nan)
  again = of_groups(of_tokens, mask, groups, 3)
  assert again.tolist() == found.tolist()


def test_fingerprints_tell_rows_apart_by_value_and_place():
  rng = np.random.default_rng(0)
  rows = np.unique(rng.integers(0, 3, size=(20_000, 12)), axis=0)
  found = np.asarray(fingerprint(rows))
  assert found.dtype == np.uint32
  assert (found != 0).all()
  # 20,000 of 2³² make 0.05 pairs that are equal by chance.
  assert len(np.unique(found)) >= len(rows) - 1
  again = np.asarray(fingerprint(rows[::-1]))
  np.testing.assert_array_equal(found, again[::-1])
