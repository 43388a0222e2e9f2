"""The commands of an experiment: its flags, which arms run, what is written."""

import pathlib
import types

import pytest
from absl import flags

from experiments.sweeps import arms, commands


def training(sizes, *arguments):
  values = flags.FlagValues()
  found = commands.Training("letters", sizes, values)
  values(["run", *arguments])
  return found


def test_arms_that_are_named_run_with_both_folders(tmp_path, capsys):
  out = tmp_path / "made" / "here"
  found = training((), "--root=r", f"--results={out}", "--arms=[ab]")
  seen = []

  def run(*given):
    seen.append(given)
    return int(given[-1] == "a")

  assert found.go_through("abc", run) == 1
  assert seen == [(pathlib.Path("r"), out, name) for name in "ab"]
  assert out.is_dir()
  assert capsys.readouterr().out == "Failed: a\n"
  assert found.go_through("abc", lambda *_: arms.STOPPED) == arms.STOPPED


def test_nothing_is_made_for_arms_or_roots_that_there_are_not(tmp_path):
  for argument, message in {
    "--arms=x": "found in no arm",
    "--root=gs://bucket": "a local folder",
  }.items():
    found = training((), f"--results={tmp_path}/out", argument)
    with pytest.raises(ValueError, match=message):
      found.go_through("abc", lambda *_: 0)
  assert list(tmp_path.iterdir()) == []


def test_a_config_has_the_size_where_there_are_several():
  file = "experiments/letters/config.py"
  sizes = ("full", "smoke")
  assert training(sizes).config("a") == f"{file}:a@full"
  small = training(sizes, "--size=smoke")
  assert (small.size, small.config("a")) == ("smoke", f"{file}:a@smoke")
  alone = training(())
  assert (alone.size, alone.config("a")) == ("", f"{file}:a")
  with pytest.raises(flags.Error, match="size"):
    training((), "--size=full")


def test_flags_are_those_of_the_module_that_asks():
  for kind, names in {
    commands.Training: {"root", "results", "arms"},
    commands.Report: {"results", "out"},
  }.items():
    values = flags.FlagValues()
    kind("letters", flag_values=values)
    here = values.get_key_flags_for_module(__name__)
    assert {flag.name for flag in here} == names


def report(*arguments):
  values = flags.FlagValues()
  found = commands.Report("letters", flag_values=values)
  values(["report", *arguments])
  return found


def read(folder):
  return types.SimpleNamespace(arms=[x.stem for x in folder.glob("*.json")])


def markdown(results):
  return f"{', '.join(results.arms)}\n"


def plot(path, results):
  path.write_bytes(results.arms[0].encode())


def test_page_and_figure_are_written(tmp_path, capsys):
  (tmp_path / "a.json").write_text("{}")
  found = report(f"--results={tmp_path}", f"--out={tmp_path}")
  page, figure = tmp_path / "letters.md", tmp_path / "letters.png"
  assert found.write(read, markdown) == 0
  assert capsys.readouterr().out == f"{page}\n"
  assert not figure.exists()
  assert found.write(read, markdown, plot) == 0
  assert capsys.readouterr().out == f"{page}, {figure}\n"
  assert page.read_text() == "a\n"
  assert figure.read_bytes() == b"a"


def test_a_report_without_results_or_a_folder_says_what_to_do(tmp_path):
  found = report(f"--results={tmp_path}", f"--out={tmp_path}")
  with pytest.raises(FileNotFoundError, match=r"experiments\.letters\.run`"):
    found.write(read, markdown)
  found = report(f"--results={tmp_path}", f"--out={tmp_path}/none")
  with pytest.raises(FileNotFoundError, match=r"--out=.*no such folder"):
    found.write(read, markdown)
  assert list(tmp_path.iterdir()) == []
