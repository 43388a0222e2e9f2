"""The inputs and outputs of a loss: training batches, policy outputs, terms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from grpo_jax.types.common import Images, PyTree


def _field(kind: str, clean: str = "", **more: Any) -> Any:
  """A field of a batch, with the metadata that the system reads.

  Args:
    kind: The leading axes: "token" [B, T, ...] (advantages also [B]), "row"
      [B, ...], "prompt" [P, ...], or "shared".
    clean: The cleaning before a loss reads the field. "masked": the field is
      at least float32, and 0 where a token is not trained. "wide": it is at
      least float32. "": none.
    **more: Arguments of `dataclasses.field`.
  """
  metadata = {"kind": kind, "clean": clean, **more.pop("metadata", {})}
  return dataclasses.field(metadata=metadata, **more)


def _optional(
  kind: str, clean: str = "", need: str = "", provider: str = ""
) -> Any:
  """A field that is None unless a provider fills it.

  Args:
    kind, clean: Kind and cleaning of the field, as in `_field`.
    need: The name in `needs` with which an algorithm asks for the field. "":
      the field comes with others, or no algorithm asks for it.
    provider: The provider of the field, for messages.
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
    prompt_tokens, prompt_mask, images: The prompts, as in `Prompts`.
    prompt_index: Prompt of each row. If the rows of a group share the forward
      pass of their prompt, the batch of a step has one group per prompt, in
      the order of the prompts. Minibatches may have them in any order.
    group_id: Baseline group of each row, in [0, num_groups).
    tokens: Completion tokens.
    completion_mask: Tokens that exist (attention, lengths).
    mask: Tokens that are trained: a subset of `completion_mask` without
      observations, filtered, truncated-and-excluded or unscored rows.
    rewards: Scalar reward of each row, 0 where not `valid`.
    valid: Rows that were scored.
    terminated: Rows that were not cut off.
    correct: Rows with a right answer.
    lengths: Number of tokens that the policy wrote in each completion. Tokens
      of an environment do not count; rows that are not trained have lengths
      too.
    behavior_logp, sampler_logp, entropy, kept_ids: Records of the sampler, as
      in `Rollout`; None if the completions come from data.
    routing, prompt_routing: Experts that the sampler used, as in `Rollout`; the
      policy then uses the same experts.
    mix_ids, mix_weights: Mixed inputs of the sampler, as in `Rollout`; every
      model then reads these rows of its own embedding table, with these
      weights, in the place of completion tokens.
    anchor_routing: Experts used for each prediction, at the start of the
      update; None again once `router_load` is computed from them.
    router_load: Share of each expert in the choices of all trained tokens,
      at the start of the update; the shares of a layer add up to 1.
    components: Each reward before weights, in sorted order of their names;
      NaN = not applicable.
    component_weights: Weight of each component.
    step_rewards, step_mask: Scores of steps, as in `Scored`.
    answers: Known answers that are appended after each segment: the opener, an
      answer, the closer, and -1 in the slots behind.
    answer_utility: Utility of each answer, the best ones first; 0 for an empty
      place.
    segment_end: True on the last token of each segment.
    prefix_utility: Expected utility of the prefix before the segment that a
      token is part of.
    turn, turn_rewards, state_id: Turns, their rewards and states, as in
      `Rollout`.
    trace_id, trace_order, is_last: Rollout of each row, the row's place in it,
      and True for the last row; None if each row is a rollout of its own.
    greedy_rewards: Reward of the greedy completion of the row's prompt.
    expected: Estimate from earlier steps of the probability that a completion
      of the row's prompt is right.
    domain: Domain of the row's prompt, from 0.
    old_logp: Log-probs at the start of the update (the anchor of ratios).
    sum_pi_squared: Σ_v π(v)² at the start of the update.
    ref_logp: Log-probs under the frozen reference.
    ref_h: Hidden states of the reference.
    ref_topk_ids, ref_topk_logp: The reference's K likeliest tokens.
    values: A critic's values at the start of the update.
    final_value: The critic's value of the state after the last existing token
      of each row; arbitrary in a row without trained tokens.
    token_rewards: Dense rewards beside `rewards` (a KL penalty); 0 elsewhere.
    advantages: Per row or per token; a constant of the loss.
    returns: Targets of the critic.
    policy_weight: Constant factor of each token's policy loss.
    pair_role: +1 for the better and -1 for the worse row of a group's pair
      of preferences, 0 for the others.
    selected: Tokens that the algorithm treats differently.
    state: The algorithm's own running state, as arrays.
    coefficients: Weights of loss terms that adapt, by the term's name.
    key: Random key of an update.
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
  # Typed as present: an algorithm reads only fields that it names in `needs`,
  # and a field without a provider raises before tracing.
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
  images: Images = _optional("prompt")  # each [P, ...]
  mix_ids: jax.Array = _optional("token")  # [B, T, k] int32
  mix_weights: jax.Array = _optional("token")  # [B, T, k] float32
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
  answers: jax.Array = _optional("row")  # [B, C, F] int32
  answer_utility: jax.Array = _optional("row")  # [B, C] float32
  segment_end: jax.Array = _optional("token")  # [B, T] bool
  prefix_utility: jax.Array = _optional(
    "token",
    "masked",
    "prefix_utility",
    "a task that knows a right answer, between tags: add, sort or multi",
  )  # [B, T] float32
  turn: jax.Array = _optional(
    "token", need="turns", provider="a task with an environment"
  )  # [B, T] int32
  turn_rewards: jax.Array = _optional("token", "masked")  # [B, T] float32
  state_id: jax.Array = _optional(
    "token",
    need="state_id",
    provider="a task with an environment",
  )  # [B, T] int32
  trace_id: jax.Array = _optional("row")  # [B] int32
  trace_order: jax.Array = _optional("row")  # [B] int32
  is_last: jax.Array = _optional("row")  # [B] bool
  lengths: jax.Array = _optional(
    "row", need="lengths", provider="completions that are sampled (phase rl)"
  )  # [B] int32
  greedy_rewards: jax.Array = _optional(
    "row", "wide", "greedy_rewards", "a greedy rollout (phase rl)"
  )  # [B] float32
  expected: jax.Array = _optional(
    "row",
    "wide",
    "expected",
    "a schedule that counts what became of each prompt"
    " (config.rl.schedule.name='spo', 'uniform', …)",
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
  final_value: jax.Array = _optional(
    "row", "wide", "final_value", "the critic before the update"
  )  # [B] float32
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
  """Names of the fields of a dataclass that have this metadata.

  Args:
    owner: `TrainBatch` or `PolicyOutputs`.
    **metadata: As `kind="token"`; see `_field`.
  """
  return tuple(
    field.name
    for field in dataclasses.fields(owner)
    if all(field.metadata.get(k) == v for k, v in metadata.items())
  )


def needs_of(owner: type) -> dict[str, str]:
  """The name in `needs` that asks for each optional field."""
  return {
    field.name: field.metadata["need"]
    for field in dataclasses.fields(owner)
    if field.metadata.get("need")
  }


def providers(owner: type) -> dict[str, str]:
  """The provider of each input that an algorithm may name in `needs`."""
  return {
    field.metadata["need"]: field.metadata["provider"]
    for field in dataclasses.fields(owner)
    if field.metadata.get("need")
  }


def row_arrays(batch: TrainBatch) -> dict[str, jax.Array | None]:
  """Row-indexed fields by name; `dataclasses.replace` takes them back."""
  names = (
    *fields_where(TrainBatch, kind="row"),
    *fields_where(TrainBatch, kind="token"),
  )
  return {name: getattr(batch, name) for name in names}


def first_slots(
  rows: dict[str, jax.Array | None], num_slots: int
) -> dict[str, jax.Array | None]:
  """Row-indexed fields, the token fields cut to the first `num_slots` slots."""
  tokens = fields_where(TrainBatch, kind="token")

  def cut(name, x):
    # Advantages may be per row.
    is_cut = x is not None and name in tokens and x.ndim > 1
    return x[:, :num_slots] if is_cut else x

  return {name: cut(name, x) for name, x in rows.items()}


class RouterOutputs(NamedTuple):
  """Router probabilities and experts behind the prediction of each token.

  Attributes:
    probs: Distribution over all experts.
    ids: The experts that were used.
  """

  probs: jax.Array  # [B, T, layers, E]
  ids: jax.Array  # [B, T, layers, k] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyOutputs:
  """Outputs of the policy that a loss differentiates.

  Attributes:
    logp: Log-prob of each completion token, nats.
    entropy: Entropy of each token's distribution, nats; if needed.
    topk_logp: Log-probs of the reference's K likeliest tokens; if needed.
    ref_kl: KL to the reference over the whole vocabulary, nats; if needed.
    aux: `RouterOutputs` of a model with experts, else None.
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
  """A term of a loss: coefficient · aggregate(values, mask).

  Attributes:
    coefficient: (batch) -> a number, or an array if it adapts.
    values: (policy, batch) -> per row [B] or per token [B, T].
    aggregate: A function of `ops/aggregation.py`.
    mask: (batch) -> [B, T], the tokens of the term. The mask must not depend
      on the policy, because denominators are summed before the policy runs.
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
