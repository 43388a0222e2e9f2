"""Verdicts on steps, the audit log and its memory."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_jax.settings import monitor
from grpo_jax.settings import phase as phase_lib
from grpo_jax.step import guards as guards_lib
from grpo_jax.training.monitor import guards, health

INSIDE = guards_lib.InfluenceBounds(4, min_distinct=2, cap=0.5, repeats=3)


def make(lines=()):
  return guards.Guards({"sft": None, "rl": INSIDE}, None, 5, lines)


def metrics(keys=(1, 2, 3, 4), influence=(1, 1, 1, 1), **more):
  scale = more.pop("scale", [1.0] * 4)
  kept = more.pop("kept", [True] * 4)
  return {
    "loss": 1.0,
    guards_lib.PROMPTS: np.array(keys, np.uint32),
    guards_lib.IDS: np.arange(8, 12),
    guards_lib.INFLUENCE: np.array(influence, np.float32),
    guards_lib.SCALE: np.array(scale, np.float32),
    guards_lib.KEPT: np.array(kept),
    "guards/distinct": float(len({*keys})),
    "guards/dropped": float(kept.count(False)),
    "guards/scaled": float(sum(x < 1 for x in scale)),
    "guards/cap": 0.5,
    "guards/max_share": 0.75,
  } | more


def test_a_quiet_step_is_ok_and_its_arrays_leave_the_metrics():
  found = metrics()
  line = make().judge(3, "rl", found)
  assert line == {
    "step": 3,
    "phase": "rl",
    "verdict": "ok",
    "why": [],
    "prompts": [8, 9, 10, 11],
    "records": ["00000001", "00000002", "00000003", "00000004"],
    "influence": [1.0] * 4,
    "scale": [1.0] * 4,
    "kept": [True] * 4,
  }
  assert found["guards/all_time_share"] == 0.25
  assert all(isinstance(value, float) for value in found.values())


def test_phases_without_guards_have_no_line():
  assert make().judge(3, "sft", {"loss": 1.0}) is None


def test_the_worst_verdict_counts_and_every_reason_is_given():
  own = make()
  line = own.judge(1, "rl", metrics(scale=[0.5, 1, 1, 1]))
  assert line["verdict"] == "warn"
  assert "1 of 4 prompts were scaled to a share of 0.5" in line["why"][0]
  line = own.judge(
    2, "rl", metrics(scale=[0.5, 1, 1, 1], kept=[True, True, False, True])
  )
  assert line["verdict"] == "drop_rows"
  assert len(line["why"]) == 2
  assert "used 3 times in 1000 steps" in line["why"][1]
  assert not own.halted
  line = own.judge(3, "rl", metrics(keys=(1, 1, 1, 1)))
  assert line["verdict"] == "halt"
  assert own.halted == (
    "step 3 has 1 different prompts; needs 2"
    " (config.guards.min_distinct_prompts)"
  )


def test_a_fallen_canary_halts():
  own = make()
  line = own.judge(5, "rl", metrics(), ("'correct' is 0.2",))
  assert line["verdict"] == "halt"
  assert isinstance(own.error(4), health.Halted)
  error = str(own.error(4))
  assert "after step 5 'correct' is 0.2" in error
  assert "its last checkpoint, step 4, is from before" in error
  assert "there is no checkpoint yet" in str(own.error(None))


def test_a_run_that_continues_remembers_what_it_has_read():
  whole, begun, lines = make(), make(), []
  batches = [metrics(influence=(i, 0.1, 1 / 3, 0)) for i in range(6)]
  for step, batch in enumerate(batches):
    found = dict(batch)
    line = whole.judge(step, "rl", found)
    if step < 4:
      lines.append(begun.judge(step, "rl", dict(batch)))
      assert lines[-1] == line
  continued = make(lines)
  for step in (4, 5):
    one, other = dict(batches[step]), dict(batches[step])
    continued.judge(step, "rl", one)
  whole = make(lines)
  for step in (4, 5):
    other = dict(batches[step])
    whole.judge(step, "rl", other)
  assert one["guards/all_time_share"] == other["guards/all_time_share"]
  total = sum(sum(batch[guards_lib.INFLUENCE].tolist()) for batch in batches)
  assert one["guards/all_time_share"] == pytest.approx(15 / total)


def test_the_largest_share_is_of_all_time():
  own = make()
  for _ in range(3):
    found = metrics(keys=(7, 7, 2, 3))
    own.judge(1, "rl", found)
  found = metrics(keys=(2, 3, 4, 5), influence=(4, 4, 4, 4))
  own.judge(4, "rl", found)
  # 2 and 3 have 3 + 4 each of 28; 7 has 6.
  assert found["guards/all_time_share"] == 7 / 28


def phase(kind="rl", num_prompts=16):
  return phase_lib.CLASSES[kind](num_prompts=num_prompts)


def test_guards_are_off_until_they_are_switched_on():
  off = monitor.GuardsConfig()
  assert off.of_phase(phase()) is None
  on = monitor.GuardsConfig(on=True)
  assert on.of_phase(phase("supervised")) is None
  assert on.of_phase(phase()) == guards_lib.InfluenceBounds(
    16, min_distinct=8, cap=0.05, window=20, repeats=8, repeat_window=1000
  )
  assert on.of_phase(phase(num_prompts=6)).min_distinct == 4
  assert on.of_phase(phase(num_prompts=2)).min_distinct == 2


def test_settings_out_of_range_are_refused():
  strict = monitor.GuardsConfig(on=True, min_distinct_prompts=17)
  with pytest.raises(ValueError, match="a step of this phase has num_prompts"):
    strict.of_phase(phase())
  for settings in (
    {"influence_cap": 1.5},
    {"influence_window": 1},
    {"canary_every": -1},
    {"lint": "loud"},
  ):
    with pytest.raises(ValueError, match=f"guards.{next(iter(settings))}"):
      monitor.GuardsConfig(**settings)
