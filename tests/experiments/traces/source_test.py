"""Tests of reading a run, with any files that it may have written."""

import pytest

from experiments.traces import source
from grpo_jax.training.rules import rules
from tests.experiments.traces import examples


def sample(**fields):
  """A line of samples.jsonl."""
  return {
    **{"step": 3, "prompt": "1 + 1 =", "completion": "2", "reward": 1.0},
    **{"valid": True, "correct": True, "components": {"sum": 1.0}},
  } | fields


def test_groups_of_both_files_in_the_order_of_steps(tmp_path):
  traced = [
    examples.group(examples.row(), step=5, prompt="a"),
    examples.group(examples.row(), step=2, prompt="b"),
  ]
  samples = [
    sample(completion="2"),
    sample(completion="x", valid=False, correct=False, reward=0.0),
    sample(prompt="2 + 2 ="),
    sample(step=5, prompt="a"),  # Traced, with more of it.
    sample(step=5, prompt="b"),
  ]
  run = source.read(examples.write(tmp_path / "mine", traced, samples=samples))
  assert (run.name, run.algorithm) == ("mine", "grpo")
  found = [(x.step, x.prompt, len(x.rows), x.chosen[0]) for x in run.groups]
  assert found == [
    (2, "b", 1, "random"),
    (3, "1 + 1 =", 2, "sample"),
    (3, "2 + 2 =", 1, "sample"),
    (5, "a", 1, "random"),
    (5, "b", 1, "sample"),
  ]
  good, bad = run.groups[1].rows
  assert (good.reward, good.correct, good.sample) == (1.0, True, 0)
  # A reward of nobody is none.
  assert (bad.reward, bad.correct, bad.sample) == (None, None, 1)


def test_alarms_are_in_the_metrics_and_say_what_their_rules_mean(tmp_path):
  metrics = [
    {"step": 1, "phase": "rl", "reward/mean": 0.0, "alarm/cut_off": 0.0},
    {"step": 2, "phase": "rl", "alarm/of_tomorrow": 1.0, "alarm/cut_off": 1.0},
  ]
  result = {"doubts": ["perfect"]}
  folder = examples.write(tmp_path, metrics=metrics, result=result)
  run = source.read(folder)
  (rule,) = (x for x in rules.RULES if x.name == "cut_off")
  assert run.alarms == (
    source.Alarm(2, "H04 cut_off", f"{rule.meaning} {rule.advice}"),
    source.Alarm(2, "of_tomorrow", ""),
  )
  assert run.doubts == ("perfect",)


def test_a_folder_without_a_run_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"no metrics\.jsonl.*--workdir"):
    source.read(tmp_path)
