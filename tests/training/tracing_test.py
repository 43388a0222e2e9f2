"""Runs write traces at their steps, within their bytes, and draw them again."""

import dataclasses
import functools
import re

import jax
import numpy as np
import pytest

from grpo_jax.settings import config as config_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training import loop, replay, run, tracing
from grpo_jax.training.evaluation import trace_rows
from grpo_jax.training.phases import checkpointed
from grpo_jax.training.runtime import log as log_lib
from grpo_jax.training.runtime import traces
from tests.experiments import tiny_config
from tests.training import tiny


def _config(algorithm="grpo", **log):
  config = tiny_config.get_config(algorithm)
  config.sft.steps = 5
  config.rl.steps = 5
  if algorithm == "summaries":
    config.phases = ("sft", "rl")
  config.rl.num_lengths = 1  # Compiles faster.
  config.eval.every = 2
  config.checkpoint.every = 0
  config.log.trackers = ()
  config.log.samples_every = 0
  for name, value in log.items():
    config.log[name] = value
  return config


def test_what_is_left_is_counted_as_the_run_writes_it():
  config = tiny_config.get_config("stages")
  config.log.traces_every = 3
  settings = config_lib.resolve(config)
  times = []  # As the loop goes through them.
  offset = 0
  for name in settings.phases:
    phase = settings.section(name)
    if phase.of_kind.evaluates:
      times.append((offset, 2))
    for done in range(1, phase.steps + 1):
      every = settings.eval.every
      if phase.of_kind.evaluates and run.due(every, done, phase.steps):
        times.append((offset + done, 0))
      if tracing.is_traced(settings, name, done):
        times.append((offset + done, 1))
    offset += phase.steps
  assert len(times) == len(set(times)) > 10
  assert times == sorted(times)
  for number, time in enumerate(times):
    assert tracing.num_left(settings, *time) == len(times) - number
  assert tracing.num_left(settings, offset, 2) == 0


def test_phases_with_given_completions_have_no_traces():
  settings = config_lib.resolve(_config(traces_every=1))
  assert not tracing.is_traced(settings, "sft", 1)
  traced = [tracing.is_traced(settings, "rl", done) for done in range(1, 6)]
  assert traced == [True] * 5
  rare = config_lib.resolve(_config(traces_every=3))
  traced = [tracing.is_traced(rare, "rl", done) for done in range(1, 6)]
  assert traced == [True, False, True, False, True]
  never = config_lib.resolve(_config(traces_every=0))
  assert not any(tracing.is_traced(never, "rl", done) for done in range(1, 6))


@pytest.mark.slow
def test_what_is_logged_is_no_part_of_the_program():
  """A step is the same for any logging, so it is not compiled again."""

  def text(**log):
    made = tiny.assembled(_config(**log))
    start = checkpointed.abstract_start(made.policy, 0)
    state = checkpointed.abstract_state(made.phases, start)
    step = functools.partial(step_lib.fused_step, phase=made.phases[1].phase)
    batch = next(run.make_stream(made.config, made.problem, made.mesh, 1))
    return str(jax.make_jaxpr(step)(state, batch.prompts))

  expected = text(traces_every=0)
  assert expected == text(
    traces_every=1, trace_groups=9, samples_every=1, num_samples=16
  )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """(algorithm) -> folder of a run of ten steps, four of them traced."""

  @functools.cache
  def run_of(algorithm):
    folder = tmp_path_factory.mktemp(algorithm)
    names = {"traces_every": 2, "trace_groups": 3, "trace_prompts": ("5",)}
    config = _config(algorithm, **names)
    if algorithm == "on_host":
      config.checkpoint.every = 2  # With rollouts that wait to be trained on.
    loop.train(config, folder)
    return folder

  return run_of


@pytest.mark.slow
def test_a_run_traces_steps_and_evaluations(trained):
  workdir = trained("grpo")
  groups = traces.read(workdir)
  order = dict.fromkeys((group.step, group.split) for group in groups)
  assert list(order) == [
    *((5, "eval"), (6, "train"), (7, "eval"), (7, "train")),
    *((9, "eval"), (9, "train"), (10, "eval"), (10, "train")),
  ]
  lines = log_lib.read_lines(workdir / log_lib.METRICS)
  by_step = {line["step"]: line for line in lines if "reward/mean" in line}
  for group in groups:
    train = group.split == "train"
    assert len(group.rows) == (4 if train else 1)
    assert group.record >= 0
    for row in group.rows:
      assert re.sub("<(bos|eos|pad)>", "", "".join(row.tokens)) == row.text
      if not train:
        continue
      assert by_step[group.step]["phase"] == group.phase
      assert (row.values["version"] == group.step - 1).all()
      trained_on = row.values["trained"]
      ratio = np.exp(row.values["new_logp"] - row.values["old_logp"])
      np.testing.assert_array_equal(
        row.values["ratio"][trained_on], ratio[trained_on]
      )
  # The fifth held-out prompt is named; of each evaluation there are more.
  evaluations = [group for group in groups if group.split == "eval"]
  assert len(evaluations) == 4 * 4
  named = [group.prompt_id for group in evaluations if "named" in group.chosen]
  assert named == [5] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
  "algorithm", ["grpo", "on_host", "sessions", "summaries"]
)
def test_completions_are_drawn_again_bit_for_bit(trained, algorithm):
  """Ten samples at random, of one step."""
  workdir = trained(algorithm)
  groups = [group for group in traces.read(workdir) if group.split == "train"]
  last = [group for group in groups if group.step == 10]
  again = replay.replay(workdir, 10, *(group.prompt_id for group in last))
  pairs = [
    (group.rows[at], expected.rows[at])
    for group, expected in zip(again, last, strict=True)
    for at in range(len(expected.rows))
  ]
  for at in np.random.default_rng(0).permutation(len(pairs))[:10]:
    found, expected = pairs[at]
    assert replay.differences(found, expected) == []
    assert expected.ids.size
  for group, expected in zip(again, last, strict=True):
    assert (group.prompt, group.record) == (expected.prompt, expected.record)


@pytest.mark.slow
def test_steps_are_drawn_again_in_one_pass(trained):
  workdir = trained("grpo")
  traced = [group for group in traces.read(workdir) if group.split == "train"]
  wanted = {}
  for group in traced:
    wanted.setdefault(group.step, []).append(group.prompt_id)
  again = replay.replay_steps(workdir, wanted)
  assert [(x.step, x.prompt_id) for x in again] == [
    (x.step, x.prompt_id) for x in traced
  ]
  for found, expected in zip(again, traced, strict=True):
    for row, one in zip(found.rows, expected.rows, strict=True):
      assert replay.differences(row, one) == []


@pytest.mark.slow
def test_what_is_not_the_same_is_seen(trained):
  groups = [x for x in traces.read(trained("grpo")) if x.split == "train"]
  row = groups[-1].rows[0]
  assert replay.differences(row, row) == []
  values = dict(row.values)
  values["entropy"] = np.nextafter(values["entropy"], np.float32(9))
  assert replay.differences(
    dataclasses.replace(row, values=values, reward=-1.0), row
  ) == ["reward", "entropy"]
  shorter = traces.decode(traces.encode(trace_rows.cut(groups[-1], 1))).rows[0]
  assert replay.differences(row, shorter) == []


def test_a_run_is_drawn_again_without_its_canaries(tmp_path):
  config = _config()
  config.guards.on = True
  config.guards.min_distinct_prompts = 1
  config.eval.temperature = config.sampling.temperature
  with replay.opened(tmp_path, config_lib.resolve(config), 6) as opened:
    assert opened.guards.canaries is None
    assert opened.guards.judge(6, "sft", {}) is None


@pytest.mark.parametrize(
  ("step", "message"),
  [(1, "come with the data"), (11, "none of the run's, 1 to 10"), (0, "none")],
)
def test_steps_that_drew_nothing_are_refused(step, message):
  settings = config_lib.resolve(_config())
  with pytest.raises(ValueError, match=message):
    replay._check_step(settings, step)
