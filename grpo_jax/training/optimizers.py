"""Optimizer chains from their config."""

from __future__ import annotations

from collections.abc import Callable

import jax
import optax

from grpo_jax.training import config as config_lib
from grpo_jax.types import PyTree


def schedule(
  config: config_lib.OptimizerConfig, num_updates: int
) -> Callable[[jax.Array], jax.Array]:
  """Learning rate by gradient step, over `num_updates` steps in all."""
  peak, end = config.learning_rate, config.learning_rate * config.final_fraction
  decay_steps = max(num_updates - config.warmup_steps, 1)
  if config.schedule == "constant":
    decay = optax.constant_schedule(peak)
  elif config.schedule == "linear":
    decay = optax.linear_schedule(peak, end, decay_steps)
  else:
    decay = optax.cosine_decay_schedule(
      peak, decay_steps, alpha=config.final_fraction
    )
  if not config.warmup_steps:
    return decay
  # Step 0 already moves: (n + 1) / warmup.
  warmup = optax.linear_schedule(
    peak / config.warmup_steps, peak, max(config.warmup_steps - 1, 1)
  )
  return optax.join_schedules([warmup, decay], [config.warmup_steps])


def decay_mask(params: PyTree) -> PyTree:
  """True for matrices: weight decay skips embeddings, norms and biases."""

  def is_matrix(path, leaf):
    name = jax.tree_util.keystr(path)
    skipped = any(word in name for word in ("embed", "scale", "bias", "norm"))
    return leaf.ndim >= 2 and not skipped

  return jax.tree_util.tree_map_with_path(is_matrix, params)


def make_optimizer(
  config: config_lib.OptimizerConfig, num_updates: int
) -> optax.GradientTransformation:
  """AdamW with clipping for the policy, Adam for the algorithm's own scalars.

  The tree is `step.trained_params`: {"policy": …, "algorithm": …}; each has
  its own clipping and its own optimizer state.
  """
  rate = schedule(config, num_updates)
  adam = {"b1": config.b1, "b2": config.b2, "eps": config.eps}
  return optax.multi_transform(
    {
      "policy": optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
          rate, **adam, weight_decay=config.weight_decay, mask=decay_mask
        ),
      ),
      "algorithm": optax.chain(
        optax.clip_by_global_norm(config.clip_norm), optax.adam(rate, **adam)
      ),
    },
    {"policy": "policy", "algorithm": "algorithm"},
  )
