"""What reward models say of completions, and how that compares with the truth.

A reward model is a critic that has read a token before it says something of it
(`models/critic.py`). Its score of a completion is its number after the last
token; a process reward model says of each step how likely it is to be right,
and its score is made of these.
"""

from __future__ import annotations

import dataclasses
import functools
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
from grpo_jax.types import Metrics, Prompts, Rollout, Scored, TrainBatch

# How scores of steps become one of the completion.


def values(
  plan: UpdatePlan, view: ModelView, prompts: Prompts, rollout: Rollout
) -> jax.Array:  # [B, T]
  """What a reward model says after each token of completions.

  Args:
    plan: How rows become micro-batches.
    view: How the reward model is run.
    prompts: P prompts.
    rollout: B completions of them, each in one row.
  """
  rows = jnp.zeros(rollout.tokens.shape[0])
  given = rows == 0
  if len(rows) != len(prompts.ids) * plan.group_size:
    # As greedy completions, one for each prompt.
    plan = dataclasses.replace(plan, group_size=1)
  batch = TrainBatch(
    prompt_tokens=prompts.tokens,
    prompt_mask=prompts.mask,
    prompt_index=rollout.prompt_index,
    group_id=rollout.group_id,
    tokens=rollout.tokens,
    completion_mask=rollout.completion_mask,
    mask=rollout.written,
    rewards=rows,
    valid=given,
    terminated=rollout.terminated,
    correct=given,
    num_groups=rollout.num_groups,
  )
  if prompts.images is not None:
    batch = dataclasses.replace(batch, images=prompts.images)
  return of_batch(plan, view, batch)


def of_batch(
  plan: UpdatePlan,
  view: ModelView,
  batch: TrainBatch,
  couples_group: bool = False,
) -> jax.Array:  # [B, T]
  """Scores the rows of a batch; no gradient enters."""
  with jax.named_scope("reward_model"):
    found = passes.fields(
      plan,
      view.trunk,
      batch,
      functools.partial(value_fields, view),
      couples_group,
    )
  return found["values"]


def at_last(said: jax.Array, mask: jax.Array) -> jax.Array:  # [B, T] -> [B]
  """The number at the last True entry of each row; 0 if there is none."""
  rows = jnp.ones_like(said[:, 0])
  is_last = returns.outcome_rewards(rows, mask) > 0
  return masked.sum(said, is_last, axis=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
  """What a process reward model scores.

  Attributes:
    ends: Of each token id, whether a step ends with it.
    of_steps: "min", "product" or "sum".
  """

  ends: np.ndarray  # [V] bool
  of_steps: str

  def found(self, rollout: Rollout) -> jax.Array:  # [B, T] bool
    """The written tokens with which steps end."""
    is_end = jnp.take(
      jnp.asarray(self.ends), rollout.tokens, mode="fill", fill_value=False
    )
    return is_end & rollout.written

  def score(self, right: jax.Array, ends: jax.Array) -> jax.Array:  # [B]
    """The score of completions of whose steps something is said.

    Args:
      right: [B, T] Probability that the step is right which ends here.
      ends: [B, T] Where steps end.

    Returns:
      The least probability, their product or their sum; 0 without steps, which
      is the least of each: who writes none has nothing to win.
    """
    if self.of_steps == "sum":
      return masked.sum(right, ends, axis=-1)
    one = jnp.where(ends, right, 1.0)
    total = one.min(axis=-1) if self.of_steps == "min" else one.prod(axis=-1)
    return masked.select(total, ends.any(axis=-1))


def proxy_metrics(
  rollout: Rollout, scored: Scored, proxy: str, truth: str, is_logit: bool
) -> Metrics:
  """How well the score of a model still agrees with what is true.

  Args:
    rollout: B completions, as many of each prompt.
    scored: What was said of them.
    proxy: Component of the model.
    truth: Component of the verifier.
    is_logit: Whether differences of scores are those of Bradley and Terry.

  Returns:
    `reward_model/accuracy`: of all pairs of completions of a prompt of which
    the verifier prefers one, the share in which the model does too, half of it
    for a tie; `reward_model/calibration_error` of them, if scores are logits;
    `reward_model/correlation` of both over the batch. NaN where there is no
    pair, or one of the two is constant.
  """
  order = jnp.argsort(rollout.group_id, stable=True)
  model, true = (scored.components[name][order] for name in (proxy, truth))
  known = scored.valid[order] & ~jnp.isnan(model) & ~jnp.isnan(true)
  related = metrics_lib.correlation(
    masked.select(model, known), masked.select(true, known), known
  )
  by_group = rollout.num_groups, -1

  def differences(x: jax.Array) -> jax.Array:  # [B] -> [groups, G, G]
    x = masked.select(x, known).reshape(by_group)
    return x[:, :, None] - x[:, None, :]

  both = known.reshape(by_group)
  pairs = both[:, :, None] & both[:, None, :] & (differences(true) > 0)
  found = preferences.of_ranking(differences(model), pairs)
  if not is_logit:
    del found["calibration_error"]
  said: dict[str, Any] = {k: values_lib.mean(x) for k, x in found.items()}
  said["correlation"] = jnp.where(related == 0, jnp.nan, related)
  return {
    f"reward_model/{name}": jnp.asarray(x, jnp.float32)
    for name, x in said.items()
  }
