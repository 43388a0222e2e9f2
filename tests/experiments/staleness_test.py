"""The experiment on staleness: its arms, rules and page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.staleness import arms, claims, figure, page, results
from tests.experiments import runs

# What corrects, of the settings that an arm may change.
FIELDS = (
  *("importance_mode", "importance_level", "importance_min"),
  *("importance_max", "rejection", "off_policy_threshold"),
)
OFF = ("none", "token", 0.0, 2.0, "none", 0.0)
CHANGED = {
  "none": {"off_policy_threshold": 1e6},
  "tis": {"importance_mode": "truncate"},
  "dis": {
    "importance_mode": "mask",
    "importance_min": 0.7,
    "importance_max": 6.0,
  },
  "mis": {
    "importance_mode": "mask",
    "importance_level": "sequence",
    "importance_max": 3.0,
  },
  "opsm": {"off_policy_threshold": 0.5},
  "reject": {"rejection": "seq_mean_k1"},
}


@pytest.mark.parametrize("name", arms.ARMS)
def test_arms_differ_in_age_and_correction_alone(name):
  run = runs.of_arm(arms, name)
  is_base = name == arms.BASE
  assert run.start_workdir == ("" if is_base else "root/base/seed=3")
  assert run.phases == (("sft",) if is_base else ("rl",))
  algorithm, settings = run.algorithm
  correction, _, age = name.partition("-s")
  expected = dict(zip(FIELDS, OFF, strict=True)) | CHANGED.get(correction, {})
  assert {field: getattr(settings, field) for field in FIELDS} == expected
  assert run.sampling.uncorrected == (correction in ("none", "opsm"))
  section = run.section("rl")
  assert section.staleness == int(age or 0)
  assert section.num_minibatches == section.num_epochs == 1
  assert section.num_rows * section.steps == 12_288
  assert (algorithm, settings.kl_coef) == ("grpo", 0)
  assert run.eval.temperature == 1


def test_an_unknown_arm_is_refused():
  with pytest.raises(
    ValueError, match="no arm 'x'; choose one of base, none-s"
  ):
    arms.get_config("x")


# Accuracy at the end of each arm where all claims hold: without a correction by
# age, with one after 16 updates, and with one otherwise.
FRESH = {0: 0.8, 1: 0.8, 4: 0.6, 16: 0.4}
ENDS = {
  arms.name_of(correction, age): FRESH[age] if correction == "none" else 0.8
  for correction in arms.CORRECTIONS
  for age in arms.STALENESS
} | {"dis-s16": 0.85, "mis-s16": 0.85}


def verdicts(ends, start=0.5):
  spread = np.linspace(-0.01, 0.01, arms.SIZES["full"].num_seeds)

  def of(name, what):
    if name not in ends:
      return None
    return (start if what == "start" else ends[name]) + spread

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("changes", "lost"),
  [
    ({"none-s1": 0.7}, {"A1"}),
    ({"none-s4": 0.8}, {"A2"}),
    ({"none-s16": 0.6}, {"A3"}),
    ({"opsm-s0": 0.7}, {"Z1"}),
    ({"tis-s16": 0.3}, {"B1", "R2"}),
    ({"dis-s16": 0.4}, {"B2", "R2", "D1"}),
    ({"mis-s16": 0.4}, {"B3", "R2", "D2"}),
    ({"opsm-s16": 0.4}, {"B4", "R2"}),
    ({"reject-s16": 0.4}, {"B5", "R2"}),
    ({"reject-s4": 0.7}, {"R1"}),
  ],
)
def test_rules_decide(changes, lost):
  assert set(verdicts(ENDS).values()) == {"confirmed"}
  found = verdicts(ENDS | changes)
  assert {name for name in found if found[name] != "confirmed"} == lost
  assert verdicts(ENDS, start=0.9)["L1"] == "not confirmed"
  assert set(verdicts({}).values()) == {"undecided"}


def log_of_a_run(end, is_weighed):
  """A log of 24 steps with an evaluation before and after each fourth."""
  lines = [{"phase": "rl", "eval/accuracy": 0.5}]
  for step in range(24):
    line = {
      "phase": "rl",
      "tokens/generated": 100,
      "tokens/trained": 80,
      "sampler_gap/mean": 0.1 * (step // 12),
      "entropy/mean": 0.3,
    }
    if is_weighed:
      line |= {"policy_weight/mean": 0.9, "staleness/mean": min(step, 4)}
    if step % 4 == 3:
      line["eval/accuracy"] = end if step > 7 else 0.4
    lines.append(line)
  return lines


def test_page_and_figure_are_made_of_what_has_ended(tmp_path):
  for name, end in {"none-s0": 0.7, "tis-s16": 0.6}.items():
    seeds = [
      results.of_run(log_of_a_run(end + x, name != "none-s0"))
      for x in (-0.002, 0.002)
    ]
    found = {"seeds": seeds, "seconds": 60}
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  base = {"seeds": [results.of_run([{"phase": "sft"}])] * 2, "seconds": 30}
  (tmp_path / "base.json").write_text(json.dumps(base))
  made = results.Results(tmp_path)
  assert made.arms == ["none-s0", "tis-s16"]
  np.testing.assert_allclose(made.scores("none-s0", "end"), [0.698, 0.702])
  np.testing.assert_allclose(made.scores("none-s0", "start"), 0.5)
  np.testing.assert_allclose(made.scores("tis-s16", "least"), 0.4)
  assert made.scores("dis-s16", "end") is None
  assert made.logged("none-s0", "age") is None
  assert made.logged("tis-s16", "age").shape == (2, results.PARTS)
  assert made.mean("tis-s16", "gap") == pytest.approx(0.05)
  assert made.trained("tis-s16") == pytest.approx(0.8)
  text = page.markdown(made)
  assert (
    "2 of 24 arms have been run, with 6 seeds for each arm, in 2 minutes"
    in " ".join(text.split())
  )
  assert "| `tis-s16` | 0.500 | 0.400 | 0.600" in text
  assert "**L1: confirmed.**" in text
  assert "**B1: undecided.**" in text
  figure.plot(tmp_path / "staleness.png", made)
  assert (tmp_path / "staleness.png").stat().st_size > 10_000
