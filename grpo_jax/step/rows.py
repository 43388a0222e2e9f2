"""The rows that a step hands out: completions and their per-token records.

A step hands its rows out on the devices, sharded as they are, and so does not
depend on their readers. The pass of the policy after the update is another
program (`after.py`), which runs only if somebody reads its results.
"""

from __future__ import annotations

import dataclasses

import jax

from grpo_jax.step.dynamic_sampling import Groups
from grpo_jax.types import TrainBatch, set_fields

# Field -> the input that an algorithm must need for its step to hand the field
# out. Other fields are always handed out, or never.
_IF_NEEDED = {
  "sampler.behavior_logp": "behavior_logp",
  "sampler.entropy": "behavior_entropy",
  "scores.components": "components",
  "scores.component_weights": "components",
  "scores.step_rewards": "step_rewards",
  "scores.step_mask": "step_rewards",
  "turns.index": "turns",
  "turns.rewards": "turns",
  "scores.greedy": "greedy_rewards",
}
# As large as a hidden state for each token, or not arrays.
_LARGE = (
  *("sampler.kept_ids", "sampler.routing", "sampler.logp"),
  *("prompts.routing", "anchor.routing", "anchor.router_load", "key"),
  *("reference.h", "reference.topk_ids", "reference.topk_logp"),
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepRows:
  """The rows of a step.

  Attributes:
    batch: The batch of the update, without fields as large as hidden states. If
      the update has one gradient step, `old_logp` is None.
    prompt_id: Occurrence of each row's prompt in the stream.
    rewards: Weighted sums of the components, as the verifiers returned them.
    components: Each reward by name; NaN = not applicable.
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


def step_rows(
  groups: Groups, batch: TrainBatch, required: frozenset[str]
) -> StepRows:
  """The `StepRows` of a step."""
  rollout, scored = groups.rollout, groups.scored
  dropped = {name for name, need in _IF_NEEDED.items() if need not in required}
  nothing = dict.fromkeys(dropped.union(_LARGE))
  return StepRows(
    batch=set_fields(batch, nothing),
    prompt_id=groups.prompts.ids[rollout.prompt_index],
    rewards=scored.rewards,
    components=dict(scored.components),
    sampler_logp=rollout.sampler_logp,
    entropy=rollout.entropy,
    version=rollout.version,
    observed=rollout.observed,
    turn=rollout.turn,
    turn_rewards=rollout.turn_rewards,
  )
