"""Tests of the cells of a grid, and of the number of their programs."""

import pytest

from experiments.comparison import grid
from experiments.sweeps import together

FILE = "configs/quickstart.py"


def cells(root, algorithms, tasks=(), seeds=2, **common):
  return grid.cells(
    FILE,
    common,
    [grid.parse(x) for x in algorithms],
    [grid.parse(x) for x in tasks],
    range(seeds),
    root,
  )


def test_names_have_settings_behind_them():
  assert grid.parse("grpo") == grid.Variant("grpo", "grpo", {})
  found = grid.parse("my.pkg:FOO:clip_high=0.4:kl_kind=k1:overlong=true")
  assert found.name == "my.pkg:FOO"
  assert found.settings == {
    **{"clip_high": 0.4, "kl_kind": "k1", "overlong": True}
  }
  with pytest.raises(ValueError, match="NAME:SETTING=VALUE"):
    grid.parse("clip_high=0.4")


def test_variants_and_seeds_are_one_program_and_tasks_are_not(tmp_path):
  found = cells(
    tmp_path, ["grpo", "grpo:clip_high=0.4"], ["sort:max_len=5", "copy"]
  )
  assert len(found) == 8
  programs = together.programs(found)
  assert [len(group) for group in programs] == [4, 4]
  first = found[0].config
  # The task of the file keeps its options; another one has its own.
  assert first.data.task_options.max_len == 5
  assert first.data.task_options.teacher_error == 0.75
  assert "teacher_error" not in found[2].config.data.task_options
  folders = {one.workdir.relative_to(tmp_path).parts for one in found}
  assert ("grpo", "copy", "seed=1") in folders
  assert len(folders) == 8


def test_mistakes_are_found_before_anything_runs(tmp_path):
  with pytest.raises(KeyError, match="grpo"):
    cells(tmp_path, ["gpro"])
  with pytest.raises(ValueError, match="asked for twice"):
    cells(tmp_path, ["grpo", "grpo"])
  with pytest.raises(ValueError, match="leave one of the two out"):
    cells(tmp_path, ["grpo:clip_high=0.4"], **{"algorithm.clip_high": 0.3})
  with pytest.raises(ValueError, match="clip_hihg"):
    cells(tmp_path, ["grpo:clip_hihg=0.4"])


def test_the_rest_is_estimated_from_what_has_ended(tmp_path):
  progress = grid.Progress(tmp_path, 10, 8)
  assert "2 of 10 cells done; no estimate before" in progress.text()
  progress.ended(2, 60.0)
  assert progress.text() == "4 of 10 cells done; about 3 min left"
  failing = grid.Progress(tmp_path, 10, 3)
  failing.ended(1, 0.5, failed=1)
  assert failing.text() == "7 of 10 cells done, 1 failed; about 60 s left"
  # Another start knows it too.
  again = grid.Progress(tmp_path, 10, 2)
  assert again.text() == "8 of 10 cells done; about 60 s left"
  again.ended(2, 30.0)
  assert again.text() == "10 of 10 cells done"
  assert [grid.duration(x) for x in (7200, 5)] == ["2.0 h", "5 s"]
