"""The experiment on stages: its arms, its rules and its page."""

import functools
import json

import numpy as np
import pytest

from experiments.stages import arms, claims, page, results
from experiments.sweeps import arms as sweeps_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.training.evaluation import generation
from grpo_jax.training.runtime import log

SEEDS = np.arange(5) / 1000


@pytest.mark.parametrize("name", [arms.BASE, *arms.ARMS])
def test_every_arm_is_a_config(name):
  settings = config_lib.resolve(arms.get_config(name))
  assert settings.eval.temperature == 1.0
  assert settings.section("rl").steps == (100 if "-" in name[2:4] else 0)
  if name.startswith("sft-"):
    count = settings.section("sft").num_records
    assert name == f"sft-{count}"
    assert settings.data.task_options["teacher_error"] == 0.0


def _scores(changed=None):
  """Numbers with which all claims hold, but for one."""
  known = {
    ("rl-0", "before"): 0.2,
    ("rl-0", "after"): 0.7,
    ("sft-64", "before"): 0.4,
    ("sft-64", "after"): 0.8,
    ("sft-512", "before"): 0.5,
    ("sft-512", "after"): 0.9,
    ("sft-4096", "before"): 0.6,
    ("sft-4096", "after"): 0.95,
    ("small-labels", "after"): 0.1,
    ("small-kept", "after"): 0.3,
  } | (changed or {})

  def of(arm, when):
    value = known.get((arm, when))
    return None if value is None else value + SEEDS * (1 + value)

  return of


@pytest.mark.parametrize(
  ("changed", "refuted"),
  [
    ({}, []),
    ({("rl-0", "after"): 0.2}, ["S2", "S5"]),
    ({("sft-64", "before"): 0.5}, ["S1"]),
    ({("sft-4096", "after"): 0.6}, ["S3"]),
    ({("sft-512", "after"): 0.7}, ["S4"]),
    ({("small-kept", "after"): 0.1}, ["S6"]),
  ],
)
def test_each_claim_can_be_refuted(changed, refuted):
  found = claims.conclude(_scores(changed))
  verdicts = {one.name: one.verdict for one in found}
  assert [k for k, v in verdicts.items() if v != "confirmed"] == refuted
  missing = claims.conclude(lambda *_: None)
  assert {one.verdict for one in missing} == {"undecided"}


def _write_arm(root, name, accuracies):
  """An arm of two seeds, each with evaluations and steps between them."""
  folder = root / name
  cells = {}
  for seed in range(2):
    cell = f"seed-{seed}"
    cells[cell] = {"seed": seed}
    (folder / cell).mkdir(parents=True)
    lines = []
    for step, x in enumerate(accuracies):
      tokens = {"tokens/generated": 1e5} if step else {}
      lines.append({"step": step, **tokens, "eval/accuracy": x + seed / 100})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / cell / log.METRICS).write_text(text)
    (folder / cell / log.RESULT).write_text("{}")
  manifest = {"config": "", "cells": cells}
  (folder / "sweep.json").write_text(json.dumps(manifest))
  (folder / "seconds.json").write_text("[60]")


def test_the_page_says_what_has_ended(tmp_path, monkeypatch):
  monkeypatch.setattr(
    sweeps_lib.cells_lib,
    "read_manifest",
    lambda folder: json.loads((folder / "sweep.json").read_text())["cells"],
  )
  _write_arm(tmp_path, "rl-0", (0.2, 0.5, 0.9))
  _write_arm(tmp_path, "sft-512", (0.45, 0.8))
  position = generation.position_of(results.kept(tmp_path))
  position.parent.mkdir()
  assert results.num_drawn(tmp_path) is None
  for prompts, expected in ((7, None), (results.NUM_DRAWN, 123)):
    done = {"prompts": prompts, "tokens": 123}
    position.write_text(json.dumps({"done": done}))
    assert results.num_drawn(tmp_path) == expected
  collected = functools.partial(sweeps_lib.collected, results.of_run)
  for name, numbers in {
    "base": {"accuracy": 0.27},
    "kept": {"tokens": 123},
    **{x: collected(tmp_path / x) for x in ("rl-0", "sft-512")},
  }.items():
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(numbers | {"seconds": 60}))
  found = results.Results(tmp_path)
  assert (found.base_accuracy, found.num_drawn) == (0.27, 123)
  assert found.seconds() == 240
  assert found.arms == ["rl-0", "sft-512"]
  tokens, accuracy = found.curve("rl-0")
  np.testing.assert_allclose(tokens, [[0, 1e5, 2e5]] * 2)
  np.testing.assert_allclose(accuracy[1], [0.21, 0.51, 0.91])
  text = page.markdown(found)
  assert "| 512: 0.455 | 0.10 million tokens |" in text
  assert text.count("**undecided**") == 3
  assert "S6  A smaller model" in text
  page.plot(tmp_path / "figure.png", found)
  assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_needed_comes_first():
  needed = ["base", "sft-512", "kept", "small-kept"]
  assert arms.with_needed(["small-kept"]) == needed
  assert arms.with_needed(["rl-0"]) == ["base", "rl-0"]
  everything = arms.with_needed([*arms.ARMS])
  assert everything.index("kept") > everything.index("sft-512")
  assert len(everything) == len({*everything}) == 2 + len(arms.ARMS)
