"""A step hands out its rows, and a pass says what they are after the update."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax.step import after
from grpo_jax.step import step as step_lib
from grpo_jax.types import TrainBatch, fields_where, get_field
from tests.training import tiny

pytestmark = pytest.mark.slow


def _step(learning_rate, **options):
  phase = tiny.make_phase(
    "grpo",
    num_minibatches=2,
    micro_batch_size=4,
    learning_rate=learning_rate,
    **options,
  )
  state = tiny.make_state(phase)
  new, _, written = tiny.fused(phase)(state, tiny.make_prompts(4))
  found = jax.jit(functools.partial(after.after_update, phase=phase))(
    new, written
  )
  return phase, new, written, jax.device_get(found)


def test_a_policy_that_does_not_move_says_the_same_bits():
  _, _, written, found = _step(0.0)
  exists = np.asarray(written.batch.completion_mask)
  assert exists.any()
  assert np.asarray(written.batch.mask).all() == exists.all()
  old_logp = np.asarray(written.batch.old_logp)
  assert found.logp[exists].tobytes() == old_logp[exists].tobytes()
  assert (found.logp[~exists] == 0).all()
  assert not found.clipped.any()


def test_log_probs_and_clips_are_those_of_the_new_policy():
  phase, new, written, found = _step(0.5)
  batch = jax.device_get(written.batch)
  h, _ = phase.policy.hidden(
    new.params["policy"],
    batch.prompts.tokens,
    batch.prompts.mask,
    batch.tokens,
    batch.completion_mask,
    batch.prompt_index,
  )
  logits = np.asarray(phase.policy.head(new.params["policy"], h), np.float64)
  logits -= logits.max(axis=-1, keepdims=True)
  logp = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
  chosen = np.take_along_axis(logp, batch.tokens[..., None], axis=-1)[..., 0]
  exists = batch.completion_mask
  np.testing.assert_allclose(found.logp[exists], chosen[exists], 1e-4, 1e-5)
  config = phase.config
  expected = np.zeros(exists.shape, bool)
  for b, t in zip(*np.nonzero(batch.mask), strict=True):
    ratio = np.exp(float(found.logp[b, t]) - float(batch.old_logp[b, t]))
    advantage = float(batch.advantages[b])
    expected[b, t] = (advantage > 0 and ratio > 1 + config.clip_high) or (
      advantage < 0 and ratio < 1 - config.clip_low
    )
  assert expected.any()
  assert not expected.all()
  np.testing.assert_array_equal(found.clipped, expected)


def test_what_is_large_is_not_handed_out():
  phase = tiny.make_phase("grpo", fields={"keep_sampling_mask": True}, top_k=2)
  step = functools.partial(step_lib.fused_step, phase=phase)
  state, prompts = tiny.make_state(phase), tiny.make_prompts(4)
  new, _, written = jax.eval_shape(step, state, prompts)
  assert written.batch.sampler.kept_ids is None
  # Nor are log-probs that depend on it.
  assert after.after_update(new, written, phase=phase) is None
  tokens = fields_where(TrainBatch, kind="token")
  for name in tokens:
    x = get_field(written.batch, name)
    assert x is None or x.ndim <= 2
