"""Each option that composes with any algorithm, against NumPy loops.

The loss of GRPO without its divergence is Σ_i Σ_t w_it L_it; an option changes
L, w, the mask, the advantages, or adds a term. Each test writes that change
down once more.
"""

import dataclasses
import math
import types

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms import objective, options
from grpo_jax.algorithms.contract import cases
from grpo_jax.ops import aggregation, divergences
from grpo_jax.settings import compatibility
from grpo_jax.settings import config as config_lib
from grpo_jax.types import PolicyOutputs
from tests.references import common, grpo
from tests.training import tiny

B, T = len(cases.LENGTHS), cases.BUDGET
# Every token of a group counts as much, or is refused to.
COUNT_TOKENS = [
  name
  for name, algorithm in algorithms.ALGORITHMS.items()
  if algorithm.aggregate is aggregation.over_tokens and name != "gagpo"
]
FEW = {"gfpo": {"num_kept": 2}, "clip_cov": {"cov_low": 9.0, "cov_high": 9.0}}


def _case():
  return cases.make_case(dtype=np.float64)


def _checked(name, **fields):
  """An algorithm and its config, unless an option means nothing to it."""
  algorithm = algorithms.get_algorithm(name)
  config = algorithms.make_config(name, **fields)
  options.check(algorithm, config)
  return algorithm, config


def _refusal(name, fields) -> str:
  try:
    _checked(name, **fields)
  except ValueError as error:
    return str(error)
  return ""


def _prepared(name, case, **fields):
  """The batch of a case, as NumPy arrays; without a program."""
  return jax.device_get(
    cases.prepared(*_checked(name, **fields), case, key=jax.random.key(0))
  )


def _outcome(case, name="grpo", **fields):
  """Value and gradient with these options, float64."""
  fields = {"kl_coef": 0.0, **fields}
  config = algorithms.make_config(name, **fields)
  with jax.enable_x64(True):
    return cases.evaluate(algorithms.get_algorithm(name), config, case)


def _trained(case):
  return case.mask & case.valid[:, None]


def _terms(case, logp, mask, advantages):  # [B, T]
  """−min(r A, clip(r) A) of each token."""
  return common.per_token(
    lambda i, t: (
      -common.clipped_surrogate(
        common.token_ratio(logp[i, t], case.old_logp[i, t], 20.0),
        common.advantage_at(advantages, i, t),
        0.2,
        0.2,
      )
    ),
    mask,
  )


def _expect(outcome, loss, case):
  """`outcome` has the value and the finite differences of `loss`."""
  np.testing.assert_allclose(outcome.loss, loss(case.logp), 1e-9, 1e-12)
  numeric = common.finite_difference(loss, case.logp, 1e-6)
  np.testing.assert_allclose(outcome.gradient, numeric, 1e-5, 1e-8)
  assert outcome.gradient.any()


def _advantages(case, rewards=None):
  rewards = case.rewards if rewards is None else rewards
  return grpo.advantages(rewards, case.valid, case.group_id)


def _weighted(case, weights, mask=None, scale=1.0):
  """The loss whose policy term has these constant weights [B, T]."""
  mask = _trained(case) if mask is None else mask
  advantages = _advantages(case)

  def loss(logp):
    terms = _terms(case, logp, mask, advantages)
    return scale * common.seq_mean_token_mean(terms * weights, mask)

  return loss


# --- weights of the policy term ----------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("normalize", [False, True])
def test_importance_weights(mode, level, normalize):
  case = _case()
  low, high = (0.95, 1.05) if level == "token" else (0.85, 1.25)
  mask = _trained(case)
  weights = np.zeros((B, T))
  for i, t in np.argwhere(mask):
    gap = case.old_logp[i] - case.behavior_logp[i]
    weight = math.exp(gap[t] if level == "token" else gap[mask[i]].sum())
    if mode == "truncate":
      weights[i, t] = max(min(weight, high), low)
    else:
      weights[i, t] = weight if low <= weight <= high else 0.0
  if normalize:
    rows = mask.any(axis=1)
    weights /= (
      weights[mask].mean()
      if level == "token"
      else np.mean([weights[i][mask[i]][0] for i in np.flatnonzero(rows)])
    )
  outcome = _outcome(
    case,
    importance_mode=mode,
    importance_level=level,
    importance_max=high,
    importance_min=low,
    importance_normalize=normalize,
  )
  assert len(set(weights[mask].round(9))) > 2  # Bounds act, and not on all.
  _expect(outcome, _weighted(case, weights), case)
  np.testing.assert_allclose(
    outcome.metrics["policy_weight/mean"], weights[mask].mean(), 1e-6
  )


@pytest.mark.slow
def test_rejected_tokens_leave_the_denominator():
  case = _case()
  ratio = np.exp(case.behavior_logp - case.old_logp)
  mask = _trained(case) & (ratio >= 0.9) & (ratio <= 1.1)
  assert 5 < mask.sum() < _trained(case).sum()
  outcome = _outcome(
    case, rejection="token_k1", rejection_low=0.9, rejection_high=1.1
  )
  np.testing.assert_array_equal(outcome.mask, mask)
  _expect(outcome, _weighted(case, 1.0, mask), case)


def test_stale_completions_with_a_negative_advantage_are_left_out():
  case, threshold = _case(), 0.02
  mask, advantages = _trained(case), _advantages(case)
  weights = np.ones((B, T))
  for i in range(B):
    drift = case.behavior_logp[i] - case.logp[i]
    if advantages[i] < 0 and mask[i].any():
      weights[i] = drift[mask[i]].mean() <= threshold
  assert 0 < (weights[mask] == 0).mean() < 0.5
  outcome = _outcome(case, off_policy_threshold=threshold)
  _expect(outcome, _weighted(case, weights), case)


@pytest.mark.slow
def test_only_tokens_of_high_entropy_are_trained():
  case, fraction = _case(), 0.3
  mask = _trained(case)
  bound = np.quantile(case.behavior_entropy[mask], 1 - fraction)
  weights = (case.behavior_entropy >= bound).astype(float)
  outcome = _outcome(case, top_entropy_fraction=fraction, kl_coef=0.1)
  kept = outcome.gradient != 0  # The divergence stays on all tokens.
  assert kept[mask & (weights == 0)].all()

  def loss(logp):
    k3 = common.per_token(
      lambda i, t: common.kl_k3(logp[i, t], case.ref_logp[i, t]), mask
    )
    return _weighted(case, weights)(logp) + 0.1 * common.seq_mean_token_mean(
      k3, mask
    )

  _expect(outcome, loss, case)


# --- advantages --------------------------------------------------------------


# Numbers that the rewards of a case are made of.
REWARD_FIELDS = (
  "rewards",
  "greedy_rewards",
  "expected",
  "components",
  "step_rewards",
  "turn_rewards",
  "old_values",
  "prefix_utility",
)
# What else shapes a reward, in its own unit.
UNSHAPED = {
  "kl_coef": 0.0,
  "overlong_cache": 0.0,
  "advantage_scale": "none",
  "advantage_eps": 1e-6,
}


@pytest.mark.parametrize(
  "name", tiny.each(algorithms.ALGORITHMS, fast=("grpo",))
)
def test_only_advantages_that_grow_with_the_rewards_are_scaled(name):
  """Rewards times ten: dividing what stays as it is would divide twice."""
  algorithm = algorithms.get_algorithm(name)
  config = algorithms.make_config(name, **UNSHAPED)
  case = cases.make_case()
  larger = dataclasses.replace(
    case, **{field: 10 * getattr(case, field) for field in REWARD_FIELDS}
  )
  with jax.disable_jit():
    before, after = (
      np.asarray(
        cases.prepared(algorithm, config, x, key=jax.random.key(0)).advantages
      )
      for x in (case, larger)
    )
  stays = np.allclose(after, before, 1e-3, 1e-5)
  assert stays or np.allclose(after, 10 * before, 1e-4, 1e-5)
  assert config.scale_free == stays
  for scale in ("group", "batch"):
    if stays:
      with pytest.raises(ValueError, match=f"advantage_scale='{scale}' would"):
        dataclasses.replace(config, advantage_scale=scale)
    else:
      dataclasses.replace(config, advantage_scale=scale)


@pytest.mark.parametrize(
  ("name", "fields"),
  [
    ("gigpo", {"normalize": False}),
    ("rredcot", {"mode": "return"}),
    ("ppo", {"whiten": False}),
    ("sao", {}),
  ],
)
def test_what_is_not_standardised_may_be_scaled(name, fields):
  config = algorithms.make_config(name, **fields, advantage_scale="group")
  assert config.advantage_scale == "group"


@pytest.mark.slow
def test_divergence_in_the_reward():
  case, beta = _case(), 0.3
  mask = _trained(case)
  drift = np.where(mask, case.old_logp - case.ref_logp, 0.0)
  rewards = case.rewards - beta * drift.sum(axis=1)
  fields = {"kl_coef": beta, "kl_kind": "k1", "kl_in_reward": True}
  outcome = _outcome(case, **fields)
  advantages = _advantages(case, rewards)
  np.testing.assert_allclose(outcome.advantages, advantages, 1e-9)
  # And nowhere else: no term of the loss.
  _expect(
    outcome,
    lambda logp: common.seq_mean_token_mean(
      _terms(case, logp, mask, advantages), mask
    ),
    case,
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", [x for x in algorithms.ALGORITHMS if x != "bradley_terry"]
)
def test_a_coefficient_says_how_much_a_divergence_in_the_reward_weighs(name):
  """A small one changes little, or is refused."""
  case, on = cases.make_case(), {"kl_kind": "k1", "kl_in_reward": True}
  if not algorithms.make_config(name).reads_rewards:
    with pytest.raises(ValueError, match="this algorithm does not read"):
      algorithms.make_config(name, kl_coef=0.5, **on)
    return
  without, little, much = (
    _prepared(name, case, kl_coef=coef, **on).advantages
    for coef in (0.0, 1e-6, 0.5)
  )
  np.testing.assert_allclose(little, without, atol=1e-4)
  assert np.any(much != without)


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_what_is_cut_off_stays_in_what_advantages_are_made_of(name):
  case = cases.make_case()
  case.terminated[[0, 8]] = False
  filtered, whole = (
    _prepared(name, case, overlong_filter=x, dynamic_sampling=False)
    for x in (True, False)
  )
  stays = whole.mask & case.terminated[:, None]
  assert not filtered.mask[~case.terminated].any()
  if name in ("dpo", "bradley_terry"):  # Pairs are made of what is left.
    assert filtered.mask[4].any()
    return
  np.testing.assert_array_equal(filtered.mask, stays)
  of_tokens = [
    np.broadcast_to(x.advantages.reshape(B, -1), stays.shape)[stays]
    for x in (filtered, whole)
  ]
  np.testing.assert_array_equal(*of_tokens)


@pytest.mark.slow
def test_a_lone_completion_has_its_reward_for_an_advantage():
  case = _case()
  group = case.group_id[np.flatnonzero(case.valid)[0]]
  first, *others = np.flatnonzero(case.valid & (case.group_id == group))
  assert case.rewards[first]
  case.valid[others] = False
  zero, raw = (_outcome(case, singleton=x) for x in ("zero", "raw"))
  assert zero.advantages[first] == 0
  assert raw.advantages[first] == pytest.approx(case.rewards[first])
  rest = np.arange(B) != first
  np.testing.assert_array_equal(raw.advantages[rest], zero.advantages[rest])
  # Verl's, as its outputs have it: not divided by a deviation either.
  per_token = _outcome(case, "reinforce_pp_baseline", singleton="raw")
  row = per_token.advantages[first]
  np.testing.assert_allclose(row[_trained(case)[first]], case.rewards[first])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
def test_advantages_that_are_normalised_over_sequences(name):
  case = _case()
  rows = _trained(case).any(axis=1)
  rewards = case.rewards.copy()
  if name.endswith("baseline"):
    for group in set(case.group_id):
      mine = case.valid & (case.group_id == group)
      rewards[mine] -= case.rewards[mine].mean()
  expected = (rewards - rewards[rows].mean()) / rewards[rows].std(ddof=1)
  found = _outcome(case, name, normalize_over="sequences").advantages
  for i in np.flatnonzero(rows):
    trained = found[i][_trained(case)[i]]
    np.testing.assert_allclose(trained, expected[i], 1e-6)
  by_tokens = _outcome(case, name).advantages
  assert np.abs(found - by_tokens)[_trained(case)].max() > 1e-2


# --- what counts -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "luspo"])
def test_completions_without_a_token_count_as_in_trl(name):
  case = _case()
  present = _trained(case).any(axis=1).sum()
  assert 0 < present < B
  one, all_of_them = (
    _outcome(case, name, count_empty=x) for x in (False, True)
  )
  np.testing.assert_allclose(all_of_them.loss, one.loss * present / B, 1e-9)
  np.testing.assert_allclose(
    all_of_them.gradient, one.gradient * present / B, 1e-9
  )


@pytest.mark.slow
def test_tokens_are_averaged_in_each_group():
  case = _case()
  mask, advantages = _trained(case), _advantages(case)

  def loss(logp):
    terms = _terms(case, logp, mask, advantages)
    of_groups = [
      terms[case.group_id == group].sum() / size
      for group in set(case.group_id)
      if (size := mask[case.group_id == group].sum())
    ]
    assert len(of_groups) > 1
    return np.mean(of_groups)

  fields = {"overlong_cache": 0.0, "dynamic_sampling": False, "clip_high": 0.2}
  outcome = _outcome(case, "dapo", token_mean_scope="group", **fields)
  _expect(outcome, loss, case)
  assert abs(outcome.loss - _outcome(case, "dapo", **fields).loss) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "fields"),
  [
    ("gfpo", {"denom": "kept", "num_kept": 2}),
    *((name, FEW.get(name, {})) for name in COUNT_TOKENS),
  ],
)
def test_groups_share_alike_whatever_is_left_out_of_them(name, fields):
  case = cases.make_case()
  left_out = {"rejection": "token_k1", "rejection_low": 0.9, "kl_coef": 0.0}
  batch = _prepared(
    name,
    case,
    token_mean_scope="group",
    overlong_filter=True,
    dynamic_sampling=False,
    **left_out,
    **fields,
  )
  weights = np.where(batch.mask, batch.policy_weight, 0.0).sum(axis=1)
  shares = np.bincount(case.group_id, weights) / weights.sum()
  np.testing.assert_allclose(shares, 1 / 3, 1e-5)
  assert (batch.mask.sum(axis=1) < case.mask.sum(axis=1)).sum() > 3


@pytest.mark.parametrize(
  ("name", "fields", "message"),
  [
    ("grpo", {"token_mean_scope": "group"}, "token_mean_scope='group'.*'grpo'"),
    (
      "dapo",
      {"count_empty": True, "dynamic_sampling": False},
      "count_empty=True of algorithm 'dapo'",
    ),
    (
      "ppo",
      {"bootstrap_cut": True, "overlong_filter": True},
      "bootstrap_cut=True .*overlong_filter=True trains none",
    ),
    ("ppo", {"singleton": "raw"}, "singleton='raw' of algorithm 'ppo'.*'zero'"),
    ("dpo", {"singleton": "raw"}, "singleton='raw' is about advantages"),
    ("dpo", {"count_empty": True}, "count_empty=True counts .*in no pair"),
    *(
      ("grpo", {"count_empty": True, **other}, "count_empty=True counts the")
      for other in ({"dynamic_sampling": True}, {"rejection": "seq_mean_k1"})
    ),
    ("dapo", {"singleton": "raw"}, "singleton='raw' .*dynamic_sampling=False"),
    ("gagpo", {"token_mean_scope": "group"}, "every action weighs as much"),
    (
      "compaction_rl",
      {"token_mean_scope": "group", "weight": "trace"},
      "weight='trace' and token_mean_scope='group' both say",
    ),
    ("sao", {"importance_mode": "mask"}, "importance_mode='mask'.*has already"),
    ("bradley_terry", {"kl_coef": 0.1}, "kl_coef=0.1 .*it trains none"),
  ],
)
def test_what_an_algorithm_does_not_count_is_refused(name, fields, message):
  with pytest.raises(ValueError, match=message):
    _checked(name, **fields)
  _checked(name)


# --- further terms -----------------------------------------------------------


def _kl(kind, u, ratio):  # What each estimator is worth.
  k1, k2, k3 = u, u * u / 2, math.expm1(-u) + u
  return {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "abs": abs(u),
    "k1_plus": k1,
    "k3_plus": k3,
    "k3_unbiased": ratio * k3,
  }[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", divergences.KL_KINDS)
def test_divergence_by_domain(kind):
  case, weights = _case(), (0.5, 2.0)
  mask = _trained(case)
  outcome = _outcome(case, kl_coef=0.1, kl_kind=kind, kl_domain_weights=weights)
  policy = _weighted(case, 1.0)

  def loss(logp, kind=kind):
    def term(i, t):
      ratio = math.exp(logp[i, t] - case.old_logp[i, t])
      value = _kl(kind, logp[i, t] - case.ref_logp[i, t], ratio)
      return weights[case.domain[i]] * value

    terms = common.per_token(term, mask)
    return policy(logp) + 0.1 * common.seq_mean_token_mean(terms, mask)

  np.testing.assert_allclose(outcome.loss, loss(case.logp), 1e-9)
  # Straight-through: the gradient is that of k2.
  source = "k2" if kind.endswith("_plus") else kind
  numeric = common.finite_difference(lambda x: loss(x, source), case.logp)
  np.testing.assert_allclose(outcome.gradient, numeric, 1e-5, 1e-8)


def test_a_domain_without_weight_has_no_gradient_of_the_divergence():
  """Not a small one: the same numbers as without any divergence."""
  case = _case()
  without = _outcome(case).gradient
  outcome = _outcome(case, kl_coef=0.1, kl_domain_weights=(0.0, 2.0))
  changed = (outcome.gradient != without).any(axis=1)
  np.testing.assert_array_equal(
    changed, (case.domain == 1) & _trained(case).any(axis=1)
  )


@pytest.mark.slow
def test_divergence_over_the_vocabulary():
  case = _case()
  mask = _trained(case)
  outcome = _outcome(case, kl_coef=0.1, kl_kind="full")

  def loss(logp):
    more = cases.derived(np, logp, case.ref_logp, case.values)
    full = np.where(mask, more["ref_kl"], 0.0)
    return _weighted(case, 1.0)(logp) + 0.1 * common.seq_mean_token_mean(
      full, mask
    )

  _expect(outcome, loss, case)


@pytest.mark.slow
def test_likelihood_of_right_answers():
  case = _case()
  right = _trained(case) & case.correct[:, None]
  outcome = _outcome(case, positive_nll_coef=0.1)

  def loss(logp):
    return _weighted(case, 1.0)(logp) + 0.1 * common.token_mean(-logp, right)

  _expect(outcome, loss, case)


# --- coefficients that adapt -------------------------------------------------


def _state(**fields):
  algorithm = algorithms.get_algorithm("grpo")
  config = algorithms.make_config("grpo", **fields)
  return algorithm, config, objective.init(algorithm, config)[1]


def test_kl_coefficient_adapts():
  algorithm, config, state = _state(
    kl_coef=0.5, kl_target=0.2, kl_horizon=1000.0
  )
  metrics = {"kl/reference": np.float32(0.22)}
  state = objective.update_state(algorithm, config, state, metrics, None, 64)
  expected = 0.5 * (1 + 0.1 * 64 / 1000)
  np.testing.assert_allclose(state["coefficients"]["kl"], expected, 1e-6)


def test_entropy_coefficient_adapts():
  algorithm, config, state = _state(entropy_target=0.2, entropy_coef=0.001)
  for entropy, expected in ((0.1, 0.006), (0.3, 0.001), (0.3, 0.0)):
    metrics = {"entropy/mean": np.float32(entropy)}
    state = objective.update_state(algorithm, config, state, metrics, None, 64)
    np.testing.assert_allclose(
      state["coefficients"]["entropy"], expected, atol=1e-8
    )


@pytest.mark.slow
@pytest.mark.parametrize(("target", "applied"), [(5.0, 0.02), (0.5, 0.0)])
def test_adaptive_entropy_bonus_applies_below_its_target_only(target, applied):
  case = _case()  # Mean entropy about 1.
  outcome = _outcome(case, entropy_coef=0.02, entropy_target=target)
  mask = _trained(case)
  bonus = common.token_mean(np.where(mask, case.entropy, 0.0), mask)
  expected = _weighted(case, 1.0)(case.logp) - applied * bonus
  np.testing.assert_allclose(outcome.loss, expected, 1e-6)


# --- all at once, with every algorithm ---------------------------------------

EVERYTHING = {
  "kl_coef": 0.1,
  "kl_kind": "k3_unbiased",
  "kl_in_reward": False,
  "kl_domain_weights": (0.5, 2.0),
  "kl_target": 0.1,
  "entropy_coef": 0.01,
  "entropy_target": 5.0,
  "top_entropy_fraction": 0.6,
  "advantage_scale": "batch",
  "overlong_cache": 0.5,
  "importance_max": 1.2,
  "importance_min": 0.8,
  "importance_normalize": True,
  "rejection": "seq_mean_k3",
  "rejection_high": 0.5,
  "off_policy_threshold": 0.1,
  "positive_nll_coef": 0.1,
}


# An option, and what is there without it.
EACH = [
  ({"kl_coef": 0.1}, {}),
  ({"kl_coef": 0.1, "kl_kind": "abs"}, {"kl_coef": 0.1}),
  ({"kl_coef": 0.1, "kl_in_reward": True, "kl_kind": "k1"}, {}),
  ({"kl_coef": 0.1, "kl_domain_weights": (0.5, 2.0)}, {"kl_coef": 0.1}),
  ({"opd_coef": 0.5}, {}),
  ({"opd_coef": 0.5, "opd_early": 0.5}, {"opd_coef": 0.5}),
  ({"opd_coef": 0.5, "opd_domain_weights": (0.5, 2.0)}, {"opd_coef": 0.5}),
  ({"entropy_coef": 0.1}, {}),
  ({"entropy_coef": 0.1, "entropy_target": 0.1}, {"entropy_coef": 0.1}),
  ({"top_entropy_fraction": 0.5}, {}),
  ({"advantage_scale": "group"}, {}),
  ({"advantage_scale": "batch"}, {}),
  ({"singleton": "raw"}, {}),
  ({"count_empty": True}, {}),
  ({"token_mean_scope": "group"}, {}),
  ({"overlong_cache": 0.5}, {}),
  ({"overlong_filter": True}, {}),
  ({"dynamic_sampling": True}, {}),
  ({"importance_mode": "truncate"}, {}),
  (
    {"importance_mode": "truncate", "importance_level": "sequence"},
    {"importance_mode": "truncate"},
  ),
  (
    {"importance_mode": "truncate", "importance_normalize": True},
    {"importance_mode": "truncate"},
  ),
  ({"rejection": "token_k1", "rejection_low": 0.7, "rejection_high": 0.8}, {}),
  ({"off_policy_threshold": 0.1}, {}),
  ({"positive_nll_coef": 0.1}, {}),
]
ALL_OFF = {
  "kl_coef": 0.0,
  "kl_kind": "k3",
  "kl_in_reward": False,
  "advantage_scale": "none",
  "dynamic_sampling": False,
  "overlong_cache": 0.0,
  "off_policy_threshold": 0.0,
  "positive_nll_coef": 0.0,
}
# Of no completion is the advantage negative.
NEVER_BAD = {"passk", "opd_full", "opd_topk", "sft"}
NEEDLESS = {
  *((name, "off_policy_threshold") for name in NEVER_BAD),
  ("dpo", "dynamic_sampling"),  # Equal rewards are no pair.
  ("bradley_terry", "dynamic_sampling"),
}


def _terms_of_loss(name, case, fields):
  """Values of the terms of the loss, and of the critic's."""
  batch = _prepared(name, case, **fields)
  algorithm, config = _checked(name, **fields)
  more = cases.derived(np, case.logp, case.ref_logp, case.values)
  values = more.pop("values")
  del more["ref_topk_logp"]
  policy = PolicyOutputs(
    logp=case.logp,
    entropy=case.entropy,
    trainable=algorithm.init(config)[0],
    **more,
  )
  found = objective.loss(algorithm, config, policy, batch).terms
  if algorithm.critic_loss is not None:
    error = objective.critic_loss(algorithm, config, values, batch)
    found["critic"] = 1.0, error
  return {
    name: float(coef * term.total / np.maximum(term.weight, 1))
    for name, (coef, term) in found.items()
  }


@pytest.mark.slow  # Thousands of single operations.
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_each_option_changes_the_loss_of_every_algorithm_or_is_refused(name):
  case = cases.make_case()
  case.behavior_logp = np.where(np.arange(T) % 2, case.logp + 0.5, case.logp)
  case.rewards[7:] = 0.5  # A group without signal.
  case.valid[5:7] = False  # Row 4 is alone.
  case.correct[:] = True
  without: dict[str, dict[str, float]] = {}
  for on, off in EACH:
    option = [*on][-1]
    base = ALL_OFF | ({"opd_coef": 1.0} if name == "opd_token" else {})
    if refused := _refusal(name, base | on):
      assert any(field in refused for field in on), (option, refused)
      continue
    with_it = _terms_of_loss(name, case, base | on)
    if str(off) not in without:  # Most options have the same.
      without[str(off)] = _terms_of_loss(name, case, base | off)
    changes = with_it != without[str(off)]
    assert changes != ((name, option) in NEEDLESS), option


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_what_counts_as_a_correction_reads_how_far_the_sampler_is(name):
  """Completions that have become likelier are in no mask of bad old ones."""
  algorithm, case = algorithms.get_algorithm(name), cases.make_case()
  far = dataclasses.replace(case, behavior_logp=case.behavior_logp - 1.5)
  for option in (
    {"off_policy_threshold": 0.5},
    {"importance_mode": "truncate"},
    {"rejection": "token_k1"},
  ):
    fields = {"kl_coef": 0.0, "off_policy_threshold": 0.0} | option
    setup = types.SimpleNamespace(
      algorithm=algorithm,
      objective=algorithms.make_config(name, **fields),
      config=config_lib.default_config(name),
    )
    is_missing = compatibility.FEATURES["no correction"].is_on(setup)
    if _refusal(name, fields):
      continue
    near, moved = (_terms_of_loss(name, x, fields) for x in (case, far))
    assert is_missing == (near == moved), option


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.ALGORITHMS)
def test_masked_garbage_reaches_nothing_with_all_options(name):
  algorithm = algorithms.get_algorithm(name)
  defaults = algorithms.make_config(name)
  refused = ("advantage_scale",) if defaults.scale_free else ()
  if not defaults.reads_rewards:
    refused = (*refused, "overlong_cache")
  fields = {k: v for k, v in EVERYTHING.items() if k not in refused}
  # Each mode with half of the algorithms.
  place = [*algorithms.ALGORITHMS].index(name)
  fields["importance_mode"] = ("truncate", "mask")[place % 2]
  config = algorithms.make_config(name, **fields)
  case = cases.make_case()
  clean = cases.evaluate(algorithm, config, case)
  assert np.isfinite(clean.loss)
  dirty = dataclasses.replace(
    case,
    **{
      field: np.where(case.mask, getattr(case, field), np.nan)
      for field in cases.TOKEN_FIELDS
    },
  )
  outcome = cases.evaluate(algorithm, config, dirty)
  np.testing.assert_array_equal(outcome.loss, clean.loss)
  np.testing.assert_array_equal(outcome.gradient, clean.gradient)
  assert not outcome.gradient[~outcome.mask].any()
  for field, gradient in clean.constants.items():
    assert field == "ref_logp" or not np.nan_to_num(gradient).any(), field


# What adds to the loss a term without importance weights, switched off.
WITHOUT_TERMS = {
  "vapo": {"positive_nll_coef": 0.0},
  "two_grpo_dpo": {"dpo_coef": 0.0},
  "ppo_dpo": {"dpo_coef": 0.0},
}
# Losses of a policy alone, whose rows do not read each other's log-probs, and
# which do not have the correction in their ratio.
CORRECTED = [
  name
  for name, algorithm in algorithms.ALGORITHMS.items()
  if algorithm.policy_loss is not None
  and name != "dpo"
  and "behavior_logp" not in algorithm.needs
]


def _policy_term(name, case, **fields):
  config = algorithms.make_config(
    name,
    **{"kl_coef": 0.0, "entropy_coef": 0.0, **WITHOUT_TERMS.get(name, {})},
    **fields,
  )
  algorithm = dataclasses.replace(
    algorithms.get_algorithm(name), critic_loss=None
  )
  with jax.enable_x64(True):
    return cases.evaluate(algorithm, config, case)


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECTED)
def test_every_loss_carries_the_correction(name):
  """Also those that have weights of their own: gagpo, clip_cov, kl_cov."""
  _carries_the_correction(name)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "fields"),
  [
    ("compaction_rl", {"weight": "context"}),
    ("dapo", {"token_mean_scope": "group"}),
  ],
)
def test_units_that_weigh_as_much_carry_the_correction(name, fields):
  _carries_the_correction(name, **fields)


def _carries_the_correction(name, **own):
  """With one weight for each completion the gradient is that many times."""
  case = _case()
  # Sums of a row, so that a weight is e^0.3 or e^-0.3 whatever its length.
  sign = np.where(np.arange(B) % 2, 1.0, -1.0)[:, None]
  lengths = np.maximum(case.mask.sum(axis=1, keepdims=True), 1)
  case.behavior_logp = case.old_logp - 0.3 * sign / lengths
  plain = _policy_term(name, case, **own)
  corrected = _policy_term(
    name,
    case,
    importance_mode="mask",
    importance_level="sequence",
    importance_max=1.0,
    **own,
  )
  weight = np.where(sign > 0, 0, np.exp(0.3 * sign))
  np.testing.assert_array_equal(corrected.advantages, plain.advantages)
  np.testing.assert_allclose(
    corrected.gradient, weight * plain.gradient, 1e-9, 1e-12
  )


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECTED)
def test_what_is_rejected_moves_nothing_that_stays(name):
  """Weights, their mean, and quantiles are of the tokens that are left."""
  fields = {
    "importance_mode": "truncate",
    "importance_normalize": True,
    "top_entropy_fraction": 0.6,
    "rejection": "token_k1",
  }
  algorithm, case = algorithms.get_algorithm(name), _case()
  out = _trained(case) & (np.arange(T) == 1)
  case.behavior_logp = np.where(out, case.old_logp - 3, case.behavior_logp)
  one = _policy_term(name, case, **fields)
  assert not one.mask[out].any()
  assert one.mask.any()
  case.behavior_logp = np.where(out, case.old_logp + 4, case.behavior_logp)
  if "behavior_entropy" not in algorithm.needs:  # Else advantages read it.
    case.behavior_entropy = np.where(out, 9.0, case.behavior_entropy)
  other = _policy_term(name, case, **fields)
  np.testing.assert_array_equal(other.mask, one.mask)
  np.testing.assert_allclose(other.gradient, one.gradient, 1e-9, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "fields", "unit"),
  [("compaction_rl", {"weight": "context"}, "row"), ("gagpo", {}, "action")],
)
def test_units_weigh_as_much_after_rejection(name, fields, unit):
  """Each unit has the same sum of weights, without the importance of tokens."""
  case = cases.make_case()
  case.behavior_logp = np.where(
    np.arange(T) % 3 == 1, case.old_logp - 3, case.old_logp
  )
  algorithm = algorithms.get_algorithm(name)
  config = algorithms.make_config(name, rejection="token_k1", **fields)
  batch = cases.prepared(algorithm, config, case, key=jax.random.key(0))
  assert 0 < batch.mask.sum() < _trained(case).sum()
  number = {
    "row": np.arange(B)[:, None] + 0 * case.turn,
    "action": np.arange(B)[:, None] * T + case.turn,
  }[unit]
  sums = np.bincount(
    number[np.asarray(batch.mask)],
    np.broadcast_to(batch.policy_weight, (B, T))[np.asarray(batch.mask)],
  )
  sums = sums[sums > 0]
  assert len(sums) > 2
  np.testing.assert_allclose(sums, sums[0], 1e-5)


# --- what is refused ---------------------------------------------------------


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"kl_coef": -1.0}, "kl_coef=-1.0 is negative"),
    ({"kl_kind": "k4"}, "kl_kind='k4' is unknown; choose one of k1"),
    ({"kl_in_reward": True}, "kl_kind='k3' cannot be in the reward"),
    ({"kl_target": 1.0, "kl_coef": 0.0}, "kl_target=1.0 has no kl_coef"),
    ({"kl_domain_weights": (1.0, -1.0)}, "a weight that is not ≥ 0"),
    ({"importance_mode": "cut"}, "none, truncate, mask"),
    ({"importance_min": 3.0}, "is above importance_max=2.0"),
    ({"log_ratio_clamp": 0.0}, "log_ratio_clamp=0.0 must be greater than 0"),
    ({"rejection": "token"}, "token_k1"),
    ({"advantage_scale": "std"}, "none, group, batch"),
    ({"top_entropy_fraction": 0.0}, "would train nothing"),
    ({"overlong_cache": 1.5}, r"a share in \[0, 1\]"),
    ({"dual_clip": 0.5}, "must be above 1"),
    ({"ratio_cap": 1.1}, r"above 1 \+ clip_high"),
    ({"clip_low": 2.0}, "below 0"),
    ({"singleton": "mean"}, "zero, raw"),
    ({"token_mean_scope": "prompt"}, "batch, group"),
  ],
)
def test_wrong_options_are_named(fields, message):
  with pytest.raises(ValueError, match=f"GRPOConfig: .*{message}"):
    algorithms.make_config("grpo", **fields)


@pytest.mark.parametrize(
  ("name", "fields", "said"),
  [
    ("grpo", {}, "advantages / deviation of the group; KL 0.04 (k3); clip 0.2"),
    (
      "ppo",
      {"whiten": False, "advantage_scale": "batch"},
      "advantages / deviation of the batch; KL 0.05 (k1, in the reward);"
      " clip 0.2",
    ),
    (
      "dapo",
      {"advantage_scale": "none"},
      "advantages as they are; no KL; clip 0.2 and 0.28; overlong_cache=0.2;"
      " dynamic_sampling=True",
    ),
    ("sft", {}, "advantages as they are; no KL"),
  ],
)
def test_options_in_force_are_said_in_a_line(name, fields, said):
  assert options.in_force(algorithms.make_config(name, **fields)) == said
