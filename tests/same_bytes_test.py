"""`scripts/same_bytes.py` tells what differs; its runs are made by hand."""

import copy
import json

import pytest

from scripts import same_bytes

_CASE = {
  "metrics": ['{"loss": 1.0, "phase": "rl", "step": 1}'],
  "samples": ['{"completion": "a", "step": 1}'],
  "arrays": [
    ["params/a", [2], "float32", "00"],
    ["params/b", [2], "float32", "11"],
  ],
}


def _compare(tmp_path, change, only="") -> int:
  """Exit status for a recording and a changed copy of it."""
  before = {"one": _CASE, "two": _CASE}
  after = {name: copy.deepcopy(case) for name, case in before.items()}
  change(after)
  paths = tmp_path / "before.json", tmp_path / "after.json"
  for path, cases in zip(paths, (before, after), strict=True):
    path.write_text(json.dumps(cases))
  return same_bytes.compare(*paths, only)


def _rename(cases):
  """Arrays under other paths, and in another order."""
  cases["one"]["arrays"] = [
    ["policy/a", [2], "float32", "11"],
    ["policy/b", [2], "float32", "00"],
  ]


@pytest.mark.parametrize("change", [lambda cases: None, _rename])
def test_equal_recordings_are_the_same(tmp_path, capsys, change):
  assert _compare(tmp_path, change) == 0
  assert "2 of 2 cases are the same." in capsys.readouterr().out


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (
      lambda one: one["metrics"].__setitem__(
        0, '{"loss": 1.5, "phase": "rl", "step": 1}'
      ),
      "metrics: line 1 (step 1, phase rl): loss: 1.0 -> 1.5",
    ),
    (
      lambda one: one["metrics"].append('{"phase": "rl", "step": 2}'),
      "metrics: 1 lines -> 2 lines",
    ),
    (
      lambda one: one["samples"].__setitem__(
        0, '{"completion": "b", "step": 1}'
      ),
      "completion: 'a' -> 'b'",
    ),
    (
      lambda one: one["arrays"][1].__setitem__(3, "00"),
      "only before: params/b float32[2]",
    ),
    (
      lambda one: one["arrays"].append(["c", [], "int32", "22"]),
      "only after: c int32[]",
    ),
  ],
)
def test_a_difference_is_named(tmp_path, capsys, change, message):
  assert _compare(tmp_path, lambda cases: change(cases["one"])) == 1
  out = capsys.readouterr().out
  assert message in out
  assert "1 of 2 cases are the same." in out


def test_a_missing_case_is_a_difference(tmp_path, capsys):
  def remove(cases):
    del cases["two"]

  assert _compare(tmp_path, remove) == 1
  assert "missing in" in capsys.readouterr().out
  assert _compare(tmp_path, remove, only="one") == 0


def test_old_names_replace_whole_parts_of_a_name(monkeypatch):
  monkeypatch.setattr(same_bytes, "RENAMED", {"rl.old": "train.new"})
  assert same_bytes._old_name("train.new.depth") == "rl.old.depth"
  assert same_bytes._old_name("train.new") == "rl.old"
  assert same_bytes._old_name("train.newer") == "train.newer"
