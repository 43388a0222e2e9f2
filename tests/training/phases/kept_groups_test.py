"""Groups that wait: their shapes, and settings that fit."""

import functools

import jax
import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.settings import phase as phase_lib
from grpo_jax.step import step
from grpo_jax.training import run as run_lib
from grpo_jax.training.phases import checkpointed, kept_groups
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import sharding
from tests.experiments import tiny_config

STEPS = 12


def get_config(name):
  """Six steps of pairs, whose rewards are often equal, in up to two rounds."""
  config = tiny_config.get_config(name)
  config.sft.steps = config.rl.steps = STEPS // 2
  config.rl.group_size = 2
  config.rl.num_minibatches = 1
  config.rl.staleness = 0
  config.rl.max_rounds = 2
  config.rl.recycle_surplus = True
  config.rl.replay_size = 6
  config.rl.optimizer.learning_rate = 0.05
  config.algorithm.dynamic_sampling = True
  config.algorithm.importance_mode = "truncate"
  config.algorithm.entropy_coef = 0.1
  config.eval.every = 0
  config.checkpoint.every = 2
  config.log.trackers = ()
  config.log.traces_every = 1
  return config


def _shapes(tree):
  return jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "on_host"])
def test_what_waits_has_the_shapes_of_what_is_drawn(name):
  config = config_lib.resolve(get_config(name))
  made = problem.make_problem(config)
  mesh = sharding.make_mesh(1)
  try:
    policy = policy_lib.make_policy(config, made, mesh)
    each = checkpointed.make_phases(config, made, policy, mesh)
    phase = each[-1]
    example = next(
      run_lib.make_stream(config, made, mesh, len(each) - 1, is_example=True)
    )
    start = checkpointed.abstract_start(policy, 0)
    state = checkpointed.abstract_state(each, start)
    one_round = jax.tree.map(lambda x: x[:4], example.prompts)
    said = None
    if made.reward.asks_host:
      rollout = jax.eval_shape(
        functools.partial(step.sample_stage, phase=phase.phase),
        *(state, one_round),
      )
      rollout = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), rollout)
      batch = example._replace(prompts=one_round, records=example.records[:4])
      said, *_ = made.host_scores(batch, rollout)
      assert _shapes(phase.phase.waiting_groups.host_scores) == _shapes(said)
  finally:
    made.close()
  drawn = jax.eval_shape(
    functools.partial(step.draw_stage, phase=phase.phase),
    *(state, one_round, said),
  )
  assert _shapes(state.waiting["surplus"]) == _shapes(drawn)
  kept = state.waiting["replay"]["groups"]
  assert kept.prompts.tokens.shape[0] == 6
  assert kept.rollout.tokens.shape[0] == 12


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"recycle_surplus": True}, "is about what rounds have beyond a batch"),
    (
      {"replay_size": 8, "max_rounds": 2, "when_short": "duplicate"},
      "both say what becomes of a batch that is short",
    ),
  ],
)
def test_settings_that_contradict_each_other_are_refused(fields, message):
  with pytest.raises(ValueError, match=message):
    config_lib.RunConfig().with_section("rl", **fields)


def test_a_buffer_splits_over_the_devices():
  config = config_lib.RunConfig().with_section("rl", replay_size=9)
  with pytest.raises(ValueError, match="9 does not split over the 2 devices"):
    kept_groups.make(config, None, "rl", None, None, num_shards=2)


def test_nothing_is_kept_that_is_not_asked_for():
  config = config_lib.RunConfig()
  assert not kept_groups.make(config, None, "rl", None, None, 1).waits
  assert phase_lib.WHEN_SHORT[0] == config.section("rl").when_short
