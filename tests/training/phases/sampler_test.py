"""Episodes with the host between the turns are those of the one program."""

import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import tasks
from grpo_jax.rewards.workers import sessions as sessions_lib
from grpo_jax.rollout import host_turns, sampling
from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.training.phases import host_sampler
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import HostEnvironment
from tests.training import host_sessions, tiny

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

GROUP = 4
SESSIONS = "tests.training.host_sessions"
EXACT = (
  *("tokens", "completion_mask", "observed", "turn", "turn_rewards"),
  *("terminated", "prompt_index", "group_id", "kept_ids"),
)
CLOSE = "behavior_logp", "sampler_logp", "entropy"


@functools.cache
def calculator():
  """The task's problem, without sessions."""
  config = config_lib.default_config()
  config.data.name = "calc_tool"
  return problem_lib.make_problem(config_lib.resolve(config))


@functools.cache
def policy(kind):
  """A policy of the task's tokens."""
  size = vocab.VOCAB_SIZE
  if kind == "adapter":
    return tiny.tiny_policy(size, width=16)
  experts = {"num_experts": 4, "experts_per_token": 2, "expert_width": 8}
  return tiny.tiny_transformer(
    vocab_size=size, width=16, **experts if kind == "experts" else {}
  )


@functools.cache
def params(kind, text="<tool></tool><answer></answer><eos>+123", of_head=8.0):
  """Ends of actions are likely, so that episodes have several turns."""
  made = policy(kind).init(jax.random.key(1))
  ids = jnp.array(vocab.encode(text))
  if kind == "adapter":
    # Towards the hidden state that its tokens have on average.
    head = made["trained"]["head"]
    made["trained"]["head"] = head.at[:, ids].multiply(of_head)
  else:
    embedding = made["trained"]["embed"]["embedding"]
    made["trained"]["embed"]["embedding"] = embedding.at[ids].multiply(3.0)
  return made


def sampling_config(slots, **options):
  return sampling.SamplerConfig(
    max_new_tokens=slots, end_ids=(vocab.EOS,), pad_id=vocab.PAD, **options
  )


def make_batch(number=6, seed=0):
  return next(calculator().prompt_stream(seed, number, None))


def environment(**changes):
  own = tasks.make_task("calc_tool").environment
  sizes = {
    name: getattr(own, name)
    for name in (
      *("max_turns", "max_action_len", "max_observation_len"),
      "action_ends",
    )
  }
  return HostEnvironment(**sizes | changes, path="")


def with_sessions(sessions):
  return dataclasses.replace(
    calculator(),
    environment=None,
    host_environment=environment(),
    sessions=sessions,
    score_names=host_sessions.score_names(),
  )


@functools.cache
def make_sampler(kind, slots, options):
  """On one device."""
  turns = host_turns.HostTurns(
    policy(kind), sampling_config(slots, **dict(options)), GROUP, environment()
  )
  mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
  return host_sampler.HostSampler(calculator(), mesh, turns)


def play(sessions, batch, slots, kind="adapter", max_turns=4, **options):
  """A rollout, under the guard of the loop, with a compiled player."""
  player = make_sampler(kind, slots, tuple(options.items()))
  player._problem = with_sessions(sessions)
  player._turns = dataclasses.replace(
    player._turns, environment=environment(max_turns=max_turns)
  )
  whole = sharding.replicated(player._mesh)
  weights = jax.device_put(params(kind), whole)
  key = jax.device_put(jax.random.key(5), whole)
  with jax.transfer_guard("disallow"):
    rows = sharding.by_rows(player._mesh)
    prompts = sharding.from_local(batch.prompts, rows)
    played = player.sample(weights, prompts, key, batch)
    return player, jax.device_get(played.rollout), played


def check_shapes(player, prompts, played, of):
  """A checkpoint that holds what was played is read by these shapes."""
  shapes = player.shapes(of.params, prompts, jax.random.key(0))
  expected = jax.eval_shape(lambda: (played.rollout, played.scored))
  assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == jax.tree.map(
    lambda x: (x.shape, x.dtype), expected
  )


def in_graph(batch, slots, kind, **of):
  sample = functools.partial(
    sampling.sample,
    policy(kind),
    config=sampling_config(slots, **of),
    group_size=GROUP,
    environment=tasks.make_task("calc_tool").environment,
  )
  prompts = jax.tree.map(jnp.asarray, batch.prompts)
  return jax.device_get(
    jax.jit(sample)(params(kind), prompts, jax.random.key(5))
  )


def check_same(rollout, wanted, exact=EXACT):
  for name in exact:
    x, y = getattr(rollout, name), getattr(wanted, name)
    if name == "kept_ids" and x is not None:
      x, y = (np.where(wanted.written[..., None], z, 0) for z in (x, y))
    np.testing.assert_array_equal(x, y, err_msg=name)
  for name in CLOSE:
    x, y = getattr(rollout, name), getattr(wanted, name)
    np.testing.assert_allclose(x, y, atol=2e-5, err_msg=name)
  assert rollout.scores.keys() == wanted.scores.keys()
  for name, x in wanted.scores.items():
    np.testing.assert_array_equal(rollout.scores[name], x, err_msg=name)


def check_states(rollout, wanted):
  """Actions have the same state where they follow the same observation."""
  own = wanted.written
  np.testing.assert_array_equal(rollout.state_id[own], wanted.state_id[own])
  found = set()
  for b, t in np.argwhere(own):
    read = wanted.observed[b] & (wanted.turn[b] == wanted.turn[b, t])
    seen = tuple(wanted.tokens[b, read].tolist())
    found.add((seen, int(wanted.state_id[b, t])))
  assert len(found) > 1
  assert len({seen for seen, _ in found}) == len(found)
  assert len({number for _, number in found}) == len(found)


# Enough slots for any episode, and so few that some are cut off in actions,
# and some in observations.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "slots", "options"),
  [
    ("adapter", 76, {}),
    ("adapter", 76, {"lanes": 5}),
    slow("adapter", 15, {"top_k": 20, "record_kept": True}),
    slow("transformer", 76, {}),
    slow("transformer", 76, {"lanes": 3}),
    slow("transformer", 30, {"temperature": 0.0}),
    slow("experts", 30, {"record_routing": True}),
  ],
)
def test_draws_are_those_of_the_environment_in_the_graph(kind, slots, options):
  batch = make_batch()
  sessions = host_sessions.Local(host_sessions.calculator)
  player, rollout, played = play(sessions, batch, slots, kind, **options)
  wanted = in_graph(batch, slots, kind, **options | {"lanes": None})
  check_same(rollout, wanted)
  check_states(rollout, wanted)
  assert wanted.observed.any()
  assert wanted.turn.max() >= 1
  assert wanted.terminated.all() == (slots == 76)
  if options.get("record_routing"):
    # All that came before a token which was drawn; nobody reads the rest.
    later = np.cumsum(wanted.written[:, ::-1], axis=1)[:, ::-1]
    read = wanted.completion_mask & (later - wanted.written > 0)
    np.testing.assert_array_equal(rollout.routing[read], wanted.routing[read])
    exists = batch.prompts.mask
    np.testing.assert_array_equal(
      rollout.prompt_routing[exists], wanted.prompt_routing[exists]
    )
  # One program for all turns, and another rollout.
  play(sessions, make_batch(seed=1), slots, kind, **options)
  assert (
    player._advance._jitted._cache_size() == player._finish._cache_size() == 1
  )
  assert not any(played.failures.values())


class Late(host_sessions.Local):
  """Answers that come when a number that is drawn says so."""

  def begin(self, prompts, extras, seeds):
    self._random = np.random.default_rng(self.order)
    return super().begin(prompts, extras, seeds)

  def poll(self, timeout_s):
    time.sleep(min(timeout_s, 0.01))
    come = {
      row: said
      for row, said in self._come.items()
      if self._random.random() < 0.3
    }
    for row in come:
      self._come.pop(row)
    return come


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [None, 5])
def test_the_order_of_answers_changes_nothing(lanes):
  batch = make_batch()
  sessions = host_sessions.Local(host_sessions.calculator)
  _, wanted, at_once = play(sessions, batch, 76, lanes=lanes)
  calls = set()
  for order in range(3):
    late = Late(host_sessions.calculator)
    late.order = order
    _, rollout, played = play(late, batch, 76, lanes=lanes)
    jax.tree.map(np.testing.assert_array_equal, rollout, wanted)
    calls.add(played.calls)
  assert max(calls) > at_once.calls


@pytest.mark.slow
def test_sessions_are_told_what_the_policy_wrote_and_nothing_else():
  batch = make_batch()
  sessions = host_sessions.Local(host_sessions.calculator)
  _, rollout, _ = play(sessions, batch, 76)
  prompts = [vocab.decode(x["prompt"][1:]) for x in batch.records]
  assert sessions.prompts == [prompts[i] for i in rollout.prompt_index]
  assert len(set(sessions.seeds)) == len(sessions.seeds)
  for row, actions in sessions.actions.items():
    written = rollout.written[row]
    turns = rollout.turn[row]
    ids = [
      rollout.tokens[row, written & (turns == turn)]
      for turn in range(turns.max() + 1)
    ]
    # `<pad>` is a word here: nothing is dropped.
    words = ["".join(vocab.words(x, np.ones(len(x), bool))) for x in ids]
    assert actions == words


@pytest.mark.slow
def test_masks_of_observations_that_are_cut_and_of_rows_without_room():
  batch = make_batch()
  sessions = host_sessions.Local(host_sessions.verbose)
  _, rollout, _ = play(sessions, batch, 20)
  size = rollout.completion_mask.sum(axis=1)
  exists = np.arange(20) < size[:, None]
  np.testing.assert_array_equal(rollout.completion_mask, exists)
  assert (rollout.tokens[~exists] == vocab.PAD).all()
  # Of each: an action, eight tokens of thirty, and so on to the last slot.
  x = vocab.encode("x")[0]
  assert (rollout.tokens[rollout.observed] == x).all()
  assert (size == 20).all()
  assert not rollout.terminated.any()
  for row in range(len(size)):
    changes = np.flatnonzero(np.diff(rollout.observed[row])) + 1
    runs = np.diff([0, *changes, 20])
    assert (runs[1:-1:2] == 8).all()
    assert (
      rollout.turn[row, changes[::2]] == np.arange(len(changes[::2])) + 1
    ).all()
  paid = np.where(rollout.turn_rewards > 0)
  assert rollout.written[paid].all()
  assert rollout.scores["return"].sum() == 0.25 * len(paid[0])
  for name in CLOSE:
    values = getattr(rollout, name)
    assert (values[~rollout.written] == 0).all()
    assert (values[rollout.written] != 0).mean() > 0.9


@pytest.mark.slow
def test_a_failed_session_ends_its_row_unscored_and_no_other():
  batch = make_batch()
  good = play(host_sessions.Local(host_sessions.calculator), batch, 76)[1]
  sessions = host_sessions.Local(host_sessions.broken)
  _, rollout, played = play(sessions, batch, 76)
  acted = np.array([len(sessions.actions[i]) for i in range(len(good.tokens))])
  even = batch.prompts.extras["operands"][:, 0] % 2 == 0
  failed = even[good.prompt_index] & (acted >= 2)
  assert 0 < failed.sum() < len(failed)
  assert played.failures["raised"] == failed.sum()
  for x in rollout.scores.values():
    np.testing.assert_array_equal(np.isnan(x), failed)
  scored = jax.device_get(played.scored)
  np.testing.assert_array_equal(scored.valid, ~failed)
  assert (scored.rewards[failed] == 0).all()
  assert not rollout.terminated[failed].any()
  for name in ("tokens", "turn_rewards", "terminated", "behavior_logp"):
    np.testing.assert_array_equal(
      getattr(rollout, name)[~failed], getattr(good, name)[~failed]
    )
  # What was written before the failure is kept.
  kept = rollout.completion_mask[failed]
  np.testing.assert_array_equal(
    rollout.tokens[failed][kept], good.tokens[failed][kept]
  )
  assert kept.any(axis=1).all()


@pytest.mark.slow
def test_an_observation_beyond_the_vocabulary_fails_its_row():
  sessions = host_sessions.Local(host_sessions.foreign)
  _, rollout, played = play(sessions, make_batch(), 76)
  continues = np.isnan(rollout.scores["accuracy"])
  assert continues.any()
  assert played.failures["raised"] == continues.sum()
  assert not rollout.observed.any()


def test_after_the_last_turn_an_episode_is_over():
  sessions = host_sessions.Local(host_sessions.verbose)
  _, rollout, _ = play(sessions, make_batch(), 76, max_turns=2)
  assert rollout.turn.max() == 1
  assert rollout.terminated.all()
  last = np.take_along_axis(
    rollout.written, rollout.completion_mask.sum(axis=1)[:, None] - 1, axis=1
  )
  assert last.all()


def test_sizes_that_do_not_fit_raise():
  config = sampling_config(8)
  with pytest.raises(ValueError, match="max_turns is 0"):
    host_turns.HostTurns(
      policy("adapter"), config, GROUP, environment(max_turns=0)
    )
  with pytest.raises(ValueError, match="no experts"):
    host_turns.HostTurns(
      policy("adapter"),
      dataclasses.replace(config, record_routing=True),
      GROUP,
      environment(),
    )


@pytest.mark.slow
def test_worker_processes_say_what_this_one_does():
  batch = make_batch()
  local = play(host_sessions.Local(host_sessions.calculator), batch, 76)[1]
  with sessions_lib.HostSessions(f"{SESSIONS}:calculator") as sessions:
    remote = play(sessions, batch, 76)[1]
  jax.tree.map(np.testing.assert_array_equal, remote, local)
