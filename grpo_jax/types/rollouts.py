"""Prompts, their completions, and the scores of completions."""

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
    tokens: Token ids; arbitrary where `mask` is False.
    mask: True on the tokens that exist; they are adjacent and end at slot
      S - 1.
    ids: Occurrence of each prompt in the data stream of this phase (0, 1, 2,
      …). Part of the key of every draw, so that a question which comes twice
      gets different samples.
    extras: Inputs of the verifier (gold answers), each `[P, ...]`.
    images: Images in the prompts; None if prompts are tokens only.
  """

  tokens: jax.Array  # [P, S] int32
  mask: jax.Array  # [P, S] bool
  ids: jax.Array  # [P] int32
  extras: dict[str, jax.Array]  # each [P, ...]
  images: Images | None = None  # each [P, ...]

  @property
  def read(self) -> tuple:
    """The inputs of a policy: tokens, mask, and images if any."""
    some = (self.tokens, self.mask)
    return some if self.images is None else (*some, self.images)

  @property
  def shown(self) -> dict[str, Images] | None:
    """The `extras` of `Policy.hidden`: images, or None."""
    return None if self.images is None else {"images": self.images}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Traces:
  """The assignment of rows to rollouts of several contexts, and their prompts.

  Attributes:
    prompt_tokens, prompt_mask: Prompt of each row, as in `Prompts`.
    id: Rollout of each row, from 0.
    order: Place of each row in its rollout, from 0.
    is_last: True on the last existing row of each rollout.
    num_contexts: Number of adjacent rows of each rollout. Static.
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
  """The record of a rollout whose wrong rows (drafts) were corrected.

  Attributes:
    kind: The correction of each draft. 0: unchanged; 1: a cue, after which the
      policy went on; 2: a sentence with the right answer; 3: a whole right
      completion in the place of the draft.
    unfit: True on drafts whose correction does not fit in the budget of T
      tokens.
    injected: True on tokens that the correction put in.
    removed: Number of sampled tokens that the correction removed: the end token
      of a draft, or all of the draft.
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
    completion_mask: True on tokens that exist: the policy's tokens, up to and
      including its end token, and an environment's tokens in between. Computed
      from positions, never from ids.
    behavior_logp: Log-prob of each token under the distribution from which it
      was drawn (temperature and filters applied), 0 where masked. Nats.
    sampler_logp: Log-prob of the same tokens at the same temperature, without
      filters. Nats.
    entropy: Entropy of the sampling distribution, 0 where masked. Nats.
    terminated: True if the row ended with an end token, or its environment
      ended it; False if the budget of T tokens cut it off. If contexts are
      compacted, this concerns the whole rollout.
    prompt_index: Row of `Prompts` that each completion answers.
    group_id: Group within which each completion is compared, in
      [0, num_groups).
    num_groups: Static upper bound of `group_id`, exclusive.
    kept_ids: The ids that the filters left at each position, -1 in unused
      slots; None unless recorded.
    routing, prompt_routing: Experts of each token of the completion, and of the
      prompt, in each layer; arbitrary where a token does not exist or was not
      read, as the last one. With sparse attention the tokens that a token sees
      follow: slot s of the prompt is s, token t of the completion S + t, and -1
      none. None unless recorded.
    mix_ids, mix_weights: Rows of the embedding table that the policy read in
      the place of each token, and their weights, which add up to 1. A token
      that was not mixed has weight 1, and its id stands in all k places. None
      unless inputs are mixed.
    version: The step of the state whose parameters drew each token, 0 where
      masked; None outside training.
    observed: True on tokens of an environment or an opponent, on tokens of a
      correction that are not trained, and on summaries that are not trained. On
      all of these but summaries `behavior_logp`, `sampler_logp` and `entropy`
      are 0. None without an environment or corrections.
    policy_id: The writer of each token: 0, the policy that is trained; k, its
      k-th opponent; -1, the environment, or nobody. None if the environment has
      no seats for opponents.
    turn: Turn of its episode in which each token was written, from 0. An
      observation belongs to the turn of the action that answers it.
    turn_rewards: Reward of each action, at its last token, 0 elsewhere. A
      reward that comes with an opponent's action is credited to the policy's
      action before it.
    state_id: Number of the state before the action that a token is part of;
      arbitrary on tokens that the policy did not write. None without an
      environment.
    scores: The environment's scores of each episode, by name, and the sum of
      its rewards as "return"; None without an environment.
    traces: If contexts are compacted, the rows of each rollout, the same number
      for each; rows that do not exist have no tokens. None if each row is a
      rollout.
    corrections: The record of corrected drafts; None without corrections.
    whole: False on rows that are still being written: they have no tokens here,
      and are used nowhere. None if rollouts are not cut.
    trace_lengths: Tokens that the policy wrote in all contexts of a rollout, if
      a row is its last context (`compaction.last_rows`); else None.
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
  trace_lengths: jax.Array | None = None  # [B] int32

  @property
  def is_last(self) -> jax.Array:  # [B] bool
    """True on the last row of each finished rollout."""
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
    if self.trace_lengths is not None:
      return self.trace_lengths
    return self.written.sum(axis=1, dtype=jnp.int32)

  @property
  def num_drawn(self) -> jax.Array:  # [B] int32
    """Number of tokens drawn from the policy, removed tokens included."""
    if self.corrections is None:
      return self.lengths
    own = self.written & ~self.corrections.injected
    return own.sum(axis=1, dtype=jnp.int32) + self.corrections.removed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scored:
  """The scores of a `Rollout`.

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
  """The rollouts of one step.

  Attributes:
    rollout: Completions to learn from.
    greedy: The greedy completion of each prompt, if the algorithm needs it.
    scored: Scores of an environment on the host; None if the completions are
      scored later.
    baseline: Scores of greedy completions by an environment on the host, in the
      place of `greedy`.
  """

  rollout: Rollout
  greedy: Rollout | None
  scored: Scored | None = None
  baseline: Scored | None = None
