"""The table of metrics has what runs log, and nothing else; the page is it.

What runs of other tests log is looked at in `tests/conftest.py`.
"""

import dataclasses
import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.health import page, series
from grpo_jax.step import dynamic_sampling, partial
from grpo_jax.step import step as step_lib
from grpo_jax.training.evaluation import evaluation
from grpo_jax.training.monitor import metrics
from grpo_jax.training.phases import episodes as episodes_lib
from grpo_jax.training.rules import rules
from tests.training import tiny

_ROOT = pathlib.Path(__file__).resolve().parents[3]

# Metrics of phases that cost much to set up -> a test that reads them, or the
# code that writes them.
ELSEWHERE = {
  name: path
  for path, names in {
    "tests/training/compaction_test.py": "contexts/mean",
    "tests/step/indexer_test.py": "indexer/changed",
    "tests/training/rounding_test.py": "sampler_gap/kl",
    "tests/training/loop_test.py": (
      "unscored/timeout time/step_s time/compile_s time/verifier_s"
      " tokens_per_second alarm/perfect_score"
    ),
    "tests/training/host_environment_test.py": "time/environment_s",
    "tests/training/monitor/guards_test.py": (
      "guards/distinct guards/dropped guards/max_share guards/cap"
      " guards/scaled guards/all_time_share"
    ),
    "grpo_jax/step/prompts.py": (
      "schedule/success schedule/expected schedule/seen schedule/most_visits"
      " schedule/depth schedule/largest_share schedule/drift schedule/memory"
    ),
    "tests/training/resume_table.py": "judge/calls",
    "grpo_jax/step/prefix_value.py": (
      "forced_answers/start forced_answers/segments forced_answers/answers"
      " forced_answers/tokens"
    ),
    "grpo_jax/algorithms/objective.py": "kl/teacher",
    "tests/step/mixing_test.py": "mix/share mix/anchor mix/other",
    "tests/step/corrections_test.py": (
      "correction/share correction/unfit correction/right"
      " correction/right_after_cue correction/draft_accuracy"
      " correction/draft_dead_groups correction/made_live correction/injected"
      " correction/generated"
    ),
    "tests/training/rejection_test.py": (
      "kept/completions kept/prompts kept/tokens"
    ),
    "tests/training/phases/reward_models_test.py": "reward_model/correlation",
    "grpo_jax/step/reservoir.py": (
      "history/groups history/age history/kept history/seen"
    ),
    "grpo_jax/training/evaluation/reward_models.py": (
      "eval/reward_model/accuracy eval/reward_model/margin"
      " eval/reward_model/count eval/reward_model/calibration_error"
    ),
    "grpo_jax/training/steps.py": "data/unusable",
    "tests/step/transforms_test.py": "transform/kept",
    "grpo_jax/training/monitor/guards.py": "canary/kl canary/{canary.text}",
  }.items()
  for name in names.split()
}
_COEFFICIENTS = {"kl_coef": 0.1, "entropy_coef": 0.1}
_EXPERTS = functools.partial(
  tiny.tiny_transformer, num_experts=4, experts_per_token=2
)


def _prompts(count):
  prompts = tiny.make_prompts(count)
  prompts.extras["domain"] = jnp.zeros(count, jnp.int32)
  return prompts


def of_step(algorithm, phase=None, **options):
  """Names of the metrics of a step of some small phase; nothing is compiled."""
  made = tiny.make_phase(algorithm, **options)
  made = dataclasses.replace(made, **(phase or {}))
  state = tiny.make_state(made)
  prompts = _prompts(12 if made.max_rounds > 1 else 4)
  step = functools.partial(step_lib.fused_step, phase=made)
  return {*jax.eval_shape(step, state, prompts)[1]}


@functools.cache
def logged():
  """Names of all metrics that are known to be logged."""
  row = evaluation.Completion(
    "p", "t", None, 1.0, True, True, 3, True, {"a": 1.0}
  )
  names = {*ELSEWHERE, *evaluation.summarize([[row]], ["sums"], "a")}
  names |= of_step("grpo", {"staleness": 2}, fields=_COEFFICIENTS)
  names |= of_step(
    "grpo",
    {
      "max_rounds": 3,
      "waiting_groups": dynamic_sampling.Buffers(
        _prompts(4), recycles=True, replay=dynamic_sampling.Replay(8)
      ),
    },
    fields={"importance_mode": "truncate"},
  )
  names |= of_step("grpo", {"domains": ("sums",)}, fields=_COEFFICIENTS)
  cut = partial.Partial(
    lambda params, prompts, keys, rollout, limits, step, episodes: (
      rollout,
      episodes,
    ),
    _prompts(4),
    *(4, tiny.PAD, 2, 1),
  )
  names |= of_step("grpo", {"partial": cut, "staleness": 1})
  names |= of_step("grpo", {"consistent": "share"})
  names |= episodes_lib.TurnCounts(2).metrics().keys()
  names |= of_step("ppo_dpo") | of_step("bradley_terry")
  return names | of_step("grpo", policy=_EXPERTS())


@pytest.mark.slow
def test_what_runs_log_is_described():
  assert metrics.unknown(logged()) == []


@pytest.mark.slow
def test_every_row_is_logged():
  described = {metrics.find(name) for name in logged()}
  missing = [row.name for row in metrics.METRICS if row not in described]
  assert missing == []


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_logged_elsewhere_is_read_there(name):
  assert name in (_ROOT / ELSEWHERE[name]).read_text(encoding="utf-8")


def test_rows_are_whole_and_different():
  names = [row.name for row in metrics.METRICS]
  assert len({*names}) == len(names)
  for row in metrics.METRICS:
    assert row.unit, row
    assert row.meaning, row
    assert row.healthy, row
    for number in re.findall(r"H\d\d", row.action):
      assert rules.find(number) is not None, row


def test_rules_read_metrics_that_there_are():
  read = {name for rule in rules.RULES for name in rule.reads}
  assert metrics.unknown(read) == []
  (line,) = series.constant(np.random.default_rng(0), 1)
  assert metrics.unknown(line) == []


def test_what_is_not_described_is_found():
  found = metrics.unknown(["loss", "rewards/a", "nonsense", "accuracy_2"])
  assert found == ["accuracy_2", "nonsense", "rewards/a"]


def test_a_name_of_its_own_comes_before_a_pattern():
  assert metrics.find("reward/mean").name == "reward/mean"
  assert metrics.find("reward/mean_length").name == "reward/NAME"
  assert metrics.find("eval/reward/a/b").name == "eval/reward/NAME"
  assert metrics.find("unscored/timeout").name == "unscored/KIND"


def test_the_page_is_up_to_date():
  assert page.PATH.read_text(encoding="utf-8") == page.page()
