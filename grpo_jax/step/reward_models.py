"""Scores of reward models, and their agreement with the verifier.

A reward model is a critic whose value at a token is computed after reading the
token (`models/policies/critic.py`). Its score of a completion is its value
after the last token. A process reward model gives the probability that each
step is right, and its score is computed from these probabilities.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.ops import masked, preferences, returns
from grpo_jax.ops import values as values_lib
from grpo_jax.step import metrics as metrics_lib
from grpo_jax.step import passes
from grpo_jax.step.micro_batches import UpdatePlan
from grpo_jax.step.models import ModelView, value_fields
from grpo_jax.types import (
  Metrics,
  PromptFields,
  Prompts,
  Rollout,
  Scored,
  TrainBatch,
)

# How scores of steps become one of the completion.


def values(
  plan: UpdatePlan, view: ModelView, prompts: Prompts, rollout: Rollout
) -> jax.Array:  # [B, T]
  """Values of a reward model after each token of completions.

  Args:
    prompts: P prompts.
    rollout: B completions of these prompts, each in one row.
  """
  rows = jnp.zeros(rollout.tokens.shape[0])
  always = rows == 0
  if len(rows) != len(prompts.ids) * plan.group_size:
    # Greedy completions: one for each prompt.
    plan = dataclasses.replace(plan, group_size=1)
  # Micro-batches of the update need not divide these rows.
  size = math.gcd(len(rows) // plan.num_shards, plan.shard_size)
  plan = dataclasses.replace(plan, micro_batch_size=size * plan.num_shards)
  batch = TrainBatch(
    prompts=PromptFields(prompts.tokens, prompts.mask, prompts.images),
    prompt_index=rollout.prompt_index,
    group_id=rollout.group_id,
    tokens=rollout.tokens,
    completion_mask=rollout.completion_mask,
    mask=rollout.written,
    rewards=rows,
    valid=always,
    terminated=rollout.terminated,
    correct=always,
    num_groups=rollout.num_groups,
  )
  return of_batch(plan, view, batch)


def of_batch(
  plan: UpdatePlan,
  view: ModelView,
  batch: TrainBatch,
  couples_group: bool = False,
) -> jax.Array:  # [B, T]
  """Values of a reward model at each token of a batch, without gradient."""
  with jax.named_scope("reward_model"):
    fields = passes.fields(
      plan,
      view.trunk,
      batch,
      functools.partial(value_fields, view),
      couples_group,
    )
  return fields["critic.values"]


def at_last(values: jax.Array, mask: jax.Array) -> jax.Array:  # [B, T] -> [B]
  """The value at the last True entry of each row; 0 without True entries."""
  rows = jnp.ones_like(values[:, 0])
  is_last = returns.outcome_rewards(rows, mask) > 0
  return masked.sum(values, is_last, axis=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
  """The steps that a process reward model scores, and their combination.

  Attributes:
    ends: Of each token id, whether a step ends with it.
    of_steps: "min", "product" or "sum".
  """

  ends: np.ndarray  # [V] bool
  of_steps: str

  def ends_of(self, rollout: Rollout) -> jax.Array:  # [B, T] bool
    """True on the policy's tokens that end a step."""
    is_end = jnp.take(
      jnp.asarray(self.ends), rollout.tokens, mode="fill", fill_value=False
    )
    return is_end & rollout.written

  def score(self, right: jax.Array, ends: jax.Array) -> jax.Array:  # [B]
    """The score of completions from the probabilities of their steps.

    Args:
      right: [B, T] Probability that the step which ends here is right.
      ends: [B, T] True where a step ends.

    Returns:
      The least probability, their product or their sum. A completion without
      steps scores 0, the minimum of all three, so leaving out steps does not
      pay.
    """
    if self.of_steps == "sum":
      return masked.sum(right, ends, axis=-1)
    parts = jnp.where(ends, right, 1.0)
    total = (
      parts.min(axis=-1) if self.of_steps == "min" else parts.prod(axis=-1)
    )
    return masked.select(total, ends.any(axis=-1))


def proxy_metrics(
  rollout: Rollout, scored: Scored, proxy: str, truth: str, is_logit: bool
) -> Metrics:
  """Agreement of a reward model's score with the verifier.

  Args:
    rollout: B completions, the same number for each prompt.
    is_logit: True if differences of scores are logits of Bradley and Terry.

  Returns:
    `reward_model/accuracy`: share of the pairs of completions of a prompt, of
    which the verifier prefers one, that the model orders in the same way; a tie
    counts half. `reward_model/calibration_error` of these pairs, if scores are
    logits. `reward_model/correlation` of both components over the batch. NaN if
    there are no pairs, or one of the two components is constant.
  """
  order = jnp.argsort(rollout.group_id, stable=True)
  model, true = (scored.components[name][order] for name in (proxy, truth))
  is_scored = scored.valid[order] & ~jnp.isnan(model) & ~jnp.isnan(true)
  related = metrics_lib.correlation(
    masked.select(model, is_scored), masked.select(true, is_scored), is_scored
  )
  by_group = rollout.num_groups, -1

  def differences(x: jax.Array) -> jax.Array:  # [B] -> [groups, G, G]
    x = masked.select(x, is_scored).reshape(by_group)
    return x[:, :, None] - x[:, None, :]

  valid = is_scored.reshape(by_group)
  pairs = valid[:, :, None] & valid[:, None, :] & (differences(true) > 0)
  ranking = preferences.of_ranking(differences(model), pairs)
  if not is_logit:
    del ranking["calibration_error"]
  values: dict[str, Any] = {k: values_lib.mean(x) for k, x in ranking.items()}
  values["correlation"] = jnp.where(related == 0, jnp.nan, related)
  return {
    f"reward_model/{name}": jnp.asarray(x, jnp.float32)
    for name, x in values.items()
  }
