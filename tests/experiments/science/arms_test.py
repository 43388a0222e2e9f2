"""Arms of an experiment: which are run, and what is known of their programs."""

import json
import pathlib
import types

import numpy as np
import pytest

from experiments.science import arms


def test_an_arm_has_the_size_that_is_asked_for():
  full, small = map(arms.Size, (3, 2))
  both = arms.Arms(("base", "ppo"), {"full": full, "smoke": small})
  assert both.parsed("ppo") == both.parsed("ppo@full") == ("ppo", full)
  assert both.parsed("base@smoke") == ("base", small)
  known = "choose one of base, ppo"
  for argument in ("grpo", "ppo@large", ""):
    with pytest.raises(ValueError) as error:  # noqa: PT011
      both.parsed(argument)
    assert str(error.value) == (
      f"arms: no arm {argument!r}; {known}, and @smoke behind it for a small"
      " one."
    )
  with pytest.raises(ValueError, match=rf"{known}\.$"):
    arms.Arms(both.names, {"full": full}).parsed("base@smoke")
  for argument, seeds in {"ppo": [0, 1, 2], "ppo@smoke": [0, 1]}.items():
    added = []
    both.sweep(lambda seed, added=added: added.append(seed), argument)
    assert added == seeds


def test_all_arms_follow_on_their_own_seed_of_one():
  root = pathlib.Path("runs")
  several = arms.Arms(("first", "ppo"), {}, "first")
  assert several.follows_on("first", root) == []
  assert several.follows_on("ppo", root) == [
    "--config.start_workdir=runs/first/seed={seed}"
  ]
  assert arms.Arms(("ppo",), {}).follows_on("ppo", root) == []


def test_arms_are_chosen_by_a_regular_expression():
  names = ["grpo-kl0", "grpo-kl1", "ppo-kl0"]
  assert arms.chosen(names, "") == names
  assert arms.chosen(names, "^grpo") == names[:2]
  assert arms.chosen(names, "kl0$") == ["grpo-kl0", "ppo-kl0"]
  with pytest.raises(ValueError, match=r"--arms=dapo is found in no arm; they"):
    arms.chosen(names, "dapo")


def test_a_failure_is_named_and_the_others_run(capsys):
  seen = []

  def run(name):
    seen.append(name)
    return {"b": 1}.get(name, 0)

  assert arms.go_through("abc", run) == 1
  assert seen == ["a", "b", "c"]
  assert capsys.readouterr().out == "Failed: b\n"
  assert arms.go_through("ac", run) == 0


def test_a_signal_stops_all(capsys):
  seen = []

  def run(name):
    seen.append(name)
    return arms.STOPPED

  assert arms.go_through("abc", run) == arms.STOPPED
  assert seen == ["a"]
  assert "the same command continues" in capsys.readouterr().out


def test_seconds_and_output_of_two_starts_are_kept(tmp_path, capsys):
  folder = tmp_path / "arm"
  assert arms.timed(folder, "calendar", "2026", "11") == 0
  assert arms.timed(folder, "calendar", "no-year") == 2
  found = json.loads((folder / arms.SECONDS).read_text())
  assert len(found) == 2
  assert arms.seconds(folder) == sum(found)
  assert "November 2026" in (folder / arms.OUTPUT).read_text()
  first, second = capsys.readouterr().out.splitlines()
  assert first == f"arm: {found[0]} s"
  assert "exit status 2: see" in second


@pytest.fixture
def job(tmp_path):
  """Runs of `a`, which follows on `b`, of which no numbers are kept."""
  module = types.ModuleType("experiments.science.letters")
  sizes = {"full": arms.Size(2)}
  module.ALL = arms.Arms("ab", sizes, base="b", not_recorded="b")
  module.follows_on = module.ALL.follows_on
  return arms.Job(module, tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
  ("status", "has_begun", "numbers", "returned"),
  [
    (0, True, {"seeds": [1]}, 0),
    (1, True, {"seeds": [1]}, 0),  # A guard halted a run: that is a result.
    (1, True, None, 1),
    (0, True, None, 1),
    (2, False, {"seeds": [1]}, 2),  # There is nothing to collect.
  ],
)
def test_numbers_of_an_arm_are_written_once(
  job, monkeypatch, status, has_begun, numbers, returned
):
  started = []

  def sweep(folder, config, *overrides, launcher):
    started.append((folder.name, config, *overrides, launcher))
    if has_begun:
      folder.mkdir(exist_ok=True)
      (folder / "sweep.json").write_text("{}")
      (folder / arms.SECONDS).write_text("[7]")
    return status

  monkeypatch.setattr(arms, "sweep", sweep)
  monkeypatch.setattr(arms.made, "by", lambda config: {"config": config})
  job.module.collected = lambda folder, size: (
    numbers
    and {
      **numbers,
      "n": size.num_seeds,
    }
  )
  job.out.mkdir()
  assert (job.run("b"), job.run("a")) == (status, returned)
  file = "experiments/science/letters.py"
  start = f"--config.start_workdir={job.root}/b/seed={{seed}}"
  both = [("b", f"{file}:b", "vmap"), ("a", f"{file}:a", start, "vmap")]
  assert started == both
  path = job.out / "a.json"
  assert [*job.out.iterdir()] == ([] if returned else [path])
  if not returned:
    about = {"n": 2, "seconds": 7, "made": {"config": f"{file}:a"}}
    assert json.loads(path.read_text()) == {"seeds": [1]} | about
    assert job.run("a") == 0
  assert started == both


def test_an_arm_has_a_size_if_there_are_two_and_may_be_run_otherwise(job):
  job.module.ALL = arms.Arms("ab", dict.fromkeys(("full", "smoke")))
  assert job.config("a") == "experiments/science/letters.py:a@full"
  job.module.run = lambda of, arm: (of, arm)
  assert job.run("a") == (job, "a")


def write_run(folder, *lines):
  folder.mkdir()
  text = "".join(json.dumps(line) + "\n" for line in lines)
  (folder / "metrics.jsonl").write_text(text)
  (folder / "result.json").write_text("{}")


def test_numbers_are_of_all_runs_in_the_order_of_the_cells(tmp_path):
  # By name the cell of seed 10 would be the second one.
  seeds = (1, 2, 10)
  for seed in seeds:
    write_run(tmp_path / f"seed={seed}", {"right": seed}, {"right": -seed})
  cells = [{"folder": f"seed={n}", "overrides": {"seed": n}} for n in seeds]
  (tmp_path / "sweep.json").write_text(json.dumps(cells))

  def of_run(lines):
    return [line["right"] for line in lines]

  assert arms.collected(of_run, tmp_path) == {
    "seeds": [[1, -1], [2, -2], [10, -10]]
  }
  (tmp_path / "seed=2" / "result.json").unlink()
  assert arms.collected(of_run, tmp_path) is None


def test_arms_that_have_ended_are_those_with_a_file(tmp_path):
  class Results(arms.Recorded):
    names, base = ("a", "b", "c"), "c"

  for name, seconds in {"c": 3.5, "a": 60, "other": 1}.items():
    seeds = [{"x": [1, None]}] * 2
    text = json.dumps({"seeds": seeds, "seconds": seconds})
    (tmp_path / f"{name}.json").write_text(text)
  found = Results(tmp_path)
  assert (found.expected, found.arms, found.num_seeds) == (["a", "b"], ["a"], 2)
  assert [found.seconds(name) for name in ("a", "c")] == [60, 3.5]
  np.testing.assert_array_equal(found.series("c", "x"), [[1, np.nan]] * 2)
  assert found.series("a", "y") is None
