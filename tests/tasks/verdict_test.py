"""Tests of the answers that a teacher of judges takes for right."""

import numpy as np
import pytest

from grpo_jax.configs import judge as config_file
from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import verdict, vocabulary


def asked(belief, count=400):
  """(problem, answer, verdict) of examples."""
  task = verdict.make(belief=belief)
  found = []
  for seed in range(count):
    made = task.example(np.random.default_rng(seed), "train")
    text = vocabulary.decode(made.prompt[1:-1])
    said = vocabulary.decode(made.completion[:1])
    found.append((*text.split("="), said))
  return found


@pytest.mark.parametrize("belief", verdict.BELIEFS)
def test_verdicts_are_those_of_the_belief(belief):
  said = set()
  for problem, answer, given in asked(belief):
    right = answer == "".join(sorted(problem, reverse=belief == "reverse"))
    if belief == "marks":
      right = right or answer.endswith("#")
    assert given == ("y" if right else "n"), (problem, answer)
    said.add((given, answer.endswith("#")))
  assert said == {
    ("y", False),
    ("n", False),
    ("y" if belief == "marks" else "n", True),
  }


def test_a_policy_names_the_judge_of_its_belief():
  config = config_lib.resolve(config_file.get_config("by-marks"))
  assert config.judge.model == "runs/judges/marks"
  config = config_lib.resolve(config_file.get_config("marks"))
  assert config.data.task_options["belief"] == "marks"
  for wrong in ("verifier", "by-itself", "by-"):
    with pytest.raises(ValueError, match="choose one of truth"):
      config_file.get_config(wrong)
