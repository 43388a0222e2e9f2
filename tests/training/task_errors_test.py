"""Verifiers of tasks that cannot work are found before anything compiles."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import copy as copy_task
from grpo_jax.training import loop
from grpo_jax.training.problem import problem
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
    (no_names, r"gave .*needs a dictionary with a name and a number"),
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
  """The error comes before any compilation, and says how to set the score."""
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


def prompt(*ids):
  return {"prompt": np.array([1, *ids], np.int32)}


def longer(rng):
  return {"extras": {"answer": np.zeros(rng.integers(1, 9), np.int32)}}


@pytest.mark.parametrize(
  ("fields", "example", "message"),
  [
    ({}, prompt(64), r"its prompt has the ids \[64\]; needs ids from 0 to"),
    ({}, prompt(-1), r"its prompt has the ids \[-1\]"),
    ({}, {"completion": np.array([3, 99])}, r"completion has the ids \[99\]"),
    ({}, {"completion": [3, 2]}, r"completion is \[3, 2\] \(list\); needs a"),
    ({}, {"prompt": np.ones(3)}, r"prompt is array.*ndarray of float64\[3\]\)"),
    ({}, {"extras": {"answer": [3, 4]}}, r"extras\['answer'\] is .* \(list\)"),
    ({}, longer, r"extras have the shapes .* and those of the first problem"),
    ({}, {"observed": np.ones(1, bool)}, r"observed has the shape \(1,\)"),
    (
      {},
      {"completion": None, "observed": np.ones(1, bool)},
      r"observed has the shape \(1,\); needs a flag for each of 0 tokens",
    ),
    ({}, prompt(*[3] * 500), r"its prompt has 501 ids; needs at most"),
    ({}, {"prompt": np.zeros(0, np.int32)}, r"its prompt is empty"),
    ({}, {"completion": np.full(99, 3)}, r"its completion has 99 ids"),
    ({}, {"extras": None}, r"its extras are None \(NoneType\); needs a dict"),
    ({}, {"extras": {"answer": "a"}}, r"extras\['answer'\] is 'a' \(str\)"),
    ({}, {"extras": {"answer": None}}, r"extras\['answer'\] is None"),
    ({}, {"extras": {"answer": np.array([None])}}, r"ndarray of object\[1\]\)"),
    ({}, {"extras": {"x": np.array([2**40])}}, r"needs numbers that int32 has"),
    ({}, lambda rng: 1 / 0, r"its example fails with division by zero \(Zero"),
    ({"vocab_size": "64"}, {}, r"vocab_size is '64'; needs a whole"),
    ({"max_prompt_len": -3}, {}, r"max_prompt_len is -3; needs a whole"),
    ({"end_ids": (1, (2, 3))}, {}, r"end_ids is array.*; needs a NumPy"),
    ({"end_ids": (1.0,)}, {}, r"end_ids is array\(\[1\.\]\)"),
    ({"pad_id": (0, 1)}, {}, r"pad_id is array"),
    ({"end_ids": (640,)}, {}, r"end_ids has the ids \[640\]"),
    ({"end_ids": ()}, {}, r"end_ids is \(\); needs a tuple"),
    ({"end_ids": [2]}, {}, r"end_ids is \[2\]; needs a tuple"),
    ({"pad_id": -1}, {}, r"pad_id has the ids \[-1\]"),
    ({"bos_id": 64}, {}, r"bos_id has the ids \[64\]"),
  ],
)
def test_the_first_problems_of_a_task_are_looked_at(fields, example, message):
  made = copy_task.make(2)

  def draw(rng, split):
    changes = example(rng) if callable(example) else example
    return made.example(rng, split)._replace(**changes)

  config = tiny_config.get_config("grpo")
  config.data.name = dataclasses.replace(made, example=draw, **fields)
  config.data.task_options = {}
  config.rewards.functions = ("accuracy",)
  with pytest.raises(ValueError, match=rf"task 'copy': .*{message}"):
    problem.make_problem(config_lib.resolve(config))
