"""Problems with an environment on the host: settings, steps, and whole runs."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from grpo_jax.data import tokenizer
from grpo_jax.rewards.workers import sessions as sessions_lib
from grpo_jax.settings import config as config_lib
from grpo_jax.step import models
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.training import loop, many
from grpo_jax.training.evaluation import rows
from grpo_jax.training.phases import (
  executors,
  host_sampler,
  judging,
  sampler,
)
from grpo_jax.training.problem import environment as environment_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import log, sharding
from grpo_jax.types import EpisodeSampler, Sampler
from tests.experiments import command, tiny_config
from tests.training import host_sessions, tiny
from tests.training.phases import sampler_test

PATH = "tests.training.host_sessions:calculator"


class Sessions(host_sessions.Local):
  """Stands for worker processes that nothing is asked of."""

  def __init__(self, path, **options):
    super().__init__(host_sessions.calculator)
    self.path, self.options = path, options

  def score_names(self, prompt, extras):
    return sorted(host_sessions.calculator(prompt, extras, 0).scores())


@pytest.fixture
def no_processes(monkeypatch):
  monkeypatch.setattr(sessions_lib, "HostSessions", Sessions)


def get_config(**changes):
  config = config_lib.default_config()
  config.data.name = "calc_tool"
  config.data.environment = PATH
  config.phases = ("rl",)
  return tiny_config.change(config, changes)


def make_problem(**changes):
  return problem_lib.make_problem(config_lib.resolve(get_config(**changes)))


def make_phase(**changes):
  return tiny.phase_of(get_config(**changes))


# --- Settings ----------------------------------------------------------------


@pytest.mark.usefixtures("no_processes")
def test_it_takes_the_place_of_the_tasks_environment():
  made = make_problem(
    rewards__num_workers=3,
    rewards__row_timeout_s=2.0,
    environment__concurrency=5,
    environment__options={"word": "hey"},
  )
  assert made.environment is None
  assert made.reward.on_host is None
  environment = made.host_environment
  own = sampler_test.environment()
  assert environment == dataclasses.replace(own, path=PATH)
  assert made.sessions.options == {
    "row_timeout_s": 2.0,
    "step_timeout_s": 120.0,
    "num_workers": 3,
    "variables": (),
    "concurrency": 5,
    "options": {"word": "hey"},
  }
  assert made.provides >= {"turns", "state_id"}
  phase = make_phase()
  assert isinstance(phase.sampler, EpisodeSampler)
  assert phase.sampler.turns.environment == environment


@pytest.mark.usefixtures("no_processes")
def test_episodes_have_the_weights_of_their_phase():
  changes = {
    "rewards__functions": ("accuracy", "return"),
    "rewards__weights": (1.0, 0.5),
    "rl__reward_weights": (0.0, 2.0),
  }
  mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
  driver = executors.make_driver(
    make_problem(**changes), mesh, make_phase(**changes)
  )
  weights = driver._sampler._reward.weights
  assert float(weights["accuracy"]) == 0.0
  assert float(weights["return"]) == 2.0


@pytest.mark.usefixtures("no_processes")
def test_turns_are_those_of_the_config():
  made = make_problem(
    environment__max_turns=2, environment__action_ends=("</answer>", ";")
  )
  environment = made.host_environment
  assert environment.max_turns == 2
  assert environment.max_action_len == 13
  assert environment.action_ends == (
    *(vocab.EOS, vocab.ANSWER_END, vocab.SEMICOLON),
  )


@pytest.mark.usefixtures("no_processes")
def test_text_needs_sizes_and_ends_of_one_token():
  text = tokenizer.Tokenizer()
  config = get_config()
  config.environment.max_turns = 3
  config.environment.max_action_len = 20
  config.environment.action_ends = ("</answer>",)

  def make():
    return environment_lib.environment(config_lib.resolve(config), text, None)

  with pytest.raises(ValueError, match=r"config\.environment\.max_observation"):
    make()
  config.environment.max_observation_len = 9
  ends = (*text.end_ids, *text.encode("</answer>"))
  assert make().action_ends == ends
  config.environment.action_ends = ()
  assert make().action_ends == text.end_ids
  config.environment.action_ends = ("no single token",)
  with pytest.raises(ValueError, match=r"'no single token' is [0-9]+ tokens"):
    make()


@pytest.mark.parametrize(
  ("changes", "error", "message"),
  [
    ({"data__name": "sort"}, ValueError, r"needs config\.environment\.max_tur"),
    (
      {"rewards__functions": ("speed",)},
      KeyError,
      r"has no component \['speed'\]; it has \['accuracy'.*'return'",
    ),
    (
      {"data__environment": "", "environment__max_turns": 2},
      ValueError,
      r"config\.environment was set, and config\.data\.environment is empty",
    ),
    (
      {
        "rl__max_rounds": 2,
        "rl__group_size": 4,
        "algorithm__dynamic_sampling": True,
      },
      ValueError,
      r"max_rounds=2 and config\.data\.environment='tests\..*' do not go",
    ),
  ],
)
@pytest.mark.usefixtures("no_processes")
def test_what_it_cannot_do_is_refused(changes, error, message):
  with pytest.raises(error, match=message):
    make_phase(**changes)


def test_several_runs_in_one_program_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"data\.environment='tests\.training"):
    many.train([get_config()], [tmp_path / "run"])


def test_a_module_that_is_not_there_is_refused():
  with pytest.raises(ValueError, match="environment 'nowhere:make': importing"):
    make_problem(data__environment="nowhere:make")


def test_text_of_actions_and_ids_of_observations():
  text = tokenizer.Tokenizer()
  end, pad = text.end_ids[0], text.pad_id
  words = text.encode(" two  words")
  assert text.exact_text([*words, pad, end]) == " two  words<pad><eos>"
  assert text.markup_ids("<think>1") == text.encode("<think>1")
  task = sampler_test.calculator().tokenizer
  ids = [vocab.PAD, vocab.TOOL, vocab.PAD, vocab.BOS, vocab.EOS, vocab.PAD]
  assert task.exact_text(ids) == "<pad><tool><pad><bos><eos><pad>"
  assert task.observation_ids("<obs>1", 9) == vocab.encode("<obs>1")


# --- Steps -------------------------------------------------------------------


def steps_of(name, problem, phase, count=2):
  """Metrics of some steps on one device, under the guard of the loop."""
  mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
  advance = executors.make_driver(problem, mesh, phase)
  state = jax.device_put(tiny.make_state(phase), sharding.replicated(mesh))
  history, samples = [], []
  stream = sampler_test.calculator().prompt_stream(0, 4, None)
  for _ in range(count):
    batch = next(stream)
    with jax.transfer_guard("disallow"):
      state, outcome = advance(state, batch)
    history.append(outcome.metrics())
    samples += rows.samples(problem, mesh, batch, outcome.rows(), 4)
  return history, samples


def both_phases(name):
  """Phases with the environment in the graph, and on the host."""
  of_graph = sampler_test.calculator()
  phase = tiny.make_phase(
    name,
    policy=sampler_test.policy("adapter"),
    max_new_tokens=40,
    group_size=sampler_test.GROUP,
    learning_rate=0.01,
  )
  config = sampler_test.sampling_config(40)
  greedy = dataclasses.replace(config, temperature=0.0)
  sample = sampler.make_sample(phase.policy, of_graph)
  sizes = {"config": config, "group_size": sampler_test.GROUP}
  here = sampler_test.with_sessions(
    host_sessions.Local(host_sessions.calculator)
  )
  in_graph = Sampler(models.by_policy(sample, **sizes))
  on_host = EpisodeSampler(host_sampler.make_turns(phase.policy, here, **sizes))
  if phase.sampler.greedy is not None:
    in_graph = dataclasses.replace(
      in_graph, greedy=models.by_policy(sample, config=greedy, group_size=1)
    )
    on_host = dataclasses.replace(
      on_host, greedy=host_sampler.make_turns(phase.policy, here, greedy, 1)
    )
  graph, host = (
    dataclasses.replace(phase, sampler=player, reward=of_graph.reward)
    for player in (in_graph, on_host)
  )
  return (of_graph, graph), (here, host)


def check_turns(counts):
  """Each call ends an action of a row that was not over."""
  calls = [counts[f"turn/{turn}/calls"] for turn in range(4)]
  assert calls[0] > calls[1] > 0
  assert calls == sorted(calls, reverse=True)
  for turn, number in enumerate(calls):
    assert number <= counts[f"turn/{turn}/tokens"]
    assert counts[f"turn/{turn}/failed"] == 0
    assert counts[f"turn/{turn}/blocked"] == 0
  # After the last action nothing is read.
  assert counts["turn/0/observed"] > 0 == counts["turn/3/observed"]
  assert len(counts) == 4 * 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["remax"])
def test_steps_are_those_of_the_one_program(name):
  expected, found = (steps_of(name, *of) for of in both_phases(name))
  for one, other in zip(expected[0], found[0], strict=True):
    assert other.pop("time/environment_s") > 0
    check_turns(
      {key: other.pop(key) for key in list(other) if key[:5] == "turn/"}
    )
    for key in [key for key in other if key.startswith("time/answer_s/")]:
      assert other.pop(key) >= 0
    for kind in host_sessions.pool.FAILURE_KINDS:
      assert other.pop(f"unscored/{kind}") == 0
    assert one.keys() == other.keys()
    for key, value in one.items():
      assert other[key] == pytest.approx(value, rel=1e-3, abs=1e-4, nan_ok=True)
  for one, other in zip(expected[1], found[1], strict=True):
    assert one["completion"] == other["completion"]
    # Without an interceptor nobody says whether a call was blocked.
    assert all(turn.pop("blocked") is None for turn in other["turns"])
    assert not any(turn.pop("blocked") for turn in one["turns"])
    assert one["turns"] == other["turns"]
    assert one["components"] == other["components"]


@pytest.mark.slow
def test_failed_episodes_are_counted_and_the_step_is_taken():
  _, (problem, phase) = both_phases("grpo")
  broken = host_sessions.Local(host_sessions.broken)
  problem = dataclasses.replace(problem, sessions=broken)
  history, samples = steps_of("grpo", problem, phase)
  for metrics in history:
    assert 0 < metrics["unscored/raised"] == metrics["unscored"] < 16
    assert np.isfinite(metrics["loss"])
    assert metrics["tokens/trained"] < metrics["tokens/generated"]
  assert not all(row["valid"] for row in samples)


@pytest.mark.slow
def test_what_failed_ahead_is_counted_in_the_step_that_trains_it():
  _, (problem, phase) = both_phases("grpo")
  broken = host_sessions.Local(host_sessions.broken)
  problem = dataclasses.replace(problem, sessions=broken)
  mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
  phase = dataclasses.replace(phase, staleness=1)
  stream = sampler_test.calculator().prompt_stream(0, 4, None)
  batches = [next(stream) for _ in range(3)]

  def steps(advance, state, first):
    found = []
    for n in range(first, 3):
      with jax.transfer_guard("disallow"):
        state, outcome = advance(state, *batches[n : n + 2])
      found.append((outcome.metrics(), outcome.errors))
      yield state, outcome, found

  def begun():
    return jax.device_put(tiny.make_state(phase), sharding.replicated(mesh))

  whole = executors.make_driver(problem, mesh, phase)
  *_, (state, _, expected) = steps(whole, begun(), 0)
  assert all(metrics["unscored/raised"] > 0 for metrics, _ in expected)
  for metrics, errors in expected:
    assert len(errors) == metrics["unscored"] == metrics["unscored/raised"]
  assert [metrics["staleness/max"] for metrics, _ in expected] == [0, 1, 1]

  # Another process goes on after the first step: what it has been told is text.
  cut, outcome, _ = next(steps(whole, begun(), 0))
  said = json.loads(json.dumps(judging.gather_reports(outcome.host_reports)))
  resumed = executors.make_driver(
    problem, mesh, phase, judging.read_reports(said)
  )
  *_, (again, _, found) = steps(resumed, cut, 1)
  jax.tree.map(
    np.testing.assert_array_equal,
    *(jax.device_get(dataclasses.replace(x, key=None)) for x in (state, again)),
  )
  for (metrics, errors), (others, their) in zip(
    expected[1:], found, strict=True
  ):
    assert errors == their
    for name, value in metrics.items():
      if not name.startswith("time/"):
        np.testing.assert_array_equal(others[name], value, name)


# --- Runs --------------------------------------------------------------------


def get_tiny():
  config = tiny_config.get_config("sessions")
  config.log.trackers = ()
  return config


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A run with worker processes that nobody stops."""
  workdir = tmp_path_factory.mktemp("whole")
  loop.train(get_tiny(), workdir)
  return workdir


@pytest.mark.slow
def test_a_run_says_what_its_sessions_say(whole):
  rows = log.read_lines(whole / log.METRICS)
  drawn = [row for row in rows if "reward/mean" in row]
  assert len(drawn) == 10
  assert all(row["unscored"] == 0 for row in drawn)
  assert "eval/reward/blocked" in rows[-1]
  timings = log.read_lines(whole / log.TIMINGS)
  # The last two steps train what was played before.
  assert [row["time/environment_s"] > 0 for row in timings[-3:]] == [
    *(True, False, False)
  ]


@pytest.mark.slow
def test_programs_play_with_the_policy_of_a_run(whole):
  workdir = f"--workdir={whole}"
  for program, arguments in (
    ("sample", ["--prompt=12+34*5=", "--num_samples=2", "--temperature=1"]),
    ("evaluate", ["--num_prompts=4"]),
  ):
    with command.start(program, workdir, *arguments) as process:
      out, err = process.communicate()
    assert process.returncode == 0, err
    assert out
  with command.start("sample", workdir, "--prompt=12=") as process:
    _, err = process.communicate()
  assert process.returncode == 2
  assert "'12=' is not as '12+34*5='" in err
  assert "a session of the environment failed" in " ".join(err.split())


@pytest.mark.slow
def test_text_has_turns_too(tmp_path):
  config = tiny_config.get_config("on_host")
  config.phases = ("rl",)
  config.rl.steps = 2
  config.rl.staleness = 0
  config.algorithm.kl_coef = 0.0
  config.algorithm.importance_mode = "none"
  config.rl.ema_decay = None
  config.log.trackers = ()
  config.sampling.max_new_tokens = 24
  config.sampling.mix_rate = 0.0
  config.data.environment = "tests.training.host_sessions:echo"
  config.environment.max_turns = 3
  config.environment.max_action_len = 3
  config.environment.max_observation_len = 6
  config.rewards.functions = ("accuracy", "return")
  config.rewards.weights = (0.0, 1.0)
  config.rewards.correct = "accuracy"
  loop.train(config, tmp_path)
  rows = log.read_lines(tmp_path / log.METRICS)
  assert rows[-1]["unscored"] == 0
  assert 0 < rows[-1]["tokens/generated"] <= 16 * 9
  for row in log.read_lines(tmp_path / log.SAMPLES):
    assert row["completion"].count("[read]") == 2
