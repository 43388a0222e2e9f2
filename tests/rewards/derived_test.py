"""Rewards made of others: golden numbers, and loops as references."""

import collections
import functools
import math
import types
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from grpo_jax import algorithms
from grpo_jax.rewards import derived
from grpo_jax.types import batches
from tests.references import grpo

NAN = math.nan


def _run(function):
  """Calls a function as one program, instead of one for each operation."""
  return jax.device_get(jax.jit(function)())


def _seen(correct, lengths, group_id=None, terminated=None, budget=100):
  rows = len(lengths)
  written = np.arange(budget)[None] < np.array(lengths)[:, None]
  rollout = types.SimpleNamespace(
    tokens=jnp.zeros((rows, budget), jnp.int32),
    written=jnp.array(written),
    lengths=jnp.array(lengths),
    terminated=jnp.array([True] * rows if terminated is None else terminated),
    traces=None,
    group_id=jnp.array([0] * rows if group_id is None else group_id),
    num_groups=1 + max(group_id or [0]),
  )
  components = {"accuracy": jnp.array(correct, jnp.float32)}
  prompts: Any = None
  return derived.inputs_of(components, "accuracy", prompts, rollout)


def test_cosine_rewards_short_right_answers_and_long_wrong_ones():
  # arXiv:2502.03373 with Open-R1's values: L_max = 100.
  lengths = np.float32([0, 50, 100, 150])
  cosine = jax.jit(lambda correct: derived.cosine(correct, lengths, 100))
  right = cosine(np.ones(4, np.float32))
  wrong = cosine(np.zeros(4, np.float32))
  np.testing.assert_allclose(right, [1, 0.75, 0.5, 0.5], atol=1e-6)
  np.testing.assert_allclose(wrong, [-1, -0.75, -0.5, -0.5], atol=1e-6)


def test_cosine_can_be_reversed_and_does_not_apply_without_a_verdict():
  correct, lengths = np.float32([[1, NAN], [0, 0]])
  reward = _run(lambda: derived.cosine(correct, lengths, 100, right=(0.5, 1.0)))
  np.testing.assert_allclose(reward, [0.5, NAN], atol=1e-6)


def test_cosine_length_takes_the_budget_and_punishes_what_it_cuts_off():
  def seen():
    lengths = [50, 100, 100, 100]
    return _seen([1, 1, 0, NAN], lengths, terminated=[1, 0, 0, 0])

  found = _run(lambda: derived.cosine_length(seen()))
  np.testing.assert_allclose(found, [0.75, 0.5, -0.5, NAN], atol=1e-6)
  found = _run(lambda: derived.cosine_length(seen(), exceeded=-10.0))
  np.testing.assert_allclose(found, [0.75, -10, -10, NAN])


def test_kimi_compares_lengths_within_the_group():
  # λ = 1/2 − (n − 10) / 40; wrong answers get at most 0.
  lengths = [10, 20, 30, 50]
  right, wrong, equal = _run(
    lambda: (
      derived.kimi_length(_seen([1] * 4, lengths)),
      derived.kimi_length(_seen([0] * 4, lengths)),
      derived.kimi_length(_seen([1, 0, 1, NAN], [7, 7, 9, 90], [0, 0, 1, 1])),
    )
  )
  np.testing.assert_allclose(right, [0.5, 0.25, 0, -0.5])
  np.testing.assert_allclose(wrong, [0, 0, 0, -0.5])
  np.testing.assert_allclose(equal, [0, 0, 0, NAN])


def test_soft_overlong_has_the_numbers_of_dapo():
  lengths = np.array([16384, 18432, 20480, 20481])

  @_run
  def found():
    seen = _seen([1] * 4, [1] * 4)._replace(lengths=jnp.array(lengths))
    return (
      derived.soft_overlong(seen, max_len=20480),
      derived.soft_overlong(seen, max_len=20480, cache=2048),
    )

  reward, early = found
  np.testing.assert_allclose(reward, [0, -0.5, -1, -1])
  np.testing.assert_allclose(early, [0, 0, -1, -1])


_repeated_ngrams = jax.jit(derived.repeated_ngrams, static_argnames="n")


def test_repetition_of_one_token():
  tokens = np.array([[5, 5, 5, 5, 5], [1, 2, 3, 4, 5], [5, 0, 0, 0, 0]])
  mask = np.array([[1] * 5, [1] * 5, [1, 0, 0, 0, 0]], bool)
  reward = _repeated_ngrams(tokens, mask, n=2)
  np.testing.assert_allclose(reward, [-0.75, 0, 0])
  assert _repeated_ngrams(tokens, mask, n=6).tolist() == [0, 0, 0]


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(1, 4))
@hypothesis.settings(max_examples=30, deadline=None)
@pytest.mark.slow
def test_repetition_counts_as_a_loop_does(seed, n):
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, 3, (6, 12))
  lengths = rng.integers(0, 13, 6)
  mask = np.arange(12)[None] < lengths[:, None]
  expected = []
  for row, length in zip(tokens, lengths, strict=True):
    grams = [tuple(row[i : i + n]) for i in range(length - n + 1)]
    expected.append(-1 + len(set(grams)) / len(grams) if grams else 0.0)
  reward = _repeated_ngrams(tokens, mask, n=n)
  np.testing.assert_allclose(reward, expected, atol=1e-6)


_ranks = jax.jit(derived.ranks, static_argnums=2)


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
  rank = _ranks(values.astype(np.float32), group, 3)
  np.testing.assert_allclose(rank, expected, atol=1e-6)


def test_rank_is_that_of_its_source():
  def rank(source):
    return derived.rank(_seen([0, 1, 0.5, 10], [1] * 4), source=source)

  found = _run(lambda: rank("accuracy"))
  np.testing.assert_allclose(found, [0, 2 / 3, 1 / 3, 1], atol=1e-6)
  with pytest.raises(ValueError, match="'rank' is made of 'speed'"):
    _run(lambda: rank("speed"))


@jax.jit
def _hras(accuracy, process, consistency, group_id, task):
  """Advantages where accuracy and process are one objective of two.

  `task` is the weight of that objective.
  """
  found = {
    "accuracy": accuracy,
    "process": process,
    "consistency": consistency,
  }
  seen: Any = types.SimpleNamespace(components=found)
  parts = {"accuracy": 1.0, "process": 0.5}
  components = found | {"total": derived.total(seen, parts=parts)}
  weights = dict.fromkeys(found, 0.0) | {"total": task, "consistency": 0.5}
  scored = derived.combine(components, weights, None, "accuracy")
  order = sorted(components)
  batch: Any = types.SimpleNamespace(
    scores=batches.ScoreFields(
      components=jnp.stack([scored.components[x] for x in order], axis=-1),
      component_weights=jnp.stack([scored.weights[x] for x in order]),
    ),
    valid=scored.valid,
    group_id=group_id,
    num_groups=2,
  )
  algorithm = algorithms.get_algorithm("mo_grpo")
  return algorithm.advantages(algorithms.make_config("mo_grpo"), batch)


def test_hras_normalises_the_task_and_consistency_apart():
  """CORA, arXiv:2606.14691: A = α z(accuracy + format) + β z(consistency)."""
  rng = np.random.default_rng(0)
  group_id = np.array([0, 1] * 4)
  accuracy, consistency = rng.integers(0, 2, (2, 8)).astype(float)
  consistency[:4] = [1, 0, 0, 1]
  process = rng.random(8)
  valid = np.ones(8, bool)

  def z(rewards):
    return grpo.advantages(rewards, valid, group_id)

  task = 2.0 * z(accuracy + 0.5 * process)
  found = _hras(accuracy, process, consistency, group_id, 2.0)
  np.testing.assert_allclose(found, task + 0.5 * z(consistency), atol=2e-5)
  # A louder reward is the same objective; summed first it would decide.
  louder = _hras(accuracy, process, 20 * consistency, group_id, 2.0)
  np.testing.assert_allclose(louder, found, atol=2e-5)
  summed = z(accuracy + consistency), z(accuracy + 20 * consistency)
  assert np.abs(summed[0] - summed[1]).max() > 0.1
  # A group whose completions are all consistent learns the task alone.
  same = _hras(accuracy, process, np.ones(8), group_id, 2.0)
  np.testing.assert_allclose(same, task, atol=2e-5)


def test_total_leaves_out_what_does_not_apply():
  @_run
  def found():
    seen = _seen([1, NAN, 0, NAN], [1] * 4)
    b = jnp.array([2.0, 3.0, NAN, NAN])
    seen = seen._replace(components={**seen.components, "b": b})
    return derived.total(seen, parts={"accuracy": 1.0, "b": -0.5})

  np.testing.assert_allclose(found, [0, -1.5, 0, NAN])


def _flipped(tokens, prompt_index, padding=0, **options):
  """Marks the completions, all of them right, that are misjudged."""
  # The same shapes with other padding, so that nothing is compiled anew.
  prompts = np.roll([[1, 2, 0, 0, 0], [2, 1, 0, 0, 0]], padding, axis=1)
  tokens = np.roll(np.pad(tokens, ((0, 0), (0, 3))), padding, axis=1)
  judged = np.asarray(_judged(prompts, tokens, prompt_index, **options))
  assert {*np.unique(judged)} <= {0.0, 1.0}
  return judged == 0


@functools.partial(jax.jit, static_argnames=("probability", "seed"))
def _judged(prompts, tokens, prompt_index, **options):
  rollout = types.SimpleNamespace(
    tokens=tokens, completion_mask=tokens > 0, prompt_index=prompt_index
  )
  seen: Any = types.SimpleNamespace(
    components={"a": jnp.ones(len(tokens))},
    prompts=types.SimpleNamespace(tokens=prompts, mask=prompts > 0),
    rollout=rollout,
  )
  return derived.flipped(seen, source="a", **options)


@pytest.mark.slow
def test_flipped_misjudges_some_completions_and_always_the_same():
  rng = np.random.default_rng(0)
  tokens = np.unique(rng.integers(1, 50, (5000, 6)), axis=0)
  index = rng.integers(0, 2, len(tokens))
  wrong = _flipped(tokens, index, probability=0.1)
  # 5000 draws: a deviation of 0.0042.
  assert wrong.mean() == pytest.approx(0.1, abs=0.02)
  # By prompt and completion; not by place, padding or neighbours.
  order = rng.permutation(len(tokens))
  again = _flipped(tokens[order], index[order], padding=3, probability=0.1)
  np.testing.assert_array_equal(again, wrong[order])
  for other in (
    _flipped(tokens, 1 - index, probability=0.1),
    _flipped(tokens[:, ::-1], index, probability=0.1),
    _flipped(tokens, index, probability=0.1, seed=1),
  ):
    assert (other & wrong).mean() == pytest.approx(0.01, abs=0.008)
  assert _flipped(tokens, index, probability=1.0).all()
  assert not _flipped(tokens, index, probability=0.0).any()
  with pytest.raises(ValueError, match="a share in"):
    _flipped(tokens, index, probability=1.1)


@pytest.mark.parametrize(
  ("name", "options"),
  [("rank", {}), ("kimi_length", {"max_len": 3}), ("repetition", {"m": 3})],
)
def test_wrong_options_are_refused(name, options):
  with pytest.raises(ValueError, match=f"config.rewards.options: '{name}'"):
    derived.check_options(name, options)
