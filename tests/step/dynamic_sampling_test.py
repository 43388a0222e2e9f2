"""Rounds of dynamic sampling: what is kept, in which order, until when."""

import dataclasses
import functools
import types

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

from grpo_jax import algorithms
from grpo_jax.algorithms import objective
from grpo_jax.data import pipeline
from grpo_jax.settings import config as config_lib
from grpo_jax.step import dynamic_sampling
from grpo_jax.step import step as step_lib
from grpo_jax.training.evaluation import rows as rows_lib
from grpo_jax.training.phases import executors
from grpo_jax.training.problem import unscored
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Prompts, Rollout, Scored
from tests.step import router_test
from tests.training import tiny

P, G = 3, 2
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


# Each operation outside a program would be a program of its own.
_add = jax.jit(dynamic_sampling.add, static_argnums=2)
_choose_groups = jax.jit(dynamic_sampling.choose_groups, static_argnums=1)
_metrics = jax.jit(dynamic_sampling.metrics)


@functools.partial(jax.jit, static_argnums=1)
def _live_and_trained(groups, min_std):
  """Groups that rounds keep, and the tokens that dynamic sampling trains on."""
  config = algorithms.make_config("dapo", min_reward_std=min_std)
  live = dynamic_sampling.live_groups(groups, min_std)
  return live, objective.trained_tokens(config, groups.rollout, groups.scored)


def _scored(rewards, valid=None, correct=None) -> Scored:
  rewards = np.asarray(rewards, np.float32)
  everyone = np.ones(rewards.shape, bool)
  return Scored(
    rewards=rewards,
    valid=everyone if valid is None else np.asarray(valid),
    correct=everyone if correct is None else np.asarray(correct),
    components={"a": rewards},
    weights={"a": np.float32(1)},
  )


def _groups(ids, live, num_prompts=P, group_size=G) -> dynamic_sampling.Groups:
  """Groups in which every number tells whose it is."""
  ids = np.asarray(ids, np.int32)
  own = 10 * np.repeat(ids, group_size) + np.tile(
    np.arange(group_size, dtype=np.int32), num_prompts
  )
  of_token = np.stack([own, own + 0.5], axis=1).astype(np.float32)
  index = np.arange(num_prompts * group_size, dtype=np.int32) // group_size
  differs = np.repeat(live, group_size)
  return dynamic_sampling.Groups(
    prompts=Prompts(ids[:, None], ids[:, None] > 0, ids, {"gold": ids * 2}),
    rollout=Rollout(
      tokens=of_token.astype(np.int32),
      completion_mask=of_token > 0,
      behavior_logp=of_token,
      sampler_logp=of_token,
      entropy=of_token,
      terminated=own > 0,
      prompt_index=index,
      group_id=index,
      num_groups=num_prompts,
      prompt_routing=ids[:, None, None, None],
    ),
    scored=_scored(np.where(differs, own, 5)),
    greedy=_scored(ids),
  )


def test_live_groups_by_hand():
  nan = np.nan
  rewards = [
    *(0, 0, 1, 0),  # One differs.
    *(1, 1, 1, 1),
    *(0, 0, 0, 0),
    *(1, 1, 1, 0),  # What differs was not scored.
    *(nan, nan, nan, 0),  # One was scored.
    *(nan, nan, nan, nan),
    *(1, 0, nan, 0),
  ]
  valid = [*(12 * [True]), True, True, True, False, *(3 * [False]), True]
  valid += [*(4 * [False]), True, True, False, True]
  groups = _groups(range(7), 7 * [True], num_prompts=7, group_size=4)
  groups = dataclasses.replace(groups, scored=_scored(rewards, valid))
  expected = [True, False, False, False, False, False, True]
  found, mask = _live_and_trained(groups, 0.0)
  assert found.tolist() == expected
  rows = np.repeat(expected, 4) & valid
  np.testing.assert_array_equal(np.asarray(mask).any(axis=1), rows)


# Deviations 1/2, 1e-7 (round-off), 0.577, and 0.1: its last was not scored.
SPREADS = [0, 0, 1, 0, 1, 1, 1, 1 + 2e-7, 0, 1, 0, 1, 0.3, 0.2, 0.4, 9]


@pytest.mark.slow
@pytest.mark.parametrize("min_std", [0.0, 1e-6, 0.15, 0.49, 0.51, 0.6])
def test_a_group_lives_whose_deviation_is_above_the_least(min_std):
  valid = np.arange(16) != 15
  groups = _groups(range(4), 4 * [True], num_prompts=4, group_size=4)
  groups = dataclasses.replace(groups, scored=_scored(SPREADS, valid))
  expected = []
  for i in range(4):
    scored = [
      np.float64(SPREADS[j]) for j in range(4 * i, 4 * i + 4) if valid[j]
    ]
    mean = sum(scored) / len(scored)
    square = sum((x - mean) ** 2 for x in scored) / (len(scored) - 1)
    expected.append(max(scored) > min(scored) and square**0.5 > min_std)
  found, mask = _live_and_trained(groups, min_std)
  assert found.tolist() == expected
  rows = np.repeat(expected, 4) & valid
  np.testing.assert_array_equal(np.asarray(mask).any(axis=1), rows)
  # Rounds keep the same groups, and are full when there are four of them.
  collected = _add(None, groups, min_std)
  assert collected.full == (sum(expected) == 4)
  kept = [i for i in range(4) if expected[i]]
  assert collected.groups.prompts.ids[: len(kept)].tolist() == kept


def test_a_deviation_without_dynamic_sampling_is_refused():
  with pytest.raises(
    ValueError, match=r"min_reward_std.*dynamic_sampling=True"
  ):
    algorithms.make_config("grpo", min_reward_std=1e-6)


@pytest.mark.slow
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
  strategies.lists(
    strategies.lists(strategies.booleans(), min_size=P, max_size=P),
    min_size=1,
    max_size=4,
  )
)
def test_merged_groups_are_those_of_plain_python(each_live):
  collected, drawn = None, []
  for live in each_live:
    ids = 1 + len(drawn) + np.arange(P)
    collected = _add(collected, _groups(ids, live))
    drawn += zip(ids.tolist(), live, strict=True)
  kept = [i for i, live in drawn if live]
  dead = [i for i, live in drawn[-P:] if not live]
  expected = (kept + dead)[:P]
  jax.tree.map(
    np.testing.assert_array_equal,
    collected.groups,
    _groups(expected, [i in kept for i in expected]),
  )
  assert collected.num_rounds == len(each_live)
  assert collected.full == (len(kept) >= P)
  assert collected.counts["live"] == len(kept)


@pytest.mark.parametrize("num_live", range(P + 1))
def test_a_batch_that_is_short_is_settled_as_is_asked_for(num_live):
  first = np.arange(P) < num_live
  # Dead ones come first as they are drawn, and live ones keep their order.
  collected = _add(None, _groups([7, 8, 9], [False] * P))
  collected = _add(collected, _groups([3, 2, 1], first[::-1]))
  live = [
    i for i, is_live in zip((3, 2, 1), first[::-1], strict=True) if is_live
  ]
  assert _metrics(collected)["drawn/missing"] == P - num_live
  fewer, always = _choose_groups(collected, "fewer")
  assert always is None
  groups, trains = _choose_groups(collected, "error")
  assert trains == (num_live == P)
  jax.tree.map(np.testing.assert_array_equal, groups, fewer)
  groups, trains = _choose_groups(collected, "duplicate")
  assert trains == (num_live > P / 2)
  if trains:  # With two of three the first one again.
    fewer = _groups([live[i % num_live] for i in range(P)], [True] * P)
  jax.tree.map(np.testing.assert_array_equal, groups, fewer)


def test_what_is_said_of_all_that_was_drawn():
  first = _groups([0, 1, 2], [False, True, False])
  second = _groups([3, 4, 5], [True, True, True])
  first = dataclasses.replace(
    first,
    # The last row was not scored: 2 of 5 right, rewards of 6 in all.
    scored=_scored(
      [1, 1, 0, 4, 0, 9],
      [True, True, True, True, True, False],
      [True, True, False, False, False, True],
    ),
  )
  second = dataclasses.replace(
    second, scored=_scored([0, 1, 0, 1, 1, 0], correct=[False, True] * 3)
  )
  collected = _add(_add(None, first), second)
  # Token ids 0 and 0.5, 1 and 1.5, …: of the first row one token exists.
  assert _metrics(collected) == {
    "drawn/rounds": 2,
    "drawn/groups": 6,
    "drawn/live": np.float32(4 / 6),
    "drawn/missing": 0,
    "drawn/surplus": 1,
    "drawn/reward": np.float32(9 / 11),
    "drawn/accuracy": np.float32(5 / 11),
    "completions/generated": 12,
    "tokens/generated": 23,
  }


def test_of_rows_that_nobody_scored_there_is_no_mean():
  groups = _groups([0, 1, 2], [False, True, False])
  nobody = _scored([0] * 6, [False] * 6)
  found = _metrics(_add(None, dataclasses.replace(groups, scored=nobody)))
  assert np.isnan([found["drawn/reward"], found["drawn/accuracy"]]).all()
  assert found["drawn/live"] == 0


def _score(prompts, rollout):
  """Sees only in some prompts which row is which."""
  index = jnp.arange(len(rollout.tokens)) % 4
  live = prompts.extras["live"][rollout.prompt_index]
  rewards = jnp.where(live, index % 2, 1.0)
  return Scored(
    rewards=rewards,
    valid=jnp.ones(rewards.shape, bool),
    correct=index == 1,
    components={"a": rewards},
    weights={"a": jnp.float32(1)},
  )


def _phase(max_rounds, algorithm="grpo", **options):
  fields = {"dynamic_sampling": True, **options.pop("fields", {})}
  phase = tiny.make_phase(algorithm, fields=fields, score=_score, **options)
  return dataclasses.replace(phase, max_rounds=max_rounds)


def _prompts(live_ids, first=0):
  """Three rounds of four prompts."""
  prompts = tiny.make_prompts(12, first=first)
  live = np.isin(prompts.ids, live_ids)
  return dataclasses.replace(prompts, extras={"live": jax.device_put(live)})


def _numbers(state):
  return jax.tree.leaves(state.params)


@pytest.fixture(scope="module")
def programs():
  """Steps of up to three rounds and of one, and the sampler alone."""
  phase = _phase(max_rounds=3)
  once = dataclasses.replace(phase, max_rounds=1)
  state = tiny.make_state(phase)
  return [
    functools.partial(jax.jit(functools.partial(function, phase=of)), state)
    for function, of in (
      (step_lib.fused_step, phase),
      (step_lib.fused_step, once),
      (step_lib.sample_stage, once),
    )
  ]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("live_ids", "num_rounds", "kept"),
  [
    ((0, 1, 2, 3, 5), 1, (0, 1, 2, 3)),
    # The surplus is dropped.
    ((1, 4, 5, 6, 7, 8), 2, (1, 4, 5, 6)),
    ((2, 7, 8, 11), 3, (2, 7, 8, 11)),
    ((3, 5), 3, (3, 5, 8, 9)),  # The bound; dead ones of the last round.
    ((), 3, (8, 9, 10, 11)),
  ],
)
def test_rounds_end_with_enough_live_groups_or_at_the_bound(
  programs, live_ids, num_rounds, kept
):
  fused, fused_once, sample = programs
  prompts = _prompts(live_ids)
  state, metrics, written = fused(prompts)
  assert metrics["drawn/rounds"] == num_rounds
  assert metrics["drawn/groups"] == 4 * num_rounds
  num_live = sum(i < 4 * num_rounds for i in live_ids)
  np.testing.assert_allclose(metrics["drawn/live"], num_live / 4 / num_rounds)
  assert written.prompt_id.tolist() == np.repeat(kept, 4).tolist()

  # The tokens are those of one batch with all prompts.
  rollout = sample(prompts)
  rows = np.add.outer(4 * np.array(kept), np.arange(4)).ravel()
  np.testing.assert_array_equal(written.batch.tokens, rollout.tokens[rows])
  lengths = np.asarray(rollout.completion_mask).sum(1)
  assert metrics["tokens/generated"] == lengths[: 16 * num_rounds].sum()
  trained = [i for i in kept if i in live_ids]
  expected = sum(lengths[4 * i : 4 * i + 4].sum() for i in trained)
  assert metrics["tokens/trained"] == expected

  _assert_is_on(fused_once, prompts, kept, state, metrics)


def _assert_is_on(fused_once, prompts, kept, state, metrics):
  """Compares an update with that of a batch with just these prompts."""
  chosen = jax.tree.map(lambda x: np.asarray(x)[np.array(kept)], prompts)
  other, other_metrics, _ = fused_once(chosen)
  chex.assert_trees_all_close(
    _numbers(state), _numbers(other), rtol=1e-5, atol=1e-6
  )
  _assert_alike(metrics, other_metrics)


def _assert_alike(metrics, others):
  """All but what counts every round."""
  for name, value in others.items():
    if not name.endswith("/generated"):
      np.testing.assert_allclose(metrics[name], value, 1e-5, 1e-6, err_msg=name)


@pytest.fixture(scope="module")
def duplicating():
  """The state, and a step that repeats groups where there are too few."""
  phase = dataclasses.replace(_phase(max_rounds=3), when_short="duplicate")
  state = tiny.make_state(phase)
  return state, tiny.fused(phase)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("live_ids", "kept"),
  [
    ((3, 5, 8), (3, 5, 8, 3)),
    ((1, 4, 5, 6, 7), (1, 4, 5, 6)),  # Full: each group once.
  ],
)
def test_a_step_on_repeated_groups_is_one_on_a_batch_of_them(
  programs, duplicating, live_ids, kept
):
  state, step = duplicating
  prompts = _prompts(live_ids)
  state, metrics, written = step(state, prompts)
  assert written.prompt_id.tolist() == np.repeat(kept, 4).tolist()
  assert metrics["drawn/missing"] == max(0, 4 - len(live_ids))
  num_rounds = 3 if len(live_ids) < 4 else 2
  assert metrics["completions/generated"] == 16 * num_rounds
  _assert_is_on(programs[1], prompts, kept, state, metrics)


@pytest.mark.slow
def test_half_a_batch_is_not_enough_to_be_repeated(duplicating):
  """The step moves nothing but counts, also of what the optimizer remembers."""
  state, step = duplicating
  state, *_ = step(state, _prompts((0, 1, 2, 3)))
  after, metrics, _ = step(state, _prompts((3, 5)))
  assert metrics["tokens/trained"] == metrics["update_norm"] == 0
  assert metrics["drawn/missing"] == 2
  assert after.step == state.step + 1
  assert after.phase_step == state.phase_step + 1
  moments = 0
  for name, member in after.models.items():
    for old, new in zip(
      jax.tree.leaves(state.models[name]), jax.tree.leaves(member), strict=True
    ):
      if new.ndim:
        np.testing.assert_array_equal(old, new)
        moments += 1
  assert moments >= 6  # Two matrices, and two moments of each.
  jax.tree.map(
    np.testing.assert_array_equal, state.algorithm_state, after.algorithm_state
  )


def _in_lanes(phase):
  play = phase.sampler.sample
  config = dataclasses.replace(play.keywords["config"], lanes=3)
  player = dataclasses.replace(
    phase.sampler, sample=functools.partial(play, config=config)
  )
  return dataclasses.replace(phase, sampler=player)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["lanes", "greedy", "kept_ids", "routing"])
def test_all_that_belongs_to_a_group_travels_with_it(what):
  phase = _phase(
    max_rounds=3,
    algorithm="remax" if what == "greedy" else "grpo",
    fields={
      "keep_sampling_mask": what == "kept_ids",
      "keep_routing": what == "routing",
    },
    top_k=3 if what == "kept_ids" else None,
    policy=router_test.moe_policy() if what == "routing" else None,
  )
  if what == "lanes":
    phase = _in_lanes(phase)
  draw = functools.partial(
    step_lib.draw_stage, tiny.make_state(phase), phase=phase
  )

  @jax.jit
  def both(prompts):
    collected = dynamic_sampling.collect(draw, prompts, 3, phase.constrain_rows)
    return collected.groups, draw(prompts)

  groups, at_once = both(_prompts((1, 4, 5, 6, 7, 8)))
  present = {
    "greedy": groups.greedy,
    "kept_ids": groups.rollout.kept_ids,
    "routing": groups.rollout.prompt_routing,
  }
  for name, value in present.items():
    assert (value is not None) == (name == what)
  for index in (groups.rollout.prompt_index, groups.rollout.group_id):
    np.testing.assert_array_equal(index, np.arange(16) // 4)
  pairs = zip(*map(_without_numbers, (groups, at_once)), strict=True)
  for x, of_all in pairs:
    if x.ndim:
      of_all = of_all.reshape(12, -1, *of_all.shape[1:])[np.array([1, 4, 5, 6])]
      np.testing.assert_allclose(x, of_all.reshape(x.shape), 1e-5, 1e-6)


def _without_numbers(groups):
  """The arrays, without those that say where a group is in the batch."""
  rollout = dataclasses.replace(
    groups.rollout, prompt_index=None, group_id=None
  )
  return jax.tree.leaves(dataclasses.replace(groups, rollout=rollout))


@pytest.mark.slow
def test_the_program_has_one_sampler():
  """And one verifier and one decode loop, however many rounds there may be."""
  counts = []
  for max_rounds in (1, 3):
    phase = _phase(max_rounds)
    function = functools.partial(step_lib.fused_step, phase=phase)
    text = str(jax.make_jaxpr(function)(tiny.make_state(phase), _prompts(())))
    counts.append([text.count(word) for word in ("random_bits", "while[")])
  (draws, loops), (draws_in_rounds, loops_with_rounds) = counts
  assert draws > 0
  assert draws_in_rounds == draws
  assert loops_with_rounds == loops + 1


class _Judge:
  """Judge whose verdict is the host's."""

  asks_host = True
  is_host_alone = True

  def score_on_host(self, host_scores):
    return host_scores

  def score(self, params, prompts, rollout, host_scores=None, step=None):
    """Has the shapes of what is kept."""
    del params, host_scores, step
    return _score(prompts, rollout)


class _OnHost:
  """The in-graph verifier of some parts, called as the host's are."""

  reward = _Judge()

  def __init__(self, judge):
    self.score = jax.jit(functools.partial(judge.score, {}))
    self.complaints = unscored.Complaints()

  def host_scores(self, batch, rollout, reward=None, evaluates=False):
    scored = self.score(batch.prompts, rollout)
    return jax.device_get(scored), {"raised": 1}, {}

  def texts(self, tokens, mask):
    return [str(row[m].tolist()) for row, m in zip(tokens, mask, strict=True)]

  def prompt_texts(self, records):
    return [record["prompt"] for record in records]


def _steps(of, phase, live_ids):
  """State, numbers and texts of steps as a run makes them."""
  mesh = sharding.make_mesh(1)
  advance = executors.make_driver(of, mesh, phase)
  state = jax.device_put(tiny.make_state(phase), sharding.replicated(mesh))
  history = []
  for number in range(3):
    prompts = _prompts(live_ids, first=12 * number)
    records = [{"prompt": f"question {i}"} for i in prompts.ids.tolist()]
    batch = pipeline.PromptBatch(jax.device_get(prompts), records)
    with jax.transfer_guard("disallow"):
      state, outcome = advance(state, batch)
      samples = rows_lib.samples(of, mesh, batch, outcome.rows(), 16)
      history.append((outcome.metrics(), samples))
  return jax.device_get(_numbers(state)), history


def both_ways(phase, live_ids):
  """The host's problem, and the histories of steps in the program and on it."""
  on_host = _OnHost(phase.reward)
  fused = types.SimpleNamespace(
    reward=types.SimpleNamespace(asks_host=False),
    texts=on_host.texts,
    prompt_texts=on_host.prompt_texts,
  )
  one, history = _steps(fused, phase, live_ids)
  phase = dataclasses.replace(phase, reward=on_host.reward)
  other, other_history = _steps(on_host, phase, live_ids)
  chex.assert_trees_all_close(one, other, rtol=1e-5, atol=1e-6)
  return on_host, history, other_history


@pytest.mark.slow
@pytest.mark.parametrize(
  ("algorithm", "when_short"), [("grpo", "duplicate"), ("remax", "fewer")]
)
def test_rounds_with_the_host_between_them_are_the_same(algorithm, when_short):
  # Full after one round, after two, and not at all.
  live_ids = (0, 1, 2, 3, 14, 16, 18, 19, 30, 32, 35)
  phase = dataclasses.replace(_phase(3, algorithm), when_short=when_short)
  _, history, other_history = both_ways(phase, live_ids)
  for (metrics, samples), (others, other_samples), num_rounds in zip(
    history, other_history, (1, 2, 3), strict=True
  ):
    assert others.pop("unscored/raised") == num_rounds
    assert others.pop("time/verifier_s") > 0
    assert metrics["drawn/rounds"] == num_rounds
    assert metrics.keys() == others.keys()
    for name, value in metrics.items():
      np.testing.assert_allclose(others[name], value, 1e-4, 1e-5, err_msg=name)
    assert samples == other_samples
  kept = [
    [sample["prompt"] for sample in samples[::4]] for _, samples in history
  ]
  assert kept == [
    [f"question {i}" for i in ids]
    for ids in (
      (0, 1, 2, 3),
      (14, 16, 18, 19),
      (30, 32, 35, 30 if when_short == "duplicate" else 33),
    )
  ]


def test_what_becomes_of_a_short_batch_is_about_rounds():
  run = config_lib.RunConfig()
  with pytest.raises(ValueError, match="when_short='error' is about rounds"):
    run.with_section("rl", when_short="error")
  with pytest.raises(ValueError, match="choose one of fewer, error, duplicate"):
    run.with_section("rl", when_short="duplicates", max_rounds=2)
