"""Guards: bounds on the influence of a single prompt, inside the step.

Three guards look at the prompts of a step, by the content of the prompts
(`fingerprints`). A batch with too few different prompts trains nothing. A
prompt that came too often is left out. A prompt whose share of the influence
is too large is scaled down. The memory of the guards is in the state, so a run
that is killed continues exactly.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from grpo_jax.ops import influence
from grpo_jax.step import features
from grpo_jax.step.dynamic_sampling import Groups
from grpo_jax.types import Metrics, Prompts, PyTree, TrainBatch, TrainState

# Arrays of a step, one entry per group, beside its metrics.
PROMPTS = "guards/prompts"
IDS = "guards/ids"  # Occurrences in the stream.
INFLUENCE = "guards/influence"
SCALE = "guards/scale"
KEPT = "guards/kept"
ARRAYS = (PROMPTS, IDS, INFLUENCE, SCALE, KEPT)


@dataclasses.dataclass(frozen=True)
class InfluenceBounds(features.StepGuards):
  """Settings and functions of the guards of a phase.

  Attributes:
    num_prompts: Groups of a step.
    min_distinct: Different prompts that a step must have.
    cap: Largest share of the influence over a window; 0: no bound.
    window: Steps of that window, the current one included.
    repeats: Most uses of a prompt in a second window; 0: no bound.
    repeat_window: Steps of the second window, the current one included.
  """

  num_prompts: int
  min_distinct: int = 0
  cap: float = 0.0
  window: int = 20
  repeats: int = 0
  repeat_window: int = 1000

  def enter(self) -> PyTree:
    """The memory of the guards at the start of a phase.

    It covers the past steps, the latest last: `keys` and `influence` (after
    scaling) of their groups, and `used`, the prompts that were trained on. Key
    0 is an empty place.
    """
    # A guard that is off does not have arrays: empty arrays cannot be saved.
    state = {}
    if self.cap:
      shape = (self.window - 1, self.num_prompts)
      state["keys"] = jnp.zeros(shape, jnp.uint32)
      state["influence"] = jnp.zeros(shape, jnp.float32)
    if self.repeats:
      shape = (self.repeat_window - 1, self.num_prompts)
      state["used"] = jnp.zeros(shape, jnp.uint32)
    return state

  def admit(
    self, state: TrainState, groups: Groups, batch: TrainBatch
  ) -> tuple[TrainBatch, Metrics]:
    """Leaves out groups whose prompt came too often, or the whole batch.

    Returns:
      The batch of `groups`, before advantages, and their arrays and metrics.
    """
    prompts, rollout = groups.prompts, groups.rollout
    of_groups = jnp.zeros(rollout.num_groups, jnp.int32)
    of_groups = of_groups.at[rollout.group_id].set(rollout.prompt_index)
    keys = fingerprints(prompts)[of_groups]  # [P]
    ordered = jnp.sort(keys)
    distinct = 1 + (ordered[1:] != ordered[:-1]).sum()
    is_kept = jnp.broadcast_to(distinct >= self.min_distinct, keys.shape)
    if self.repeats:
      earlier = jnp.tri(len(keys), k=-1, dtype=bool)  # [P, P]
      times = (state.guards["used"][..., None] == keys).sum((0, 1))
      earlier &= _in_loss(batch, len(keys))
      times += (earlier & (keys[:, None] == keys)).sum(-1)
      is_kept &= times < self.repeats
    rows = is_kept[batch.group_id]  # [B]
    batch = dataclasses.replace(
      batch,
      mask=batch.mask & rows[:, None],
      valid=batch.valid & rows,
      rewards=jnp.where(rows, batch.rewards, 0.0),
    )
    return batch, {
      PROMPTS: keys,
      IDS: prompts.ids[of_groups],
      KEPT: is_kept,
      "guards/distinct": distinct.astype(jnp.float32),
      "guards/dropped": (~is_kept).sum().astype(jnp.float32),
    }

  def weigh(
    self, state: TrainState, batch: TrainBatch, metrics: Metrics
  ) -> tuple[TrainState, TrainBatch, Metrics]:
    """Scales the policy loss of prompts with too much influence.

    Args:
      metrics: Arrays and metrics of `admit`.

    Returns:
      The state with the memory after the step, the batch, and all arrays and
      metrics.
    """
    keys, is_kept = metrics[PROMPTS], metrics[KEPT]
    sizes = influence.of_groups(
      batch.advantages, batch.mask, batch.group_id, len(keys)
    ).astype(jnp.float32)
    scale = jnp.ones_like(sizes)
    before = state.guards
    following = dict(before)
    if self.cap:
      capped = influence.capped(
        keys, sizes, before["keys"], before["influence"], self.cap
      )
      scale = capped.scale
      weight = jnp.broadcast_to(scale[batch.group_id, None], batch.mask.shape)
      if batch.policy_weight is not None:
        weight = weight * batch.policy_weight
      batch = dataclasses.replace(batch, policy_weight=weight)
      following["keys"] = _after(before["keys"], keys)
      following["influence"] = _after(before["influence"], sizes * scale)
      metrics = metrics | {
        "guards/max_share": capped.share.max(),
        "guards/cap": capped.cap,
        "guards/scaled": (scale < 1).sum().astype(jnp.float32),
      }
    if self.repeats:
      in_loss = is_kept & _in_loss(batch, len(keys))
      used = jnp.where(in_loss, keys, jnp.uint32(0))
      following["used"] = _after(before["used"], used)
    state = dataclasses.replace(state, guards=following)
    return state, batch, metrics | {INFLUENCE: sizes * scale, SCALE: scale}


def fingerprints(prompts: Prompts) -> jax.Array:  # [P] uint32
  """A number for each prompt together with the arrays of its verifier.

  A question with another label or another image is another prompt. A copy has
  the same number, however far to the left it is padded.
  """
  tokens = jnp.where(prompts.mask, prompts.tokens + 1, 0)  # [P, S]
  columns = [tokens[:, ::-1]]
  values_of = [jnp.asarray(prompts.extras[k]) for k in sorted(prompts.extras)]
  if prompts.images is not None:
    exists = prompts.images.image >= 0  # [P, N]
    values_of += [
      jnp.where(exists[..., None], prompts.images.patches, 0),
      prompts.images.grid,
    ]
  for values in values_of:
    if jnp.issubdtype(values.dtype, jnp.floating):
      values = jax.lax.bitcast_convert_type(
        values.astype(jnp.float32), jnp.int32
      )
    columns.append(values.reshape(len(tokens), -1).astype(jnp.int32))
  # One digest per column, so that the width of one does not change another.
  digests = [influence.fingerprint(column) for column in columns]
  return influence.fingerprint(jnp.stack(digests, axis=-1))


def _in_loss(batch: TrainBatch, num_groups: int) -> jax.Array:  # [P] bool
  """True for groups with a trained token; a dead group may have none."""
  rows = batch.mask.any(axis=-1).astype(jnp.int32)
  return jax.ops.segment_max(rows, batch.group_id, num_groups) > 0


def _after(before: jax.Array, new: jax.Array) -> jax.Array:  # [W, P], [P]
  """Shifts the window by one step."""
  return jnp.concatenate([before, new[None].astype(before.dtype)])[1:]
