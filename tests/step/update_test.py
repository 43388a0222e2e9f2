"""Tests of a step beside its gradients: orders, averages, rates, models."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.ops import selection
from grpo_jax.settings import phase as phase_lib
from grpo_jax.step import micro_batches, models, update
from grpo_jax.step import step as step_lib
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.training.phases import build, optimizers
from grpo_jax.types import ModelState
from tests.experiments import tiny_config
from tests.training import tiny


def test_each_epoch_has_an_order_of_its_own():
  plan = UpdatePlan(num_epochs=3, num_minibatches=2, group_size=4)
  rows = update._minibatches(plan, 64, jax.random.key(0))
  assert rows.shape == (6, 32)
  epochs = np.asarray(rows).reshape(3, -1)
  for order in epochs:  # Whole groups, each of them once.
    np.testing.assert_array_equal(np.sort(order), np.arange(64))
    groups = order.reshape(-1, 4)
    np.testing.assert_array_equal(groups, groups[:, :1] + np.arange(4))
  assert (epochs[0] != epochs[1]).any()
  assert (epochs[1] != epochs[2]).any()


def test_an_average_keeps_its_share_of_the_past():
  member = models.Model(start=lambda _: {}, ema_decay=0.75)
  before = ModelState({}, average={"w": jnp.float32(4.0)})
  after = update._average(member, before, {"trained": {"w": jnp.float32(8.0)}})
  assert float(after["w"]) == 0.75 * 4.0 + 0.25 * 8.0


def test_an_average_of_bfloat16_parameters_that_stay_is_these_parameters():
  member = models.Model(start=lambda _: {}, ema_decay=0.9)
  trained = {"w": jnp.linspace(1, 2, 64, dtype=jnp.bfloat16)}
  average = {"w": trained["w"].astype(jnp.float32)}
  for _ in range(60):
    before = ModelState({}, average=average)
    average = update._average(member, before, {"trained": trained})
  assert average["w"].dtype == jnp.float32
  np.testing.assert_allclose(
    average["w"], trained["w"].astype(jnp.float32), rtol=1e-5
  )


@pytest.mark.parametrize(
  "name", tiny.each(("adamw", "adafactor", "muon"), ("adamw",))
)
def test_a_step_that_trains_nothing_leaves_the_moments_as_new(name):
  """Else their correction would count steps that they have not seen."""
  config = phase_lib.OptimizerConfig(
    name=name, schedule="linear", learning_rate=1.0
  )
  optimizer = optimizers.of_model(config, 10)
  params = {"layers": {"mlp": {"up": {"kernel": jnp.eye(4)[None]}}}}
  start = optimizer.init(params)
  _, new = optimizer.update(params, start, params)
  waited = update.select(jnp.bool_(False), new, start)
  rate = 0.9  # Of the second step.
  first, _ = optimizer.update(params, start, params)
  second, _ = optimizer.update(params, waited, params)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(rate * x, y, rtol=1e-5),
    first,
    second,
  )


def test_a_memory_that_waits_counts_nothing():
  memory = selection.empty_memory(4)
  new = selection.remember(memory, jnp.ones(2), jnp.ones(2, bool))
  waited = update.select(jnp.bool_(False), new, memory)
  assert int(waited.num_seen) == 0
  assert not waited.values.any()


def test_a_version_is_the_step_of_the_run():
  """Not the step of the phase, which begins anew."""
  state = dataclasses.replace(
    tiny.make_state(tiny.make_phase()),
    step=jnp.int32(7),
    phase_step=jnp.int32(2),
  )
  batch = tiny.ragged_batch(tiny.make_phase())

  @dataclasses.dataclass(frozen=True)
  class Written:
    completion_mask: jax.Array
    version: jax.Array | None = None

  marked = step_lib.with_version(state, Written(batch.completion_mask))
  expected = np.where(np.asarray(batch.completion_mask), 7, 0)
  np.testing.assert_array_equal(marked.version, expected)


@pytest.mark.slow
def test_rates_that_are_logged_count_the_steps_of_each_member():
  """A critic with K updates is K times as far in its schedule."""
  phase = tiny.make_phase("ppo", num_critic_updates=3, group_size=1)
  counted = {
    name: dataclasses.replace(member, schedule=lambda step: step)
    for name, member in phase.models.items()
  }
  phase = dataclasses.replace(phase, models=counted)
  state = tiny.make_state(phase)
  state = dataclasses.replace(state, phase_step=jnp.int32(5))

  @jax.jit
  def logged(state, batch):
    batch = step_lib.prepare(state, batch, jax.random.key(0), phase=phase)
    return step_lib.update(state, batch, jax.random.key(1), phase=phase)[1]

  metrics = logged(state, tiny.ragged_batch(phase))
  assert float(metrics["learning_rate"]) == 5 * phase.plan.num_updates
  assert float(metrics["value/learning_rate"]) == 15 * phase.plan.num_updates


@pytest.mark.slow
def test_minibatches_without_tokens_are_no_part_of_means():
  """They would make a KL small, and so the coefficient that follows it."""
  fields = {"kl_coef": 0.1, "entropy_coef": 0.1}
  phase = tiny.make_phase(
    "grpo", fields=fields, num_minibatches=4, learning_rate=1e-3
  )
  batch = tiny.ragged_batch(phase)
  alone = jnp.arange(16) // 4 == 2  # Three of the four groups are dead.

  @jax.jit
  def measured(state, batch):
    batch = step_lib.prepare(state, batch, jax.random.key(0), phase=phase)
    return step_lib.update(state, batch, jax.random.key(1), phase=phase)[1]

  state = tiny.make_state(phase)
  both = [
    measured(state, dataclasses.replace(batch, mask=batch.mask & rows[:, None]))
    for rows in (jnp.ones(16, bool), alone)
  ]
  assert float(both[1]["ratio/mean"]) == pytest.approx(1.0, abs=0.05)
  first, second = (float(x["entropy/policy"]) for x in both)
  assert second == pytest.approx(first, rel=0.2)


def test_a_teacher_has_its_own_frozen_leaves():
  """Without own leaves, as with the base of adapters, it has the policy's."""
  policy = tiny.tiny_policy()
  params = {
    "policy": {"trained": {}, "frozen": {"base": 1, "scale": 2}},
    "reference": {"trained": {}, "frozen": {"scale": 3}},
  }
  view = models.frozen_view(policy, "reference", params)
  assert view.trunk.params["frozen"] == {"base": 1, "scale": 3}


def test_the_length_of_a_row_is_the_place_of_its_last_trained_token():
  """Rows with holes, as episodes have them, lose nothing of their end."""
  batch = tiny.ragged_batch(tiny.make_phase())
  mask = np.zeros(batch.mask.shape, bool)
  mask[0, [0, 3]] = True
  mask[1, 2] = True
  mask[2, :2] = True
  batch = dataclasses.replace(batch, mask=jnp.asarray(mask))
  rows = micro_batches.arrange(UpdatePlan(micro_batch_size=4), batch, False)
  np.testing.assert_array_equal(rows.length[0, :4], [4, 3, 2, 0])


@pytest.fixture(scope="module")
def agent():
  """The phases of PPO with a critic and a pre-training of it."""
  return tiny.assembled(tiny_config.get_config("agent"))


def test_a_phase_of_the_kind_value_trains_the_critic_alone(agent):
  sft, value, rl = agent.phases
  trained = [
    [name for loss in phase.phase.losses for name in loss.trains]
    for phase in (sft, value, rl)
  ]
  assert trained == [
    ["policy", "algorithm"],
    ["critic"],
    ["policy", "algorithm", "critic"],
  ]
  assert value.phase.models["policy"].optimizer is None
  assert not value.phase.trains_policy


def test_the_schedule_of_a_critic_is_as_long_as_its_updates(agent):
  run = agent.config
  optimizer = dataclasses.replace(
    run.critic.optimizer, schedule="linear", learning_rate=1.0
  )
  critic = dataclasses.replace(run.critic, optimizer=optimizer)
  run = dataclasses.replace(run, critic=critic)
  parts = agent.problem, agent.policy, "rl", agent.mesh
  phase = build.make_phase(run, *parts)
  steps = run.section("rl").steps * phase.plan.num_updates
  assert critic.num_updates == 2
  schedule = phase.models["critic"].schedule
  np.testing.assert_allclose(schedule(steps), 0.5, atol=1e-6)
  np.testing.assert_allclose(schedule(2 * steps), 0.0, atol=1e-6)
