"""The league: how rates are chosen, its rules and its verdicts."""

from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest

from experiments.science import claims, experiments, league
from experiments.science import league_problems as problems
from grpo_jax import algorithms
from grpo_jax.settings import config as config_lib
from grpo_jax.training.runtime import log
from tests.experiments import command

BENCHMARKS = command.ROOT / "benchmarks/league"
FULL = league.SIZES["full"]


@pytest.mark.slow
def test_every_algorithm_is_in_the_league_or_left_out_for_a_reason():
  absent = [name for names in league.LEFT_OUT.values() for name in names]
  every = [*league.ENTRIES, *absent]
  assert sorted(every) == sorted(algorithms.ALGORITHMS)
  said = " ".join(
    league.numbers(league.Results(BENCHMARKS))["left_out"].split()
  )
  assert set(re.findall(r"`(\w+)`", said)) == set(absent)


@pytest.mark.parametrize("name", league.ENTRIES)
def test_all_draw_as_many_completions_and_take_as_many_steps(name):
  run = config_lib.resolve(league.get_config(f"{name}-sort"))
  drawn, steps = 0, 0
  for phase in run.phases:
    section = run.section(phase)
    greedy = league.num_greedy(name, section.num_prompts)
    of_step = section.num_prompts * section.group_size + greedy
    assert of_step == FULL.batch
    drawn += of_step * section.steps
    steps += section.steps
  assert (drawn, steps) == (FULL.batch * FULL.steps, FULL.steps)
  assert run.phases == (("value", "rl") if league.has_critic(name) else ("rl",))
  assert run.algorithm[1].kl_coef == run.algorithm[1].entropy_coef == 0
  assert run.section("rl").num_minibatches == league.NUM_UPDATES


def test_arms_of_a_task_begin_with_the_warm_start_of_their_seed():
  root = pathlib.Path("x")
  assert league.follows_on("ppo-sort", root) == [
    "--config.start_workdir=x/base-sort/seed={seed}"
  ]
  assert league.follows_on("base-words", root) == [
    "--config.data.train_path=x/problems/train.jsonl",
    "--config.data.eval_path=x/problems/held_out.jsonl",
  ]
  assert league.base_of("ppo-add") == "base-add"
  for base in league.BASES:
    assert league.get_config(base).phases == ("sft",)
  cells = []
  league.sweep(lambda **cell: cells.append(cell), "grpo-add")
  league.sweep(lambda **cell: cells.append(cell), "base-add")
  assert len(cells) == FULL.num_seeds * (len(league.FACTORS) + 1)
  assert cells[1] == {"seed": 0, league._RATE: league.RATE}
  with pytest.raises(ValueError, match="no arm 'sft-sort'"):
    league.get_config("sft-sort")


def test_a_rate_is_chosen_by_all_seeds_but_its_own():
  # Seed 0 likes the lowest rate, and none of the others does.
  accuracy = np.array([[0.9, 0.1, 0.1], [0.1, 0.2, 0.4], [0.1, 0.2, 0.4]])
  assert league.chosen(accuracy).tolist() == [2, 0, 0]
  # Equal means: the default, and else the lower one.
  assert league.chosen(np.full((3, 3), 0.3)).tolist() == [1, 1, 1]
  assert league.chosen(np.array([[0.3, 0.1, 0.3]] * 2)).tolist() == [0, 0]
  with pytest.raises(ValueError, match="1 seed; needs two"):
    league.chosen(accuracy[:1])


def test_greedy_completions_count():
  lines = [{"completions/generated": 64.0}] * 3 + [{"eval/accuracy": 0.5}]
  assert league.generated(lines, "reinforce", 1) == 192
  assert league.generated(lines, "remax", 1) == 384
  assert league.generated(lines, "remax", 4) == 240


def test_problems_have_right_answers_and_a_faulty_teacher(tmp_path):
  problems.write(tmp_path, 400, 200)
  first = {x.name: x.read_bytes() for x in tmp_path.iterdir()}
  problems.write(tmp_path, 400, 200)
  assert first == {x.name: x.read_bytes() for x in tmp_path.iterdir()}
  records = {
    name: [json.loads(line) for line in first[name].splitlines()]
    for name in (problems.TRAIN, problems.HELD_OUT)
  }
  both = [{x["prompt"] for x in of_split} for of_split in records.values()]
  assert not both[0] & both[1]
  wrong = []
  for record in records[problems.TRAIN]:
    more, less = map(int, re.findall(r"\d+", record["prompt"]))
    is_sum = "gets" in record["prompt"]
    assert record["answer"] == str(more + less if is_sum else more - less)
    wrong.append(record["completion"] != f"<answer>{record['answer']}</answer>")
  assert 0.35 < np.mean(wrong) < 0.55


def write(
  folder, ends, seeds=5, tasks=league.TASKS, before=0.3, falls=0.1, **others
):
  """Records whose accuracy falls by so much at the highest rate."""
  for algorithm, end in ends.items():
    for task in tasks:
      runs = [
        {
          "seed": seed,
          "factor": round(factor, 3),
          "before": before,
          "after": end + 0.01 * seed - falls * (factor > 1),
          "length": 6.0,
          "entropy": 0.5 * end,
          "completions": 8192,
          "seconds": 2.0,
        }
        | others
        for seed in range(seeds)
        for factor in league.FACTORS
      ]
      found = {"runs": runs, "seconds": 90}
      log.write_json(folder / f"{algorithm}-{task}.json", found)
  return league.Results(folder)


def verdicts(of):
  return {
    one.name: one.verdict for one in claims.conclude(league.CLAIMS, of.scores)
  }


@pytest.mark.slow
def test_rules_decide(tmp_path):
  ends = dict.fromkeys(league.ENTRIES, 0.6)
  ends |= {"reinforce": 0.4, "passk": 0.4, "dapo": 0.7}
  found = write(tmp_path, ends)
  np.testing.assert_allclose(league.gain(found.scores), 0, atol=1e-9)
  assert verdicts(found) == {
    **dict.fromkeys(league.CLAIMS, "confirmed"),
    **dict.fromkeys(("R1", "K1"), "not confirmed"),
  }
  write(tmp_path, {"ppo": 0.4, "gmpo": 0.1}, falls=-0.1)
  lost = {"L1", "C1", "K1"}
  changed = verdicts(league.Results(tmp_path))
  assert {x for x in changed if changed[x] != "confirmed"} == lost
  (tmp_path / "gmpo-add.json").unlink()
  assert verdicts(league.Results(tmp_path))["R1"] == "undecided"


def test_a_verdict_is_corrected_for_the_whole_league(tmp_path):
  found = write(tmp_path, {"grpo": 0.6, "rloo": 0.7})
  runs = json.loads((tmp_path / "grpo-add.json").read_text())
  # By chance 0.02 above in each seed, but not by the same.
  for run, more in zip(runs["runs"], [0.01, 0.02, 0.03] * 5, strict=True):
    run["after"] += more * (1 + run["seed"])
  log.write_json(tmp_path / "opo-add.json", runs)
  for task in ("sort", "words"):
    text = (tmp_path / f"grpo-{task}.json").read_text()
    (tmp_path / f"opo-{task}.json").write_text(text)
  found = league.Results(tmp_path)
  assert league.verdicts(found) == {"rloo": "above", "opo": "open"}


@pytest.mark.slow
def test_page_and_figure_are_made_of_what_has_ended(tmp_path):
  write(tmp_path, {"grpo": 0.6, "dapo": 0.7})
  write(tmp_path, {"remax": 0.5}, tasks=["sort"], completions=8000)
  write(tmp_path, {"opo": 0.5}, tasks=["add"], before=0.2, error="phase rl")
  found = league.Results(tmp_path)
  assert found.complete == ["grpo", "dapo"]
  assert found.ranked() == ["dapo", "grpo", "opo", "remax"]
  text = " ".join(experiments.markdown(league, found).split())
  assert "**8 of 117 cells** have ended" in text
  assert "So 2 of 39 algorithms have ended on all tasks" in text
  assert "Each run has generated 8000 to 8192 completions" in text
  assert "ReMax (add, words)" in text
  assert "OPO (sort, words)" in text
  assert "by their accuracy: `opo-add`" in text
  assert "accuracy of 0: 15 of `opo-add`" in text
  assert "| 1 | DAPO | 0.720 [" in text
  assert "| – | ReMax | – |" in text
  assert "**C1: undecided.**" in text
  assert "Of 1 algorithms that have ended on all tasks beside GRPO" in text
  league.plot(tmp_path / "league.png", found)
  assert (tmp_path / "league.png").stat().st_size > 10_000


@pytest.mark.slow
def test_an_algorithm_is_trained_and_recorded(tmp_path):
  """Checkpoints are gone, and what is recorded is not trained again."""
  flags = (
    f"--root={tmp_path / 'runs'}",
    f"--results={tmp_path / 'results'}",
    "--arms=^remax-sort$",
    "--size=smoke",
  )
  status, _, error = command.run("science", "run", "league", *flags)
  assert status == 0, error
  found = league.Results(tmp_path / "results")
  assert found.arms == ["remax-sort"]
  assert found.completions() == (128, 128)
  assert not found.other_starts()
  assert found.every("remax-sort", "after").shape == (2, 3)
  record = json.loads((tmp_path / "results/remax-sort.json").read_text())
  assert record["made"]["config"]
  assert not list((tmp_path / "runs").glob("remax-sort/*/checkpoints"))
  assert list((tmp_path / "runs").glob("base-sort/*/checkpoints"))
  assert command.run("science", "run", "league", *flags)[:2] == (0, "")
