"""The experiment on lengths: its arms, and the numbers of its page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.lengths import arms, claims, page, results
from tests.experiments import runs


@pytest.mark.parametrize("name", arms.ARMS)
def test_each_arm_follows_on_its_own_seed(name):
  run = runs.of_arm(arms, name, "smoke")
  start = "" if name == "base" else "root/base/seed=3"
  assert run.start_workdir == start
  section = run.section("rl")
  assert section.group_size == arms.ARMS[name].group_size
  assert run.rewards.weights == (1.0, 0.0 if "mended" in name else 0.02)


def test_arms_of_gfpo_differ_in_what_is_kept():
  every = {name: arms.get_config(name).algorithm for name in arms.ARMS}
  kept = {
    name: (every[name].metric, every[name].num_kept)
    for name in ("all", *arms.FILTERED)
  }
  assert kept == {
    "all": ("length", 8),
    "shortest-8of16": ("length", 8),
    "shortest-8of24": ("length", 8),
    "shortest-4of16": ("length", 4),
    "efficiency": ("efficiency", 8),
    "adaptive": ("adaptive", 8),
  }
  with pytest.raises(ValueError, match="no arm 'x'"):
    arms.get_config("x")


def test_excess_length_reduction_by_hand():
  """0 as long as the baseline, 1 as short as the start; Section 4's 10.9k."""
  start, baseline = np.full(5, 10.9), np.full(5, 14.8)
  other = np.array([14.8, 10.9, 12.85, 7.0, 18.7])
  np.testing.assert_allclose(
    results.excess_length_reduction(start, baseline, other),
    [0, 1, 0.5, 2, -1],
    atol=1e-12,
  )
  assert np.isnan(results.excess_length_reduction(baseline, start, other)).all()


def _write(folder, arm, accuracy, lengths, wrong=(5.0, 5.0)):
  """Two seeds of 40 steps: a jump after 10 steps, and a line of wrong ones."""
  seeds = [
    {
      "accuracy": [0.2] * 10 + [a] * 30,
      "length": [10.0] * 10 + [n] * 30,
      "right": [10.0] * 40,
      "wrong": [None, *np.linspace(5.0, w, 39).tolist()],
    }
    for a, n, w in zip(accuracy, lengths, wrong, strict=True)
  ]
  found = {"seeds": seeds, "seconds": 60.0}
  (folder / f"{arm}.json").write_text(json.dumps(found), encoding="utf-8")


def test_numbers_of_the_page(tmp_path):
  _write(tmp_path, "all", (0.5, 0.6), (20.0, 21.0))
  _write(tmp_path, "shortest-8of16", (0.5, 0.6), (13.0, 13.4))
  _write(tmp_path, "adaptive", (0.1, 0.2), (12.0, 12.2))
  _write(tmp_path, "grpo-mended", (0.5, 0.5), (9.0, 9.0), (9.0, 9.1))
  found = results.Results(tmp_path)
  np.testing.assert_allclose(found.scores("all", "growth/length"), [10, 11])
  np.testing.assert_allclose(
    found.scores("shortest-8of16", "elr"), [0.7, 7.6 / 11]
  )
  growth = found.scores("grpo-mended", "growth/wrong")
  # Of 39 even steps from 5: the last 20 minus the 4 of the first 5.
  line = np.linspace(5.0, 9.0, 39)
  assert growth[0] == pytest.approx(line[-20:].mean() - line[:4].mean())
  assert found.scores("grpo", "growth/length") is None
  verdicts = {x.name: x.verdict for x in claims.conclude(found.scores)}
  assert verdicts["G2"] == "confirmed"
  assert verdicts["G6"] == "not confirmed"  # Short, but less often right.
  assert verdicts["G10"] == "confirmed"
  assert verdicts["G1"] == verdicts["G3"] == "undecided"
  assert len(verdicts) == 13
  text = page.markdown(found)
  assert "| `shortest-8of16` | 0.550 " in text
  assert "9 arms have not been run" in text
