"""False alarms are counted, and the page of them has all rules."""

import json
import pathlib
import re

import pytest

from experiments.health import false_alarms
from grpo_jax.configs.sweeps import healthy
from grpo_jax.training.rules import rules

_PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs/false_alarms.md"


def write_run(workdir, accuracies):
  """A run of one phase with these accuracies, which may have halted."""
  config = healthy.get_config()
  config.phases = ("rl",)
  config.rl.steps = len(accuracies)
  config.health.halt = ("H12",)
  lines = [{"step": 0, "phase": "rl", "eval/accuracy": 0.5}] + [
    {"step": i, "phase": "rl", "accuracy": x, "alarm/cut_off": 1.0}
    for i, x in enumerate(accuracies, start=1)
  ]
  workdir.mkdir(parents=True)
  (workdir / "config.json").write_text(config.to_json())
  (workdir / "metrics.jsonl").write_text(
    "".join(json.dumps(line) + "\n" for line in lines)
  )


def test_runs_of_folders_are_asked_anew(tmp_path, capsys):
  write_run(tmp_path / "mine/a", [0.5] * 9)
  write_run(tmp_path / "mine/b", [0.5, *[1.0] * 8])
  column = false_alarms.of_folder(tmp_path / "mine")
  assert (column.name, column.runs) == ("mine", 2)
  assert column.counts == {"perfect_score": 1}
  said = capsys.readouterr().out
  assert "a: 0 alarm(s)" in said
  assert "b: 1 alarm(s)\n  rl, step 4: H12 perfect_score" in said
  # A run is a folder of runs, too.
  assert false_alarms.of_folder(tmp_path / "mine/b").runs == 1


def test_a_folder_without_runs_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"has no metrics\.jsonl"):
    false_alarms.runs_in(tmp_path)


def test_shares_have_intervals():
  column = false_alarms.Column("a", 200, {"cut_off": 3})
  assert column.cell(rules.BY_NAME["cut_off"]) == "1.5 (4.3)"
  assert column.cell(rules.BY_NAME["clipped"]) == "0.0 (1.9)"


def test_a_rule_that_is_often_wrong_is_an_error(tmp_path, monkeypatch):
  arguments = ["--runs=2", "--steps=30", f"--out={tmp_path / 'page.md'}"]
  assert false_alarms.main(arguments) == 0
  page = (tmp_path / "page.md").read_text()
  assert "--runs=2 " in page
  assert "30 steps a run" in page
  monkeypatch.setattr(
    false_alarms.series, "KINDS", {"a": lambda *_: [{"truncated": 0.9}] * 30}
  )
  assert false_alarms.main(arguments) == 1
  assert (
    "| H04 | `cut_off` | 100.0 (100.0) |" in (tmp_path / "page.md").read_text()
  )


def test_the_page_has_all_rules_and_none_is_often_wrong():
  page = _PAGE.read_text(encoding="utf-8")
  rows = re.findall(r"^\| (H\d\d) \| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
  assert [row[:2] for row in rows] == [(x.number, x.name) for x in rules.RULES]
  (names,) = re.findall(r"^\| rule \| alarm \| (.*) \|$", page, re.MULTILINE)
  kinds = [name.split(",")[0] for name in names.split(" | ")]
  made_up = len(false_alarms.series.KINDS)
  assert kinds == [*false_alarms.series.KINDS, "still", "learns"]
  for number, _, cells in rows:
    shares = [cell.split()[0] for cell in cells.split(" | ")]
    assert len(shares) == len(kinds)
    shares = [*map(float, shares[:made_up])]  # Of real runs also "–".
    assert max(shares) <= 100 * false_alarms.MOST, number
