"""Metrics of a step for each domain of prompts."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from grpo_jax.ops import baselines, divergences, returns
from grpo_jax.types import Metrics, Prompts, Rollout, Scored, TrainBatch


def metrics(
  names: Sequence[str],
  prompts: Prompts,
  rollout: Rollout,
  scored: Scored,
  batch: TrainBatch,
) -> Metrics:
  """What `metrics.rollout_metrics` says of all rows, for each domain alone.

  Args:
    names: Of the domains, by number.
    prompts: Their extras have the number "domain" [P].
    rollout: B rows.
    scored: What the verifiers said of them.
    batch: The same rows as they are trained.

  Returns:
    Scalars, float32, under `domain/NAME/`: the `share` of the rollouts,
    `accuracy`, `reward`, `length` (of right and wrong answers too) in tokens,
    `truncated`, `entropy` in nats per token, `dead_groups`, `unscored` and
    `tokens`; where there is a reference, `kl`: k3 of the policy that has drawn
    the tokens, in nats per trained token (the reference is run over no other).
    NaN where there is nothing to average.
  """
  rows = rollout.is_last  # [B]
  written = rollout.written  # [B, T]
  lengths = written.sum(axis=-1).astype(jnp.float32)
  if rollout.traces is not None:
    lengths = returns.over_traces(lengths, rollout.traces.id)
  valid = scored.valid & rows
  live = baselines.live_groups(
    scored.rewards, valid, rollout.group_id, rollout.num_groups
  )
  groups = jax.ops.segment_max(
    valid.astype(jnp.int32), rollout.group_id, rollout.num_groups
  )
  right = scored.correct & valid
  of_row = prompts.extras["domain"][rollout.prompt_index]  # [B]
  # All rows of a group are of one prompt.
  of_group = jax.ops.segment_max(of_row, rollout.group_id, rollout.num_groups)
  kl = None
  if batch.ref_logp is not None:
    drawn = rollout.sampler_logp
    if batch.kept_ids is not None:  # Then the reference is filtered as well.
      drawn = rollout.behavior_logp
    kl = divergences.kl(drawn, batch.ref_logp, batch.mask, "k3")  # [B, T]
  found: Metrics = {}
  for number, name in enumerate(names):
    own = of_row == number  # [B]
    tokens = written & own[:, None]
    scores = valid & own
    has = groups.astype(bool) & (of_group == number)
    said = {
      "share": (rows & own).sum() / rows.sum(),
      "accuracy": _mean(right, scores),
      "reward": _mean(scored.rewards, scores),
      "length": _mean(lengths, rows & own),
      "length_correct": _mean(lengths, right & own),
      "length_incorrect": _mean(lengths, scores & ~right),
      "truncated": _mean(~rollout.terminated, rows & own),
      "entropy": _mean(rollout.entropy, tokens),
      "dead_groups": _mean(~live, has),
      "unscored": (rows & own & ~scored.valid).sum(),
      "tokens": tokens.sum(),
    }
    if kl is not None:
      said["kl"] = _mean(kl, batch.mask & own[:, None])
    found |= {
      f"domain/{name}/{key}": value.astype(jnp.float32)
      for key, value in said.items()
    }
  return found


def _mean(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Mean over True entries; NaN if there are none."""
  total = jnp.where(mask, x, 0).sum()
  return jnp.where(mask.any(), total / jnp.maximum(mask.sum(), 1), jnp.nan)
