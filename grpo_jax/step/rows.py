"""What was written in a step, and what is known of each of its tokens.

A step hands its rows out, on the devices and split as they are, and so does not
depend on who looks at them. What the policy says of them after the update is
another program (`after.py`), run where somebody looks.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from grpo_jax.types import Prompts, Rollout, Scored, TrainBatch

# By the name of the field: what an algorithm has to need, for its step to hand
# the field out beside `StepRows`. Others are always handed out, or never.
_IF_NEEDED = {
  "behavior_logp": "behavior_logp",
  "entropy": "behavior_entropy",
  "components": "components",
  "component_weights": "components",
  "step_rewards": "step_rewards",
  "step_mask": "step_rewards",
  "turn": "turns",
  "turn_rewards": "turns",
  "greedy_rewards": "greedy_rewards",
}
# They are as large as a state of the model for each token, or not arrays.
_LARGE = (
  *("kept_ids", "routing", "prompt_routing", "anchor_routing", "router_load"),
  *("ref_h", "ref_topk_ids", "ref_topk_logp", "key", "sampler_logp"),
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepRows:
  """The rows of a step.

  Attributes:
    batch: As the update has had them, without what is as large as hidden
      states. Where the update has one gradient step, `old_logp` is None.
    prompt_id: Occurrence in the stream of the prompt of each row.
    rewards: Weighted sums of the components, as the verifiers gave them.
    components: By name; NaN: does not apply.
    sampler_logp, entropy, version, observed, turn, turn_rewards: As in
      `Rollout`.
  """

  batch: TrainBatch
  prompt_id: jax.Array  # [B] int32
  rewards: jax.Array  # [B] float32
  components: dict[str, jax.Array]  # each [B] float32
  sampler_logp: jax.Array  # [B, T] float32
  entropy: jax.Array  # [B, T] float32
  version: jax.Array | None  # [B, T] int32
  observed: jax.Array | None  # [B, T] bool
  turn: jax.Array | None  # [B, T] int32
  turn_rewards: jax.Array | None  # [B, T] float32


def written(
  prompts: Prompts,
  rollout: Rollout,
  scored: Scored,
  batch: TrainBatch,
  required: frozenset[str],
) -> StepRows:
  """The rows of a step that hands them out.

  Args:
    prompts, rollout, scored: Those of the step.
    batch: Prepared.
    required: What its algorithm needs.
  """
  dropped = {name for name, need in _IF_NEEDED.items() if need not in required}
  nothing: dict[str, Any] = dict.fromkeys(dropped.union(_LARGE))
  return StepRows(
    batch=dataclasses.replace(batch, **nothing),
    prompt_id=prompts.ids[rollout.prompt_index],
    rewards=scored.rewards,
    components=dict(scored.components),
    sampler_logp=rollout.sampler_logp,
    entropy=rollout.entropy,
    version=rollout.version,
    observed=rollout.observed,
    turn=rollout.turn,
    turn_rewards=rollout.turn_rewards,
  )
