"""Cases of peers' losses, rebuilt from the functions of `grpo_jax.ops`.

Each check takes the hyperparameters and the inputs of one recorded case and
returns what our composition gives for its outputs and gradients, by the names
of the case. Where a peer differs from us in a detail (a count, a clamp, a
small number in a denominator), the line that follows the peer says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.algorithms import objective
from grpo_jax.data import pipeline
from grpo_jax.ops import (
  aggregation,
  distillation,
  divergences,
  importance,
  logprobs,
  masked,
  preferences,
  ratios,
  returns,
  surrogates,
  values,
)
from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import executors
from grpo_jax.types import PolicyOutputs, set_fields

Arrays = dict[str, jax.Array]
Check = Callable[[dict, dict[str, np.ndarray]], tuple[Arrays, Arrays]]

_CLAMP = 20.0  # verl, on the log-ratios of most losses; TRL has none.


def _arrays(inputs: dict[str, np.ndarray]) -> Arrays:
  return {name: jnp.asarray(value) for name, value in inputs.items()}


def _outcome(
  function: Callable[..., tuple[jax.Array, Arrays]],
  inputs: dict[str, np.ndarray],
  *names: str,
) -> tuple[Arrays, Arrays]:
  """The loss with its metrics, and its gradients by the inputs of these names.

  The function returns the loss and the metrics.
  """
  (loss, metrics), gradients = jax.value_and_grad(
    function, tuple(range(len(names))), has_aux=True
  )(*(jnp.asarray(inputs[name]) for name in names))
  outputs = {"loss": loss, **metrics}
  return outputs, dict(zip(names, gradients, strict=True))


# --- verl --------------------------------------------------------------------


def _verl_aggregate(x, mask, hyper, mode=None):  # [B, T], [B, T] -> []
  """`agg_loss`: our totals over verl's denominators."""
  mode = mode or hyper["loss_agg_mode"]
  # Counts of the global batch, if given, belong to all data-parallel workers.
  workers = hyper.get("dp_size", 1)
  if mode == "token-mean":
    total, weight = aggregation.over_tokens(x, mask)
    weight = hyper.get("batch_num_tokens") or weight
  elif mode == "seq-mean-token-mean":
    total, weight = aggregation.over_sequences(x, mask)
    weight = hyper.get("global_batch_size") or weight
  elif mode == "seq-mean-token-sum":
    total, weight = aggregation.over_sequence_sums(x, mask)
    weight = hyper.get("global_batch_size") or weight
  elif mode == "seq-mean-token-sum-norm":
    # Despite its name no mean over sequences, and blind to the workers.
    total, _ = aggregation.over_sequence_sums(x, mask)
    weight = hyper.get("loss_scale_factor") or mask.shape[-1]
    workers = 1
  else:
    raise ValueError(f"unknown loss_agg_mode {mode!r}")
  return total / weight * workers


def _agg_loss(hyper, inputs):
  mask = inputs["loss_mask"] > 0

  def function(x):
    return _verl_aggregate(x, mask, hyper), {}

  return _outcome(function, inputs, "loss_mat")


def _kl_penalty(hyper, inputs):
  kind = hyper["kl_penalty"]
  logp, ref = (jnp.asarray(inputs[n]) for n in ("log_prob", "ref_log_prob"))
  mask = jnp.ones(logp.shape, bool)  # The peer has no mask.

  def total(logp):
    kl = divergences.kl(logp, ref, mask, kind)
    if kind == "k3":  # The peer bounds its value.
      kl = jnp.clip(kl, -hyper["value_clamp"], hyper["value_clamp"])
    return kl.sum(), kl

  gradient, kl = jax.grad(total, has_aux=True)(logp)
  return {"kl": kl}, {"log_prob_of_sum": gradient}


def _verl_policy(surrogate, mode=None, clamp=_CLAMP) -> Check:
  """Computes one of verl's policy losses, from (logp, inputs, mask, hyper).

  `surrogate` returns the objective [B, T] and the clip metrics.
  """

  def check(hyper, inputs):
    inputs = _arrays(inputs)
    mask = inputs["response_mask"] > 0
    old = inputs.get("old_log_prob", inputs.get("rollout_log_prob"))

    def function(logp):
      objective, metrics = surrogate(logp, inputs, mask, hyper)
      if "rollout_is_weights" in inputs:
        objective *= inputs["rollout_is_weights"]
      loss = _verl_aggregate(-objective, mask, hyper, mode)
      if old is not None:
        gap = ratios.log_ratio(logp, old, mask)
        if clamp is not None:
          gap = jnp.clip(gap, -clamp, clamp)
        metrics = {"ppo_kl": -masked.mean(gap, mask), **metrics}
      return loss, metrics

    return _outcome(function, inputs, "log_prob")

  return check


def _clip_fraction(ratio, inputs, mask, hyper):  # []
  """Share of tokens where the clipped branch is strictly the smaller one."""
  advantages = inputs["advantages"]
  clipped = surrogates.clipped(
    ratio, advantages, hyper["clip_ratio_low"], hyper["clip_ratio_high"]
  )
  return masked.mean(_float(clipped < ratio * advantages, ratio), mask)


def _float(condition, like):
  return condition.astype(like.dtype)


def _vanilla(logp, inputs, mask, hyper):
  ratio = ratios.token_ratio(logp, inputs["old_log_prob"], mask, _CLAMP)
  widths = hyper["clip_ratio_low"], hyper["clip_ratio_high"]
  single = surrogates.clipped(ratio, inputs["advantages"], *widths)
  dual = surrogates.clipped(
    ratio, inputs["advantages"], *widths, dual_clip=hyper["clip_ratio_c"]
  )
  return dual, {
    "pg_clipfrac": _clip_fraction(ratio, inputs, mask, hyper),
    "pg_clipfrac_lower": masked.mean(_float(dual > single, ratio), mask),
  }


def _gspo(logp, inputs, mask, hyper):
  ratio = ratios.sequence_token_ratio(
    logp, inputs["old_log_prob"], mask, clamp=None
  )
  # The peer bounds the log-ratio at 10 from above only.
  ratio = jnp.minimum(ratio, np.exp(10.0))
  objective = surrogates.clipped(
    ratio,
    inputs["advantages"],
    hyper["clip_ratio_low"],
    hyper["clip_ratio_high"],
  )
  return objective, {
    "pg_clipfrac": _clip_fraction(ratio, inputs, mask, hyper),
    "pg_clipfrac_lower": jnp.zeros(()),
  }


def _sapo(logp, inputs, mask, hyper):
  ratio = ratios.token_ratio(logp, inputs["old_log_prob"], mask, _CLAMP)
  objective = surrogates.soft_gated(
    ratio, inputs["advantages"], hyper["tau_pos"], hyper["tau_neg"]
  )
  zero = jnp.zeros(())
  return objective, {"pg_clipfrac": zero, "pg_clipfrac_lower": zero}


def _cispo(logp, inputs, mask, hyper):
  ratio = ratios.token_ratio(logp, inputs["old_log_prob"], mask, _CLAMP)
  low, high = 1 - hyper["clip_ratio_low"], 1 + hyper["clip_ratio_high"]
  objective = surrogates.clipped_weight(
    ratio, logp, inputs["advantages"], low, high
  )
  outside = (ratio < low) | (ratio > high)
  return objective, {
    "pg_clipfrac": masked.mean(_float(outside, ratio), mask),
    "pg_clipfrac_lower": jnp.zeros(()),
  }


def _reinforce(logp, inputs, mask, hyper):
  del mask, hyper
  return surrogates.reinforce(logp, inputs["advantages"]), {}


def _clip_cov(logp, inputs, mask, hyper):
  advantages = inputs["advantages"]
  ratio = ratios.token_ratio(logp, inputs["old_log_prob"], mask, clamp=None)
  objective = surrogates.clipped(
    ratio, advantages, hyper["clip_ratio_low"], hyper["clip_ratio_high"]
  )
  dropped = surrogates.clip_cov_mask(
    surrogates.covariance(advantages, logp, mask),
    mask,
    objective >= ratio * advantages,
    hyper["clip_cov_ratio"],
    hyper["clip_cov_lb"],
    hyper["clip_cov_ub"],
    jax.random.key(0),  # Every candidate is chosen: the key does not matter.
  )
  return masked.select(objective, ~dropped), {
    "pg_clipfrac": masked.mean(_float(dropped, ratio), mask)
  }


def _kl_cov(logp, inputs, mask, hyper):
  old, advantages = inputs["old_log_prob"], inputs["advantages"]
  ratio = ratios.token_ratio(logp, old, mask, clamp=None)  # No clip at all.
  distance = divergences.kl(logp, old, mask, "abs")
  penalised = surrogates.kl_cov_mask(
    surrogates.covariance(advantages, logp, mask), mask, hyper["kl_cov_ratio"]
  )
  penalty = hyper["ppo_kl_coef"] * masked.select(distance, penalised)
  return ratio * advantages - penalty, {"ppo_kl": masked.mean(distance, mask)}


def _geo_mean(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["response_mask"] > 0
  low, high = hyper["clip_ratio_low"], hyper["clip_ratio_high"]
  # The peer takes advantages per token and averages them.
  advantages = masked.mean(inputs["advantages"], mask, axis=-1)  # [B]

  def function(logp):
    log_ratio = ratios.log_ratio(logp, inputs["old_log_prob"], mask)
    objective = surrogates.geometric_mean(
      log_ratio, advantages, mask, low, high, clamp=None
    )
    if "rollout_is_weights" in inputs:
      weights = jnp.log(inputs["rollout_is_weights"] + 1e-10)
      objective *= jnp.exp(masked.mean(weights, mask, axis=-1))
    # A mean over all rows, the empty ones too.
    loss = aggregation.over_sequences(-objective, mask).total / mask.shape[0]
    outside = (log_ratio < -low) | (log_ratio > high)
    signs = jnp.sign(inputs["advantages"])
    return loss, {
      "ppo_kl": -masked.mean(log_ratio, mask),
      "pg_clipfrac": masked.mean(_float(outside & (signs > 0), logp), mask),
      "pg_clipfrac_lower": masked.mean(
        _float(outside & (signs < 0), logp), mask
      ),
    }

  return _outcome(function, inputs, "log_prob")


def _value_loss(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["response_mask"] > 0

  def function(vpreds):
    arguments = vpreds, inputs["returns"], inputs["values"], mask
    error = values.value_loss(*arguments, clip=hyper["cliprange_value"])
    plain = values.value_loss(*arguments)
    # Ours carries the ½ that the peer applies after aggregation.
    loss = _verl_aggregate(error, mask, hyper) * (hyper["factor"] / 0.5)
    clipfrac = masked.mean(_float(error > plain, vpreds), mask)
    return loss, {"clipfrac": clipfrac}

  return _outcome(function, inputs, "vpreds")


def _rollout_is_weights(hyper, inputs):
  x, mask = jnp.asarray(inputs["log_ratio"]), inputs["response_mask"] > 0
  level = hyper["rollout_is"]
  highest = hyper["rollout_is_threshold"]

  def bounded(maximum, minimum=0.0):
    return importance.importance_weights(
      x, mask, level, "truncate", maximum, minimum
    )

  weights = bounded(highest)
  before = masked.mean(bounded(np.inf), mask)
  if hyper["rollout_is_batch_normalize"]:
    weights = importance.batch_normalized(weights, mask, level)
  return {"weights": weights, "mean_before_truncation": before}, {}


def _rejection_mask(hyper, inputs):
  x, mask = jnp.asarray(inputs["log_ratio"]), inputs["response_mask"] > 0
  kept = mask
  for option, threshold in zip(
    hyper["rollout_rs"].split(","),
    hyper["rollout_rs_threshold"].split(","),
    strict=True,
  ):
    statistic, _, kind = option.rpartition("_")
    low, _, high = threshold.rpartition("_")
    kept &= importance.rejection_mask(
      x, mask, statistic, kind, float(low or 1.0), float(high)
    )
  return {"modified_mask": kept}, {}


def _entropy_and_logprobs(hyper, inputs):
  del hyper
  logits, labels = (jnp.asarray(inputs[n]) for n in ("logits", "labels"))
  outputs = logprobs.token_outputs(
    lambda x: x, logits, labels, temperature=1.0, with_sum_pi_squared=True
  )
  gradient = jax.grad(lambda x: logprobs.entropy_from_logits(x).sum())(logits)
  return {
    "entropy": logprobs.entropy_from_logits(logits),
    "sum_pi_squared": outputs.sum_pi_squared,
    "log_prob": logprobs.token_logprobs(logits, labels),
  }, {"entropy_sum_wrt_logits": gradient}


# --- TRL ---------------------------------------------------------------------


def _trl_aggregate(x, mask, hyper):  # [B] or [B, T], [B, T] -> []
  kind = hyper["loss_type"]
  steps = hyper.get("gradient_accumulation_steps", 1)
  num_rows = mask.shape[0]  # Rows without tokens count.
  if kind in ("grpo", "sapo"):
    return aggregation.over_sequences(x, mask).total / num_rows / steps
  if kind == "bnpo":
    total, weight = aggregation.over_tokens(x, mask)
    return total / jnp.maximum(weight, 1) / steps
  if kind == "dr_grpo":
    total, _ = aggregation.over_tokens(x, mask)
    return total / (num_rows * hyper["max_completion_length"]) / steps
  if kind in ("dapo", "cispo", "vespo"):
    total, _ = aggregation.over_tokens(x, mask)
    return total / hyper["num_items_in_batch"]
  if kind == "luspo":
    # A ratio per row counts once for each of its tokens.
    total, _ = aggregation.over_tokens(x, mask)
    return total / num_rows / steps
  raise ValueError(f"unknown loss_type {kind!r}")


def _trl_mean(x, mask):  # [B] or [B, T] -> []
  """Mean of a metric: over all rows, or over tokens."""
  return x.mean() if x.ndim == 1 else masked.mean(x, mask)


def _trl_objective(logp, ratio, log_ratio, inputs, mask, hyper):
  """Objective of one loss type, [B] or [B, T], and its metrics."""
  kind, advantages = hyper["loss_type"], inputs["advantages"]
  if kind == "sapo":
    taus = hyper["sapo_temperature_pos"], hyper["sapo_temperature_neg"]
    return surrogates.soft_gated(ratio, advantages, *taus), {}
  if kind == "cispo":
    high = hyper["epsilon_high"]  # An absolute cap, and no lower bound.
    weights = ratio if ratio.ndim == 2 else ratio[:, None]
    objective = surrogates.clipped_weight(weights, logp, advantages, 0.0, high)
    capped = (ratio > high) & (_like(advantages, ratio) > 0)
    return objective, {
      "cispo_clip_ratio": _trl_mean(_float(capped, logp), mask)
    }
  if kind == "vespo":
    if "importance_sampling_ratio" in inputs:
      # The peer's weight is one of the sampler: a part of its log-ratio.
      correction = jnp.log(inputs["importance_sampling_ratio"])
      log_ratio += jnp.clip(correction, math.log(1e-8), None)
    phi = surrogates.vespo_weight(
      log_ratio,
      mask,
      advantages,
      hyper["vespo_k_pos"],
      hyper["vespo_lambda_pos"],
      hyper["vespo_k_neg"],
      hyper["vespo_lambda_neg"],
    )
    objective = phi[:, None] * surrogates.reinforce(logp, advantages)
    return objective, {"vespo.phi_seq_mean": phi.mean()}
  low, high = hyper["epsilon_low"], hyper["epsilon_high"]
  objective = surrogates.clipped(
    ratio, advantages, low, high, ratio_cap=hyper.get("delta")
  )
  signs = _like(advantages, ratio)
  is_low = (ratio < 1 - low) & (signs < 0)
  is_high = (ratio > 1 + high) & (signs > 0)
  return objective, {
    "clip_ratio.low_mean": _trl_mean(_float(is_low, logp), mask),
    "clip_ratio.high_mean": _trl_mean(_float(is_high, logp), mask),
  }


def _like(advantages, ratio):
  return advantages if advantages.ndim == ratio.ndim else advantages[:, None]


def _tokens(x):
  """Numbers per row [B] as a column [B, 1] that broadcasts over tokens."""
  return x if x.ndim == 2 else x[:, None]


def _trl_loss(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["completion_mask"] > 0
  old = inputs["old_log_prob"]

  def function(logp, entropies):
    log_ratio = ratios.log_ratio(logp, old, mask)
    # Without a clamp, as all of TRL.
    ratio = {
      "token": ratios.token_ratio,
      "sequence": ratios.sequence_ratio,
      "sequence_token": ratios.sequence_token_ratio,
    }[hyper["importance_sampling_level"]](logp, old, mask, clamp=None)
    objective, metrics = _trl_objective(
      logp, ratio, log_ratio, inputs, mask, hyper
    )
    if hyper.get("off_policy_mask_threshold") is not None:
      kept = importance.off_policy_sequence_mask(
        logp,
        inputs.get("rollout_log_prob", old),
        inputs["advantages"],
        mask,
        hyper["off_policy_mask_threshold"],
      )
      objective = masked.select(_tokens(objective), kept)
    if hyper.get("top_entropy_quantile") is not None:
      kept = _high_entropy(entropies, mask, 1 - hyper["top_entropy_quantile"])
      objective = masked.select(_tokens(objective), kept)
    weights = inputs.get("importance_sampling_ratio")
    if weights is not None and hyper["loss_type"] != "vespo":
      objective = _tokens(objective) * weights
    loss = -objective
    if hyper.get("beta"):
      kl = divergences.kl(logp, inputs["ref_log_prob"], mask, "k3")
      if hyper.get("use_bias_correction_kl"):
        # With ratios per sequence the peer's correction is not the exact one.
        kl = kl * _tokens(ratio)
      loss = _tokens(loss) + hyper["beta"] * kl
      metrics["kl"] = masked.mean(kl, mask)
    if loss.ndim == 2:
      loss = jnp.broadcast_to(loss, mask.shape)
    loss = _trl_aggregate(loss, mask, hyper)
    if hyper.get("entropy_coef"):
      loss -= hyper["entropy_coef"] * masked.mean(entropies, mask)
    return loss, metrics

  inputs.setdefault("entropies", jnp.zeros_like(old))
  return _outcome(function, inputs, "log_prob", "entropies")


def _trl_gmpo(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["completion_mask"] > 0

  def function(logp):
    loss = -surrogates.geometric_mean(
      ratios.log_ratio(logp, inputs["old_log_prob"], mask),
      inputs["advantages"],
      mask,
      hyper["epsilon_low"],
      hyper["epsilon_high"],
      clamp=None,
    )
    if hyper["beta"]:
      kl = divergences.kl(logp, inputs["ref_log_prob"], mask, "k3")
      loss += hyper["beta"] * masked.mean(kl, mask, axis=-1)
    return loss.mean(), {}  # Rows without tokens count, as −A.

  return _outcome(function, inputs, "log_prob")


def _trl_rloo(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["completion_mask"] > 0

  def function(logp):
    ratio = ratios.trajectory_ratio(
      logp, inputs["old_log_prob"], mask, clamp=None
    )
    objective = surrogates.clipped(
      ratio, inputs["advantages"], hyper["epsilon_low"], hyper["epsilon_high"]
    )
    return -objective.mean(), {}  # Rows without tokens count, as −A.

  return _outcome(function, inputs, "log_prob")


def _trl_off_policy_mask(hyper, inputs):
  inputs = _arrays(inputs)
  kept = importance.off_policy_sequence_mask(
    inputs["log_prob"],
    inputs["rollout_log_prob"],
    inputs["advantages"],
    inputs["completion_mask"] > 0,
    hyper["off_policy_threshold"],
  )
  return {"keep": kept[:, 0]}, {}


def _high_entropy(entropies, mask, quantile):  # [B, T] bool
  kept = importance.top_entropy_mask(entropies, mask, 1.0 - quantile)
  # The peer's quantile is float32 for float64 entropies too. Where it lies on
  # a token it may round to above it, and loses that token.
  single = jnp.where(mask, entropies, jnp.nan).astype(jnp.float32)
  lowest = jnp.where(kept, entropies, jnp.inf).min()
  lost = (entropies == lowest) & (entropies < jnp.nanquantile(single, quantile))
  return kept & ~lost


def _trl_high_entropy_mask(hyper, inputs):
  kept = _high_entropy(
    jnp.asarray(inputs["entropies"]),
    inputs["completion_mask"] > 0,
    hyper["threshold_quantile"],
  )
  return {"mask": kept}, {}


def _trl_vllm_ratio(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["completion_mask"] > 0
  level, _, mode = hyper["mode"].partition("_")
  bounds = hyper["clip_max"], hyper.get("clip_min") or 0.0
  log_ratio = masked.select(
    inputs["old_log_prob"] - inputs["rollout_log_prob"], mask
  )
  # The peer's padding has a log-ratio of 0 and is weighted like a token.
  every = jnp.ones_like(mask)
  weights = importance.importance_weights(
    log_ratio, every, level, mode, *bounds
  )
  return {"ratio": weights if level == "token" else weights[:, :1]}, {}


def _trl_dpo(hyper, inputs):
  """Runs the algorithm on a batch of given pairs, by a config's settings."""
  given = config_lib.default_config("dpo")
  for ours, theirs in (
    ("kind", "loss_type"),
    ("beta", "beta"),
    ("label_smoothing", "label_smoothing"),
    ("f_divergence", "f_divergence_type"),
  ):
    given.algorithm[ours] = hyper[theirs]
  given.phases, given.pairs = ("pairs",), config_lib.phase_config("pairs")
  settings = config_lib.resolve(given)
  algorithm, config = settings.objective("pairs")
  num_pairs = len(inputs["log_prob"]) // 2
  # Theirs are all chosen rows before all rejected ones, ours are adjacent.
  order = np.arange(2 * num_pairs).reshape(2, -1).T.reshape(-1)
  logp, ref_logp, mask = (
    inputs[name][order]
    for name in ("log_prob", "ref_log_prob", "completion_mask")
  )
  nothing = np.zeros(mask.shape, np.int32)
  pairs = pipeline.SupervisedBatch(
    *(nothing[::2, :1], np.ones((num_pairs, 1), bool)),
    *(nothing, mask > 0, np.zeros(mask.shape, bool)),
  )
  batch = executors.train_batch(pairs, np.arange(len(mask)), len(mask))
  state = objective.init(algorithm, config)[1]
  batch = set_fields(
    jax.tree.map(jnp.asarray, batch),
    {
      "reference.logp": jnp.asarray(ref_logp),
      "state": state["algorithm"],
      "coefficients": state["coefficients"],
    },
  )
  batch = objective.prepare(algorithm, config, batch)

  def function(logp):
    policy = PolicyOutputs(logp=logp)
    ((_, mean),) = objective.loss(
      algorithm, config, policy, batch
    ).terms.values()
    losses = algorithm.policy_loss(config, *objective.sanitize(policy, batch))
    return mean.total / mean.weight, {"per_sequence_loss": losses[::2]}

  outputs, gradients = _outcome(function, {"log_prob": logp}, "log_prob")
  return outputs, {"log_prob": gradients["log_prob"][np.argsort(order)]}


def _trl_reward(hyper, inputs):
  inputs = _arrays(inputs)
  margin = inputs["margin"] if hyper["margin"] else 0.0

  def function(chosen, rejected):
    losses = preferences.bradley_terry(
      chosen, rejected, margin, hyper.get("center_rewards_coefficient") or 0.0
    )
    return losses.mean(), {}

  return _outcome(function, inputs, "rewards_chosen", "rewards_rejected")


def _trl_gkd(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["labels"] != -100
  temperature = hyper["temperature"]

  def function(logits):
    divergence = divergences.generalized_jsd(
      logits / temperature,
      inputs["teacher_logits"] / temperature,
      hyper["beta"],
    )
    total, weight = aggregation.over_tokens(divergence, mask)
    return total / weight, {}

  return _outcome(function, inputs, "student_logits")


def _trl_opd(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["labels"] != -100

  def function(logits):
    logp = logprobs.token_logprobs(
      logits, inputs["completion_tokens"], hyper["temperature"]
    )
    sampled = inputs.get("rollout_log_prob", jax.lax.stop_gradient(logp))
    gap = masked.select(inputs["teacher_log_prob"] - sampled, mask)
    weights = distillation.early_weights(
      gap, hyper["iw_opd_gamma"], hyper["iw_opd_epsilon"]
    )
    objective = surrogates.reinforce(logp, weights * gap)
    total, weight = aggregation.over_tokens(-objective, mask)
    return total / weight, {}

  return _outcome(function, inputs, "student_logits")


def _trl_ppo(hyper, inputs):
  inputs = _arrays(inputs)
  num_rows, num_slots = inputs["log_prob"].shape
  last = inputs["last_token_index"][:, None]  # [B, 1]
  slots = jnp.arange(num_slots)
  mask = slots <= last
  # The peer's critic also values the state after the last token.
  value_mask = slots <= last + 1

  old, ref = inputs["old_log_prob"], inputs["ref_log_prob"]
  kl = divergences.kl(old, ref, mask, hyper["kl_estimator"])
  if hyper["kl_estimator"] == "k3":  # The peer bounds no exponent.
    kl = divergences.kl_k3(masked.select(old - ref, mask), clamp=None)
  rewards = -hyper["kl_coef"] * kl
  end = jnp.where(last + 1 < num_slots, last + 1, last)[:, 0]
  rewards = rewards.at[jnp.arange(num_rows), end].add(inputs["scores"])

  old_values = masked.select(inputs["old_values"], value_mask)
  # The peer's recursion reads no mask: values are 0 where nothing is left.
  advantages, targets = returns.generalized_advantages(
    rewards, old_values, jnp.ones_like(mask), hyper["gamma"], hyper["lam"]
  )
  advantages = masked.select(masked.whiten(advantages, mask), mask)

  def function(logp, vpred):
    ratio = ratios.token_ratio(logp, inputs["old_log_prob"], mask, clamp=None)
    clip = hyper["cliprange"]
    policy = aggregation.over_tokens(
      -surrogates.clipped(ratio, advantages, clip, clip), mask
    )
    value = aggregation.over_tokens(
      values.value_loss(
        vpred, targets, old_values, value_mask, hyper["cliprange_value"]
      ),
      value_mask,
    )
    pg_loss = policy.total / policy.weight
    vf_loss = value.total / value.weight
    loss = pg_loss + hyper["vf_coef"] * vf_loss
    return loss, {"pg_loss": pg_loss, "vf_loss": vf_loss}

  outputs, gradients = _outcome(function, inputs, "log_prob", "vpred")
  outputs |= {
    "rewards": rewards,
    "advantages_whitened": advantages,
    "returns": targets,
  }
  return outputs, gradients


# --- Definitions without a peer ----------------------------------------------


def _icepop(hyper, inputs):
  weights = importance.importance_weights(
    jnp.asarray(inputs["log_ratio"]),
    inputs["mask"] > 0,
    "token",
    "mask",
    hyper["beta"],
    hyper["alpha"],
  )
  return {"weights": weights}, {}


def _kl_variants(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["mask"] > 0

  def total(kind):
    def function(logp):
      kl = divergences.kl(
        logp,
        inputs["ref_log_prob"],
        mask,
        kind,
        old_logp=inputs["old_log_prob"],
      )
      return kl.sum(), kl

    return jax.grad(function, has_aux=True)(inputs["log_prob"])

  plus_gradient, plus = total("k3_plus")
  unbiased_gradient, unbiased = total("k3_unbiased")
  return {"k3_plus": plus, "unbiased_k3": unbiased}, {
    "k3_plus_sum_wrt_log_prob": plus_gradient,
    "unbiased_sum_wrt_log_prob": unbiased_gradient,
  }


def _upper_clip(hyper, inputs):
  inputs = _arrays(inputs)
  mask = inputs["mask"] > 0

  def function(logp):
    ratio = ratios.trajectory_ratio(
      logp, inputs["old_log_prob"], mask, hyper["log_ratio_clamp"]
    )
    objective = surrogates.upper_clipped(
      ratio, inputs["advantages"], hyper["eps_high"]
    )
    return -objective.mean(), {}  # Rows without tokens count, as −A.

  return _outcome(function, inputs, "log_prob")


def _enumerated_policy(hyper, inputs):
  """Expected gradients of estimators over all sequences of a tiny policy."""
  inputs = _arrays(inputs)
  size, rewards = hyper["V"], inputs["rewards"].ravel()
  one = jnp.ones((size**2, 1), bool)  # A sequence as one action.

  def sequence_logp(theta):  # [V², 1], row-major in (y1, y2)
    first = jax.nn.log_softmax(theta[0])[:, None]
    second = jax.nn.log_softmax(theta[1:], axis=-1)
    return (first + second).reshape(-1, 1)

  theta, old, ref = (
    inputs[name] for name in ("theta", "theta_old", "theta_ref")
  )
  probs, old_probs = (jnp.exp(sequence_logp(x)) for x in (theta, old))

  def expected_return(theta):
    return (probs * surrogates.reinforce(sequence_logp(theta), rewards)).sum()

  def expected_kl(theta, probs, kind):
    k = divergences.kl(
      sequence_logp(theta),
      sequence_logp(ref),
      one,
      kind,
      old_logp=sequence_logp(old),
    )
    return (probs * k).sum()

  logits, ref_logits = (sequence_logp(x)[:, 0] for x in (theta, ref))
  outputs = {
    "J": (probs[:, 0] * rewards).sum(),
    "kl_reverse": divergences.generalized_jsd(logits, ref_logits, 1.0),
    "kl_forward": divergences.generalized_jsd(logits, ref_logits, 0.0),
  }
  return outputs, {
    "J_wrt_theta": jax.grad(expected_return)(theta),
    "kl_reverse_wrt_theta": jax.grad(expected_kl)(
      theta, old_probs, "k3_unbiased"
    ),
    "kl_forward_wrt_theta": jax.grad(expected_kl)(theta, probs, "k3"),
  }


def _registered(name: str, function: str) -> str:
  return (
    f"core_algos.POLICY_LOSS_REGISTRY['{name}'] = compute_policy_loss_"
    f"{function}"
  )


_SEQUENCE_MEAN = "seq-mean-token-mean"  # What the peer forces.
_ENTROPY_AND_LOGPROBS = (
  "torch_functional.entropy_from_logits / calculate_sum_pi_squared_from_logits"
  " / logprobs_from_logits_naive"
)
_TRL_LOSS = "GRPOTrainer._compute_loss (called unbound, model forward stubbed)"
_TRL_VLLM = (
  "GRPOTrainer._generate_and_score_completions (vLLM importance block,"
  " executed verbatim)"
)
_TRL_PPO = (
  "trl.experimental.ppo.PPOTrainer.train (steps 4-6 and the loss block,"
  " executed verbatim)"
)
_TRL_DPO = (
  "DPOTrainer._compute_loss (score + per-loss block, executed verbatim)"
)
_TRL_REWARD = "RewardTrainer.compute_loss (loss block, executed verbatim)"

CHECKS: dict[str, Check] = {
  "core_algos.agg_loss": _agg_loss,
  "core_algos.kl_penalty": _kl_penalty,
  _registered("vanilla", "vanilla"): _verl_policy(_vanilla),
  # The bound of the ratio is not in the metric.
  _registered("gspo", "gspo"): _verl_policy(_gspo, _SEQUENCE_MEAN, None),
  _registered("sapo", "sapo"): _verl_policy(_sapo, _SEQUENCE_MEAN),
  _registered("gpg", "gpg"): _verl_policy(_reinforce),
  _registered("clip_cov", "clip_cov"): _verl_policy(_clip_cov, clamp=None),
  _registered("kl_cov", "kl_cov"): _verl_policy(_kl_cov, clamp=None),
  _registered("geo_mean", "geo_mean"): _geo_mean,
  _registered("cispo", "cispo"): _verl_policy(_cispo),
  "core_algos.compute_policy_loss_reinforce": _verl_policy(
    _reinforce, clamp=None
  ),
  "core_algos.compute_value_loss": _value_loss,
  "rollout_corr_helper.compute_rollout_correction_weights": _rollout_is_weights,
  "rollout_corr_helper.compute_rollout_rejection_mask": _rejection_mask,
  _ENTROPY_AND_LOGPROBS: _entropy_and_logprobs,
  _TRL_LOSS: _trl_loss,
  "trl.experimental.gspo_token.GRPOTrainer._compute_loss": _trl_loss,
  "trl.experimental.gmpo.GMPOTrainer._compute_loss": _trl_gmpo,
  "RLOOTrainer._compute_loss": _trl_rloo,
  "GRPOTrainer.get_off_policy_mask": _trl_off_policy_mask,
  "GRPOTrainer.get_high_entropy_mask": _trl_high_entropy_mask,
  _TRL_VLLM: _trl_vllm_ratio,
  _TRL_PPO: _trl_ppo,
  _TRL_DPO: _trl_dpo,
  _TRL_REWARD: _trl_reward,
  "GKDTrainer.generalized_jsd_loss": _trl_gkd,
  "IWOPDTrainer._compute_iw_opd_loss": _trl_opd,
  "spec 7 IcePop": _icepop,
  "spec 6 k3+ and r*k3": _kl_variants,
  "spec 5.7 (trajectory ratio, upper clip, row mean)": _upper_clip,
  "spec 2.12 / 6 oracle": _enumerated_policy,
}

# (function, output) -> why ours is not compared with it.
NOT_COMPARED: dict[tuple[str, str], str] = {
  (
    "rollout_corr_helper.compute_rollout_correction_weights",
    "eff_sample_size",
  ): ("A metric that no algorithm here reports.")
}

# function -> why no composition of ours gives it.
NOT_REPRODUCED: dict[str, str] = {}
