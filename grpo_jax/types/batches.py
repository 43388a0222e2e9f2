"""The inputs and outputs of a loss: training batches, policy outputs, terms."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
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


def _record(kind: type) -> Any:
  """A record of fields, which is empty unless its provider fills it."""
  return dataclasses.field(default_factory=kind, metadata={"record": kind})


# Fields are typed as present: an algorithm reads only fields that it names in
# `needs`, and a field without a provider raises before tracing.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PromptFields:
  """The prompts of a batch, shared by the rows that point at them.

  Attributes:
    tokens, mask, images: As in `Prompts`.
    routing: Experts that the sampler used, as `prompt_routing` in `Rollout`.
  """

  tokens: jax.Array = _field("prompt")  # [P, S] int32
  mask: jax.Array = _field("prompt")  # [P, S] bool
  images: Images | None = _optional("prompt")  # each [P, ...]
  routing: jax.Array = _optional("prompt")  # [P, S, layers, k]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplerFields:
  """Records of the sampler; empty if the completions come from data.

  Attributes:
    behavior_logp, entropy, kept_ids: As in `Rollout`.
    logp: Log-probs without filters, as `sampler_logp` in `Rollout`.
    lengths: Number of tokens that the policy wrote in each completion. Tokens
      of an environment do not count; rows that are not trained have lengths
      too.
    routing: Experts that the sampler used, as in `Rollout`; the policy then
      uses the same experts.
    mix_ids, mix_weights: Mixed inputs, as in `Rollout`; every model then reads
      these rows of its own embedding table, with these weights, in the place of
      completion tokens.
  """

  behavior_logp: jax.Array = _optional(
    "token", "masked", "behavior_logp", "recorded while sampling (phase rl)"
  )  # [B, T] float32
  logp: jax.Array = _optional("token", "masked")  # [B, T] float32
  entropy: jax.Array = _optional(
    "token", "masked", "behavior_entropy", "recorded while sampling (phase rl)"
  )  # [B, T] float32
  kept_ids: jax.Array = _optional(
    "token", need="kept_ids", provider="sampling with top_k (phase rl)"
  )  # [B, T, K] int32
  lengths: jax.Array = _optional(
    "row", need="lengths", provider="completions that are sampled (phase rl)"
  )  # [B] int32
  routing: jax.Array = _optional(
    "token", need="routing", provider="sampling from a model with experts"
  )  # [B, T, layers, k]
  mix_ids: jax.Array = _optional("token")  # [B, T, k] int32
  mix_weights: jax.Array = _optional("token")  # [B, T, k] float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScoreFields:
  """Scores beside the reward of each row.

  Attributes:
    components: Each reward before weights, in sorted order of their names;
      NaN = not applicable.
    component_weights: Weight of each component.
    step_rewards, step_mask: Scores of steps, as in `Scored`.
    token_rewards: Dense rewards (a KL penalty); 0 elsewhere.
    greedy: Reward of the greedy completion of the row's prompt.
    expected: Estimate from earlier steps of the probability that a completion
      of the row's prompt is right.
  """

  components: jax.Array = _optional(
    "row", "wide", "components", "the verifiers (phase rl)"
  )  # [B, K] float32
  component_weights: jax.Array = _optional("shared")  # [K]
  step_rewards: jax.Array = _optional(
    "token", "wide", "step_rewards", "a task whose verifier judges steps"
  )  # [B, T] float32
  step_mask: jax.Array = _optional("token")  # [B, T] bool
  token_rewards: jax.Array = _optional(
    "token", "masked", "token_rewards", "a KL in the reward (every phase)"
  )  # [B, T] float32
  greedy: jax.Array = _optional(
    "row", "wide", "greedy_rewards", "a greedy rollout (phase rl)"
  )  # [B] float32
  expected: jax.Array = _optional(
    "row",
    "wide",
    "expected",
    "a schedule that counts what became of each prompt"
    " (config.rl.schedule.name='spo', 'uniform', …)",
  )  # [B] float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TurnFields:
  """Turns of an environment.

  Attributes:
    index, rewards, state_id: As `turn`, `turn_rewards` and `state_id` in
      `Rollout`.
  """

  index: jax.Array = _optional(
    "token", need="turns", provider="a task with an environment"
  )  # [B, T] int32
  rewards: jax.Array = _optional("token", "masked")  # [B, T] float32
  state_id: jax.Array = _optional(
    "token", need="state_id", provider="a task with an environment"
  )  # [B, T] int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TraceFields:
  """Rollouts of several rows; empty if each row is a rollout of its own.

  Attributes:
    id, order, is_last: As in `Traces`.
  """

  id: jax.Array = _optional("row")  # [B] int32
  order: jax.Array = _optional("row")  # [B] int32
  is_last: jax.Array = _optional("row")  # [B] bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AnswerFields:
  """Known answers that are appended after each segment.

  Attributes:
    ids: The opener, an answer, the closer, and -1 in the slots behind.
    utility: Utility of each answer, the best ones first; 0 for an empty place.
    segment_end: True on the last token of each segment.
    prefix_utility: Expected utility of the prefix before the segment that a
      token is part of.
  """

  ids: jax.Array = _optional("row")  # [B, C, F] int32
  utility: jax.Array = _optional("row")  # [B, C] float32
  segment_end: jax.Array = _optional("token")  # [B, T] bool
  prefix_utility: jax.Array = _optional(
    "token",
    "masked",
    "prefix_utility",
    "a task that knows a right answer, between tags: add, sort or multi",
  )  # [B, T] float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AnchorFields:
  """Outputs of the policy at the start of the update, beside `old_logp`.

  Attributes:
    sum_pi_squared: Σ_v π(v)².
    routing: Experts used for each prediction; None again once `router_load` is
      computed from them.
    router_load: Share of each expert in the choices of all trained tokens; the
      shares of a layer add up to 1.
  """

  sum_pi_squared: jax.Array = _optional(
    "token",
    "masked",
    "sum_pi_squared",
    "the policy before the update (every phase)",
  )  # [B, T]
  routing: jax.Array = _optional("token")  # [B, T, layers, k]
  router_load: jax.Array = _optional(
    "shared", need="router", provider="a model with experts (every phase)"
  )  # [layers, E]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReferenceFields:
  """Outputs of the frozen reference or teacher.

  Attributes:
    logp: Log-probs of the completion tokens.
    h: Hidden states.
    topk_ids, topk_logp: The K likeliest tokens.
  """

  logp: jax.Array = _optional(
    "token", "masked", "ref_logp", "the frozen reference (every phase)"
  )  # [B, T] float32
  h: jax.Array = _optional("token")  # [B, T, D]
  topk_ids: jax.Array = _optional("token")  # [B, T, K] int32
  topk_logp: jax.Array = _optional(
    "token", "masked", "ref_topk", "the frozen reference (every phase)"
  )  # [B, T, K]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CriticFields:
  """Outputs of the critic at the start of the update.

  Attributes:
    values: Values of the states before each token.
    final_value: Value of the state after the last existing token of each row;
      arbitrary in a row without trained tokens.
  """

  values: jax.Array = _optional(
    "token", "masked", "values", "the critic before the update"
  )  # [B, T] float32
  final_value: jax.Array = _optional(
    "row", "wide", "final_value", "the critic before the update"
  )  # [B] float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
  """Everything a loss may read, except the policy being differentiated.

  Fields `[B, ...]` are per row; those of `prompts` are per prompt. Fields that
  come from one provider are a record. The text "reference.logp" names the field
  `logp` of the record `reference`. Fields that default to None are present only
  when the algorithm `needs` them; `needs_of` says by which name.

  Attributes:
    prompts: The prompts.
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
    domain: Domain of the row's prompt, from 0.
    old_logp: Log-probs at the start of the update (the anchor of ratios).
    advantages: Per row or per token; a constant of the loss.
    returns: Targets of the critic.
    policy_weight: Constant factor of each token's policy loss.
    pair_role: +1 for the better and -1 for the worse row of a group's pair
      of preferences, 0 for the others.
    selected: Tokens that the algorithm treats differently.
    sampler, scores, turns, traces, answers, anchor, reference, critic: Records;
      see their types.
    state: The algorithm's own running state, as arrays.
    coefficients: Weights of loss terms that adapt, by the term's name.
    key: Random key of an update.
    num_groups: Static upper bound of `group_id`, exclusive.
  """

  prompts: PromptFields = dataclasses.field(metadata={"record": PromptFields})
  prompt_index: jax.Array = _field("row")  # [B] int32
  group_id: jax.Array = _field("row")  # [B] int32
  tokens: jax.Array = _field("token")  # [B, T] int32
  completion_mask: jax.Array = _field("token")  # [B, T] bool
  mask: jax.Array = _field("token")  # [B, T] bool
  rewards: jax.Array = _field("row", clean="wide")  # [B] float32
  valid: jax.Array = _field("row")  # [B] bool
  terminated: jax.Array = _field("row")  # [B] bool
  correct: jax.Array = _field("row")  # [B] bool
  domain: jax.Array = _optional(
    "row", need="domain", provider="records with an integer 'domain'"
  )  # [B] int32
  old_logp: jax.Array = _optional(
    "token", "masked", "old_logp", "the policy before the update (every phase)"
  )  # [B, T] float32
  advantages: jax.Array = _optional("token", "masked")  # [B] or [B, T]
  returns: jax.Array = _optional("token", "masked")  # [B, T] float32
  policy_weight: jax.Array = _optional("token", "masked")  # [B, T] float32
  pair_role: jax.Array = _optional("row")  # [B] float32
  selected: jax.Array = _optional("token")  # [B, T] bool
  sampler: SamplerFields = _record(SamplerFields)
  scores: ScoreFields = _record(ScoreFields)
  turns: TurnFields = _record(TurnFields)
  traces: TraceFields = _record(TraceFields)
  answers: AnswerFields = _record(AnswerFields)
  anchor: AnchorFields = _record(AnchorFields)
  reference: ReferenceFields = _record(ReferenceFields)
  critic: CriticFields = _record(CriticFields)
  state: PyTree = _optional("shared")
  coefficients: dict[str, jax.Array] = dataclasses.field(
    default_factory=dict, metadata={"kind": "shared"}
  )
  key: jax.Array = _optional("shared")  # [] PRNG key
  num_groups: int = dataclasses.field(
    default=1, metadata={"static": True, "kind": "shared"}
  )


def _fields(owner: type) -> dict[str, Mapping[str, Any]]:
  """Metadata of each field of a dataclass, and of its records, by name."""
  fields: dict[str, Mapping[str, Any]] = {}
  for field in dataclasses.fields(owner):
    record = field.metadata.get("record")
    if record is None:
      fields[field.name] = field.metadata
    else:
      inner = _fields(record).items()
      fields |= {f"{field.name}.{name}": metadata for name, metadata in inner}
  return fields


def fields_where(owner: type, **metadata: str) -> tuple[str, ...]:
  """Names of the fields of a dataclass that have this metadata.

  Args:
    owner: `TrainBatch` or `PolicyOutputs`.
    **metadata: As `kind="token"`; see `_field`.
  """
  return tuple(
    name
    for name, has in _fields(owner).items()
    if all(has.get(k) == v for k, v in metadata.items())
  )


def needs_of(owner: type) -> dict[str, str]:
  """The name in `needs` that asks for each optional field."""
  fields = _fields(owner).items()
  return {name: has["need"] for name, has in fields if has.get("need")}


def providers(owner: type) -> dict[str, str]:
  """The provider of each input that an algorithm may name in `needs`."""
  fields = _fields(owner).values()
  return {has["need"]: has["provider"] for has in fields if has.get("need")}


def get_field(batch: TrainBatch | PolicyOutputs, name: str) -> Any:
  """The field with a name of `fields_where`."""
  return operator.attrgetter(name)(batch)


def present_fields(
  batch: TrainBatch | PolicyOutputs, **metadata: str
) -> dict[str, Any]:
  """The fields that `fields_where` names and that are not None, by name."""
  names = fields_where(type(batch), **metadata)
  fields = {name: get_field(batch, name) for name in names}
  return {name: x for name, x in fields.items() if x is not None}


def set_fields(batch: TrainBatch, fields: Mapping[str, Any]) -> TrainBatch:
  """Replaces fields, by the names of `fields_where`."""
  own: dict[str, Any] = {}
  inner: dict[str, dict[str, Any]] = {}
  for name, x in fields.items():
    record, _, field = name.rpartition(".")
    (inner.setdefault(record, {}) if record else own)[field] = x
  for record, changed in inner.items():
    own[record] = dataclasses.replace(getattr(batch, record), **changed)
  return dataclasses.replace(batch, **own)


def row_arrays(batch: TrainBatch) -> dict[str, jax.Array]:
  """Row-indexed fields by name; `set_fields` takes them back."""
  return present_fields(batch, kind="row") | present_fields(batch, kind="token")


def first_slots(
  rows: dict[str, jax.Array], num_slots: int
) -> dict[str, jax.Array]:
  """Row-indexed fields, the token fields cut to the first `num_slots` slots."""
  tokens = fields_where(TrainBatch, kind="token")
  return {  # Advantages may be per row.
    name: x[:, :num_slots] if name in tokens and x.ndim > 1 else x
    for name, x in rows.items()
  }


class RouterOutputs(NamedTuple):
  """Choices of routers and indexers behind the prediction of each token.

  Attributes:
    probs: Distribution over all experts; None without experts.
    ids: The experts that were used; None without experts.
    index_loss: The loss of the indexers, nats (`models/indexer.py`); None
      without indexers.
    index_changed: Share of the tokens that the indexers would choose now and
      that are not among those of the record; 0 without a record, None without
      indexers.
  """

  probs: jax.Array | None = None  # [B, T, layers, E]
  ids: jax.Array | None = None  # [B, T, layers, k] int32
  index_loss: jax.Array | None = None  # [B, T, layers]
  index_changed: jax.Array | None = None  # [B, T, layers]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyOutputs:
  """Outputs of the policy that a loss differentiates.

  Attributes:
    logp: Log-prob of each completion token, nats.
    entropy: Entropy of each token's distribution, nats; if needed.
    topk_logp: Log-probs of the reference's K likeliest tokens; if needed.
    ref_kl: KL to the reference over the whole vocabulary, nats; if needed.
    aux: `RouterOutputs` of a model with experts or indexers, else None.
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
  """A mean: a sum and the weight to divide it by, after all sums are added."""

  total: jax.Array  # []
  weight: jax.Array  # []


class Maximum(NamedTuple):
  """The largest number of some rows; of several parts, the largest of all."""

  value: jax.Array  # []


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
    metrics: name -> a mean or a maximum of all micro-batches.
  """

  terms: dict[str, tuple[jax.Array | float, Weighted]]
  metrics: dict[str, Weighted | Maximum]
