"""Tests of a run's log, read as arrays."""

import json
import sys

import numpy as np
import pytest

from grpo_jax.training.monitor import plots

LINES = [
  {"step": 1, "phase": "sft", "loss": 3.0},
  {"step": 1, "phase": "rl", "eval/accuracy": 0.25},
  {"step": 2, "phase": "rl", "loss": 2.0, "reward/mean": None},
  {"step": 3, "phase": "rl", "loss": 1.0, "eval/accuracy": 0.5},
]


@pytest.fixture
def workdir(tmp_path):
  """A run that is being written."""
  text = "".join(json.dumps(line) + "\n" for line in LINES)
  (tmp_path / "metrics.jsonl").write_text(text + '{"step": 4, "pha')
  timings = [
    {"step": step, "phase": "rl", "time/step_s": step / 2} for step in (3, 2)
  ]
  text = "".join(json.dumps(line) + "\n" for line in timings)
  (tmp_path / "timings.jsonl").write_text(text)
  return tmp_path


def test_a_metric_is_an_array_with_a_value_for_each_line(workdir):
  found = plots.read(workdir)
  np.testing.assert_array_equal(found.steps, [1, 1, 2, 3])
  assert found.phases.tolist() == ["sft", "rl", "rl", "rl"]
  nan = np.nan
  for name, values in {
    "loss": [3.0, nan, 2.0, 1.0],
    "eval/accuracy": [nan, 0.25, nan, 0.5],
    "reward/mean": [nan, nan, nan, nan],
    "time/step_s": [nan, nan, 1.0, 1.5],
  }.items():
    np.testing.assert_array_equal(found[name], values)
    assert found[name].dtype == np.float64
  assert set(found) == {"loss", "eval/accuracy", "reward/mean", "time/step_s"}
  steps, values = found.points("eval/accuracy")
  assert (steps.tolist(), values.tolist()) == ([1, 3], [0.25, 0.5])
  assert found.points("reward/mean")[0].size == 0


def test_another_metric_is_refused_with_the_nearest_one(workdir):
  with pytest.raises(KeyError, match=r"'reward/man' \(did you mean 'rew"):
    plots.read(workdir)["reward/man"]
  assert "reward/man" not in plots.read(workdir)


def test_a_run_that_has_logged_nothing_has_an_empty_history(tmp_path):
  found = plots.read(tmp_path)
  assert (len(found), found.steps.size) == (0, 0)


def test_a_table_of_pandas_has_all_columns(workdir):
  table = plots.read(workdir).to_pandas()
  assert table[table.phase == "rl"]["loss"].dropna().tolist() == [2.0, 1.0]
  assert {*table.columns} == {*plots.read(workdir), "step", "phase"}


def test_without_pandas_it_says_what_to_install(workdir, monkeypatch):
  monkeypatch.setitem(sys.modules, "pandas", None)
  with pytest.raises(ImportError, match="pip install pandas"):
    plots.read(workdir).to_pandas()
