"""Tests of the verdicts of `scripts/mutate.py`; its list fits the tree."""

import json
import pathlib
import re
import shlex
import subprocess

import pytest

from scripts import mutate
from tests.mutations import MUTATIONS, Mutation

_ROOT = pathlib.Path(__file__).resolve().parent.parent


def test_every_entry_fits_its_file_and_names_a_test():
  """A change of the code may have to change an entry with it."""
  for bug, path, old, new, tests in MUTATIONS:
    source = (_ROOT / path).read_text(encoding="utf-8")
    mutate.planted(source, old, new)
    file, *options = shlex.split(tests)
    text = (_ROOT / file).read_text(encoding="utf-8")
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert given.keys() <= {"-k"}, tests
    for name in re.split(" and | or ", given.get("-k", "")):
      assert name.partition("[")[0] in text, (tests, name)
    assert bug.endswith("."), bug
  assert len(set(MUTATIONS)) == len(MUTATIONS)


def test_what_occurs_twice_or_stays_is_refused():
  assert mutate.planted("a b c", "b", "d") == "a d c"
  for source, new in (("b b", "d"), ("a", "d"), ("a b", "b")):
    with pytest.raises(ValueError, match=r"tests/mutations\.txt"):
      mutate.planted(source, "b", new)


@pytest.fixture
def tree(tmp_path, monkeypatch):
  """A repository of one module and its tests."""
  monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # To start soon.
  (tmp_path / "double.py").write_text("def double(x):\n  return 2 * x\n")
  (tmp_path / "double_test.py").write_text(
    "import double\n\n\n"
    "def test_one():\n  assert double.double(1) == 2\n\n\n"
    "def test_nothing():\n  assert double.double(0) == 0\n"
  )
  subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
  return tmp_path


def _bug(old, new, name):
  return Mutation("A bug.", "double.py", old, new, f"double_test.py -k {name}")


BUGS = {
  "killed": _bug("2 * x", "3 * x", "test_one"),
  "survived": _bug("2 * x", "3 * x", "test_nothing"),
  "broken": _bug("def double", "import nowhere\ndef double", "test_one"),
}


@pytest.mark.slow
def test_bugs_are_killed_or_survive_or_are_broken(tree, tmp_path, capsys):
  out = tmp_path / "out.json"
  killed, survived, broken = BUGS.values()
  assert mutate.mutate(tree, [killed, survived, broken], out, 0.5) == 1
  said = capsys.readouterr().out
  assert "0 of 3 are known." in said
  assert "1 killed, 1 survived, 1 broken" in said
  assert "33.3%, needed 50%" in said
  found = json.loads(out.read_text())
  assert [x["status"] for x in found.values()] == list(BUGS)
  assert "test_one" in next(iter(found.values()))["said"]
  assert "2 * x" in (tree / "double.py").read_text()  # The copy is changed.
  strong = _bug("2 * x", "3 * x", "test")
  assert mutate.mutate(tree, [killed, strong], out, 1.0) == 0
  assert "1 of 2 are known." in capsys.readouterr().out


def test_unchanged_tests_survive(tree, capsys):
  assert mutate.mutate(tree, [BUGS["broken"]], None, 1.0, unchanged=True) == 0
  assert "0 killed, 1 survived, 0 broken" in capsys.readouterr().out
