"""Training with adapters over a frozen base, as the settings ask for it."""

import jax
import numpy as np
import pytest

from grpo_jax import api
from grpo_jax.step import models, step
from grpo_jax.training import loop
from grpo_jax.training.phases import checkpointed
from tests.experiments import tiny_config
from tests.training import tiny

pytestmark = pytest.mark.slow


def _config(rank=2, quantization="none"):
  config = tiny_config.get_config("grpo")
  config.model.lora_rank = rank
  config.model.quantization = quantization
  config.rl.ema_decay = None
  config.log.trackers = ()
  config.checkpoint.keep = 20
  return config


def _state(config):
  """The state at the start of the "rl" phase, and its parts."""
  run = tiny.assembled(config)
  phase = run.phases[-1].phase
  state = checkpointed.first_state(
    run.config, run.problem, run.policy, run.mesh
  )
  return step.enter_phase(state, phase, 1), phase, run.problem


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """Run of ten supervised and ten reinforcement steps, over a base in codes."""
  workdir = tmp_path_factory.mktemp("adapters")
  loop.train(_config(quantization="nf4"), workdir)
  return workdir


def _assert_same(one, other):
  jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_base_is_untouched_and_the_adapters_are_not(workdir):
  before, _, _ = _state(_config(quantization="nf4"))
  with api.load(workdir) as loaded:
    assert loaded.step == 20
    after = loaded.params
  _assert_same(after["frozen"], before.params["policy"]["frozen"])
  for name, adapter in after["trained"].items():
    assert abs(adapter["b"]).max() > 1e-3, name


def test_only_adapters_have_an_optimizer_a_reference_and_a_gradient():
  state, phase, _ = _state(_config())
  trained = jax.tree.leaves(state.params["policy"]["trained"])
  num_trained = sum(leaf.size for leaf in trained)
  num_frozen = sum(
    leaf.size for leaf in jax.tree.leaves(state.params["policy"]["frozen"])
  )
  moments = sum(
    leaf.size for leaf in jax.tree.leaves(state.models["policy"].opt_state)
  )
  assert 2 * num_trained <= moments < 2 * num_trained + 10 < num_frozen
  assert state.params["reference"]["frozen"] == {}
  view = models.frozen_view(phase.policy, "reference", state.params)
  reference = view.trunk.params
  _assert_same(reference, state.params["policy"])
  shared = zip(
    jax.tree.leaves(reference["frozen"]),
    jax.tree.leaves(state.params["policy"]["frozen"]),
    strict=True,
  )
  assert all(one is other for one, other in shared)
  assert phase.losses[0].trains == ("policy", "algorithm")
  assert state.params["policy"]["trained"].keys() == {
    *("query", "key", "value", "out", "gate", "up", "down")
  }


def test_fresh_adapters_sample_what_the_base_samples():
  state, phase, made = _state(_config())
  plain, plain_parts, _ = _state(_config(rank=0))
  base = {"trained": state.params["policy"]["frozen"]["base"], "frozen": {}}
  plain = plain.with_params(policy=base)
  prompts = jax.device_put(next(made.prompt_stream(0, 4, None)).prompts)
  rollout = jax.jit(lambda s: step.sample_stage(s, prompts, phase=phase))(state)
  expected = jax.jit(
    lambda s: step.sample_stage(s, prompts, phase=plain_parts)
  )(plain)
  _assert_same(rollout, expected)
