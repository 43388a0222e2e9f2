"""Contexts of episodes on the host are those of the one program."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import tasks
from grpo_jax.rollout import compaction, drawing, host_turns, turns
from grpo_jax.settings import config as config_lib
from grpo_jax.tasks import memchain
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.training.phases import host_sampler
from grpo_jax.training.problem import environment as environment_lib
from grpo_jax.training.problem import problem as problem_lib
from grpo_jax.training.runtime import sharding
from grpo_jax.types import Compaction, HostEnvironment
from tests.training import host_sessions
from tests.training.phases import sampler_test

pytestmark = pytest.mark.slow

slow = functools.partial(pytest.param, marks=pytest.mark.slow)

GROUP, SLOTS, PROMPT_LEN, NUM_CONTEXTS = 4, 34, 10, 3
# A turn that is read and written has up to five tokens, so that two of them
# often do not fit behind a summary, and some episodes are cut off.
COMPACTION = Compaction(
  every=3,
  context_len=34,
  reserve=12,
  open_id=vocab.SUM,
  close_id=vocab.SUM_END,
  max_summary_len=4,
  keep_turns=2,
  max_compactions=NUM_CONTEXTS - 1,
  head_len=1,
)
KEY = jax.random.key(5)


@functools.cache
def environment():
  """Environment of a short chain, with actions that end where they say so."""
  task = tasks.make_task("memchain", num_steps=12, every=3)
  return dataclasses.replace(
    task.environment, action_len=None, action_ends=(vocab.EOS, vocab.SEMICOLON)
  )


@functools.cache
def chain():
  """The problem of the task, without sessions."""
  config = config_lib.default_config()
  config.data.name = "memchain"
  options = {"num_steps": 12, "every": 3, "max_summary_len": 4}
  options["keep_turns"] = 0
  config.data.task_options = options
  config.data.max_prompt_len = PROMPT_LEN
  return problem_lib.make_problem(config_lib.resolve(config))


# Ends of actions and of summaries are likely.
params = functools.partial(
  sampler_test.params, text=";</sum><answer></answer><eos>", of_head=2.5
)


def make_batch(number=6, seed=0):
  return next(chain().prompt_stream(seed, number, None))


class Chain:
  """The plain twin of `memchain`, in words."""

  def __init__(self, extras, start):
    self._extras, self._start = extras, start
    self.actions = []

  def step(self, action):
    self.actions.append(vocab.encode(action))
    said, _ = memchain.replay_numpy(self._extras, self._start, self.actions)
    return vocab.decode(said[-1].observation), said[-1].reward, said[-1].done

  def scores(self):
    _, scores = memchain.replay_numpy(self._extras, self._start, self.actions)
    return scores


class Broken(Chain):
  """Fails at the fifth action, which is in a later context."""

  def step(self, action):
    if len(self.actions) == 4 and self._extras["digits"][0] % 2:
      raise ValueError("an odd digit")
    return super().step(action)


def chains(batch, kind=Chain):
  """Sessions whose distractors are those of the environment in the graph."""
  ids = jnp.asarray(batch.prompts.ids)
  keys = drawing.row_keys(KEY, ids, GROUP)
  extras = jax.tree.map(
    lambda x: jnp.repeat(jnp.asarray(x), GROUP, axis=0), batch.prompts.extras
  )
  starts = jax.device_get(turns.begin(environment(), keys, extras).state)
  seeds = jax.vmap(turns.seed)(keys).tolist()

  def make(prompt, extras, seed):
    row = seeds.index(seed)
    extras = {k: np.array(extras[k]) for k in ("letters", "digits", "query")}
    return kind(extras, jax.tree.map(lambda x: x[row], starts))

  return host_sessions.Local(make)


def on_host(changes=()):
  made = environment_lib._as_on_host(COMPACTION, PROMPT_LEN)
  return dataclasses.replace(made, **dict(changes))


@functools.cache
def make_sampler(kind, lanes, changes, records, keeps_contexts):
  """On one device."""
  own = environment()
  here = HostEnvironment(
    *(own.max_turns, own.max_action_len, own.max_observation_len),
    own.action_ends,
    path="",
  )
  play = host_turns.HostTurns(
    sampler_test.policy(kind),
    sampler_test.sampling_config(SLOTS, lanes=lanes, record_routing=records),
    GROUP,
    here,
    on_host(changes),
  )
  mesh = sharding.make_mesh(1, devices=jax.devices()[:1])
  problem = dataclasses.replace(
    chain(),
    environment=None,
    host_environment=here,
    score_names=frozenset({"accuracy", "semicolons"}),
  )
  return host_sampler.HostSampler(problem, mesh, play, keeps_contexts), problem


def play(
  sessions,
  batch,
  kind="adapter",
  lanes=None,
  changes=(),
  records=False,
  keeps_contexts=True,
):
  """A rollout, under the guard of the loop."""
  player, problem = make_sampler(kind, lanes, changes, records, keeps_contexts)
  player._problem = dataclasses.replace(problem, sessions=sessions)
  whole = sharding.replicated(player._mesh)
  weights = jax.device_put(params(kind), whole)
  key = jax.device_put(KEY, whole)
  with jax.transfer_guard("disallow"):
    prompts = sharding.from_local(batch.prompts, sharding.by_rows(player._mesh))
    played = player.sample(weights, prompts, key, batch)
    return jax.device_get(played.rollout), played


@functools.cache
def sampler(kind, changes, records):
  return jax.jit(
    functools.partial(
      compaction.sample,
      sampler_test.policy(kind),
      config=sampler_test.sampling_config(SLOTS, record_routing=records),
      group_size=GROUP,
      environment=environment(),
      compaction=dataclasses.replace(COMPACTION, **dict(changes)),
    )
  )


def in_graph(batch, kind="adapter", changes=(), records=False):
  prompts = jax.tree.map(jnp.asarray, batch.prompts)
  return jax.device_get(
    sampler(kind, changes, records)(params(kind), prompts, KEY)
  )


def check_traces(rollout, wanted):
  exists = wanted.completion_mask.any(axis=1)
  for name in ("id", "order"):
    np.testing.assert_array_equal(
      getattr(rollout.traces, name), getattr(wanted.traces, name)
    )
  np.testing.assert_array_equal(
    rollout.traces.is_last & exists, wanted.traces.is_last
  )
  assert rollout.traces.is_last.sum() == len(exists) // NUM_CONTEXTS
  mask = wanted.traces.prompt_mask[exists]
  np.testing.assert_array_equal(rollout.traces.prompt_mask[exists], mask)
  np.testing.assert_array_equal(
    rollout.traces.prompt_tokens[exists][mask],
    wanted.traces.prompt_tokens[exists][mask],
  )
  assert not rollout.traces.prompt_mask[~exists].any()


class Step(NamedTuple):
  """From one context to the next; lists of ids."""

  opening: list
  summary: list
  turns: dict  # What was read and written in each turn before.


def steps(rollout):
  """All of a rollout."""
  traces = rollout.traces
  for row in np.flatnonzero(rollout.completion_mask.any(axis=1)):
    if not traces.order[row]:
      continue
    exists = rollout.completion_mask[row - 1]
    tokens, turn = rollout.tokens[row - 1], rollout.turn[row - 1]
    asked = rollout.observed[row - 1] & (tokens == vocab.SUM)
    (at,) = np.flatnonzero(asked)
    turns = {
      int(number): tokens[:at][exists[:at] & (turn[:at] == number)].tolist()
      for number in np.unique(turn[:at])
    }
    yield Step(
      traces.prompt_tokens[row][traces.prompt_mask[row]].tolist(),
      tokens[at + 1 : exists.sum()].tolist(),
      turns,
    )


def number_kept(step):
  """Number of turns of the context before that are at the end of an opening."""
  last = max(step.turns)
  found = []
  for count in range(3):
    kept = [x for n in range(last - count + 1, last + 1) for x in step.turns[n]]
    if step.opening[len(step.opening) - len(kept) :] == kept:
      found.append(count)
  return found[-1]


@pytest.mark.parametrize(
  ("kind", "options"),
  [
    ("adapter", {}),
    slow("adapter", {"changes": (("trains_summary", False),)}),
    slow("adapter", {"changes": (("keeps_summary", False),)}),
    slow("transformer", {}),
    slow("experts", {"records": True}),
  ],
)
def test_contexts_are_those_of_the_environment_in_the_graph(kind, options):
  batch = make_batch()
  rollout, played = play(chains(batch), batch, kind, **options)
  wanted = in_graph(batch, kind, **options)
  sampler_test.check_same(rollout, wanted)
  check_traces(rollout, wanted)
  if (kind, options) == ("adapter", {}):  # There is something of everything.
    kept = [number_kept(x) for x in steps(wanted)]
    assert {*kept} == {0, 1, 2}
    ends = {(len(x.summary) == 4, x.summary[-1]) for x in steps(wanted)}
    assert len(ends) > 3  # Summaries with an end, and some that were cut.
    assert 0 < wanted.terminated.mean() < 1
  own = wanted.written
  np.testing.assert_array_equal(rollout.state_id[own], wanted.state_id[own])
  if options.get("records"):
    later = np.cumsum(own[:, ::-1], axis=1)[:, ::-1]
    read = wanted.completion_mask & (later - own > 0)
    np.testing.assert_array_equal(rollout.routing[read], wanted.routing[read])
    exists = rollout.traces.prompt_mask
    np.testing.assert_array_equal(
      rollout.prompt_routing[exists], wanted.prompt_routing[exists]
    )
  assert not any(played.failures.values())
  np.testing.assert_array_equal(
    jax.device_get(played.scored.rewards), wanted.scores["accuracy"]
  )


def test_each_token_that_the_policy_wrote_is_trained_once():
  batch = make_batch()
  sessions = chains(batch)
  rollout, _ = play(sessions, batch)
  trained = rollout.written.sum(axis=1).reshape(-1, NUM_CONTEXTS).sum(axis=1)
  for row, actions in sessions.actions.items():
    acted = sum(len(vocab.encode(action)) for action in actions)
    rows = slice(row * NUM_CONTEXTS, (row + 1) * NUM_CONTEXTS)
    contexts = jax.tree.map(
      lambda x, at=rows: x[at] if np.ndim(x) else x, rollout
    )
    summaries = [len(x.summary) for x in steps(contexts)]
    # An action that is cut off, or left, is told to nobody.
    cut = 0 if rollout.terminated[row * NUM_CONTEXTS] else trained[row]
    assert 0 <= trained[row] - acted - sum(summaries) <= cut
    if rollout.terminated[row * NUM_CONTEXTS]:
      assert trained[row] == acted + sum(summaries)
      assert len(actions) == 12
  # What a context begins with is not trained in it.
  for x in steps(rollout):
    before = [vocab.BOS, vocab.SUM, *x.summary[:-1], vocab.SUM_END]
    assert x.opening[: len(before)] == before


def test_a_session_that_fails_in_a_later_context_leaves_all_rows_unscored():
  batch = make_batch()
  good, _ = play(chains(batch), batch)
  rollout, played = play(chains(batch, Broken), batch)
  odd = batch.prompts.extras["digits"][:, 0] % 2 == 1
  failed = odd[good.prompt_index]
  assert 0 < failed.sum() < len(failed)
  assert played.failures["raised"] == failed.sum() // NUM_CONTEXTS
  np.testing.assert_array_equal(jax.device_get(played.scored.valid), ~failed)
  for x in rollout.scores.values():
    np.testing.assert_array_equal(np.isnan(x), failed)
  # Each of its rows knows why.
  assert len(played.errors) == failed.sum()
  # The fifth action, of turn 4, is in the second context.
  last = rollout.traces.is_last & failed
  assert (rollout.traces.order[last] == 1).all()
  assert (rollout.turn[last].max(axis=1) == 4).all()
  np.testing.assert_array_equal(rollout.tokens[~failed], good.tokens[~failed])


@pytest.mark.parametrize("lanes", [None, slow(5)])
def test_the_order_of_answers_changes_nothing(lanes):
  batch = make_batch()
  wanted, at_once = play(chains(batch), batch)
  late = chains(batch)
  late.__class__ = sampler_test.Late
  late.order = 0
  rollout, played = play(late, batch, lanes=lanes)
  jax.tree.map(np.testing.assert_array_equal, rollout, wanted)
  assert played.calls > at_once.calls


def test_evaluations_and_baselines_have_the_last_contexts():
  batch = make_batch()
  whole, _ = play(chains(batch), batch)
  rollout, played = play(chains(batch), batch, keeps_contexts=False)
  expected = jax.device_get(compaction.last_rows(whole))
  jax.tree.map(np.testing.assert_array_equal, rollout, expected)
  assert len(played.scored.rewards) == len(whole.tokens) // NUM_CONTEXTS
