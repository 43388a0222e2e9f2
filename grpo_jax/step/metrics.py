"""Metrics of a step, as array functions inside the step.

They cover a scored rollout as a whole and for each domain of prompts, the
critic, routers, staleness, and corrections of wrong completions.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.ops import baselines, divergences, masked, returns, shaping
from grpo_jax.ops import values as values_lib
from grpo_jax.rollout import hints, mixing
from grpo_jax.types import (
  Maximum,
  Metrics,
  Prompts,
  Rollout,
  Scored,
  TrainBatch,
)


def rollout_metrics(
  rollout: Rollout, scored: Scored, batch: TrainBatch
) -> Metrics:
  """Metrics of the rollouts and their scores.

  They cover the batch that the step trains on. If dynamic sampling has chosen
  the batch in several rounds, `dynamic_sampling.metrics` covers all rollouts.

  Returns:
    Scalars, float32. Rewards, and each component over the rows to which it
    applies, with its correlation with the reward in the direction of its
    weight. `accuracy`. Lengths in tokens of the policy, also of right and wrong
    answers. Entropy in nats per token. Shares of truncated rows and of dead
    groups (all right, all wrong). Distinct completions per group, or contexts
    per rollout if contexts are compacted. The composition of mixed inputs.
    Counts of tokens and of unscored rows. A mean without rows (the length of
    wrong answers if all are right, the reward if no row was scored) is NaN.
  """
  if_whole = functools.partial(_if_whole, rollout)
  rows = rollout.is_last  # One row of each rollout.
  valid = scored.valid & rows
  correct = scored.correct & valid
  incorrect = ~scored.correct & valid
  mask = rollout.written  # [B, T]
  lengths = mask.sum(axis=-1).astype(jnp.float32)  # [B], tokens
  if rollout.traces is not None:  # Lengths of whole rollouts.
    lengths = returns.over_traces(lengths, rollout.traces.id)
  mean = _mean_if_any(scored.rewards, valid)
  variance = _mean_if_any(jnp.square(scored.rewards - mean), valid)
  statistics = baselines.group_statistics(
    correct.astype(jnp.float32), valid, rollout.group_id, rollout.num_groups
  )
  live = baselines.live_groups(
    scored.rewards, valid, rollout.group_id, rollout.num_groups
  )
  scored_groups = statistics.num_valid > 0
  dead = scored_groups & ~live
  _, too_large = shaping.total_reward(scored.components, scored.weights)
  metrics = {
    "reward/mean": mean,
    "reward/std": jnp.sqrt(variance),
    "accuracy": _mean_if_any(correct, valid),
    "unscored": (rows & ~scored.valid).sum(),
    "unscored/too_large": (rows & too_large).sum(),
    "dead_groups/all_right": _mean_if_any(
      dead & (statistics.least == 1), scored_groups
    ),
    "dead_groups/all_wrong": _mean_if_any(
      dead & (statistics.greatest == 0), scored_groups
    ),
    "dead_groups": _mean_if_any(dead, scored_groups),
    "length/mean": if_whole(masked.mean(lengths, rows)),
    "length/min": if_whole(-masked.maximum(-lengths, rows)),
    "length/max": if_whole(masked.maximum(lengths, rows)),
    "length/terminated": _mean_if_any(lengths, rollout.terminated & rows),
    "length/correct": _mean_if_any(lengths, correct),
    "length/incorrect": _mean_if_any(lengths, incorrect),
    "truncated": if_whole(1 - masked.mean(rollout.terminated, rows)),
    "entropy/mean": if_whole(masked.mean(rollout.entropy, mask)),
    "entropy/correct": _mean_if_any(rollout.entropy, mask & correct[:, None]),
    "entropy/incorrect": _mean_if_any(
      rollout.entropy, mask & incorrect[:, None]
    ),
    "completions/generated": rows.sum(),
    "tokens/generated": rollout.num_drawn.sum(),
    "tokens/trained": batch.mask.sum(),
  }
  if rollout.traces is None:
    metrics["distinct_completions"] = if_whole(_distinct(rollout))
  else:
    metrics["contexts/mean"] = mask.any(axis=-1).sum() / rows.sum()
  assert batch.advantages is not None
  is_trained = batch.mask.any(axis=-1)
  advantages = batch.advantages
  if advantages.ndim == 2:
    advantages = masked.mean(advantages, batch.mask, axis=-1)
  center = masked.mean(advantages, is_trained)
  metrics["advantages/std"] = jnp.sqrt(
    _mean_if_any(jnp.square(advantages - center), is_trained)
  )
  metrics |= _component_metrics(rollout, scored, valid)
  if rollout.mix_ids is not None:
    assert rollout.mix_weights is not None
    mixed = mask & mixing.is_mixed(rollout.tokens, rollout.mix_ids)
    metrics["mix/share"] = masked.mean(mixed, mask)
    metrics["mix/anchor"] = _mean_if_any(rollout.mix_weights[..., 0], mixed)
    metrics["mix/other"] = _mean_if_any(
      rollout.mix_ids[..., 0] != rollout.tokens, mixed
    )
  if scored.step_rewards is not None:
    assert scored.step_mask is not None
    ends = scored.step_mask & rows[:, None]
    metrics["reasoning_steps/per_completion"] = ends.sum() / rows.sum()
    metrics["reasoning_steps/score"] = _mean_if_any(scored.step_rewards, ends)
  return {name: x.astype(jnp.float32) for name, x in metrics.items()}


def _component_metrics(
  rollout: Rollout, scored: Scored, valid: jax.Array
) -> Metrics:
  """Metrics of each reward function over the rows to which it applies."""
  metrics = {}
  for name, values in scored.components.items():
    applies = valid & ~jnp.isnan(values)
    metrics[f"reward/{name}"] = _mean_if_any(values, applies)
    metrics[f"applicable/{name}"] = _if_whole(
      rollout, masked.mean(applies, rollout.is_last)
    )
    spread = masked.maximum(values, applies) + masked.maximum(-values, applies)
    metrics[f"reward_range/{name}"] = jnp.where(applies.any(), spread, jnp.nan)
    sign = jnp.where(scored.weights[name] < 0, -1.0, 1.0)
    related = correlation(sign * values, scored.rewards, applies)
    # 0 is also the correlation of constants, which has no information.
    metrics[f"reward_correlation/{name}"] = jnp.where(
      related == 0, jnp.nan, related
    )
  return metrics


def quadrants(rollout: Rollout, scored: Scored, consistent: str) -> Metrics:
  """Shares of completions by consistent reasoning and right answer.

  Args:
    consistent: The component that is at least 1/2 if the answer follows from
      the reasoning.

  Returns:
    Shares of the scored rows to which the component applies:
    `quadrants/consistent_right`, `/inconsistent_right`, `/consistent_wrong` and
    `/inconsistent_wrong`, which add up to 1, and `quadrants/inconsistent`, the
    sum of the two inconsistent shares. NaN without such rows.

  Source: CORA, arXiv:2606.14691 (CC, IC, CW, IW and the inconsistency rate).
  """
  values = scored.components[consistent]
  mask = scored.valid & rollout.is_last & ~jnp.isnan(values)
  follows = values >= 0.5
  shares = {
    f"{sign}consistent_{kind}": _mean_if_any(is_so & is_right, mask)
    for sign, is_so in (("", follows), ("in", ~follows))
    for kind, is_right in (
      ("right", scored.correct),
      ("wrong", ~scored.correct),
    )
  }
  shares["inconsistent"] = _mean_if_any(~follows, mask)
  return {f"quadrants/{k}": x.astype(jnp.float32) for k, x in shares.items()}


def critic_metrics(batch: TrainBatch) -> Metrics:
  """Metrics of the critic's values before the update, against its targets.

  Returns:
    Over trained tokens: `value/explained_variance` of the targets,
    `value/calibration_error` in the units of the targets, and `value/mean`.
    Over the first tokens of rollouts, whose values are those of the prompts:
    the mean `value/first` (compare `accuracy`), the mean error
    `value/first_error`, and the correlation with the rewards of rollouts,
    `value/first_correlation`. NaN if no token is trained.
  """
  mask = batch.mask  # [B, T]
  rows = mask.any(axis=-1)  # [B]
  if batch.traces.order is not None:
    rows &= batch.traces.order == 0
  first = jnp.argmax(mask, axis=-1)[:, None]

  def at_first(x):
    return jnp.take_along_axis(x, first, axis=1)[:, 0]

  expected, target = at_first(batch.critic.values), at_first(batch.returns)
  metrics = {
    "value/explained_variance": values_lib.explained_variance(
      batch.critic.values, batch.returns, mask
    ),
    "value/calibration_error": values_lib.calibration_error(
      batch.critic.values, batch.returns, mask
    ),
    "value/mean": masked.mean(batch.critic.values, mask),
    "value/first": masked.mean(expected, rows),
    "value/first_error": masked.mean(expected - target, rows),
    "value/first_correlation": correlation(expected, batch.rewards, rows),
  }
  return {
    name: jnp.where(mask.any(), x, jnp.nan).astype(jnp.float32)
    for name, x in metrics.items()
  }


def correlation(x: jax.Array, y: jax.Array, mask: jax.Array) -> jax.Array:
  """Pearson correlation over True entries; 0 if x or y is constant."""
  differ = jnp.bool(True)
  for z in (x, y):
    differ &= masked.maximum(z, mask) > -masked.maximum(-z, mask)

  def centered(z):  # At most 1: squares of squares of 1e10 would overflow.
    z = masked.select(z - masked.mean(z, mask), mask)
    return z / jnp.where(differ, jnp.abs(z).max(), 1)

  x, y = centered(x), centered(y)
  scale = jnp.sqrt(jnp.square(x).sum() * jnp.square(y).sum())
  return jnp.where(differ, (x * y).sum() / jnp.where(differ, scale, 1), 0)


def staleness_metrics(rollout: Rollout, step: jax.Array) -> Metrics:
  """The age of a rollout's tokens: updates between their draw and `step` [].

  Returns:
    `staleness/mean` and `staleness/max` over the policy's tokens, in updates.
  """
  assert rollout.version is not None
  mask = rollout.written  # [B, T]
  age = (step - rollout.version).astype(jnp.float32)
  return {
    "staleness/mean": _if_whole(rollout, masked.mean(age, mask)),
    "staleness/max": _if_whole(rollout, masked.maximum(age, mask)),
  }


class Mean(NamedTuple):
  """A mean over trained tokens of a gradient step, or over some of them.

  Attributes:
    known: False for a mean over nothing, as over pairs where there are none.
  """

  value: jax.Array  # []
  known: jax.Array | bool = True  # [] bool


# Metrics of gradient steps. A plain scalar is not about tokens, as a loss.
StepMetrics = dict[str, jax.Array | Mean | Maximum]


def of_steps(
  history: StepMetrics,
  trained: jax.Array | None = None,  # [steps] bool
) -> StepMetrics:
  """Reduces metrics of several gradient steps [steps], the first axis.

  Args:
    trained: False for steps whose minibatch has no trained token, as when all
      of its groups are dead: a mean over its tokens is not known. None: all
      steps are on the same rows.

  Returns:
    The largest of each `Maximum`, the mean of each `Mean` over the steps with
    tokens in which it is known (0 if there are none), and the mean over all
    steps of all else.
  """

  def reduced(x):
    if isinstance(x, Maximum):
      return Maximum(x.value.max())
    if isinstance(x, Mean):
      known = jnp.broadcast_to(x.known, x.value.shape)
      known = known if trained is None else known & trained
      return Mean(masked.mean(x.value, known), known.any())
    return jax.tree.map(jnp.mean, x)

  return {name: reduced(x) for name, x in history.items()}


def router_metrics(load: jax.Array) -> StepMetrics:
  """Unevenness of the experts' shares of tokens [layers, E].

  Returns:
    `router/max_load`, the largest share relative to an even share (1 to E),
    and `router/dead`, the fraction of experts without tokens.
  """
  return {
    "router/max_load": Maximum(load.max() * load.shape[-1]),
    "router/dead": Mean((load == 0).mean()),
  }


def of_trained(
  metrics: StepMetrics,
  mask: jax.Array,  # [B, T]
) -> Metrics:
  """Sets metrics over tokens to NaN if the update had no such tokens.

  Losses, norms and rates stay: without a trained token the loss and the
  gradient are 0, and a loss that is not finite must stay visible.
  """
  return {
    name: jnp.where(mask.any() & getattr(x, "known", True), x.value, jnp.nan)
    if isinstance(x, Mean | Maximum)
    else x
    for name, x in metrics.items()
  }


def _mean_if_any(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Mean over True entries; NaN and not 0 if there are none."""
  return jnp.where(mask.any(), masked.mean(x, mask), jnp.nan)


def _if_whole(rollout: Rollout, x: jax.Array) -> jax.Array:
  """NaN in a step of partial rollouts in which no group has ended, else x."""
  if rollout.whole is None:
    return x
  return jnp.where(rollout.whole.any(), x, jnp.nan)


def _distinct(rollout: Rollout) -> jax.Array:
  """Mean number of different completions per group, by a 32-bit hash."""
  tokens = jnp.where(rollout.completion_mask, rollout.tokens, -1)
  digest = jnp.zeros(tokens.shape[0], jnp.uint32)
  digest, _ = jax.lax.scan(
    lambda h, column: (h * 16777619 ^ column.astype(jnp.uint32), None),
    digest + jnp.uint32(2166136261),
    tokens.T,
  )
  order = jnp.lexsort((digest, rollout.group_id))
  group, digest = rollout.group_id[order], digest[order]
  is_new = (group[1:] != group[:-1]) | (digest[1:] != digest[:-1])
  first = group[1:] != group[:-1]
  if rollout.whole is not None:  # A group is whole or not as a whole.
    is_whole = rollout.whole[order]
    num = jnp.maximum(is_whole[0] + (first & is_whole[1:]).sum(), 1)
    return (is_whole[0] + (is_new & is_whole[1:]).sum()) / num
  groups = 1 + first.sum()
  return (1 + is_new.sum()) / groups


def domain_metrics(
  names: Sequence[str],
  prompts: Prompts,
  rollout: Rollout,
  scored: Scored,
  batch: TrainBatch,
) -> Metrics:
  """Metrics of the rollouts and their scores for each domain of prompts.

  Args:
    names: Names of the domains, by number.
    prompts: P prompts; their extras have the number "domain" [P].

  Returns:
    Scalars, float32, under `domain/NAME/`: the `share` of the rollouts,
    `accuracy`, `reward`, `length` (also of right and wrong answers) in tokens,
    `truncated`, `entropy` in nats per token, `dead_groups`, `unscored` and
    `tokens`. With a reference, `kl`: k3 from the policy that has drawn the
    tokens, in nats per trained token (the reference runs only over these).
    NaN if there is nothing to average.
  """
  rows = rollout.is_last  # [B]
  mask = rollout.written  # [B, T]
  lengths = mask.sum(axis=-1).astype(jnp.float32)
  if rollout.traces is not None:
    lengths = returns.over_traces(lengths, rollout.traces.id)
  valid = scored.valid & rows
  live = baselines.live_groups(
    scored.rewards, valid, rollout.group_id, rollout.num_groups
  )
  groups = jax.ops.segment_max(
    valid.astype(jnp.int32), rollout.group_id, rollout.num_groups
  )
  is_right = scored.correct & valid
  of_row = prompts.extras["domain"][rollout.prompt_index]  # [B]
  # All rows of a group have the same prompt.
  of_group = jax.ops.segment_max(of_row, rollout.group_id, rollout.num_groups)
  kl = None
  if batch.reference.logp is not None:
    logp = rollout.sampler_logp
    if (
      batch.sampler.kept_ids is not None
    ):  # Then the reference is filtered, too.
      logp = rollout.behavior_logp
    kl = divergences.kl(logp, batch.reference.logp, batch.mask, "k3")  # [B, T]
  metrics: Metrics = {}
  for number, name in enumerate(names):
    own = of_row == number  # [B]
    tokens = mask & own[:, None]
    scores = valid & own
    has = groups.astype(bool) & (of_group == number)
    values = {
      "share": (rows & own).sum() / rows.sum(),
      "accuracy": _mean_if_any(is_right, scores),
      "reward": _mean_if_any(scored.rewards, scores),
      "length": _mean_if_any(lengths, rows & own),
      "length_correct": _mean_if_any(lengths, is_right & own),
      "length_incorrect": _mean_if_any(lengths, scores & ~is_right),
      "truncated": _mean_if_any(~rollout.terminated, rows & own),
      "entropy": _mean_if_any(rollout.entropy, tokens),
      "dead_groups": _mean_if_any(~live, has),
      "unscored": (rows & own & ~scored.valid).sum(),
      "tokens": tokens.sum(),
    }
    if kl is not None:
      values["kl"] = _mean_if_any(kl, batch.mask & own[:, None])
    metrics |= {
      f"domain/{name}/{key}": value.astype(jnp.float32)
      for key, value in values.items()
    }
  return metrics


def hint_metrics(rollout: Rollout, scored: Scored) -> Metrics:
  """Metrics of drafts and of their corrections.

  Returns:
    Scalars, float32, under `correction/`. Of all completions: the `share` that
    was corrected, and the number `unfit` without room for a correction. Of the
    corrected completions: the share that is `right` now, and `right_after_cue`
    of those that the policy continued after a cue. Before the correction:
    `draft_accuracy` and `draft_dead_groups`, as `accuracy` and `dead_groups`.
    The share `made_live` of groups that were dead and are not. The tokens
    `injected` and, after cues, `generated`. NaN if there is nothing to average.
  """
  corrections = rollout.corrections
  assert corrections is not None
  is_corrected = corrections.kind != hints.NONE
  scored_now = scored.valid & is_corrected
  by_cue = scored_now & (corrections.kind == hints.BY_CUE)

  def of_groups(rewards, valid):  # (is live, is scored) of each group.
    live = baselines.live_groups(
      rewards, valid, rollout.group_id, rollout.num_groups
    )
    counts = jnp.zeros(rollout.num_groups, jnp.int32)
    return live, counts.at[rollout.group_id].add(valid) > 0

  was_live, was_scored = of_groups(corrections.rewards, corrections.valid)
  is_live, _ = of_groups(scored.rewards, scored.valid)
  after = jnp.cumsum(corrections.injected, axis=1) > 0
  drawn_after = after & rollout.completion_mask & ~corrections.injected
  metrics = {
    "share": is_corrected.mean(),
    "unfit": corrections.unfit.sum(),
    "right": _mean_if_any(scored.correct, scored_now),
    "right_after_cue": _mean_if_any(scored.correct, by_cue),
    "draft_accuracy": _mean_if_any(corrections.correct, corrections.valid),
    "draft_dead_groups": _mean_if_any(~was_live, was_scored),
    "made_live": _mean_if_any(is_live & ~was_live, was_scored),
    "injected": corrections.injected.sum(),
    "generated": drawn_after.sum(),
  }
  return {
    f"correction/{name}": x.astype(jnp.float32) for name, x in metrics.items()
  }
