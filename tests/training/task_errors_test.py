"""Verifiers of tasks that cannot work are found before anything compiles."""

import dataclasses

import jax.numpy as jnp
import pytest

from grpo_jax.tasks import copy as copy_task
from grpo_jax.training import config as config_lib
from grpo_jax.training import loop, problem
from tests.experiments import tiny_config


def raises(tokens, completion_mask, extras):
  return {"accuracy": extras["anwser"].sum()}


def no_names(tokens, completion_mask, extras):
  return tokens.sum()


def no_scalar(tokens, completion_mask, extras):
  return {"accuracy": 1.0 * (tokens == extras["answer"][0])}


def not_traced(tokens, completion_mask, extras):
  return {"accuracy": 1.0 if tokens[0] == 3 else 0.0}


def other(tokens, completion_mask, extras):
  return {"accurcy": jnp.float32(1.0)}


@pytest.mark.parametrize(
  ("verify", "message"),
  [
    (
      raises,
      r"fails on the first problem with 'anwser' \(KeyError.*_test\.py:",
    ),
    (raises, r"_test\.py:\d+: `return .*extras \['answer'\]\."),
    (no_names, r"gave .*needed is a dictionary with a name and a number"),
    (no_scalar, r"gave .*shape=\(3,\).*an array of shape \[\]"),
    (not_traced, r"TracerBoolConversionError.*_test\.py:\d+: `return"),
    (other, r"no component \['accuracy'\]; it has \['accurcy'\]"),
  ],
)
def test_a_broken_task_is_named_with_its_line(tmp_path, verify, message):
  config = tiny_config.get_config("grpo")
  config.data.name = dataclasses.replace(
    copy_task.make(2), verify=verify, verify_numpy=None
  )
  config.data.task_options = {}
  config.rewards.functions = ("accuracy",)
  with pytest.raises((ValueError, KeyError), match=message):
    loop.train(config, tmp_path / "run")
  assert not (tmp_path / "run/metrics.jsonl").exists()


def test_a_task_has_to_say_who_is_right():
  """What is missing is known before anything is compiled, and how to set it."""
  config = tiny_config.get_config("grpo")
  config.data.name = dataclasses.replace(
    copy_task.make(2), verify=other, verify_numpy=None
  )
  config.data.task_options = {}
  config.rewards.functions = ("accurcy",)
  with pytest.raises(KeyError, match=r"no component 'accuracy', which marks"):
    problem.make_problem(config_lib.resolve(config))
  config.rewards.correct = "accurcy"
  problem.make_problem(config_lib.resolve(config))
