"""Rollouts drawn ahead where verifiers are in the program: which, and how."""

import dataclasses
import functools
import signal
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from grpo_jax.data import pipeline
from grpo_jax.settings import phase
from grpo_jax.step import step as step_lib
from grpo_jax.training import loop, many
from grpo_jax.training.phases import executors
from grpo_jax.training.runtime import sharding
from tests.experiments import tiny_config
from tests.step import corrections_test
from tests.training import many_test, resume_test, tiny, turns_test

pytestmark = pytest.mark.slow

STEPS = 5
CORRECTED = {"importance_mode": "truncate"}
# One program learns or does not, by the number of updates before the first.
RATES = {
  "phase": {
    "optimizer": phase.OptimizerConfig(
      learning_rate=0.1, schedule="linear", final_fraction=1e-29
    )
  }
}


@dataclasses.dataclass(frozen=True)
class Case:
  """A phase whose rollouts are drawn ahead.

  Attributes:
    phase: Makes the phase, given the staleness.
    prompts: Makes the prompts of a batch, given the number of the first one.
  """

  phase: Callable
  prompts: Callable = tiny.make_prompts


def _plain(name, fields, **options):
  def make(staleness):
    made = tiny.make_phase(name, fields=fields, **RATES, **options)
    return dataclasses.replace(made, staleness=staleness)

  return Case(make)


def _with_turns(staleness):
  made = turns_test.make_phase("grpo", fields=CORRECTED, **RATES)
  return dataclasses.replace(made, staleness=staleness)


def _with_corrections(staleness):
  made = corrections_test.make_phase(
    micro_batch_size=8, fields=CORRECTED, **RATES
  )
  return dataclasses.replace(made, staleness=staleness)


CASES = {
  "grpo": _plain("grpo", CORRECTED),
  "greedy": _plain("remax", CORRECTED, group_size=1),
  "critic": _plain("sao", {}, group_size=1),
  "turns": Case(_with_turns, turns_test.make_prompts),
  "hints": Case(_with_corrections, corrections_test.make_prompts),
}


def _batches(case):
  made = [case.prompts(first=4 * i) for i in range(STEPS)]
  return [pipeline.PromptBatch(jax.device_get(x), []) for x in made]


@functools.cache
def _driver(name, staleness):
  """A driver, which compiles once, and its parts."""
  phase = CASES[name].phase(staleness)
  on_device = dataclasses.make_dataclass("Problem", ["reward"])
  judge = dataclasses.make_dataclass("Judge", ["asks_host"])(False)
  mesh = sharding.make_mesh(1)
  return executors.make_driver(on_device(judge), mesh, phase), phase


@functools.cache
def train(name, staleness, learns=True):
  """States, metrics and rows of a few steps of the driver."""
  advance, phase = _driver(name, staleness)
  batches, state, found = _batches(CASES[name]), tiny.make_state(phase), []
  if not learns:
    state = _after_the_last_update(state)
  for t in range(STEPS):
    state, outcome = advance(state, *batches[t : t + 1 + staleness])
    kept = jax.device_get(dataclasses.replace(state, key=None))
    found.append((kept, outcome.metrics(), jax.device_get(outcome.rows())))
  return found


def _after_the_last_update(state):
  """State at the end of the learning rate's schedule, 1e-30."""
  policy = state.models["policy"]
  late = optax.tree_utils.tree_set(policy.opt_state, count=jnp.int32(10**6))
  # Each leaf has an array of its own, which a step may donate.
  policy = dataclasses.replace(policy, opt_state=jax.tree.map(jnp.copy, late))
  return dataclasses.replace(state, models=state.models | {"policy": policy})


@pytest.mark.parametrize("name", CASES)
def test_a_step_trains_what_so_many_updates_before_has_drawn(name):
  staleness, case = 2, CASES[name]
  phase = case.phase(staleness)
  draw = jax.jit(functools.partial(step_lib.rollout_stage, phase=phase))
  learn = jax.jit(functools.partial(step_lib.stale_step, phase=phase))
  states = [tiny.make_state(phase)]
  moved = []
  for t, batch in enumerate(_batches(case)):
    first = max(t - staleness, 0)
    drawn = draw(states[first], batch.prompts, t - first)
    state, *_ = learn(states[t], batch.prompts, drawn)
    states.append(state)
    trained, metrics, rows = train(name, staleness)[t]
    np.testing.assert_array_equal(rows.batch.tokens, drawn.rollout.tokens)
    exists = np.asarray(drawn.rollout.completion_mask)
    np.testing.assert_array_equal(rows.version[exists], first)
    assert metrics["staleness/max"] == t - first
    assert metrics["staleness/mean"] == t - first
    chex.assert_trees_all_close(
      trained.params, state.params, rtol=1e-5, atol=1e-5
    )
    assert len(trained.queue) == min(staleness, STEPS - 1 - t)
    moved.append(metrics["gradient_norm"] > 0)
  assert any(moved[staleness:])


def test_what_waits_has_the_version_that_drew_it():
  for t, (state, _, _) in enumerate(train("grpo", 2)):
    for ahead, drawn in enumerate(state.queue, 1):
      exists = drawn.rollout.completion_mask
      assert (drawn.rollout.version[exists] == max(t + ahead - 2, 0)).all()


@pytest.mark.parametrize("name", ["grpo", "hints"])
def test_without_learning_what_is_drawn_ahead_is_what_the_step_would_draw(name):
  fresh, stale = (train(name, n, learns=False) for n in (0, 2))
  for (_, _, now), (_, _, ahead) in zip(fresh, stale, strict=True):
    np.testing.assert_array_equal(now.batch.tokens, ahead.batch.tokens)
    np.testing.assert_array_equal(now.rewards, ahead.rewards)
  # While something is learnt, it is another one.
  *_, now = train(name, 0)[-1]
  *_, ahead = train(name, 2)[-1]
  assert (now.batch.tokens != ahead.batch.tokens).any()


def test_weights_correct_from_the_sampling_to_the_current_policy():
  case, t = CASES["grpo"], STEPS - 1
  phase, found = case.phase(2), train("grpo", 2)
  rows, batch = found[t][2].batch, _batches(case)[t]
  before = found[t - 1][0].params["policy"]
  h, _ = phase.policy.hidden(
    before,
    batch.prompts.tokens,
    batch.prompts.mask,
    rows.tokens,
    rows.completion_mask,
    rows.prompt_index,
  )
  logp = jax.nn.log_softmax(phase.policy.head(before, h))
  logp = jnp.take_along_axis(logp, rows.tokens[..., None], axis=-1)[..., 0]
  ratio = np.exp(logp - rows.sampler.behavior_logp)[rows.completion_mask]
  weights = np.minimum(ratio, phase.config.importance_max)
  metrics = found[t][1]
  assert metrics["policy_weight/mean"] == pytest.approx(weights.mean(), 1e-4)
  assert abs(weights - 1).max() > 0.2
  # The ratio of the surrogate is anchored at the current policy.
  assert metrics["ratio/max_deviation"] == 0


# --- runs --------------------------------------------------------------------


def get_config(name="sort", staleness=2):
  """Six steps of a task, or of an environment in the graph."""
  config = tiny_config.get_config("grpo")
  config.phases = ("rl",)
  config.rl.steps = 6
  config.rl.staleness = staleness
  config.rl.num_minibatches = 1
  config.rl.num_lengths = 1  # Compiles faster.
  config.rl.optimizer.learning_rate = 0.05
  config.algorithm.entropy_coef = 0.1
  config.algorithm.importance_mode = "truncate"
  config.eval.every = 0
  config.checkpoint.every = 2
  config.log.trackers = ()
  if name == "calc_tool":
    config.data.name = name
    config.data.task_options = ml_collections.ConfigDict()
    config.rewards.functions = ("return",)
  if name == "countdown":  # With hints in wrong completions.
    config.data.name = name
    config.data.task_options = ml_collections.ConfigDict(
      {"num_numbers": 3, "last_answer": True}
    )
    config.rewards.functions = ("accuracy",)
    config.sampling.max_new_tokens = 16
    correction = config.rl.correction
    correction.p_cue = correction.p_answer = 0.5
    correction.cue = "="
    correction.sentence = "=<answer>{answer}</answer>"
    correction.max_new_tokens = 4
  return config


def stopped_after(step, patch):
  """Lets a run be stopped by a signal in a step of reinforcement."""
  made = loop.OneRun.advance

  def advance(self, batches):
    outcomes = made(self, batches)
    state = self._run.state
    is_last_phase = int(state.phase) + 1 == len(self._run.phases)
    if is_last_phase and int(state.phase_step) == step:
      signal.raise_signal(signal.SIGTERM)
    return outcomes

  patch.setattr(loop.OneRun, "advance", advance)


def test_runs_as_one_program_end_as_runs_of_their_own(tmp_path):
  configs = [get_config() for _ in range(2)]
  for seed, config in enumerate(configs):
    config.seed = seed
    config.rl.steps = 4
  together, alone, results, expected = many_test.train_both(configs, tmp_path)
  assert results[1].after == pytest.approx(expected.after)
  many_test.assert_close_run(together[1], alone)
  assert many_test.rows(together[1])[-1]["staleness/mean"] == 2
  assert many_test.rows(together[0]) != many_test.rows(together[1])


def test_runs_as_one_program_go_on_with_what_waits(tmp_path):
  configs = [get_config(), get_config()]
  configs[1].seed = 1
  unbroken = [tmp_path / f"unbroken{i}" for i in range(2)]
  many.train(configs, unbroken)
  stopped = [tmp_path / f"stopped{i}" for i in range(2)]
  made, calls = many.Together.advance, []

  def advance(self, batches):
    calls.append(batches)
    if len(calls) == 3:
      signal.raise_signal(signal.SIGTERM)
    return made(self, batches)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(many.Together, "advance", advance)
    assert all(result.preempted for result in many.train(configs, stopped))
  many.train(configs, stopped)
  for actual, other in zip(stopped, unbroken, strict=True):
    resume_test.assert_same(
      resume_test.everything(actual), resume_test.everything(other)
    )
