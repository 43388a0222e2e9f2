"""Runs that are judged by a model over HTTP."""

import jax
import numpy as np
import pytest

from grpo_jax.settings import config
from grpo_jax.tasks import vocabulary
from grpo_jax.training import loop
from grpo_jax.training.phases import workdir as workdir_lib
from grpo_jax.training.runtime import files, log, sharding
from tests.experiments import tiny_config
from tests.rewards.workers import judge_server

KEY = "sk-secret-0123456789"


def get_config(url):
  made = tiny_config.get_config("grpo")
  made.phases = ("rl",)
  made.rl.steps = 6
  made.rl.ema_decay = None
  made.checkpoint.every = 2
  made.log.trackers = ()
  made.rewards.functions = ("accuracy", "judge")
  made.rewards.weights = (0.0, 1.0)
  made.rewards.correct = "accuracy"
  made.judge.rubric = "Sort {prompt} {completion}"
  made.judge.model = "model"
  made.judge.service.url = url
  return made


def test_without_a_verdict_a_run_ends_before_it_begins(tmp_path, monkeypatch):
  monkeypatch.setenv("JUDGE_API_KEY", KEY)
  wrong = 401, {}, f"no such key: {KEY}"
  with judge_server.serving(lambda *_: wrong) as server:
    made = get_config(server.url)
    with pytest.raises(ValueError, match="asked once before the run") as caught:
      loop.train(made, str(tmp_path))
  assert KEY not in str(caught.value)
  assert len(server.asked) == 1


def test_the_key_of_a_judge_is_for_no_verifier():
  made = get_config("https://host/v1")
  made.rewards.variables = ("JUDGE_API_KEY",)
  with pytest.raises(ValueError, match="which is for no verifier"):
    config.resolve(made)


def test_each_seed_has_a_judge_of_its_own():
  made = get_config("")
  made.judge.model = "runs/judge/seed={seed}"
  made.judge.rubric = "{seed}{completion}"
  made.seed = 3
  run = config.with_seed(config.resolve(made))
  assert run.judge.model == "runs/judge/seed=3"
  assert run.judge.rubric == "{seed}{completion}"


@pytest.mark.parametrize(
  ("functions", "rubric"), [(("accuracy", "judge"), ""), (("accuracy",), "x")]
)
def test_a_rubric_and_its_reward_go_together(functions, rubric):
  made = get_config("")
  made.rewards.functions = functions
  made.rewards.weights = (1.0,) * len(functions)
  made.judge.rubric = rubric and "{completion}"
  with pytest.raises(ValueError, match="set both, or none"):
    config.resolve(made)


def of(folder, name):
  """The parameters of a model in the last checkpoint of a run."""
  workdir = files.parse(folder)
  settings = workdir_lib.settings(workdir)
  step = workdir_lib.last_step(workdir, settings)
  shapes = {name: workdir_lib.shapes(workdir, settings, step)[name]}
  mesh = sharding.make_mesh(1)
  return workdir_lib.read(workdir, settings, step, shapes, mesh)[name]


@pytest.mark.slow
def test_a_run_of_another_size_judges_in_the_program(tmp_path):
  made = tiny_config.get_config("grpo")
  made.phases = ("sft",)
  made.model.width = 8
  made.sft.steps = 2
  made.log.trackers = ()
  loop.train(made, str(tmp_path / "judge"))
  made = get_config("")
  made.rl.steps = 2
  made.judge.model = str(tmp_path / "judge")
  made.judge.rubric = "{prompt}{completion}"
  # Whatever it writes is a verdict, or there is none.
  made.judge.verdicts = {x: i / 64 for i, x in enumerate(vocabulary.TOKENS)}
  made.rewards.max_unscored = 1.0
  loop.train(made, str(tmp_path / "policy"))
  own, kept = of(tmp_path / "judge", "policy"), of(tmp_path / "policy", "judge")
  assert jax.tree.leaves(own)
  assert all(jax.tree.leaves(jax.tree.map(np.array_equal, own, kept)))
  lines = (tmp_path / "policy" / log.METRICS).read_text("utf-8")
  assert '"reward/judge"' in lines
