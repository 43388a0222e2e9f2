"""The experiment on a verifier with errors: its arms, rules and page."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from experiments.flips import arms, claims, figure, page, results
from grpo_jax.settings import config as config_lib


def test_arms_differ_in_algorithm_and_errors_alone():
  for name in arms.ARMS[1:]:
    run = config_lib.resolve(arms.get_config(name))
    algorithm, percent = name.split("-")
    assert run.algorithm[0] == algorithm
    assert run.algorithm[1].kl_coef == 0
    flips = dict(run.rewards.options["flipped"])
    assert flips == {"source": "accuracy", "probability": int(percent) / 100}
    assert run.rewards.correct == "accuracy"
    assert run.rewards.weights == (0.0, 1.0)
    drawn = [run.section(phase) for phase in run.phases]
    assert sum(x.steps * x.num_prompts * x.group_size for x in drawn) == 10_240
    assert run.phases == (("value", "rl") if algorithm == "ppo" else ("rl",))
  assert arms.get_config(arms.BASE).phases == ("sft",)
  assert arms.follows_on("ppo-10", pathlib.Path("x")) == [
    "--config.start_workdir=x/base/seed={seed}"
  ]
  with pytest.raises(ValueError, match="no arm 'grpo-50'; choose one of base"):
    arms.get_config("grpo-50")


# Accuracy at the end without errors, and what each per cent takes away.
ENDS = {
  "grpo": (0.9, 0.01),
  "dr_grpo": (0.9, 0.008),
  "rloo": (0.9, 0.007),
  "ppo": (0.9, 0.006),
}


def verdicts(ends):
  spread = np.linspace(-0.01, 0.01, arms.NUM_SEEDS)

  def of(name, when):
    algorithm, percent = name.split("-")
    if algorithm not in ends:
      return None
    start, loss = ends[algorithm]
    return (start - loss * int(percent) if when == "after" else 0.25) + spread

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("changes", "lost"),
  [
    ({"rloo": (0.2, 0.001)}, {"L1", "R1"}),
    ({"grpo": (0.9, -1e-4)}, {"S1", "D1", "R1", "P1", "P2"}),
    ({"dr_grpo": (0.6, -1e-4)}, {"S2"}),
    ({"rloo": (0.6, -0.001)}, {"S3"}),
    ({"ppo": (0.6, -1e-4)}, {"S4"}),
    ({"grpo": (0.9, 0.035)}, {"G1", "G2"}),
    ({"grpo": (0.9, 0.02)}, {"G2"}),
    ({"dr_grpo": (0.8, 0.008)}, {"D1"}),
    ({"ppo": (0.7, 0.009)}, {"P1"}),
    ({"ppo": (1.0, 0.011)}, {"P2"}),
  ],
)
def test_rules_decide(changes, lost):
  assert set(verdicts(ENDS).values()) == {"confirmed"}
  found = verdicts(ENDS | changes)
  assert {name for name in found if found[name] != "confirmed"} == lost
  assert set(verdicts({}).values()) == {"undecided"}


def test_slope_is_that_of_each_seed():
  lines = np.array([[0.9, -1.0], [0.5, 0.25]])

  def of(name, _):
    return lines[:, 0] + lines[:, 1] * int(name.split("-")[1]) / 100

  np.testing.assert_allclose(claims.slope(of, "ppo"), [-1.0, 0.25], atol=1e-9)


def log_of_a_run(end, critic):
  lines = [{"phase": "value", "eval/accuracy": 0.5}] * critic
  lines.append({"phase": "rl", "eval/accuracy": 0.25})
  lines.append({"phase": "rl", "reward/mean": 1.0})
  count = 3 if critic else 4
  return lines + [{"phase": "rl", "eval/accuracy": end}] * count


def test_page_and_figure_are_made_of_what_has_ended(tmp_path):
  for name, end in {"grpo-0": 0.9, "ppo-0": 0.8, "grpo-40": 0.2}.items():
    logs = [log_of_a_run(end + x, name == "ppo-0") for x in (-0.05, 0.05)]
    found = {"seeds": [results.of_run(lines) for lines in logs], "seconds": 60}
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  made = results.Results(tmp_path)
  assert made.completions("grpo-0").tolist() == [0, 2560, 5120, 7680, 10240]
  assert made.completions("ppo-0").tolist() == [2560, 5120, 7680, 10240]
  text = page.markdown(made)
  assert (
    "3 of 20 arms have been run, with 5 seeds for each arm, in 3 minutes"
    in " ".join(text.split())
  )
  assert "| 0 % | 0.900 [" in text
  assert "| 40 % | 0.200 [" in text
  assert "**P1: undecided.**" in text
  assert "**G2: not confirmed.**" in text
  figure.plot(tmp_path / "flips.png", made)
  assert (tmp_path / "flips.png").stat().st_size > 10_000
