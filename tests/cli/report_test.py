"""Tests of the report at the end of a run."""

import json
import math

from grpo_jax.cli import report
from grpo_jax.training.evaluation import scores
from tests.training.evaluation import scores_test

AFTER = {
  "eval/accuracy": 0.25,
  "eval/accuracy_scored": 1.0,
  "eval/unscored": 192.0,
}


def completion(**fields):
  defaults = {"prompt": "1 + 1 =", "text": "2", "reward": 1.0, "correct": True}
  return scores_test._row(**defaults | fields)


def test_both_accuracies_and_their_intervals_over_all_prompts():
  before = AFTER | {"eval/accuracy_scored": math.nan, "eval/accuracy": 0.0}
  lines = report.before_and_after(before, AFTER, 256, "greedy", 12.4)
  first, last = (
    "{:.3f}-{:.3f}".format(*scores.wilson_interval(x, 256)) for x in (0, 64)
  )
  assert lines == [
    "held-out, greedy, n = 256        before     after    change",
    "  accuracy                        0.000     0.250    +0.250",
    "  accuracy_scored                     –     1.000         –",
    "  unscored                      192.000   192.000    +0.000",
    f"accuracy 0.000 -> 0.250, 95 % intervals {first} and {last}, in 12 s",
  ]


def test_nothing_is_said_of_a_policy_whose_completions_nobody_scored():
  nothing = {
    **{"eval/accuracy": math.nan, "eval/accuracy_scored": math.nan},
    "eval/unscored": 256.0,
  }
  lines = report.before_and_after(nothing, nothing, 256, "greedy", 12.4)
  assert lines[1] == (
    "  accuracy                            –         –         –"
  )
  assert lines[-1] == "accuracy – -> – in 12 s"
  assert report.failure(nothing, 256, 0.5, 1.0) == (
    "no completion was scored; needs 0.500"
  )
  assert report.failure(nothing, 256, None, 1.0) is None


def test_what_can_be_opened_after_a_run_is_listed(tmp_path):
  workdir = tmp_path / "my run"
  workdir.mkdir()
  assert report.places(workdir, None, tensorboard=False) == []
  (workdir / "samples.jsonl").write_text("{}\n")
  (workdir / "traces.jsonl.gz").write_bytes(b"")  # None was chosen.
  plot = workdir / "curves.png"
  assert report.places(workdir, plot, tensorboard=True) == [
    f"samples: {workdir}/samples.jsonl",
    f"plot: {workdir}/curves.png",
    f"curves: tensorboard --logdir='{workdir}'",
  ]
  (workdir / "traces.jsonl.gz").write_bytes(b"x")
  assert report.places(workdir, None, tensorboard=False)[0] == (
    f"traces: python -m experiments.traces --workdir='{workdir}'"
    f" --out='{workdir}'/traces.html"
  )


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
  for width in (40, 60, 80, 200):
    line = report.example(completion(text="x" * 99, prompt="y" * 99), width)
    assert len(line) == min(width, 76)
    assert line.endswith("…     1.00")


def test_tables_of_an_evaluation_fit_a_terminal():
  figures = {
    name: {"value": 0.25, "low": 0.125, "high": 0.5}
    for name in ("greedy", "avg@128", "pass@1", "pass@128", "maj@128")
  }
  counts = {"length_right": None, "length_wrong": 31234.56, "truncated": 0.5}
  section = {
    "num_prompts": 1319,
    "figures": {
      **figures,
      "greedy_scored": {"value": None, "low": 0.0, "high": 1.0},
    },
    "greedy": {**counts, "unscored": 12},
    "sampled": {**counts, "length_right": 1.0, "unscored": 0},
  }
  parts = {"x" * 99: section, "\x1b[31m": section}
  said = {
    "data_sets": {
      "held_out": section,
      "math": {**section, "domains": parts, "macro": figures},
    },
    "macro": figures,
  }
  how = "128 samples each at temperature 0.6, top_p 0.95"
  lines = report.evaluation_tables("runs/a, step 20", how, said)
  assert max(map(len, lines)) <= 80
  assert all(line.isprintable() for line in lines)
  assert lines[:2] == [
    "runs/a, step 20: 1319 held-out prompts,",
    "greedy, and 128 samples each at temperature 0.6, top_p 0.95",
  ]
  for line in (
    "runs/a, step 20: 1319 prompts of math,",
    "  avg@128       0.250   (95 % interval 0.125-0.500)",
    "  greedy_scored   –     (95 % interval 0.000-1.000)",
    "                            greedy   sampled",
    "  tokens of right ones         –         1.0",
    "  tokens of wrong ones     31234.6   31234.6",
    "  share cut off              0.500     0.500",
    "  unscored                      12         0",
    "  domain                  prompts    greedy   avg@128  pass@128   maj@128",
    "  xxxxxxxxxxxxxxxxxxxxx…     1319     0.250     0.250     0.250     0.250",
    r"  \x1b[31m".ljust(29) + "1319" + "     0.250" * 4,
    "  mean of domains                     0.250     0.250     0.250     0.250",
    "  data set                prompts    greedy   avg@128  pass@128   maj@128",
    "  mean of data sets                   0.250     0.250     0.250     0.250",
  ):
    assert line in lines
  assert lines[-1]


def test_rules_that_have_warned_are_named_at_the_end(tmp_path):
  alarm = {"rule": "H04", "name": "cut_off", "phase": "rl", "step": 30}
  later = {**alarm, "phase": "more", "step": 70}
  for alarms, said in (
    ([], None),
    (
      [alarm, later],
      "alarms: H04 cut_off (rl, step 30), H04 cut_off (more, step 70)",
    ),
  ):
    result = json.dumps({"alarms": alarms})
    (tmp_path / "result.json").write_text(result)
    assert report.alarms(tmp_path) == said
