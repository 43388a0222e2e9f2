"""Schedules by hand, what decays, and what is clipped apart from what."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax.models import transformer
from grpo_jax.training import config as config_lib
from grpo_jax.training import optimizers


def _config(**fields):
  return config_lib.OptimizerConfig(**fields)


@pytest.mark.parametrize(
  ("fields", "num_updates", "expected"),
  [
    ({}, 5, {0: 1.0, 4: 1.0, 99: 1.0}),
    # Warm-up: the first step already moves, the fourth is at the peak.
    (
      {"warmup_steps": 4},
      10,
      {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0, 9: 1.0},
    ),
    ({"warmup_steps": 1}, 10, {0: 1.0, 1: 1.0}),
    # Six steps from 1 to 0.1 after it: 0.15 a step.
    (
      {"schedule": "linear", "warmup_steps": 4, "final_fraction": 0.1},
      10,
      {3: 1.0, 4: 1.0, 5: 0.85, 9: 0.25, 10: 0.1, 99: 0.1},
    ),
    # Halfway down a cosine to 0.2: 0.2 + 0.8 / 2.
    (
      {"schedule": "cosine", "final_fraction": 0.2},
      8,
      {0: 1.0, 4: 0.6, 8: 0.2, 99: 0.2},
    ),
    # More warm-up than steps: it never comes to the decay.
    ({"schedule": "linear", "warmup_steps": 20}, 10, {9: 0.5, 10: 0.55}),
  ],
)
def test_schedule_by_hand(fields, num_updates, expected):
  for peak in (1.0, 3e-4):
    rate = optimizers.schedule(
      _config(learning_rate=peak, **fields), num_updates
    )
    for step, fraction in expected.items():
      np.testing.assert_allclose(rate(step), peak * fraction, rtol=1e-6)


def _transformer_params():
  policy = transformer.transformer_policy(
    transformer.TransformerConfig(
      vocab_size=5,
      width=8,
      num_layers=2,
      num_heads=2,
      num_kv_heads=1,
      mlp_width=8,
      qk_norm="head",
      qkv_bias=True,
      tied_embeddings=False,
    )
  )
  return jax.jit(policy.init)(jax.random.key(0))["trained"]


def test_only_matrices_decay():
  params = _transformer_params()
  # Ones, so that a leaf that is 0 at the start is seen to shrink.
  policy = jax.tree.map(jnp.ones_like, params)
  tree = {"policy": policy, "algorithm": {"scale": jnp.ones((2, 2))}}
  optimizer = optimizers.make_optimizer(
    _config(learning_rate=0.5, weight_decay=0.1), 10
  )
  still = jax.tree.map(jnp.zeros_like, tree)

  @jax.jit
  def step(tree):
    updates, _ = optimizer.update(still, optimizer.init(tree), tree)
    return optax.apply_updates(tree, updates)

  after = step(tree)
  decayed = {
    jax.tree_util.keystr(path, simple=True, separator="/")
    for path, leaf in jax.tree_util.tree_leaves_with_path(after["policy"])
    if not np.array_equal(leaf, np.ones_like(leaf))
  }
  assert decayed == {
    "head/kernel",
    "layers/attention/out/kernel",
    "layers/attention/qkv/kernel",
    "layers/mlp/down/kernel",
    "layers/mlp/gate/kernel",
    "layers/mlp/up/kernel",
  }
  # 1 − 0.5 · 0.1, once.
  np.testing.assert_allclose(after["policy"]["head"]["kernel"], 0.95)
  # What an algorithm trains is never pulled to 0.
  np.testing.assert_array_equal(after["algorithm"]["scale"], 1)


TREE = {
  "policy": {"a": jnp.zeros(2), "b": jnp.zeros(())},
  "algorithm": {"scale": jnp.zeros(())},
}


def _update(policy, algorithm, **fields):
  """Updates and Adam's first moments for one step with such gradients."""
  optimizer = optimizers.make_optimizer(_config(**fields), 10)
  gradients = {
    "policy": {"a": jnp.array(policy[:2]), "b": jnp.array(policy[2])},
    "algorithm": {"scale": jnp.array(algorithm)},
  }
  updates, state = optimizer.update(gradients, optimizer.init(TREE), TREE)
  adam = [
    leaf
    for leaf in jax.tree.leaves(
      state, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState)
    )
    if isinstance(leaf, optax.ScaleByAdamState)
  ]
  moments = [jax.tree.leaves(state.mu) for state in adam]
  by_size = {len(leaves): np.hstack(leaves) for leaves in moments}
  return updates, by_size[2], by_size[1]


def test_gradients_are_clipped_by_their_global_norm():
  # Norm √(36 + 64 + 576) = 26, cut to 2.6: a tenth. Moments hold 1 − b1.
  _, policy, _ = _update([6.0, 8.0, 24.0], 0.0, clip_norm=2.6, b1=0.5)
  np.testing.assert_allclose(policy, [0.3, 0.4, 1.2], rtol=1e-6)
  _, policy, _ = _update([6.0, 8.0, 24.0], 0.0, clip_norm=26.1, b1=0.5)
  np.testing.assert_allclose(policy, [3, 4, 12], rtol=1e-6)


def test_policy_and_algorithm_do_not_share_a_norm():
  calm, policy, algorithm = _update([0.3, 0.0, 0.4], 0.2, clip_norm=1.0, b1=0.5)
  np.testing.assert_allclose(policy, [0.15, 0, 0.2], rtol=1e-6)
  np.testing.assert_allclose(algorithm, [0.1], rtol=1e-6)
  wild, policy, algorithm = _update([0.3, 0.0, 0.4], 1e6, clip_norm=1.0, b1=0.5)
  jax.tree.map(np.testing.assert_array_equal, wild["policy"], calm["policy"])
  np.testing.assert_allclose(policy, [0.15, 0, 0.2], rtol=1e-6)
  np.testing.assert_allclose(algorithm, [0.5], rtol=1e-6)
  _, _, algorithm = _update([3e5, 0.0, 4e5], 0.2, clip_norm=1.0, b1=0.5)
  np.testing.assert_allclose(algorithm, [0.1], rtol=1e-6)


def test_first_step_is_the_learning_rate_downhill():
  """Adam's first step has the size of the rate, whatever the gradient's."""
  updates, _, _ = _update(
    [1e-3, -1e-2, 0.1], 0.5, learning_rate=0.25, clip_norm=9.0, eps=1e-12
  )
  np.testing.assert_allclose(
    jnp.hstack(jax.tree.leaves(updates)), [-0.25, -0.25, 0.25, -0.25], rtol=1e-4
  )
