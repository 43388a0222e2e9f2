"""What a run says at its end."""

import math

from experiments import report
from grpo_jax.training import evaluation

AFTER = {
  "eval/accuracy": 0.25,
  "eval/accuracy_scored": 1.0,
  "eval/unscored": 192.0,
}


def completion(**fields):
  defaults = {
    **{"prompt": "1 + 1 =", "text": "2", "answer": "2", "reward": 1.0},
    **{"correct": True, "valid": True, "num_tokens": 2, "components": {}},
  }
  return evaluation.Completion(**defaults | fields)


def test_both_accuracies_and_the_interval_of_all_prompts():
  before = AFTER | {"eval/accuracy_scored": math.nan, "eval/accuracy": 0.0}
  lines = report.before_and_after(before, AFTER, 256, "greedy", 12.4)
  low, high = evaluation.wilson_interval(64, 256)
  assert lines == [
    "held-out, greedy, n = 256        before     after",
    "  accuracy                        0.000     0.250",
    "  accuracy_scored                     –     1.000",
    "  unscored                      192.000   192.000",
    f"accuracy 0.000 -> 0.250 (95 % interval {low:.3f}-{high:.3f}) in 12 s",
  ]


def test_accuracy_over_all_prompts_decides():
  few = AFTER | {"eval/unscored": 16.0}
  assert report.failure(few, 256, 0.25, 0.5) is None
  assert report.failure(few, 256, None, 0.5) is None
  assert report.failure(few, 256, 0.5, 0.5) == "accuracy 0.250 < 0.500"


def test_too_many_unscored_rows_fail_whatever_is_required():
  for required in (None, 0.0):
    assert report.failure(AFTER, 256, required, 0.5).startswith(
      "192 of 256 completions could not be scored"
    )
  assert report.failure(AFTER, 256, None, 1.0) is None


def test_a_completion_is_one_line_without_escapes():
  line = report.example(completion(text="2\n\x1b[31mPASS" + "x" * 99))
  assert line.isprintable()
  assert line.startswith(r"  1 + 1 =                        2\n\x1b[31mPASSxx")
  assert line.endswith("…     1.00")
  assert len(line) <= 80
  assert report.example(completion(valid=False)).endswith("unscored")
