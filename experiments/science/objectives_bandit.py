"""Ten arms with two rewards: one in {0, 1}, and one in {0, 10}.

Arm k pays 1 with probability p_k and, by an independent draw, 10 with
probability q_k. The more an arm pays of the one, the less of the other:

    p_k = 0.1 + 0.8 (1 − (1 − x_k)³)
    q_k = 0.1 + 0.8 (1 − x_k³),   x_k = k / 9

The arms in the middle pay well of both. If the two have equal weight, arms 4
and 5 are the best. The sum of both rewards is largest at arm 2, where the loud
one is nearly at its best.

The policy is a softmax of ten numbers. The library's advantages, losses and
denominators train it.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax import algorithms
from grpo_jax.algorithms import objective
from grpo_jax.rewards import derived
from grpo_jax.types import (
  Algorithm,
  PolicyOutputs,
  Prompts,
  Rollout,
  TrainBatch,
)

NUM_ARMS = 10
LOUDNESS = 10.0
NUM_GROUPS = 8
GROUP_SIZE = 8
NUM_STEPS = 500
LEARNING_RATE = 1.0  # Of plain gradient descent.
NUM_SEEDS = 20


def probabilities() -> np.ndarray:  # [arms, 2]
  """Probabilities with which each arm pays each reward."""
  x = np.arange(NUM_ARMS) / (NUM_ARMS - 1)
  return 0.1 + 0.8 * (1 - np.stack([(1 - x) ** 3, x**3], axis=-1))


def regrets(policy: jax.Array) -> jax.Array:  # [arms] -> [2]
  """Regret by each reward: the mean gain of its best arm over the policy.

  It is in units of the reward: 0 to 0.8 for the first one, 0 to 8 for the
  second.
  """
  means = probabilities() * np.array([1.0, LOUDNESS])  # [arms, 2]
  return means.max(axis=0) - policy @ means


def _of(name: str) -> tuple[Algorithm, Any]:
  """An algorithm with its defaults, but without the KL to a reference."""
  algorithm = algorithms.get_algorithm(name)
  return algorithm, algorithm.config_class(kl_coef=0.0)


def make_batch(name: str, logits: jax.Array, key: jax.Array) -> TrainBatch:
  """Draws and rewards of a step, with the advantages of an algorithm."""
  algorithm, config = _of(name)
  arm_key, reward_key = jax.random.split(key)
  num_rows = NUM_GROUPS * GROUP_SIZE
  arms = jax.random.categorical(arm_key, logits, shape=(num_rows,))
  pays = jax.random.bernoulli(
    reward_key, jnp.asarray(probabilities())[arms]
  )  # [B, 2]
  logp = jax.nn.log_softmax(logits)
  group = jnp.repeat(jnp.arange(NUM_GROUPS, dtype=jnp.int32), GROUP_SIZE)
  exists = jnp.ones((num_rows, 1), bool)
  drawn = logp[arms][:, None]  # [B, 1]
  rollout = Rollout(
    tokens=arms[:, None],
    completion_mask=exists,
    behavior_logp=drawn,
    sampler_logp=drawn,
    entropy=jnp.full((num_rows, 1), -(jnp.exp(logp) * logp).sum()),
    terminated=jnp.ones(num_rows, bool),
    prompt_index=group,
    group_id=group,
    num_groups=NUM_GROUPS,
  )
  scored = derived.combine(
    {"quiet": 1.0 * pays[:, 0], "loud": LOUDNESS * pays[:, 1]},
    {"quiet": 1.0, "loud": 1.0},
    failed=None,
    correct="quiet",
  )
  prompts = Prompts(
    tokens=jnp.zeros((NUM_GROUPS, 1), jnp.int32),
    mask=jnp.ones((NUM_GROUPS, 1), bool),
    ids=jnp.arange(NUM_GROUPS, dtype=jnp.int32),
    extras={},
  )
  _, state = objective.init(algorithm, config)
  batch = objective.make_train_batch(
    algorithm, config, prompts, rollout, scored, state
  )
  return objective.prepare(algorithm, config, batch)


def loss(name: str, logits: jax.Array, batch: TrainBatch) -> jax.Array:  # []
  """The loss of an algorithm, at the start of the update."""
  algorithm, config = _of(name)
  logp = jax.nn.log_softmax(logits)[batch.tokens]  # [B, 1]
  found = objective.loss(algorithm, config, PolicyOutputs(logp=logp), batch)
  weights = objective.term_weights(algorithm, config, batch)
  return sum(
    coefficient * term.total / weights[name]
    for name, (coefficient, term) in found.terms.items()
  )


@functools.partial(jax.jit, static_argnums=(0, 2))
def train(
  name: str, seed: jax.Array, num_steps: int = NUM_STEPS
) -> jax.Array:  # [steps + 1, 2]
  """Regrets of a policy, uniform at first, before and after each step.

  Each step is one of gradient descent on 64 new draws.
  """

  def step(logits, key):
    batch = make_batch(name, logits, key)
    slope = jax.grad(loss, argnums=1)(name, logits, batch)
    logits = logits - LEARNING_RATE * slope
    return logits, regrets(jax.nn.softmax(logits))

  logits = jnp.zeros(NUM_ARMS)
  keys = jax.random.split(jax.random.key(seed), num_steps)
  _, after = jax.lax.scan(step, logits, keys)
  return jnp.concatenate([regrets(jax.nn.softmax(logits))[None], after])
