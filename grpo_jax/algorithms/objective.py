"""The common part of all objectives.

The module of an algorithm chooses an advantage, a ratio, a surrogate and an
aggregation. This module does the rest, in two stages. `prepare` runs once per
batch and does all that couples rows: shaped rewards, advantages, rejection,
importance weights. `loss` runs once per micro-batch and does all that depends
on the policy: sanitised inputs, the policy term, KL, entropy, aggregation,
metrics. The options are those of `options.CommonConfig`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from grpo_jax.algorithms import distillation, options, policy_metrics
from grpo_jax.algorithms.options import CommonConfig
from grpo_jax.ops import (
  aggregation,
  baselines,
  divergences,
  masked,
  ratios,
  returns,
  routing,
  shaping,
)
from grpo_jax.ops import importance as importance_lib
from grpo_jax.types import (
  Algorithm,
  LossOutput,
  Maximum,
  Metrics,
  PolicyOutputs,
  PromptFields,
  Prompts,
  PyTree,
  Rollout,
  RouterOutputs,
  SamplerFields,
  Scored,
  Term,
  TraceFields,
  TrainBatch,
  Weighted,
  present_fields,
  set_fields,
)


def init(algorithm: Algorithm, config: CommonConfig) -> tuple[PyTree, PyTree]:
  """The trainable parameters and the state of an algorithm at its start."""
  trainable, own = algorithm.init(config)
  coefficients = {}
  if config.kl_target:
    coefficients["kl"] = jnp.float32(config.kl_coef)
  if config.entropy_target:
    coefficients["entropy"] = jnp.float32(config.entropy_coef)
  return trainable, {"algorithm": own, "coefficients": coefficients}


def update_state(
  algorithm: Algorithm,
  config: CommonConfig,
  state: PyTree,
  metrics: Metrics,
  batch: TrainBatch,
  num_rollouts: jax.Array | int,
) -> PyTree:
  """The algorithm's state after a step with these metrics and rows."""
  coefficients = dict(state["coefficients"])
  if config.kl_target:
    kl = metrics["kl/reference"]
    adapted = shaping.adaptive_kl_coef(
      coefficients["kl"],
      kl,
      config.kl_target,
      config.kl_horizon,
      num_rollouts,
    )
    # NaN: no token was trained, so the KL is not known.
    coefficients["kl"] = jnp.where(jnp.isnan(kl), coefficients["kl"], adapted)
  if config.entropy_target:
    # Skywork-OR1, arXiv:2505.22312, Section 5: a constant step either way.
    low = metrics["entropy/mean"] < config.entropy_target
    step = jnp.where(low, 1.0, -1.0) * config.entropy_coef_step
    coefficients["entropy"] = jnp.maximum(coefficients["entropy"] + step, 0.0)
  own = algorithm.update_state(config, state["algorithm"], metrics, batch)
  return {"algorithm": own, "coefficients": coefficients}


def trained_tokens(
  config: CommonConfig, rollout: Rollout, scored: Scored
) -> jax.Array:  # [B, T] bool
  """True on tokens of the policy in scored rows of live groups."""
  rows = scored.valid  # [B]
  if config.dynamic_sampling:
    live = baselines.live_groups(
      scored.rewards,
      scored.valid & rollout.is_last,  # One row of each rollout.
      rollout.group_id,
      rollout.num_groups,
      config.min_reward_std,
    )  # [num_groups]
    if config.max_live_groups:
      live &= jnp.cumsum(live) <= config.max_live_groups
    rows &= live[rollout.group_id]
  return rollout.written & rows[:, None]


def make_train_batch(
  algorithm: Algorithm,
  config: CommonConfig,
  prompts: Prompts,
  rollout: Rollout,
  scored: Scored,
  state: PyTree,
  greedy: Scored | None = None,
) -> TrainBatch:
  """Joins completions, scores and state; advantages come with `prepare`.

  Args:
    algorithm: The objective.
    config: Config of the objective.
    prompts: P prompts.
    rollout: B completions of these prompts.
    scored: Scores of the completions.
    state: State of the algorithm; see `init`.
    greedy: Scores of the greedy completion of each prompt, if needed.
  """
  required = options.needs(algorithm, config)
  names = sorted(scored.components)
  batch = TrainBatch(
    prompts=PromptFields(prompts.tokens, prompts.mask, prompts.images),
    prompt_index=rollout.prompt_index,
    group_id=rollout.group_id,
    tokens=rollout.tokens,
    completion_mask=rollout.completion_mask,
    mask=trained_tokens(config, rollout, scored),
    rewards=masked.select(scored.rewards, scored.valid),
    valid=scored.valid,
    terminated=rollout.terminated,
    correct=scored.correct,
    sampler=SamplerFields(
      rollout.behavior_logp, rollout.sampler_logp, rollout.entropy
    ),
    state=state["algorithm"],
    coefficients=state["coefficients"],
    num_groups=rollout.num_groups,
  )
  optional: dict[str, Any] = {
    "sampler.mix_ids": rollout.mix_ids,  # Inputs of all models.
    "sampler.mix_weights": rollout.mix_weights,
  }
  if rollout.traces is not None:  # Each row has a prompt of its own.
    traces = rollout.traces
    optional |= {
      "prompts.tokens": traces.prompt_tokens,
      "prompts.mask": traces.prompt_mask,
      "prompt_index": jnp.arange(len(traces.id), dtype=jnp.int32),
      "traces": TraceFields(traces.id, traces.order, traces.is_last),
    }
  if "kept_ids" in required:
    optional["sampler.kept_ids"] = rollout.kept_ids
  if "lengths" in required:
    optional["sampler.lengths"] = rollout.lengths
  if "routing" in required:
    optional["sampler.routing"] = rollout.routing
    optional["prompts.routing"] = rollout.prompt_routing
  if "components" in required:
    columns = [scored.components[name] for name in names]
    optional["scores.components"] = jnp.stack(columns, axis=-1)  # [B, K]
    optional["scores.component_weights"] = jnp.stack(
      [jnp.asarray(scored.weights[name], columns[0].dtype) for name in names]
    )
  if "step_rewards" in required:
    optional["scores.step_rewards"] = scored.step_rewards
    optional["scores.step_mask"] = scored.step_mask
  if "turns" in required:
    optional["turns.index"] = rollout.turn
    optional["turns.rewards"] = rollout.turn_rewards
  if "state_id" in required:
    optional["turns.state_id"] = rollout.state_id
  if "greedy_rewards" in required:
    assert greedy is not None
    # An unscored greedy completion gives the baseline 0, as in REINFORCE.
    baseline = masked.select(greedy.rewards, greedy.valid)  # [P]
    optional["scores.greedy"] = baseline[rollout.prompt_index]
  if "domain" in prompts.extras:
    optional["domain"] = prompts.extras["domain"][rollout.prompt_index]
  return set_fields(batch, optional)


def _sanitized(x: jax.Array, mask: jax.Array) -> jax.Array:
  """Upcasts x and sets masked entries to 0, so that they get no gradient."""
  return masked.select(masked.wide(x), mask if x.ndim == 2 else mask[..., None])


def _sanitized_batch(batch: TrainBatch, mask: jax.Array) -> TrainBatch:
  clean = {
    name: _sanitized(value, mask)
    for name, value in present_fields(batch, clean="masked").items()
    if value.ndim > 1  # Advantages may be per row.
  }
  return set_fields(batch, {**clean, "mask": mask})


def _possible(
  algorithm: Algorithm,
  config: CommonConfig,
  required: frozenset[str],
  batch: TrainBatch,
) -> jax.Array:  # [B, T] bool
  """True on trained tokens with nonzero probability in all models that matter.

  These are the models whose log-probs the loss reads, except a teacher, whose
  log-probs `opd_clamp` bounds.
  """
  logps = []
  if "behavior_logp" in required:
    logps.append(batch.sampler.behavior_logp)
  if "old_logp" in required:
    logps.append(batch.old_logp)
  if config.kl_coef > 0 or "ref_logp" in algorithm.needs:
    logps.append(batch.reference.logp)
  mask = batch.mask
  for logp in logps:
    if logp is not None:
      mask = mask & ~jnp.isneginf(logp)
  return mask


def sanitize(
  policy: PolicyOutputs, batch: TrainBatch
) -> tuple[PolicyOutputs, TrainBatch]:
  """Upcasts every per-token input and zeroes it where it is not trained.

  A trained token with log-prob −inf (a logit masked to −inf in training but not
  in sampling) counts as not trained. For log-probs of other models, `prepare`
  has done the same. NaN stays, so that a broken policy is visible.
  """
  mask = batch.mask & ~jnp.isneginf(policy.logp)
  clean: dict[str, Any] = {
    name: _sanitized(value, mask)
    for name, value in present_fields(policy, clean="masked").items()
  }
  return dataclasses.replace(policy, **clean), _sanitized_batch(batch, mask)


def _kl_coefficient(config: CommonConfig, batch: TrainBatch):
  """The weight of the KL: fixed, or the current one if it adapts."""
  return batch.coefficients.get("kl", config.kl_coef)


def _domain_weights(config: CommonConfig, batch: TrainBatch):
  """The factor of the KL of each row [B, 1], or 1."""
  if not config.kl_domain_weights:
    return 1.0
  return jnp.asarray(config.kl_domain_weights)[batch.domain][:, None]


def _with_shaped_rewards(
  config: CommonConfig, required: frozenset[str], batch: TrainBatch
) -> TrainBatch:
  """Adds the overlong punishment and the KL to the rewards."""
  extra = jnp.zeros_like(batch.rewards)
  budget = batch.mask.shape[-1]
  cache = round(config.overlong_cache * budget)  # tokens
  if cache:
    lengths = batch.completion_mask.sum(axis=-1)  # [B]
    extra += shaping.soft_overlong(lengths, budget, cache).astype(extra.dtype)
  dense = jnp.zeros(batch.mask.shape, batch.rewards.dtype)
  if config.kl_in_reward and config.kl_coef > 0:
    kl = divergences.kl(batch.old_logp, batch.reference.logp, batch.mask, "k1")
    kl *= _kl_coefficient(config, batch) * _domain_weights(config, batch)
    dense -= masked.select(kl, batch.mask).astype(dense.dtype)  # [B, T]
  if "token_rewards" in required:
    batch = set_fields(batch, {"scores.token_rewards": dense})
  else:
    in_all = dense.sum(axis=-1)  # [B]
    if batch.traces.id is not None:  # Lengths of whole rollouts.
      in_all = returns.over_traces(in_all, batch.traces.id)
    extra += in_all
  return dataclasses.replace(
    batch, rewards=masked.select(batch.rewards + extra, batch.valid)
  )


def without_overlong(config: CommonConfig, batch: TrainBatch) -> TrainBatch:
  """Removes rows that were cut off, if the overlong filter is on."""
  if not config.overlong_filter:
    return batch
  return dataclasses.replace(batch, mask=batch.mask & batch.terminated[:, None])


def _without_rejected(config: CommonConfig, batch: TrainBatch) -> TrainBatch:
  """Leaves out tokens or completions whose sampler and trainer disagree."""
  if config.rejection == "none":
    return batch
  statistic, _, kind = config.rejection.rpartition("_")
  mask = importance_lib.rejection_mask(
    batch.old_logp - batch.sampler.behavior_logp,
    batch.mask,
    statistic,
    kind,
    config.rejection_low,
    config.rejection_high,
  )
  return dataclasses.replace(batch, mask=mask)


def _with_weights(config: CommonConfig, batch: TrainBatch) -> TrainBatch:
  """Adds weights of trained tokens; adapts the coefficient of the entropy."""
  mask = batch.mask
  weights = [] if batch.policy_weight is None else [batch.policy_weight]
  if config.importance_mode != "none":
    importance = importance_lib.importance_weights(
      batch.old_logp - batch.sampler.behavior_logp,
      mask,
      config.importance_level,
      config.importance_mode,
      config.importance_max,
      config.importance_min,
    )
    if config.importance_normalize:
      importance = importance_lib.batch_normalized(
        importance, mask, config.importance_level
      )
    weights.append(importance)
  if config.top_entropy_fraction < 1:
    high = importance_lib.top_entropy_mask(
      batch.sampler.entropy, mask, config.top_entropy_fraction
    )
    weights.append(high.astype(batch.sampler.entropy.dtype))
  if config.token_mean_scope == "group":
    equal = aggregation.equal_weights(mask, batch.group_id, batch.num_groups)
    weights.append(jnp.broadcast_to(equal, mask.shape))
  if weights:
    product = functools.reduce(jnp.multiply, weights)
    batch = dataclasses.replace(batch, policy_weight=product)
  if config.entropy_target:
    below = masked.mean(batch.sampler.entropy, mask) <= config.entropy_target
    adapted = jnp.where(below, batch.coefficients["entropy"], 0.0)
    batch = dataclasses.replace(
      batch, coefficients={**batch.coefficients, "entropy": adapted}
    )
  return batch


@options.naming_what_is_missing
def prepare(
  algorithm: Algorithm, config: CommonConfig, batch: TrainBatch
) -> TrainBatch:
  """Adds advantages and all else that couples rows, once per batch.

  Args:
    algorithm: The objective.
    config: Config of the objective.
    batch: All rows of a step, with the frozen log-probs that are needed.
  """
  required = options.needs(algorithm, config)
  mask = _possible(algorithm, config, required, batch)
  batch = _sanitized_batch(batch, mask)
  scores = present_fields(batch, clean="wide")
  batch = set_fields(batch, {k: masked.wide(x) for k, x in scores.items()})
  batch = _with_shaped_rewards(config, required, batch)
  # One row of each rollout is compared with other rollouts. If an algorithm
  # has advantages per token, the tokens of all rows have advantages.
  compared = batch
  if batch.traces.is_last is not None:
    compared = dataclasses.replace(
      batch, valid=batch.valid & batch.traces.is_last
    )
  advantages = baselines.scaled(
    algorithm.advantages(config, compared),
    batch.rewards,
    batch.valid,
    batch.group_id,
    batch.num_groups,
    config.advantage_scale,
    eps=config.advantage_eps,
    compared=compared.valid,
  )
  if config.singleton == "raw":
    advantages = _with_singletons(batch, compared.valid, advantages)
  if batch.traces.is_last is not None and advantages.ndim == 1:
    advantages = returns.over_traces(
      masked.select(advantages, batch.traces.is_last), batch.traces.id
    )
  if config.opd_coef > 0 and config.opd_anchor == "start":
    advantages = distillation.with_teacher(
      config, batch, advantages, batch.old_logp
    )
  fields: dict[str, Any] = {"advantages": advantages}
  if algorithm.returns is not None:
    fields["returns"] = algorithm.returns(config, batch)
  batch = dataclasses.replace(batch, **jax.lax.stop_gradient(fields))
  # Weights come last: they cover the tokens that are still trained.
  batch = _without_rejected(config, without_overlong(config, batch))
  return _with_weights(config, algorithm.prepare(config, batch))


def _with_singletons(
  batch: TrainBatch, compared: jax.Array, advantages: jax.Array
) -> jax.Array:
  """Sets the advantage of a completion alone in its group to its reward.

  Source: verl's `grpo`, which uses mean 0 and deviation 1 for a group of one.
  """
  count = baselines.group_statistics(
    batch.rewards, compared, batch.group_id, batch.num_groups
  ).num_valid
  alone = batch.valid & (count[batch.group_id] == 1)  # [B]
  rewards = batch.rewards
  if advantages.ndim == 2:
    alone, rewards = alone[:, None] & batch.mask, rewards[:, None]
  return jnp.where(alone, rewards, advantages)


def _policy_values(
  algorithm: Algorithm,
  config: CommonConfig,
  policy: PolicyOutputs,
  batch: TrainBatch,
) -> jax.Array:  # [B] or [B, T]
  """The algorithm's loss times the constant weights of its tokens."""
  assert algorithm.policy_loss is not None
  values = algorithm.policy_loss(config, policy, batch)
  weight = batch.policy_weight
  if config.off_policy_threshold > 0:
    keep = importance_lib.off_policy_sequence_mask(
      policy.logp,
      batch.sampler.behavior_logp,
      batch.advantages,
      batch.mask,
      config.off_policy_threshold,
    )
    weight = keep.astype(values.dtype) * (1.0 if weight is None else weight)
  if weight is None:
    return values
  if values.ndim == 1:
    weight = jnp.broadcast_to(weight, batch.mask.shape)
    weight = masked.mean(weight, batch.mask, axis=-1)  # [B]
  return jax.lax.stop_gradient(weight) * values


def _kl_values(
  config: CommonConfig, policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  """The KL to the reference at each token, before domain weights."""
  if config.kl_kind == "full":
    return policy.ref_kl
  return divergences.kl(
    policy.logp,
    batch.reference.logp,
    batch.mask,
    config.kl_kind,
    batch.old_logp,
  )


def _balance_values(
  policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  """The load-balance loss at each token."""
  assert policy.aux is not None
  assert policy.aux.probs is not None
  return routing.balance(policy.aux.probs, batch.anchor.router_load)


def _indexer_values(
  policy: PolicyOutputs, batch: TrainBatch
) -> jax.Array:  # [B, T]
  """The loss of the indexers at each token, mean over layers."""
  del batch
  assert policy.aux is not None
  assert policy.aux.index_loss is not None
  return policy.aux.index_loss.mean(axis=-1)


def _of_choices(
  config: CommonConfig, aux: RouterOutputs, mask: jax.Array
) -> dict[str, Weighted | Maximum]:
  """Metrics of routers and indexers."""
  metrics: dict[str, Weighted | Maximum] = {}
  if aux.probs is not None:
    assert aux.ids is not None
    entropy = aggregation.over_tokens(routing.entropy(aux.probs), mask)
    metrics["router/entropy"] = entropy
    metrics["router/load"] = routing.load(
      aux.ids, mask, num_experts=aux.probs.shape[-1]
    )
  if aux.index_changed is not None and config.keep_routing:
    changed = aux.index_changed.mean(axis=-1)  # [B, T]
    metrics["indexer/changed"] = aggregation.over_tokens(changed, mask)
  return metrics


def _aggregate(
  algorithm: Algorithm, config: CommonConfig
) -> Callable[[jax.Array, jax.Array], Weighted]:
  """The algorithm's aggregation, with the option `count_empty`."""
  if config.count_empty:
    return functools.partial(algorithm.aggregate, count_empty=True)
  return algorithm.aggregate


def _terms(algorithm: Algorithm, config: CommonConfig) -> dict[str, Term]:
  """The terms of the loss, by name, from the options."""
  terms = {}
  aggregate = _aggregate(algorithm, config)
  if algorithm.policy_loss is not None:
    terms["policy"] = Term(
      lambda batch: 1.0,
      functools.partial(_policy_values, algorithm, config),
      aggregate,
    )
  if config.kl_coef > 0 and not config.kl_in_reward:
    terms["kl"] = Term(
      functools.partial(_kl_coefficient, config),
      lambda policy, batch: (
        _domain_weights(config, batch) * _kl_values(config, policy, batch)
      ),
      aggregate,
    )
  if config.entropy_coef > 0 or config.entropy_target > 0:
    terms["entropy"] = Term(
      lambda batch: -batch.coefficients.get("entropy", config.entropy_coef),
      lambda policy, batch: policy.entropy,
      aggregation.over_tokens,
    )
  if config.positive_nll_coef > 0:  # VAPO, arXiv:2504.05118, Eq. 11.
    terms["positive_nll"] = Term(
      lambda batch: config.positive_nll_coef,
      lambda policy, batch: -policy.logp,
      aggregation.over_tokens,
      lambda batch: batch.mask & batch.correct[:, None],
    )
  if config.balance_coef > 0:
    terms["balance"] = Term(
      lambda batch: config.balance_coef,
      _balance_values,
      aggregation.over_tokens,
    )
  if config.indexer_coef > 0:
    terms["indexer"] = Term(
      lambda batch: config.indexer_coef,
      _indexer_values,
      aggregation.over_tokens,
    )
  return terms | algorithm.terms(config)


def term_weights(
  algorithm: Algorithm, config: CommonConfig, batch: TrainBatch
) -> dict[str, jax.Array]:
  """The denominator of each loss term over all rows of `batch`; never 0.

  It is summed over the whole minibatch (and all devices) before micro-batches
  are formed, so that all micro-batches divide by the same number.
  """
  zeros = jnp.zeros(batch.mask.shape, jnp.float32)
  return {
    name: jnp.maximum(term.aggregate(zeros, term.mask(batch)).weight, 1.0)
    for name, term in _terms(algorithm, config).items()
  }


def critic_weight(algorithm: Algorithm, batch: TrainBatch) -> jax.Array:
  """The denominator of the critic's loss; see `term_weights`."""
  zeros = jnp.zeros(batch.mask.shape, jnp.float32)
  return jnp.maximum(algorithm.aggregate(zeros, batch.mask).weight, 1.0)


@options.naming_what_is_missing
def critic_loss(
  algorithm: Algorithm,
  config: CommonConfig,
  values: jax.Array,
  batch: TrainBatch,
) -> Weighted:
  """The critic's loss over some rows, aggregated like the policy's loss.

  Args:
    algorithm: The objective; has a `critic_loss`.
    config: Config of the objective.
    values: Values [B, T] of the critic that is differentiated.
    batch: Prepared rows.
  """
  assert algorithm.critic_loss is not None
  batch = _sanitized_batch(batch, batch.mask)
  values = _sanitized(values, batch.mask)
  errors = algorithm.critic_loss(config, values, batch)  # [B] or [B, T]
  return algorithm.aggregate(errors, batch.mask)


@options.naming_what_is_missing
def loss(
  algorithm: Algorithm,
  config: CommonConfig,
  policy: PolicyOutputs,
  batch: TrainBatch,
) -> LossOutput:
  """The loss terms of some rows, as totals and weights.

  Args:
    algorithm: The objective.
    config: Config of the objective.
    policy: Outputs of the policy being differentiated.
    batch: Prepared rows. If `old_logp` is needed and None, this forward pass is
      the anchor: the ratio is exactly 1 and its gradient flows.
  """
  required = options.needs(algorithm, config)
  policy, batch = sanitize(policy, batch)
  mask = batch.mask
  anchor = batch.old_logp
  if anchor is None:
    anchor = jax.lax.stop_gradient(policy.logp)
    if "old_logp" in required:
      batch = dataclasses.replace(batch, old_logp=anchor)
  batch = distillation.with_current_teacher(config, policy, batch)

  terms: dict[str, tuple[jax.Array | float, Weighted]] = {}
  for name, term in _terms(algorithm, config).items():
    values = term.values(policy, batch)  # [B] or [B, T]
    total = term.aggregate(values, term.mask(batch) & mask)
    terms[name] = (term.coefficient(batch), total)

  metrics: dict[str, Weighted | Maximum] = {}
  if config.kl_coef > 0:
    kl = _kl_values(config, policy, batch)
    metrics["kl/reference"] = aggregation.over_tokens(kl, mask)
  if config.opd_coef > 0:
    gap = ratios.log_ratio(policy.logp, batch.reference.logp, mask)
    metrics["kl/teacher"] = aggregation.over_tokens(gap, mask)
  if "entropy" in required:
    metrics["entropy/policy"] = aggregation.over_tokens(policy.entropy, mask)
  if batch.policy_weight is not None:
    metrics["policy_weight/mean"] = aggregation.over_tokens(
      batch.policy_weight, mask
    )
  if "old_logp" in required:
    if algorithm.policy_loss is not None:
      metrics |= policy_metrics.of_clips(algorithm, config, policy, batch)
    log_ratio = jax.lax.stop_gradient(policy.logp) - anchor  # [B, T]
    ratio = jnp.exp(jnp.clip(log_ratio, -20.0, 20.0))
    metrics["ratio/mean"] = aggregation.over_tokens(ratio, mask)
    # KL(π_old ‖ π_θ): the anchor drew the tokens, so it comes first.
    metrics["kl/update"] = aggregation.over_tokens(
      divergences.kl_k3(-log_ratio), mask
    )
    # Over ratios of trained tokens only; 0 in a minibatch without any.
    metrics["ratio/max"] = Maximum(masked.maximum(ratio, mask))
    metrics["ratio/max_deviation"] = Maximum(
      masked.maximum(jnp.abs(ratio - 1), mask)
    )
  if batch.pair_role is not None and batch.reference.logp is not None:
    metrics |= policy_metrics.of_pairs(policy, batch)
  if policy.aux is not None:
    metrics |= _of_choices(config, policy.aux, mask)
  if batch.sampler.logp is not None:
    # The sampler's records of the distribution that is trained.
    sampled = (
      batch.sampler.behavior_logp
      if config.keep_sampling_mask
      else batch.sampler.logp
    )
    gap = jnp.abs(anchor - sampled)
    metrics["sampler_gap/mean"] = aggregation.over_tokens(gap, mask)
    metrics["sampler_gap/max"] = Maximum(masked.maximum(gap, mask))
  return LossOutput(terms, jax.lax.stop_gradient(metrics))
