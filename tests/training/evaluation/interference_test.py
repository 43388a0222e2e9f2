"""Gradients of domains are compared."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from grpo_jax.cli import flags as flags_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training.evaluation import interference
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.phases import policy as policy_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.problem import rewards
from grpo_jax.training.runtime import sharding


def test_cosines_are_between_different_batches():
  rng = np.random.default_rng(0)
  gradients = rng.normal(size=(3, 4, 6))
  gradients[2] = 0  # Groups without different rewards.
  found = interference.compared(("a", "b", "c"), gradients)

  def cosine(x, y):
    return x @ y / np.linalg.norm(x) / np.linalg.norm(y)

  for i in range(2):
    for j in range(2):
      values = [
        cosine(gradients[i, a], gradients[j, b])
        for a in range(4)
        for b in range(4)
        if i != j or a != b
      ]
      assert found.cosines[i, j] == pytest.approx(np.mean(values))
  assert np.isnan(found.cosines[2]).all()
  assert np.isnan(found.cosines[:, 2]).all()
  norms = np.linalg.norm(gradients, axis=-1).mean(axis=1)
  np.testing.assert_allclose(found.norms, norms)
  table = interference.table(
    dataclasses.replace(found, names=("a", "nan", "c"))
  )
  assert table[1].split()[3] == "–"
  assert table[2].split()[0] == "nan"


def _loaded(parts):
  config = config_lib.default_config("reinforce")
  config.data.source = "mixture"
  config.data.mixture = parts
  config.rewards.functions = ("accuracy",)
  config.phases = ("rl",)
  config.rl.group_size = 4
  config.model.width = config.model.mlp_width = 8
  config.model.num_heads = config.model.num_kv_heads = 2
  config.model.num_layers = 1
  settings = config_lib.resolve(config)
  mesh = sharding.make_mesh(1)
  problem = problem_lib.make_problem(settings)
  policy = policy_lib.make_policy(settings, problem, mesh)
  params = policy_lib.initial_state(policy, 0).params["policy"]
  return checkpointed.Loaded(settings, problem, policy, mesh, params, None)


@pytest.mark.slow
def test_what_cannot_be_compared_is_said():
  loaded = _loaded(({"name": "sort"},))
  for changes, arguments, message in (
    ({"domains": ()}, {}, "no domains"),
    ({}, {"num_batches": 1}, "num_batches is 1; needs 2"),
    ({}, {"phase": "sft"}, r"phase='sft'; those .* are rl"),
  ):
    problem = dataclasses.replace(loaded.problem, **changes)
    with pytest.raises(ValueError, match=message):
      interference.measure(
        dataclasses.replace(loaded, problem=problem), **arguments
      )


def test_a_file_that_cannot_be_written_is_said_before():
  assert flags_lib.file_to_write("out", "") is None
  assert str(flags_lib.file_to_write("out", "a.json")) == "a.json"
  with pytest.raises(FileNotFoundError, match="no folder no/such/folder"):
    flags_lib.file_to_write("out", "no/such/folder/a.json")


@pytest.mark.slow
def test_one_task_under_two_names_does_not_interfere():
  """With a reward that fresh policies get often."""
  short = {"min_len": 2, "max_len": 2, "num_letters": 4, "tags": False}
  parts = tuple(
    {"name": "sort", "domain": name, "task_options": short} for name in "ab"
  )
  loaded = _loaded(parts)

  def share_of_letters(prompts, rollout):
    del prompts
    is_letter = (rollout.tokens >= 38) & rollout.completion_mask
    return {"letters": is_letter.mean(axis=1)}

  judge = rewards.RewardSum(
    (rewards.InGraph(share_of_letters),), {"letters": 1.0}, "letters"
  )
  loaded = dataclasses.replace(
    loaded, problem=dataclasses.replace(loaded.problem, reward=judge)
  )
  with jax.set_mesh(loaded.mesh):
    found = interference.measure(loaded, num_prompts=64, num_batches=3)
  assert found.names == ("a", "b")
  assert found.cosines.min() > 0.3
  assert np.ptp(found.cosines) < 0.3
  assert (found.norms > 0).all()
