"""Every loss finds the arm that pays, or comes closer to its teacher."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import algorithms
from grpo_jax.step import prompts as prompts_lib
from tests.training import tiny

# A teacher judges these, or nobody does.
WITHOUT_REWARDS = ("opd_token", "opd_full", "opd_topk", "sft")


# Of those that share their loss, one; the sign of each one's advantages is in
# its contract.
@pytest.mark.parametrize(
  "name",
  tiny.each(
    (
      name
      for name, algorithm in algorithms.ALGORITHMS.items()
      if name in tiny.OWN_LOSS
      and algorithm.policy_loss is not None
      and not {"turns", "prefix_utility"} & {*algorithm.needs}
      and name not in WITHOUT_REWARDS
    ),
    fast=("grpo",),
  ),
)
def test_bandit(name):
  """One token, one arm pays; a step is one program with one update."""
  most = algorithms.get_algorithm(name).max_group_size
  group_size = most or 8
  phase = tiny.make_phase(
    name, max_new_tokens=1, group_size=group_size, micro_batch_size=32
  )
  num_prompts = 32 // group_size
  advance = tiny.fused(phase, donate_argnums=0)
  state = tiny.make_state(phase)
  if "expected" in phase.algorithm.needs:  # Of prompts that nobody knows.
    known = prompts_lib.untried(num_prompts, prompts_lib.PRIOR)
    known["places"] = jnp.arange(num_prompts)
    state = dataclasses.replace(state, schedule=known)
  history = []
  for i in range(40):
    prompts = tiny.make_prompts(num_prompts, first=num_prompts * i)
    state, metrics, _ = advance(state, prompts)
    history.append(float(metrics["reward/mean"]))
  assert np.mean(history[:3]) < 0.6
  assert np.mean(history[-5:]) > 0.9, history


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "fields"),
  [
    # In a whole run: `options_test.py`.
    pytest.param("opd_full", {}, marks=pytest.mark.slow),
    pytest.param("opd_token", {}, marks=pytest.mark.slow),
    ("opd_topk", {"topk": 5}),
  ],
)
def test_distillation(name, fields):
  """The KL to another random policy, which is the reference, falls."""
  # A weight of 1e-9: the KL is measured, and not trained.
  phase = tiny.make_phase(
    name, fields={"kl_coef": 1e-9, **fields}, group_size=8, micro_batch_size=32
  )
  advance = tiny.fused(phase, donate_argnums=0)
  state = tiny.make_state(phase).with_params(
    reference=phase.policy.init(jax.random.key(1))
  )
  history = []
  for i in range(40):
    state, metrics, _ = advance(state, tiny.make_prompts(first=4 * i))
    history.append(float(metrics["kl/reference"]))
  assert np.mean(history[-5:]) < 0.5 * np.mean(history[:3])
