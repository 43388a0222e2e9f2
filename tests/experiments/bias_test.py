"""The experiment on one flipped example: its arms, rules and page."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np
import pytest

from experiments.bias import arms, claims, figure, page, results
from grpo_jax.settings import config as config_lib

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMITTED = ROOT / "benchmarks" / "bias"


def test_an_arm_is_what_its_name_says():
  config = arms.get_config("mixed-p20-kl001-canaries")
  assert config.data.task_options.flipped_share == 0.75
  assert config.data.task_options.teacher_bias == 0.2
  guards = config_lib.resolve(config).guards
  assert guards.on
  assert guards.canary_every == 5
  assert guards.influence_cap == guards.repeat_cap == 0
  assert guards.min_distinct_prompts == 0
  config = arms.get_config("alone-p05-kl01-none")
  assert config.data.task_options.flipped_share == 1.0
  assert config.algorithm.kl_coef == 0.01
  assert not config.guards.on
  with pytest.raises(ValueError, match="no arm 'mixed'; choose one of mixed-"):
    arms.get_config("mixed")


def test_every_arm_is_checked_before_it_waits_for_a_run():
  for name in arms.ARMS:
    config_lib.resolve(arms.get_config(name))


def scores(rises):
  """Scores of arms whose mean rise over seeds is given; others are missing."""
  spread = np.array([-0.01, -0.005, 0.0, 0.005, 0.01])

  def of(name, what):
    known = rises.get(name)
    return None if known is None else known + spread + (what == "mean")

  return of


def verdicts(rises):
  return {one.name: one.verdict for one in claims.conclude(scores(rises))}


def test_rules_decide():
  rise = {name: 0.3 for name in arms.ARMS if name.endswith("none")}
  rise |= {name: 0.0 for name in arms.ARMS if not name.endswith("none")}
  rise |= {f"{data}-p20-kl001-none": 0.4 for data in arms.SHARES}
  assert set(verdicts(rise).values()) == {"confirmed"}
  # Four points and a half, whose interval has more than five.
  for value in (0.045, 0.3):
    one = verdicts(rise | {"mixed-p20-kl001-cap": value})
    assert one.pop("G2") == "not confirmed"
    assert set(one.values()) == {"confirmed"}
  one = verdicts(rise | {"mixed-p05-kl1-none": 0.0})
  assert one.pop("A2") == "not confirmed"
  assert set(one.values()) == {"confirmed"}
  one = verdicts(rise | {"alone-p02-kl001-none": 0.5})
  assert one.pop("A3") == "not confirmed"
  assert set(one.values()) == {"confirmed"}


def test_a_claim_whose_runs_are_missing_is_undecided():
  assert set(verdicts({}).values()) == {"undecided"}
  some = {"mixed-p02-kl001-all": 0.0}
  assert verdicts(some)["G1"] == "undecided"
  # What does not hold decides, whatever is missing.
  some["mixed-p20-kl001-all"] = 0.2
  assert verdicts(some)["G1"] == "not confirmed"


def seed(biased, kept, halted=""):
  steps = [5 * i for i in range(len(biased))]
  unknown = [0.9 - x for x in biased]
  found = {"steps": steps, "biased": biased, "unknown": unknown}
  return {**found, "kept": kept, "halted": halted}


def written(folder):
  free = [0.0, 0.1, 0.2, 0.3]
  of_arms = {
    "mixed-p05-kl001-none": [seed(free, 15) for _ in range(5)],
    "mixed-p05-kl001-canaries": [
      seed([0.0, 0.02, 0.4], 5, "fell"),
      *(seed([0.0, 0.3], 0, "fell") for _ in range(4)),
    ],
  }
  for name, seeds in of_arms.items():
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"seeds": seeds, "seconds": 60}))
  return results.Results(folder)


def test_a_halted_run_is_as_its_last_checkpoint_until_the_end(tmp_path):
  found = written(tmp_path)
  steps, bias = found.curve("mixed-p05-kl001-canaries")
  assert steps.tolist() == [0, 5, 10, 15]
  assert bias.tolist() == [[0.0, 0.02, 0.02, 0.02]] + [[0.0] * 4] * 4
  rise = found.scores("mixed-p05-kl001-canaries", "rise")
  assert rise is not None
  assert rise.tolist() == [0.02, 0, 0, 0, 0]
  assert found.scores("mixed-p05-kl001-cap", "rise") is None


def test_the_page_names_what_has_not_been_run_and_what_does_not_hold(tmp_path):
  found = written(tmp_path)
  text = page.markdown(found)
  assert "- `mixed-p05-kl001-canaries`: 5 of 5 runs; kept is 4 × step 0, 1" in (
    text
  )
  assert f"{len(arms.ARMS) - 2} arms have not been run: `mixed-p02-kl001" in (
    text
  )
  assert "Every check that could be made holds." in text
  path = tmp_path / "mixed-p02-kl001-none.json"
  rises = (0.4, -0.3, 0.2, -0.2, 0.1)
  seeds = [seed([0.3, 0.3, 0.5, 0.3 + x], 15) for x in rises]
  path.write_text(json.dumps({"seeds": seeds, "seconds": 60}))
  text = page.markdown(results.Results(tmp_path))
  assert "| **not confirmed** | 1 | 1 | 6 |" in text
  assert "- A1: rise of `mixed-p02-kl001-none` should be above 0" in text
  row = "| 0.400, -0.300, 0.200, -0.200, 0.100 | 0.500 | 10 | 0.340 |"
  assert f"| `mixed-p02-kl001-none` {row}" in text
  figure.plot(tmp_path / "bias.png", found)
  assert (tmp_path / "bias.png").stat().st_size > 10_000


def test_the_page_in_docs_is_of_the_results_that_are_there(monkeypatch):
  monkeypatch.setattr(os, "cpu_count", lambda: 2)  # Of the machine of the runs.
  text = page.markdown(results.Results(COMMITTED))
  assert text == (ROOT / "docs" / "bias.md").read_text("utf-8")
