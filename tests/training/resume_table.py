"""Runs that are stopped and go on: features -> settings and stops.

Features that go together share a run, because nearly all of a run's time is
compilation. `resume_test.py` has the test, and `get_config` is the file that
the commands of a real process name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from grpo_jax.settings import config as config_lib
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.problem import problem
from grpo_jax.training.runtime import checkpoints, files, traces
from tests.experiments import tiny_config
from tests.training.phases import schedules_test


class Row(NamedTuple):
  """Run that is stopped at some moments.

  Attributes:
    base: Name of the config that `tiny_config` has, or a function that makes
      the config, given a folder for files.
    settings: Setting -> value. FOLDER stands for the folder.
    stops: For each start but the last the moment when it is stopped, a key of
      `resume_test.MOMENTS`, and the number of the call.
    shows: Metrics that are not 0 in all steps.
    state: Beginnings of names of arrays that a checkpoint must have.
    extra: Names of other data that a checkpoint must have.
    check: Function that checks the run's folder.
    is_fast: True if the test is not marked slow.
  """

  base: str | Callable[[pathlib.Path], Any]
  settings: Mapping[str, Any]
  stops: tuple[tuple[str, int], ...]
  shows: tuple[str, ...] = ()
  state: tuple[str, ...] = ()
  extra: tuple[str, ...] = ()
  check: Callable[[pathlib.Path], None] = lambda workdir: None
  is_fast: bool = False


_TWELVE = {
  "sft.steps": 6,
  "rl.steps": 6,
  "checkpoint.every": 2,
  "eval.every": 0,
}


def _judged(folder: pathlib.Path) -> Any:
  """A run on text, with a judge at an address of the environment."""
  config = tiny_config.get_config("on_host")
  path = folder / "train.jsonl"  # An index is written beside it.
  if not path.exists():
    shutil.copy(config.data.train_path, path)
  config.data.train_path = str(path)
  config.rewards.functions += ("judge",)
  config.rewards.weights = (1.0, 1.0)
  config.judge.rubric = "Good? {prompt} {completion}"
  config.judge.model = "model"
  config.judge.service.url = os.environ["JUDGE_URL"]
  return config


def _clusters(folder: pathlib.Path) -> Any:
  """The run that keeps completions, with clusters of its prompts in a file."""
  config = tiny_config.get_config("r1")
  made = problem.make_problem(config_lib.resolve(config))
  schedules_test.write_clusters(
    folder / "clusters.npz",
    [made.train[i] for i in range(12)],
    3 * [0, 1, 2, 1],
  )
  return config


def _are_replayed(workdir: pathlib.Path) -> None:
  """Groups of old versions are traced with their prompts."""
  old = [
    group
    for group in traces.read(workdir)
    if group.split == "train"
    and group.rows[0].values["version"].max() < group.step - 1
  ]
  assert old
  assert all(group.prompt for group in old)


def _have_hints(workdir: pathlib.Path) -> None:
  """Hints are traced."""
  rows = [row for group in traces.read(workdir) for row in group.rows]
  assert any(row.values.get("observed", np.zeros(1)).any() for row in rows)


def _is_opened_while_rollouts_wait(workdir: pathlib.Path) -> None:
  """The policy is read of a checkpoint with rollouts drawn ahead."""
  saved = checkpoints.Checkpoints(workdir / "checkpoints", keep=2)
  step, *_ = saved.steps()
  extra = saved.extra(step)
  saved.close()
  assert extra["queue"]
  with contextlib.ExitStack() as stack:
    found = checkpointed.opened(stack, files.parse(str(workdir)), step)
    assert found.step == step


TABLE = {
  "iterative": Row(
    "iterative",
    {"rl.schedule.name": "frontier", "rl.schedule.pool": 12},
    (("stepping", 5), ("saving", 3), ("evaluating", 2)),
    shows=("history/groups", "schedule/seen"),
    state=(
      "['models']['policy']['params']",
      "['models']['policy']['opt_state']",
      "['models']['policy']['average']",
      "['models']['reference']['params']",
      "['models']['reward']['params']",
      *("['algorithm_state']", "['key']", "['reservoir']"),
      *("['schedule']['a']", "['schedule']['places']"),
    ),
    extra=("stream", "rewards"),
  ),
  "groups": Row(
    "dapo",
    {
      **_TWELVE,
      "rl.group_size": 2,
      "rl.num_minibatches": 1,
      "rl.max_rounds": 2,
      "rl.recycle_surplus": True,
      "rl.replay_size": 6,
      "rl.transforms": ("tests.step.transforms_test:Centred",),
      "rl.optimizer.learning_rate": 0.05,
      "algorithm.importance_mode": "truncate",
      "algorithm.entropy_coef": 0.1,
      "log.traces_every": 1,
    },
    (("evaluating", 1), ("saving", 1)),
    shows=(
      *("drawn/rounds", "drawn/recycled", "replay/groups", "replay/age"),
      "transform/baseline",
    ),
    state=(
      *("['waiting']['surplus']", "['waiting']['replay']"),
      "['transforms']['0']",
    ),
    check=_are_replayed,
    is_fast=True,
  ),
  "hints": Row(
    "spo",
    {
      **_TWELVE,
      "phases": ("rl",),
      "data.name": "countdown",
      "data.task_options": {"num_numbers": 3, "last_answer": True},
      "rewards.functions": ("accuracy",),
      "sampling.max_new_tokens": 16,
      "model.lora_rank": 2,
      "model.quantization": "nf4",
      "rl.ema_decay": None,
      "rl.group_size": 1,
      "rl.schedule.name": "spo",
      "rl.schedule.pool": 12,
      "rl.correction.p_cue": 0.5,
      "rl.correction.p_answer": 0.5,
      "rl.correction.cue": "=",
      "rl.correction.sentence": "=<answer>{answer}</answer>",
      "rl.correction.max_new_tokens": 4,
    },
    (("writing", 3), ("stepping", 2)),
    shows=("schedule/expected", "correction/share"),
    state=("['schedule']['logp']",),
    check=_have_hints,
  ),
  "r1": Row(
    _clusters,
    {
      "rl.staleness": 2,
      "algorithm.importance_mode": "truncate",
      "rl2.schedule.name": "ads",
      "rl2.schedule.pool": 12,
      "rl2.schedule.drawn_clusters": 2,
      "rl2.schedule.window": 2,
      "rl2.schedule.clusters": "FOLDER/clusters.npz",
    },
    (("stepping", 7), ("writing", 4), ("stepping", 6)),
    shows=("staleness/mean", "schedule/seen"),
    state=("['schedule']['windows']",),
  ),
  "text": Row(
    _judged,
    {
      "data.streaming": True,
      "sampling.weights_dtype": "int8",
      "judge.service.max_calls": 100,  # Of both starts together.
      "rewards.max_unscored": 1.0,
    },
    (("compiling", 1), ("asking", 6), ("kill", 14)),
    shows=(
      *("sampler_gap/mean", "staleness/mean", "judge/calls"),
      "unscored/judge_cap",
    ),
    extra=("judge_calls",),
    check=_is_opened_while_rollouts_wait,
  ),
  "partial": Row(
    "grpo",
    {
      "data.name": "calc_tool",
      "data.task_options": {},
      "rewards.functions": ("return", "malformed"),
      "rewards.weights": (1.0, 0.5),
      "rewards.correct": "return",
      "sampling.max_new_tokens": 76,
      "rl.partial_len": 12,
      "rl.staleness": 1,
      "rl.num_minibatches": 1,
      "rl.num_lengths": 1,
      "algorithm.importance_mode": "truncate",
      "eval.every": 0,
      "sft.steps": 1,
      "rl.steps": 5,
      "checkpoint.every": 2,
    },
    (("stepping", 5),),
    shows=("partial/trained_groups", "partial/waiting_tokens"),
    state=("['waiting']['partial']",),
  ),
}


def get_config(argument: str) -> Any:
  """Makes the config of a row, given "NAME:FOLDER"."""
  name, _, folder = argument.partition(":")
  row = TABLE[name]
  config = (
    tiny_config.get_config(row.base)
    if isinstance(row.base, str)
    else row.base(pathlib.Path(folder))
  )
  config.log.trackers = ()
  with config.unlocked():
    for key, value in row.settings.items():
      *groups, last = key.split(".")
      if isinstance(value, str):
        value = value.replace("FOLDER", folder)
      if isinstance(value, dict):
        value = ml_collections.ConfigDict(value)
      functools.reduce(getattr, groups, config)[last] = value
  return config
