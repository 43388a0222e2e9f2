"""Policies and critics: separate tanh MLPs of 64 and 64 units.

A policy over discrete actions gives logits; one over continuous actions gives
the means of independent Gaussians whose log-deviations are parameters of their
own, the same in every state (CleanRL's `ppo` and `ppo_continuous_action`).
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from experiments.critics import environments
from grpo_jax.ops import logprobs
from grpo_jax.types import PyTree

_WIDTH = 64
_LOG_2_PI = math.log(2 * math.pi)


def _init_mlp(
  key: jax.Array, num_inputs: int, num_outputs: int, scale: float
) -> list[dict[str, jax.Array]]:
  """Orthogonal weights, √2 in hidden layers and `scale` in the last one."""
  sizes = (num_inputs, _WIDTH, _WIDTH, num_outputs)
  scales = (math.sqrt(2), math.sqrt(2), scale)
  return [
    {
      "kernel": jax.nn.initializers.orthogonal(gain)(
        layer_key, (rows, columns)
      ),
      "bias": jnp.zeros(columns),
    }
    for layer_key, rows, columns, gain in zip(
      jax.random.split(key, 3), sizes[:-1], sizes[1:], scales, strict=True
    )
  ]


def _mlp(layers: PyTree, x: jax.Array) -> jax.Array:  # [..., D] -> [..., K]
  for layer in layers[:-1]:
    x = jnp.tanh(x @ layer["kernel"] + layer["bias"])
  return x @ layers[-1]["kernel"] + layers[-1]["bias"]


def init(
  key: jax.Array, environment: environments.Environment, has_critic: bool
) -> PyTree:
  """Parameters of a policy, and of a critic if it has one."""
  policy_key, critic_key = jax.random.split(key)
  sizes = environment.observation_size, environment.num_actions
  params = {"policy": _init_mlp(policy_key, *sizes, 0.01)}
  if environment.continuous:
    params["log_std"] = jnp.zeros(environment.num_actions)
  if has_critic:
    params["critic"] = _init_mlp(critic_key, sizes[0], 1, 1.0)
  return params


def value(params: PyTree, observations: jax.Array) -> jax.Array:
  """V of states [..., D] -> [...], in units of the discounted return."""
  return _mlp(params["critic"], observations)[..., 0]


def evaluate(
  params: PyTree,
  observations: jax.Array,  # [..., D]
  actions: jax.Array,  # [...] int, or [..., A]
) -> tuple[jax.Array, jax.Array]:  # [...], [...]
  """Log-probs of actions and entropies of the policy, nats."""
  outputs = _mlp(params["policy"], observations)
  if "log_std" not in params:
    return (
      logprobs.token_logprobs(outputs, actions),
      logprobs.entropy_from_logits(outputs),
    )
  log_std = params["log_std"]
  z = (actions - outputs) * jnp.exp(-log_std)
  logp = -(0.5 * (z**2 + _LOG_2_PI) + log_std).sum(axis=-1)
  entropy = (0.5 * (1 + _LOG_2_PI) + log_std).sum()
  return logp, jnp.broadcast_to(entropy, logp.shape)


def sample(
  params: PyTree,
  observations: jax.Array,  # [..., D]
  key: jax.Array,
) -> jax.Array:  # [...] int32, or [..., A]
  """Draws one action per state; continuous ones may exceed their bounds."""
  outputs = _mlp(params["policy"], observations)
  if "log_std" not in params:
    return jax.random.categorical(key, outputs)
  noise = jax.random.normal(key, outputs.shape)
  return outputs + jnp.exp(params["log_std"]) * noise
