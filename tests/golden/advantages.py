"""Our compositions for the peers' advantages, returns and reward shaping.

`CHECKS[function](hyper, inputs)` computes what the peer's function returned
for these inputs, with our ops; comments name what the peer does differently.
All run with 64-bit numbers enabled, in the dtype of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from grpo_jax.ops import (
  baselines,
  divergences,
  masked,
  ratios,
  returns,
  shaping,
  surrogates,
)

Arrays = dict[str, jax.Array]
Inputs = dict[str, np.ndarray]


class _Outcome:
  """Case of verl: a score per row, and groups named by any numbers."""

  def __init__(self, inputs: Inputs):
    token_rewards = jnp.asarray(inputs["token_level_rewards"])
    self.mask = jnp.asarray(inputs["response_mask"]) > 0
    self.rewards = token_rewards.sum(axis=-1)
    self.group_id, self.num_groups = _groups(inputs["index"])
    self.valid = jnp.ones(self.rewards.shape, bool)
    self.scored = (self.rewards, self.valid, self.group_id, self.num_groups)
    sizes = np.bincount(self.group_id)
    self.lone = sizes[self.group_id] == 1

  def outputs(self, advantages: jax.Array) -> tuple[Arrays, Arrays]:
    return {"advantages": self.spread(advantages)}, {}

  def raw_singletons(self, advantages: jax.Array) -> jax.Array:
    """Replaces scores of groups of one: verl's are raw, ours are 0."""
    return jnp.where(self.lone, self.rewards, advantages)

  def spread(self, advantages: jax.Array) -> jax.Array:
    return masked.select(advantages[:, None], self.mask)


def _groups(index: np.ndarray) -> tuple[np.ndarray, int]:
  names, group_id = np.unique(index, return_inverse=True)
  return group_id.reshape(-1), len(names)


def _carried(x: jax.Array, mask: jax.Array) -> jax.Array:
  """x, and in masked slots the x of the next token (0 after the last).

  verl leaves these values there; ours are 0.
  """
  columns = [jnp.where(mask[:, -1], x[:, -1], 0)]
  for t in reversed(range(x.shape[1] - 1)):
    columns.append(jnp.where(mask[:, t], x[:, t], columns[-1]))
  return jnp.stack(columns[::-1], axis=1)


# --- verl: one score per completion ------------------------------------------


def _grpo_verl(hyper, inputs):
  case = _Outcome(inputs)
  scale = "group" if hyper["norm_adv_by_std_in_grpo"] else "none"
  advantages = baselines.scaled(
    baselines.group_centered(*case.scored),
    *case.scored,
    scale,
    ddof=hyper["std_ddof"],
    eps=hyper["epsilon"],
  )
  raw = case.rewards
  if scale == "group":  # Its deviation is set to 1.
    raw = raw / (1 + hyper["epsilon"])
  return case.outputs(jnp.where(case.lone, raw, advantages))


def _grpo_vectorized_verl(hyper, inputs):
  case = _Outcome(inputs)
  centered = baselines.group_centered(*case.scored)
  spread = 1.0
  if hyper["norm_adv_by_std_in_grpo"]:
    # The variance has a floor, beside the epsilon that is added.
    variance = baselines.group_statistics(
      *case.scored, ddof=hyper["std_ddof"]
    ).variance[case.group_id]
    spread = jnp.sqrt(jnp.maximum(variance, hyper["variance_floor"]))
    spread = jnp.where(case.lone, 1.0, spread) + hyper["epsilon"]
  return case.outputs(case.raw_singletons(centered) / spread)


def _passk_verl(hyper, inputs):
  case = _Outcome(inputs)
  scale = "group" if hyper["norm_adv_by_std_in_grpo"] else "none"
  return case.outputs(
    baselines.scaled(
      baselines.best_of_group(*case.scored),
      *case.scored,
      scale,
      eps=hyper["epsilon"],
    )
  )


def _rloo_verl(hyper, inputs):
  del hyper
  case = _Outcome(inputs)
  advantages = baselines.leave_one_out(*case.scored)
  return case.outputs(case.raw_singletons(advantages))


def _rloo_vectorized_verl(hyper, inputs):
  del hyper
  case = _Outcome(inputs)
  return case.outputs(baselines.leave_one_out(*case.scored))


def _opo_verl(hyper, inputs):
  del hyper
  case = _Outcome(inputs)
  advantages = baselines.length_weighted(
    case.rewards,
    case.mask.sum(axis=-1),
    case.valid,
    case.group_id,
    case.num_groups,
  )
  return case.outputs(case.raw_singletons(advantages))


def _gpg_verl(hyper, inputs):
  case = _Outcome(inputs)
  centered = case.raw_singletons(baselines.group_centered(*case.scored))
  num_nonzero = jnp.maximum((case.rewards != 0).sum(), 1)
  alpha = case.rewards.size / num_nonzero.astype(case.rewards.dtype)
  return case.outputs(alpha * centered / hyper["f_norm"])


def _reinforce_pp_baseline_verl(hyper, inputs):
  case = _Outcome(inputs)
  centered = case.raw_singletons(baselines.group_centered(*case.scored))
  tokens = jnp.broadcast_to(centered[:, None], case.mask.shape)
  return {"advantages": masked.whiten(tokens, case.mask)}, {}


def _remax_verl(hyper, inputs):
  del hyper
  mask = jnp.asarray(inputs["response_mask"]) > 0
  to_go = returns.returns_to_go(
    jnp.asarray(inputs["token_level_rewards"]), mask
  )
  baseline = jnp.asarray(inputs["reward_baselines"])[:, None]
  to_go = _carried(to_go, mask)
  return {"advantages": to_go - masked.select(baseline, mask)} | {
    "returns": to_go
  }, {}


def _otb_verl(hyper, inputs):
  case = _Outcome(inputs)
  mask, eps = case.mask, hyper["epsilon"]
  to_go = returns.returns_to_go(
    jnp.asarray(inputs["token_level_rewards"]), mask
  )
  logp = jnp.asarray(inputs["old_log_probs"])
  sum_pi_squared = jnp.asarray(inputs["sum_pi_squared"])
  # With holes verl measures the tail in numbers of tokens, we in slots: only
  # where they agree is the tail left to the op.
  trained = inputs["response_mask"] > 0
  has_holes = bool((trained[:, 1:] & ~trained[:, :-1]).any())
  advantages = baselines.optimal_token(
    to_go,
    logp,
    sum_pi_squared,
    mask,
    case.group_id,
    case.num_groups,
    hyper["handle_zero_tail"] and not has_holes,
  )
  # Where all returns are equal verl keeps what eps takes from the baseline.
  energy = masked.select(1 - 2 * jnp.exp(logp) + sum_pi_squared, mask)
  weight = masked.select(jnp.cumsum(energy, axis=-1), mask)
  total = jax.ops.segment_sum(weight, case.group_id, case.num_groups)
  rest = to_go * (eps / (total + eps))[case.group_id]
  advantages = jnp.where(advantages == 0, rest, advantages)
  no_baseline = np.repeat(case.lone[:, None], mask.shape[1], 1)
  if hyper["handle_zero_tail"] and has_holes:
    lengths = trained.sum(axis=-1)
    for i, group in enumerate(case.group_id):
      others = np.delete(lengths, i)[np.delete(case.group_id, i) == group]
      if others.size and lengths[i] > others.max():
        no_baseline[i, others.max() :] = True
  advantages = jnp.where(mask & no_baseline, to_go, advantages)
  return {"advantages": advantages, "returns": _carried(to_go, mask)}, {}


# --- verl: token rewards -----------------------------------------------------


def _reinforce_pp_verl(hyper, inputs):
  token_rewards = jnp.asarray(inputs["token_level_rewards"])
  mask = jnp.asarray(inputs["response_mask"]) > 0
  to_go = returns.returns_to_go(token_rewards, mask, hyper["gamma"], "reset")
  # In a masked slot verl keeps one step of discounted return.
  following = jnp.pad(to_go, ((0, 0), (0, 1)))[:, 1:]
  step = token_rewards + hyper["gamma"] * following
  return {
    "advantages": masked.whiten(to_go, mask),
    "returns": jnp.where(mask, to_go, step),
  }, {}


def _gae_verl(hyper, inputs):
  values = jnp.asarray(inputs["values"])
  mask = jnp.asarray(inputs["response_mask"]) > 0
  advantages, targets = returns.generalized_advantages(
    jnp.asarray(inputs["token_level_rewards"]),
    values,
    mask,
    hyper["gamma"],
    hyper["lam"],
  )
  eps, ddof = hyper["whiten_eps"], hyper["whiten_ddof"]
  whitened = masked.whiten(advantages, mask)
  # verl whitens what it carried into the masked slots with the same numbers.
  carried = _carried(advantages, mask)
  mean = masked.mean(advantages, mask)
  variance = masked.sum(jnp.square(advantages - mean), mask) / (
    mask.sum() - ddof
  )
  elsewhere = (carried - mean) / jnp.sqrt(variance + eps)
  return {
    "advantages_raw": carried,
    "returns": jnp.where(mask, targets, carried + values),
    "advantages_whitened": jnp.where(mask, whitened, elsewhere),
  }, {}


def _kl_in_reward_verl(hyper, inputs):
  scores = jnp.asarray(inputs["token_level_scores"])
  kl = divergences.kl(
    jnp.asarray(inputs["old_log_prob"]),
    jnp.asarray(inputs["ref_log_prob"]),
    jnp.ones(scores.shape, bool),  # verl subtracts it in padding too.
    hyper["estimator"],
  )
  return {"token_level_rewards": scores - hyper["kl_ratio"] * kl}, {}


def _adaptive_kl_verl(hyper, inputs):
  coef = jnp.asarray(hyper["init_kl_coef"])
  after = []
  for kl in jnp.asarray(inputs["current_kl"]):
    coef = shaping.adaptive_kl_coef(
      coef, kl, hyper["target_kl"], hyper["horizon"], hyper["n_steps"]
    )
    after.append(coef)
  return {"kl_coef_after_each_update": jnp.stack(after)}, {}


# --- TRL ---------------------------------------------------------------------


def _trl_rewards(hyper, inputs):
  """Components, where they apply, and groups of adjacent rows."""
  components = jnp.asarray(inputs["rewards_per_func"])  # [B, K]
  applicable = ~jnp.isnan(components)
  weights = jnp.asarray(inputs["reward_weights"])  # [K]
  rewards = (masked.select(components, applicable) * weights).sum(axis=-1)
  valid = applicable.any(axis=-1)
  size = hyper["num_generations"]
  group_id = jnp.arange(len(rewards)) // size
  return components, applicable, weights, rewards, valid, group_id


def _grpo_trl(hyper, inputs):
  components, applicable, weights, rewards, valid, group_id = _trl_rewards(
    hyper, inputs
  )
  num_groups = len(rewards) // hyper["num_generations"]
  options = {"eps": hyper["eps"]}
  if hyper["multi_objective_aggregation"] == "normalize_then_sum":
    z = baselines.objectives_standardized(
      components, applicable, weights, valid, group_id, num_groups, **options
    )
    return {"advantages": baselines.batch_standardized(z, valid, **options)}, {}
  scored = (rewards, valid, group_id, num_groups)
  return {
    "advantages": baselines.scaled(
      baselines.group_centered(*scored),
      *scored,
      hyper["scale_rewards"],
      **options,
    )
  }, {}


def _rloo_trl(hyper, inputs):
  *_, rewards, valid, group_id = _trl_rewards(hyper, inputs)
  mask = jnp.asarray(inputs["completion_mask"]) > 0
  kl = divergences.kl(
    jnp.asarray(inputs["old_per_token_logps"]),
    jnp.asarray(inputs["ref_per_token_logps"]),
    mask,
    "k1",
  )
  rewards = rewards - hyper["beta"] * kl.sum(axis=-1)
  num_groups = len(rewards) // hyper["num_generations"]
  advantages = baselines.leave_one_out(rewards, valid, group_id, num_groups)
  if hyper["normalize_advantages"]:
    # A row that alone was scored in its group has no advantage, and not 0.
    count = baselines.group_statistics(
      rewards, valid, group_id, num_groups
    ).num_valid[group_id]
    advantages = baselines.batch_standardized(
      advantages, valid & (count > 1), eps=hyper["eps"]
    )
  return {"advantages": advantages}, {}


# --- No peer: references by definition ---------------------------------------


def _process_supervision(hyper, inputs):
  group_id, num_groups = _groups(inputs["index"])
  advantages = baselines.process_supervision(
    jnp.asarray(inputs["step_rewards"]),
    jnp.asarray(inputs["step_mask"]) > 0,
    jnp.asarray(inputs["mask"]) > 0,
    jnp.ones(len(group_id), bool),
    group_id,
    num_groups,
    hyper["eps"],
    hyper["ddof"],
  )
  return {"advantages": advantages}, {}


def _length_adaptive_gae(hyper, inputs):
  mask = jnp.asarray(inputs["mask"]) > 0
  episode = (
    jnp.asarray(inputs["token_level_rewards"]),
    jnp.asarray(inputs["values"]),
    mask,
    hyper["gamma"],
  )
  lam = returns.length_adaptive_lambda(mask.sum(axis=-1), hyper["alpha"])
  actor, _ = returns.generalized_advantages(*episode, lam)
  _, targets = returns.generalized_advantages(*episode, hyper["lambda_critic"])
  return {"lam": lam, "actor_advantages": actor, "critic_targets": targets}, {}


def _subtrace_gae(hyper, inputs):
  trace, _ = _groups(inputs["trace_id"])
  advantages, targets = returns.subtrace_advantages(
    jnp.asarray(inputs["token_rewards"]),
    jnp.asarray(inputs["outcome_per_trace"])[trace],
    jnp.asarray(inputs["values"]),
    jnp.asarray(inputs["mask"]) > 0,
    jnp.asarray(inputs["trace_id"]),
    jnp.asarray(inputs["order"]),
    hyper["gamma"],
    hyper["lam"],
    hyper["boundary"],
  )
  return {"advantages": advantages, "returns": targets}, {}


def _gtpo(hyper, inputs):
  group_id, num_groups = _groups(inputs["index"])
  rewards = jnp.asarray(inputs["rewards"])
  mask = jnp.asarray(inputs["mask"]) > 0
  correct = rewards > hyper["threshold"]
  shaped = shaping.gtpo_rewards(
    correct,
    jnp.asarray(inputs["entropies"]),
    mask,
    group_id,
    num_groups,
    jnp.ones_like(correct),
    hyper["alpha1"],
    hyper["alpha2"],
  )
  # There α1 multiplies the reward of a right row, and not 1.
  excess = hyper["alpha1"] * masked.select(rewards - 1, correct)
  shaped = masked.select(shaped + excess[:, None], mask)
  advantages = shaping.normalized_over_group(
    shaped, mask, group_id, num_groups, correct, "split"
  )
  return {"shaped_rewards": shaped, "advantages": advantages}, {}


def _lambda_grpo(hyper, inputs):
  group_id, num_groups = _groups(inputs["index"])
  mask = jnp.asarray(inputs["mask"]) > 0

  def weights(lam):  # [B]
    return baselines.length_preference(
      mask.sum(axis=-1),
      jnp.ones(len(group_id), bool),
      lam,
      group_id,
      num_groups,
      hyper["rho"],
    )

  def loss(log_prob, lam):
    ratio = ratios.token_ratio(
      log_prob,
      jnp.asarray(inputs["old_log_prob"]),
      mask,
      hyper["log_ratio_clamp"],
    )
    surrogate = surrogates.clipped(
      ratio,
      jnp.asarray(inputs["advantages"]),
      hyper["eps_low"],
      hyper["eps_high"],
    )
    return -masked.mean(weights(lam)[:, None] * surrogate, mask)

  log_prob = jnp.asarray(inputs["log_prob"])
  lam = jnp.asarray(hyper["lam"], log_prob.dtype)
  slopes = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
  value, (d_log_prob, d_lam) = slopes(log_prob, lam)
  return (
    {"weights": weights(lam), "loss": value},
    {"log_prob": d_log_prob, "lam": d_lam},
  )


CHECKS: dict[str, Callable[[dict, Inputs], tuple[Arrays, Arrays]]] = {
  "core_algos.AdaptiveKLController.update": _adaptive_kl_verl,
  "core_algos.compute_gae_advantage_return": _gae_verl,
  "core_algos.compute_gpg_outcome_advantage": _gpg_verl,
  "core_algos.compute_grpo_outcome_advantage": _grpo_verl,
  "core_algos.compute_grpo_passk_outcome_advantage": _passk_verl,
  "core_algos.compute_grpo_vectorized_outcome_advantage": (
    _grpo_vectorized_verl
  ),
  "core_algos.compute_opo_outcome_advantage": _opo_verl,
  "core_algos.compute_optimal_token_baseline_advantage": _otb_verl,
  "core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage": (
    _reinforce_pp_baseline_verl
  ),
  "core_algos.compute_reinforce_plus_plus_outcome_advantage": (
    _reinforce_pp_verl
  ),
  "core_algos.compute_remax_outcome_advantage": _remax_verl,
  "core_algos.compute_rewards": _kl_in_reward_verl,
  "core_algos.compute_rloo_outcome_advantage": _rloo_verl,
  "core_algos.compute_rloo_vectorized_outcome_advantage": (
    _rloo_vectorized_verl
  ),
  "GRPOTrainer._generate_and_score_completions (advantage block, executed"
  " verbatim)": _grpo_trl,
  "RLOOTrainer._generate_and_score_completions (advantage block, executed"
  " verbatim)": _rloo_trl,
  "spec 2.2 process_supervision_advantage": _process_supervision,
  "spec 2.7": _length_adaptive_gae,
  "spec 2.8 subtrace_advantage": _subtrace_gae,
  "spec 2.9 GTPO (per group, ddof 0, eps 1e-6)": _gtpo,
  "spec 3.1 length_preference_weights + token_mean over the batch": (
    _lambda_grpo
  ),
}

NOT_COMPARED: dict[tuple[str, str], str] = {}

NOT_REPRODUCED: dict[str, str] = {}
