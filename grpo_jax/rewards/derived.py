"""Rewards made of other rewards and of tokens, and the total reward of a row.

None of them reads text, so each is part of the compiled program, whatever the
other rewards are. `config.rewards.functions` names them, and
`config.rewards.options` has their arguments:

    config.rewards.functions = ("math_accuracy", "cosine_length")
    config.rewards.weights = (0.0, 1.0)
    config.rewards.options = {"cosine_length": {"max_len": 512}}

`combine` adds the weighted components of each row, in the graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from grpo_jax.ops import baselines, hashes, shaping
from grpo_jax.types import Prompts, Rollout, Scored


class RewardInputs(NamedTuple):
  """The inputs of a derived reward.

  Attributes:
    components: Rewards by name; NaN: does not apply.
    correct: 1 for a right answer, 0 for a wrong one, NaN if unknown.
    lengths: Tokens that the policy wrote, of whole rollouts.
    prompts: The prompts.
    rollout: The completions.
  """

  components: Mapping[str, jax.Array]  # each [B]
  correct: jax.Array  # [B] float32
  lengths: jax.Array  # [B] float32
  prompts: Prompts
  rollout: Rollout


def inputs_of(
  components: Mapping[str, jax.Array],  # each [B]
  correct: str,
  prompts: Prompts,
  rollout: Rollout,
) -> RewardInputs:
  """Makes the inputs of derived rewards of B completions.

  Args:
    correct: The reward whose values of at least 1 mark a right answer.
    rollout: The completions, one row for each: the last context.
  """
  lengths = rollout.lengths.astype(jnp.float32)
  values = jnp.asarray(components[correct], jnp.float32)
  right = jnp.where(jnp.isnan(values), jnp.nan, values >= 1.0)
  return RewardInputs(components, right, lengths, prompts, rollout)


def cosine(
  correct: jax.Array,  # [B]
  lengths: jax.Array,  # [B]
  max_len: float,
  right: tuple[float, float] = (1.0, 0.5),
  wrong: tuple[float, float] = (-1.0, -0.5),
) -> jax.Array:  # [B]
  """A reward that falls, or rises, with the length along half a cosine.

      r = long + (short − long) (1 + cos(π min(n / max_len, 1))) / 2

  With the defaults a right answer should be short. A wrong one should be long:
  more thinking might have helped. Swapped values give the reverse.

  Args:
    correct: 1 right, 0 wrong, NaN unknown: the reward does not apply.
    lengths: n, tokens.
    max_len: Length at which the reward is `long`, tokens.
    right: (short, long): rewards of a right answer of 0 and of `max_len`
      tokens.
    wrong: The same for a wrong answer.

  Source: Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs",
  arXiv:2502.03373, Section 4.1; values as in Open-R1.
  """
  chex.assert_equal_shape([correct, lengths])
  share = jnp.clip(lengths / max_len, 0.0, 1.0)
  height = (1 + jnp.cos(jnp.pi * share)) / 2

  def between(short: float, long: float) -> jax.Array:
    return long + (short - long) * height

  reward = jnp.where(correct == 1, between(*right), between(*wrong))
  return jnp.where(jnp.isnan(correct), jnp.nan, reward)


def kimi(
  correct: jax.Array,  # [B]
  lengths: jax.Array,  # [B]
  group_id: jax.Array,  # [B]
  num_groups: int,
) -> jax.Array:  # [B]
  """A reward for being shorter than the other completions of a prompt.

      λ = 1/2 − (n − n_min) / (n_max − n_min)
      r = λ if right, min(0, λ) if wrong; 0 where all lengths are equal

  Lengths are compared over the rows that are known to be right or wrong; the
  reward does not apply to others.

  Source: Kimi Team, "Kimi k1.5", arXiv:2501.12599, Section 2.3.3.
  """
  is_known = ~jnp.isnan(correct)
  group = baselines.group_statistics(lengths, is_known, group_id, num_groups)
  least, most = group.least[group_id], group.greatest[group_id]
  wide = is_known & (most > least)
  share = jnp.where(wide, lengths - least, 0) / jnp.where(wide, most - least, 1)
  reward = jnp.where(correct == 1, 0.5 - share, jnp.minimum(0, 0.5 - share))
  return jnp.where(is_known, jnp.where(wide, reward, 0.0), jnp.nan)


def repeated_ngrams(
  tokens: jax.Array,  # [B, T] int
  mask: jax.Array,  # [B, T] bool
  n: int = 3,
  penalty: float = -1.0,
) -> jax.Array:  # [B]
  """A penalty for repeated n-grams.

      r = penalty · (1 − different n-grams / n-grams)

  The penalty is 0 for a completion of fewer than n tokens. n-grams are of
  adjacent slots that are all in the mask. Deviation: n-grams are of token ids;
  Open-R1 counts words.

  Source: as `cosine`; Open-R1's `get_repetition_penalty_reward`.
  """
  num_slots = tokens.shape[1] - n + 1
  if num_slots < 1:
    return jnp.zeros(tokens.shape[0], jnp.float32)
  grams = jnp.stack([tokens[:, i : i + num_slots] for i in range(n)])
  exists = jnp.stack([mask[:, i : i + num_slots] for i in range(n)]).all(axis=0)
  order = jnp.lexsort((*grams, ~exists), axis=-1)  # Those that exist first.
  grams = jnp.take_along_axis(grams, order[None], axis=-1)
  total = exists.sum(axis=-1)
  new = (grams[:, :, 1:] != grams[:, :, :-1]).any(axis=0)
  new &= jnp.arange(1, num_slots) < total[:, None]
  different = new.sum(axis=-1) + (total > 0)
  share = different / jnp.maximum(total, 1)
  return penalty * jnp.where(total > 0, 1 - share, 0.0)


def ranks(
  values: jax.Array,  # [B]
  group_id: jax.Array,  # [B]
  num_groups: int,
) -> jax.Array:  # [B] in [0, 1]
  """The rank of each value in its group, from 0 to 1.

      r = (number of smaller ones + half of the other equal ones) / (G − 1)

  The rank is 1 for the largest value of a group and 0 for the smallest. It is
  1/2 if all values are equal or a group has one value. A NaN has rank NaN, and
  does not count in its group. A monotone change of the values does not change
  the ranks.
  """
  num_rows = values.shape[0]
  applies = ~jnp.isnan(values)
  group = jnp.where(applies, group_id, num_groups)
  order = jnp.lexsort((values, group))
  group, ordered = group[order], values[order]
  place = jnp.arange(num_rows)
  starts = jnp.concatenate([jnp.array([True]), group[1:] != group[:-1]])
  changes = starts.at[1:].set(starts[1:] | (ordered[1:] != ordered[:-1]))

  def first_of(marks: jax.Array) -> jax.Array:
    return jax.lax.cummax(jnp.where(marks, place, 0))

  ends = jnp.concatenate([changes[1:], jnp.array([True])])
  last_equal = jax.lax.cummin(jnp.where(ends, place, num_rows), reverse=True)
  smaller = first_of(changes) - first_of(starts)
  others = last_equal - first_of(changes)
  size = jax.ops.segment_sum(jnp.ones(num_rows), group, num_groups + 1)[group]
  rank = (smaller + others / 2) / jnp.maximum(size - 1, 1)
  rank = jnp.where(size > 1, rank, 0.5)
  back = jnp.zeros(num_rows, jnp.float32).at[order].set(rank)
  return jnp.where(applies, back, jnp.nan)


# The rewards that `config.rewards.functions` names.


def cosine_length(
  of: RewardInputs,
  *,
  max_len: float | None = None,
  right: tuple[float, float] = (1.0, 0.5),
  wrong: tuple[float, float] = (-1.0, -0.5),
  exceeded: float | None = None,
) -> jax.Array:  # [B]
  """`cosine` of the length; `max_len` is the budget T by default.

  `exceeded` is the reward of a completion that the budget has cut off; the
  paper has −10.
  """
  longest = _budget(of) if max_len is None else max_len
  reward = cosine(of.correct, of.lengths, longest, right, wrong)
  if exceeded is None:
    return reward
  is_cut_off = ~of.rollout.terminated & ~jnp.isnan(of.correct)
  return jnp.where(is_cut_off, exceeded, reward)


def kimi_length(of: RewardInputs) -> jax.Array:  # [B]
  """`kimi` within the groups of the rollout."""
  rollout = of.rollout
  return kimi(of.correct, of.lengths, rollout.group_id, rollout.num_groups)


def soft_overlong(
  of: RewardInputs,
  *,
  max_len: float | None = None,
  cache: float | None = None,
) -> jax.Array:  # [B]
  """`shaping.soft_overlong` as a reward of its own.

  By default `max_len` is the budget T and `cache` is a fifth of it, as in DAPO
  with 20 480 and 4 096 tokens.
  """
  longest = _budget(of) if max_len is None else max_len
  last = longest / 5 if cache is None else cache
  return shaping.soft_overlong(of.lengths, longest, last)


def repetition(
  of: RewardInputs, *, n: int = 3, penalty: float = -1.0
) -> jax.Array:
  """`repeated_ngrams` of the tokens that the policy wrote."""
  return repeated_ngrams(of.rollout.tokens, of.rollout.written, n, penalty)


def rank(of: RewardInputs, *, source: str) -> jax.Array:  # [B]
  """`ranks` of the component `source` within the groups of the rollout."""
  rollout = of.rollout
  values = _component(of, "rank", source)
  return ranks(values, rollout.group_id, rollout.num_groups)


def total(of: RewardInputs, *, parts: Mapping[str, float]) -> jax.Array:  # [B]
  """The weighted sum of other rewards, over those that apply.

  For algorithms that normalise each reward by itself (`mo_grpo`, `gdpo`), a
  `total` joins rewards that are to be normalised together; its parts then have
  a weight of 0:

      config.rewards.functions = ("accuracy", "process", "total", "consistency")
      config.rewards.weights = (0.0, 0.0, 1.0, 1.0)
      config.rewards.options = {
        "total": {"parts": {"accuracy": 1.0, "process": 0.5}}
      }

  The total does not apply if none of its parts does.
  """
  values = jnp.stack([_component(of, "total", name) for name in parts])
  weights = jnp.stack([jnp.float32(weight) for weight in parts.values()])
  applies = ~jnp.isnan(values)
  added = (weights[:, None] * jnp.where(applies, values, 0)).sum(axis=0)
  return jnp.where(applies.any(axis=0), added, jnp.nan)


def flipped(
  of: RewardInputs, *, source: str, probability: float, seed: int = 0
) -> jax.Array:  # [B]
  """1 − r for some of the completions: a verifier with errors.

  `hashes.identity` of prompt and completion alone decides which completions are
  misjudged. So the same completion of the same prompt is judged alike in each
  step, as by a model that is wrong about it.

  Args:
    of: The completions.
    source: Name of r, a reward in [0, 1].
    probability: Share of completions that are misjudged, in [0, 1].
    seed: Another seed misjudges other completions.

  Raises:
    ValueError: The probability is not in [0, 1].
  """
  if not 0 <= probability <= 1:
    raise ValueError(
      f"config.rewards.options: 'flipped' has probability={probability}; needs"
      " a share in [0, 1]."
    )
  values = _component(of, "flipped", source)
  prompt = hashes.identity(of.prompts.tokens, of.prompts.mask)[
    of.rollout.prompt_index
  ]
  completion = hashes.identity(of.rollout.tokens, of.rollout.completion_mask)
  salt = hashes.mixed(jnp.uint32(seed))
  bits = hashes.mixed(completion ^ hashes.mixed(prompt ^ salt))
  # 24 bits: with more, float32 would round, some values to 1.
  share = (bits >> 8).astype(jnp.float32) / 2**24  # [0, 1)
  return jnp.where(share < probability, 1 - values, values)


def _component(of: RewardInputs, name: str, source: str) -> jax.Array:  # [B]
  """Returns a reward that another reward is made of.

  Raises:
    ValueError: No reward of this name comes before.
  """
  if source not in of.components:
    raise ValueError(
      f"config.rewards.options: {name!r} is made of {source!r}; needs one"
      f" of {sorted(of.components)}. What is made of another reward comes after"
      " it in config.rewards.functions."
    )
  return jnp.asarray(of.components[source], jnp.float32)


DERIVED: dict[str, Callable[..., jax.Array]] = {
  function.__name__: function
  for function in (
    *(cosine_length, flipped, kimi_length, rank, repetition),
    *(soft_overlong, total),
  )
}


def sources(options: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns the names of the rewards that a derived reward is made of."""
  names = (options["source"],) if "source" in options else ()
  return (*names, *options.get("parts", ()))


def check_options(name: str, options: Mapping[str, Any]) -> None:
  """Raises ValueError unless a reward can be made with these options."""
  try:
    inspect.signature(DERIVED[name]).bind(None, **options)
  except TypeError as error:
    names = list(inspect.signature(DERIVED[name]).parameters)[1:]
    raise ValueError(
      f"config.rewards.options: {name!r} got {dict(options)}: {error}; it has"
      f" {', '.join(names) or 'no options'}."
    ) from error


def _budget(of: RewardInputs) -> int:
  return of.rollout.tokens.shape[1]


def combine(
  components: Mapping[str, jax.Array],  # each [B]
  weights: Mapping[str, float | jax.Array],
  failed: jax.Array | None,  # [B] bool
  correct: str | None,
) -> Scored:
  """Sums the components that apply to each row.

      R_b = Σ_{k applicable to b} w_k r_kb

  Args:
    components: Each reward by name, before weights; NaN = not applicable.
    weights: Weight of each component, by the same names; an array [] if it
      changes between steps.
    failed: True where a component failed, so that the row is unscored; None
      if no component can fail.
    correct: The component whose values of at least 1 mark a right answer;
      None for the first in sorted order.

  Returns:
    The scored rows. A row is not valid if it failed, if a component or the
    total is beyond `ranges.MAX_REWARD`, or if no component of non-zero weight
    applies. (A component of weight 0 is only observed; with it alone a row
    would have a reward of 0 that no function gave.) If a row is not valid, its
    reward is 0 and `correct` is False.

  Raises:
    KeyError: Components and weights have different names, there are no
      components, or `correct` is not among them.
  """
  if not components or set(components) != set(weights):
    raise KeyError(
      f"combine: received components {sorted(components)} and weights"
      f" {sorted(weights)}; needs the same names, at least one; without"
      f" weight: {sorted(set(components) - set(weights))}, without component:"
      f" {sorted(set(weights) - set(components))}."
    )
  names = sorted(components)
  correct = names[0] if correct is None else correct
  if correct not in components:
    raise KeyError(
      f"combine: correct='{correct}' is not a component; needs one of {names}."
    )
  values = {
    name: jnp.asarray(components[name], jnp.float32) for name in names
  }  # each [B]
  chex.assert_rank(list(values.values()), 1)
  chex.assert_equal_shape(list(values.values()))

  total, too_large = shaping.total_reward(values, weights)  # [B], [B]
  valid = jnp.zeros_like(too_large)  # [B]
  for name in names:
    applicable = ~jnp.isnan(values[name])
    valid |= applicable & (jnp.asarray(weights[name]) != 0)
  valid &= ~too_large
  if failed is not None:
    chex.assert_equal_shape([jnp.asarray(failed), total])
    valid &= ~jnp.asarray(failed)
  return Scored(
    rewards=jnp.where(valid, total, 0.0),
    valid=valid,
    correct=valid & (values[correct] >= 1.0),
    components=values,
    weights={name: jnp.float32(weights[name]) for name in names},
  )
