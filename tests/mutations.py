"""Bugs that were planted once, and the tests that must fail with them.

Each replaces one piece of one file. A tool that applies them one at a time and
runs the tests beside them shows whether the tests can still fail.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
  """One bug: `old`, which occurs once in the file at `path`, becomes `new`."""

  path: str
  old: str
  new: str
  tests: str  # Arguments of pytest; at least one test must fail.


MUTATIONS = [
  # The last live group that fits is left out.
  Mutation(
    "grpo_jax/algorithms/objective.py",
    "jnp.cumsum(live) <= config.max_live_groups",
    "jnp.cumsum(live) < config.max_live_groups",
    "tests/algorithms/objective_test.py -k live_groups",
  ),
  # Weights of the rewards in another order than the rewards.
  Mutation(
    "grpo_jax/algorithms/objective.py",
    "[jnp.asarray(scored.weights[name], columns[0].dtype) for name in names]",
    "[jnp.asarray(w, columns[0].dtype) for w in scored.weights.values()]",
    "tests/algorithms/objective_test.py",
  ),
  # The weight of a completion is averaged over its padding, too.
  Mutation(
    "grpo_jax/algorithms/objective.py",
    "weight = masked.mean(weight, batch.mask, axis=-1)  # [B]",
    "weight = weight.mean(axis=-1)  # [B]",
    "tests/algorithms/objective_test.py",
  ),
  # The domain of another prompt: groups are looked up instead.
  Mutation(
    "grpo_jax/algorithms/objective.py",
    'prompts.extras["domain"][rollout.prompt_index]',
    'prompts.extras["domain"][rollout.group_id]',
    "tests/algorithms/objective_test.py",
  ),
  # Completions that are not trained count as short.
  Mutation(
    "grpo_jax/algorithms/gfpo.py",
    "lengths = batch.completion_mask.sum(axis=-1)",
    "lengths = batch.mask.sum(axis=-1)",
    "tests/algorithms/objective_test.py -k not_short",
  ),
  # What stands in padding decides whether a completion is rejected.
  Mutation(
    "grpo_jax/ops/corrections.py",
    "kept = (kept | ~mask).all(axis=-1, keepdims=True)  # [B, 1]",
    "kept = kept.all(axis=-1, keepdims=True)  # [B, 1]",
    "tests/ops/corrections_test.py -k padding_rejects",
  ),
  # The reward of an action is given again for what is read after it.
  Mutation(
    "grpo_jax/rollout/turns.py",
    "episodes, left=left, reward=jnp.zeros_like(episodes.reward)",
    "episodes, left=left",
    "tests/rollout/turns_test.py -k by_hand",
  ),
  # What is read acts, where it has a token that ends an action.
  Mutation(
    "grpo_jax/rollout/turns.py",
    "acts = writes & ~observed & is_end",
    "acts = writes & is_end",
    "tests/rollout/turns_test.py -k by_hand",
  ),
  # Every context draws with the same numbers.
  Mutation(
    "grpo_jax/rollout/compaction.py",
    "sampling.row_keys(key, prompts.ids, group_size, number),",
    "sampling.row_keys(key, prompts.ids, group_size),",
    "tests/rollout/compaction_test.py -k draws",
  ),
  # Padding counts as an end where its id is one of an end.
  Mutation(
    "grpo_jax/rollout/sampling.py",
    '_is_end(written["tokens"], config) & written["completion_mask"]',
    '_is_end(written["tokens"], config)',
    "tests/rollout/sampling_test.py -k limits_of_their_own",
  ),
  # One token more than the mass asks for.
  Mutation(
    "grpo_jax/rollout/filters.py",
    "kept = (mass_before < p)",
    "kept = (mass_before <= p)",
    "tests/rollout/filters_test.py -k alone",
  ),
  # A lane goes on with the prompt of the row that it had before.
  Mutation(
    "grpo_jax/rollout/sampling.py",
    """    row = jnp.where(takes, row, state.row)
    prefix, *_ = self.of_lanes(row)
""",
    """    row = jnp.where(takes, row, state.row)
    prefix, *_ = self.of_lanes(state.row)
""",
    "tests/rollout/sampling_test.py -k holds_prompts",
  ),
  # Layers with a window turn by the base of the others.
  Mutation(
    "grpo_jax/models/transformer.py",
    'config, rope_theta=config.local_rope_theta, rope_scaling="none"',
    'config, rope_theta=config.rope_theta, rope_scaling="none"',
    "tests/models/transformer_test.py -k bases",
  ),
  # As they are decoded, all layers turn by the base of far ones.
  Mutation(
    "grpo_jax/models/transformer.py",
    """      x,
      near if config.slides(layer) else far,
""",
    """      x,
      far,
""",
    "tests/models/transformer_test.py -k teacher_forcing_in_float64",
  ),
  # A critic reads what its policy has instead of what it was made with.
  Mutation(
    "grpo_jax/models/critic.py",
    """{**policy_params["frozen"], **params["frozen"]["inherited"]}""",
    """{**params["frozen"]["inherited"], **policy_params["frozen"]}""",
    "tests/models/critic_test.py -k inherited",
  ),
]
