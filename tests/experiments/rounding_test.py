"""The experiment on rounded rollouts: its arms, rules and page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.rounding import arms, claims, figure, page, results
from tests.experiments import runs

# What corrects, of the settings that an arm may change.
FIELDS = ("importance_mode", "importance_level", "importance_max", "rejection")
CHANGED = {
  "none": ("none", "token", 2.0, "none"),
  "tis": ("truncate", "token", 2.0, "none"),
}


@pytest.mark.parametrize("name", arms.ARMS)
def test_arms_differ_in_rounding_and_correction_alone(name):
  run = runs.of_arm(arms, name)
  is_base = name == arms.BASE
  assert run.start_workdir == ("" if is_base else "root/base/seed=3")
  assert run.phases == (("sft",) if is_base else ("rl",))
  algorithm, settings = run.algorithm
  kernels, _, correction = name.partition("-")
  found = tuple(getattr(settings, field) for field in FIELDS)
  assert found == CHANGED[correction or "none"]
  assert run.sampling.weights_dtype == {
    "int8": "int8",
    "float8": "float8_e4m3fn",
  }.get(kernels, "model")
  assert run.sampling.uncorrected == (correction == "none")
  section = run.section("rl")
  assert section.num_minibatches == section.num_epochs == 1
  assert section.num_rows * section.steps == 20_480
  assert (algorithm, settings.kl_coef) == ("grpo", 0)
  assert run.eval.temperature == 1


def test_an_unknown_arm_is_refused():
  with pytest.raises(ValueError, match="no arm 'x'; choose one of base, exact"):
    arms.get_config("x")


# Where all claims hold.
ENDS = dict.fromkeys((x for x in arms.ARMS if x != arms.BASE), 0.8)
ENDS |= {"int8-none": 0.795, "float8-none": 0.79}
GAPS = {"int8-none": 0.01, "float8-none": 0.1}


def verdicts(ends, start=0.5, gaps=GAPS):
  spread = np.linspace(-1e-4, 1e-4, arms.SIZES["full"].num_seeds)

  def of(name, what):
    if name not in ends:
      return None
    if what == "gap":
      return gaps[name] + spread
    # The same seeds, so that differences hardly vary.
    own = list(ENDS).index(name) + 1
    return (start if what == "start" else ends[name]) + own * spread

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("changes", "lost"),
  [
    ({"exact-tis": 0.7}, {"Z1"}),
    ({"int8-none": 0.77}, {"A1"}),
    ({"float8-none": 0.77}, {"A2"}),
    ({"float8-tis": 0.77}, {"T1", "B2"}),
    ({"int8-tis": 0.79}, {"B1"}),
    ({"float8-tis": 0.785}, {"B2"}),
  ],
)
def test_rules_decide(changes, lost):
  assert set(verdicts(ENDS).values()) == {"confirmed"}
  found = verdicts(ENDS | changes)
  assert {name for name in found if found[name] != "confirmed"} == lost
  assert verdicts(ENDS, start=0.9)["L1"] == "not confirmed"
  swapped = dict(zip(GAPS, reversed(GAPS.values()), strict=True))
  assert verdicts(ENDS, gaps=swapped)["G1"] == "not confirmed"
  assert set(verdicts({}).values()) == {"undecided"}


def log_of_a_run(end, is_rounded):
  """A log of 24 steps with an evaluation before and after each fourth."""
  lines = [{"phase": "rl", "eval/accuracy": 0.5}]
  for step in range(24):
    line = {
      "phase": "rl",
      "tokens/generated": 100,
      "sampler_gap/mean": 0.1 * (step // 12),
      "sampler_gap/max": 0.5,
      "entropy/mean": 0.3,
    }
    if is_rounded:
      line |= {"policy_weight/mean": 0.9, "sampler_gap/kl": 0.02}
    if step % 4 == 3:
      line["eval/accuracy"] = end if step > 7 else 0.4
    lines.append(line)
  return lines


def test_page_and_figure_are_made_of_what_has_ended(tmp_path):
  for name, end in {"exact-none": 0.7, "int8-tis": 0.6}.items():
    seeds = [
      results.of_run(log_of_a_run(end + x, name != "exact-none"))
      for x in (-0.002, 0.002)
    ]
    found = {"seeds": seeds, "seconds": 60}
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  base = {"seeds": [results.of_run([{"phase": "sft"}])] * 2, "seconds": 30}
  (tmp_path / "base.json").write_text(json.dumps(base))
  made = results.Results(tmp_path)
  assert made.arms == ["exact-none", "int8-tis"]
  np.testing.assert_allclose(made.scores("exact-none", "end"), [0.698, 0.702])
  np.testing.assert_allclose(made.scores("exact-none", "start"), 0.5)
  np.testing.assert_allclose(made.scores("int8-tis", "least"), 0.4)
  np.testing.assert_allclose(made.scores("int8-tis", "gap"), 0.05)
  assert made.scores("float8-tis", "end") is None
  assert made.logged("exact-none", "kl") is None
  assert made.logged("int8-tis", "kl").shape == (2, results.PARTS)
  text = page.markdown(made)
  assert (
    "2 of 6 arms have been run, with 6 seeds for each arm, in 2 minutes"
    in " ".join(text.split())
  )
  assert "| `int8-tis` | 0.500 | 0.400 | 0.600" in text
  assert "**L1: confirmed.**" in text
  assert "**B1: undecided.**" in text
  figure.plot(tmp_path / "rounding.png", made)
  assert (tmp_path / "rounding.png").stat().st_size > 10_000
