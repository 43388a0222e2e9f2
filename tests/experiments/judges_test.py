"""The experiment on judges: its arms, rules and page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.judges import arms, claims, page, results
from experiments.sweeps import cells as cells_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training import many
from grpo_jax.training.runtime import hyperparameters
from tests.experiments import command


def test_an_arm_is_what_its_name_says(tmp_path):
  found = {
    name: config_lib.resolve(arms.get_config(name)) for name in arms.ARMS
  }
  assert found["by-truth-kl"].algorithm[1].kl_coef == 0.05
  assert found["by-truth"].algorithm[1].kl_coef == 0
  assert found["by-marks-verifier"].rewards.weights == (0.5, 0.5)
  assert found["by-marks"].rewards.weights == (0.0, 1.0)
  assert found["by-verifier"].rewards.functions == ("accuracy",)
  assert found["itself"].judge.model == ""
  (override,) = arms.follows_on("by-marks-verifier", tmp_path)
  assert override == f"--config.judge.model={tmp_path}/marks/seed={{seed}}"
  for alone in ("truth", "itself", "by-verifier"):
    assert arms.follows_on(alone, tmp_path) == []
  with pytest.raises(ValueError, match="no arm 'by-luck'"):
    arms.get_config("by-luck")


def test_the_seeds_of_an_arm_are_one_program(tmp_path, monkeypatch):
  monkeypatch.chdir(command.ROOT)
  source = cells_lib.Source("experiments/judges/config.py:by-truth", {})
  cells = source.cells(tmp_path)
  assert len(cells) == len(arms.SEEDS)
  programs = {
    cells_lib.program(
      c.config, many.may_differ(c.config), hyperparameters.CONSTANT
    )
    for c in cells
  }
  assert len(programs) == 1


# What confirms all claims, by arm.
SCORES = {
  "by-truth": {"early": 0.9, "accuracy": 0.5, "opinion": 0.9, "gap": 0.4},
  "by-truth-kl": {"gap": 0.1},
  "by-reverse": {"opinion": 0.9, "accuracy": 0.0},
  "by-marks": {"opinion": 0.9, "accuracy": 0.0},
  "itself": {"gap": 0.3, "before": 1.0, "judgement": 0.8},
  "by-marks-verifier": {"accuracy": 0.95},
}


def verdicts(scores):
  spread = np.linspace(-0.01, 0.01, len(arms.SEEDS))

  def of(arm, what):
    if arm not in scores:
      return None
    return scores[arm][what] + (spread if what != "before" else 0)

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("claim", "arm", "change"),
  [
    ("T1", "by-truth", {"early": 0.8}),
    ("T2", "by-truth", {"accuracy": 0.9}),
    ("R1", "by-reverse", {"opinion": 0.7}),
    ("M1", "by-marks", {"accuracy": 0.1}),
    ("I1", "itself", {"judgement": 1.0}),
    ("K1", "by-truth-kl", {"gap": 0.4}),
    ("V1", "by-marks-verifier", {"accuracy": 0.9}),
  ],
)
def test_a_claim_falls_with_its_numbers(claim, arm, change):
  assert set(verdicts(SCORES).values()) == {"confirmed"}
  changed = verdicts(SCORES | {arm: SCORES[arm] | change})
  assert changed[claim] == "not confirmed"
  less = {name: x for name, x in SCORES.items() if name != arm}
  assert verdicts(less)[claim] == "undecided"


def line(step, **values):
  return {"phase": "rl", "step": step, **values}


def test_numbers_are_those_of_the_log(tmp_path):
  lines = [{"phase": "sft", "step": 1, "loss": 1.0}]
  lines.append(line(1, **{"eval/accuracy": 0.5}))
  for step in range(2, 52):
    values = {"reward/accuracy": 0.25, "reward/judge": step / 100}
    if step in (26, 51):
      values |= {"eval/accuracy": 0.9, "eval/domain/sort/accuracy": step / 100}
    lines.append(line(step, **values))
  found = results.of_run(lines)
  arm = {"seeds": [found] * 2, "seconds": 90}
  (tmp_path / "by-truth.json").write_text(json.dumps(arm), encoding="utf-8")
  known = results.Results(tmp_path)
  np.testing.assert_allclose(known.column("by-truth", "accuracy")[0, 0], 0.5)
  for what, value in {
    "early": 0.26,
    "accuracy": 0.51,
    "opinion": 0.465,
    "gap": 0.215,
  }.items():
    np.testing.assert_allclose(known.score("by-truth", what), value, atol=1e-6)
  assert known.score("by-marks", "gap") is None
  text = page.markdown(known)
  assert "| `by-truth` | 0.260 | 0.510 | 0.510 | 0.465 | 0.215 | 1.5 |" in text
  assert "| T1 | A judge that has learned from the truth teaches. |" in text
  lines = text.split("## All policies")[0].splitlines()
  assert max(len(line) for line in lines if not line.startswith("|")) <= 84
