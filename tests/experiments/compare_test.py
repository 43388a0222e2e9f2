"""The command that compares algorithms, as a user starts it."""

import json

import pytest

from tests.experiments import command


@pytest.mark.slow
def test_two_variants_are_one_program_and_the_second_start_trains_nothing(
  tmp_path,
):
  arguments = (
    command.TINY,
    "--algorithms=grpo,grpo:clip_high=0.4",
    "--seeds=2",
    f"--root={tmp_path}/root",
    "--names=grpo=GRPO",
    *("--x=tokens", "--format=svg", "--width=column"),
    *("--config.sft.steps=2", "--config.rl.steps=2"),
  )
  status, out, err = command.run("compare", *arguments)
  assert status == 0, err
  assert "0 of 4 cells done; no estimate before the first" in out
  assert "program 1 of 1, 4 runs: grpo on sort, grpo:clip_high=0.4 on" in out
  assert "4 of 4 cells done" in out
  tables = tmp_path / "root/tables"
  assert {path.name for path in tables.iterdir()} == {
    *("compare.md", "compare.tex", "runs.csv", "tasks.csv"),
    *("improvement.csv", "differences.csv", "curves.svg", "aggregates.svg"),
    *("profiles.svg", "improvement.svg"),
  }
  assert "| GRPO | 4 |" not in (tables / "compare.md").read_text("utf-8")
  runs = (tables / "runs.csv").read_text("utf-8").splitlines()
  assert len(runs) == 5
  [book] = json.loads((tmp_path / "root/compare.json").read_text("utf-8"))
  assert book["runs"] == 4
  status, out, err = command.run("compare", *arguments)
  assert status == 0, err
  assert "4 of 4 cells done" in out
  assert "program" not in out
