"""Runs as one program end as runs of their own."""

import dataclasses
import json

import pytest

from grpo_jax import api
from grpo_jax.training import loop, many
from grpo_jax.training.monitor import health
from grpo_jax.training.rules import rules
from grpo_jax.training.runtime import log
from tests.experiments import tiny_config


def make_config(seed=0, phases=("sft",), **settings):
  """The tiny config, with a few steps; a setting is `sft__steps=3`."""
  config = tiny_config.get_config("grpo")
  config.seed, config.phases = seed, phases
  config.log.trackers = ()
  config.mesh.data = 1
  config.sft.steps = config.rl.steps = 3
  config.data.task_options.max_len = 2
  config.rl.num_lengths = 1
  config.eval.every = 0
  return tiny_config.change(config, settings)


def rows(workdir):
  return log.read_lines(workdir / log.METRICS)


def assert_close_run(actual, expected):
  """The same lines, with numbers that differ by rounding."""
  for row, other in zip(rows(actual), rows(expected), strict=True):
    assert row.keys() == other.keys()
    assert (row["step"], row["phase"]) == (other["step"], other["phase"])
    for name in row.keys() - {"phase"}:
      if other[name] is not None:
        # Some are differences of numbers near 1.
        assert row[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6)


def train_both(configs, root):
  """Workdirs and results of runs as one program, and of the last by itself."""
  together = [root / f"together{i}" for i in range(len(configs))]
  results = many.train(configs, together)
  return (
    together,
    root / "alone",
    results,
    loop.train(configs[-1], root / "alone"),
  )


@pytest.mark.slow
def test_seeds_end_as_runs_of_their_own(tmp_path):
  configs = [make_config(seed=seed) for seed in (0, 1)]
  together, alone, results, expected = train_both(configs, tmp_path)
  assert results[1] == expected
  assert_close_run(together[1], alone)
  assert (together[1] / log.RESULT).exists()
  assert rows(together[0]) != rows(together[1])
  with api.load(together[1]) as trained:
    assert trained.step == 3
    assert trained.config.seed == 1


@pytest.mark.slow
@pytest.mark.parametrize("side_by_side", [False, True])
def test_numbers_end_close_to_runs_of_their_own(tmp_path, side_by_side):
  configs = [
    make_config(),
    make_config(sft__optimizer__learning_rate=2e-2, sft__optimizer__b2=0.9),
  ]
  workdirs = [tmp_path / "a", tmp_path / "b"]
  many.train(configs, workdirs, side_by_side)
  for config, workdir in zip(configs, workdirs, strict=True):
    loop.train(config, tmp_path / f"{workdir.name}_alone")
    assert_close_run(workdir, tmp_path / f"{workdir.name}_alone")
  rates = [rows(workdir)[-1]["learning_rate"] for workdir in workdirs]
  assert rates == pytest.approx([5e-2, 2e-2])


@pytest.mark.slow
def test_numbers_of_reinforcement_end_close_to_runs_of_their_own(tmp_path):
  """And seeds; an evaluation comes after a last phase that has none itself."""
  configs = [
    make_config(
      seed=seed,
      phases=("rl", "sft"),
      sampling__temperature=temperature,
      algorithm__kl_coef=kl_coef,
      algorithm__clip_high=clip_high,
      rl__ema_decay=decay,
      rewards__weights=(weight,),
      sampling__mix_rate=mix_rate,
      sft__optimizer__learning_rate=rate,
    )
    for (
      seed,
      temperature,
      kl_coef,
      clip_high,
      decay,
      weight,
      mix_rate,
      rate,
    ) in (
      (0, 1.0, 0.1, 0.2, 0.5, 1.0, 0.2, 0.2),
      (1, 0.7, 0.3, 0.01, 0.9, 0.5, 0.6, 0.1),
    )
  ]
  together, alone, results, expected = train_both(configs, tmp_path)
  assert_close_run(together[1], alone)
  assert results[1].before == expected.before
  assert results[1].after == pytest.approx(expected.after)


@pytest.mark.slow
def test_a_run_that_is_not_finite_is_left_behind(tmp_path, capsys):
  configs = [
    make_config(sft__optimizer__learning_rate=rate) for rate in (1e30, 5e-2)
  ]
  workdirs = [tmp_path / "bad", tmp_path / "good"]
  failure, result = many.train(configs, workdirs)
  assert isinstance(failure, FloatingPointError)
  said = " ".join(capsys.readouterr().err.split())
  assert f"{workdirs[0]} is left behind: phase sft, step " in said
  assert not (workdirs[0] / log.RESULT).exists()
  assert result.step == 3
  assert [row["step"] for row in rows(workdirs[1])] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("settings", "match"),
  [
    ({"model__width": 32}, r"config.model.width \(16, 32\)"),
    ({"sft__steps": 4}, "config.sft.steps is 3, 4"),
    ({"data__task_options__teacher_error": 0.5}, "teacher_error"),
    ({"algorithm__kl_kind": "k1"}, "config.algorithm.kl_kind is k3, k1"),
    ({"rl__ema_decay": None}, "config.rl.ema_decay is 0.5, None"),
    ({"algorithm__kl_coef": 0.0}, "kl_coef is 0.1, 0 in runs of one program"),
    ({"algorithm__jsd_beta": 0.5}, "config.algorithm.jsd_beta"),
  ],
)
def test_runs_that_are_not_one_program_are_refused(tmp_path, settings, match):
  configs = [
    make_config(phases=("rl",)),
    make_config(phases=("rl",), **settings),
  ]
  with pytest.raises(ValueError, match=match):
    many.train(configs, [tmp_path / "a", tmp_path / "b"])
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("settings", "match"),
  [
    ({"log__trackers": ("wandb",)}, r"trackers=\('wandb',\); needs \(\)"),
    ({"profile_steps": (1, 2)}, "profile_steps"),
    ({"mesh__fsdp": 2}, "each run is on one device"),
  ],
)
def test_what_needs_a_run_of_its_own_is_refused(tmp_path, settings, match):
  with pytest.raises(ValueError, match=match):
    many.train([make_config(**settings)], [tmp_path / "a"])


def test_answers_that_the_host_verifies_are_refused(tmp_path):
  config = tiny_config.get_config("on_host")
  with pytest.raises(ValueError, match=r"rewards\.in_graph=False; needs True"):
    many.train([config], [tmp_path / "a"])


@pytest.mark.slow
def test_text_that_is_verified_in_the_program_ends_as_runs_of_its_own(tmp_path):
  lines = [{"prompt": f"{i} =", "answer": str(i)} for i in range(8)]
  path = tmp_path / "train.jsonl"
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  configs = [
    make_config(
      seed=seed,
      phases=("rl",),
      data__source="jsonl",
      data__name="",
      data__train_path=str(path),
      data__tokenizer="gsm8k",
      data__max_prompt_len=8,
      sampling__max_new_tokens=3,
      rewards__functions=("math_accuracy", "tag_count"),
      rewards__weights=(1.0, 0.5),
      rewards__in_graph=True,
    )
    for seed in (0, 1)
  ]
  for config in configs:
    config.data.task_options = {}
  together, alone, results, expected = train_both(configs, tmp_path)
  assert_close_run(together[1], alone)
  assert results[1].after == pytest.approx(expected.after)


def test_every_run_needs_a_workdir_of_its_own(tmp_path):
  configs = [make_config(seed=seed) for seed in (0, 1)]
  with pytest.raises(ValueError, match="2 configs and 1 different workdirs"):
    many.train(configs, [tmp_path / "a", tmp_path / "a"])


@pytest.mark.slow
def test_a_run_that_a_rule_stops_is_saved_and_left_behind(
  tmp_path, monkeypatch
):
  """The other one goes on."""
  configs = [make_config(seed=seed, sft__steps=8) for seed in (0, 1)]
  seen = []

  def first_only(history):
    # Of the runs, which take turns, the first one.
    seen.append(history)
    return {"loss": 1.0} if history is seen[0] else None

  rule = dataclasses.replace(
    rules.BY_NAME["cut_off"], check=first_only, patience=2
  )
  monkeypatch.setattr(rules, "RULES", (rule,))
  for config in configs:
    config.health.halt = ("cut_off",)
  workdirs = [tmp_path / "stopped", tmp_path / "whole"]
  failure, result = many.train(configs, workdirs)
  assert isinstance(failure, health.HealthHalt)
  assert result.step == 8
  assert [row["step"] for row in rows(workdirs[1])] == [*range(1, 9)]
  stopped = rows(workdirs[0])
  assert [row["step"] for row in stopped if "alarm/cut_off" in row] == [2]
  assert len(stopped) < 8
  monkeypatch.undo()
  for config in configs:
    config.health.halt = ()
  assert [x.step for x in many.train(configs, workdirs)] == [8, 8]
  assert [row["step"] for row in rows(workdirs[0])] == [*range(1, 9)]
