"""The report on a pod: what needs no compiler for TPUs."""

import dataclasses
import json
import subprocess
import types

import jax
import pytest

from experiments.pods import chips, costs, meshes, report, rows, steps, table
from grpo_jax.settings import config as config_lib
from tests.cli import programs_test
from tests.experiments import command, tiny_config


def resolved(**phase) -> config_lib.RunConfig:
  config = tiny_config.get_config("grpo")
  config.phases = ("rl",)
  config.rl.num_lengths = 1
  config.rl.update(phase)
  return config_lib.resolve(config)


@pytest.fixture(scope="module")
def compiled() -> steps.Compiled:
  """The step for one CPU, which is compiled the same way."""
  return steps.compile_step(resolved(), jax.devices()[:1])


def target() -> steps.Target:
  return steps.Target(chips.parse("v5e:2x2"), 1, jax.devices()[:1] * 4)


def made(compiled) -> dict:
  """A recorded report, with the figures of another program."""
  path = command.ROOT / "benchmarks/pods/0.5b-v5e-8.json"
  recorded = json.loads(path.read_text("utf-8"))
  newer = {"micro_batches": 2, "update": "update of rl: in words."}
  return recorded | newer | steps.of_program(compiled, target())


@pytest.mark.slow
def test_the_program_of_a_config_is_read_whole(compiled):
  found = steps.analyze(compiled)
  assert found.phases["decode"].flops > 0
  assert found.phases["update"].flops > found.phases["reference"].flops > 0
  assert found.host_transfers == found.weight_gathers == []
  assert found.unresolved == []


def test_a_phase_takes_the_longest_of_what_it_does():
  analysis = costs.Analysis(
    phases={
      "decode": costs.Costs(197e12, 819e9 * 3),
      "update": costs.Costs(0, 0),
    },
    collectives=[
      costs.Collective(
        "all-reduce", "", "", "update", 2, 100 * 10**9, 2, True, False, False
      )
    ],
    transfers=[],
    loops=[],
    kernels={},
    matmuls=(0, 0),
  )
  found = steps.phases(analysis, target())
  assert found["decode"]["seconds"]["flops"] == pytest.approx(1)
  assert found["decode"]["at_least_s"] == pytest.approx(3)
  # Half of it twice around a ring of two.
  assert found["update"]["at_least_s"] == pytest.approx(2 * 100e9 / 200e9)
  assert found["update"]["async_share"] == 1


def test_two_devices_of_a_chip_share_what_it_has():
  of = chips.parse("tpu7x:2x2x1")
  analysis = costs.Analysis(
    {"decode": costs.Costs(2307e12, 0)}, [], [], [], {}, ()
  )
  whole = steps.phases(analysis, steps.Target(of, 1, [None] * 4))
  halves = steps.phases(analysis, steps.Target(of, 1, [None] * 8))
  assert whole["decode"]["at_least_s"] == pytest.approx(1)
  assert halves["decode"]["at_least_s"] == pytest.approx(2)


def test_the_largest_batch_is_searched_for_within_a_quarter(monkeypatch):
  tried = []

  def compile_step(config, devices):
    del devices
    tried.append(config.section("rl").num_prompts)
    if tried[-1] > 100:
      raise steps.TooLargeError

  monkeypatch.setattr(steps, "compile_step", compile_step)
  monkeypatch.setattr(
    report, "_mesh_shape", lambda *_: {"data": 4, "tensor": 8}
  )
  assert report.largest_batch(resolved(num_prompts=8), target()) == 96
  assert tried == [8, 16, 32, 64, 128, 96, 112]
  tried.clear()
  assert report.largest_batch(resolved(num_prompts=512), target()) == 96
  assert tried == [512, 256, 128, 64, 96, 112]
  tried.clear()
  # Micro-batches of 48 rows of groups of 4: prompts by twelves.
  config = resolved(
    num_prompts=12, group_size=4, num_minibatches=1, micro_batch_size=48
  )
  assert report.largest_batch(config, target()) == 96
  assert tried == [12, 24, 48, 96, 192, 144, 120]
  tried.clear()
  # One row of each device: two minibatches take two prompts.
  config = resolved(
    num_prompts=8, group_size=4, num_minibatches=2, micro_batch_size=2
  )
  assert report.largest_batch(config, target()) == 96


def test_the_mesh_of_the_command_line_replaces_that_of_the_config():
  config = meshes.replaced(resolved(), "fsdp:16,tensor:4")
  assert dataclasses.asdict(config.mesh) == {
    "data": None,
    "fsdp": 16,
    "tensor": 4,
    "expert": 1,
  }
  with pytest.raises(ValueError, match=r"'tp:4' is no axis.*NAME:SIZE"):
    meshes.replaced(resolved(), "tp:4")


@pytest.mark.slow
def test_a_problem_in_words_is_compiled_without_its_data():
  """Verifiers on the host: their scores are an input."""
  config = tiny_config.get_config("grpo")
  config.phases = ("rl",)
  config.data.source = "jsonl"
  config.data.train_path = "nowhere.jsonl"
  config.data.tokenizer = "nowhere.json"
  config.data.max_prompt_len = 8
  config.sampling.max_new_tokens = 8
  config.rewards.functions = ("math_accuracy",)
  found = steps.compile_step(config_lib.resolve(config), jax.devices()[:1])
  assert found.step.most_tokens == 7
  assert steps.analyze(found).phases["update"].flops > 0


@pytest.mark.slow
def test_a_rollout_alone_has_no_update():
  config = tiny_config.get_config("grpo")
  config.phases = ("rl",)
  resolved = config_lib.resolve(config)
  found = steps.compile_step(resolved, jax.devices()[:1], only_rollout=True)
  phases = steps.analyze(found).phases
  assert phases["decode"].flops > 0
  assert {"update", "optimizer", "reference"}.isdisjoint(phases)


@pytest.mark.slow
def test_the_page_has_a_line_and_a_report_of_each_row(compiled, tmp_path):
  results = made(compiled)
  name, other = list(table.ROWS)[:2]
  report.write(tmp_path / name, results)
  report.write(
    tmp_path / other, {**results, "fits": False, "compiler": "Used 2G of 1G"}
  )
  page = table.page(tmp_path)
  lines = page.splitlines()
  (row,) = (line for line in lines if line.startswith(f"| [{name}]"))
  assert f"| {results['at_least_s']:.2f} |" in row
  (row,) = (line for line in lines if line.startswith(f"| [{other}]"))
  assert row.split(" | ")[4] == "no"
  assert f"## {name}" in lines
  assert "fits: NO. Used 2G of 1G" in lines
  assert len({line.count("|") for line in lines if line[:1] == "|"}) == 1
  saved = json.loads((tmp_path / f"{name}.json").read_text("utf-8"))
  text = report.table(saved)
  programs_test.assert_fits(text)
  assert text in page


@pytest.mark.parametrize(
  ("said", "missing"),
  [
    (
      "Used 46.10G of 31.25G hbm. Exceeded hbm capacity by 14.85G.",
      "14.85 GiB",
    ),
    (
      "Ran out of memory on HBM, the total memory required for HLO temporaries"
      " (35.77G) exceeds available HBM (31.25G).",
      "4.52 GiB and the arguments",
    ),
    ("Used 2G of 1G", ""),
  ],
)
def test_what_is_missing_is_read_from_what_the_compiler_says(said, missing):
  assert table._missing({"compiler": said}) == missing


@pytest.mark.slow
def test_a_row_that_broke_off_is_reported_and_leaves_the_old_one(
  compiled, tmp_path, monkeypatch, capsys
):
  folder = tmp_path / "pods"
  folder.mkdir()
  name, other = list(table.ROWS)[:2]
  report.write(folder / name, made(compiled))
  broken = subprocess.CompletedProcess([], 1)  # As after a traceback.
  monkeypatch.setattr(rows.subprocess, "run", lambda *_, **__: broken)
  for flag, value in (("_ONLY", [name, other]), ("_FOLDER", str(folder))):
    holder = types.SimpleNamespace(name=flag, value=value)
    monkeypatch.setattr(table, flag, holder)
  assert table.main([]) == 1
  assert f"not compiled: {name}, {other}" in capsys.readouterr().err
  assert f"## {name}" in (tmp_path / "pods.md").read_text("utf-8")


@pytest.mark.slow
def test_a_slice_that_is_not_sold_is_refused():
  result = command.run("pods.report", command.TINY, "--topology=v5e-7")
  programs_test.assert_refused(result, "no slice of v5e has 7")
