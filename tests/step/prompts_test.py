"""Tests of the order in which prompts of a pool come."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import prompts as prompts_lib
from tests.training import tiny

SIZE, DRAWN = 10, 3
CURRICULUM = prompts_lib.Curriculum("frontier", SIZE, DRAWN)


def by(rule, **fields):
  return dataclasses.replace(CURRICULUM, rule=rule, **fields)


def feedback(right, scored):
  return prompts_lib.Feedback(jnp.float32(right), jnp.float32(scored))


def test_the_frontier_is_where_half_of_the_completions_are_right():
  rates = np.linspace(0, 1, 11)
  found = np.asarray(by("frontier", size=11).probabilities(rates, 0))
  weights = rates * (1 - rates) + 1e-3
  expected = 0.9 * weights / weights.sum() + 0.1 / 11
  np.testing.assert_allclose(found, expected, rtol=1e-6)
  assert found.argmax() == 5
  assert (np.diff(found[:6]) > 0).all()
  assert (np.diff(found[5:]) < 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("rule", prompts_lib.WEIGHTS)
def test_every_prompt_has_its_part_of_the_uniform_share(rule):
  rates = np.random.default_rng(0).uniform(size=SIZE).astype(np.float32)
  found = np.asarray(by(rule, uniform_share=0.3).probabilities(rates, 2))
  assert found.min() >= 0.3 / SIZE - 1e-6
  assert found.sum() == pytest.approx(1)
  if rule == "uniform":
    np.testing.assert_allclose(found, 1 / SIZE, rtol=1e-6)


def chosen(rule, rates, step=0):
  """Prompts with more than the uniform share."""
  own = by(rule, uniform_share=0.1, start_share=0.2, pace_steps=8)
  found = own.probabilities(jnp.float32(rates), step)
  return set(np.flatnonzero(np.asarray(found) > 0.1 / SIZE + 1e-6).tolist())


def test_the_pace_lets_harder_prompts_in_and_none_out():
  rates = np.linspace(1, 0.1, SIZE)  # Prompt 0 is the easiest.
  # 0.2 + 0.8 · step / 8 of ten prompts.
  counts = [2, 3, 4, 5, 6, 7, 8, 9, 10, 10]
  for step, count in enumerate(counts):
    assert chosen("easy_to_hard", rates, step) == {*range(count)}
    assert chosen("hard_to_easy", rates, step) == {*range(SIZE - count, SIZE)}
  assert chosen("interleave", rates) == {0, 1, 8, 9}


def test_prompts_that_are_as_easy_as_the_last_are_let_in_too():
  assert chosen("easy_to_hard", np.full(SIZE, 0.5)) == {*range(SIZE)}


def test_a_target_is_the_prompts_nearest_to_one_half():
  rates = [0.9, 0.1, 0.55, 0.4, 0.0, 1.0, 0.52, 0.8, 0.2, 0.7]
  assert chosen("target", rates) == {2, 3, 6}


def test_half_of_the_interleaved_weight_is_that_of_hard_prompts():
  rates = np.array([1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3, 0.3])
  own = by("interleave", uniform_share=0.0, start_share=0.2)
  found = np.asarray(own.probabilities(jnp.float32(rates), 0))
  # Two are the easiest, three the hardest: two and a tie.
  np.testing.assert_allclose(found[:2], 1 / 4, rtol=1e-6)
  np.testing.assert_allclose(found[7:], 1 / 6, rtol=1e-6)


@pytest.mark.slow
def test_without_forgetting_the_tracker_is_the_mean_of_what_was_seen():
  own = by("uniform", decay=1.0)
  state = own.init() | {"places": jnp.int32([4, 7, 1])}
  right = [(3, 0, 2), (4, 1, 2), (1, 1, 0)]
  for step, counts in enumerate(right):
    # Nobody could score the last prompt of the last step.
    state, _ = own.update(state, feedback(counts, (4, 4, 4 * (step < 2))), step)
  rates = np.asarray(prompts_lib.success(state))
  # With one right and one wrong completion before the first: (8 + 1) / 14, …
  np.testing.assert_allclose(rates[[4, 7, 1, 0]], [9 / 14, 3 / 14, 0.5, 0.5])
  assert state["visits"].tolist() == [0, 2, 0, 0, 3, 0, 0, 3, 0, 0]
  assert state["last_step"].tolist() == [-1, 1, -1, -1, 2, -1, -1, 2, -1, -1]


@pytest.mark.slow
def test_forgetting_weighs_old_completions_less():
  own = by("uniform", decay=0.5)
  state = own.init() | {"places": jnp.int32([0, 1, 2])}
  for _ in range(2):
    state, metrics = own.update(state, feedback((4, 0, 2), (4, 4, 4)), 0)
  # a: 1 → 4.5 → 6.25, b: 1 → 0.5 → 0.25.
  assert state["a"][0] == 6.25
  assert state["b"][0] == 0.25
  assert metrics["schedule/expected"] == pytest.approx((0.9 + 0.1 + 0.5) / 3)
  assert metrics["schedule/seen"] == pytest.approx(0.3)
  assert metrics["schedule/most_visits"] == 2


def test_draws_are_different_places_in_the_proportion_of_their_weights():
  p = jnp.float32([0.6, 0.3, 0.1, 0.0])
  draw = jax.vmap(lambda key: prompts_lib.without_replacement(key, p, 3))
  found = np.asarray(draw(jax.random.split(jax.random.key(0), 4000)))
  assert {*map(frozenset, found.tolist())} == {frozenset({0, 1, 2})}
  first = np.bincount(found[:, 0], minlength=4) / 4000
  np.testing.assert_allclose(first, p, atol=0.03)
  # Of those after prompt 0: 0.3 and 0.1 in the proportion that they have.
  second = found[found[:, 0] == 0][:, 1]
  assert (second == 1).mean() == pytest.approx(0.75, abs=0.03)


def test_what_comes_next_is_a_function_of_seed_step_and_state():
  key, other = jax.random.key(3), jax.random.key(4)
  enter = CURRICULUM.enter
  first = enter(key, 5)
  assert enter(key, 5)["places"].tolist() == first["places"].tolist()
  assert enter(key, 6)["places"].tolist() != first["places"].tolist()
  assert enter(other, 5)["places"].tolist() != first["places"].tolist()
  seen = feedback((1, 0, 2), (2, 2, 2))
  state = tiny.state_at(6, 1, key, schedule=first)
  following = CURRICULUM.advance(state, seen)[0].schedule
  assert len(set(following["places"].tolist())) == DRAWN
  updated, _ = CURRICULUM.update(first, seen, 0)
  again = enter(key, 6)["places"]  # The same noise, for other weights.
  assert following["a"].tolist() == updated["a"].tolist()
  assert following["places"].tolist() != again.tolist()


@pytest.fixture(scope="module")
def stepped():
  """A phase of a tiny policy before and after a step, and the rows of it."""

  def some(prompts, rollout):
    scored = tiny.count_token(prompts, rollout)
    right = rollout.tokens[:, 0] % 2 == 0
    valid = rollout.tokens[:, 0] != 3
    return dataclasses.replace(scored, correct=right, valid=valid)

  phase = dataclasses.replace(
    tiny.make_phase("grpo", score=some, max_new_tokens=2),
    schedule=by("frontier", num_prompts=4),
  )
  state = tiny.make_state(phase)
  step = tiny.fused(phase)
  return state, *step(state, tiny.make_prompts(4))


@pytest.mark.slow
def test_a_step_counts_its_right_completions(stepped):
  before, after, metrics, written = stepped
  valid = np.asarray(written.batch.valid).reshape(4, 4)
  right = (np.asarray(written.batch.correct).reshape(4, 4) & valid).sum(1)
  wrong = valid.sum(1) - right
  assert 0 < right.sum() < valid.sum() < 16
  assert valid.any(1).all()
  places = before.schedule["places"]
  np.testing.assert_allclose(after.schedule["a"][places], 0.9 + right)
  np.testing.assert_allclose(after.schedule["b"][places], 0.9 + wrong)
  assert after.schedule["visits"].sum() == 4
  assert metrics["schedule/expected"] == 0.5


@pytest.mark.slow
def test_a_step_leaves_the_places_of_the_next_one(stepped):
  before, after, _, _ = stepped
  own = by("frontier", num_prompts=4)
  key = jax.random.fold_in(before.key, 1)
  _, places = own.draw(
    after.schedule, jax.random.fold_in(key, prompts_lib._DRAW), 1
  )
  assert after.schedule["places"].tolist() == places.tolist()
