"""The losses of the replication, made of those of `grpo_jax/ops`.

A rollout is an array [E, T] of E copies of the environment and T steps. With
whole episodes T is the time limit, and `mask` is True up to the end of each
copy's episode: only these steps count.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.critics import policies
from experiments.critics.settings import Setting
from grpo_jax.ops import (
  aggregation,
  masked,
  ratios,
  returns,
  surrogates,
  values,
)
from grpo_jax.types import PyTree

_CLIP = 0.2
_ENTROPY_COEF = 0.01
_VALUE_COEF = 0.5
_LAMBDA = 0.95
_EMA = 0.9
_STD_EPS = 1e-8
# Steps whose gradient is taken at a time. Live steps come first, so that a
# batch of short episodes costs what it holds, and not the time limit.
_CHUNK = 1024


class Rollout(NamedTuple):
  """Rollout of E copies over T slots; masked entries have no meaning."""

  observations: jax.Array  # [E, T, D]
  actions: jax.Array  # [E, T] int, or [E, T, A]
  final_observations: jax.Array  # [E, T, D], what each step led to
  rewards: jax.Array  # [E, T]
  scores: jax.Array  # [E, T], raw rewards of the episode up to each step
  terminated: jax.Array  # [E, T] bool
  truncated: jax.Array  # [E, T] bool
  mask: jax.Array  # [E, T] bool, the copy was live

  @property
  def ends(self) -> jax.Array:  # [E, T] bool
    return self.terminated | self.truncated


class Batch(NamedTuple):
  """Inputs of the loss, [E, T] each."""

  observations: jax.Array  # [E, T, D]
  actions: jax.Array  # [E, T] int, or [E, T, A]
  old_logp: jax.Array
  advantages: jax.Array
  old_values: jax.Array  # 0 without a critic
  returns: jax.Array  # targets of the critic
  mask: jax.Array  # bool


def mean_and_deviation(
  to_go: jax.Array,  # [E, T]
  rollout: Rollout,
  mean_of: str,
) -> tuple[jax.Array, jax.Array]:  # [], []
  """m and s of the table in `settings.py`."""
  mask = rollout.mask
  mean = masked.mean(to_go, mask)
  deviation = jnp.sqrt(masked.mean((to_go - mean) ** 2, mask))
  if mean_of == "episodes":
    # A row that does not close with an end has one more, unfinished part.
    last = jnp.maximum(mask.sum(axis=1) - 1, 0)  # [E]
    closed = jnp.take_along_axis(rollout.ends, last[:, None], axis=1).sum()
    num_parts = masked.sum(rollout.ends, mask) + mask.shape[0] - closed
    mean = masked.sum(rollout.rewards, mask) / num_parts
  return mean, deviation


def advantages(
  setting: Setting,
  rollout: Rollout,
  gamma: jax.Array | float,
  params: PyTree,
  ema: jax.Array,  # []
  iteration: jax.Array,  # [] int, from 0
  key: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Advantages, old values and targets of the critic [E, T], and the new EMA.

  Values and targets are zeros without a critic.
  """
  mask, ends = rollout.mask, rollout.ends
  if setting.has_critic:
    old_values = policies.value(params, rollout.observations)
    rewards, beyond = rollout.rewards, None
    if not setting.whole_episodes:
      following = policies.value(params, rollout.final_observations)
      rewards = rewards + gamma * masked.select(following, rollout.truncated)
      beyond = following[:, -1]
    found, targets = returns.generalized_advantages(
      rewards, old_values, mask, gamma, _LAMBDA, beyond, ends
    )
    return found, old_values, targets, ema
  to_go = returns.returns_to_go(rollout.rewards, mask, gamma, ends=ends)
  mean, deviation = mean_and_deviation(to_go, rollout, setting.mean_of)
  if setting.baseline == "ema":
    ema = _EMA * ema + (1 - _EMA) * mean
    mean = ema / (1 - _EMA ** (iteration + 1))
  baseline = 0.0 if setting.baseline == "none" else mean
  if setting.baseline == "rstats":
    baseline += deviation * jax.random.normal(key, to_go.shape)
  found = to_go - baseline
  if setting.baseline == "grpo":
    found = found / (deviation + _STD_EPS)
  nothing = jnp.zeros_like(to_go)
  return masked.select(found, mask), nothing, nothing, ema


def loss(setting: Setting, params: PyTree, batch: Batch) -> jax.Array:  # []
  """Clipped surrogate, entropy bonus and error of the critic, over live steps.

  The sum, to be divided by the number of live steps of the whole rollout.
  """
  mask = batch.mask
  # The *input* is masked: 0 · NaN in the backward pass would be NaN.
  observations, actions = (
    jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, 0)
    for x in (batch.observations, batch.actions)
  )
  logp, entropy = policies.evaluate(params, observations, actions)
  ratio = ratios.token_ratio(logp, batch.old_logp, mask)
  gain = surrogates.clipped(ratio, batch.advantages, _CLIP, _CLIP)
  total = -gain - _ENTROPY_COEF * entropy
  if setting.has_critic:
    total += _VALUE_COEF * values.value_loss(
      policies.value(params, observations),
      batch.returns,
      batch.old_values,
      mask,
      setting.value_clip,
    )
  return aggregation.over_tokens(total, mask).total


def packed(batch: Batch) -> Batch:  # [E, T, ...] -> [1, N, ...]
  """Live steps, then the other ones, N a multiple of the chunk."""
  mask = batch.mask.reshape(-1)
  padding = -len(mask) % _CHUNK
  places = jnp.pad(jnp.argsort(~mask, stable=True), (0, padding))  # [N]
  packed = jax.tree.map(
    lambda x: x.reshape(-1, *x.shape[2:])[places][None], batch
  )
  return packed._replace(mask=(jnp.arange(len(places)) < mask.sum())[None])


def gradient(setting: Setting, params: PyTree, batch: Batch) -> PyTree:
  """Gradient of the mean loss over live steps of a packed batch."""

  def add(i, total):
    part = jax.tree.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, i * _CHUNK, _CHUNK, axis=1),
      batch,
    )
    found = jax.grad(functools.partial(loss, setting))(params, part)
    return jax.tree.map(jnp.add, total, found)

  num_live = batch.mask.sum()
  total = jax.lax.fori_loop(
    0, -(-num_live // _CHUNK), add, jax.tree.map(jnp.zeros_like, params)
  )
  return jax.tree.map(lambda x: x / jnp.maximum(num_live, 1), total)
