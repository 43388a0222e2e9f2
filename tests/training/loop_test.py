"""Whole runs in one process: what they write, and that they learn."""

import dataclasses
import functools
import json
import logging
import math
import pathlib
import textwrap
import types
from unittest import mock

import jax
import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.training import loop
from grpo_jax.training import run as run_lib
from grpo_jax.training.phases import executors
from grpo_jax.training.problem import probe, problem
from grpo_jax.training.problem import rewards as rewards_lib
from grpo_jax.training.rules import rules as rules_lib
from grpo_jax.training.runtime import log
from tests.experiments import tiny_config


def _quiet(config):
  config.log.trackers = ()
  return config


def _rows(workdir: pathlib.Path, name=log.METRICS) -> list[dict]:
  return log.read_lines(workdir / name)


@pytest.fixture(scope="module")
def warnings(tmp_path_factory):
  """File for the warnings in the log of `run`."""
  return tmp_path_factory.mktemp("log") / "warnings.txt"


@pytest.fixture(scope="module")
def run(tmp_path_factory, warnings):
  """Ten supervised and ten reinforcement steps; see `tiny_config.py`."""
  workdir = tmp_path_factory.mktemp("loop")
  handler = logging.FileHandler(warnings)
  handler.setLevel(logging.WARNING)
  logging.getLogger().addHandler(handler)
  with pytest.MonkeyPatch.context() as patch:
    # Any score is too good.
    rules = [
      dataclasses.replace(rule, check=rules_lib.above("accuracy", -1.0))
      if rule.name == "perfect_score"
      else rule
      for rule in rules_lib.RULES
    ]
    patch.setattr(rules_lib, "RULES", tuple(rules))
    result = loop.train(_quiet(tiny_config.get_config("grpo")), workdir)
  logging.getLogger().removeHandler(handler)
  return workdir, result


@pytest.mark.slow
def test_scores_that_are_too_good_are_doubted_once(run, warnings):
  [line] = [
    line
    for line in warnings.read_text().splitlines()
    if "Suspicious by default" in line
  ]
  assert "rl, step 13: H12 perfect_score." in line
  assert str(run[0] / log.SAMPLES) in line
  marked = [
    row["step"] for row in _rows(run[0]) if "alarm/perfect_score" in row
  ]
  assert marked == [13]


def test_the_result_is_written_at_the_end(run):
  workdir, result = run
  written = json.loads((workdir / log.RESULT).read_text())
  timings = _rows(workdir, log.TIMINGS)
  seconds = sum(row.get("time/step_s", 0) for row in timings)
  assert written == {
    "step": 20,
    "before": result.before,
    "after": result.after,
    "num_prompts": result.num_prompts,
    "seconds": pytest.approx(seconds),
    "alarms": written["alarms"],
  }
  (alarm,) = written["alarms"]
  assert (alarm["step"], alarm["rule"]) == (13, "H12")


def test_every_step_has_a_row(run):
  workdir, result = run
  rows = _rows(workdir)
  assert result.step == 20
  assert not result.preempted
  # Step 10 twice: the last of one phase, and the evaluation before the next.
  assert [(row["phase"], row["step"]) for row in rows] == [
    *(("sft", step) for step in range(1, 11)),
    *(("rl", step) for step in range(10, 21)),
  ]
  for row in rows[:10]:
    assert "reward/mean" not in row
  for row in rows[11:]:
    assert 0 <= row["reward/mean"] <= 1
    assert row["tokens/trained"] <= row["tokens/generated"] <= 16 * 4
    # Two minibatches, and the anchor is the policy of the first.
    assert row["ratio/max_deviation"] > 0
    assert row["kl/reference"] >= 0
  timings = _rows(workdir, log.TIMINGS)
  assert [row["step"] for row in timings] == [*range(1, 11), *range(11, 21)]
  assert all(row["tokens_per_second"] > 0 for row in timings)


def test_imitation_lowers_the_loss(run):
  losses = [row["loss"] for row in _rows(run[0])[:10]]
  assert losses[-1] < 0.5 * losses[0]


def test_evaluations_come_when_they_are_due(run):
  workdir, result = run
  rows = [row for row in _rows(workdir) if "eval/accuracy" in row]
  # Before the phase, every four of its steps, and at its end.
  assert [row["step"] for row in rows] == [10, 14, 18, 20]
  for row, summary in ((rows[0], result.before), (rows[-1], result.after)):
    assert summary == {name: row[name] for name in summary}
  assert result.num_prompts == len(result.examples) == 8
  accuracy = np.mean([example.correct for example in result.examples])
  assert result.after["eval/accuracy"] == pytest.approx(accuracy)
  assert result.before != result.after


def test_warm_up_and_schedule_are_in_the_rows(run):
  rates = [row["learning_rate"] for row in _rows(run[0]) if "loss" in row]
  np.testing.assert_allclose(rates[:3], [0.025, 0.05, 0.05], rtol=1e-6)
  # Two gradient steps a batch: the warm-up of 2 is over after the first.
  np.testing.assert_allclose(rates[10:12], [1e-3, 2e-3], rtol=1e-6)
  assert rates[11] > rates[-1] > 2e-4


def test_samples_are_texts_with_their_rewards(run):
  samples = _rows(run[0], log.SAMPLES)
  assert {sample["step"] for sample in samples} == set(range(11, 21))
  assert all(sample["prompt"].endswith("=") for sample in samples)
  assert all(
    sample["reward"] == pytest.approx(sample["components"]["f1"])
    for sample in samples
  )


@pytest.mark.slow
def test_finished_run_is_only_reported(run):
  workdir, result = run
  names = (log.METRICS, log.TIMINGS, log.SAMPLES)
  before = {name: (workdir / name).read_bytes() for name in names}
  again = loop.train(_quiet(tiny_config.get_config("grpo")), workdir)
  assert {name: (workdir / name).read_bytes() for name in names} == before
  assert again == result


@pytest.mark.slow
def test_implicit_transfers_stop_the_loop(tmp_path, monkeypatch):
  """A batch that reaches the step as host memory is a bug, not a delay."""
  jit_step = executors.jit_step

  def leaky(mesh, function, parts):
    advance = jit_step(mesh, function, parts)
    return lambda state, batch: advance(state, jax.device_get(batch))

  monkeypatch.setattr(executors, "jit_step", leaky)
  with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
    loop.train(_quiet(tiny_config.get_config("grpo")), tmp_path)


@pytest.mark.slow
def test_profile_of_the_chosen_steps(tmp_path):
  config = _quiet(tiny_config.get_config("grpo"))
  config.phases = ("sft",)
  config.sft.steps = 3
  config.profile_steps = (2, 3)
  result = loop.train(config, tmp_path)
  assert result.before is result.after is None  # No phase to evaluate.
  (trace,) = (tmp_path / "profile").rglob("*.xplane.pb")
  assert trace.stat().st_size > 1000


def test_a_run_that_continues_traces_what_is_left(monkeypatch, tmp_path):
  calls = []
  for name in ("start_trace", "stop_trace"):
    note = functools.partial(lambda name, *_: calls.append(name), name)
    monkeypatch.setattr(jax.profiler, name, note)
  run = types.SimpleNamespace(
    config=types.SimpleNamespace(profile_steps=(2, 4)),
    **{"profile_dir": tmp_path, "tracing": None, "state": None},
  )
  for step in (3, 4, 5):
    with run_lib.profiled(run, step):
      calls.append(step)
  assert calls == ["start_trace", 3, 4, "stop_trace", 5]


@pytest.mark.slow
def test_second_phase_gets_its_own_reference(tmp_path):
  config = _quiet(tiny_config.get_config("grpo"))
  config.phases = ("sft", "rl", "rl")
  config.rl.steps = 3
  config.rl.num_minibatches = 1
  config.rl.optimizer.learning_rate = 0.05
  result = loop.train(config, tmp_path)
  assert result.step == 16
  rows = [row for row in _rows(tmp_path) if row["phase"] == "rl"]
  # Each phase begins with an evaluation of what the one before left.
  assert [row["step"] for row in rows] == [10, 11, 12, 13, 13, 14, 15, 16]
  assert result.before["eval/reward"] == rows[0]["eval/reward"]
  steps = [row for row in rows if "loss" in row]
  distances = [row["kl/reference"] for row in steps]
  for first in (0, 3):  # Where the policy is its own reference.
    assert distances[first] < 1e-6
    assert distances[first + 2] > 1e-4


MOODY = """
  from tests.rewards.workers import bad_verifiers

  def moody(prompts, completions, ids, extras):
    # Whatever the policy wrote, the record says how the verifier behaves.
    words = [extra["word"] for extra in extras]
    return bad_verifiers.by_completion(prompts, words, ids, extras)
"""


def _moody(tmp_path, monkeypatch, train, held_out):
  """A run whose verifier does to each record what its word says."""
  (tmp_path / "moody_rewards.py").write_text(textwrap.dedent(MOODY))
  monkeypatch.syspath_prepend(tmp_path)
  for name, words in {"train": train, "eval": held_out}.items():
    (tmp_path / f"{name}.jsonl").write_text(
      "\n".join(
        json.dumps({"prompt": f"Question {i}", "extras": {"word": word}})
        for i, word in enumerate(words)
      )
    )
  config = _quiet(config_lib.default_config("reinforce"))
  config.phases = ("rl",)
  config.data.source = "jsonl"
  config.data.train_path = str(tmp_path / "train.jsonl")
  config.data.eval_path = str(tmp_path / "eval.jsonl")
  config.data.tokenizer = "gsm8k"
  config.data.max_prompt_len = 8
  config.sampling.max_new_tokens = 4
  config.rewards.functions = ("moody_rewards:moody",)
  config.rewards.row_timeout_s = 1.0
  tiny_config.shrink(config.model)
  config.rl.steps = 2
  config.rl.num_prompts = 4  # All of them, in every step.
  config.rl.group_size = 2
  config.eval.num_prompts = config.eval.batch_size = 2
  config.log.samples_every = 1
  config.log.num_samples = 8
  return config


@pytest.mark.slow
def test_host_verifiers_that_hang_and_raise(tmp_path, monkeypatch):
  config = _moody(
    tmp_path, monkeypatch, ("loop", "raise", "nan", "0.5"), ("1.0", "0.5")
  )
  result = loop.train(config, tmp_path / "run")

  assert result.step == 2
  rows = _rows(tmp_path / "run")[1:]
  assert [row["step"] for row in rows] == [1, 2]
  for row in rows:
    assert row["unscored"] == 6
    assert row["unscored/timeout"] == 2
    assert row["unscored/raised"] == 2
    assert row["unscored/nan"] == 2
    assert row["unscored/worker_died"] == row["unscored/step_timeout"] == 0
    assert row["reward/mean"] == 0.5  # Of the rows that were scored.
    assert 0 < row["tokens/trained"] < row["tokens/generated"]
    assert np.isfinite(row["loss"])
  timings = _rows(tmp_path / "run", log.TIMINGS)
  assert all(1 < row["time/verifier_s"] < 60 for row in timings)
  # The first step is traced and compiled, and the second one is not.
  assert timings[0]["time/compile_s"] > 0.1 > timings[1]["time/compile_s"]
  # A right answer in the held-out half: one of two prompts is worth 1.0.
  assert result.after["eval/accuracy"] == 0.5
  samples = _rows(tmp_path / "run", log.SAMPLES)
  assert sum(sample["valid"] for sample in samples) == 2 * 2


@pytest.mark.slow
def test_a_verifier_that_fails_on_most_rows_ends_the_run(tmp_path, monkeypatch):
  config = _moody(
    tmp_path,
    monkeypatch,
    ("raise", "raise", "raise", "nan"),
    ("raise", "raise timeout"),
  )
  # As if the first records, which are looked at before, were good ones.
  monkeypatch.setattr(probe, "check", lambda *arguments: None)
  config.rl.steps = 6
  config.checkpoint.every = 0
  with pytest.raises(ValueError, match="8 of 8 in step 1, 8 of 8") as caught:
    loop.train(config, tmp_path / "run")
  message = str(caught.value)
  assert "raised: moody: ValueError: no such answer (moody_rewards.py:" in (
    message
  )
  rows = _rows(tmp_path / "run")
  assert len(rows) in (4, 5)  # The next step had begun.
  for row in rows[1:]:
    assert row["unscored"] == 8
    assert row["reward/mean"] is row["accuracy"] is None
    assert row["loss"] == 0
  assert not (tmp_path / "run" / log.RESULT).exists()

  # Nothing is lost, and the bound may change.
  config.rewards.max_unscored = 1.0
  result = loop.train(config, tmp_path / "run")
  assert result.step == 6
  assert [row["step"] for row in _rows(tmp_path / "run")] == list(range(7))
  # Of the held-out rows one failed, and the other is wrong: it was too slow.
  assert result.after["eval/unscored"] == 1
  assert result.after["eval/accuracy"] == 0
  assert result.after["eval/accuracy_scored"] == 0


@pytest.mark.slow
def test_scoring_on_the_host_changes_no_number(run, tmp_path, monkeypatch):
  """The same run, sampled and updated by two programs instead of one."""

  made = problem.make_problem(
    config_lib.resolve(tiny_config.get_config("grpo"))
  )
  (verifier,) = made.reward.rewards
  components = jax.jit(verifier.components)

  class OnHost(problem.Problem):
    def host_scores(self, batch, rollout, reward=None, evaluates=False):
      found = jax.device_get(components(batch.prompts, rollout))
      nothing = np.zeros(len(rollout.tokens), bool)
      return rewards_lib.HostScores(found, failed=nothing), {"raised": 0}, {}

  scorer = types.SimpleNamespace(close=lambda: None)
  judge = dataclasses.replace(
    made.reward, rewards=(rewards_lib.OnHost(scorer),)
  )
  split = OnHost(**vars(made) | {"reward": judge})
  monkeypatch.setattr(problem, "make_problem", lambda settings: split)
  monkeypatch.setattr(probe, "check", lambda *arguments: None)
  loop.train(_quiet(tiny_config.get_config("grpo")), tmp_path)
  fused, split_rows = _rows(run[0]), _rows(tmp_path)
  for row in fused:  # Any score was too good for the rules of that run.
    row.pop("alarm/perfect_score", None)
  assert len(fused) == len(split_rows)
  for one, other in zip(fused, split_rows, strict=True):
    if "reward/mean" in one:
      assert other.pop("unscored/raised") == 0
    assert one.keys() == other.keys()
    for name, value in one.items():
      if isinstance(value, float):
        np.testing.assert_allclose(other[name], value, 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize(
  ("name", "done", "metrics", "advice"),
  [
    ("my.algs:NAN", 5, {"advantages/std": math.nan}, "advantages of the alg"),
    ("my.algs:NAN", 1, {"advantages/std": 1.0}, "loss of the first step of"),
    ("my.algs:NAN", 5, {"advantages/std": 1.0}, "a lower config.rl.optimizer"),
    ("grpo", 1, {"advantages/std": 1.0}, "a lower config.rl.optimizer"),
  ],
)
def test_advice_is_about_what_is_not_finite(name, done, metrics, advice):
  run = mock.MagicMock()
  run.config.objective.return_value = (types.SimpleNamespace(name=name), None)
  with pytest.raises(FloatingPointError) as caught:
    run_lib._check_finite(run, "rl", done, {"loss": math.nan, **metrics})
  said = str(caught.value)
  assert advice in said
  assert ("learning_rate" in said) == (advice.startswith("a lower"))
  assert (f"grpo-check-algorithm {name}" in said) == (
    "learning_rate" not in said
  )
