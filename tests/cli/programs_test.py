"""The programs of `experiments`, started as a user starts them."""

import json
import re

import pytest

from tests.experiments import command

pytestmark = pytest.mark.slow


def assert_fits(*outputs: str) -> None:
  """No line is wider than a terminal."""
  for output in outputs:
    assert [line for line in output.splitlines() if len(line) > 80] == []


def assert_refused(result: tuple[int, str, str], *messages: str) -> None:
  """Exit status 2 and one message, without a traceback."""
  status, out, err = result
  assert status == 2
  words = " ".join(err.split())
  assert words.startswith("error: ")
  for message in messages:
    assert message in words
  assert "Traceback" not in out + err
  assert_fits(out, err)


def test_train_reports_before_and_after(finished):
  assert finished.status == 0, finished.err
  assert "\nPASS: accuracy 0." in finished.out
  for pattern in (
    r"held-out, greedy, n = 8 +before +after +change\n"
    r"  accuracy +0\.\d{3} +0\.\d{3} +[+-]0\.\d{3}\n"
    r"  accuracy_scored +0",
    r"accuracy 0\.\d+ -> 0\.\d+, 95 % intervals 0\.\d+-[01]\.\d+ and"
    r" 0\.\d+-[01]\.\d+, in \d+ s\n",
    r"plot: run/curves\.png",
  ):
    assert re.search(pattern, finished.out)
  assert re.search(r"sft 10/10 \[#+\] loss \d", finished.err)
  assert re.search(r"rl 10/10 \[#+\] reward \d", finished.err)
  assert_fits(finished.out, finished.err)
  run = finished.cwd / "run"
  assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
  assert {path.name for path in run.iterdir()} == {
    "checkpoints",
    "config.json",
    "curves.png",
    "environment.json",
    "inputs.json",
    "metrics.jsonl",
    "result.json",
    "samples.jsonl",
    "tensorboard",
    "timings.jsonl",
    "traces.jsonl.gz",
  }


def test_train_fails_below_the_required_accuracy(tmp_path, finished):
  finished.copy(tmp_path)
  # A verdict may change on a finished run, which is only evaluated.
  status, out, err = command.run(
    "train",
    command.TINY,
    "--workdir=run",
    "--config.required_accuracy=1.0",
    cwd=tmp_path,
  )
  assert status == 1, err
  assert "continuing after step 20 (rl), which was the last\n" in out
  assert "this one as --config.start_workdir\n" in out
  assert re.search(r"\nFAIL: accuracy 0\.\d{3} < 1\.000\n", out)
  assert_fits(out, err)


def test_train_says_that_no_phase_is_evaluated(tmp_path):
  status, out, err = command.run(
    *("train", command.TINY, "--workdir=run", "--config.phases=('sft',)"),
    *("--config.sft.steps=1", "--config.required_accuracy=1.0"),
    cwd=tmp_path,
  )
  assert status == 0, err
  words = " ".join(out.split())
  assert (
    "no verdict on config.required_accuracy=1: no phase of ('sft',)" in words
  )


def test_evaluate_prints_and_saves_what_it_found(tmp_path, finished):
  finished.copy(tmp_path)
  status, out, err = command.run(
    "evaluate",
    "--workdir=run",
    "--num_samples=4",
    "--completions=completions.jsonl",
    cwd=tmp_path,
  )
  assert status == 0, err
  assert_fits(out, err)
  said = json.loads((tmp_path / "run/evaluation.json").read_text())
  assert (said["policy"], said["step"], said["num_samples"]) == ("run", 20, 4)
  section = said["data_sets"]["held_out"]
  assert section["num_prompts"] == 8
  assert section["greedy"]["unscored"] == section["sampled"]["unscored"] == 0
  table = section["figures"]
  assert list(table) == [
    *("greedy", "greedy_scored", "avg@4", "pass@1", "maj@1", "pass@2"),
    *("maj@2", "pass@4", "maj@4"),
  ]
  for name, row in table.items():
    assert 0 <= row["low"] <= row["value"] <= row["high"] <= 1
    assert re.search(
      rf"  {name} +{row['value']:.3f} +\(95 % interval {row['low']:.3f}-", out
    )
  # The same policy on the same prompts as at the end of the training.
  after = re.search(
    r"-> (\d\.\d+), 95 % intervals [\d.-]+ and (\d\.\d+)-", finished.out
  )
  assert f"{table['greedy']['value']:.3f}" == after[1]
  assert f"{table['greedy']['low']:.3f}" == after[2]
  # Some samples are right and some are not.
  assert 0 < table["pass@1"]["value"] < table["pass@2"]["value"]
  assert table["pass@2"]["value"] < table["pass@4"]["value"]
  # A majority of one is a random sample, here of those that ended.
  assert table["maj@1"]["value"] <= table["pass@1"]["value"]
  lines = (tmp_path / "completions.jsonl").read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  assert [row["id"] for row in rows] == list(range(8))
  assert sum(row["greedy"]["correct"] for row in rows) == (
    8 * table["greedy"]["value"]
  )
  right = [x["correct"] for row in rows for x in row["samples"]]
  assert len(right) == 32
  assert sum(right) / 32 == table["avg@4"]["value"]


def test_sample_completes_a_prompt_as_the_evaluation_did(finished):
  """Where the batches of the training would not divide the devices."""
  shown = re.search(r"\n  (\w+=) +(\w+) +\d\.\d\d\n", finished.out)
  ((status, out, err),) = command.finish_all(
    command.start_all(
      1,
      3,
      "sample",
      f"--workdir={finished.cwd / 'run'}",
      f"--prompt={shown[1]}",
    )
  )
  assert status == 0, err
  assert out == f"{shown[2]}\n"


@pytest.mark.parametrize("program", ["evaluate", "sample"])
def test_empty_workdir_is_refused(tmp_path, program):
  arguments = ["--workdir=run", *["--prompt=ab="][: program == "sample"]]
  assert_refused(
    command.run(program, *arguments, cwd=tmp_path),
    "run holds no run: run/config.json is missing.",
    "Pass the --workdir of grpo-train.",
  )
  assert list(tmp_path.iterdir()) == []


# A process for each mistake.
def test_adapters_are_written_as_they_are(tmp_path):
  for flag in "--dtype=bfloat16", "--nolater_layers":
    given = "--workdir=run", "--out=out", "--adapters", flag
    result = command.run("export", *given, cwd=tmp_path)
    assert_refused(result, "are of merged weights, and --adapters")
  assert not [*tmp_path.iterdir()]


def test_mistake_on_the_command_line_is_one_message(tmp_path):
  def train(*arguments):
    return command.run(
      "train", command.TINY, "--workdir=run", *arguments, cwd=tmp_path
    )

  assert_refused(
    train("--config.rl.grup_size=4"),
    "no setting 'grup_size'. Did you mean --config.rl.group_size?",
  )
  sizes = "--config.rl.num_minibatches=3"
  assert_refused(train(sizes), "4 × 4 = 16 rows", "--debug")
  status, _, err = train(sizes, "--debug")
  assert status == 1
  assert "Traceback (most recent call last)" in err
  assert list(tmp_path.iterdir()) == []
