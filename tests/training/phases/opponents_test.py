"""A policy and its opponents in one program: who is trained, and on what."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.step import step
from grpo_jax.training.phases import build, models
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import sharding
from tests.training import tiny


def make_config(*names, **rl):
  config = config_lib.default_config("grpo")
  config.data.name = "nim"
  config.data.task_options = {"num_heaps": 2, "max_stones": 4}
  config.phases = ("rl",)
  config.rl.num_prompts = config.rl.group_size = 4
  config.rl.num_lengths = 1
  config.rl.optimizer.learning_rate = 0.1
  config.rl.opponents = names
  config.rl.update(rl)
  return config_lib.resolve(config)


@functools.cache
def made(*names):
  """Parts, the problem and a batch of a phase with these opponents."""
  config = make_config(*names)
  game = problem.make_problem(config)
  policy = tiny.tiny_policy(game.tokenizer.vocab_size)
  phase = build.make_phase(config, game, policy, "rl", sharding.make_mesh(1))
  batch = next(game.prompt_stream(0, 4, None))
  # Nothing that these policies write is a move: other tokens are paid.
  phase = dataclasses.replace(phase, reward=tiny.Judge(even_tokens))
  prompts = jax.tree.map(jnp.asarray, batch.prompts)
  extras = {**prompts.extras, "seat": jnp.arange(4) % 2}
  return phase, dataclasses.replace(prompts, extras=extras)


def even_tokens(prompts, rollout):
  even = rollout.written & (rollout.tokens % 2 == 0)
  return tiny.count_token(
    prompts, dataclasses.replace(rollout, tokens=jnp.where(even, 2, 0))
  )


@functools.cache
def steps():
  """States before and after two steps, and what was written."""
  phase, prompts = made("start", "self")
  advance = tiny.fused(phase)
  state = step.enter_phase(policy_lib.initial_state(phase.policy, 0), phase, 0)
  found = [(state, None, None)]
  for _ in range(2):
    found.append(advance(found[-1][0], prompts))
  return found


@pytest.mark.slow
def test_opponents_stay_what_they_were():
  (start, *_), *_, (end, _, _) = steps()
  jax.tree.map(
    np.testing.assert_array_equal,
    start.params["policy"],
    end.params["opponent1"],
  )
  moved = jax.tree.map(
    lambda x, y: bool((x != y).any()),
    start.params["policy"]["trained"],
    end.params["policy"]["trained"],
  )
  assert all(jax.tree.leaves(moved))


@pytest.mark.slow
def test_the_policy_is_trained_on_its_own_tokens_and_on_policy():
  for _, metrics, rows in steps()[1:]:
    mask = np.asarray(rows.batch.mask)
    exists = np.asarray(rows.batch.completion_mask)
    assert metrics["tokens/trained"] == mask.sum() < exists.sum()
    np.testing.assert_array_equal(mask, exists & ~np.asarray(rows.observed))
    assert metrics["ratio/max_deviation"] == 0.0
    assert metrics["sampler_gap/max"] < 1e-4


def test_the_other_seats_are_of_the_models_of_the_config():
  phase = make_config("self", "runs/a", "start", "runs/a").section("rl")
  policy, other = tiny.tiny_policy(), tiny.tiny_policy(width=4)
  assert models.from_outside(phase) == {"opponent1": "runs/a"}
  there = {"opponent1": models.Outside(other, {}, dict, 4)}
  found = models.opponents(phase, policy, there)
  assert [x.read for x in found.values()] == [dict, None]
  assert all(x.optimizer is None and x.fields is None for x in found.values())
  table = models.table(phase, policy, found, there)
  assert table.opponents.models == (0, 1, 2, 1)
  assert table.opponents.policies == (other, policy)
  params = {"policy": {"frozen": {}}}
  params |= {name: {"frozen": {}, "trained": name} for name in found}
  seen = [view(params).trunk.params["trained"] for view in table.views]
  assert seen == ["opponent1", "opponent2"]
  assert models.table(make_config().section("rl"), policy, {}, {}) is None


def test_what_is_no_opponent_is_named():
  with pytest.raises(
    FileNotFoundError, match=r"'strat': .*no run are 'start' and 'self'"
  ):
    made("strat")


def test_a_model_that_nobody_has_costs_nothing():
  assert models.opponents(make_config("self").section("rl"), None, {}) == {}
