"""Rewards made of others: golden numbers, and loops as references."""

import collections
import math
import types

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax.rewards import derived

NAN = math.nan


def _seen(correct, lengths, group_id=None, terminated=None, budget=100):
  rows = len(lengths)
  written = np.arange(budget)[None] < np.array(lengths)[:, None]
  rollout = types.SimpleNamespace(
    tokens=jnp.zeros((rows, budget), jnp.int32),
    written=jnp.array(written),
    terminated=jnp.array([True] * rows if terminated is None else terminated),
    traces=None,
    group_id=jnp.array([0] * rows if group_id is None else group_id),
    num_groups=1 + max(group_id or [0]),
  )
  components = {"accuracy": jnp.array(correct, jnp.float32)}
  return derived.seen(components, "accuracy", rollout)


def test_cosine_rewards_short_right_answers_and_long_wrong_ones():
  # arXiv:2502.03373 with Open-R1's values: L_max = 100.
  lengths = jnp.array([0.0, 50.0, 100.0, 150.0])
  right = derived.cosine(jnp.ones(4), lengths, 100)
  wrong = derived.cosine(jnp.zeros(4), lengths, 100)
  np.testing.assert_allclose(right, [1, 0.75, 0.5, 0.5], atol=1e-6)
  np.testing.assert_allclose(wrong, [-1, -0.75, -0.5, -0.5], atol=1e-6)


def test_cosine_can_be_reversed_and_does_not_apply_without_a_verdict():
  reward = derived.cosine(
    jnp.array([1.0, NAN]), jnp.array([0.0, 0.0]), 100, right=(0.5, 1.0)
  )
  np.testing.assert_allclose(reward, [0.5, NAN], atol=1e-6)


def test_cosine_length_takes_the_budget_and_punishes_what_it_cuts_off():
  seen = _seen([1, 1, 0, NAN], [50, 100, 100, 100], terminated=[1, 0, 0, 0])
  np.testing.assert_allclose(
    derived.cosine_length(seen), [0.75, 0.5, -0.5, NAN], atol=1e-6
  )
  np.testing.assert_allclose(
    derived.cosine_length(seen, exceeded=-10.0), [0.75, -10, -10, NAN]
  )


def test_kimi_compares_lengths_within_the_group():
  # λ = 1/2 − (n − 10) / 40; wrong answers get at most 0.
  lengths = [10, 20, 30, 50]
  right = derived.kimi_length(_seen([1] * 4, lengths))
  wrong = derived.kimi_length(_seen([0] * 4, lengths))
  np.testing.assert_allclose(right, [0.5, 0.25, 0, -0.5])
  np.testing.assert_allclose(wrong, [0, 0, 0, -0.5])
  equal = derived.kimi_length(
    _seen([1, 0, 1, NAN], [7, 7, 9, 90], [0, 0, 1, 1])
  )
  np.testing.assert_allclose(equal, [0, 0, 0, NAN])


def test_soft_overlong_has_the_numbers_of_dapo():
  lengths = np.array([16384, 18432, 20480, 20481])
  seen = _seen([1] * 4, [1] * 4)._replace(lengths=jnp.array(lengths))
  reward = derived.soft_overlong(seen, max_len=20480)
  np.testing.assert_allclose(reward, [0, -0.5, -1, -1])
  early = derived.soft_overlong(seen, max_len=20480, cache=2048)
  np.testing.assert_allclose(early, [0, 0, -1, -1])


def test_repetition_of_one_token():
  tokens = jnp.array([[5, 5, 5, 5, 5], [1, 2, 3, 4, 5], [5, 0, 0, 0, 0]])
  mask = jnp.array([[1] * 5, [1] * 5, [1, 0, 0, 0, 0]], bool)
  reward = derived.repeated_ngrams(tokens, mask, n=2)
  np.testing.assert_allclose(reward, [-0.75, 0, 0])
  assert derived.repeated_ngrams(tokens, mask, n=6).tolist() == [0, 0, 0]


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(1, 4))
@hypothesis.settings(max_examples=30, deadline=None)
def test_repetition_counts_as_a_loop_does(seed, n):
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, 3, (6, 12))
  lengths = rng.integers(0, 13, 6)
  mask = np.arange(12)[None] < lengths[:, None]
  expected = []
  for row, length in zip(tokens, lengths, strict=True):
    grams = [tuple(row[i : i + n]) for i in range(length - n + 1)]
    expected.append(-1 + len(set(grams)) / len(grams) if grams else 0.0)
  reward = derived.repeated_ngrams(jnp.array(tokens), jnp.array(mask), n)
  np.testing.assert_allclose(reward, expected, atol=1e-6)


@hypothesis.given(st.integers(0, 2**32 - 1))
@hypothesis.settings(max_examples=30, deadline=None)
def test_ranks_count_smaller_and_equal_ones(seed):
  rng = np.random.default_rng(seed)
  values = rng.integers(0, 4, 16).astype(float)
  values[rng.random(16) < 0.2] = NAN
  group = rng.integers(0, 3, 16)
  members = collections.defaultdict(list)
  for value, g in zip(values, group, strict=True):
    if not math.isnan(value):
      members[g].append(value)
  expected = []
  for value, g in zip(values, group, strict=True):
    smaller = sum(x < value for x in members[g])
    equal = sum(x == value for x in members[g]) - 1
    size = len(members[g])
    rank = (smaller + equal / 2) / (size - 1) if size > 1 else 0.5
    expected.append(NAN if math.isnan(value) else rank)
  rank = jax.jit(derived.ranks, static_argnums=2)(
    jnp.array(values, jnp.float32), jnp.array(group), 3
  )
  np.testing.assert_allclose(rank, expected, atol=1e-6)


def test_rank_is_that_of_its_source():
  seen = _seen([0, 1, 0.5, 10], [1] * 4)
  np.testing.assert_allclose(
    derived.rank(seen, source="accuracy"), [0, 2 / 3, 1 / 3, 1], atol=1e-6
  )
  with pytest.raises(ValueError, match="source='speed'"):
    derived.rank(seen, source="speed")


@pytest.mark.parametrize(
  ("name", "options"),
  [("rank", {}), ("kimi_length", {"max_len": 3}), ("repetition", {"m": 3})],
)
def test_wrong_options_are_refused(name, options):
  with pytest.raises(ValueError, match=f"config.rewards.options: '{name}'"):
    derived.check_options(name, options)
