"""Arms of an experiment: which are run, and what is known of their programs."""

import json
import pathlib
import types

import pytest

from experiments.sweeps import arms


def test_an_arm_has_the_size_that_is_asked_for():
  full, small = (types.SimpleNamespace(num_seeds=n) for n in (3, 2))
  sized = arms.Sized(("base", "ppo"), {"full": full, "smoke": small})
  assert sized.parsed("ppo") == sized.parsed("ppo@full") == ("ppo", full)
  assert sized.parsed("base@smoke") == ("base", small)
  for argument in ("grpo", "ppo@large", ""):
    with pytest.raises(ValueError) as error:  # noqa: PT011
      sized.parsed(argument)
    assert str(error.value) == (
      f"arms: no arm {argument!r}; choose one of base, ppo, and @smoke behind"
      " it for a small one."
    )
  for argument, seeds in {"ppo": [0, 1, 2], "ppo@smoke": [0, 1]}.items():
    added = []
    sized.sweep(lambda seed, added=added: added.append(seed), argument)
    assert added == seeds


def test_all_arms_follow_on_their_own_seed_of_one():
  root = pathlib.Path("runs")
  assert arms.follows_on("first", "first", root) == []
  assert arms.follows_on("first", "ppo", root) == [
    "--config.start_workdir=runs/first/seed={seed}"
  ]


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


@pytest.mark.parametrize(
  ("status", "has_begun", "found", "returned"),
  [
    (0, True, {"seeds": [1]}, 0),
    (1, True, {"seeds": [1]}, 0),  # A guard halted a run: that is a result.
    (1, True, None, 1),
    (0, True, None, 1),
    (2, False, {"seeds": [1]}, 2),  # There is nothing to collect.
  ],
)
def test_numbers_of_an_arm_are_written_once(
  tmp_path, monkeypatch, status, has_begun, found, returned
):
  started = []

  def sweep(folder, config, *overrides):
    started.append((folder.name, config, *overrides))
    if has_begun:
      folder.mkdir(exist_ok=True)
      (folder / "sweep.json").write_text("{}")
      (folder / arms.SECONDS).write_text("[7]")
    return status

  monkeypatch.setattr(arms, "sweep", sweep)
  monkeypatch.setattr(arms.made, "by", lambda config: {"config": config})

  def record():
    folder = tmp_path / "ppo"
    return arms.record(tmp_path, folder, "c.py", ["--a=1"], lambda _: found)

  assert record() == returned
  path = tmp_path / "ppo.json"
  assert path.exists() == (returned == 0)
  if path.exists():
    about = {"seconds": 7, "made": {"config": "c.py"}}
    assert json.loads(path.read_text()) == {"seeds": [1]} | about
    assert record() == 0
  assert started == [("ppo", "c.py", "--a=1")]


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
  for name, seconds in {"c": 3.5, "a": 60, "other": 1}.items():
    text = json.dumps({"seeds": [], "seconds": seconds})
    (tmp_path / f"{name}.json").write_text(text)
  found = arms.Recorded(tmp_path, ("a", "b", "c"))
  assert found.arms == ["a", "c"]
  assert [found.seconds(name) for name in found.arms] == [60, 3.5]
