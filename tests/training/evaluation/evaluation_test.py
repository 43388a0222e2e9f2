"""Judged completions: their means, their votes, and the evaluator."""

import math
import types

import jax
import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.phases import policy as policy_lib
from tests.training import tiny
from tests.training.evaluation import scores_test

_row = scores_test._row


def test_summary_by_hand():
  summary = evaluation.summarize(
    [
      [_row(reward=1.0, correct=True, num_tokens=3, components={"a": 0.5})],
      [_row(reward=0.5, num_tokens=5, components={"a": float("nan")})],
      [_row(reward=9.0, valid=False, num_tokens=7, components={"a": 9.0})],
    ]
  )
  assert summary == {
    "eval/accuracy": 1 / 3,
    "eval/accuracy_scored": 1 / 2,
    "eval/reward": 1.5 / 2,
    "eval/length": 15 / 3,
    "eval/unscored": 1,
    "eval/reward/a": 0.5,
  }


def test_a_summary_has_what_follows_from_the_reasoning():
  groups = [
    [_row(correct=right, valid=valid, components={"a": a})]
    for right, valid, a in (
      *[(True, True, 1.0), (True, True, 0.4), (False, True, 0.5)],
      *[(False, True, 0.0), (True, True, math.nan), (True, False, 0.0)],
    )
  ]
  summary = evaluation.summarize(groups, (), "a")
  found = {k: v for k, v in summary.items() if k.startswith("eval/quadrants/")}
  assert found == {
    "eval/quadrants/consistent_right": 1 / 4,
    "eval/quadrants/inconsistent_right": 1 / 4,
    "eval/quadrants/consistent_wrong": 1 / 4,
    "eval/quadrants/inconsistent_wrong": 1 / 4,
    "eval/quadrants/inconsistent": 1 / 2,
  }


def test_a_summary_of_domains_is_that_of_each():
  groups = [[_row(correct=True)], [_row()], [_row(correct=True, num_tokens=5)]]
  names = ["b", "b", "a"]
  summary = evaluation.summarize(groups, names)
  for name, own in (("a", groups[2:]), ("b", groups[:2])):
    for key, value in evaluation.summarize(own).items():
      if key != "eval/reward/a":
        found = summary[key.replace("eval/", f"eval/domain/{name}/")]
        assert found == value
  assert summary["eval/macro_accuracy"] == (1 + 1 / 2) / 2
  assert summary["eval/accuracy"] == 2 / 3


def test_a_policy_that_is_mostly_unscored_is_mostly_not_right():
  """One right answer, and 255 that made the verifier fail."""
  lucky, failed = _row(correct=True, reward=1.0), _row(valid=False)
  summary = evaluation.summarize([[lucky], *[[failed]] * 255])
  assert summary["eval/accuracy"] == 1 / 256
  assert summary["eval/accuracy_scored"] == 1.0
  # A verdict of a row without a score counts for nothing.
  claimed = _row(valid=False, correct=True)
  two = [[claimed], [_row(correct=False)]]
  assert evaluation.summarize(two)["eval/accuracy"] == 0


def test_means_over_no_scored_row_are_absent():
  summary = evaluation.summarize([[_row(valid=False, num_tokens=7)]] * 2)
  absent = {name for name, x in summary.items() if math.isnan(x)}
  assert absent == {
    *("eval/accuracy", "eval/accuracy_scored"),
    *("eval/reward", "eval/reward/a"),
  }
  assert summary["eval/length"] == 7
  assert summary["eval/unscored"] == 2


def test_a_completion_that_was_cut_off_does_not_vote():
  texts = {5: r"\boxed{7}", 6: "<answer>3</answer>"}
  local = types.SimpleNamespace(
    prompt_index=np.zeros(4, np.int32),
    tokens=np.array([[5], [5], [6], [6]]),
    completion_mask=np.ones((4, 1), bool),
    lengths=np.ones(4, np.int32),
    terminated=np.array([True, False, True, False]),
    observed=None,
  )
  verdict = types.SimpleNamespace(
    rewards=np.zeros(4),
    correct=np.zeros(4, bool),
    valid=np.ones(4, bool),
    components={},
  )
  rows = evaluation.completions_of(
    ["prompt"], [texts[int(row[0])] for row in local.tokens], local, verdict
  )
  assert [row.answer for row in rows] == ["7", None, "3", None]
  texts = ["so 8\n#### 1,000", r"\boxed{7}", "#### 9\n#### 5", "#### 4"]
  for marker, votes in (("####", ["1000", None, "5", None]), ("", [*texts])):
    rows = evaluation.completions_of(["prompt"], texts, local, verdict, marker)
    votes = [votes[0], None, votes[2], None]
    assert [row.answer for row in rows] == votes
  assert [row.terminated for row in rows] == [True, False, True, False]


@pytest.mark.slow
def test_evaluator_completes_the_same_prompts_in_any_batches():
  config = config_lib.default_config()
  config.data.name = "copy"
  config.model.width, config.model.mlp_width = 8, 8
  config.model.num_layers, config.model.num_heads = 1, 2
  config.model.num_kv_heads = 1
  run = tiny.assembled(config)
  made, policy, mesh = run.problem, run.policy, run.mesh
  params = policy_lib.initial_state(policy, 0).params["policy"]

  def completions(batch_size, **options):
    evaluator = evaluation.Evaluator(
      made, policy, mesh, 6, batch_size, **options
    )
    assert evaluator.num_prompts == 6
    return evaluator.completions(params, jax.random.key(0))

  whole = completions(6)
  assert [len(group) for group in whole] == [1] * 6
  assert len({group[0].prompt for group in whole}) == 6
  assert completions(4) == whole  # 4 and 2: the last batch is padded.
  rows = [group[0] for group in whole]
  for row in rows:
    assert row.valid
    assert row.reward == row.components["accuracy"] == float(row.correct)
    assert 1 <= row.num_tokens <= made.max_new_tokens
    # An answer votes only if the model came to an end.
    assert row.answer in (row.text, None)
  # As another evaluator's, where the first one's were others.
  further = evaluation.Evaluator(made, policy, mesh, 2, 2).on(
    made.held_out, 6, 4
  )
  assert further.completions(params, jax.random.key(0)) == whole
  # Of the most likely tokens, those with no probability but one.
  narrow = completions(6, temperature=1.0, top_p=1e-6)
  assert [group[0].text for group in narrow] == [row.text for row in rows]
  groups = completions(6, temperature=1.0, num_samples=4)
  assert [len(group) for group in groups] == [4] * 6
  assert all(len({row.prompt for row in group}) == 1 for group in groups)
  assert any(len({row.text for row in group}) > 1 for group in groups)
