"""The pytrees that flow through the system, and nothing else.

One alphabet of shapes everywhere:

| letter | meaning                                                        |
|--------|----------------------------------------------------------------|
| P      | prompts                                                        |
| G      | completions per prompt                                         |
| B      | rows (completions); P·G when every prompt has G                |
| S, T   | prompt slots, completion slots; L = S + T                      |
| V, D   | vocabulary, width                                              |
| N      | micro-batches                                                  |

Position `t` of every `[B, T]` array concerns completion token `t`; the shift
between logits and targets happens once, in `ops/logprobs.py` and the models.
Log-probabilities are in nats, at the sampling temperature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

PyTree = Any
Extras = Mapping[str, Any]  # What a verifier needs, by name; arrays.
Metrics = dict[str, jax.Array]  # name -> [] float32

# Axes of the mesh that split rows, and tokens, together: those of
# `training/sharding.py` but for `tensor`.
ROW_AXES = ("data", "fsdp", "expert")


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
  """

  tokens: jax.Array  # [P, S] int32
  mask: jax.Array  # [P, S] bool
  ids: jax.Array  # [P] int32
  extras: dict[str, jax.Array]  # each [P, ...]


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
class Rollout:
  """Sampled completions, right-padded, one per row.

  Attributes:
    tokens: Token ids; the pad id where `completion_mask` is False.
    completion_mask: True on tokens that exist: those the policy wrote, up to
      and including its end token, and in between those that an environment
      wrote. Made from positions, never from ids.
    behavior_logp: Log-prob of each token under the distribution it was drawn
      from (temperature and filters applied), 0 where masked. Nats.
    sampler_logp: The same at the same temperature without filters. Nats.
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
    version: The step of the state whose parameters drew each token, 0 where
      masked; None outside training.
    observed: True on tokens that an environment wrote, and on summaries that
      are not trained; on the former `behavior_logp`, `sampler_logp` and
      `entropy` are 0. None without an environment.
    turn: In which turn of its episode each token was written, from 0: an
      observation is of the turn of the action that answers it.
    turn_rewards: Reward of each action, at its last token, 0 elsewhere.
    state_id: The environment's number of the state before the action that a
      token is part of; anything where it is not written. None without one.
    scores: What the environment says of each episode, by name, and the sum of
      its rewards as "return"; None without one.
    traces: Where contexts are compacted: the rows of one rollout, as many for
      each; those that do not exist have no tokens. None where a row is a
      rollout.
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
  version: jax.Array | None = None  # [B, T] int32
  observed: jax.Array | None = None  # [B, T] bool
  turn: jax.Array | None = None  # [B, T] int32
  turn_rewards: jax.Array | None = None  # [B, T] float32
  state_id: jax.Array | None = None  # [B, T] int32
  scores: dict[str, jax.Array] | None = None  # each [B] float32
  traces: Traces | None = None

  @property
  def is_last(self) -> jax.Array:  # [B] bool
    """True on one row of each rollout, the last one."""
    if self.traces is None:
      return jnp.ones(self.tokens.shape[0], bool)
    return self.traces.is_last

  @property
  def written(self) -> jax.Array:  # [B, T] bool
    """True on tokens that the policy wrote."""
    if self.observed is None:
      return self.completion_mask
    return self.completion_mask & ~self.observed


class Turn(NamedTuple):
  """What an environment answers to one action.

  Attributes:
    observation: What the policy reads next, from slot 0 on.
    mask: The tokens of it that exist; they are adjacent.
    reward: Of this action.
    done: The episode is over; then there is no observation.
  """

  observation: jax.Array  # [O] int32
  mask: jax.Array  # [O] bool
  reward: jax.Array  # [] float32
  done: jax.Array  # [] bool


@dataclasses.dataclass(frozen=True)
class Environment:
  """Pure functions of one episode; callers `vmap` them.

  A step after the last one changes nothing: its turn is done, without reward
  and observation.

  Attributes:
    max_turns: Most actions of an episode.
    max_action_len: A, tokens.
    max_observation_len: O, tokens.
    action_ends: Ids that end an action and belong to it; may be empty.
    reset: (key, extras) -> state, a pytree of arrays of fixed shapes.
    step: (state, tokens [A] int32, mask [A] bool) -> (state, Turn). The tokens
      that exist are adjacent and start at slot 0. An action may be unfinished
      (A tokens without an end), malformed or empty: a turn in which nothing is
      done, and which counts as a turn.
    scores: (state) -> {name: [] float32}, of an episode that is over or was
      cut off. "accuracy" is 0 or 1 and always there; the names do not depend
      on the state.
    action_len: None, or (state) -> [] int32: tokens after which the next
      action ends even without an end token, at most A; None: A.
    state_id: None, or (state) -> [] int32: number of the state before the next
      action, the same for the same state of the same problem; it groups visits
      (GAGPO, GiGPO).
  """

  max_turns: int
  max_action_len: int
  max_observation_len: int
  action_ends: tuple[int, ...]
  reset: Callable[[jax.Array, Extras], PyTree]
  step: Callable[[PyTree, jax.Array, jax.Array], tuple[PyTree, Turn]]
  scores: Callable[[PyTree], dict[str, jax.Array]]
  action_len: Callable[[PyTree], jax.Array] | None = None
  state_id: Callable[[PyTree], jax.Array] | None = None


@dataclasses.dataclass(frozen=True)
class HostEnvironment:
  """Episodes whose tools are Python, in processes of the host.

  `path` is the import path of a factory

      make(prompt: str, extras: dict, seed: int) -> session

  of sessions with the methods

      step(action: str) -> (observation: str, reward: float, done: bool)
      scores() -> {name: float}
      close(), which may be missing

  Text goes in, text comes out. `prompt` is as the data has it, `extras` is what
  verifiers get too, plain data, and `seed` is a function of what keys the draws
  of the row. An action is what its ids say, with its end token and without what
  the model reads around it; an observation has all that the policy is to read,
  tags and roles of a chat too, and is cut to O tokens. `scores` may be asked
  for at any time, and its names are always the same; "accuracy", 0 or 1, is
  one of them; None is a score that does not apply. It is called once, when the
  episode is over or was cut off, and nothing after it but `close`.

  An exception, a deadline that passes, a process that ends and a number that is
  not finite end the episode as failed: the row is unscored.

  Attributes:
    max_turns: Most actions of an episode; after the last one it is over.
    max_action_len: A, tokens; an action ends there even without an end token.
    max_observation_len: O, tokens.
    action_ends: Ids that end an action and belong to it; may be empty.
    path: "package.module:function".
  """

  max_turns: int
  max_action_len: int
  max_observation_len: int
  action_ends: tuple[int, ...]
  path: str


@dataclasses.dataclass(frozen=True)
class Compaction:
  """When a rollout's context is replaced by a summary that the policy writes.

  Data only; the rollout does it. After a turn, `<sum>` is written as an
  observation, and the policy writes the summary. The next context is

      head, <sum>, summary, </sum>, last k pairs (observation, action)

  and goes on with the observation that was pending.

  Attributes:
    every: Turns between two compactions; 0: only when the context is nearly
      full.
    context_len: C, most tokens of a context: prompt, completion and summary.
    reserve: Tokens; a context with fewer than this left is compacted.
    open_id, close_id: `<sum>`, which the rollout writes, and `</sum>`, which
      ends the summary.
    max_summary_len: Tokens, `</sum>` included, which takes the place of the
      last one if the policy did not write it.
    keep_turns: k; fewer are kept if they do not fit.
    max_compactions: Most of them per rollout.
    head_len: First tokens of the first prompt with which every context begins
      (1: `<bos>`).
    trains_summary: Whether summaries are trained. False: they count as
      observed, as if somebody else had written them.
    keeps_summary: Whether contexts begin with the summary. False: they begin
      with head and last turns alone, and what a summary says is lost.

  Source: "CompactionRL", arXiv:2607.05378, with a reserve of 10,240 tokens,
  k = 2 and 3 compactions. It has no trigger by turns; ours makes the contexts
  of a toy task equally long.
  """

  every: int
  context_len: int
  reserve: int
  open_id: int
  close_id: int
  max_summary_len: int
  keep_turns: int
  max_compactions: int
  head_len: int
  trains_summary: bool = True
  keeps_summary: bool = True


class Drawn(NamedTuple):
  """What the policy wrote for one step.

  Attributes:
    rollout: Completions to learn from.
    greedy: The greedy completion of each prompt, if the algorithm needs it.
  """

  rollout: Rollout
  greedy: Rollout | None


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


def _field(kind: str, clean: str = "", **more: Any) -> Any:
  """A field of a batch, with what the system has to know of it.

  Args:
    kind: What its leading axes are: "token" [B, T, ...] (advantages also [B]),
      "row" [B, ...], "prompt" [P, ...], or "shared".
    clean: What happens before a loss reads it: "masked", it is at least
      float32, and 0 where a token is not trained; "wide", it is at least
      float32; "", nothing.
    **more: Of the field.
  """
  metadata = {"kind": kind, "clean": clean, **more.pop("metadata", {})}
  return dataclasses.field(metadata=metadata, **more)


def _optional(
  kind: str, clean: str = "", need: str = "", provider: str = ""
) -> Any:
  """A field that is None unless something provides it.

  Args:
    kind, clean: As in `_field`.
    need: By which name an algorithm asks for it in `needs`; "": it comes with
      others, or nobody asks.
    provider: Who provides it then, for messages.
  """
  metadata = {"need": need, "provider": provider}
  return _field(kind, clean, default=None, metadata=metadata)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
  """Everything a loss may read, except the policy being differentiated.

  Fields `[B, ...]` are per row; `prompt_*` are per prompt and are shared by
  the rows that point at them; `state` belongs to the algorithm. Fields that
  default to None are present only when the algorithm `needs` them.

  Attributes:
    prompt_tokens, prompt_mask: As in `Prompts`.
    prompt_index: Prompt of each row.
    group_id: Baseline group of each row, in [0, num_groups).
    tokens: Completion tokens.
    completion_mask: Tokens that exist (attention, lengths).
    mask: Tokens that are trained: a subset of `completion_mask` without
      observations, filtered, truncated-and-excluded or unscored rows.
    rewards: Scalar reward of each row, 0 where not `valid`.
    valid: Rows that were scored.
    terminated: Rows that were not cut off.
    correct: Rows with a right answer.
    behavior_logp, sampler_logp, entropy, kept_ids: As in `Rollout`; None if
      the completions were given and not sampled.
    routing, prompt_routing: The same; the policy then takes these experts.
    anchor_routing: Experts on the way to each prediction, at the start of the
      update; gone once `router_load` is made of them.
    router_load: Share of each expert in the choices of all trained tokens,
      at the start of the update; a layer's add up to 1.
    components: Each reward before weights, in sorted order of their names;
      NaN = not applicable.
    component_weights: Weight of each component.
    step_rewards, step_mask: As in `Scored`.
    turn, turn_rewards, state_id: As in `Rollout`.
    trace_id, trace_order, is_last: Rollout of each row, its place there, and
      whether it is the last one; None where a row is a rollout.
    greedy_rewards: Reward of the greedy completion of the row's prompt.
    domain: Which domain the row's prompt belongs to, from 0.
    old_logp: Log-probs at the start of the update (the anchor of ratios).
    sum_pi_squared: Σ_v π(v)² at the start of the update.
    ref_logp: Log-probs under the frozen reference.
    ref_h: Hidden states of the reference.
    ref_topk_ids, ref_topk_logp: The reference's K likeliest tokens.
    values: A critic's values at the start of the update.
    token_rewards: Dense rewards beside `rewards` (a KL penalty); 0 elsewhere.
    advantages: Per row or per token; a constant of the loss.
    returns: What a critic learns to predict.
    policy_weight: Constant factor of each token's policy loss.
    pair_role: +1 for the better and -1 for the worse row of a group's pair
      of preferences, 0 for the others.
    selected: Tokens that the algorithm treats differently.
    state: The algorithm's own running state, as arrays.
    coefficients: Weights of loss terms that adapt, by the term's name.
    key: For what is drawn at random in an update.
    num_groups: Static upper bound of `group_id`, exclusive.
  """

  prompt_tokens: jax.Array = _field("prompt")  # [P, S] int32
  prompt_mask: jax.Array = _field("prompt")  # [P, S] bool
  prompt_index: jax.Array = _field("row")  # [B] int32
  group_id: jax.Array = _field("row")  # [B] int32
  tokens: jax.Array = _field("token")  # [B, T] int32
  completion_mask: jax.Array = _field("token")  # [B, T] bool
  mask: jax.Array = _field("token")  # [B, T] bool
  rewards: jax.Array = _field("row", clean="wide")  # [B] float32
  valid: jax.Array = _field("row")  # [B] bool
  terminated: jax.Array = _field("row")  # [B] bool
  correct: jax.Array = _field("row")  # [B] bool
  # Typed as present: an algorithm reads only what it names in `needs`, and
  # what nothing provides raises before tracing.
  behavior_logp: jax.Array = _optional(
    "token", "masked", "behavior_logp", "recorded while sampling (phase rl)"
  )  # [B, T] float32
  sampler_logp: jax.Array = _optional("token", "masked")  # [B, T] float32
  entropy: jax.Array = _optional(
    "token", "masked", "behavior_entropy", "recorded while sampling (phase rl)"
  )  # [B, T] float32
  kept_ids: jax.Array = _optional(
    "token", need="kept_ids", provider="sampling with top_k (phase rl)"
  )  # [B, T, K] int32
  routing: jax.Array = _optional(
    "token", need="routing", provider="sampling from a model with experts"
  )  # [B, T, layers, k]
  prompt_routing: jax.Array = _optional("prompt")  # [P, S, layers, k]
  anchor_routing: jax.Array = _optional("token")  # [B, T, layers, k]
  router_load: jax.Array = _optional(
    "shared", need="router", provider="a model with experts (every phase)"
  )  # [layers, E]
  components: jax.Array = _optional(
    "row", "wide", "components", "the verifiers (phase rl)"
  )  # [B, K] float32
  component_weights: jax.Array = _optional("shared")  # [K]
  step_rewards: jax.Array = _optional(
    "token", "wide", "step_rewards", "a task whose verifier judges steps"
  )  # [B, T] float32
  step_mask: jax.Array = _optional("token")  # [B, T] bool
  turn: jax.Array = _optional(
    "token", need="turns", provider="a task with an environment"
  )  # [B, T] int32
  turn_rewards: jax.Array = _optional("token", "masked")  # [B, T] float32
  state_id: jax.Array = _optional(
    "token",
    need="state_id",
    provider="a task whose environment numbers its states",
  )  # [B, T] int32
  trace_id: jax.Array = _optional("row")  # [B] int32
  trace_order: jax.Array = _optional("row")  # [B] int32
  is_last: jax.Array = _optional("row")  # [B] bool
  greedy_rewards: jax.Array = _optional(
    "row", "wide", "greedy_rewards", "a greedy rollout (phase rl)"
  )  # [B] float32
  domain: jax.Array = _optional(
    "row", need="domain", provider="records with an integer 'domain'"
  )  # [B] int32
  old_logp: jax.Array = _optional(
    "token", "masked", "old_logp", "the policy before the update (every phase)"
  )  # [B, T] float32
  sum_pi_squared: jax.Array = _optional(
    "token",
    "masked",
    "sum_pi_squared",
    "the policy before the update (every phase)",
  )  # [B, T]
  ref_logp: jax.Array = _optional(
    "token", "masked", "ref_logp", "the frozen reference (every phase)"
  )  # [B, T] float32
  ref_h: jax.Array = _optional("token")  # [B, T, D]
  ref_topk_ids: jax.Array = _optional("token")  # [B, T, K] int32
  ref_topk_logp: jax.Array = _optional(
    "token", "masked", "ref_topk", "the frozen reference (every phase)"
  )  # [B, T, K]
  values: jax.Array = _optional(
    "token", "masked", "values", "the critic before the update"
  )  # [B, T] float32
  token_rewards: jax.Array = _optional(
    "token", "masked", "token_rewards", "a KL in the reward (every phase)"
  )  # [B, T] float32
  advantages: jax.Array = _optional("token", "masked")  # [B] or [B, T]
  returns: jax.Array = _optional("token", "masked")  # [B, T] float32
  policy_weight: jax.Array = _optional("token", "masked")  # [B, T] float32
  pair_role: jax.Array = _optional("row")  # [B] float32
  selected: jax.Array = _optional("token")  # [B, T] bool
  state: PyTree = _optional("shared")
  coefficients: dict[str, jax.Array] = dataclasses.field(
    default_factory=dict, metadata={"kind": "shared"}
  )
  key: jax.Array = _optional("shared")  # [] PRNG key
  num_groups: int = dataclasses.field(
    default=1, metadata={"static": True, "kind": "shared"}
  )


def fields_where(owner: type, **metadata: str) -> tuple[str, ...]:
  """Names of the fields of a batch, or of outputs, that are declared so.

  Args:
    owner: `TrainBatch` or `PolicyOutputs`.
    **metadata: As `kind="token"`; see `_field`.
  """
  return tuple(
    field.name
    for field in dataclasses.fields(owner)
    if all(field.metadata.get(k) == v for k, v in metadata.items())
  )


def providers(owner: type) -> dict[str, str]:
  """What an algorithm may name in `needs`, and who provides it."""
  return {
    field.metadata["need"]: field.metadata["provider"]
    for field in dataclasses.fields(owner)
    if field.metadata.get("need")
  }


def row_arrays(batch: TrainBatch) -> dict[str, jax.Array | None]:
  """The row-indexed fields by name; `dataclasses.replace` puts them back."""
  names = (
    *fields_where(TrainBatch, kind="row"),
    *fields_where(TrainBatch, kind="token"),
  )
  return {name: getattr(batch, name) for name in names}


def first_slots(
  rows: dict[str, jax.Array | None], num_slots: int
) -> dict[str, jax.Array | None]:
  """Row-indexed fields with so many completion slots of each token field."""
  tokens = fields_where(TrainBatch, kind="token")

  def cut(name, x):
    # Advantages may be of rows.
    is_cut = x is not None and name in tokens and x.ndim > 1
    return x[:, :num_slots] if is_cut else x

  return {name: cut(name, x) for name, x in rows.items()}


class RouterOutputs(NamedTuple):
  """What routers did on the way to the prediction of each completion token.

  Attributes:
    probs: Distribution over all experts.
    ids: The experts taken.
  """

  probs: jax.Array  # [B, T, layers, E]
  ids: jax.Array  # [B, T, layers, k] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyOutputs:
  """What the differentiated policy gives a loss.

  Attributes:
    logp: Log-prob of each completion token, nats.
    entropy: Entropy of each token's distribution, nats; if needed.
    topk_logp: Log-probs of the reference's K likeliest tokens; if needed.
    ref_kl: KL to the reference over the whole vocabulary, nats; if needed.
    aux: What the model carried out: `RouterOutputs` if it has experts.
    trainable: The algorithm's own trainable parameters.
  """

  logp: jax.Array = _field("token", "masked")  # [B, T] float32
  entropy: jax.Array = _optional(
    "token", "masked", "entropy", "the policy, differentiable (every phase)"
  )  # [B, T] float32
  topk_logp: jax.Array = _optional("token", "masked")  # [B, T, K] float32
  ref_kl: jax.Array = _optional(
    "token", "masked", "ref_kl", "policy and reference (every phase)"
  )  # [B, T] float32
  aux: RouterOutputs | None = None
  trainable: PyTree = None


class Weighted(NamedTuple):
  """A sum and the weight to divide it by, once, after all sums are added."""

  total: jax.Array  # []
  weight: jax.Array  # []


class Term(NamedTuple):
  """One term of a loss: coefficient · aggregate(values, mask).

  Attributes:
    coefficient: (batch) -> a number, or an array where it adapts.
    values: (policy, batch) -> per row [B] or per token [B, T].
    aggregate: A function of `ops/aggregation.py`.
    mask: (batch) -> [B, T], the tokens that it is about; must not depend on
      the policy, because denominators are summed before it is run.
  """

  coefficient: Callable[[TrainBatch], jax.Array | float]
  values: Callable[[PolicyOutputs, TrainBatch], jax.Array]
  aggregate: Callable[[jax.Array, jax.Array], Weighted]
  mask: Callable[[TrainBatch], jax.Array] = lambda batch: batch.mask


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LossOutput:
  """The terms of a loss: Σ coefficient · total / weight, and its metrics.

  Attributes:
    terms: name -> (coefficient, Weighted). Weights depend on the batch only,
      never on the current forward pass.
    metrics: name -> Weighted, summed over micro-batches like the terms.
    maxima: name -> scalar, combined over micro-batches by maximum.
  """

  terms: dict[str, tuple[jax.Array | float, Weighted]]
  metrics: dict[str, Weighted]
  maxima: dict[str, jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MemberState:
  """What a run knows of one of its models: of the policy, a critic, a teacher.

  Attributes:
    params: {"trained": …, "frozen": …}. A member that shares leaves with
      another, as adapters share the base of the policy, does not have them.
    opt_state: Optimizer state of the trained leaves; None where a phase does
      not train it.
    average: Moving average of the trained leaves, at least float32; or None.
  """

  params: PyTree
  opt_state: PyTree = None
  average: PyTree = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """Everything that changes between steps; donated, and checkpointed whole.

  Attributes:
    step: Updates of the state so far, over all phases.
    phase: Index of the current phase.
    phase_step: Steps taken inside the phase.
    key: Base key of the run; never changes. Step n folds n into it.
    members: The models of the run by name: "policy", "critic", "reference", ….
      "algorithm" holds the scalars that an algorithm trains beside the policy.
    algorithm_state: {"algorithm": its running state (baselines, trackers),
      "coefficients": of the terms that adapt}.
    queue: What was drawn ahead for the next steps, the nearest first; between
      steps only, the compiled stages see none.
  """

  step: jax.Array  # [] int32
  phase: jax.Array  # [] int32
  phase_step: jax.Array  # [] int32
  key: jax.Array  # [] PRNG key
  members: dict[str, MemberState]
  algorithm_state: PyTree
  queue: tuple[Drawn, ...] = ()

  @property
  def params(self) -> dict[str, PyTree]:
    """The parameters of all members, by name."""
    return {name: member.params for name, member in self.members.items()}

  def with_members(self, **members: MemberState) -> TrainState:
    """The state with these members added or replaced."""
    return dataclasses.replace(self, members={**self.members, **members})

  def with_params(self, **params: PyTree) -> TrainState:
    """The state with the parameters of these members replaced."""
    return self.with_members(
      **{
        name: dataclasses.replace(self.members[name], params=value)
        for name, value in params.items()
      }
    )


@dataclasses.dataclass(frozen=True)
class Policy:
  """A causal language model seen from outside: pure functions.

  Parameters are `{"trained": tree, "frozen": tree}`; gradients and optimizer
  state exist for the trained part only. `h` is whatever `head` understands;
  for a transformer the final hidden state.

  Attributes:
    init: (key) -> params.
    hidden: (params, prompt_tokens [P, S], prompt_mask [P, S],
      tokens [B, T], completion_mask [B, T], prompt_index [B], extras=None,
      prefix=None) -> (h [B, T, D], aux). `h[:, t]` is the state *from which*
      completion token t is predicted, so it sees the prompt and tokens < t.
      Row b continues prompt `prompt_index[b]`. `extras` is None or model inputs
      beside tokens; `aux` is None or `RouterOutputs`. With `prefix` prompts
      are not run again, and row b continues prompt b.
    prefix: (params, prompt_tokens [P, S], prompt_mask [P, S], extras=None) ->
      what `hidden` needs to know of prompts that several rows continue, a tree
      of floats [N, P, ...]; None if there is nothing, and `hidden` runs each
      row whole.
    head: (params, or what `weights` makes of them; h [..., D]) -> logits
      [..., V], any float dtype.
    prefill: (params, prompt_tokens [P, S], prompt_mask [P, S]) ->
      (h [P, D], prefix, prompt_routing). Runs each prompt; `h` predicts
      completion token 0. `prefix` is a tree of [P, ...], what decoding reads
      of each prompt; `prompt_routing` is as in `Rollout`, None without experts.
    weights: (params) -> what `decode` and `head` read of them, made once for
      all steps.
    allocate: (num_rows, num_slots, prefix=None) -> cache with free completion
      slots, for rows that continue these prompts. The same cache with more
      slots is this one padded at the ends of its arrays. `prefix` may be left
      out where `decode` reads it and not a copy in the cache, as `admit` says.
    admit: (prefix, cache, num_rows) -> the cache for rows that continue other
      prompts from now on: a model whose cache holds a copy of the prompts
      writes it here.
    decode: (weights, tokens [B], t [B], slot [], prefix, cache) ->
      (h [B, D], cache, routing [B, layers, k]). Writes completion token t of
      each row to the slot; `h` predicts token t + 1. The other tokens of a row
      are in the t slots before, where slot -1 is the last one; what other
      slots hold is not seen. `prefix` is of P' ≤ B prompts, each of B / P'
      adjacent rows. `routing` says which experts token t took, or is None.
    num_experts: Experts of each layer; 0 for a model without.
    only_head: Names in "trained" of what `head` alone reads.
  """

  init: Callable[..., PyTree]
  hidden: Callable[..., tuple[jax.Array, PyTree]]
  head: Callable[..., jax.Array]
  prefill: Callable[..., tuple[jax.Array, PyTree, jax.Array | None]]
  allocate: Callable[..., PyTree]
  decode: Callable[..., tuple[jax.Array, PyTree, jax.Array | None]]
  prefix: Callable[..., PyTree] = lambda *args: None
  weights: Callable[[PyTree], PyTree] = lambda params: params
  admit: Callable[[PyTree, PyTree, int], PyTree] = (
    lambda prefix, cache, num_rows: cache
  )
  num_experts: int = 0
  only_head: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Critic:
  """What the rest of a completion is worth: a trunk with one number at its end.

  Parameters are `{"trained": tree, "frozen": tree}` as those of a policy.

  Attributes:
    trunk: Of which `prefix` and `hidden` are run.
    is_shared: Whether the trunk's parameters are the policy's. Then no gradient
      of the critic enters it.
    init: (params of the policy) -> params.
    trunk_params: (params, params of the policy) -> params of the trunk.
    head: (params, h [..., D]) -> values [...], at least float32, of the states
      from which the next token is predicted.
  """

  trunk: Policy
  is_shared: bool
  init: Callable[[PyTree], PyTree]
  trunk_params: Callable[[PyTree, PyTree], PyTree]
  head: Callable[[PyTree, jax.Array], jax.Array]


class Judge(Protocol):
  """Who scores the completions of a phase; see `training/judges.py`."""

  def score(
    self,
    params: Mapping[str, PyTree],
    prompts: Prompts,
    rollout: Rollout,
    said: Any = None,
  ) -> Scored:
    """The verdict on B completions.

    Args:
      params: Of all members; a reward model is one of them.
      prompts: P prompts.
      rollout: Completions of them.
      said: What verifiers of text on the host say, if there are any.
    """


@dataclasses.dataclass(frozen=True)
class Player:
  """Who writes the completions of a phase, in the graph.

  Attributes:
    play: (parameters of members by name, prompts, key) -> a rollout.
    greedy: The greedy completion of each prompt; None if no algorithm needs it.
  """

  play: Callable[..., Rollout]
  greedy: Callable[..., Rollout] | None = None


def _no_state(config: Any) -> tuple[PyTree, PyTree]:
  del config
  return {}, {}


def _same_state(config: Any, state: PyTree, metrics: Mapping) -> PyTree:
  del config, metrics
  return state


def _unprepared(config: Any, batch: TrainBatch) -> TrainBatch:
  del config
  return batch


def _no_terms(config: Any) -> dict[str, Term]:
  del config
  return {}


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """One published objective: functions of arrays and a frozen config.

  Attributes:
    name: Key in `ALGORITHMS`.
    config_class: Frozen dataclass with the paper's defaults; derives from
      `options.CommonConfig`.
    advantages: (config, batch) -> [B] or [B, T], from rewards, valid,
      group_id, lengths, entropy, values, state. Constants of the loss.
    policy_loss: (config, policy: PolicyOutputs, batch) -> [B] or [B, T], not
      aggregated; lower is better. None if the critic alone is trained.
    aggregate: A function of `ops/aggregation.py`.
    init: (config) -> (trainable, state); both may be empty.
    returns: (config, batch) -> [B, T], what a critic is to predict; once per
      batch, beside the advantages. None without a critic that predicts.
    prepare: (config, batch) -> batch; what else couples rows (pairs, ranks),
      once per batch, after the advantages and what is rejected.
    terms: (config) -> loss terms beside the policy's and the common ones.
    critic_loss: (config, values [B, T], batch) -> [B] or [B, T], of a critic
      that is trained beside the policy; None without one. `batch.values`, if
      needed, are its values at the start of the update.
    update_state: (config, state, metrics) -> state, inside the step.
    needs: Optional inputs read; `options.NEEDS` says what they are.
    couples_group: True if the gradient of one row depends on the current
      log-probs of the others of its group: whole groups then stay together.
      Their rows must be adjacent, as the sampler makes them.
    whole_completions: True if advantages are made of the tokens of a
      completion (places, lengths, entropies): all of them must be in one row,
      so contexts that were compacted cannot be trained.
    min_group_size: Completions per prompt below which it cannot learn.
    max_group_size: The most that it is defined for, or None.
  """

  name: str
  config_class: type
  advantages: Callable[[Any, TrainBatch], jax.Array]
  policy_loss: Callable[[Any, PolicyOutputs, TrainBatch], jax.Array] | None
  aggregate: Callable[[jax.Array, jax.Array], Weighted]
  init: Callable[[Any], tuple[PyTree, PyTree]] = _no_state
  returns: Callable[[Any, TrainBatch], jax.Array] | None = None
  prepare: Callable[[Any, TrainBatch], TrainBatch] = _unprepared
  terms: Callable[[Any], dict[str, Term]] = _no_terms
  critic_loss: Callable[[Any, jax.Array, TrainBatch], jax.Array] | None = None
  update_state: Callable[[Any, PyTree, Mapping], PyTree] = _same_state
  needs: tuple[str, ...] = ()
  couples_group: bool = False
  whole_completions: bool = False
  min_group_size: int = 1
  max_group_size: int | None = None
