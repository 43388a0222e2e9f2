"""The problems of the code task, and the run that learns them."""

import pytest

from experiments.rewards import code_task
from grpo_jax.rewards import code
from grpo_jax.rewards.sandbox import box as box_lib
from grpo_jax.training.runtime import log
from tests.experiments import command


def test_the_files_are_what_is_said(tmp_path):
  for name in ("one", "two"):
    code_task.write(tmp_path / name)
  for name in ("train.jsonl", "test.jsonl"):
    one, two = (tmp_path / folder / name for folder in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
  train = log.read_lines(tmp_path / "one" / "train.jsonl")
  test = log.read_lines(tmp_path / "one" / "test.jsonl")
  prompts = {x["prompt"] for x in train}
  assert (len(train), len(prompts), len(test)) == (1600, 200, 64)
  assert len({x["prompt"] for x in test} - prompts) == 64
  # What imitates the teacher perfectly is wrong seven times out of ten.
  wrong = 0
  for record in train:
    names = {}
    exec(record["completion"], names)
    tests = record["extras"]["tests"]
    assert len({x["call"] for x in tests}) == len(tests) == 5
    wrong += any(repr(eval(x["call"], names)) != x["output"] for x in tests)
  assert 0.65 < wrong / len(train) < 0.75


def test_a_right_program_passes_and_the_wrong_order_fails():
  box = box_lib.Box("process")
  limits = box_lib.BoxLimits(wall_s=20.0)
  _, test = code_task.problems()
  for steps in test[:3]:
    for sloppy, passed in ((False, 5), (True, 0)):
      found = code_task.record(steps, sloppy)
      tests = code.of_row(found["extras"])
      program = code.program_of(found["completion"])
      assert code.num_passed(box, program, tests, limits, 60.0) == passed


def test_a_known_problem():
  add, multiply = code_task._SUMS[2], code_task._PRODUCTS[0]
  record = code_task.record((add, multiply), sloppy=False)
  assert record["prompt"] == "Add 3, then multiply by 2."
  assert record["completion"] == "def f(x): return (x+3)*2"
  sloppy = code_task.record((add, multiply), sloppy=True)
  assert sloppy["completion"] == "def f(x): return x*2+3"
  assert sloppy["extras"] == record["extras"]


@pytest.mark.long
@pytest.mark.slow
def test_programs_are_learnt_from_hidden_tests(tmp_path, monkeypatch):
  """From a wrong habit to right programs, as users run it, in fewer steps.

  Most of the time, programs run in their sandboxes.
  """
  monkeypatch.delitem(command.ENVIRONMENT, "XLA_FLAGS", raising=False)
  code_task.write(tmp_path)
  status, _, err = command.run(
    "train",
    "--config=configs/code.py",
    f"--config.data.train_path={tmp_path / 'train.jsonl'}",
    f"--config.data.eval_path={tmp_path / 'test.jsonl'}",
    "--config.rl.steps=20",
    "--config.rl.optimizer.schedule=constant",
    "--config.eval.every=0",
    "--config.rl.num_lengths=1",  # Compiles faster.
    f"--workdir={tmp_path / 'run'}",
  )
  assert status == 0, err
  lines = log.read_lines(tmp_path / "run" / log.METRICS)
  shares = [x["eval/reward"] for x in lines if "eval/reward" in x]
  assert shares[0] <= 0.5
  assert shares[-1] >= 0.9
