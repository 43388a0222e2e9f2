"""Features of a step that a phase does not use."""

import jax
import jax.numpy as jnp

from grpo_jax.step import features
from tests.training import tiny


def test_what_a_phase_does_not_use_adds_nothing_to_its_program():
  phase = tiny.make_phase("grpo")
  batch = tiny.ragged_batch(phase)

  def step(state, key):
    off = features.Schedule()
    feedback = off.feedback(None)
    feedback = off.with_samples(None, None, state, None, batch, feedback)
    assert off.expected(state, None) is feedback is None
    said = off.advance(state, feedback)[1]
    groups = features.WaitingGroups().mix(state, batch, key, jnp.negative)
    old = features.OldGroups()
    mixed = old.mix(state, groups[1], key)
    shown = old.shown(batch, mixed.batch, mixed.is_old)
    values = features.PrefixValues()
    shown = values.with_candidates(None, shown)
    shown = values.with_utilities(None, None, shown, False)
    guards = features.StepGuards()
    shown, admitted = guards.admit(state, None, shown)
    state, shown, admitted = guards.weigh(state, shown, admitted)
    assert shown is batch
    metrics = said | groups[2] | mixed.metrics | values.metrics(batch)
    assert metrics | admitted == {}
    return state

  state = tiny.make_state(phase)
  assert not jax.make_jaxpr(step)(state, state.key).eqns
  assert (
    state.schedule is state.waiting is state.reservoir is state.guards is None
  )
