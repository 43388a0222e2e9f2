"""Tables and figures of runs whose numbers were chosen."""

import csv
import io

import pytest

from experiments.comparison import figure, options, output, scores, tables
from experiments.comparison import runs as runs_lib
from experiments.sweeps import tables as forms
from grpo_jax.training.monitor import style
from tests.experiments.comparison import examples

METRIC = "eval/accuracy"
NAMES = {"grpo": "GRPO", METRIC: "right answers", "rloo": "R&D"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Two algorithms on two tasks, three seeds, of which one has not ended."""
  root = tmp_path_factory.mktemp("runs")
  for algorithm, gain in (("grpo", 0.0), ("rloo", 0.2)):
    for task, level in (("copy", 0.4), ("sort", 0.5)):
      for seed in range(3):
        end = level + gain * (1 + 0.1 * seed) + 0.01 * seed
        ended = (algorithm, task, seed) != ("rloo", "sort", 2)
        folder = root / f"{algorithm}-{task}-{seed}"
        examples.make(folder, [0.1, end], algorithm, task, seed, ended)
  return runs_lib.read(runs_lib.find([root]), METRIC)


@pytest.fixture(scope="module")
def found(runs):
  return scores.Comparison(runs, METRIC, "grpo", NAMES)


def test_scores_of_tasks_and_of_all_together(found):
  assert found.seeds("rloo", "sort") == pytest.approx({0: 0.7, 1: 0.73})
  # Three seeds: none is left out at either end, so it is the mean.
  assert found.of_task("grpo", "copy").value == pytest.approx(0.41)
  # Of `rloo` two seeds have both tasks: 0.6, 0.63, 0.7, 0.73 → the middle two.
  assert found.aggregate("rloo", "IQM").value == pytest.approx(0.665)
  assert found.improvement("rloo").value == 1.0


def test_one_task_has_no_table_of_all_tasks(runs):
  one = scores.Comparison([x for x in runs if x.task == "copy"], METRIC)
  assert [table.name for table in tables.every(one)] == [
    *("tasks", "improvement", "differences")
  ]


@pytest.mark.slow
def test_tables_say_of_which_commit_the_runs_are(found, tmp_path):
  output.write(found, tmp_path, ["png"], "step", style.COLUMN)
  text = (tmp_path / "compare.tex").read_text("utf-8")
  assert "% Made from runs of commit unknown." in text


def test_differences_are_by_seed_and_corrected(found):
  first, second = found.differences()
  # 0.2, 0.22, 0.24 on copy, and 0.2, 0.22 on sort.
  assert (first.task, first.n, second.task, second.n) == ("copy", 3, "sort", 2)
  assert first.contrast.estimate == pytest.approx(0.22)
  assert second.contrast.estimate == pytest.approx(0.21)
  # t = 0.22 / (0.02 / √3) = 19.05 with two degrees of freedom, and
  # t = 0.21 / (0.01414 / √2) = 21 with one.
  assert first.contrast.p == pytest.approx(0.002744, rel=1e-3)
  assert second.contrast.p == pytest.approx(0.030293, rel=1e-3)
  assert first.p_holm == pytest.approx(2 * first.contrast.p)
  assert second.p_holm == pytest.approx(second.contrast.p)


def test_scores_have_one_scale_where_ranges_say_so(runs):
  found = scores.Comparison(runs, METRIC, ranges={"copy": (0.4, 0.6)})
  matrix = found.matrix("grpo")
  assert matrix[:, 0] == pytest.approx([0, 0.05, 0.1])
  assert matrix[:, 1] == pytest.approx([0.5, 0.51, 0.52])
  assert "On copy, 0.4 counts as 0 and 0.6 as 1." in found.scale


def test_every_table_says_n_and_the_interval(found):
  every = {table.name: table for table in tables.every(found)}
  assert set(every) == {"tasks", "aggregates", "improvement", "differences"}
  for table in every.values():
    assert "n = 2 to 3 seeds" in table.caption or "n is the" in table.caption
    assert "95 %" in table.caption
  text = forms.markdown(every["tasks"])
  assert "| GRPO | 0.410 [0.400, 0.420] | 0.510 [0.500, 0.520] |" in text
  latex = forms.as_latex(every["tasks"])
  row = r"GRPO & 0.410 & [\num{0.400}, \num{0.420}] & 0.510 &"
  assert row in latex
  assert r"R\&D" in latex
  assert r"\caption{Interquartile mean over seeds of right answers" in latex
  assert r"{lS[table-format=1.3]@{\,}lS[table-format=1.3]@{\,}l}" in latex
  assert latex.index(r"\caption") < latex.index(r"\toprule")
  first, second = csv.DictReader(io.StringIO(forms.as_csv(every["tasks"])))
  assert float(first["copy"]) == pytest.approx(0.41)
  assert float(second["sort, high"]) == pytest.approx(0.73)


def test_small_numbers_keep_digits_that_say_something():
  row = ["a", 0.00123, 1234.5, 3, None]
  table = forms.Table("x", "X", "c", ["n", *"abcd"], [row])
  assert "| a | 0.00123 | 1234.5 | 3 | – |" in forms.markdown(table)
  assert r"S[table-format=1.5]S[table-format=4.1]" in forms.as_latex(table)


def test_missing_runs_are_listed(found):
  text = tables.runs_csv(found)
  assert "rloo,sort,2,,no result yet," in text
  notes = "\n".join(output.notes_of(found))
  assert "rloo-sort-2`: no result yet" in notes
  assert "Some cells have 2 seeds." in notes


def test_names_and_ranges_are_checked(runs):
  with pytest.raises(ValueError, match="--baseline: 'ppo' is none of grpo"):
    scores.Comparison(runs, METRIC, "ppo")
  with pytest.raises(ValueError, match="--names: 'gpro'"):
    scores.Comparison(runs, METRIC, names={"gpro": "GRPO"})
  assert options.names(["grpo clip_high=0.4=Wide"]) == {
    "grpo clip_high=0.4": "Wide"
  }
  assert options.ranges(["sort=0:2"]) == {"sort": (0.0, 2.0)}
  with pytest.raises(ValueError, match="TASK=LOW:HIGH"):
    options.ranges(["sort=0"])
  with pytest.raises(ValueError, match="INTERNAL=PRINTED"):
    options.names(["grpo"])


@pytest.mark.slow
def test_figures_are_written(found, tmp_path):
  figure.write(found, tmp_path, ["svg"], "tokens", style.COLUMN)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    *("aggregates.svg", "curves.svg", "improvement.svg", "profiles.svg")
  ]
  curves = (tmp_path / "curves.svg").read_text("utf-8")
  assert "right answers" in curves
  assert "tokens drawn" in curves
