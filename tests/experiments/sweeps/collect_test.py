"""Statistics, tables and the list of what is missing, against known answers."""

import csv
import io
import itertools

import numpy as np
import pytest

from experiments.sweeps import cells as cells_lib
from experiments.sweeps import collect, statistics
from experiments.sweeps import groups as groups_lib
from grpo_jax.training.runtime import log as log_lib

RATE = "rl.optimizer.learning_rate"


def finish(workdir, *values):
  """A run whose accuracy had these values, and ended at the last."""
  workdir.mkdir()
  with log_lib.MetricsLog(workdir) as log:
    log.write(10, "sft", {"loss": 1.0})
    for i, value in enumerate(values):
      log.write(10 + 10 * i, "rl", {"eval/accuracy": value})
    log.write_result(10 * len(values), None, {"eval/accuracy": values[-1]}, 8)


@pytest.fixture
def root(tmp_path):
  """Three groups: of three seeds, of two with one failed, of one not begun."""
  table = [
    *({"folder": f"a{s}", "overrides": {RATE: 0.1, "seed": s}} for s in "012"),
    *({"folder": f"b{s}", "overrides": {RATE: 0.2, "seed": s}} for s in "01"),
    {"folder": "c", "overrides": {RATE: 0.2, "data.name": "a_b"}},
  ]
  log_lib.write_json(tmp_path / cells_lib.MANIFEST, table)
  finish(tmp_path / "a0", 0.0, 0.2)
  finish(tmp_path / "a1", 0.0, 0.3)
  finish(tmp_path / "a2", 0.3, 0.7)
  finish(tmp_path / "b0", 0.5)
  (tmp_path / "b1").mkdir()
  (tmp_path / "b1" / cells_lib.LOG).write_text("x\nerror: loss\nis nan.\n")
  return tmp_path


MISSING = {"b1": "failed: loss\nis nan.", "c": "not started"}


def test_groups_are_cells_that_differ_in_the_seed(root):
  groups, missing = groups_lib.collect(root, "eval/accuracy")
  assert [
    (group.overrides, group.num_cells, group.values) for group in groups
  ] == [
    ({RATE: 0.1}, 3, [0.2, 0.3, 0.7]),
    ({RATE: 0.2}, 2, [0.5]),
    ({RATE: 0.2, "data.name": "a_b"}, 1, []),
  ]
  assert missing == MISSING
  steps, values = groups[0].curves[2]
  np.testing.assert_array_equal(steps, [10, 20])
  np.testing.assert_array_equal(values, [0.3, 0.7])


def test_a_run_that_ended_without_a_number_is_missing(root):
  finish(root / "c", 0.5, float("nan"))
  _, missing = groups_lib.collect(root, "eval/accuracy")
  assert missing["c"] == "the metric is not a finite number"


def test_a_run_without_the_metric_is_missing_and_the_others_are_not(root):
  (root / "c").mkdir()
  with log_lib.MetricsLog(root / "c") as log:
    log.write(10, "sft", {"loss": 1.0})
    log.write_result(10, None, None, 8)
  groups, missing = groups_lib.collect(root, "eval/accuracy")
  assert missing == MISSING | {"c": "the run has no such metric"}
  assert [len(group.values) for group in groups] == [3, 1, 0]


def test_the_interval_is_that_of_all_resamples():
  values = [0.2, 0.3, 0.7, 0.4]
  # There are 4⁴ equally likely resamples: the exact bootstrap distribution.
  means = [np.mean(draw) for draw in itertools.product(values, repeat=4)]
  low, high = np.quantile(means, [0.025, 0.975])
  mean, iqm = groups_lib.summarize(values)
  assert mean.value == pytest.approx(0.4)
  assert mean.low == pytest.approx(low, abs=0.03)
  assert mean.high == pytest.approx(high, abs=0.03)
  assert (mean, iqm) == groups_lib.summarize(values)  # The same at every call.


def test_the_interval_of_a_curve_is_taken_step_by_step():
  values = np.array([[0.2, 1.0], [0.3, 1.0], [0.7, 1.0]])
  low, high = statistics.interval(values)
  np.testing.assert_allclose(low, [0.2, 1.0])
  np.testing.assert_allclose(high, [0.7, 1.0])


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
  values = [9.0, 0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 100.0]
  assert groups_lib.summarize(values)[1] == pytest.approx((2 + 4 + 5 + 6) / 4)
  assert groups_lib.summarize(values[:3])[1] == pytest.approx(10 / 3)


def test_one_seed_has_no_interval_and_none_has_no_mean():
  assert groups_lib.summarize([0.5]) == (statistics.Estimate(0.5), 0.5)
  assert groups_lib.summarize([]) == (None, None)


def test_the_tables_say_n_and_what_is_missing(root):
  written = collect.texts(
    *groups_lib.collect(root, "eval/accuracy"), "eval/accuracy"
  )
  markdown, latex = (written[f"results.{x}"] for x in ("md", "tex"))
  assert "| learning_rate | name | n | mean | IQM |\n" in markdown
  assert "| 0.1 | – | 3/3 | 0.400 [0.200, 0.700] | 0.400 |\n" in markdown
  assert "| 0.2 | – | 1/2 | 0.500 | 0.500 |\n" in markdown
  assert "| 0.2 | a_b | 0/1 | – | – |\n" in markdown
  assert "no number contains: 2\n\n- `b1`: failed: loss is nan.\n" in markdown
  assert markdown.endswith("- `c`: not started\n")
  assert r"learning\_rate & name & n & \multicolumn{2}{c}{mean} &" in latex
  assert r"0.2 & a\_b & 0/1 & {--} &  & {--} \\" in latex
  assert "% b1: failed: loss is nan.\n% c: not started\n" in latex
  assert latex.index(r"\toprule") < latex.index(r"\bottomrule")
  rows = csv.DictReader(io.StringIO(written["results.csv"]))
  first, second, third = rows
  assert (first[RATE], first["n"]) == ("0.1", "3/3")
  assert float(first["mean"]) == pytest.approx(0.4)
  assert float(first["mean, low"]) == pytest.approx(0.2)
  assert (second["n"], second["mean, low"]) == ("1/2", "")
  assert (third["data.name"], third["n"], third["mean"]) == ("a_b", "0/1", "")


def test_the_table_fits_a_terminal(root):
  groups, _ = groups_lib.collect(root, "eval/accuracy")
  lines = collect.console(groups, "eval/accuracy").splitlines()
  assert lines[1].split() == (
    ["learning_rate=0.1", "3/3", "0.400", "[0.200,", "0.700]", "0.400"]
  )
  assert len({len(line) for line in lines}) == 1
  long = {f"data.option_{i}": "x" * 20 for i in range(5)}
  wide = [groups_lib.Group(long, 2, [1e-9, 1.23456e8], [])]
  lines = collect.console(wide, "eval/accuracy").splitlines()
  assert max(map(len, lines)) <= 80
  assert len(lines) > 4


def test_the_figure_has_every_group(root):
  groups, _ = groups_lib.collect(root, "eval/accuracy")
  collect.plot(groups, "eval/accuracy", root / "x.png")
  assert (root / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_root_without_a_sweep_is_refused(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"sweep\.json does not exist"):
    groups_lib.collect(tmp_path, "eval/accuracy")


def test_an_unknown_metric_lists_those_that_there_are(root):
  with pytest.raises(KeyError, match=r"no such metric.*eval/accuracy, loss"):
    groups_lib.collect(root, "eval/acuracy")


def test_curves_are_compared_where_all_are_known():
  one = np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 2.0])
  other = np.array([5.0, 15.0, 25.0]), np.array([5.0, 15.0, 25.0])
  x, values = groups_lib.common([one, other])
  assert x.tolist() == [5, 10, 20]
  assert values.tolist() == [[0.5, 1, 2], [5, 10, 20]]
  x, values = groups_lib.common([one, one])
  assert x.tolist() == [0, 10, 20]
  assert values.shape == (2, 3)
  assert groups_lib.common([])[1].shape == (0, 0)
