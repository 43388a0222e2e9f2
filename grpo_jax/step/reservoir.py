"""A reservoir of old completions for the training of a reward model.

If phases of the kind "preference" are repeated, the policy differs in each. A
reward model that learns from the newest completions alone forgets the others.
So a share of each batch is old: groups of completions of earlier phases, with
their former scores. They come from a reservoir, a uniform sample of all groups
so far (Vitter's Algorithm R), which is part of the state.

    a step of 40 prompts with a share of 0.1: 36 of them are fresh, and 4 old

Source: Shao et al., "DeepSeekMath", arXiv:2402.03300, Algorithm 1 and Section
4.1.4 ("a replay mechanism that incorporates 10% of historical data"); Vitter,
"Random Sampling with a Reservoir", 1985.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.step import features
from grpo_jax.step.features import OldGroupMix
from grpo_jax.types import PyTree, TrainBatch, TrainState, get_field, set_fields

# Folded into the key of an update, for draws of old completions.
_OLD = 7

# Fields of a group: prompt fields [S], token fields [G, T], row fields [G].
_PROMPT = {"prompts.tokens": jnp.int32, "prompts.mask": jnp.bool_}
_TOKENS = {"tokens": jnp.int32, "completion_mask": bool, "mask": bool}
_STEPS = {"scores.step_rewards": jnp.float32, "scores.step_mask": bool}
_ROWS = {
  "rewards": jnp.float32,
  "valid": bool,
  "terminated": bool,
  "correct": bool,
}
# Records of the sampler, which are not read of old groups.
_RECORDED = (
  *("sampler.behavior_logp", "sampler.logp", "sampler.entropy"),
  *("sampler.mix_ids", "sampler.mix_weights"),
)


@dataclasses.dataclass(frozen=True)
class Reservoir(features.OldGroups):
  """Settings and functions of the reservoir of a phase.

  Attributes:
    size: K, the most groups in the reservoir.
    num_groups: P, groups of a batch.
    num_old: Number of old groups in a batch, if the reservoir has as many.
    group_size: G, completions of a group.
    prompt_slots, token_slots: S and T.
    with_steps: True if rows have scores of steps.
  """

  size: int
  num_groups: int
  num_old: int
  group_size: int
  prompt_slots: int
  token_slots: int
  with_steps: bool = False

  @property
  def _fields(self) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and dtype of each field of a group."""
    of_tokens = _TOKENS | (_STEPS if self.with_steps else {})
    rows = (self.group_size,)
    return {
      **{name: ((self.prompt_slots,), kind) for name, kind in _PROMPT.items()},
      **{
        name: ((*rows, self.token_slots), kind)
        for name, kind in of_tokens.items()
      },
      **{name: (rows, kind) for name, kind in _ROWS.items()},
    }

  def enter(self, past: PyTree) -> PyTree:
    """The reservoir at the start of a phase.

    Args:
      past: Reservoir of the phase before, or None.

    Returns:
      `groups`, fields with K groups each; `step`, at which each was drawn, or
      −1 in an empty place; and `seen`, the number of groups so far.

    Raises:
      ValueError: The phases draw groups of other sizes.
    """
    new = {
      "groups": {
        name: jnp.zeros((self.size, *shape), kind)
        for name, (shape, kind) in self._fields.items()
      },
      "step": jnp.full(self.size, -1, jnp.int32),
      "seen": jnp.int32(0),
    }
    if past is None:
      return new
    expected, actual = (jax.tree.map(jnp.shape, tree) for tree in (new, past))
    if expected != actual:
      raise ValueError(
        "config.reward_model.history_share: what an earlier phase has drawn has"
        f" the shapes {actual['groups']}, and this phase draws"
        f" {expected['groups']}; give phases of the kind 'preference' the same"
        " group_size and max_prompt_len."
      )
    return past

  def mix(
    self, state: TrainState, batch: TrainBatch, key: jax.Array
  ) -> OldGroupMix:
    """Replaces the last fresh groups by old ones, and stores fresh groups.

    Replaced groups may be stored, too: they are lost for this step only.

    Args:
      state: State before the step; groups from before the phase are old.
      batch: Fresh groups, before `prepare`.
    """
    key = jax.random.fold_in(key, _OLD)
    past, first = state.reservoir, state.step - state.phase_step
    old_key, place_key = jax.random.split(key)
    # [P, G]: rows of a group need not be adjacent.
    rows = jnp.argsort(batch.group_id, stable=True).reshape(self.num_groups, -1)
    prompts = batch.prompt_index[rows[:, 0]]  # [P]

    def where(name):
      return prompts if name in _PROMPT else rows

    fresh = {name: get_field(batch, name)[where(name)] for name in self._fields}
    slots, is_there = self._choose(past, old_key, first)  # [H]
    changed = {}
    for name, buffer in past["groups"].items():
      index = where(name)[-self.num_old :]
      is_used = is_there.reshape(-1, *[1] * (buffer.ndim - 1))
      values = jnp.where(is_used, buffer[slots], fresh[name][-self.num_old :])
      changed[name] = get_field(batch, name).at[index].set(values)
    is_old = jnp.zeros(batch.group_id.shape, bool)
    is_old = is_old.at[rows[-self.num_old :]].set(is_there[:, None])
    after = self._keep(past, fresh, place_key, state.step)
    ages = jnp.where(is_there, state.step - past["step"][slots], 0)
    count = is_there.sum()
    return OldGroupMix(
      dataclasses.replace(state, reservoir=after),
      set_fields(batch, changed | dict.fromkeys(_RECORDED)),
      is_old,
      {
        "history/groups": count.astype(jnp.float32),
        "history/age": jnp.where(
          count > 0, ages.sum() / jnp.maximum(count, 1), jnp.nan
        ).astype(jnp.float32),
        "history/kept": (after["step"] >= 0).sum().astype(jnp.float32),
        "history/seen": after["seen"].astype(jnp.float32),
      },
    )

  def _choose(
    self, state: PyTree, key: jax.Array, first: jax.Array
  ) -> tuple[jax.Array, jax.Array]:  # [H] int32, [H] bool
    """Draws places of old groups uniformly; False if there are too few."""
    is_old = (state["step"] >= 0) & (state["step"] < first)  # [K]
    draws = jnp.where(is_old, jax.random.uniform(key, (self.size,)), -1.0)
    _, slots = jax.lax.top_k(draws, self.num_old)
    return slots, is_old[slots]

  def _keep(
    self,
    state: PyTree,
    fresh: dict[str, jax.Array],
    key: jax.Array,
    step: jax.Array,
  ) -> PyTree:
    """Stores fresh groups by Algorithm R, all of them at once.

    The n-th group ever takes place n while there is room. Afterwards it takes a
    random one of n places, of which K exist. Of two groups in the same place
    the later one stays. A group without scored rows does not count.
    """
    counts = fresh["valid"].any(axis=1)  # [P]
    number = state["seen"] + jnp.cumsum(counts)  # [P], from 1
    draws = jax.random.randint(key, number.shape, 0, jnp.maximum(number, 1))
    place = jnp.where(number <= self.size, number - 1, draws)
    place = jnp.where(counts & (place < self.size), place, self.size)
    later = jnp.triu(place[:, None] == place, k=1).any(axis=1)
    place = jnp.where(later, self.size, place)
    return {
      "groups": {
        name: buffer.at[place].set(fresh[name], mode="drop")
        for name, buffer in state["groups"].items()
      },
      "step": state["step"].at[place].set(step, mode="drop"),
      "seen": number[-1],
    }

  def shown(
    self, fresh: TrainBatch, batch: TrainBatch, is_old: jax.Array
  ) -> TrainBatch:
    """The fresh rows of the step, for records of the step.

    Args:
      fresh: The batch before `mix`.
      is_old: True on fresh rows that an old row has replaced.
    """
    of_prompts = jnp.zeros(batch.prompts.tokens.shape[0], bool)
    of_prompts = of_prompts.at[fresh.prompt_index].max(is_old)

    def restore(name, trained):
      is_replaced = of_prompts if name in _PROMPT else is_old
      is_replaced = is_replaced.reshape(-1, *[1] * (trained.ndim - 1))
      original = jnp.zeros_like(trained)
      if name in self._fields and name != "mask":
        original = get_field(fresh, name)
      return jnp.where(is_replaced, original, trained)

    # A tuple: a set would order the program by the hashes of the process.
    names = (*self._fields, "advantages", "pair_role")  # Two of `prepare`.
    return set_fields(
      batch,
      {
        name: restore(name, value)
        for name in names
        if (value := get_field(batch, name)) is not None
      },
    )
