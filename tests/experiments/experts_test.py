"""The experiment on four domains: budgets, arms, and numbers of its page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.experts import arms, claims, page
from experiments.experts.results import Results
from tests.experiments import runs


def _drawn(name):
  """Completions that an arm draws."""
  config = arms.get_config(name)
  phases = [config[phase] for phase in config.phases]
  return sum(
    p.steps * p.num_prompts * p.group_size
    for p in phases
    if p.kind != "supervised"
  )


def test_all_arms_draw_as_many_completions():
  budget = _drawn("mixed")
  size = arms.SIZES["full"]
  assert budget == size.steps * 32 * 8
  assert _drawn("sequential") == budget
  trained = budget * size.expert_steps // size.steps
  experts = len(arms.EXPERTS) * trained
  for arm in ("opd-full", "opd-token"):
    assert _drawn(arm) + experts == budget
  assert _drawn("sft-experts") == 0
  assert sum(map(_drawn, arms.EXPERTS)) == budget


@pytest.mark.parametrize("name", arms.ARMS)
def test_each_arm_follows_on_its_own_seed(name):
  run = runs.of_arm(arms, name, "smoke")
  start = "" if name == "base" else "root/base/seed=3"
  assert run.start_workdir == start
  rl = run.section("rl")
  if name.startswith("opd"):
    found = [path.split("/")[1:] for path in rl.reference_workdirs]
    assert found == [[expert, "seed=3"] for expert in arms.EXPERTS]
  with pytest.raises(ValueError, match="no arm 'x'"):
    arms.get_config("x")


def _write(folder, arm, values, **more):
  """An arm of two seeds whose accuracies are [S][N] for every domain."""
  seeds = [
    {
      "steps": list(range(len(row))),
      "phases": more.get("phases", ["rl"] * len(row)),
      "accuracy": dict.fromkeys(arms.DOMAINS, row),
      "tokens": {"rl": 100, "keep": 10},
    }
    for row in values
  ]
  found = {"seeds": seeds, "seconds": 6.0, **more}
  (folder / f"{arm}.json").write_text(json.dumps(found), encoding="utf-8")


def test_numbers_of_the_page(tmp_path):
  _write(tmp_path, "mixed", [[0.1, 0.5], [0.1, 0.6]])
  _write(tmp_path, "opd-full", [[0.1, 0.7], [0.1, 0.81]])
  for expert in arms.EXPERTS:
    _write(tmp_path, expert, [[0.1, 0.9]] * 2)
  phases = [f"on_{domain}" for domain in arms.DOMAINS]
  _write(tmp_path, "sequential", [[0.4, 0.3, 0.2, 0.1]] * 2, phases=phases)
  results = Results(tmp_path)
  np.testing.assert_allclose(results.scores("mixed", "macro"), [0.5, 0.6])
  # Of the first three domains, after their own phases 0.4, 0.3 and 0.2.
  np.testing.assert_allclose(results.scores("sequential", "forgotten"), -0.2)
  assert results.scores("mixed", "cosine") is None
  assert results.scores("opd-token", "macro") is None
  assert results.tokens("opd-full") == 110 + 4 * 100
  found = {one.name: one for one in claims.conclude(results.scores)}
  assert found["X2"].checks[0].contrast.estimate == pytest.approx(0.205)
  assert found["X2"].verdict == "confirmed"
  assert found["X3"].verdict == "confirmed"
  assert found["X5"].verdict == "undecided"
  text = page.markdown(results)
  assert "| X2 | Distilled experts are better than mixed batches. |" in text
  assert "4 arms have not been run" not in text
  assert "3 arms have not been run: `base`, `opd-token`, `sft-experts`" in text
