"""Each experiment: its arms, its rules, its page and its figure."""

from __future__ import annotations

import pathlib
import re
import shutil

import numpy as np
import pytest

from experiments.science import claims, experiments
from experiments.sweeps import cells as cells_lib
from grpo_jax.training import many
from grpo_jax.training.runtime import hyperparameters
from tests.experiments import command, runs

NAMES = experiments.NAMES
# Git holds the numbers of all others.
RECORDED = [name for name in NAMES if name != "objectives"]
# The league resamples for a minute.
SLOWLY = [
  pytest.param(x, marks=[pytest.mark.slow] * (x == "league")) for x in RECORDED
]


def results_of(name, folder=""):
  module = experiments.load(name)
  folder = folder or command.ROOT / experiments.folder(module)
  return module, module.Results(folder)


@pytest.mark.parametrize("name", NAMES)
def test_every_arm_is_a_run(name):
  module = experiments.load(name)
  with pytest.raises(ValueError, match="arms: no arm 'x'; choose one of "):
    module.get_config("x")
  for size in module.ALL.sizes:
    # The league has a test of its own.
    names = [*module.ALL.names][:: 8 if name == "league" else 1]
    for arm in names if size == "full" else names[::4]:
      run = runs.of_arm(module, arm, "" if size == "full" else size)
      starts = module.ALL.base and arm != module.ALL.base
      assert not starts or arm == "taught" or run.start_workdir
      assert not run.log.trackers


@pytest.mark.parametrize("name", NAMES)
def test_the_seeds_of_an_arm_are_one_program(name, tmp_path, monkeypatch):
  monkeypatch.chdir(command.ROOT)
  module = experiments.load(name)
  *_, arm = module.ALL.names
  file = f"experiments/science/{name}.py:{arm}"
  cells = cells_lib.Source(file, {}).cells(tmp_path)
  assert len({x.overrides["seed"] for x in cells}) > 4
  programs = {
    cells_lib.program(
      x.config, many.may_differ(x.config), hyperparameters.CONSTANT
    )
    for x in cells
  }
  assert len(programs) == 1


# Completions that each arm draws to learn from.
DRAWN = {
  "curricula": 25_600,
  "entropy": 20_480,
  "flips": 10_240,
  "ladder": 5_120,
  "planted_errors": 10_240,
  "rounding": 20_480,
  "staleness": 12_288,
}


@pytest.mark.parametrize("name", DRAWN)
def test_all_arms_draw_as_many_completions(name):
  module = experiments.load(name)
  for arm in module.ALL.names:
    run = runs.of_arm(module, arm)
    phases = [run.section(x) for x in run.phases]
    drawn = sum(
      x.steps * x.num_rows for x in phases if x.kind in ("rl", "value")
    )
    assert drawn == (0 if arm in ("base", "start", "taught") else DRAWN[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_has_a_rule_of_every_claim(name):
  module = experiments.load(name)
  rules = re.findall(r"(?m)^([A-Z]\d+) ", module.__doc__)
  assert [*module.CLAIMS] == rules
  decided = [getattr(module, x, "") for x in ("CONFIRMED", "REFUTED")]
  named = " ".join(decided).split()
  assert sorted({*named} & {*rules}) == sorted(named)


@pytest.mark.parametrize("name", SLOWLY)
def test_every_score_that_a_rule_reads_can_decide_it(name):
  module, results = results_of(name)
  nothing = claims.conclude(module.CLAIMS, lambda *_: None)
  assert {one.verdict for one in nothing} == {"undecided"}
  for claim, (_, *rules) in module.CLAIMS.items():
    for rule in rules:
      read = []

      def noted(*key, read=read):
        read.append(key)
        return results.scores(*key)

      rule(noted)
      keys = dict.fromkeys(read)

      def holds(moved, by, rule=rule):
        def of(*key):
          values = results.scores(*key)
          return values if values is None else values + by * (key == moved)

        return rule(of).holds

      deciding = [x for x in keys if holds(x, 1e5) is not holds(x, -1e5)]
      # The middle of a line has no part in its slope.
      is_missing = rule(results.scores).holds is None
      assert is_missing or len(deciding) >= min(len(keys), 2), claim


@pytest.mark.parametrize("name", SLOWLY)
def test_the_page_in_docs_is_that_of_the_recorded_numbers(name):
  module, results = results_of(name)
  page = command.ROOT / "docs" / f"{experiments.page_of(module)}.md"
  assert experiments.markdown(module, results) == page.read_text("utf-8")


def some_of(name, tmp_path):
  """The results of the last record and of one in the middle."""
  module = experiments.load(name)
  folder = command.ROOT / experiments.folder(module)
  names = [x for x in module.ALL.names if (folder / f"{x}.json").exists()]
  for arm in {"base", names[len(names) // 2], names[-1]}:
    if (folder / f"{arm}.json").exists():
      shutil.copy(folder / f"{arm}.json", tmp_path)
  return module, module.Results(tmp_path)


@pytest.mark.parametrize("name", RECORDED)
def test_a_page_is_about_what_has_ended(name, tmp_path):
  module, results = some_of(name, tmp_path)
  text = experiments.markdown(module, results)
  assert 0 < len(results.arms) < len(results.expected)
  assert "**The answer.** " not in text or "there is none" in text
  assert "undecided" in text
  if name not in ("stages", "league"):
    said = " ".join(text.split())
    ended, every = len(results.arms), len(results.expected)
    assert f"{ended} of {every} arms have been run" in said
    assert f"{every - ended} arms have not been run: `" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in RECORDED if x != "judges"])
def test_a_figure_is_about_what_has_ended(name, tmp_path):
  module, results = some_of(name, tmp_path)
  module.plot(tmp_path / "figure.png", results)
  assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_bands_of_a_page_are_over_as_many_seeds_as_it_says():
  for name in RECORDED:
    module, results = results_of(name)
    if name != "stages":
      assert results.num_seeds == module.ALL.sizes["full"].num_seeds


def test_verdicts_fall_with_what_they_are_about():
  """A few of the rules that are not a difference of two scores."""
  flips = experiments.load("flips")
  lines = np.array([[0.9, -1.0], [0.5, 0.25]])

  def of(arm, _):
    return lines[:, 0] + lines[:, 1] * int(arm.split("-")[1]) / 100

  np.testing.assert_allclose(flips.slope(of, "ppo"), [-1.0, 0.25], atol=1e-9)
  assert flips.slope(lambda *_: None, "ppo") is None
  vision = experiments.load("vision")
  ends = {"base": (0.4, 0.2), "grpo": (0.6, 0.3)}

  def over(arm, domains, what="accuracy"):
    del what
    return np.full(
      2, np.mean([ends[arm][x in vision.SHIFTED] for x in domains])
    )

  np.testing.assert_allclose(vision.carried(over, "grpo"), -0.1, atol=1e-9)
  assert pathlib.Path(vision.__file__).name == "vision.py"
