"""Prompts, what was written after them, and what judges say of it."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from grpo_jax.types.common import Images


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Prompts:
  """A batch of prompts, left-padded; token positions are counted by the mask.

  Attributes:
    tokens: Token ids; slots where `mask` is False may hold anything.
    mask: True on the tokens that exist; they are adjacent and end at slot
      S - 1.
    ids: Occurrence of each prompt in the data stream of this phase (0, 1, 2,
      …). Part of the key of every draw, so that a question which comes twice
      gets different samples.
    extras: Whatever the verifier needs (gold answers), each `[P, ...]`.
    images: What the prompts show; None where prompts are tokens only.
  """

  tokens: jax.Array  # [P, S] int32
  mask: jax.Array  # [P, S] bool
  ids: jax.Array  # [P] int32
  extras: dict[str, jax.Array]  # each [P, ...]
  images: Images | None = None  # each [P, ...]

  @property
  def read(self) -> tuple:
    """What a policy reads of them: tokens, mask, and images if any."""
    some = (self.tokens, self.mask)
    return some if self.images is None else (*some, self.images)

  @property
  def shown(self) -> dict[str, Images] | None:
    """The `extras` of `Policy.hidden`: images, or None."""
    return None if self.images is None else {"images": self.images}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Traces:
  """Which rows are the contexts of one rollout, and what they begin with.

  Attributes:
    prompt_tokens, prompt_mask: What each row continues, as in `Prompts`.
    id: Rollout of each row, from 0.
    order: Place of each row in its rollout, from 0.
    is_last: The last row of its rollout that exists.
    num_contexts: Adjacent rows of each rollout. Static.
  """

  prompt_tokens: jax.Array  # [B, S] int32
  prompt_mask: jax.Array  # [B, S] bool
  id: jax.Array  # [B] int32
  order: jax.Array  # [B] int32
  is_last: jax.Array  # [B] bool
  num_contexts: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Corrections:
  """What became of the drafts of a rollout whose wrong rows were corrected.

  Attributes:
    kind: 0 where a draft was left as it was; else what was put in: 1, a cue,
      after which the policy went on; 2, a sentence with the right answer; 3, a
      whole right completion in the place of the draft.
    unfit: Drafts that were to be corrected, and for which the budget of T
      tokens has no room.
    injected: True on tokens that were put in.
    removed: Tokens that the policy has drawn and that are gone: the end token
      of a draft, or all of it.
    rewards, valid, correct: Verdicts on the drafts, as in `Scored`.
  """

  kind: jax.Array  # [B] int32
  unfit: jax.Array  # [B] bool
  injected: jax.Array  # [B, T] bool
  removed: jax.Array  # [B] int32
  rewards: jax.Array  # [B] float32
  valid: jax.Array  # [B] bool
  correct: jax.Array  # [B] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rollout:
  """Sampled completions, right-padded, one per row.

  Attributes:
    tokens: Token ids; the pad id where `completion_mask` is False.
    completion_mask: True on tokens that exist: those the policy wrote, up to
      and including its end token, and in between those that an environment
      wrote. Made from positions, never from ids.
    behavior_logp: Log-prob of each token under the distribution it was drawn
      from (temperature and filters applied), 0 where masked. Nats.
    sampler_logp: Log-prob of the same tokens at the same temperature, without
      filters. Nats.
    entropy: Entropy of the distribution drawn from, 0 where masked. Nats.
    terminated: True if the row ended with an end token, or its environment
      said so; False if the budget of T tokens cut it off. Where contexts are
      compacted, of the whole rollout.
    prompt_index: Row of `Prompts` that each completion answers.
    group_id: Group that each completion is compared within, in
      [0, num_groups).
    num_groups: Static upper bound of `group_id`, exclusive.
    kept_ids: The ids that the filters left at each position, -1 in unused
      slots; None unless recorded.
    routing, prompt_routing: Which experts each token of the completion, and
      of the prompt, took in each layer; anything where a token does not exist
      or was not read, as the last one. None unless recorded.
    mix_ids, mix_weights: Rows of the embedding table that the policy read in
      the place of each token, and their weights, which add up to 1; a token
      that was read as it is has weight 1 and stands in all places. None unless
      inputs are mixed.
    version: The step of the state whose parameters drew each token, 0 where
      masked; None outside training.
    observed: True on tokens that an environment or an opponent wrote, on those
      that a correction has put in and that are not trained, and on summaries
      that are not trained; on all but the last `behavior_logp`, `sampler_logp`
      and `entropy` are 0. None without an environment or corrections.
    policy_id: Who wrote each token: 0, the policy that is trained; k, its k-th
      opponent; -1, the environment, or nobody. None where no environment has
      seats for others.
    turn: In which turn of its episode each token was written, from 0: an
      observation is of the turn of the action that answers it.
    turn_rewards: Reward of each action, at its last token, 0 elsewhere; what
      comes with an opponent's action is the reward of the one before it.
    state_id: Number of the state before the action that a token is part of;
      anything where it is not written. None without an environment.
    scores: What the environment says of each episode, by name, and the sum of
      its rewards as "return"; None without one.
    traces: Where contexts are compacted: the rows of one rollout, as many for
      each; those that do not exist have no tokens. None where a row is a
      rollout.
    corrections: What became of wrong drafts; None where none is corrected.
    whole: False on rows that are still being written: they have no tokens here,
      and take part in nothing. None where rollouts are not cut.
  """

  tokens: jax.Array  # [B, T] int32
  completion_mask: jax.Array  # [B, T] bool
  behavior_logp: jax.Array  # [B, T] float32
  sampler_logp: jax.Array  # [B, T] float32
  entropy: jax.Array  # [B, T] float32
  terminated: jax.Array  # [B] bool
  prompt_index: jax.Array  # [B] int32
  group_id: jax.Array  # [B] int32
  num_groups: int = dataclasses.field(metadata={"static": True})
  kept_ids: jax.Array | None = None  # [B, T, K] int32
  routing: jax.Array | None = None  # [B, T, layers, k] int32
  prompt_routing: jax.Array | None = None  # [P, S, layers, k] int32
  mix_ids: jax.Array | None = None  # [B, T, k] int32
  mix_weights: jax.Array | None = None  # [B, T, k] float32
  version: jax.Array | None = None  # [B, T] int32
  observed: jax.Array | None = None  # [B, T] bool
  policy_id: jax.Array | None = None  # [B, T] int32
  turn: jax.Array | None = None  # [B, T] int32
  turn_rewards: jax.Array | None = None  # [B, T] float32
  state_id: jax.Array | None = None  # [B, T] int32
  scores: dict[str, jax.Array] | None = None  # each [B] float32
  traces: Traces | None = None
  corrections: Corrections | None = None
  whole: jax.Array | None = None  # [B] bool

  @property
  def is_last(self) -> jax.Array:  # [B] bool
    """True on one row of each rollout that is there, the last one."""
    if self.whole is not None:
      return self.whole
    if self.traces is None:
      return jnp.ones(self.tokens.shape[0], bool)
    return self.traces.is_last

  @property
  def written(self) -> jax.Array:  # [B, T] bool
    """True on tokens that the policy wrote."""
    if self.observed is None:
      return self.completion_mask
    return self.completion_mask & ~self.observed

  @property
  def lengths(self) -> jax.Array:  # [B] int32
    """Number of tokens that the policy wrote."""
    return self.written.sum(axis=1, dtype=jnp.int32)

  @property
  def num_drawn(self) -> jax.Array:  # [B] int32
    """Tokens that were drawn of the policy, also where they are gone."""
    if self.corrections is None:
      return self.lengths
    own = self.written & ~self.corrections.injected
    return own.sum(axis=1, dtype=jnp.int32) + self.corrections.removed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scored:
  """What the verifiers said about a `Rollout`.

  Attributes:
    rewards: Weighted sum of the components; 0 where not `valid`.
    valid: True where the row was scored. A verifier that raised, hung or
      returned NaN leaves its row unscored: out of the loss and out of the
      group statistics, and counted. It never becomes a reward of 0.
    correct: True where the completion counts as a right answer (metrics).
    components: Each reward by name, before weights; NaN = not applicable.
    weights: Weight of each component, by the same names.
    step_rewards: Score of the step of reasoning that ends at a token; None
      if the verifier judges whole completions only.
    step_mask: True where a step ends.
  """

  rewards: jax.Array  # [B] float32
  valid: jax.Array  # [B] bool
  correct: jax.Array  # [B] bool
  components: dict[str, jax.Array]  # each [B] float32
  weights: dict[str, jax.Array]  # each [] float32
  step_rewards: jax.Array | None = None  # [B, T] float32
  step_mask: jax.Array | None = None  # [B, T] bool


class Rollouts(NamedTuple):
  """What the policy wrote for one step.

  Attributes:
    rollout: Completions to learn from.
    greedy: The greedy completion of each prompt, if the algorithm needs it.
    scored: What an environment on the host has said of the completions; None of
      those that are judged later.
    baseline: The same of the greedy completions, in whose place it stands.
  """

  rollout: Rollout
  greedy: Rollout | None
  scored: Scored | None = None
  baseline: Scored | None = None
