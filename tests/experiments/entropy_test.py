"""The experiment on entropy: its arms, rules and page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.entropy import arms, claims, figure, page, results
from tests.experiments import runs


@pytest.mark.parametrize("name", arms.ARMS)
def test_arms_differ_in_what_they_do_about_entropy(name):
  run = runs.of_arm(arms, name)
  base = name == arms.BASE
  assert run.start_workdir == ("" if base else "root/base/seed=3")
  assert run.phases == (("sft",) if base else ("rl",))
  algorithm, settings = run.algorithm
  assert algorithm == arms.ARMS[name].algorithm
  assert settings.clip_high == {"clip-higher": 0.28, "gtpo": 0.28}.get(
    name, 0.28 if algorithm == "grpo_s" else 0.2
  )
  assert settings.entropy_coef == (1e-3 if name == "bonus" else 0)
  assert settings.kl_coef == 0
  section = run.section("rl")
  assert section.correction.corrects == ("gec" in name)
  assert section.correction.train_injected == (name == "edge-gec-trained")
  assert section.num_rows * section.steps == 20_480
  assert section.num_minibatches == 2
  assert run.eval.temperature == 1


def test_an_unknown_arm_is_refused():
  with pytest.raises(ValueError, match="no arm 'x'; choose one of base, grpo"):
    arms.get_config("x")


def test_a_rebound_is_from_an_inner_minimum_to_the_end():
  curves = np.array(
    [
      [1.0, 0.5, 0.4, 0.6],  # Comes back.
      [1.0, 0.5, 0.45, 0.4],  # Is least at the end,
      [0.4, 0.5, 0.6, 0.7],  # or at the beginning.
      [1.0, 0.8, 0.9, 0.8],  # The first of two that are least.
    ]
  )
  np.testing.assert_allclose(results.rebound(curves), [1.5, 1, 1, 1])
  steps = np.arange(40.0)[None]
  np.testing.assert_allclose(results.windows(steps)[0], 1.5 + 4 * np.arange(10))


# What of each arm: rebound, growth of entropy, pass@1, pass@16.
HIGHER = (1.5, 0.0, 0.3, 0.8)
ENDS = {
  "grpo": (1.0, -0.2, 0.2, 0.6),
  **dict.fromkeys(("clip-higher", "gtpo", "grpo_s", "bonus"), HIGHER),
  "edge": (1.5, 0.0, 0.25, 0.7),
  "edge-gec": HIGHER,
  "edge-gec-trained": (1.5, 0.0, 0.4, 0.8),
}


def verdicts(ends, live=0.9):
  spread = np.linspace(-0.01, 0.01, arms.SIZES["full"].num_seeds)

  def of(name, what):
    if name not in ends:
      return None
    keys = ("rebound", "growth", "pass@1", "pass@16")
    said = dict(zip(keys, ends[name], strict=True)) | {"made_live": live}
    return said[what] + spread

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("changes", "lost"),
  [
    ({"grpo": (1.0, 0.1, 0.2, 0.6)}, {"E1"}),
    ({"grpo": (1.4, -0.1, 0.2, 0.6)}, {"E2"}),
    ({"clip-higher": (1.1, 0.0, 0.3, 0.8)}, {"B1"}),
    ({"gtpo": (1.1, 0.0, 0.3, 0.5)}, {"B2", "P1"}),
    ({"grpo_s": (1.1, 0.0, 0.3, 0.5)}, {"B3", "P2"}),
    ({"edge": (1.1, 0.0, 0.35, 0.5)}, {"B4", "P3", "C2"}),
    ({"edge-gec": (1.1, 0.0, 0.45, 0.5)}, {"B5", "P4", "C3"}),
    ({"bonus": (1.1, 0.0, 0.3, 0.8)}, {"B6"}),
  ],
)
def test_rules_decide(changes, lost):
  assert set(verdicts(ENDS).values()) == {"confirmed"}
  found = verdicts(ENDS | changes)
  assert {name for name in found if found[name] != "confirmed"} == lost
  assert verdicts(ENDS, live=0.4)["C1"] == "not confirmed"
  assert set(verdicts({}).values()) == {"undecided"}


def log_of_a_run(end, corrects):
  """A log of 20 steps, in which the entropy falls, and an evaluation."""
  lines = [{"phase": "sft", "loss": 1.0}, {"phase": "rl", "eval/accuracy": 0.1}]
  for step in range(20):
    line = {"phase": "rl", "entropy/mean": 1.0 - step / 50, "accuracy": 0.9}
    line["dead_groups"] = None if step == 3 else 0.5
    if corrects:
      line["correction/draft_accuracy"] = 0.2
      line["correction/draft_dead_groups"] = 0.8
      line["correction/made_live"] = 0.6
    lines.append(line)
  lines[-1]["eval/accuracy"] = end
  return lines


def test_page_and_figure_are_made_of_what_has_ended(tmp_path):
  for name, end in {"grpo": 0.3, "edge-gec": 0.2}.items():
    seeds = [
      results.of_run(log_of_a_run(end + x, name != "grpo"))
      | {"passes": [[0.2, 0.6], [end + x, 0.7]]}
      for x in (-0.02, 0.02)
    ]
    found = {"seeds": seeds, "seconds": 60}
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  base = {"seeds": [{"passes": [[0.1, 0.5]]}] * 2, "seconds": 30}
  (tmp_path / "base.json").write_text(json.dumps(base))
  made = results.Results(tmp_path)
  assert made.arms == ["grpo", "edge-gec"]
  np.testing.assert_allclose(made.passes("grpo", "pass@16")[0], [0.5, 0.6, 0.7])
  assert made.logged("grpo", "accuracy")[0, 0] == 0.9
  assert made.logged("edge-gec", "accuracy")[0, 0] == 0.2  # Of the drafts.
  assert made.logged("grpo", "made_live") is None
  np.testing.assert_allclose(made.logged("grpo", "held_out")[0], [0.1, 0.28])
  np.testing.assert_allclose(made.scores("edge-gec", "made_live"), 0.75)
  np.testing.assert_allclose(made.scores("grpo", "pass@1"), [0.28, 0.32])
  np.testing.assert_allclose(made.scores("grpo", "rebound"), 1)
  assert made.scores("gtpo", "rebound") is None
  text = page.markdown(made)
  assert (
    "2 of 8 arms have been run, with 5 seeds for each arm, in 2 minutes"
    in " ".join(text.split())
  )
  assert "| `edge-gec` | 0.990 | 0.630 | 1.000" in text
  assert "**E1: confirmed.**" in text
  assert "**C2: undecided.**" in text
  figure.plot(tmp_path / "entropy.png", made)
  assert (tmp_path / "entropy.png").stat().st_size > 10_000
