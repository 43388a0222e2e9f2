"""Rollouts that are cut: with the same weights they are those that are not."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.rollout import drawing, resumed, sampling
from tests.models import drawn
from tests.rollout import toy, turns_test
from tests.training import tiny

pytestmark = pytest.mark.slow

T, G = 8, 3
KEY = jax.random.key(5)


# Each operation outside a program would be a program of its own.
_row_keys = jax.jit(drawing.row_keys, static_argnums=2)
_nothing = jax.jit(resumed.nothing, static_argnums=1)
_cleared = jax.jit(resumed.cleared, static_argnums=2)
_begin = jax.jit(resumed.begin, static_argnums=0)


def _config(**fields):
  return sampling.SamplerConfig(T, (tiny.END,), tiny.PAD, **fields)


@functools.cache
def _start(top_k=None, kind="dense"):
  """A policy, prompts, the rollout that is drawn at once, and its keys."""
  linear = {"num_layers": 2, **tiny.LINEAR}
  fields = {"dense": {}, "linear": linear, "sparse": tiny.SPARSE}[kind]
  policy = tiny.tiny_transformer(**fields)
  params = drawn.params(policy)
  prompts = tiny.make_prompts()
  config = _config(top_k=top_k, record_kept=top_k is not None)
  whole = jax.jit(
    lambda params: sampling.sample(policy, params, prompts, KEY, config, G)
  )(params)
  keys = _row_keys(KEY, prompts.ids, G)
  return policy, params, prompts, config, whole, keys


def _go_on(top_k, most, kind="dense"):
  policy, _, prompts, config, _, keys = _start(top_k, kind)
  return jax.jit(
    lambda params, rollout, limits, step: resumed.continue_rows(
      policy,
      params,
      prompts,
      keys,
      rollout,
      limits,
      step,
      config=config,
      most=most,
    )[0]
  )


@pytest.mark.parametrize(
  ("top_k", "length", "kind"),
  [
    *((None, 3, "dense"), (3, 1, "dense")),
    *((None, 3, "linear"), (None, 3, "sparse")),
  ],
)
def test_pieces_are_the_whole(top_k, length, kind):
  _, params, prompts, _, whole, _ = _start(top_k, kind)
  go_on = _go_on(top_k, length, kind)
  rollout = _nothing(whole, tiny.PAD)
  for step in range(-(-T // length)):
    limits = np.full(len(whole.tokens), min((step + 1) * length, T))
    rollout = go_on(params, rollout, limits, np.int32(step))
    slots = np.arange(T) < (step + 1) * length
    np.testing.assert_array_equal(
      rollout.completion_mask, np.asarray(whole.completion_mask) & slots
    )
  exists = np.asarray(whole.completion_mask)
  assert (exists.sum(axis=1) > length).any()
  assert whole.terminated.any()
  slots = np.broadcast_to(np.arange(T), exists.shape)
  np.testing.assert_array_equal(
    rollout.version, np.where(exists, slots // length, 0)
  )
  assert rollout.num_groups == len(prompts.ids)
  for field in dataclasses.fields(whole):
    mine, expected = (getattr(x, field.name) for x in (rollout, whole))
    if expected is not None and field.name != "version":
      np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-5)


def test_what_is_written_stays_when_the_weights_have_changed():
  policy, params, _, _, whole, _ = _start()
  go_on = _go_on(None, T)
  empty = _nothing(whole, tiny.PAD)
  num_rows = len(whole.tokens)
  cut = go_on(params, empty, np.full(num_rows, 2), np.int32(0))
  other = drawn.params(policy, seed=9)
  limits = np.arange(num_rows) % 2 * T  # Every second row is done, for now.
  after = go_on(other, cut, limits, np.int32(4))
  for name in ("tokens", "behavior_logp", "sampler_logp", "entropy"):
    np.testing.assert_array_equal(
      getattr(after, name)[:, :2], getattr(cut, name)[:, :2]
    )
  np.testing.assert_array_equal(after.tokens[::2], cut.tokens[::2])
  more = np.asarray(after.completion_mask) & ~np.asarray(cut.completion_mask)
  assert more[1::2].any()
  assert not more[::2].any()
  np.testing.assert_array_equal(after.version[more], 4)
  assert (after.version[np.asarray(cut.completion_mask)] == 0).all()
  assert (after.tokens != whole.tokens)[1::2].any()


def test_rows_are_cleared_alone():
  *_, whole, _ = _start()
  whole = dataclasses.replace(
    jax.device_get(whole), version=np.ones(whole.tokens.shape, np.int32)
  )
  rows = np.arange(len(whole.tokens)) % 2 == 0
  cleared = jax.device_get(_cleared(whole, rows, tiny.PAD))
  assert (cleared.tokens[::2] == tiny.PAD).all()
  assert not cleared.completion_mask[::2].any()
  assert not cleared.terminated[::2].any()
  np.testing.assert_array_equal(cleared.tokens[1::2], whole.tokens[1::2])
  np.testing.assert_array_equal(cleared.version[1::2], whole.version[1::2])
  np.testing.assert_array_equal(cleared.group_id, whole.group_id)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_pieces_of_episodes_are_the_whole(length):
  # From 1: action 3, and 1 again after every 6. From 2: actions 2 2. An
  # observation has one or two tokens: rows are cut in it, and in actions.
  num_slots = 14
  table = np.float32(turns_test.chain(7, [1, 3], [2, 2], [5, 4], [6, 1]))
  prompts = turns_test.toy_prompts([1, 2, 2], [0, 1, 0])
  environment = dataclasses.replace(toy.ENVIRONMENT, action_ends=(3, 6))
  whole = turns_test.toy_run(num_slots)
  params = {"trained": table, "frozen": {}}
  keys = _row_keys(jax.random.key(0), prompts.ids, 1)

  @jax.jit
  def go_on(params, rollout, episodes, limits, step):
    # What stands in rows without tokens is not looked at.
    size = rollout.completion_mask.sum(axis=1)
    episodes = dataclasses.replace(
      episodes, turn=jnp.where(size > 0, episodes.turn, 9)
    )
    return resumed.continue_rows(
      *(turns_test.MARKOV, params, prompts, keys, rollout, limits, step),
      config=sampling.SamplerConfig(num_slots, (), 0),
      most=length,
      environment=environment,
      episodes=episodes,
    )

  rollout = _nothing(whole, 0)
  episodes = _begin(environment, prompts, keys)
  for step in range(-(-num_slots // length)):
    limits = np.full(3, min((step + 1) * length, num_slots))
    rollout, episodes = go_on(params, rollout, episodes, limits, np.int32(step))
    slots = np.arange(num_slots) < (step + 1) * length
    np.testing.assert_array_equal(
      rollout.completion_mask, whole.completion_mask & slots
    )
  for field in dataclasses.fields(whole):
    mine, expected = (getattr(x, field.name) for x in (rollout, whole))
    if expected is not None and field.name != "version":
      jax.tree.map(
        functools.partial(np.testing.assert_allclose, err_msg=field.name),
        *(mine, expected),
      )
  assert np.max(rollout.version) == (
    whole.completion_mask.sum(1).max() - 1
  ) // (length)
