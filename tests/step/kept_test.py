"""Tests of rows that wait for a later step: the surplus of rounds."""

import dataclasses

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies

from grpo_jax.step import dynamic_sampling
from grpo_jax.step import step as step_lib
from tests.step import dynamic_sampling_test
from tests.training import tiny

pytestmark = pytest.mark.slow

P = dynamic_sampling_test.P
_groups = dynamic_sampling_test._groups
_add, _metrics = (
  jax.jit(dynamic_sampling.add),
  jax.jit(dynamic_sampling.metrics),
)
BOOLS = strategies.lists(strategies.booleans(), min_size=P, max_size=P)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(
  strategies.lists(strategies.lists(BOOLS, min_size=3, max_size=3), max_size=4)
)
def test_steps_with_a_surplus_are_those_of_plain_python(steps):
  """A queue: what lives goes in at one end, and a batch out at the other."""
  surplus = dynamic_sampling.nothing(_groups([0] * P, [False] * P))
  waiting, number = [], 0
  for lives in steps:
    collected, begun, drawn = None, len(waiting), 0
    for live in lives:
      ids = 1 + number + np.arange(P)
      number += P
      collected = _add(
        collected,
        _groups(ids, live),
        recycled=surplus if collected is None else None,
      )
      drawn += P
      waiting += [i for i, is_live in zip(ids, live, strict=True) if is_live]
      if len(waiting) >= P:
        break
    batch, waiting = waiting[:P], waiting[P:]
    ids = collected.groups.prompts.ids.tolist()
    assert ids[: len(batch)] == batch
    assert collected.full == (len(batch) == P)
    found = _metrics(collected)
    assert found["drawn/recycled"] == begun
    assert found["drawn/surplus"] == len(waiting)
    assert found["drawn/missing"] == P - len(batch)
    assert found["drawn/groups"] == drawn
    assert found["completions/generated"] == drawn * dynamic_sampling_test.G
    surplus = collected.surplus
    live = dynamic_sampling.live_groups(surplus).tolist()
    assert live == [i < len(waiting) for i in range(P)]
    # All that belongs to a group has waited with it.
    if waiting:
      expected = _groups([*waiting, *[0] * (P - len(waiting))], [True] * P)
      rows = len(waiting) * dynamic_sampling_test.G
      np.testing.assert_array_equal(
        surplus.rollout.behavior_logp[:rows],
        expected.rollout.behavior_logp[:rows],
      )
      np.testing.assert_array_equal(
        surplus.prompts.extras["gold"][: len(waiting)], 2 * np.array(waiting)
      )
    # And it is numbered as a batch of its own.
    jax.tree.map(
      np.testing.assert_array_equal,
      (surplus.rollout.group_id, surplus.rollout.prompt_index),
      (collected.groups.rollout.group_id,) * 2,
    )


# --- steps of a policy -------------------------------------------------------


def _phase(recycles):
  phase = dynamic_sampling_test._phase(
    3, fields={"importance_mode": "truncate"}
  )
  if not recycles:
    return phase
  prompts = jax.tree.map(lambda x: x[:4], dynamic_sampling_test._prompts(()))
  return dataclasses.replace(
    phase, waiting_groups=dynamic_sampling.Buffers(prompts, recycles=True)
  )


@pytest.fixture(scope="module")
def recycling():
  """The state at the start, and a step that keeps its surplus."""
  phase = _phase(True)
  return tiny.make_state(phase), tiny.fused(phase)


@pytest.fixture(scope="module")
def dropping():
  """The same without a surplus."""
  phase = _phase(False)
  return tiny.make_state(phase), tiny.fused(phase)


def test_a_surplus_is_trained_as_what_an_earlier_policy_wrote(
  recycling, dropping
):
  state, step = recycling
  # Six live groups in two rounds: two are left over.
  first = dynamic_sampling_test._prompts((0, 1, 4, 5, 6, 7))
  state, metrics, written = step(state, first)
  other, _, _ = dropping[1](dropping[0], first)
  # Nothing had waited, so the step is the one without the setting.
  jax.tree.map(np.testing.assert_array_equal, state.params, other.params)
  assert written.prompt_id[::4].tolist() == [0, 1, 4, 5]
  assert (metrics["drawn/surplus"], metrics["drawn/recycled"]) == (2, 0)
  assert metrics["staleness/max"] == 0
  waits = state.waiting["surplus"]
  assert waits.prompts.ids[:2].tolist() == [6, 7]

  # One round has three more: enough with the two that wait.
  second = dynamic_sampling_test._prompts((12, 13, 15), first=12)
  after, metrics, written = step(state, second)
  assert written.prompt_id[::4].tolist() == [6, 7, 12, 13]
  assert metrics["drawn/recycled"] == 2
  assert metrics["drawn/rounds"] == 1
  assert metrics["drawn/surplus"] == 1
  assert metrics["completions/generated"] == 16
  assert after.waiting["surplus"].prompts.ids[0] == 15

  # They have the version and the log-probs of the policy that has drawn them.
  old = np.repeat([True, True, False, False], 4)
  exists = np.asarray(written.batch.completion_mask)
  np.testing.assert_array_equal(
    np.asarray(written.version)[exists],
    np.broadcast_to(np.where(old, 0, 1)[:, None], exists.shape)[exists],
  )
  assert metrics["staleness/max"] == 1
  share = exists[old].sum() / exists.sum()
  np.testing.assert_allclose(metrics["staleness/mean"], share, 1e-6)
  np.testing.assert_array_equal(
    written.batch.sampler.behavior_logp[:8][exists[:8]],
    np.asarray(waits.rollout.behavior_logp)[:8][exists[:8]],
  )
  # By which their weight is another one than 1, and that of others is not.
  weight = np.asarray(written.batch.policy_weight)
  log_ratio = np.asarray(
    written.batch.old_logp - written.batch.sampler.behavior_logp
  )
  expected = np.where(
    np.asarray(written.batch.mask), np.minimum(np.exp(log_ratio), 2.0), 0.0
  )
  np.testing.assert_allclose(weight, expected, 1e-5, 1e-6)
  moved = np.abs(log_ratio)[exists & old[:, None]]
  assert moved.max() > 1e-2
  assert np.abs(log_ratio)[exists & ~old[:, None]].max() < 1e-5


def test_a_phase_begins_with_nothing_that_waits(recycling):
  state, step = recycling
  state, _, _ = step(state, dynamic_sampling_test._prompts((0, 1, 4, 5, 6, 7)))
  entered = step_lib.enter_phase(state, _phase(True), 1)
  assert not dynamic_sampling.live_groups(entered.waiting["surplus"]).any()
  assert step_lib.enter_phase(state, _phase(False), 1).waiting is None


def test_with_the_host_between_the_rounds_a_surplus_is_the_same():
  # Two rounds and two left over; one round with them; none live.
  live_ids = (0, 1, 4, 5, 6, 7, 12, 13)
  phase = _phase(True)
  on_host, history, others = dynamic_sampling_test.both_ways(phase, live_ids)
  recycled = [metrics["drawn/recycled"] for metrics, _ in history]
  assert recycled == [0, 2, 0]
  for (metrics, samples), (theirs, their_samples) in zip(
    history, others, strict=True
  ):
    for name, value in metrics.items():
      np.testing.assert_allclose(theirs[name], value, 1e-4, 1e-5, err_msg=name)
    assert samples == their_samples
    assert len(samples) == 16
  # Prompts of an earlier step are read from their tokens.
  shown = [sample["prompt"] for sample in history[1][1][::4]]
  prompts = dynamic_sampling_test._prompts(())
  expected = on_host.texts(*map(np.asarray, (prompts.tokens, prompts.mask)))
  assert shown == [*expected[6:8], "question 12", "question 13"]
