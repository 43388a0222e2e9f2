"""Guards inside a step: which prompts count, and what they may do."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import guards as guards_lib
from tests.training import tiny

pytestmark = pytest.mark.slow

P = 4


@pytest.fixture(scope="module")
def phase():
  return tiny.make_phase("grpo")


@pytest.fixture(scope="module")
def step(phase):
  """(guards) -> (state, prompts) -> state, metrics; compiled once each."""

  @functools.cache
  def compiled(guards):
    guarded = dataclasses.replace(phase, guards=guards)
    start = tiny.make_state(guarded)
    return start, tiny.fused(guarded)

  return compiled


def prompts_of(words, first=0):
  """A batch whose prompts are these tokens, one each."""
  tokens = np.zeros((len(words), 3), np.int32)
  tokens[:, -1] = words
  made = tiny.make_prompts(len(words), first=first)
  return dataclasses.replace(
    made, tokens=jnp.asarray(tokens), mask=jnp.asarray(tokens > 0)
  )


def run(compiled, batches):
  """Metrics of each step, and the parameters before and after."""
  state, advance = compiled
  said, params = [], [jax.device_get(state.params["policy"])]
  for number, words in enumerate(batches):
    state, metrics, _ = advance(state, prompts_of(words, number * P))
    said.append(jax.device_get(metrics))
    params.append(jax.device_get(state.params["policy"]))
  return said, params


GUARDS = guards_lib.InfluenceBounds(
  P, min_distinct=2, cap=0.9, window=3, repeats=3, repeat_window=4
)


def test_bounds_that_do_not_bind_change_nothing(phase, step):
  batches = [(2, 3, 4, 5), (6, 2, 3, 4)]
  loose = guards_lib.InfluenceBounds(P, min_distinct=1, cap=1.0, repeats=100)
  _, plain = run(step(phase.guards), batches)
  said, guarded = run(step(loose), batches)
  assert all((x[guards_lib.KEPT]).all() for x in said)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
    guarded,
    plain,
  )


def test_a_prompt_is_left_out_once_it_was_used_often_enough(step):
  rng = np.random.default_rng(0)
  batches = [tuple(rng.integers(2, 5, P).tolist()) for _ in range(8)]
  batches = [b if len({*b}) > 1 else (*b[1:], 6) for b in batches]
  said, _ = run(step(GUARDS), batches)
  used: list[list[int]] = []
  for words, found in zip(batches, said, strict=True):
    window = collections.Counter(x for past in used[-3:] for x in past)
    kept = []
    for word in words:
      kept.append(window[word] < 3)
      window[word] += kept[-1]
    # A prompt that was left out does not count as used: the next is, too.
    assert found[guards_lib.KEPT].tolist() == kept
    assert found["guards/dropped"] == kept.count(False)
    used.append([w for w, is_kept in zip(words, kept, strict=True) if is_kept])
  assert sum(found["guards/dropped"] for found in said) > 3


def test_a_group_without_trained_tokens_does_not_use_its_prompt(phase):
  """Dynamic sampling leaves such groups; in a step without update all are."""
  batch = tiny.ragged_batch(phase)
  is_dead = (batch.group_id == 0)[:, None]
  batch = dataclasses.replace(
    batch, mask=batch.mask & ~is_dead, advantages=batch.rewards
  )
  guards = guards_lib.InfluenceBounds(P, repeats=1, repeat_window=2)
  state = tiny.make_state(dataclasses.replace(phase, guards=guards))
  groups = types.SimpleNamespace(
    prompts=prompts_of((2, 2, 2, 3)), rollout=batch
  )
  after, said = jax.jit(lambda batch: guards.admit(state, groups, batch))(batch)
  assert said[guards_lib.KEPT].tolist() == [True, True, False, True]
  state, _, _ = jax.jit(guards.weigh)(state, after, said)
  keys = said[guards_lib.PROMPTS].tolist()
  assert state.guards["used"][-1].tolist() == [0, keys[1], 0, keys[3]]


def test_a_batch_of_one_prompt_trains_nothing(step):
  batches = [(2, 2, 2, 2), (2, 3, 4, 5), (6, 3, 4, 5)]
  said, params = run(step(GUARDS), batches)
  assert said[0]["guards/distinct"] == 1
  assert said[0]["tokens/trained"] == 0
  assert not said[0][guards_lib.KEPT].any()
  jax.tree.map(np.testing.assert_array_equal, params[0], params[1])
  assert said[1]["guards/distinct"] == 4
  # What was refused was not used either.
  assert said[1][guards_lib.KEPT].all()
  moved = jax.tree.map(lambda x, y: (x != y).any(), params[1], params[3])
  assert any(jax.tree.leaves(moved))


def test_influence_is_counted_as_it_was_scaled(phase):
  batch = tiny.ragged_batch(phase)
  advantages = jnp.where(batch.group_id == 0, 5.0, 0.1)
  batch = dataclasses.replace(
    batch, advantages=advantages, policy_weight=jnp.full((16, 4), 2.0)
  )
  guards = guards_lib.InfluenceBounds(P, cap=0.5, window=3)
  keys = jnp.arange(1, P + 1, dtype=jnp.uint32)
  said = {guards_lib.PROMPTS: keys, guards_lib.KEPT: jnp.ones(P, bool)}
  weigh = jax.jit(guards.weigh)
  state = tiny.make_state(dataclasses.replace(phase, guards=guards))
  state, first, found = weigh(state, batch, said)
  scale = np.asarray(found[guards_lib.SCALE])
  assert scale[0] < 0.5
  assert scale[1:].tolist() == [1.0, 1.0, 1.0]
  # The factor is on top of other weights, and of all rows of the group.
  np.testing.assert_allclose(
    first.policy_weight, 2 * np.repeat(scale, 4)[:, None] * np.ones((1, 4))
  )
  influence = np.asarray(found[guards_lib.INFLUENCE])
  assert influence[0] == pytest.approx(influence.sum() / 2, rel=1e-4)
  np.testing.assert_array_equal(state.guards["influence"][-1], influence)
  # The window has two steps before: the third forgets the first.
  for _ in range(2):
    state, _, _ = weigh(state, batch, said)
  assert state.guards["influence"].shape == (2, P)
  assert (np.asarray(state.guards["keys"]) == np.asarray(keys)).all()


def test_prompts_are_known_by_what_they_say():
  plain = prompts_of((2, 3, 2, 4))
  fingerprints = jax.jit(guards_lib.fingerprints)
  a, b, c, d = fingerprints(plain).tolist()
  assert a == c
  assert len({a, b, d}) == 3
  garbage = dataclasses.replace(
    plain, tokens=plain.tokens + 7 * ~plain.mask
  )  # Empty slots may hold anything.
  assert fingerprints(garbage).tolist() == [a, b, c, d]
  for labels in (jnp.array([[0], [0], [1], [0]]), jnp.array([0, 0, 0.5, 0])):
    labelled = dataclasses.replace(plain, extras={"label": labels})
    found = fingerprints(labelled).tolist()
    assert found[0] != found[2]
