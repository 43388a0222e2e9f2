"""The reservoir of old groups for a reward model, from the run's settings."""

from __future__ import annotations

from grpo_jax.algorithms import options
from grpo_jax.settings import config as config_lib
from grpo_jax.step import features


def make(
  config: config_lib.RunConfig,
  name: str,
  max_prompt_len: int,
  max_new_tokens: int,
  num_shards: int,
) -> features.OldGroups:
  """Makes the reservoir of a phase that learns from earlier phases.

  Args:
    max_prompt_len, max_new_tokens: Slots of the run, S and T.

  Raises:
    ValueError: The sizes do not fit.
  """
  phase, settings = config.section(name), config.reward_model
  share, size = settings.history_share, settings.history_size
  if not share or not phase.of_kind.learns_from_drawn:
    return features.OldGroups()
  count = round(share * phase.num_prompts)
  if not 0 < count <= size:
    raise ValueError(
      f"config.reward_model.history_share={share} of"
      f" config.{name}.num_prompts={phase.num_prompts} are {count} old prompts;"
      f" needs 1 to config.reward_model.history_size={size}. Change one of"
      " them."
    )
  if size % num_shards:
    raise ValueError(
      f"config.reward_model.history_size={size} does not split over the"
      f" {num_shards} devices that share rows; needed: history_size = devices ×"
      " (a whole number)."
    )
  from grpo_jax.step import reservoir

  required = options.needs(*config.objective(name))
  return reservoir.Reservoir(
    size=size,
    num_groups=phase.num_prompts,
    num_old=count,
    group_size=phase.group_size,
    prompt_slots=phase.max_prompt_len or max_prompt_len,
    token_slots=max_new_tokens,
    with_steps="step_rewards" in required,
  )
