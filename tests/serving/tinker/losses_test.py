"""The losses of Tinker's API against loops over NumPy float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.serving import requests
from grpo_jax.serving.tinker import losses, wire
from grpo_jax.types import PolicyOutputs
from tests.references import cispo, grpo, gspo

SHAPE = 3, 5
BOUNDS = {"clip_low_threshold": 0.7, "clip_high_threshold": 1.4}
SETTINGS = {
  "ppo": BOUNDS,
  "cispo": BOUNDS,
  "gspo": BOUNDS,
  "dro": {"beta": 0.3},
}
# Those of docs/guides/tinker.md.
OURS = (
  *("grpo", "dr_grpo", "dapo", "gspo", "gspo_token", "luspo", "gmpo", "cispo"),
  *("sapo", "vespo", "deepseek_v32", "two_grpo", "passk", "reinforce", "rloo"),
  *("reinforce_pp_baseline", "gpg", "sft"),
)


def reference(name, logp, fixed, x, low=0.0, high=9.0, beta=0.0):
  """The loss as the documentation writes it; `fixed` has no gradient."""
  total = 0.0
  for i, size in enumerate(x["sizes"]):
    marked = [t for t in range(size) if x["sequence_ratio_mask"][i, t]]
    mean = sum(fixed[i, t] - x["logprobs"][i, t] for t in marked)
    mean /= max(len(marked), 1)
    for t in range(size):
      a, q = x["advantages"][i, t], x["logprobs"][i, t]
      ratio = math.exp(logp[i, t] - q)
      of_row = math.exp(mean + logp[i, t] - fixed[i, t])
      bounded = min(max(math.exp(fixed[i, t] - q), low), high)
      if name == "cross_entropy":
        total -= x["weights"][i, t] * logp[i, t]
      elif name == "importance_sampling":
        total -= ratio * a
      elif name == "ppo":
        total -= min(ratio * a, min(max(ratio, low), high) * a)
      elif name == "cispo":
        total -= bounded * logp[i, t] * a
      elif name == "dro":
        total -= logp[i, t] * a - beta / 2 * (logp[i, t] - q) ** 2
      elif name == "gspo":
        total -= min(of_row * a, min(max(of_row, low), high) * a)
  return total


def case(seed=0):
  """Rows of 5, 2 and 4 tokens, and log-probs of the policy."""
  rng = np.random.default_rng(seed)
  x = {name: rng.normal(size=SHAPE) for name in losses.INPUTS}
  x["logprobs"] = -rng.uniform(0.1, 2, SHAPE)
  x["sequence_ratio_mask"] = rng.uniform(size=SHAPE) < 0.7
  x["sequence_ratio_mask"][:, 0] = True
  x["sizes"] = 5, 2, 4
  exists = np.arange(SHAPE[1]) < np.array(x["sizes"])[:, None]
  logp = np.where(exists, x["logprobs"] + rng.normal(size=SHAPE) / 2, 1e3)
  return logp, exists, x


def slopes(function, logp):
  """Central differences."""
  found = np.zeros(SHAPE)
  for place in np.ndindex(SHAPE):
    step = np.zeros(SHAPE)
    step[place] = 1e-6
    found[place] = (function(logp + step) - function(logp - step)) / 2e-6
  return found


def ours(loss, logp, exists, x):
  rows = losses.PaddedRows(
    jnp.zeros(SHAPE, jnp.int32),
    jnp.zeros(SHAPE, jnp.int32),
    jnp.asarray(exists),
    {name: jnp.asarray(x[name], jnp.float32) for name in losses.INPUTS},
  )
  settings = {name: np.float32(v) for name, v in loss.settings.items()}

  def value(logp):
    outputs = PolicyOutputs(logp=logp, trainable={})
    number = max(loss.number, 0)
    return losses.value(loss.algorithm, number, settings, outputs, rows)

  return jax.value_and_grad(value)(jnp.asarray(logp, jnp.float32))


@pytest.mark.parametrize("name", losses.LOSSES)
def test_losses_are_the_documented_sums(name):
  logp, exists, x = case()
  settings = SETTINGS.get(name, {})
  loss = losses.named(name, settings)
  value, gradient = ours(loss, logp, exists, x)
  short = {k.split("_")[1] if "_" in k else k: v for k, v in settings.items()}

  def expected(logp_):
    return reference(name, logp_, logp, x, **short)

  np.testing.assert_allclose(value, expected(logp), rtol=1e-5)
  np.testing.assert_allclose(gradient, slopes(expected, logp), atol=1e-4)
  assert not gradient[~exists].any()


@pytest.mark.slow
@pytest.mark.parametrize("module", [grpo, gspo, cispo])
def test_algorithms_are_the_library_s_without_the_division(module):
  name = module.__name__.rpartition(".")[2]
  logp, exists, x = case(1)
  x["weights"] = exists * 1.0
  x["advantages"] = np.repeat(x["advantages"][:, :1], SHAPE[1], axis=1)
  loss = losses.named(f"grpo_jax.{name}", {"kl_coef": 0.0})
  value, gradient = ours(loss, logp, exists, x)
  config = loss.algorithm[1]
  of = {"old_logp": x["logprobs"], "mask": exists, "kl_coef": 0.0}
  of["advantages"] = x["advantages"][:, 0]
  if name == "cispo":
    of["frozen_logp"] = logp  # The weight of a token has no gradient.
  else:
    of |= {"clip_low": config.clip_low, "clip_high": config.clip_high}

  def expected(logp_):
    count = exists.sum() if name == "cispo" else SHAPE[0]
    return module.loss(logp=logp_, **of) * count

  np.testing.assert_allclose(value, expected(logp), rtol=1e-5)
  np.testing.assert_allclose(gradient, slopes(expected, logp), atol=1e-4)


def test_algorithms_whose_inputs_a_request_has():
  for name in algorithms.ALGORITHMS:
    if name in OURS:
      assert losses.named(f"grpo_jax.{name}", {"kl_coef": 0.0}).algorithm
      continue
    with pytest.raises(requests.BadRequest, match=rf"grpo_jax\.{name} "):
      losses.named(f"grpo_jax.{name}", {"kl_coef": 0.0})
  with pytest.raises(requests.BadRequest, match="send loss_fn_config"):
    losses.named("grpo_jax.grpo", {})  # Its KL is on by default.
  with pytest.raises(requests.BadRequest, match="no algorithm 'os:path'"):
    losses.named("grpo_jax.os:path", {})  # Nothing is imported.


def test_sequence_losses_have_one_advantage_for_a_row():
  ids = np.arange(3, dtype=np.int32)
  inputs = {name: np.ones(3) for name in losses.INPUTS}
  inputs["target_tokens"] = np.arange(3)
  inputs["advantages"] = np.array([0.0, 1.0, 2.0])
  loss = losses.named("grpo_jax.gspo", {"kl_coef": 0.0})
  with pytest.raises(requests.BadRequest, match="differ within a row"):
    losses.check("grpo_jax.gspo", loss, [wire.Row(ids, inputs)], 8)
  inputs["weights"] = np.array([0.0, 1.0, 0.0])
  losses.check("grpo_jax.gspo", loss, [wire.Row(ids, inputs)], 8)


def test_log_probs_of_prompts_cannot_make_a_gradient_infinite():
  logp, exists, x = case()
  x["logprobs"] = np.where(np.arange(SHAPE[1]) < 2, -500.0, x["logprobs"])
  x["advantages"][:, :2] = 0
  loss = losses.named("importance_sampling", {})
  value, gradient = ours(loss, logp, exists, x)
  assert np.isfinite(value)
  assert np.isfinite(gradient).all()
  assert not gradient[:, :2].any()
