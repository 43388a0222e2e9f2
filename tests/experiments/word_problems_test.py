"""Word problems with a tool, and the run that learns to use it."""

import collections
import random

import pytest

from experiments.rewards import word_problems
from grpo_jax.data import tokenizer
from grpo_jax.training.runtime import log
from tests.experiments import command
from tests.training import resume_test

FILES = ("train.jsonl", "test.jsonl", "traces.jsonl", "tokenizer.json")


@pytest.fixture
def few(monkeypatch):
  monkeypatch.setattr(word_problems, "NUM_TRAIN", 200)
  monkeypatch.setattr(word_problems, "NUM_TEST", 16)


def test_a_known_problem():
  problem = word_problems.Problem("", (274, 455, 88), "+-")
  assert (problem.expression, problem.answer) == ("274+455-88", "641")
  assert word_problems.Problem("", (12, 34, 5), "*+").answer == "413"
  train, test = word_problems.problems()
  assert (len(train), len(test)) == (8192, 256)
  assert len({x.prompt for x in train + test}) == len(train) + len(test)
  for problem in train[:200]:
    assert problem.answer == str(eval(problem.expression))
    assert all(str(x) in problem.prompt for x in problem.numbers)


def test_the_teacher_is_as_careless_as_is_said():
  train, _ = word_problems.problems()
  rng = random.Random(1)
  counts = collections.Counter()
  for problem in train:
    blocks = word_problems.actions(problem, rng)
    if not blocks:
      counts["by heart"] += 1
      continue
    names = {}
    for block in blocks[:-1]:
      exec(block, names)
    last = blocks[-1].removeprefix("print(").removesuffix(")")
    counts[
      "right" if str(eval(last, names)) == problem.answer else "wrong"
    ] += 1
    counts["two calls"] += len(blocks) == 2
  shares = {name: count / len(train) for name, count in counts.items()}
  assert 0.38 < shares["by heart"] < 0.42
  assert 0.28 < shares["wrong"] < 0.32
  assert shares["two calls"] > 0.15


@pytest.mark.slow
def test_the_files_are_what_is_said(few, tmp_path):
  for name in ("one", "two"):
    word_problems.write(tmp_path / name)
  for name in FILES:
    one, two = (tmp_path / folder / name for folder in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
  text = tokenizer.Tokenizer(tmp_path / "one" / "tokenizer.json")
  for tag in (*word_problems.TAGS, "<answer>", "</answer>"):
    assert len(text.encode(tag)) == 1
  lines = log.read_lines(tmp_path / "one" / "traces.jsonl")
  assert len(lines) == 200
  for line in lines:
    ids, observed = line["completion_ids"], line.get("observed", [])
    read = [x for x, is_read in zip(ids, observed, strict=False) if is_read]
    said = text.decode(read)
    assert said.count("<obs>") == said.count("</obs>")
    assert said.count("<obs>") == line["completion"].count("<tool>")
    written = text.decode(
      [x for i, x in enumerate(ids) if not (observed and observed[i])]
    )
    assert "<obs>" not in written
    # What the tool has said last is the answer.
    answer = line["completion"].split("<answer>")[1].removesuffix("</answer>")
    if read:
      assert said.split("<obs>")[-1] == f"{answer}</obs>"
    else:
      assert answer == line["answer"]


_TINY = {
  "model.width": 32,
  "model.num_layers": 1,
  "model.mlp_width": 64,
  "sft.steps": 60,
  "sft.num_prompts": 32,
  "sft.num_lengths": 1,
  "sft.optimizer.learning_rate": 1e-2,
  "rl.steps": 6,
  "rl.num_prompts": 2,
  "rl.group_size": 4,
  "rl.num_lengths": 1,
  # So that rewards differ before anything is right.
  "rewards.weights": "(1.0,1.0,0.5)",
  "eval.num_prompts": 4,
  "eval.batch_size": 4,
  "eval.every": 0,
  "checkpoint.every": 2,
  "log.trackers": (),
}


def _arguments(data):
  """Arguments of the run as users start it, with sizes of a toy."""
  settings = {
    **_TINY,
    "data.train_path": data / "train.jsonl",
    "data.eval_path": data / "test.jsonl",
    "data.tokenizer": data / "tokenizer.json",
    "sft.demonstrations": f"('{data / 'traces.jsonl'}',)",
  }
  return [
    f"--config={command.ROOT / 'configs/python_agent.py'}",
    *(f"--config.{name}={value}" for name, value in settings.items()),
  ]


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_killed_ends_with_the_same_bytes(tmp_path):
  status, _, err = command.run("rewards.word_problems", f"--out={tmp_path}")
  assert status == 0, err
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  arguments = _arguments(tmp_path)
  # In the midst of an episode, after the first steps that were rewarded.
  resume_test.kill(arguments, killed, 63)
  for workdir in (whole, killed):
    status, _, err = command.run("train", *arguments, f"--workdir={workdir}")
    assert status == 0, err
  expected = resume_test.everything(whole)
  resume_test.assert_same(resume_test.everything(killed), expected)
  lines = log.read_lines(whole / "metrics.jsonl")
  calls = [x["reward/tool_calls"] for x in lines if "reward/tool_calls" in x]
  assert any(calls)
  assert any(x.get("gradient_norm") for x in lines if x["phase"] == "rl")
