"""The ladder of DAPO: its arms, rules and page."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from experiments.ladder import arms, claims, figure, page, results
from grpo_jax.settings import config as config_lib


def settings(name):
  """Settings of an arm by name, without those that all arms share."""
  run = config_lib.resolve(arms.get_config(name))
  algorithm, objective = run.algorithm
  phase = run.section("rl")
  fields = vars(objective) | vars(phase)
  names = ("clip_high", "overlong_cache", "overlong_filter", "importance_mode")
  names += ("dynamic_sampling", "max_rounds", "when_short", "replay_size")
  return {"algorithm": algorithm} | {
    name: fields[name] for name in (*names, "recycle_surplus")
  }


def test_a_rung_adds_one_part_to_the_one_before():
  added = [
    {"clip_high": 0.28},
    {"algorithm": "dapo"},
    {"overlong_cache": 0.2},
    {"dynamic_sampling": True, "max_rounds": 4},
  ]
  before = settings("grpo")
  assert (before["clip_high"], before["overlong_cache"]) == (0.2, 0.0)
  for name, changed in zip([*arms.RUNGS][1:], added, strict=True):
    found = settings(name)
    assert found == before | changed
    before = found


def test_ways_to_fill_a_batch_differ_in_nothing_else():
  dapo = settings("dapo")
  corrected = {"importance_mode": "truncate"}
  for name, changed in {
    "mask": {"max_rounds": 1},
    "duplicate": {"when_short": "duplicate"},
    "recycled": {"recycle_surplus": True} | corrected,
    "replay": {"max_rounds": 1, "replay_size": 64} | corrected,
  }.items():
    assert settings(name) == dapo | changed
  filtered = settings("token-mean") | {"overlong_filter": True}
  assert settings("overlong-filter") == filtered


def test_all_arms_take_as_many_updates_on_as_many_groups():
  for name in arms.ARMS:
    run = config_lib.resolve(arms.get_config(name))
    phase = run.section("rl")
    assert (phase.steps, phase.num_prompts, phase.group_size) == (40, 16, 8)
    assert run.phases == (("sft",) if name == arms.BASE else ("rl",))
    assert run.rewards.functions == ("accuracy",)
  assert arms.follows_on("dapo", pathlib.Path("x")) == [
    "--config.start_workdir=x/base/seed={seed}"
  ]
  with pytest.raises(ValueError, match="no arm 'gspo'; choose one of base"):
    arms.get_config("gspo")


# Accuracy at equal updates and at equal completions, completions, share cut off
# and entropy: all claims hold.
ENDS = {
  "grpo": (0.60, 0.60, 100, 0.10, 0.2),
  "clip-higher": (0.65, 0.65, 100, 0.10, 0.4),
  "token-mean": (0.70, 0.70, 100, 0.10, 0.4),
  "overlong": (0.75, 0.75, 100, 0.05, 0.4),
  "overlong-filter": (0.65, 0.65, 100, 0.12, 0.4),
  "dapo": (0.90, 0.70, 200, 0.05, 0.4),
  "mask": (0.80, 0.80, 100, 0.05, 0.4),
  "duplicate": (0.91, 0.70, 200, 0.05, 0.4),
  "recycled": (0.90, 0.75, 150, 0.05, 0.4),
  "replay": (0.85, 0.85, 100, 0.05, 0.4),
}
PLACES = ("accuracy", "equal/accuracy", "drawn", "truncated", "entropy")


def verdicts(ends):
  spread = np.linspace(-0.01, 0.01, 5)

  def of(name, what):
    if name not in ends:
      return None
    if what == "start/accuracy":
      return 0.4 + spread
    return ends[name][PLACES.index(what)] + spread

  return {one.name: one.verdict for one in claims.conclude(of)}


def changed(name, what, value):
  numbers = list(ENDS[name])
  numbers[PLACES.index(what)] = value
  return ENDS | {name: tuple(numbers)}


@pytest.mark.parametrize(
  ("name", "what", "value", "lost"),
  [
    ("grpo", "accuracy", 0.38, {"L1"}),
    ("grpo", "entropy", 0.5, {"C1"}),
    ("clip-higher", "accuracy", 0.5, {"C2"}),
    ("token-mean", "accuracy", 0.6, {"T1"}),
    ("overlong", "truncated", 0.2, {"O1"}),
    ("overlong", "accuracy", 0.65, {"O2"}),
    ("overlong-filter", "truncated", 0.01, {"O3"}),
    ("overlong", "accuracy", 0.95, {"D1"}),
    ("overlong", "equal/accuracy", 0.6, {"D2"}),
    ("overlong", "drawn", 300, {"D2"}),
    ("mask", "accuracy", 0.95, {"D3", "P1"}),
    ("grpo", "accuracy", 0.95, {"A1", "C2"}),
    ("grpo", "equal/accuracy", 0.8, {"A2"}),
    ("duplicate", "accuracy", 0.8, {"U1"}),
    ("recycled", "drawn", 210, {"R1"}),
    ("recycled", "accuracy", 0.8, {"R1"}),
    ("recycled", "equal/accuracy", 0.6, {"R2"}),
    ("replay", "accuracy", 0.7, {"P1"}),
    ("replay", "equal/accuracy", 0.6, {"P2"}),
  ],
)
def test_rules_decide(name, what, value, lost):
  assert set(verdicts(ENDS).values()) == {"confirmed"}
  found = verdicts(changed(name, what, value))
  assert {one for one in found if found[one] != "confirmed"} == lost
  assert set(verdicts({}).values()) == {"undecided"}


def log_of_a_run(num_steps, rise, per_step=128.0):
  """Accuracy rises by so much in a step."""
  return [{"eval/accuracy": 0.0}] + [
    {
      "completions/generated": per_step,
      "tokens/generated": 9 * per_step,
      "accuracy": rise * step,
      "entropy/mean": 0.5,
      "truncated": 0.25,
      "length/mean": 9.0,
      "dead_groups": None,
    }
    | ({"drawn/accuracy": rise * step / 2} if per_step > 128 else {})
    for step in range(1, num_steps + 1)
  ]


def test_numbers_are_at_equal_updates_and_at_equal_completions(tmp_path):
  for name, per_step in {"grpo": 128.0, "dapo": 256.0}.items():
    logs = [log_of_a_run(20, rise, per_step) for rise in (0.01, 0.02)]
    found = {"seeds": [results.of_run(x) for x in logs], "seconds": 60}
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  made = results.Results(tmp_path)
  assert made.arms == ["grpo", "dapo"]
  # Steps 11 to 20; and of DAPO, which draws twice as many, 1 to 10.
  for what, grpo, dapo in (
    ("accuracy", 0.155, 0.0775),
    ("equal/accuracy", 0.155, 0.0275),
    ("start/accuracy", 0.055, 0.0275),
    ("drawn", 2560, 5120),
    ("truncated", 0.25, 0.25),
  ):
    np.testing.assert_allclose(made.scores("grpo", what)[0], grpo)
    np.testing.assert_allclose(made.scores("dapo", what)[0], dapo)
  assert made.scores("mask", "accuracy") is None
  assert np.isnan(made.logged("dapo", "dead")).all()
  text = page.markdown(made)
  assert (
    "2 of 10 arms have been run, with 5 seeds for each arm, in 2 minutes"
    in " ".join(text.split())
  )
  assert "| `dapo` | and groups are drawn until a batch of them lives" in text
  assert "| 5120 [5120, 5120] |" in text
  assert "**D1: undecided.**" in text
  assert "**A1: not confirmed.**" in text
  figure.plot(tmp_path / "ladder.png", made)
  assert (tmp_path / "ladder.png").stat().st_size > 10_000
