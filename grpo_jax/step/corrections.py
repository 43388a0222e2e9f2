"""What corrections of wrong completions have done in a step."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from grpo_jax.ops import baselines, masked
from grpo_jax.rollout import correction
from grpo_jax.types import Metrics, Rollout, Scored


def metrics(rollout: Rollout, scored: Scored) -> Metrics:
  """Numbers of the drafts, and of what became of them.

  Args:
    rollout: With corrections.
    scored: What is said of it now.

  Returns:
    Scalars, float32, under `correction/`: of all completions the `share` that
    was corrected, and the number `unfit` of those without room for it; of the
    corrected ones the share that is `right` now, and `right_after_cue` of those
    that the policy has ended; `draft_accuracy` and `draft_dead_groups`, which
    `accuracy` and `dead_groups` were before; the share `made_live` of groups
    that were dead and are not; and the tokens `injected` and, after cues,
    `generated`. NaN where there is nothing to average.
  """
  made = rollout.corrections
  assert made is not None
  is_corrected = made.kind != correction.NONE
  scored_now = scored.valid & is_corrected
  by_cue = scored_now & (made.kind == correction.BY_CUE)

  def of_groups(rewards, valid):  # Which groups are live, and which scored.
    live = baselines.live_groups(
      rewards, valid, rollout.group_id, rollout.num_groups
    )
    counts = jnp.zeros(rollout.num_groups, jnp.int32)
    return live, counts.at[rollout.group_id].add(valid) > 0

  was_live, was_scored = of_groups(made.rewards, made.valid)
  is_live, _ = of_groups(scored.rewards, scored.valid)
  after = jnp.cumsum(made.injected, axis=1) > 0
  drawn_after = after & rollout.completion_mask & ~made.injected
  found = {
    "share": is_corrected.mean(),
    "unfit": made.unfit.sum(),
    "right": _share(scored.correct, scored_now),
    "right_after_cue": _share(scored.correct, by_cue),
    "draft_accuracy": _share(made.correct, made.valid),
    "draft_dead_groups": _share(~was_live, was_scored),
    "made_live": _share(is_live & ~was_live, was_scored),
    "injected": made.injected.sum(),
    "generated": drawn_after.sum(),
  }
  return {
    f"correction/{name}": x.astype(jnp.float32) for name, x in found.items()
  }


def _share(what: jax.Array, where: jax.Array) -> jax.Array:  # [n], [n] -> []
  """Mean of what is so; NaN where nothing is counted."""
  return jnp.where(where.any(), masked.mean(what, where), jnp.nan)
