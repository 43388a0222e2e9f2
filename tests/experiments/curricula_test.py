"""The experiment on the choice of prompts: its arms, rules and page."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.curricula import arms, claims, figure, page, results
from tests.experiments import runs


@pytest.mark.parametrize("name", arms.ARMS)
def test_arms_generate_as_many_completions_from_one_pool(name):
  run = runs.of_arm(arms, name)
  assert run.start_workdir == ("" if name == arms.BASE else "root/base/seed=3")
  section = run.section("rl")
  assert section.num_rows == 256
  assert section.steps == 100
  assert section.schedule.pool == 1024
  wanted = "uniform" if name == arms.BASE else name
  assert section.schedule.name == wanted
  assert run.algorithm[0] == ("spo" if name == "spo" else "grpo")
  if name == "ads":
    assert section.schedule.clusters == "root/base/seed=3/clusters.npz"
    assert arms.embedding(arms.SIZES["full"]) == [
      "--num_prompts=1024",
      "--num_clusters=32",
      "--least=8",
    ]


# Area, accuracy at four digits at the end, and share of live groups.
NUMBERS = {
  "uniform": (0.5, 0.4, 0.3),
  "ads": (0.8, 0.5, 0.5),
  "frontier": (0.7, 0.5, 0.6),
  "easy_to_hard": (0.6, 0.2, 0.4),
  "target": (0.6, 0.4, 0.5),
  "spo": (0.6, 0.4, None),
}


def verdicts(numbers):
  spread = np.linspace(-0.01, 0.01, arms.NUM_SEEDS)

  def of(name, what):
    if name not in numbers:
      return None
    area, hardest, live = numbers[name]
    kind, _, part = what.partition("/")
    value = {"area": area, "live": live, "start": 0.1, "end": area}[kind]
    return (hardest if part == "digits_4" else value) + spread

  return {one.name: one.verdict for one in claims.conclude(of)}


@pytest.mark.parametrize(
  ("changes", "lost"),
  [
    ({"uniform": (0.1, 0.4, 0.3)}, {"B1"}),
    ({"ads": (0.6, 0.5, 0.2)}, {"C6", "G1"}),
    ({"ads": (0.4, 0.5, 0.5)}, {"C1", "C6"}),
    ({"frontier": (0.4, 0.3, 0.2)}, {"C2", "G2", "H2"}),
    ({"easy_to_hard": (0.4, 0.4, 0.3)}, {"C3", "H1"}),
    ({"target": (0.4, 0.4, 0.2)}, {"C4", "G3"}),
    ({"spo": (0.5, 0.4, None)}, {"C5"}),
  ],
)
def test_rules_decide(changes, lost):
  assert set(verdicts(NUMBERS).values()) == {"confirmed"}
  found = verdicts(NUMBERS | changes)
  assert {name for name in found if found[name] != "confirmed"} == lost
  assert set(verdicts({}).values()) == {"undecided"}


def log_of_a_run(ends):
  """Accuracies at the start and two evaluations, with two steps before each."""

  def measured(accuracy):
    parts = {f"eval/domain/{x}/accuracy": accuracy / 2 for x in arms.DOMAINS}
    return {"eval/accuracy": accuracy} | parts

  lines = [measured(0.1)]
  for end in ends:
    lines += [{"dead_groups": 0.25}, {"dead_groups": 0.75} | measured(end)]
  return lines


def test_page_and_figure_are_made_of_what_has_ended(tmp_path):
  for name, ends in {"uniform": (0.2, 0.5), "spo": (0.4, 0.7)}.items():
    logs = [log_of_a_run(np.add(ends, x)) for x in (-0.02, 0.02)]
    found = {"seeds": [results.of_run(x) for x in logs], "seconds": 60}
    (tmp_path / f"{name}.json").write_text(json.dumps(found))
  made = results.Results(tmp_path)
  assert made.completions("spo").tolist() == [0, 5120, 10240]
  # Trapezoids: (0.15 + 0.35) / 2, with half of the shift at the start.
  np.testing.assert_allclose(
    made.scores("uniform", "area/all"), [0.25 - 0.015, 0.25 + 0.015]
  )
  np.testing.assert_allclose(made.scores("uniform", "live"), [0.5, 0.5])
  assert made.scores("spo", "live") is None
  text = page.markdown(made)
  assert (
    "2 of 6 arms have been run, with 5 seeds for each arm, in 2 minutes"
    in " ".join(text.split())
  )
  assert "| `uniform` | 0.250 [" in text
  assert "4 arms have not been run: `ads`," in text
  assert "**B1: confirmed.**" in text
  assert "**C6: undecided.**" in text
  figure.plot(tmp_path / "curricula.png", made)
  assert (tmp_path / "curricula.png").stat().st_size > 10_000
