"""Runs whose environment is one of the package `verifiers`, unchanged."""

import os
import pathlib
import signal
import time

import ml_collections
import numpy as np
import pytest

from grpo_jax import api
from grpo_jax.serving import endpoint
from grpo_jax.training import loop
from grpo_jax.training.runtime import log
from tests.experiments import command
from tests.rewards.workers import verifiers_process_test
from tests.training import resume_test
from tests.training.phases import served, served_config

pytestmark = pytest.mark.slow


def read(workdir):
  """Logged steps of a run, and its evaluation at the start."""
  lines = log.read_lines(workdir / log.METRICS)
  return [line for line in lines if "unscored" in line]


def rewards_of(workdir):
  return [row["reward/return"] for row in read(workdir)]


def train(*arguments):
  config = f"--config={command.ROOT / 'tests/training/phases/served_config.py'}"
  return command.start("train", config, *arguments)


def wait_for(condition, seconds=120):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.05)


@pytest.mark.long
def test_one_turn_is_learnt_and_a_killed_run_ends_as_one_that_was_not(tmp_path):
  whole, killed = tmp_path / "whole", tmp_path / "killed"
  (done,) = command.finish_all([train(f"--workdir={whole}")])
  assert done[0] == 0, done[2]
  rewards = rewards_of(whole)
  assert len(rewards) == served_config.STEPS
  # By chance a letter is "a" in 1 of 262 draws.
  assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1
  assert read(whole)[-1]["unscored"] == 0
  assert max(row["sampler_gap/max"] for row in read(whole)) < 1e-4

  process = train(f"--workdir={killed}")
  metrics = killed / log.METRICS
  wait_for(lambda: metrics.exists() and len(read(killed)) >= 7)
  children = resume_test.below(process.pid)
  assert children
  process.kill()
  process.communicate()
  # The process of the environment does not outlive its run.
  wait_for(lambda: not any(os.path.exists(f"/proc/{x}") for x in children), 10)
  assert len(read(killed)) < served_config.STEPS
  (done,) = command.finish_all([train(f"--workdir={killed}")])
  assert done[0] == 0, done[2]
  np.testing.assert_array_equal(rewards_of(killed), rewards)

  with api.load(killed) as run:
    (group,) = run.sample(run.prompts(1), n=2, temperature=1.0)
    assert all(row.valid for row in group)
    with pytest.raises(ValueError, match="plays its own tasks"):
      run.sample("say a")


def of_chats(folder, path, **options):
  """A config of two steps, with a template that has roles."""
  served.write_tokenizer(folder)
  config = served_config.get_config(path)
  config.rl.steps = 2
  config.data.tokenizer = str(folder)
  config.data.template = "chat"
  config.data.max_prompt_len = 48
  config.environment.max_action_len = 4
  config.sampling.max_new_tokens = 40
  config.environment.options = ml_collections.ConfigDict(options)
  return config


# For each kind: taskset, options, calls, and the text between two replies.
TURNS = {
  "own turns": ("verifiers_envs", {"turns": 2}, 2, "?|a:"),
  "tools": ("verifiers_tools", {"agent": {"max_turns": 3}}, 3, "|t:3|a:"),
}


@pytest.mark.parametrize("kind", TURNS)
def test_turns_and_tools_are_trained(tmp_path, monkeypatch, kind):
  path, options, num_turns, between = TURNS[kind]
  if kind == "tools":
    call = ("add", '{"a": 1, "b": 2}')
    monkeypatch.setattr(
      endpoint, "calls_named", lambda name: lambda text: (text, [call])
    )
  config = of_chats(tmp_path, path, **options)
  loop.train(config, tmp_path / "run")
  row = read(tmp_path / "run")[-1]
  assert row["unscored"] == 0
  assert row["sampler_gap/max"] < 1e-4
  assert row[f"turn/{num_turns - 1}/tokens"] > 0
  assert row[f"turn/{num_turns}/tokens"] == 0
  sample = log.read_lines(tmp_path / "run" / log.SAMPLES)[-1]
  assert sample["completion"].count(between) == num_turns - 1
  if kind == "tools":
    assert sample["prompt"].startswith("[add]u:1 + 2 = ?|a:")
    assert row["reward/calls"] == num_turns - 1  # The last is not told.
    assert row["reward/right"] == 1.0
  else:
    assert sample["prompt"].startswith("u:say ")
    assert {"reward/vowels", "reward/length"} <= {*row}


def test_a_user_whose_messages_nobody_knows_before_is_read(tmp_path):
  with verifiers_process_test.model() as url:
    user = {"model": "user", "client": verifiers_process_test.client(url)}
    config = of_chats(tmp_path, "verifiers_envs", id="user-sim", user=user)
    loop.train(config, tmp_path / "run")
  assert read(tmp_path / "run")[-1]["unscored"] == 0
  sample = log.read_lines(tmp_path / "run" / log.SAMPLES)[-1]
  assert sample["prompt"] == "u:"
  assert sample["completion"].startswith("a|a:")

  config.data.template = "{prompt}"
  with verifiers_process_test.model() as url:
    config.environment.options.user.client.base_url = url
    with pytest.raises(ValueError, match=r"data\.template='chat'"):
      loop.train(config, tmp_path / "plain")


def test_what_an_environment_does_wrong_is_survived(tmp_path):
  for act, kind in (
    ("die", "worker_died"),
    ("block", "timeout"),
    ("rewrite", "rewritten"),
  ):
    config = served_config.get_config()
    config.sampling.max_new_tokens = 24
    config.environment.max_action_len = 4
    taskset = {"acts": [act], "num_tasks": 4}
    config.environment.options = ml_collections.ConfigDict(
      {"taskset": taskset, "turns": 2}
    )
    config.rl.steps = 1
    config.rewards.row_timeout_s = 1.0 if act == "block" else 60.0
    config.rewards.max_unscored = 1.0
    loop.train(config, tmp_path / act)
    (row,) = read(tmp_path / act)
    counts = {
      name.removeprefix("unscored/"): n
      for name, n in row.items()
      if name.startswith("unscored/") and n
    }
    assert set(counts) == {kind}, act
    # The first task is at fault; a process takes the others with it.
    assert counts[kind] == row["unscored"] >= 4


def test_a_process_that_is_killed_in_a_step_costs_that_step(tmp_path):
  process = train(f"--workdir={tmp_path}", "--config.rl.steps=8")
  metrics = tmp_path / log.METRICS
  wait_for(lambda: metrics.exists() and read(tmp_path))
  for child in resume_test.below(process.pid):
    with_it = pathlib.Path(f"/proc/{child}/cmdline")
    if with_it.exists() and b"verifiers_worker" in with_it.read_bytes():
      os.kill(child, signal.SIGKILL)
  _, err = process.communicate()
  assert process.returncode == 0, err
  lost = [row["unscored/worker_died"] for row in read(tmp_path)]
  assert len(lost) == 8
  assert sum(lost) in (0, 16)  # Between two steps nothing is lost.
  assert read(tmp_path)[-1]["unscored"] == 0
