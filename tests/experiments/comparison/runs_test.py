"""Tests of the names, the curves and the gaps that are read of runs."""

import json

import pytest

from experiments.comparison import runs as runs_lib
from tests.experiments.comparison import examples

METRIC = "eval/accuracy"


def test_settings_that_differ_are_part_of_the_name(tmp_path):
  examples.make(tmp_path / "a", [0.1, 0.5])
  examples.make(tmp_path / "b", [0.1, 0.6], clip_high=0.4)
  examples.make(tmp_path / "c", [0.1, 0.7], "rloo", seed=3)
  examples.make(tmp_path / "d", [0.1, 0.7], "rloo", "copy", 3, ended=False)
  runs = runs_lib.read(runs_lib.find([tmp_path]), METRIC)
  assert [(x.algorithm, x.task, x.seed, x.value) for x in runs] == [
    ("grpo clip_high=0.2", "sort", 0, 0.5),
    ("grpo clip_high=0.4", "sort", 0, 0.6),
    ("rloo", "sort", 3, 0.7),
    ("rloo", "copy", 3, None),
  ]
  assert [x.base for x in runs] == ["grpo", "grpo", "rloo", "rloo"]
  assert runs[3].why == "no result yet"
  assert runs_lib.differing(runs) == {}


def test_runs_of_another_start_are_told_apart_unless_the_seed_says_why(
  tmp_path,
):
  for seed, start in enumerate(("a/seed=0", "a/seed=1", "b/seed=2")):
    folder = examples.make(tmp_path / f"{seed}", [0.1, 0.5], seed=seed)
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8")) | {"start_workdir": start}
    path.write_text(json.dumps(config), "utf-8")
  runs = runs_lib.read(runs_lib.find([tmp_path]), METRIC)
  starts = ["a", "a", "b"]
  assert [x.algorithm for x in runs] == [
    f'grpo start_workdir="{start}/seed={{seed}}"' for start in starts
  ]
  assert [*runs_lib.differing(runs)] == ["start_workdir"]


def test_a_comparison_leaves_its_own_names(tmp_path):
  folder = examples.make(tmp_path / "a", [0.1, 0.5])
  names = {"algorithm": "grpo:x=1", "task": "t", "runs": 2}
  (folder / runs_lib.CELL).write_text(json.dumps(names), "utf-8")
  [run] = runs_lib.read([folder], METRIC)
  assert (run.algorithm, run.task) == ("grpo:x=1", "t")


def test_settings_of_no_algorithm_that_differ_are_listed(tmp_path):
  one = examples.make(tmp_path / "a", [0.1, 0.5])
  other = examples.make(tmp_path / "b", [0.1, 0.5], "rloo")
  path = other / "config.json"
  config = json.loads(path.read_text("utf-8"))
  config["rl"]["steps"] = 7
  path.write_text(json.dumps(config), "utf-8")
  runs = runs_lib.read([one, other], METRIC)
  assert runs_lib.differing(runs) == {"rl.steps": ["200", "7"]}


def test_the_same_run_twice_is_refused(tmp_path):
  for name in ("a", "b"):
    examples.make(tmp_path / name, [0.1, 0.5])
  with pytest.raises(ValueError, match="both grpo on sort with seed 0"):
    runs_lib.read(runs_lib.find([tmp_path]), METRIC)


def test_a_folder_without_runs_and_an_unknown_metric_are_refused(tmp_path):
  exported = tmp_path / "exported" / "config.json"
  exported.parent.mkdir()
  exported.write_text('{"model_type": "qwen2"}', "utf-8")
  with pytest.raises(FileNotFoundError, match="has no run"):
    runs_lib.find([tmp_path])
  folder = examples.make(tmp_path / "a", [0.1, 0.5])
  assert runs_lib.find([tmp_path]) == [folder]
  with pytest.raises(KeyError, match="eval/accuracy"):
    runs_lib.read([folder], "acuracy")


def test_curves_over_steps_tokens_and_seconds(tmp_path):
  folder = examples.make(tmp_path / "a", [0.1, 0.5, 0.9])
  [run] = runs_lib.read([folder], METRIC)
  for x, places in (
    ("step", [10, 11, 12]),
    ("tokens", [0, 100, 200]),
    ("seconds", [0, 2, 4]),  # Of 3 s a step, 1 s has compiled.
  ):
    found, values = runs_lib.curve(run, METRIC, x)
    assert (found.tolist(), values.tolist()) == (places, [0.1, 0.5, 0.9])
  # Of a program of four runs, each has a quarter of the time.
  cell = {"algorithm": "grpo", "task": "sort", "runs": 4}
  (folder / runs_lib.CELL).write_text(json.dumps(cell), "utf-8")
  assert runs_lib.curve(run, METRIC, "seconds")[0].tolist() == [0, 0.5, 1]
  (folder / "timings.jsonl").unlink()
  with pytest.raises(ValueError, match="pass --x=step"):
    runs_lib.curve(run, METRIC, "seconds")
