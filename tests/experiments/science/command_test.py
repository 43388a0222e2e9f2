"""The command of the experiments: what it runs, and what it says."""

import pathlib
import types

import pytest

from experiments.science import arms, experiments
from tests.experiments import command


def test_words_are_an_action_and_a_name():
  module, action = experiments.parsed(["report", "entropy"])
  assert (experiments.name_of(module), action) == ("entropy", "report")
  for words in ([], ["run"], ["train", "entropy"], ["run", "a", "b"]):
    with pytest.raises(ValueError, match="needs run NAME or report NAME, "):
      experiments.parsed(words)
  with pytest.raises(ValueError, match="no experiment 'gspo'; choose one of b"):
    experiments.parsed(["run", "gspo"])


@pytest.mark.slow
def test_a_command_that_cannot_run_says_why(tmp_path):
  for words, message in {
    ("run", "flips", "--size=smoke"): "--size=smoke: flips has full.",
    ("run", "flips", "--arms=x"): "--arms=x is found in no arm; they are base,",
    ("run", "flips", "--root=gs://bucket"): "a local folder",
    ("report", "flips", "--out=none"): "--out=none: there is no such folder.",
  }.items():
    status, _, error = command.run("science", *words, cwd=tmp_path)
    assert status == 2
    assert message in " ".join(error.split())
  assert list(tmp_path.iterdir()) == []


def test_a_report_without_results_says_what_to_do(tmp_path):
  module = experiments.load("judges")
  with pytest.raises(
    FileNotFoundError, match=r"experiments\.science run judges`"
  ):
    experiments.write(module, tmp_path, tmp_path)
  assert list(tmp_path.iterdir()) == []


def test_arms_are_those_that_are_named_and_those_they_need():
  module = types.ModuleType("letters")
  module.ALL = arms.Arms("abc", {})
  assert experiments.arms_of(module) == "abc"
  assert experiments.needed(module, ["a"]) == ["a"]
  stages = experiments.load("stages")
  needed = ["base", "sft-512", "kept", "small-kept"]
  assert experiments.needed(stages, ["small-kept"]) == needed
  assert experiments.needed(stages, ["rl-0"]) == ["base", "rl-0"]
  everything = experiments.needed(stages, list(stages.CHOSEN_FROM))
  assert everything.index("kept") > everything.index("sft-512")
  assert len(everything) == len({*everything}) == 2 + len(stages.CHOSEN_FROM)


def test_every_experiment_is_in_the_table():
  names = {x.stem for x in experiments.HERE.glob("*.md")}
  assert names == {*experiments.NAMES}
  for name in experiments.NAMES:
    assert pathlib.Path(experiments.load(name).__file__).stem == name
