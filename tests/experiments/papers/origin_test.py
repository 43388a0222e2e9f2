"""Tests of stale records, from a history and files that were made up."""

import json
import re

import pytest

from experiments.papers import origin, registry
from experiments.science import arms as arms_lib
from experiments.sweeps import made

LOG = """@ccc 2026-03-03

experiments/e/page.py
grpo_jax/a.py
@bbb 2026-02-02

experiments/e/arms.py
grpo_jax/a.py
grpo_jax/b.py
@aaa 2026-01-01

benchmarks/e/one.json
experiments/e/arms.py
"""
ARMS = "A = 1\n"


@pytest.fixture
def root(tmp_path, monkeypatch):
  """An experiment in a folder of its own."""
  (tmp_path / "benchmarks/e").mkdir(parents=True)
  (tmp_path / "experiments/e").mkdir(parents=True)
  (tmp_path / "experiments/e/arms.py").write_text(ARMS)
  (tmp_path / "experiments/e/page.py").write_text("P = 1\n")
  (tmp_path / "docs").mkdir()
  (tmp_path / "docs/e.md").write_text("|---|\n| a |\n\n|--:|\n")
  monkeypatch.setattr(made, "ROOT", tmp_path)
  return tmp_path


EXPERIMENT = registry.Experiment(
  "e", ("experiments/e",), ("docs/e.md",), "", ("benchmarks/e/*.json",)
)


def record(root, **content):
  path = root / "benchmarks/e/one.json"
  path.write_text(json.dumps({"seconds": 90, **content}))
  [found] = origin.records(EXPERIMENT, origin.History(LOG, ()))
  return found


def test_an_old_record_is_dated_by_the_commit_of_its_file(root, monkeypatch):
  shown = {"aaa:experiments/e/arms.py": "A = 2\n"}
  monkeypatch.setattr(made, "git", lambda _, name: shown.get(name))
  found = record(root)
  assert (found.commit, found.date, found.minutes) == ("aaa", "2026-01-01", 1.5)
  assert found.config == origin.UNKNOWN
  assert found.stale == ("code: arms.py",)
  assert found.library == 2  # Commits, and not files.


def test_comments_and_docstrings_make_nothing_stale(root, monkeypatch):
  old = '"""Another text."""\nA = 1  # One.\n'
  monkeypatch.setattr(made, "git", lambda *_: old)
  assert record(root).stale == ()


def test_a_new_record_is_stale_where_code_or_config_differ(root):
  about = {
    **{"config": "c", "commit": "bbb", "dirty": True, "date": "2026-02-02"},
    "code": made.code_hash(root / "experiments/e"),
  }
  found = record(root, made=about)
  assert (found.stale, found.commit, found.library) == ((), "bbb+", 1)
  (root / "experiments/e/page.py").write_text("P = 2\n")
  assert record(root, made=about).stale == ()  # It reads, and makes nothing.
  (root / "experiments/e/arms.py").write_text("A = 2\n")
  [reason] = record(root, made=about).stale
  assert reason.startswith("code")


def test_a_page_may_be_older_than_what_it_is_made_of(root):
  record(root)
  history = origin.History(LOG + "docs/e.md\n", ())
  [page] = origin.outputs(EXPERIMENT, history)
  assert (page.kind, page.tables, page.commit) == ("page", 2, "aaa")
  assert page.behind == ("experiments/e/page.py",)


def test_a_config_hash_is_of_what_differs_from_the_defaults():
  file = "experiments/science/flips.py"
  one, other = (made.config_hash(f"{file}:grpo-{x}") for x in (0, 40))
  assert one != other
  assert one == made.config_hash(f"{file}:grpo-0")
  about = made.by(f"{file}:grpo-40")
  assert about["config"] == other
  assert set(about) == {*("config", "code", "commit", "dirty", "date", "cores")}
  assert arms_lib.made is made  # It is written beside the numbers.


def test_statements_are_what_runs():
  source = '"""Doc."""\ndef f():\n  """Doc."""\n  return 1  # One.\n'
  assert made.statements(source) == made.statements("def f(): return 1")
  assert made.statements(source) != made.statements("def f(): return 2")
  assert made.statements("not Python :") == "not Python :"


def test_a_file_of_science_makes_numbers_by_what_its_makers_need():
  source = "A = 1\nB = 2\ndef of_run(x): return x + A\ndef plot(x): return B\n"
  path = made.ROOT / "experiments/science/e.py"
  found = made.code(path, source)
  assert found == made.code(path, source.replace("B = 2", "B = 3"))
  assert found != made.code(path, source.replace("A = 1", "A = 3"))
  assert made.code(path, "C = 1") == "C = 1"  # A program that it needs.
  assert made.code(path.parent.parent / "e/e.py", source) == (
    made.statements(source)
  )
  names = [x.name for x in made.code_files(path.parent / "league.py")]
  assert names == ["league.py", "league_problems.py"]


def test_every_output_and_record_of_the_table_exists():
  for experiment in registry.EXPERIMENTS.values():
    for pattern in experiment.records:
      assert list(made.ROOT.glob(pattern)), (experiment.name, pattern)
    for name in (*experiment.outputs, *experiment.code):
      assert (made.ROOT / name).exists(), (experiment.name, name)
    assert (experiment.write is None) == bool(experiment.why)


def test_an_arm_is_run_anew_with_its_warm_start_beside_the_old_numbers():
  found = registry.command(registry.EXPERIMENTS["flips"], "grpo-40")
  start = "python -m experiments.science run flips --root=runs/again/"
  assert found.startswith(start)
  assert "--results=runs/again/flips/results" in found
  pattern = found.split("--arms=")[1].strip("'")
  arms = [x for x in ("base", "grpo-40", "grpo-4") if re.search(pattern, x)]
  assert arms == ["base", "grpo-40"]
  critics = registry.EXPERIMENTS["critics_smoke"]
  assert registry.command(critics) == critics.run
