"""Runs whose prompts depend on what became of those before."""

import dataclasses
import json

import numpy as np
import pytest

from grpo_jax.data import clusters
from grpo_jax.settings import config as config_lib
from grpo_jax.settings.phase import ScheduleConfig
from grpo_jax.training.phases import schedules
from grpo_jax.training.problem import problem
from tests.experiments import tiny_config
from tests.training import tiny


def write_clusters(path, records, labels):
  """A file in which later records are harder."""
  losses = np.arange(len(records)) / 10
  known = clusters.Clusters(np.array(labels), losses, 4)
  path.write_bytes(clusters.packed(records, known, {}))


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
    "rl", max_prompt_len=longest, schedule=ScheduleConfig("target", pool=20)
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
  with pytest.raises(ValueError, match="pool=8 is not read with"):
    config_lib.resolve(config)


def ads_of(settings, made, path, **fields):
  own = ScheduleConfig(
    "ads", clusters=str(path), drawn_clusters=2, window=2, pool=12
  )
  own = dataclasses.replace(own, **fields)
  size = own.drawn_clusters * own.window
  changed = settings.with_section("rl", schedule=own, num_prompts=size)
  return schedules.make(changed, made, "rl")


def test_clusters_are_those_of_the_pool(text, tmp_path):
  settings, made = text
  path = tmp_path / "clusters.npz"
  records = [made.train[i] for i in range(12)]
  write_clusters(path, records, 3 * [0, 1, 2, 1])
  found = ads_of(settings, made, path)
  assert found.sizes.tolist() == [3, 6, 3, 0]
  assert found.order.tolist() == [0, 4, 8, 1, 3, 5, 7, 9, 11, 2, 6, 10]
  assert found.period == 3
  with pytest.raises(ValueError, match="a cluster has 3 prompts of the pool,"):
    ads_of(settings, made, path, window=4)
  with pytest.raises(ValueError, match="has 3 clusters of the pool"):
    ads_of(settings, made, path, drawn_clusters=4, window=1)
  with pytest.raises(ValueError, match="is of other data: it knows 12 records"):
    ads_of(settings, made, path, pool=13)


def test_counts_begin_with_the_completions_of_a_file(text, tmp_path):
  settings, made = text
  path = tmp_path / "samples.jsonl"
  texts = made.prompt_texts([made.train[i] for i in range(3)])
  lines = [
    {"prompt": texts[place], "valid": valid, "correct": correct}
    for place, valid, correct in (
      (2, True, True),
      (2, True, False),
      (2, False, False),
      (0, True, False),
    )
  ]
  lines.append({"prompt": "another", "valid": True, "correct": True})
  path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

  def spo(**fields):
    own = ScheduleConfig("spo", pool=12, samples=str(path), **fields)
    changed = settings.with_section("rl", schedule=own)
    return schedules.make(changed, made, "rl")

  found = spo(memory_low=0.5)
  # n₀ = 2: 2 · 1.5 / 3 of one in two; 2 · 0.5 / 2 and 2 · 1.5 / 2 of none.
  assert found.counts[:3].tolist() == [[0.5, 1.5], [0.5, 0.5], [1, 1]]
  assert found.num_slots == made.max_new_tokens
  path.write_text(json.dumps(lines[-1]), encoding="utf-8")
  with pytest.raises(ValueError, match="has 1 prompt, and none of the 12"):
    spo()
  path.write_text('{"prompt": "unscored"}', encoding="utf-8")
  with pytest.raises(
    ValueError, match=r"samples\.jsonl':1 is not a completion"
  ):
    spo()


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"name": "ads"}, "'ads' needs config.rl.schedule.clusters"),
    (
      {"name": "ads", "clusters": "x", "window": 9},
      "drawn_clusters 4 × window 9 = 36 prompts of a step, and num_prompts is",
    ),
    (
      {"name": "spo", "decay": 0.5},
      "decay=0.5 is not read with config.rl.schedule.name='spo'",
    ),
    ({"name": "frontier", "clusters": "x"}, "has clusters with name='ads'"),
  ],
)
def test_settings_of_another_schedule_are_refused(fields, message):
  config = tiny_config.get_config("curriculum")
  for name, value in fields.items():
    config.rl.schedule[name] = value
  with pytest.raises(ValueError, match=message):
    config_lib.resolve(config)


def test_what_is_known_of_prompts_is_asked_of_a_schedule_that_knows_it():
  config = tiny_config.get_config("curriculum")
  config.algorithm = config_lib.algorithm_config("spo")
  config.rl.group_size = 1
  config.rl.schedule = config_lib.default_config().rl.schedule
  with pytest.raises(ValueError, match="needs 'expected': a schedule"):
    tiny.phase_of(config)
