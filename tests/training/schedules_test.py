"""Runs whose prompts depend on what became of those before."""

import signal

import pytest

from grpo_jax.training import config as config_lib
from grpo_jax.training import loop, metrics_log, problem, schedules
from grpo_jax.training.schedule_settings import ScheduleConfig
from tests.experiments import tiny_config
from tests.training import resume_test


@pytest.mark.slow
def test_a_run_that_was_stopped_chooses_the_same_prompts(tmp_path, monkeypatch):
  config = tiny_config.get_config("curriculum")
  config.phases = ("rl",)
  config.eval.every = config.log.traces_every = 0
  config.checkpoint.every = 0
  loop.train(config, tmp_path / "whole")
  write = metrics_log.MetricsLog.write

  def stop_at_three(self, step, *rest):
    if step == 3:
      signal.raise_signal(signal.SIGTERM)
    write(self, step, *rest)

  with monkeypatch.context() as patch:
    patch.setattr(metrics_log.MetricsLog, "write", stop_at_three)
    stopped = loop.train(config, tmp_path / "stopped")
  assert stopped.preempted
  assert 3 <= stopped.step < 6
  assert loop.train(config, tmp_path / "stopped").step == 6
  expected = resume_test.everything(tmp_path / "whole", 6)
  resume_test.assert_same(
    resume_test.everything(tmp_path / "stopped", 6), expected
  )
  assert {"['schedule']['a']", "['schedule']['places']"} <= expected.keys()
  lines = metrics_log.read_lines(tmp_path / "whole" / metrics_log.METRICS)
  seen = [line["schedule/seen"] for line in lines if "schedule/seen" in line]
  assert seen == sorted(seen)
  assert seen[0] == pytest.approx(4 / 12)
  assert len({line["schedule/expected"] for line in lines[1:]}) > 3


@pytest.fixture(scope="module")
def text():
  """Settings with data in a file, and the problem."""
  config = tiny_config.get_config("on_host")
  config.phases = ("rl",)
  config.rl.staleness = 0
  config.rl.schedule.name = "target"
  settings = config_lib.resolve(config)
  made = problem.make_problem(settings)
  yield settings, made
  made.close()


def test_a_pool_has_the_first_records_that_fit(text):
  settings, made = text
  lengths = [len(made.encoder.prompt(made.train[i])) for i in range(20)]
  longest = sorted(lengths)[10]
  cut = settings.with_section(
    "rl",
    max_prompt_len=longest,
    schedule=ScheduleConfig("target", pool=20),
  )
  found = schedules.pool(cut, made, "rl").numbers
  assert found.tolist() == [i for i in range(20) if lengths[i] <= longest]
  assert schedules.make(cut, made, "rl").size == len(found)
  assert len(schedules.pool(settings, made, "rl").numbers) > 20

  stream = schedules.stream(cut, made, "rl", [1, 3])
  batch = stream.take([0, 5, 2, 7])
  assert batch.numbers == (found[5], found[7])
  assert batch.records == [made.train[found[5]], made.train[found[7]]]
  assert batch.prompts.ids.tolist() == [1, 3]
  assert stream.get_state() == {"taken": 1}
  # Draws of a prompt that comes again are others: its occurrence is.
  stream.set_state({"taken": 7})
  assert stream.take([0, 5, 2, 7]).prompts.ids.tolist() == [29, 31]


def test_what_nobody_can_choose_from_is_refused(text):
  settings, made = text

  def pool(**fields):
    own = ScheduleConfig("target", **fields)
    schedules.pool(settings.with_section("rl", schedule=own), made, "rl")

  with pytest.raises(ValueError, match=r"num_prompts=4 different .* the 3 to"):
    pool(pool=3)
  with pytest.raises(ValueError, match=r"rl\.schedule\.pool=9999, and there"):
    pool(pool=9999)
  config = tiny_config.get_config("curriculum")
  config.rl.schedule.pool = None
  task = config_lib.resolve(config)
  with pytest.raises(ValueError, match=r"rl\.schedule\.pool=None: the task"):
    schedules.pool(task, problem.make_problem(task), "rl")
  config.rl.schedule.name = "epochs"
  config.rl.schedule.pool = 8
  with pytest.raises(ValueError, match="has pool, settings of a pool"):
    config_lib.resolve(config)
  config.rl.schedule.pool = None
  config.sft.schedule.name = "uniform"
  with pytest.raises(ValueError, match=r"sft\.schedule\.name='uniform': prom"):
    config_lib.resolve(config)
