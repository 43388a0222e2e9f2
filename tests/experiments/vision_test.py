"""The experiment on images: its arms, rules and page."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest

from experiments.vision import arms, claims, figure, page, results
from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import vision


def test_arms_take_as_many_updates_at_one_rate():
  found = {
    name: config_lib.resolve(arms.get_config(name)) for name in arms.ARMS
  }
  assert found[arms.BASE].phases == ("sft",)
  assert found[arms.BASE].section("sft").steps > 0
  learning = {
    arms.GRPO: "rl",
    arms.SAME_UPDATES: "more",
    arms.SAME_EXAMPLES: "more",
  }
  rates = set()
  for name, section in learning.items():
    run = found[name]
    phase = run.section(section)
    # Both streams have the number 1 of their run, and thus the same order.
    assert run.phases.index(section) == 1
    assert phase.steps == arms.STEPS
    steps = {x: run.section(x).steps for x in run.phases if x != section}
    assert set(steps.values()) == {0}
    rates.add(phase.optimizer)
  assert len(rates) == 1
  rl = found[arms.GRPO].section("rl")
  sizes = {
    name: found[name].section("more").num_prompts for name in arms.EXAMPLES
  }
  assert sizes[arms.SAME_UPDATES] == rl.num_prompts * rl.group_size
  assert sizes[arms.SAME_EXAMPLES] == rl.num_prompts
  assert set(arms.DOMAINS) == set(vision.DOMAINS)
  assert arms.follows_on("grpo", pathlib.Path("x")) == [
    "--config.start_workdir=x/base/seed={seed}"
  ]
  with pytest.raises(
    ValueError, match="no arm 'ppo'; choose one of base, grpo"
  ):
    arms.get_config("ppo")


# Accuracy in and out of domain; overlap is a tenth more.
ENDS = {
  "base": (0.4, 0.2),
  "grpo": (0.6, 0.3),
  "sft-updates": (0.7, 0.15),
  "sft-examples": (0.6, 0.19),
}


def verdicts(ends):
  spread = np.linspace(-0.01, 0.01, arms.NUM_SEEDS)

  def of(name, domains, what):
    if name not in ends:
      return None
    values = [ends[name][domain in arms.SHIFTED] for domain in domains]
    return np.mean(values) + spread + (0.1 if what == "overlap" else 0.0)

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("changes", "lost"),
  [
    ({"grpo": (0.4, 0.3)}, {"L1"}),
    ({"sft-examples": (0.3, 0.05)}, {"L2", "R2"}),
    ({"sft-updates": (0.7, 0.35)}, {"G1", "F1", "O1"}),
    ({"sft-examples": (0.9, 0.35)}, {"G2", "O2"}),
    ({"sft-updates": (0.45, 0.19)}, {"R1"}),
    ({"grpo": (0.5, 0.1)}, {"G1", "G2", "F2", "O1", "O2"}),
    ({"sft-examples": (0.45, 0.2)}, {"R2"}),
  ],
)
def test_rules_decide(changes, lost):
  assert set(verdicts(ENDS).values()) == {"confirmed"}
  found = verdicts(ENDS | changes)
  assert {name for name in found if found[name] != "confirmed"} == lost
  assert set(verdicts({}).values()) == {"undecided"}


def log_of_a_run(accuracies):
  lines = [{"phase": "rl", "loss": 1.0}]
  for accuracy in accuracies:
    line = {"phase": "rl", "eval/accuracy": 0.0}
    for place, domain in enumerate(arms.DOMAINS):
      line[f"eval/domain/{domain}/accuracy"] = accuracy + place / 100
      line[f"eval/domain/{domain}/reward"] = accuracy + place / 100 + 0.05
    lines.append(line)
  return lines


def test_page_and_figure_are_made_of_what_has_ended(tmp_path):
  for name, ends in {"grpo": (0.4, 0.5), "sft-updates": (0.6,)}.items():
    seeds = [
      results.of_run(log_of_a_run([end + x for end in ends]))
      for x in (-0.01, 0.01)
    ]
    found = {"seeds": seeds, "seconds": 60}
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  made = results.Results(tmp_path)
  one = made.scores("grpo", ("count_colours",), "overlap")
  np.testing.assert_allclose(one, [0.61, 0.63], atol=1e-4)
  warm = made.scores("base", arms.IN_DOMAIN)
  np.testing.assert_allclose(warm, [0.395, 0.415], atol=1e-4)
  assert made.scores("sft-examples", arms.IN_DOMAIN) is None
  text = page.markdown(made)
  assert (
    "2 of 3 arms have been run, with 5 seeds for each arm, in 2 minutes"
    in " ".join(text.split())
  )
  assert "| box | 0.410 [" in text
  assert "**G2: undecided.**" in text
  assert "**L1: confirmed.**" in text
  figure.plot(tmp_path / "vision.png", made)
  assert (tmp_path / "vision.png").stat().st_size > 10_000
