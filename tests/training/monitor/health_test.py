"""Every rule warns of what was planted, once a phase, and of nothing else."""

import dataclasses
import json
import logging

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from experiments.health import series
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.monitor import HealthConfig
from grpo_jax.training.monitor import health
from grpo_jax.training.problem import unscored
from grpo_jax.training.rules import rules
from grpo_jax.training.runtime import log as log_lib

STEPS = 240
AFTER = 60  # Steps of each planted series that are well.
EVALUATIONS = range(series.EVAL_EVERY - 1, STEPS, series.EVAL_EVERY)


def fall(first, last):
  """A value that goes from `first` to `last` after `AFTER` steps."""
  return lambda i: first + (last - first) * (i - AFTER) / (STEPS - AFTER)


# Rule -> what is planted from step `AFTER` on: number, or (step) -> number.
# `kind` is that of the phase, and `everywhere` plants from the first step on.
PLANTED = {
  "all_groups_dead": {"dead_groups": 1.0},
  "zero_gradient": {"gradient_norm": 0.0},
  "entropy_collapsed": {"entropy/mean": 0.01},
  "cut_off": {"truncated": 0.7},
  "sampler_gap_large": {"sampler_gap/mean": 0.3},
  "sampler_gap_growing": {"sampler_gap/mean": fall(0.003, 0.09)},
  "update_far": {"kl/update": 0.2},
  "ratio_growing": {"ratio/max_deviation": fall(0.5, 40.0)},
  "clipped": {"clip_fraction": 0.8},
  "length_drift": {"length/mean": fall(120.0, 900.0), "accuracy": 0.3},
  # Means in float32 of 64 rewards of 1.1, and of 0.1 over 24 or 64 rows.
  "constant_fill": {
    **{"length/min": 9.0, "length/max": 9.0},
    **{"reward/mean": 1.1000001430511475, "reward/std": 1.1920928955078125e-07},
  },
  "perfect_score": {"accuracy": 1.0},
  "component_saturated": {
    "reward/format": 0.5,
    "reward_range/format": 0.0,
    "accuracy": lambda i: 0.1 + 0.01 * (-1) ** i,
    "everywhere": True,
  },
  "proxy_up_truth_down": {
    "reward/mean": fall(0.5, 1.5),
    "eval/accuracy": fall(0.8, 0.2),
  },
  "reward_up_accuracy_down": {
    "reward/mean": fall(0.5, 1.5),
    "accuracy": fall(0.8, 0.2),
  },
  "anticorrelated_component": {"reward_correlation/format": -0.6},
  "blocked_calls_rising": {"reward/blocked": fall(0.02, 0.9)},
  "some_unscored": {"unscored": 0.1 * series.ROWS},
  "too_many_unscored": {"unscored": 0.6 * series.ROWS},
  "no_pairs": {"tokens/trained": 0.0, "kind": "preference"},
  "component_never_applied": {
    "applicable/format": 0.0,
    "reward/format": None,
    "reward_range/format": None,
    "everywhere": True,
  },
  "component_constant": {
    "reward/format": lambda i: (0.09999999403953552, 0.09999997168779373)[
      i % 2
    ],
    "reward_range/format": 0.0,
    "accuracy": 0.7,  # High enough to be worth something.
    "everywhere": True,
  },
  "no_steps_of_reasoning": {
    "reasoning_steps/per_completion": 0.0,
    "everywhere": True,
  },
  "short_of_groups": {"drawn/missing": 2.0, "ends_short": True},
}
# What comes with a planted series of another rule.
ALSO = {
  "too_many_unscored": {"some_unscored"},
  "component_saturated": {"component_constant"},
  "sampler_gap_growing": set(),
  "reward_up_accuracy_down": set(),
}


def planted(name):
  """The lines of a healthy run with the trouble of a rule, and its stage."""
  trouble = dict(PLANTED[name])
  start = 0 if trouble.pop("everywhere", False) else AFTER
  kind = trouble.pop("kind", "rl")
  stage = dataclasses.replace(
    series.STAGE,
    steps=STEPS,
    last=STEPS,
    kind=kind,
    ends_short=trouble.pop("ends_short", False),
  )
  lines = series.constant(np.random.default_rng(5), STEPS)
  for i, line in enumerate(lines[start:], start=start):
    for metric, value in trouble.items():
      if metric != "eval/accuracy" or i in EVALUATIONS:
        line[metric] = value(i) if callable(value) else value
  return stage, lines


def watched(stages, lines, settings=None):
  """A monitor that has seen the lines; of several stages one after another."""
  monitor = health.Monitor(stages, settings)
  for step, line in enumerate(lines, start=1):
    monitor.step(step, line)
  return monitor


def names(monitor):
  return [alarm.rule.name for alarm in monitor.alarms]


def test_every_rule_has_a_trigger():
  known = [rule.name for rule in rules.RULES]
  assert list(PLANTED) == known, "PLANTED has the order of RULES"
  numbers = [rule.number for rule in rules.RULES]
  assert numbers == [f"H{i:02}" for i in range(1, len(numbers) + 1)]


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_planted_is_found(name):
  stage, lines = planted(name)
  monitor = watched([stage], lines)
  assert {*names(monitor)} == {name} | ALSO.get(name, set())
  alarm = next(x for x in monitor.alarms if x.rule.name == name)
  assert all(np.isfinite(x) for x in alarm.numbers.values())
  assert AFTER < alarm.step <= STEPS
  assert alarm.text().startswith(f"rl, step {alarm.step}: {alarm.rule.number}")
  json.dumps(alarm.as_json())


@pytest.mark.slow
@pytest.mark.parametrize("kind", series.KINDS)
def test_healthy_runs_raise_nothing(kind):
  from experiments.health import false_alarms

  assert not false_alarms.simulated(kind, runs=2)


@pytest.mark.slow
def test_no_rule_warns_of_more_than_one_in_a_hundred_healthy_runs():
  from experiments.health import false_alarms

  counts = false_alarms.simulated("slow", runs=100, seed=1)
  assert max(counts.values(), default=0) <= 1, counts


def short(**series_of):
  """Monitor of a phase of so many steps as each series has, and its lines."""
  lines = [
    dict(zip(series_of, values, strict=True))
    for values in zip(*series_of.values(), strict=True)
  ]
  stage = dataclasses.replace(series.STAGE, steps=99, last=99, num_rows=16)
  return stage, lines


NAN = float("nan")


@pytest.mark.parametrize(
  ("accuracy", "step"),
  [
    ((0.5, 1.0, 0.995, 1.0, 1.0), 4),
    ((1.0, 1.0), None),
    ((0.99, 0.99, 0.99, 0.99), None),
    ((1.0, 1.0, 0.9, 1.0, 1.0), None),
    ((1.0, 1.0, NAN, 1.0, 1.0), None),
    ((1.0, 1.0, None, 1.0, 1.0), None),
  ],
)
def test_a_condition_holds_for_steps_in_a_row(accuracy, step):
  stage, lines = short(accuracy=accuracy)
  found = watched([stage], lines).alarms
  assert [alarm.step for alarm in found] == ([] if step is None else [step])


@pytest.mark.parametrize(
  ("shares", "share", "stops"),
  [
    ((0.75, 0.75), 0.5, False),
    ((0.75, 0.75, 0.5, 0.75, 0.75), 0.5, False),
    ((0.25, 0.75, 0.75, 0.75), 0.5, True),
    ((1.0, 1.0, 1.0, 1.0), 1.0, False),
    ((0.1, 0.1, 0.1), 0.0, True),
  ],
)
def test_too_many_unscored_steps_in_a_row_stop_a_run(shares, share, stops):
  stage, lines = short(unscored=[16 * x for x in shares])
  stage = dataclasses.replace(stage, max_unscored=share)
  monitor = watched([stage], lines)
  failure = monitor.failure(unscored.Complaints(), 8)
  assert isinstance(failure, ValueError) == stops
  if stops:
    first = len(shares) - 2
    assert f"{16 * shares[-3]:.0f} of 16 in step {first}, " in str(failure)


def test_a_step_short_of_groups_stops_a_run_that_asks_for_it():
  stage, lines = short(
    **{"drawn/missing": (0, 0, 3, 0), "drawn/groups": [8] * 4}
  )
  assert watched([stage], lines).failure(unscored.Complaints(), 8) is None
  stage = dataclasses.replace(stage, ends_short=True)
  failure = watched([stage], lines).failure(unscored.Complaints(), 8)
  assert isinstance(failure, health.HealthHalt)
  for text in (
    "rl, step 3: H24",
    "missing 3",
    "groups 8",
    "The last checkpoint is of step 8.",
    "config.rl.when_short is 'error'",
  ):
    assert text in str(failure)
  with pytest.raises(ValueError, match=r"config\.rl\.when_short='fewer'"):
    HealthConfig(off=("H24",))


def test_a_rule_warns_once_a_phase(caplog):
  one = dataclasses.replace(series.STAGE, name="a", steps=8, last=8)
  stages = [one, dataclasses.replace(one, name="b", last=16)]
  with caplog.at_level(logging.WARNING):
    monitor = watched(stages, [{"accuracy": 1.0}] * 16)
  said = [(alarm.phase, alarm.step) for alarm in monitor.alarms]
  assert said == [("a", 3), ("b", 11)]
  (first, _) = [record.getMessage() for record in caplog.records]
  assert first.startswith("a, step 3: H12 perfect_score. More than 0.99")
  assert monitor.failure(unscored.Complaints(), 8) is None


def test_what_is_off_says_nothing():
  lines = [{"accuracy": 1.0}] * 5
  for name in ("perfect_score", "H12"):
    settings = HealthConfig(off=(name,))
    assert names(watched([series.STAGE], lines, settings)) == []
    with pytest.raises(ValueError, match="both name H12 perfect_score"):
      HealthConfig(halt=("perfect_score",), off=(name,))


def test_a_rule_that_halts_says_how_to_go_on():
  settings = HealthConfig(halt=("H12",))
  monitor = watched([series.STAGE], [{"accuracy": 1.0}] * 5, settings)
  failure = monitor.failure(unscored.Complaints(), 8)
  assert isinstance(failure, health.HealthHalt)
  assert monitor.halted.step == 3
  kept = "The last checkpoint is of step 8."
  for text in ("rl, step 3: H12", "config.health.halt", kept):
    assert text in str(failure)
  nothing = monitor.failure(unscored.Complaints(), None)
  assert str(nothing) == str(failure).replace(
    kept, "No checkpoint has been saved yet."
  )


def test_names_of_rules_are_checked():
  with pytest.raises(ValueError, match=r"did you mean 'perfect_score'"):
    HealthConfig(halt=("perfekt_score",))
  with pytest.raises(ValueError, match=r"config\.rewards\.max_unscored=1"):
    HealthConfig(off=("too_many_unscored",))
  config = config_lib.default_config()
  config.health.halt = ("H12", "update_far")
  assert config_lib.resolve(config).health.halt == ("H12", "update_far")


def written(tmp_path, lines, stages, settings=None):
  """metrics.jsonl of a run with these metrics, as `run.record` writes it."""
  monitor = health.Monitor(stages, settings)
  with log_lib.MetricsLog(tmp_path) as log:
    log.write(0, "rl", {"eval/accuracy": 0.5})  # Before the first step.
    for step, line in enumerate(lines, start=1):
      found = {x.rule.key: 1.0 for x in monitor.step(step, line)}
      log.write(step, "rl", {**line, **found})
  return monitor, log_lib.read_lines(tmp_path / log_lib.METRICS)


_TROUBLE = {
  "length_drift": {"length/mean": fall(120.0, 900.0), "accuracy": 0.3},
  "perfect": {"accuracy": 1.0, "unscored": NAN},
  "cut": {"truncated": 0.9, "kl/update": 0.5, "gradient_norm": 0.0},
}


@pytest.mark.parametrize("name", _TROUBLE)
def test_a_run_that_continues_warns_at_the_same_steps(tmp_path, name):
  stages = [
    dataclasses.replace(series.STAGE, steps=90, last=90),
    dataclasses.replace(series.STAGE, steps=150, last=STEPS),
  ]
  lines = series.constant(np.random.default_rng(2), STEPS)
  for i, line in enumerate(lines[AFTER:], start=AFTER):
    for metric, value in _TROUBLE[name].items():
      line[metric] = value(i) if callable(value) else value
  whole, logged = written(tmp_path, lines, stages)
  expected = [alarm.as_json() for alarm in whole.alarms]
  assert expected
  for at in (0, 1, 61, 62, 63, 69, 70, 90, 91, 160, 190, STEPS):
    # Lines after the checkpoint may still be there: they are another attempt's.
    again = health.Monitor(stages)
    again.replay(logged, at)
    for step, line in enumerate(lines[at:], start=at + 1):
      again.step(step, line)
    assert [alarm.as_json() for alarm in again.alarms] == expected, at


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
  st.lists(st.sampled_from([0.5, 1.0, None]), min_size=1, max_size=20),
  st.integers(0, 20),
)
def test_a_run_continues_as_if_it_had_not_stopped(accuracy, at):
  lines = [{"accuracy": x, "loss": 1.0} for x in accuracy]
  whole = health.Monitor([series.STAGE])
  logged = []
  for step, line in enumerate(lines, start=1):
    found = {x.rule.key: 1.0 for x in whole.step(step, line)}
    logged.append({"step": step, "phase": "rl", **line, **found})
  again = health.Monitor([series.STAGE])
  again.replay(logged, at)
  for step, line in enumerate(lines[at:], start=at + 1):
    again.step(step, line)
  assert again.alarms == whole.alarms


def test_a_run_that_was_stopped_stops_again_or_goes_on():
  settings = HealthConfig(halt=("perfect_score",))
  logged = [
    {"step": i, "phase": "rl", "accuracy": 1.0, "loss": 0.0}
    for i in range(1, 5)
  ]
  logged[2]["alarm/perfect_score"] = 1.0
  # The same settings: as many steps as it was patient before, and it stops.
  again = health.Monitor([series.STAGE], settings)
  again.replay(logged, 4)
  assert again.halted is None
  for step in (5, 6, 7):
    again.step(step, {"accuracy": 1.0})
  assert again.halted is not None
  assert [alarm.step for alarm in again.alarms] == [3, 6]
  # Without the name: it has warned in this phase, and goes on.
  again = health.Monitor([series.STAGE])
  again.replay(logged, 4)
  for step in range(5, 20):
    again.step(step, {"accuracy": 1.0})
  assert again.halted is None
  assert [alarm.step for alarm in again.alarms] == [3]


def test_a_wave_is_no_growth():
  """Ratios that wander, with a memory of thirty steps, and come back."""
  noise = series.noise(np.random.default_rng(6), 1000, 1 - 1 / 30)
  ratios = 0.8 * np.exp(0.6 * noise)
  lines = [{"ratio/max_deviation": float(x)} for x in ratios]
  assert names(watched([series.STAGE], lines)) == []
  # The same noise around what doubles every fifty steps.
  grown = [
    {"ratio/max_deviation": float(x * 2 ** (i / 50))}
    for i, x in enumerate(ratios[:400])
  ]
  assert names(watched([series.STAGE], grown)) == ["ratio_growing"]


def test_what_is_measured_before_a_phase_is_no_step_of_it():
  before = {"step": 0, "phase": "rl", "eval/accuracy": 1.0, "canary/kl": 0.0}
  assert health.of_step(before) is None
  step = {**before, "step": 1, "loss": 0.5}
  assert health.of_step(step) == {
    "eval/accuracy": 1.0,
    "canary/kl": 0.0,
    "loss": 0.5,
  }


def test_stages_are_those_of_the_config():
  config = config_lib.default_config()
  config.phases = ("sft", "rl", "rl")
  config.sft.steps, config.rl.steps = 5, 7
  config.rewards.functions = ("accuracy", "watched", "scheduled")
  config.rewards.weights = (1.0, 0.0, 0.0)
  config.rewards.schedules = {"scheduled": ((0, 1.0), (9, 0.0))}
  found = health.stages_of(config_lib.resolve(config), "accuracy")
  assert [(x.name, x.kind, x.last) for x in found] == [
    ("sft", "supervised", 5),
    ("rl", "rl", 12),
    ("rl", "rl", 19),
  ]
  assert found[1].rewarded == ("accuracy", "scheduled")
  assert found[1].num_rows == config.rl.num_prompts * config.rl.group_size


def test_groups_of_one_are_not_called_dead():
  stage = dataclasses.replace(series.STAGE, group_size=1)
  assert names(watched([stage], [{"dead_groups": 1.0}] * 20)) == []
