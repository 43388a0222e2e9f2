"""A critic that is trained beside the policy, in the same program."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.models import architecture
from grpo_jax.models.policies import critic as critic_lib
from grpo_jax.ops import returns
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib
from grpo_jax.settings import rewards as rewards_lib
from grpo_jax.step import metrics, step, update
from grpo_jax.training.phases import build
from grpo_jax.types import Scored, set_fields
from tests.references import ppo as reference
from tests.training import tiny

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


def _changed(one, other):
  return {
    jax.tree_util.keystr(path, simple=True, separator="/")
    for path, same in jax.tree_util.tree_leaves_with_path(
      jax.tree.map(lambda x, y: bool((x == y).all()), one, other)
    )
    if not same
  }


def _loss(phase):
  """The loss of the critic: it is taken after the policy's."""
  loss = phase.losses[-1]
  assert isinstance(loss, update.CriticLoss)
  return loss


def _gradient(phase, state, batch):
  """Gradient of the critic's trained leaves, and the loss."""
  loss = _loss(phase)
  function = jax.jit(functools.partial(update.gradient, phase.update, loss))
  gradients, found = jax.device_get(function(state.params, batch))
  assert gradients.keys() == {loss.model}
  return gradients[loss.model], found[f"{loss.prefix}loss"]


# `step_test.py` tests the policy, whose rows are cut in the same way.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "trunk", "make_policy"),
  [
    ("ppo", "own", tiny.tiny_policy),
    ("bradley_terry", "own", tiny.tiny_policy),
    ("ppo", "own", tiny.tiny_transformer),  # Which shares its prompts.
    ("ppo", "shared", tiny.tiny_transformer),
  ],
)
def test_gradients_do_not_depend_on_micro_batches(name, trunk, make_policy):
  policy = make_policy()

  def phase_of(size, lengths=()):
    return tiny.make_phase(
      name,
      policy=policy,
      critic=critic_lib.make_critic(policy, trunk),
      micro_batch_size=size,
      lengths=lengths,
    )

  state, batch = tiny.off_policy(phase_of(16))
  state = _with_head(state, _loss(phase_of(16)).model)
  whole, loss = _gradient(phase_of(16), state, batch)
  assert max(np.abs(x).max() for x in jax.tree.leaves(whole)) > 1e-3
  for size, lengths in ((4 if name == "bradley_terry" else 1, ()), (4, (1, 2))):
    gradient, other = _gradient(phase_of(size, lengths), state, batch)
    chex.assert_trees_all_close(gradient, whole, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(other, loss, 1e-5)


def _with_head(state, name="critic"):
  """A critic whose values differ, and whose trunk has a gradient."""
  critic = state.params[name]
  kernel = critic["trained"]["value_head"]["kernel"]
  head = {
    "kernel": 0.3 * jax.random.normal(jax.random.key(5), kernel.shape),
    "bias": jnp.float32(0.1),
  }
  trained = {**critic["trained"], "value_head": head}
  return state.with_params(**{name: {**critic, "trained": trained}})


@pytest.mark.slow
def test_gradient_is_that_of_the_squared_error_to_the_reference_targets():
  phase = tiny.make_phase("ppo", fields={"value_clip": 0.0})
  state = _with_head(tiny.make_state(phase))
  raw = tiny.ragged_batch(phase)
  batch = tiny.prepared(phase, state, raw, 2)
  critic, policy = _loss(phase).critic, phase.policy

  def values(trained):
    params = {**state.params["critic"], "trained": trained}
    h, _ = policy.hidden(
      {"trained": trained["trunk"], "frozen": {}},
      raw.prompts.tokens,
      raw.prompts.mask,
      raw.tokens,
      raw.completion_mask,
      raw.prompt_index,
    )
    return critic.head(params, h)

  trained = state.params["critic"]["trained"]
  mask = np.asarray(raw.mask)
  old = np.where(mask, values(trained), 0.0)
  np.testing.assert_allclose(
    np.where(mask, batch.critic.values, 0), old, 1e-5, 1e-6
  )
  arrays = raw.rewards, raw.valid, raw.group_id
  given = {"mask": mask, "old_values": old}
  targets = reference.returns(*arrays, **given)
  np.testing.assert_allclose(
    np.where(mask, batch.advantages, 0.0),
    reference.advantages(*arrays, **given),
    atol=1e-4,
  )

  def loss(trained):
    error = jnp.where(mask, values(trained) - targets, 0.0)
    return 0.5 * jnp.square(error).sum() / mask.sum()

  expected = jax.jit(jax.value_and_grad(loss))(trained)
  found = _gradient(phase, state, batch)
  np.testing.assert_allclose(found[1], expected[0], 1e-4)
  chex.assert_trees_all_close(found[0], expected[1], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("trunk", "make_policy"),
  [("own", tiny.tiny_policy), ("shared", tiny.tiny_transformer)],
)
def test_the_final_value_is_that_of_one_more_token(trunk, make_policy):
  """Compares with whole rows, also for micro-batches with few slots."""
  policy = make_policy()
  phase = tiny.make_phase(
    "ppo",
    policy=policy,
    critic=critic_lib.make_critic(policy, trunk),
    fields={"bootstrap_cut": True},
    lengths=(1, 2),
  )
  state = _with_head(tiny.make_state(phase))
  raw = tiny.ragged_batch(phase)
  # The last token of rows of several is an observation.
  length = np.asarray(raw.completion_mask).sum(axis=1)
  observed = (np.arange(4) == length[:, None] - 1) & (length > 1)[:, None]
  raw = dataclasses.replace(raw, mask=raw.mask & ~observed)
  view = phase.models["critic"].view

  @jax.jit
  def both(state):
    prepared = step.prepare(state, raw, jax.random.key(2), phase=phase)
    seen = view(state.params)
    slot = ((0, 0), (0, 1))
    longer = dataclasses.replace(
      raw,
      tokens=jnp.pad(raw.tokens, slot),
      completion_mask=jnp.pad(raw.completion_mask, slot),
    )
    return prepared, seen.head(seen.trunk.hidden(longer, None)[0])

  batch, values = jax.device_get(both(state))
  mask = np.asarray(raw.mask)
  np.testing.assert_allclose(
    batch.critic.values[mask], values[:, :-1][mask], 1e-4, 1e-5
  )
  is_trained = mask.any(axis=1)
  final = values[np.arange(16), length]
  np.testing.assert_allclose(
    batch.critic.final_value[is_trained], final[is_trained], 1e-4, 1e-5
  )
  last = np.asarray(returns.outcome_rewards(jnp.ones(16), mask)) > 0
  beyond = np.where(raw.terminated, 0, final)
  np.testing.assert_allclose(
    batch.returns.sum(axis=1, where=last)[is_trained],
    (raw.rewards + beyond)[is_trained],
    1e-4,
    1e-5,
  )
  assert (is_trained & ~np.asarray(raw.terminated)).any()


@pytest.mark.slow
def test_the_policy_moves_as_if_there_were_no_value_loss():
  after = {}
  for updates in (0, 1):
    phase = tiny.make_phase("ppo", num_critic_updates=updates)
    state = _with_head(tiny.make_state(phase))
    after[updates], found, _ = tiny.fused(phase)(state, tiny.make_prompts())
    assert found["ratio/max_deviation"] == 0.0
    assert ("value/loss" in found) == bool(updates)
    moved = _changed(state.params, after[updates].params)
    assert any(name.startswith("policy/") for name in moved)
    assert any(name.startswith("critic/") for name in moved) == bool(updates)
  for part in ("policy", "algorithm"):
    chex.assert_trees_all_close(
      after[0].params[part], after[1].params[part], rtol=1e-6
    )


@pytest.mark.slow
def test_two_updates_are_one_after_another():
  phase = tiny.make_phase("ppo", num_critic_updates=2)
  state = _with_head(tiny.make_state(phase))
  batch = tiny.prepared(phase, state, tiny.ragged_batch(phase), 2)
  twice, found = tiny.updated(phase, state, batch, 3)

  opt_state, losses = state.models["critic"].opt_state, []
  for _ in range(2):
    gradient, loss = _gradient(phase, state, batch)
    critic = state.params["critic"]
    updates, opt_state = phase.models["critic"].optimizer.update(
      gradient, opt_state, critic["trained"]
    )
    trained = jax.tree.map(jnp.add, critic["trained"], updates)
    state = state.with_params(critic={**critic, "trained": trained})
    losses.append(loss)
  chex.assert_trees_all_close(
    twice.params["critic"], state.params["critic"], rtol=1e-4, atol=1e-6
  )
  np.testing.assert_allclose(found["value/loss"], np.mean(losses), 1e-5)
  assert losses[1] != losses[0]


@pytest.mark.slow
def test_frozen_attention_keeps_every_bit():
  policy = tiny.tiny_transformer()
  critic = critic_lib.make_critic(policy, freeze=("attention",))
  phase = tiny.make_phase("sao", policy=policy, critic=critic)
  state = _with_head(tiny.make_state(phase))
  after, _, _ = tiny.fused(phase)(state, tiny.make_prompts())
  moved = _changed(state.params["critic"], after.params["critic"])
  assert not any("attention/" in name for name in moved)
  assert any("mlp" in name for name in moved)
  moments = jax.tree_util.tree_leaves_with_path(
    state.models["critic"].opt_state
  )
  names = {jax.tree_util.keystr(path) for path, _ in moments}
  assert not any("'attention'" in name for name in names)


# --- phases ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "kind", "member", "metric"),
  [
    ("ppo", "value", "critic", "value/loss"),
    ("bradley_terry", "preference", "reward", "reward_model/loss"),
  ],
)
def test_pretraining_moves_the_critic_alone(name, kind, member, metric):
  phase = tiny.make_phase(name, phase={"kind": kind})
  state = tiny.make_state(phase)
  trained = {k for k, x in state.models.items() if x.opt_state is not None}
  assert trained == {member}
  advance, losses = tiny.fused(phase), []
  for i in range(20):
    after, found, _ = advance(state, tiny.make_prompts(first=4 * i))
    moved = _changed(state.params, after.params)
    assert moved
    assert all(x.startswith(f"{member}/") for x in moved)
    losses.append(found[metric])
    state = after
  # A single pair that is ranked wrong may cost more than all others.
  assert np.median(losses[-5:]) < np.median(losses[:5])
  assert int(state.step) == 20


@pytest.mark.slow
def test_the_critic_and_its_moments_enter_the_next_phase():
  state, used = _pretrained()
  for reset in (True, False):
    phase = tiny.make_phase("ppo", phase={"reset_optimizer": reset})
    entered = step.enter_phase(state, phase, 1)
    assert entered.models["policy"].opt_state is not None
    chex.assert_trees_all_equal(
      entered.params["critic"], state.params["critic"]
    )
    norms = [
      float(sum(jnp.abs(x).sum() for x in jax.tree.leaves(tree)))
      for tree in (entered.models["critic"].opt_state, used)
    ]
    # All but the count of the schedule, or nothing.
    assert (norms[0] == 0) if reset else (norms[0] == norms[1] - 1)
  left = step.enter_phase(state, tiny.make_phase("grpo"), 2)
  assert "critic" not in left.models


def _pretrained():
  """A state after a phase that trains the critic alone, and its moments."""
  phase = tiny.make_phase("ppo", phase={"kind": "value"})
  state = _with_head(tiny.make_state(phase))
  critic = state.models["critic"]
  used = jax.tree.map(lambda x: x + 1, critic.opt_state)
  critic = dataclasses.replace(critic, opt_state=used)
  return state.with_models(critic=critic), used


@pytest.mark.slow
def test_a_phase_between_keeps_the_critic_and_its_moments():
  state, _ = _pretrained()
  between = dataclasses.replace(
    tiny.make_phase("grpo"), keeps=frozenset({"critic"})
  )
  assert "critic" not in between.models
  entered = step.enter_phase(state, between, 1)
  chex.assert_trees_all_equal(entered.models["critic"], state.models["critic"])
  after, _, _ = tiny.fused(between)(entered, tiny.make_prompts())
  chex.assert_trees_all_equal(after.models["critic"], state.models["critic"])
  assert _changed(entered.params["policy"], after.params["policy"])


def test_a_reward_model_beside_a_critic_says_no_values():
  phase = tiny.make_phase("ppo")
  functions = ("accuracy", "reward_model")
  rewards = rewards_lib.RewardsConfig(
    functions=functions, weights=(1.0, 1.0), correct="accuracy"
  )
  made = build.Models(
    config_lib.RunConfig(rewards=rewards),
    *(phase_lib.RlConfig(steps=1), phase.policy),
    *(phase.algorithm, phase.config, phase.plan),
  )
  phase = dataclasses.replace(phase, models=made.models())
  scores = _with_head(
    tiny.make_state(tiny.make_phase("bradley_terry")), "reward"
  )
  state = step.enter_phase(scores, phase, 1)
  batch = tiny.prepared(phase, state, tiny.ragged_batch(phase), 2)
  assert not batch.critic.values.any()  # The head of the critic starts at 0.


# --- metrics -----------------------------------------------------------------


def test_metrics_by_hand():
  phase = tiny.make_phase("ppo")
  batch = set_fields(
    tiny.ragged_batch(phase),
    {
      "mask": jnp.array([[1, 1], [0, 1], [1, 0], [0, 0]], bool),
      "critic.values": jnp.array(
        [[0.2, 0.4], [9.0, 0.6], [0.4, 9.0], [9.0, 9.0]]
      ),
      "returns": jnp.array([[1.0, 1.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]]),
      "rewards": jnp.array([1.0, 0.0, 0.0, 5.0]),
    },
  )
  expected = {
    "value/mean": 0.4,
    "value/first": 0.4,
    "value/first_error": 0.4 - 1 / 3,
    # Of (0.2, 0.6, 0.4) and (1, 0, 0).
    "value/first_correlation": -0.2 / np.sqrt(0.08 * 2 / 3),
    # Bins of 0.04: 0.2 | 0.4, 0.4 | 0.6 with returns 1 | 1, 0 | 0.
    "value/calibration_error": (0.8 + abs(0.8 - 1) + 0.6) / 4,
    # Var R = 1/4; R − V is 0.8, 0.6, −0.6, −0.4, with variance 0.37.
    "value/explained_variance": 1 - 0.37 / 0.25,
  }
  found = jax.jit(metrics.critic_metrics)(batch)
  chex.assert_trees_all_close(found, expected, rtol=1e-5)


def test_the_first_value_is_that_of_the_first_context():
  phase = tiny.make_phase("ppo")
  batch = set_fields(
    tiny.ragged_batch(phase),
    {
      "mask": jnp.ones((4, 1), bool),
      "critic.values": jnp.array([[0.2], [9.0], [0.6], [9.0]]),
      "returns": jnp.array([[1.0], [0.0], [0.0], [0.0]]),
      "rewards": jnp.array([1.0, 7.0, 0.0, -7.0]),
      # Two rollouts of two contexts each; the second begin with a summary.
      "traces.order": jnp.array([0, 1, 0, 1]),
    },
  )
  found = jax.jit(metrics.critic_metrics)(batch)
  expected = {
    "value/mean": 18.8 / 4,  # Of all tokens.
    "value/first": 0.4,
    "value/first_error": 0.4 - 0.5,
    "value/first_correlation": -1.0,
  }
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, 1e-5, err_msg=name)


def test_metrics_of_nothing_are_absent():
  phase = tiny.make_phase("ppo")
  batch = tiny.ragged_batch(phase)
  nothing = jnp.full(batch.mask.shape, jnp.nan)
  batch = set_fields(
    batch,
    {"mask": batch.mask & False, "critic.values": nothing, "returns": nothing},
  )
  for name, value in jax.jit(metrics.critic_metrics)(batch).items():
    assert np.isnan(value), name


# --- learning ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("trunk", architecture.CRITIC_TRUNKS)
def test_a_critic_explains_a_reward_that_the_prompt_decides(trunk):
  """Explained variance → 1 where nothing is left to chance."""

  def first_token(prompts, rollout):
    reward = (prompts.tokens[:, -1] % 2).astype(jnp.float32)
    reward = reward[rollout.prompt_index]
    return Scored(
      rewards=reward,
      valid=jnp.ones(reward.shape, bool),
      correct=reward > 0,
      components={"first": reward},
      weights={"first": jnp.float32(1.0)},
    )

  policy = tiny.tiny_transformer(width=32, mlp_width=64)
  phase = tiny.make_phase(
    "vc_ppo",
    policy=policy,
    critic=critic_lib.make_critic(policy, trunk),
    score=first_token,
    group_size=1,
    max_new_tokens=2,
    learning_rate=0.003,
    steps=800,
    micro_batch_size=32,
    phase={"kind": "value"},
  )
  state, advance = tiny.make_state(phase), tiny.fused(phase)
  history = []
  for i in range(800):
    prompts = tiny.make_prompts(num_prompts=32, first=32 * i)
    state, found, _ = advance(state, prompts)
    history.append(
      (found["value/explained_variance"], found["value/first_correlation"])
    )
  explained, correlation = np.mean(history[-10:], axis=0)
  # A shared trunk is random here, and the head alone is fitted.
  assert explained > (0.9 if trunk == "own" else 0.3)
  assert correlation > (0.95 if trunk == "own" else 0.5)
  assert abs(history[0][0]) < 0.2
