"""Rollouts of rounded kernels: what is recorded, and what is trained."""

import jax
import numpy as np
import pytest

from grpo_jax.ops import logprobs
from grpo_jax.step import step as step_lib
from grpo_jax.training.phases import checkpointed, executors
from grpo_jax.training.runtime import sharding
from tests.experiments import tiny_config
from tests.models import quantization_test
from tests.training import tiny

EIGHT_BITS = ("int8", "float8_e4m3fn")


def _config(kind, algorithm="grpo", **changes):
  config = tiny_config.get_config(algorithm)
  config.log.trackers = ()
  config.checkpoint.keep = 20
  config.sampling.weights_dtype = kind
  config.algorithm.importance_mode = "truncate"
  return tiny_config.change(config, changes)


def _made(config):
  """Parts of the phase "rl", the state at its start, and a batch of prompts."""
  run = tiny.assembled(config)
  phase = run.phases[-1].phase
  state = checkpointed.first_state(
    run.config, run.problem, run.policy, run.mesh
  )
  number = run.config.section("rl").num_prompts
  prompts = next(run.problem.prompt_stream(0, number, None)).prompts
  return phase, step_lib.enter_phase(state, phase, 1), prompts


@jax.jit
def _louder(state):
  """Adapters at their start add nothing, and weights of 0.02 say little."""
  params = state.params["policy"]
  trained = jax.tree.map(lambda x: 4 * x + 0.03, params["trained"])
  return state.with_params(policy={**params, "trained": trained})


def _recorded_and_read(phase, params, state, prompts):
  """Log-probs of a rollout, and of its tokens by a pass with `params`."""

  @jax.jit
  def both(state, params, prompts):
    rollout = step_lib.sample_stage(state, prompts, phase=phase)
    h, _ = phase.policy.hidden(
      params,
      prompts.tokens,
      prompts.mask,
      rollout.tokens,
      rollout.completion_mask,
      rollout.prompt_index,
    )
    logp = logprobs.token_outputs(
      lambda h: phase.policy.head(params, h), h, rollout.tokens, temperature=1.0
    ).logp
    return rollout, logp

  rollout, logp = both(state, params, prompts)
  seen = np.asarray(rollout.completion_mask)
  return np.asarray(rollout.sampler_logp)[seen], np.asarray(logp)[seen]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "changes"),
  [
    ("int8", {}),
    pytest.param("float8_e4m3fn", {}, marks=pytest.mark.slow),
    pytest.param("int8", {"sampling__lanes": 5}, marks=pytest.mark.slow),
    pytest.param("int8", {"model__lora_rank": 2}, marks=pytest.mark.slow),
  ],
)
def test_recorded_log_probs_are_those_of_rounded_kernels(kind, changes):
  phase, state, prompts = _made(_config(kind, **changes))
  state = _louder(state)
  params = state.params["policy"]
  rounded = quantization_test.rounded_by_hand(kind, params)
  recorded, read = _recorded_and_read(phase, rounded, state, prompts)
  np.testing.assert_allclose(recorded, read, atol=2e-5)
  recorded, read = _recorded_and_read(phase, params, state, prompts)
  assert 1e-4 < abs(recorded - read).mean() < 0.1


@pytest.mark.slow
def test_an_update_with_rounded_rollouts_does_not_depend_on_micro_batches():
  """And its weights and ratios are those of kernels as they are."""
  ends, said = [], []
  for size in (16, 4):
    config = _config(
      "int8",
      rl__micro_batch_size=size,
      rl__num_lengths=1,
      rl__num_minibatches=1,
    )
    phase, state, prompts = _made(config)
    step = executors.jit_step(sharding.make_mesh(1), step_lib.fused_step, phase)
    state, metrics, _ = step(_louder(state), prompts)
    ends.append(jax.device_get(state.models["policy"].opt_state))
    said.append(jax.device_get(metrics))
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), *ends)
  for metrics in said:
    # The first ratio of the update is to its own forward pass.
    assert metrics["ratio/max_deviation"] == 0
    assert 1e-4 < metrics["sampler_gap/mean"] < 0.1
    assert 0 < metrics["sampler_gap/kl"] < metrics["sampler_gap/mean"] / 10
    assert abs(metrics["policy_weight/mean"] - 1) > 1e-6
