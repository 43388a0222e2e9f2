"""Replayed groups, against plain Python: scores, the buffer, who comes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.step import dynamic_sampling
from grpo_jax.types import get_field
from tests.step import dynamic_sampling_test
from tests.training import tiny

pytestmark = pytest.mark.slow

G, P = 4, 4


def _groups(ids, rewards, valid=None):
  """Groups of four rows in which every number tells whose it is."""
  groups = dynamic_sampling_test._groups(
    ids, [True] * P, num_prompts=P, group_size=G
  )
  scored = dynamic_sampling_test._scored(np.ravel(rewards), valid)
  return dataclasses.replace(groups, scored=scored)


def _score(rewards, scale, eps=1e-6):
  """Σ |A| s of a group, from the definition."""
  rewards = np.asarray(rewards, np.float64)
  mean = sum(rewards) / len(rewards)
  square = sum((x - mean) ** 2 for x in rewards) / (len(rewards) - 1)
  total = 0.0
  for x in rewards:
    advantage = x - mean
    if scale == "group":
      advantage /= square**0.5 + eps
    total += abs(advantage) * square**0.5
  return total


REWARDS = [[0, 0, 1, 0], [1, 1, 1, 1], [0, 0.5, 1, 1], [1, 0, 1, 0]]


@pytest.mark.parametrize("scale", ["group", "none"])
def test_scores_are_those_of_the_definition(scale):
  groups = _groups(range(4), REWARDS)
  expected = [_score(x, scale) if max(x) > min(x) else 0.0 for x in REWARDS]
  np.testing.assert_allclose(
    dynamic_sampling.scores(groups, scale), expected, 1e-5
  )
  # By hand: deviation 1/2, absolute differences 1/4, 1/4, 3/4, 1/4.
  by_hand = 1.5 if scale == "group" else 0.75
  np.testing.assert_allclose(
    dynamic_sampling.scores(groups, scale)[0], by_hand, 1e-5
  )


def test_what_was_not_scored_has_no_part_in_a_score():
  valid = np.ones(16, bool)
  valid[[2, 8, 9, 10]] = False  # One row; all but one of a group.
  score = dynamic_sampling.scores(_groups(range(4), REWARDS, valid), "none")
  # The first group has no other reward left; the third one has a single one.
  assert score.tolist()[:3] == [0, 0, 0]
  assert score[3] > 0


_mix = jax.jit(dynamic_sampling.Replay.mix, static_argnums=0)


def test_the_buffer_keeps_the_highest_scores_that_there_were():
  """Compares with a list sorted in each step; of equals the older stay."""
  rng = np.random.default_rng(0)
  own = dynamic_sampling.Replay(5, scale="none")
  state = own.init(_groups(range(4), REWARDS))
  best = []  # (score, id, step)
  for step in range(8):
    ids = np.arange(4 * step, 4 * step + 4)
    rewards = rng.integers(0, 3, (4, 4)) / 2
    mixed = _mix(own, state, _groups(ids, rewards), jax.random.key(step), step)
    new = [
      (_score(row, "none"), int(i), step)
      for i, row in zip(ids, rewards, strict=True)
      if row.max() > row.min()
    ]
    best = sorted(best + new, key=lambda one: -round(one[0], 4))[:5]
    state = mixed.state
    count = len(best)
    assert mixed.metrics["replay/kept"] == count
    groups = state["groups"]
    assert groups.prompts.ids[:count].tolist() == [i for _, i, _ in best]
    assert state["step"][:count].tolist() == [at for *_, at in best]
    np.testing.assert_allclose(
      state["score"], [*(s for s, *_ in best), *[0] * (5 - count)], 1e-5
    )
    # All that belongs to a group is kept with it.
    rows = np.repeat([10 * i for _, i, _ in best], G)
    rows = rows + np.tile(np.arange(G), count)
    np.testing.assert_array_equal(
      groups.rollout.behavior_logp[: len(rows), 0], rows
    )
  assert count == 5


def test_dead_groups_and_no_others_make_room():
  own = dynamic_sampling.Replay(6, scale="none")
  state = own.init(_groups(range(4), REWARDS))
  first = _mix(own, state, _groups(range(4), REWARDS), jax.random.key(0), 0)
  dead = [[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
  mixed = _mix(
    own, first.state, _groups(range(4, 8), dead), jax.random.key(1), 3
  )
  ids = mixed.groups.prompts.ids.tolist()
  assert ids[1] == 5
  assert {ids[0], ids[2], ids[3]} <= {0, 2, 3, 5}
  assert len({ids[0], ids[2], ids[3]}) == 3  # There are four: all different.
  assert mixed.metrics["replay/groups"] == 3
  came = [0 if i < 4 else 3 for i in (ids[0], ids[2], ids[3])]
  np.testing.assert_allclose(mixed.metrics["replay/age"], 3 - np.mean(came))
  # Rows are those of the groups, and are numbered as a batch is.
  rows = np.repeat(10 * np.array(ids), G) + np.tile(np.arange(G), P)
  np.testing.assert_array_equal(mixed.groups.rollout.behavior_logp[:, 0], rows)
  assert (
    mixed.groups.rollout.group_id.tolist() == np.repeat(range(4), 4).tolist()
  )
  rewards = np.array([*REWARDS, *dead])
  np.testing.assert_array_equal(
    mixed.groups.scored.rewards, rewards[ids].ravel()
  )


def test_with_nothing_to_replay_a_batch_stays_what_it_is():
  own = dynamic_sampling.Replay(6)
  state = own.init(_groups(range(4), REWARDS))
  dead = _groups(range(4), [[1, 1, 1, 1]] * 4)
  mixed = _mix(own, state, dead, jax.random.key(0), 0)
  jax.tree.map(np.testing.assert_array_equal, mixed.groups, dead)
  assert mixed.metrics["replay/groups"] == 0
  assert np.isnan(mixed.metrics["replay/age"])
  live = _groups(range(4), [REWARDS[0]] * 4)
  mixed = _mix(own, mixed.state, live, jax.random.key(0), 0)
  jax.tree.map(np.testing.assert_array_equal, mixed.groups, live)


SCORES = np.array([3.0, 0.0, 1.0, 2.0, 0.0], np.float32)


def _chosen(count, most):
  keys = jax.random.split(jax.random.key(0), 4000)
  return np.asarray(
    jax.vmap(
      lambda key: dynamic_sampling.choose(key, jnp.array(SCORES), count, most)
    )(keys)
  )[:, :count]


def test_groups_are_drawn_as_often_as_their_scores_say():
  p = SCORES / SCORES.sum()
  # One: in proportion. Two: the second one in proportion to what is left.
  first, second = _chosen(2, 2).T
  share = np.bincount(first, minlength=5) / len(first)
  np.testing.assert_allclose(share, p, atol=0.03)
  expected = [
    sum(p[i] * p[j] / (1 - p[i]) for i in range(5) if i != j and p[i])
    for j in range(5)
  ]
  share = np.bincount(second, minlength=5) / len(second)
  np.testing.assert_allclose(share, expected, atol=0.03)
  assert (first != second).all()
  # Of three groups four can only be drawn again and again.
  found = _chosen(4, 6)
  share = np.bincount(found.ravel(), minlength=5) / found.size
  np.testing.assert_allclose(share, p, atol=0.02)
  # And three are all three.
  assert (np.sort(_chosen(3, 6), axis=1) == [0, 2, 3]).all()


# --- steps of a policy -------------------------------------------------------


@pytest.fixture(scope="module")
def replaying():
  """The state at the start, and a step that replays."""
  phase = dynamic_sampling_test._phase(
    1, fields={"importance_mode": "truncate", "dynamic_sampling": False}
  )
  prompts = jax.tree.map(lambda x: x[:4], dynamic_sampling_test._prompts(()))
  waits = dynamic_sampling.Buffers(prompts, replay=dynamic_sampling.Replay(6))
  phase = dataclasses.replace(phase, waiting_groups=waits)
  return tiny.make_state(phase), tiny.fused(phase)


def _four(live_ids, first):
  return jax.tree.map(
    lambda x: x[:4], dynamic_sampling_test._prompts(live_ids, first=first)
  )


def test_a_replayed_group_is_trained_as_what_an_earlier_policy_wrote(replaying):
  state, step = replaying
  state, metrics, first = step(state, _four((0, 1, 2), 0))
  assert metrics["replay/groups"] == 1  # Of the three that have just come.
  assert metrics["replay/age"] == 0
  assert metrics["drawn/live"] == 0.75
  state, metrics, written = step(state, _four((), 12))
  assert metrics["replay/groups"] == 3 + 1  # With replacement: three are kept.
  assert metrics["replay/age"] == 1
  assert metrics["replay/kept"] == 3
  ids = written.prompt_id[::4].tolist()
  assert set(ids) <= {0, 1, 2}
  assert metrics["staleness/mean"] == metrics["staleness/max"] == 1
  # What was drawn is what it was: all of it dead, and all of it counted.
  assert metrics["drawn/live"] == 0
  assert metrics["completions/generated"] == 16
  assert metrics["drawn/reward"] == 1
  assert metrics["reward/mean"] == 0.5
  places = [first.prompt_id[::4].tolist().index(i) for i in ids]
  rows = np.add.outer(4 * np.array(places), np.arange(4)).ravel()
  mask = np.asarray(written.batch.completion_mask)
  for name in ("tokens", "sampler.behavior_logp"):
    np.testing.assert_array_equal(
      np.asarray(get_field(written.batch, name))[mask],
      np.asarray(get_field(first.batch, name))[rows][mask],
      err_msg=name,
    )
  assert (np.asarray(written.version)[mask] == 0).all()
  gap = np.asarray(
    written.batch.old_logp - written.batch.sampler.behavior_logp
  )[mask]
  assert np.abs(gap).max() > 1e-2
