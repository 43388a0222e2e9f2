"""pass@k, maj@k and intervals against references; answers; judged rows."""

import itertools
import math
import types

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_jax.rewards import answers
from grpo_jax.training import config as config_lib
from grpo_jax.training import evaluation, models, problem, sharding
from tests.references import metrics as reference


@pytest.mark.parametrize(
  ("n", "c", "k", "expected"),
  [
    (8, 2, 1, 0.25),
    (8, 2, 4, 11 / 14),  # 1 − C(6, 4) / C(8, 4) = 1 − 15 / 70
    (16, 3, 8, 0.9),  # 1 − C(13, 8) / C(16, 8) = 1 − 1287 / 12870
    (8, 0, 8, 0.0),
    (8, 8, 1, 1.0),
    (8, 5, 4, 1.0),  # Three wrong ones do not fill four places.
  ],
)
def test_pass_at_k_by_hand(n, c, k, expected):
  assert evaluation.pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_is_the_reference_and_monotone():
  for n in range(1, 13):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
      value = evaluation.pass_at_k(n, c, k)
      assert value == pytest.approx(reference.pass_at_k(n, c, k), abs=1e-12)
      assert value == pytest.approx(
        1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12
      )
      if k < n:
        assert value <= evaluation.pass_at_k(n, c, k + 1) + 1e-12
      if c < n:
        assert value <= evaluation.pass_at_k(n, c + 1, k) + 1e-12
  assert 0 < evaluation.pass_at_k(100_000, 1, 7) < 1e-4  # No overflow.


@pytest.mark.parametrize(
  ("answers", "expected"),
  [
    (["7", "7", "3"], 1.0),
    (["7", "3", "3"], 0.0),
    (["7", "3"], 0.5),  # A tie between a right and a wrong answer.
    (["7", "3", "5", "5", "7"], 0.5),
    ([None, None, "7"], 1.0),  # Unreadable answers never vote.
    ([None, None], 0.0),
    (["7"], 1.0),
  ],
)
def test_maj_at_n_by_hand(answers, expected):
  correct = [answer == "7" for answer in answers]
  k = len(answers)
  assert evaluation.majority_at_k(answers, correct, k) == expected
  assert reference.maj_at_k(answers, "7", k) == expected


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["7", "3", "5", None]), min_size=1, max_size=7))
def test_maj_at_n_is_the_reference(answers):
  correct = [answer == "7" for answer in answers]
  k = len(answers)
  assert evaluation.majority_at_k(answers, correct, k) == pytest.approx(
    reference.maj_at_k(answers, "7", k)
  )


def test_maj_at_k_of_subsets_is_the_reference():
  answers = ["7", "7", "3", "3", "3", "7", None, "5"]
  correct = [answer == "7" for answer in answers]
  for k in (2, 3, 5):
    found = evaluation.majority_at_k(answers, correct, k, num_subsets=4000)
    wanted = reference.maj_at_k(answers, "7", k)
    assert 0.2 < wanted < 0.8
    # Five standard errors of a share of 4000 subsets.
    assert found == pytest.approx(wanted, abs=0.04)
  assert evaluation.majority_at_k(answers, correct, 3) == (
    evaluation.majority_at_k(answers, correct, 3)
  )


def test_wilson_interval():
  # By hand for 8 of 10, z² = 3.8415: centre (0.8 + 0.19207) / 1.38415, half
  # width 1.95996 · √(0.016 + 0.0096036) / 1.38415.
  low, high = evaluation.wilson_interval(8, 10)
  assert low == pytest.approx(0.49016, abs=1e-4)
  assert high == pytest.approx(0.94332, abs=1e-4)
  for count in (1, 10, 512):
    low, high = evaluation.wilson_interval(0, count)
    assert low == 0
    assert 0 < high < 1
    mirrored = evaluation.wilson_interval(count, count)
    assert mirrored == pytest.approx((1 - high, 1 - low))
  narrow, wide = (evaluation.wilson_interval(n / 2, n) for n in (400, 100))
  assert wide[1] - wide[0] == pytest.approx(2 * (narrow[1] - narrow[0]), 0.02)
  assert evaluation.wilson_interval(0, 0) == (0, 1)


def test_bootstrap_interval():
  values = np.random.default_rng(0).normal(0.3, 1.0, 400)
  low, high = evaluation.bootstrap_interval(values)
  assert low < values.mean() < high
  # ±1.96 σ / √n, about.
  assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
  assert evaluation.bootstrap_interval(values) == (low, high)
  assert evaluation.bootstrap_interval([0.5] * 9) == (0.5, 0.5)


def _row(**fields):
  defaults = {
    "prompt": "",
    "text": "",
    "answer": None,
    "reward": 0.0,
    "correct": False,
    "valid": True,
    "num_tokens": 1,
    "components": {"a": 0.0},
  }
  return evaluation.Completion(**defaults | fields)


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


def test_a_policy_that_is_mostly_unscored_is_mostly_not_right():
  """One right answer, and 255 that made the verifier fail."""
  lucky, failed = _row(correct=True, reward=1.0), _row(valid=False)
  summary = evaluation.summarize([[lucky], *[[failed]] * 255])
  assert summary["eval/accuracy"] == 1 / 256
  assert summary["eval/accuracy_scored"] == 1.0
  # A verdict of a row without a score counts for nothing.
  claimed = _row(valid=False, correct=True)
  assert evaluation.summarize([[claimed]])["eval/accuracy"] == 0


def test_means_over_no_scored_row_are_absent_and_accuracy_is_0():
  summary = evaluation.summarize([[_row(valid=False, num_tokens=7)]] * 2)
  absent = {name for name, x in summary.items() if math.isnan(x)}
  assert absent == {"eval/accuracy_scored", "eval/reward", "eval/reward/a"}
  assert summary["eval/accuracy"] == 0
  assert summary["eval/length"] == 7
  assert summary["eval/unscored"] == 2


def test_table_by_hand():
  right, wrong = _row(correct=True, answer="7"), _row(answer="3")
  failed = _row(answer="3", valid=False)
  table = evaluation.table(
    [[right], [wrong], [failed], [failed]],
    [[right, failed], [right, wrong], [failed, failed], [right, right]],
  )
  assert {name: row["value"] for name, row in table.items()} == {
    "greedy": 1 / 4,
    "greedy_scored": 1 / 2,
    "pass@1": 4 / 8,
    "maj@1": pytest.approx(4 / 8, abs=0.1),  # Over random subsets.
    "pass@2": 3 / 4,
    "maj@2": (0.5 + 0.5 + 0 + 1) / 4,
  }
  greedy = table["greedy"]
  assert (greedy["low"], greedy["high"]) == evaluation.wilson_interval(1, 4)
  nobody = evaluation.table([[failed]], [[failed]])
  assert nobody["greedy_scored"] == {"value": None, "low": 0.0, "high": 1.0}
  assert nobody["pass@1"]["value"] == nobody["maj@1"]["value"] == 0


def test_equal_answers_of_different_forms_are_one_vote():
  texts = [r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{1/2}"]
  votes = [answers.vote(text) for text in (*texts, *[r"\boxed{2}"] * 2)]
  assert evaluation.majority_at_k(votes, [True] * 3 + [False] * 2, 5) == 1.0


def test_a_completion_that_was_cut_off_does_not_vote():
  texts = {5: r"\boxed{7}", 6: "<answer>3</answer>"}
  local = types.SimpleNamespace(
    prompt_index=np.zeros(4, np.int32),
    tokens=np.array([[5], [5], [6], [6]]),
    completion_mask=np.ones((4, 1), bool),
    written=np.ones((4, 1), bool),
    terminated=np.array([True, False, True, False]),
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


@pytest.mark.slow
def test_evaluator_completes_the_same_prompts_in_any_batches():
  config = config_lib.default_config()
  config.data.name = "copy"
  config.model.width, config.model.mlp_width = 8, 8
  config.model.num_layers, config.model.num_heads = 1, 2
  config.model.num_kv_heads = 1
  run = config_lib.resolve(config)
  made = problem.make_problem(run)
  mesh = sharding.make_mesh(1)
  policy = models.make_policy(run, made, mesh)
  params = models.initial_state(policy, 0).params["policy"]

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
  groups = completions(6, temperature=1.0, num_samples=4)
  assert [len(group) for group in groups] == [4] * 6
  assert all(len({row.prompt for row in group}) == 1 for group in groups)
  assert any(len({row.text for row in group}) > 1 for group in groups)
