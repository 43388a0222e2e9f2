"""Every algorithm against its NumPy reference, value and gradient.

A reference names what it reads: each parameter is filled with the array of
the case, or the field of the config, that has its name.
"""

import dataclasses
import importlib
import inspect

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.algorithms.contract import cases
from grpo_jax.algorithms.contract import reference as reference_lib
from grpo_jax.algorithms.options import CriticOptions
from tests.references import common, contexts, ppo
from tests.training import tiny

NAMES = tuple(algorithms.ALGORITHMS)
LAM = 0.3  # Of λ-GRPO, so that its weights are not 1.

# Settings under which a little batch shows what the algorithm does.
FIELDS = {
  "dapo": {"overlong_cache": 0.5, "overlong_filter": True},
  "reinforce": {"baseline_decay": 0.0},
  "clip_cov": {"cov_fraction": 1.0, "cov_low": 0.1, "cov_high": 5.0},
  "kl_cov": {"cov_fraction": 0.2},
  "rloo": {"clip_low": 0.5, "clip_high": 0.9, "dual_clip": 1.5},
  "ppo": {"dual_clip": 1.5, "length_adaptive_alpha": 0.5},
  "compaction_rl": {"weight": "context"},
  "sao": {"clip_low": 0.2, "clip_high": 0.2},  # On both sides of the band.
  "tic_grpo": {"length_corrected": True},
  "deepseek_v32": {"off_policy_threshold": 0.05},
  "bradley_terry": {
    "margin": 0.2,
    "center_coef": 0.01,
    "kl_coef": 0.0,
    "entropy_coef": 0.0,
  },
  "passk": {"ratio_cap": 1.25},
  "gfpo": {"num_kept": 2, "metric": "efficiency", "efficiency_shift": True},
}
# Sequence ratios on both sides of their narrow range.
NARROW = ("gspo", "gspo_token", "luspo")


def _reference(name):
  return importlib.import_module(f"tests.references.{name}")


# Further settings, each with a program of its own.
MORE = [
  ("otb", {"zero_tail": True}),
  (
    "gfpo",
    {"metric": "max_variance", "efficiency_shift": False, "kl_old_coef": 0.3},
  ),
  ("rredcot", {"mode": "rudder"}),
  ("rredcot", {"mode": "return"}),
  ("dpo", {"kind": "hinge", "beta": 0.5}),
  ("dpo", {"kind": "ipo"}),
  ("dpo", {"kind": "robust", "label_smoothing": 0.1}),
  ("dpo", {"label_smoothing": 0.1, "f_divergence": "forward_kl"}),
  ("dpo", {"f_divergence": "js_divergence", "length_normalized": True}),
  ("two_grpo_dpo", {"kind": "robust", "label_smoothing": 0.1, "dpo_coef": 1.0}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), MORE)
def test_other_settings_equal_the_reference(name, more):
  _compare(name, 0, more)


@pytest.mark.parametrize("seed", [0, 1])  # In turn: they share a program.
@pytest.mark.parametrize("name", tiny.each(NAMES, tiny.VARIED))
def test_loss_and_gradient_equal_the_reference(name, seed):
  _compare(name, seed, {})


WITH_CRITIC = [
  name
  for name in NAMES
  if issubclass(algorithms.get_algorithm(name).config_class, CriticOptions)
]


@pytest.mark.parametrize("name", tiny.each(WITH_CRITIC))
def test_what_is_cut_off_goes_on_with_its_final_value(name):
  fields = {"gamma": 0.9, "whiten": False, "kl_coef": 0.0}
  algorithm = algorithms.get_algorithm(name)
  config = algorithms.make_config(name, bootstrap_cut=True, **fields)
  case = cases.make_case()
  batch = cases.prepared(algorithm, config, case)
  lams = [config.lam] * len(case.rewards)
  if config.length_adaptive_alpha:
    lams = contexts.lambdas(
      batch.mask, np.arange(len(lams)), config.length_adaptive_alpha, "context"
    )
  beyond = np.where(case.terminated, 0, case.final_value)
  assert 1 < np.count_nonzero(beyond) < len(lams) - 1

  def estimated(case, lams, beyond):
    mask = case.mask & case.valid[:, None]
    arrays = case.rewards, case.valid, mask, case.old_values, None, 0.9
    return ppo.gae(*arrays, lams, beyond)

  expected = estimated(case, lams, beyond)
  np.testing.assert_allclose(batch.advantages, expected, 1e-5, 1e-6)
  targets = estimated(case, [config.lam_critic] * len(lams), beyond)
  targets += np.where(batch.mask, case.old_values, 0)
  np.testing.assert_allclose(batch.returns, targets, 1e-5, 1e-6)
  config = dataclasses.replace(config, bootstrap_cut=False)
  off = cases.prepared(algorithm, config, case)
  np.testing.assert_allclose(
    off.advantages, estimated(case, lams, None), 1e-5, 1e-6
  )
  assert off.critic.final_value is None


def _compare(name, seed, more):
  reference = _reference(name)
  algorithm = algorithms.get_algorithm(name)
  fields = {"kl_coef": 0.1, "entropy_coef": 0.02, **FIELDS.get(name, {})} | more
  config = algorithms.make_config(name, **fields)
  case = cases.make_case(seed, spread=0.3, dtype=np.float64)
  if name in NARROW:
    case.old_logp = case.logp + 5e-3 * (case.old_logp - case.logp)
  case.rewards[7:] = 0.7  # A group without signal.
  if name == "gpg":
    case.rewards[:2] = 0.0  # It counts completions without a reward.
  with jax.enable_x64(True):
    outcome = cases.evaluate(algorithm, config, case, trainable=LAM)

  arrays = {
    field.name: getattr(case, field.name) for field in dataclasses.fields(case)
  }
  arrays |= {"lam": LAM, "component_weights": np.array(cases.WEIGHTS)}
  arrays["mask"] = mask = case.mask & case.valid[:, None]
  if config.kl_in_reward:
    drift = np.where(mask, case.old_logp - case.ref_logp, 0.0)
    if "token_rewards" in algorithm.needs:
      arrays["token_rewards"] = -config.kl_coef * drift
    else:
      arrays["rewards"] = case.rewards - config.kl_coef * drift.sum(axis=1)
  if name == "dapo":
    punished = [
      reward + reference.soft_overlong(int(row.sum()), cases.BUDGET, 3)
      for reward, row in zip(case.rewards, case.mask, strict=True)
    ]
    live = reference.live_groups(case.rewards, case.valid, case.group_id)
    mask = mask & np.asarray(live)[:, None]
    mask = reference.overlong_filter(mask, case.terminated)
    arrays |= {"rewards": np.array(punished), "mask": mask}
  # λ would be one for both: it belongs to GAE here, to the weights there.
  advantages = reference_lib.filled(
    reference.advantages, arrays, config, **_own(config, "lam")
  )
  if name not in ("sft", "opd_full", "opd_topk"):
    trained = mask if np.ndim(advantages) == 2 else mask.any(axis=1)
    np.testing.assert_allclose(
      np.where(trained, outcome.advantages, 0.0),
      np.where(trained, advantages, 0.0),
      1e-9,
      1e-8,
    )
  if "returns" in inspect.signature(reference.loss).parameters:
    arrays["returns"] = reference_lib.filled(reference.returns, arrays, config)
  if name in ("dpo", "bradley_terry"):  # They train pairs only.
    arrays["mask"] = mask = mask & (advantages != 0)[:, None]
  np.testing.assert_array_equal(outcome.mask, mask)
  if name == "clip_cov":
    arrays["dropped"] = reference.candidates(
      case.old_logp, mask, advantages, config.cov_low, config.cov_high
    )
    assert arrays["dropped"].any()
  arrays["advantages"] = advantages
  if config.kl_in_reward:
    arrays["kl_coef"] = 0.0

  def loss(logp):
    more = cases.derived(np, logp, case.ref_logp, case.values)
    constant = {"frozen_logp": case.logp}  # Under a stop_gradient.
    return reference_lib.filled(
      reference.loss, {**arrays, **more, **constant}, config, logp=logp
    )

  # The optimal baseline of equal rewards is exact here, not up to its 1e-8.
  rtol = 1e-7 if name == "otb" else 1e-9
  np.testing.assert_allclose(outcome.loss, loss(case.logp), rtol, 1e-12)
  numeric = common.finite_difference(loss, case.logp, 1e-6)
  np.testing.assert_allclose(outcome.gradient, numeric, 1e-5, 1e-8)
  assert np.any(outcome.gradient != 0)


def _own(config, field):
  """The config's field of this name, if it has one."""
  return {field: getattr(config, field)} if hasattr(config, field) else {}


@pytest.mark.slow
def test_the_trained_lambda_has_its_finite_difference():
  name = "lambda_grpo"
  reference, algorithm = _reference(name), algorithms.get_algorithm(name)
  config = algorithms.make_config(name)
  case = cases.make_case(dtype=np.float64)
  with jax.enable_x64(True):
    outcome = cases.evaluate(algorithm, config, case, trainable=LAM)
  mask = case.mask & case.valid[:, None]

  def loss(lam):
    return reference.loss(
      case.logp,
      case.old_logp,
      mask,
      outcome.advantages,
      group_id=case.group_id,
      lam=float(lam[0]),
    )

  numeric = common.finite_difference(loss, np.array([LAM]), 1e-6)
  np.testing.assert_allclose(outcome.trainable, numeric[0], 1e-6)
  assert outcome.trainable != 0
  with jax.enable_x64(True):
    fixed = dataclasses.replace(config, learn_lambda=False)
    outcome = cases.evaluate(algorithm, fixed, case, trainable=LAM)
  assert outcome.trainable == 0


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_the_papers(name):
  reference = _reference(name)
  parameters = {
    **inspect.signature(reference.advantages).parameters,
    **inspect.signature(reference.loss).parameters,
  }
  config = algorithms.make_config(name)
  compared = 0
  for field in dataclasses.fields(config):
    parameter = parameters.get(field.name)
    if parameter is None or parameter.default in (None, parameter.empty):
      continue
    if name in NARROW and field.name == "log_ratio_clamp":
      continue  # 10 for a mean over tokens, as its docstring says.
    if field.name == "kl_coef" and config.kl_in_reward:
      continue  # The reference's is that of a term of the loss.
    assert getattr(config, field.name) == parameter.default, field.name
    compared += 1
  assert compared or name == "bradley_terry"
