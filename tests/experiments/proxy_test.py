"""The experiment on a reward that is learned: its arms, rules and page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.proxy import arms, claims, figure, page, results
from experiments.sweeps import cells as cells_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training import many
from grpo_jax.training.runtime import hyperparameters
from tests.experiments import command


def test_an_arm_is_what_its_name_says():
  found = {
    name: config_lib.resolve(arms.get_config(name)) for name in arms.ARMS
  }
  steps = {
    name: run.section("rl").steps * run.phases.count("rl")
    for name, run in found.items()
  }
  assert set(steps.values()) == {150}
  assert found["kl04-r10"].algorithm[1].kl_coef == 0.04
  assert found["kl04-r10"].reward_model.history_share == 0.1
  assert found["kl0-r10"].algorithm[1].kl_coef == 0
  assert found["kl04-r0"].reward_model.history_share == 0
  assert found["kl04-r0"].phases == ("sft", *6 * ("preference", "rl"))
  assert found["kl0-once"].phases == ("sft", "preference", "rl")
  assert {run.eval.every for run in found.values()} == {25}
  with pytest.raises(ValueError, match="no arm 'kl1-r0'; choose one of kl0-r0"):
    arms.get_config("kl1-r0")


def test_the_seeds_of_an_arm_are_one_program(tmp_path, monkeypatch):
  monkeypatch.chdir(command.ROOT)
  source = cells_lib.Source("experiments/proxy/config.py:kl04-r10", {})
  cells = source.cells(tmp_path)
  assert len(cells) == arms.NUM_SEEDS
  programs = {
    cells_lib.program(
      c.config, many.may_differ(c.config), hyperparameters.CONSTANT
    )
    for c in cells
  }
  assert len(programs) == 1


# Accuracy and gap at the end, of each arm.
ENDS = {
  "kl0-r0": (0.1, 0.8),
  "kl04-r0": (0.3, 0.6),
  "kl0-r10": (0.3, 0.6),
  "kl04-r10": (0.5, 0.4),
  "kl0-once": (0.0, 0.9),
  "kl04-once": (0.4, 0.5),
}


def verdicts(ends):
  spread = np.linspace(-0.01, 0.01, arms.NUM_SEEDS)

  def of(name, what, when):
    if name not in ends:
      return None
    accuracy, gap = ends[name] if when == "after" else (0.45, 0.15)
    known = {"opinion": 2.0, "accuracy": accuracy, "gap": gap}
    return known[what] + spread

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("claim", "changes"),
  [
    ("H1", {"kl0-r0": (0.5, 0.8)}),
    ("K1", {"kl04-r10": (0.5, 0.6)}),
    ("R1", {"kl04-r10": (0.5, 0.6)}),
    ("B1", {"kl04-r10": (0.1, 0.4)}),
    ("I1", {"kl0-once": (0.0, 0.8)}),
    ("O1", {"kl04-once": (0.4, 0.9)}),
  ],
)
def test_rules_decide(claim, changes):
  assert set(verdicts(ENDS).values()) == {"confirmed"}
  assert verdicts(ENDS | changes)[claim] == "not confirmed"
  assert set(verdicts({}).values()) == {"undecided"}


def line(step, phase, **metrics):
  return {"step": step, "phase": phase, **metrics}


def log_of_a_run():
  """Each iteration begins with the evaluation that ended the one before."""
  lines = [line(1, "sft", loss=1.0)]
  number = 0
  for iteration in range(arms.ITERATIONS):
    lines.append(line(2, "preference", **{"reward/mean": 9.0}))
    held_out = {"eval/accuracy": 0.5 - 0.05 * iteration}
    held_out |= {"eval/reward/ascending": 0.75, "eval/reward/f1": 0.5}
    lines.append(line(3, "rl", **held_out))
    for step in range(25):
      number += 1
      drawn = {
        "reward/mean": 0.0,
        "reward/accuracy": number / 150,
        "reward/ascending": 0.5,
        "reward/f1": 0.5,
        "reward/reward_model": 10.0 * iteration + step,
        "reward_model/accuracy": None if number < 100 else 0.25,
      }
      last = {"eval/accuracy": 0.45 - 0.05 * iteration}
      drawn |= held_out | last if step == 24 else {}
      lines.append(line(4, "rl", **drawn))
  return lines


def test_numbers_of_a_run():
  found = results.of_run(log_of_a_run())
  np.testing.assert_allclose(
    found["held_out"]["accuracy"], 0.5 - 0.05 * np.arange(7)
  )
  assert found["gains"] == [24.0] * arms.ITERATIONS
  assert found["steps"] == [1, *range(5, 151, 5)]
  assert found["curves"]["accuracy"][-1] == 1.0
  assert found["curves"]["agreement"][:2] == [None, None]


def test_page_and_figure_are_made_of_what_has_ended(tmp_path):
  found = {"seeds": [results.of_run(log_of_a_run())] * 2, "seconds": 60}
  for name in ("kl0-r0", "kl0-once"):
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  made = results.Results(tmp_path)
  text = page.markdown(made)
  assert (
    "2 of 6 arms have been run, with 2 seeds for each arm, in 2 minutes"
    in " ".join(text.split())
  )
  assert "| `kl0-r0` | 2 | 0.500 | 0.500 | 0.200 | 0.250 | 0.550 [" in text
  assert "| 24.00 | 0.25 | 1.0 |" in text
  assert "0.25, 0.20 if it learned once" in " ".join(text.split())
  assert "**K1: undecided.**" in text
  assert max(map(len, text.split("\n## ")[0].splitlines()[:20])) <= 80
  figure.plot(tmp_path / "proxy.png", made)
  assert (tmp_path / "proxy.png").stat().st_size > 10_000
