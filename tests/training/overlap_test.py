"""Rollouts ahead of the updates: when, with which draws, and how corrected."""

import dataclasses
import functools
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.data import pipeline
from grpo_jax.step import dynamic_sampling, step
from grpo_jax.training.phases import executors
from grpo_jax.training.problem import rewards, unscored
from grpo_jax.training.runtime import sharding
from tests.training import tiny

STEPS = 5
BATCHES = [
  pipeline.PromptBatch(jax.device_get(tiny.make_prompts(first=4 * i)), [])
  for i in range(STEPS)
]


# What the host says, here in this process, is all there is to say.
JUDGE = rewards.RewardSum(
  (rewards.OnHost(types.SimpleNamespace(close=lambda: None)),),
  {"share": 1.0},
  "share",
)


def _count_tokens(batch, rollout):
  scored = tiny.count_token(batch.prompts, rollout)
  said = rewards.HostScores(scored.components, ~scored.valid)
  return jax.device_get(said), {}, {}


class OnHost:
  """Stands for a problem with host verifiers; keeps what they are given."""

  reward = JUDGE

  def __init__(self, events):
    self.events = events
    self.rollouts = []
    self.complaints = unscored.Complaints()

  def host_scores(self, batch, rollout, reward=None):
    self.events.append("verify")
    self.rollouts.append(rollout)
    return _count_tokens(batch, rollout)


@dataclasses.dataclass
class Trained:
  """Results of a few steps of the split driver."""

  events: list[str]
  rollouts: list
  states: list
  metrics: list[dict[str, float]]


def make_phase(staleness, learning_rate=0.1):
  phase = tiny.make_phase(
    fields={"importance_mode": "truncate"}, learning_rate=learning_rate
  )
  return dataclasses.replace(phase, reward=JUDGE, staleness=staleness)


@functools.cache
def train(staleness, learning_rate=0.1) -> Trained:
  phase, events = make_phase(staleness, learning_rate), []
  program = executors.jit.Program

  def spied(function, *places, **options):
    compiled = program(function, *places, **options)
    name = getattr(function, "func", function).__name__

    def call(*arguments):
      events.append(name.removesuffix("_stage"))
      return compiled(*arguments)

    return call

  on_host = OnHost(events)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(executors.jit, "Program", spied)
    advance = executors.make_driver(on_host, sharding.make_mesh(1), phase)
  state = tiny.make_state(phase)
  states, metrics = [], []
  for t in range(STEPS):
    state, outcome = advance(state, *BATCHES[t : t + 1 + staleness])
    metrics.append(outcome.metrics())
    states.append(jax.device_get(dataclasses.replace(state, key=None)))
  events = [name for name in events if name != "greedy"]
  return Trained(events, on_host.rollouts, states, metrics)


@functools.cache
def by_hand(staleness):
  """The states and rollouts of plain functions, one after another."""
  phase = make_phase(staleness)
  sample = jax.jit(functools.partial(step.sample_stage, phase=phase))
  learn = jax.jit(functools.partial(step.learn_stage, phase=phase))
  states, rollouts = [tiny.make_state(phase)], []
  for t, batch in enumerate(BATCHES):
    first = max(t - staleness, 0)
    rollout = sample(states[first], batch.prompts, t - first)
    scored = tiny.count_token(batch.prompts, rollout)
    groups = dynamic_sampling.Groups(batch.prompts, rollout, scored)
    state, *_ = learn(states[t], groups)
    states.append(state)
    rollouts.append(rollout)
  return phase, states, rollouts


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_what_is_ahead_is_dispatched_before_the_host_verifies(staleness):
  expected = ["sample"] * staleness
  for t in range(STEPS):
    expected += ["sample"] * (t + staleness < STEPS) + ["verify", "learn"]
  trained = train(staleness)
  assert trained.events == expected
  left = [len(state.queue) for state in trained.states]
  assert left == [min(staleness, STEPS - 1 - t) for t in range(STEPS)]


@pytest.mark.slow
@pytest.mark.parametrize(
  "staleness", [2, pytest.param(0, marks=pytest.mark.slow)]
)
def test_each_step_learns_from_the_parameters_of_so_many_updates_before(
  staleness,
):
  trained = train(staleness)
  _, states, rollouts = by_hand(staleness)
  for t in range(STEPS):
    np.testing.assert_array_equal(
      trained.rollouts[t].tokens, rollouts[t].tokens
    )
    chex.assert_trees_all_close(
      trained.states[t].params, states[t + 1].params, rtol=1e-6, atol=1e-6
    )


@pytest.mark.slow
def test_without_learning_a_rollout_ahead_is_the_one_in_its_step():
  phase, (state, *_), _ = by_hand(2)
  sample = jax.jit(functools.partial(step.sample_stage, phase=phase))
  for t, rollout in enumerate(train(2, 0.0).rollouts):
    there = dataclasses.replace(state, step=jnp.int32(t))
    now = sample(there, BATCHES[t].prompts)
    jax.tree.map(
      np.testing.assert_array_equal,
      rollout,
      dataclasses.replace(now, version=None),
    )
  # While something is learnt, it is another one.
  fresh, stale = train(0).rollouts[-1], train(2).rollouts[-1]
  assert (fresh.tokens != stale.tokens).any()


@pytest.mark.slow
def test_every_token_says_which_parameters_drew_it():
  trained = train(2)
  for t, state in enumerate(trained.states):
    for ahead, drawn in enumerate(state.queue, 1):
      mask = drawn.rollout.completion_mask
      assert not mask.all()
      first = max(t + ahead - 2, 0)
      np.testing.assert_array_equal(
        drawn.rollout.version, np.where(mask, first, 0)
      )
  for name in ("staleness/mean", "staleness/max"):
    assert [metrics[name] for metrics in trained.metrics] == [0, 1, 2, 2, 2]
    assert name not in train(0).metrics[0]


@pytest.mark.slow
def test_weights_correct_from_the_sampling_to_the_current_policy():
  phase, states, rollouts = by_hand(2)
  t = STEPS - 1
  rollout, prompts = rollouts[t], BATCHES[t].prompts
  h, _ = phase.policy.hidden(
    states[t].params["policy"],
    prompts.tokens,
    prompts.mask,
    rollout.tokens,
    rollout.completion_mask,
    rollout.prompt_index,
  )
  logp = jax.nn.log_softmax(phase.policy.head(states[t].params["policy"], h))
  logp = jnp.take_along_axis(logp, rollout.tokens[..., None], axis=-1)[..., 0]
  ratio = np.exp(logp - rollout.behavior_logp)[rollout.completion_mask]
  weights = np.minimum(ratio, phase.config.importance_max)
  metrics = train(2).metrics[t]
  assert metrics["policy_weight/mean"] == pytest.approx(weights.mean(), 1e-4)
  assert abs(weights - 1).max() > 0.2
  # The ratio of the surrogate is anchored at the current policy.
  assert metrics["ratio/max_deviation"] == 0
