"""Every algorithm against its NumPy reference, value and gradient."""

import dataclasses
import importlib

import jax
import numpy as np
import pytest

from grpo_jax import algorithms
from tests.algorithms import cases
from tests.references import common

NAMES = tuple(algorithms.ALGORITHMS)


def _reference(name):
  return importlib.import_module(f"tests.references.{name}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradient_equal_the_reference(name, seed):
  reference = _reference(name)
  fields = {"kl_coef": 0.1, "entropy_coef": 0.02}
  if name == "dapo":
    fields |= {"overlong_cache": 0.5, "overlong_filter": True}
  if name == "reinforce":
    fields |= {"baseline_decay": 0.0}
  config = algorithms.make_config(name, **fields)
  case = cases.make_case(seed, spread=0.3, dtype=np.float64)
  if name == "gspo":  # Ratios on both sides of its narrow range.
    case.old_logp = case.logp + 5e-4 * (case.old_logp - case.logp)
  case.rewards[7:] = 0.7  # A group without signal.
  with jax.enable_x64(True):
    outcome = cases.evaluate(algorithms.get_algorithm(name), config, case)

  rewards, mask = case.rewards, case.mask & case.valid[:, None]
  if name == "dapo":
    punished = [
      reward + reference.soft_overlong(int(row.sum()), cases.BUDGET, 3)
      for reward, row in zip(rewards, case.mask, strict=True)
    ]
    live = reference.live_groups(rewards, case.valid, case.group_id)
    mask = mask & np.asarray(live)[:, None]
    mask = reference.overlong_filter(mask, case.terminated)
    rewards = np.array(punished)
  advantages = reference.advantages(rewards, case.valid, case.group_id)
  if name != "sft":
    np.testing.assert_allclose(outcome.advantages, advantages, 1e-9, 1e-12)
  np.testing.assert_array_equal(outcome.mask, mask)
  clips = {
    key: getattr(config, key)
    for key in ("clip_low", "clip_high", "log_ratio_clamp")
    if hasattr(config, key)
  }

  def loss(logp):
    return reference.loss(
      logp,
      case.old_logp,
      mask,
      advantages,
      ref_logp=case.ref_logp,
      kl_coef=config.kl_coef,
      entropy=case.entropy,
      entropy_coef=config.entropy_coef,
      **clips,
    )

  np.testing.assert_allclose(outcome.loss, loss(case.logp), 1e-9)
  numeric = common.finite_difference(loss, case.logp, 1e-6)
  np.testing.assert_allclose(outcome.gradient, numeric, 1e-5, 1e-8)
  assert np.any(outcome.gradient != 0)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_the_papers(name):
  reference = importlib.import_module("inspect").signature(
    _reference(name).loss
  )
  config = algorithms.make_config(name)
  for field in dataclasses.fields(config):
    parameter = reference.parameters.get(field.name)
    if parameter is None or parameter.default is None:
      continue
    if name == "gspo" and field.name == "log_ratio_clamp":
      continue  # 10 for a mean over tokens, as its docstring says.
    assert getattr(config, field.name) == parameter.default, field.name
