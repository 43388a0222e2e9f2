"""Episodes of several turns in the decode loop."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from grpo_jax import tasks
from grpo_jax.models.policies import from_logits
from grpo_jax.rollout import sampling
from grpo_jax.tasks import vocabulary as vocab
from grpo_jax.types import Prompts
from tests.rollout import toy

pytestmark = pytest.mark.slow

MARKOV = from_logits.policy_from_logits(
  lambda table, tokens, mask: table[tokens], lambda key: jnp.zeros((1, 1))
)


@functools.partial(jax.jit, static_argnums=(0, 4, 5, 6))
def _sample(policy, params, prompts, key, config, group_size, environment):
  return sampling.sample(
    policy, params, prompts, key, config, group_size, environment=environment
  )


def _run(table, prompts, slots, *, key=0, group_size=1, environment, **config):
  config = sampling.SamplerConfig(
    **{"max_new_tokens": slots, "end_ids": (), "pad_id": 0} | config
  )
  params = {"trained": jnp.asarray(table), "frozen": {}}
  return jax.device_get(
    _sample(
      MARKOV,
      params,
      prompts,
      jax.random.key(key),
      config,
      group_size,
      environment,
    )
  )


def toy_prompts(starts, short):
  return Prompts(
    jnp.array(starts)[:, None],
    jnp.ones((len(starts), 1), bool),
    jnp.arange(len(starts)),
    {"short": jnp.array(short)},
  )


def chain(size, *successions):
  table = np.zeros((size, size))
  for chain in successions:
    for token, successor in itertools.pairwise(chain):
      table[token, successor] = 1000.0
  return table


def toy_run(slots, **options):
  # From 1: action 3, and 1 again after every 6. From 2: actions 2 2.
  table = chain(7, [1, 3], [2, 2], [5, 4], [6, 1], [4, 4])
  prompts = toy_prompts([1, 2, 2], [0, 1, 0])
  # An action would end with a 6 too; one that is read ends nothing.
  environment = dataclasses.replace(toy.ENVIRONMENT, action_ends=(3, 6))
  return _run(table, prompts, slots, environment=environment, **options)


def test_turns_by_hand():
  rollout = toy_run(14)
  # After 6 comes 1, which is no end, so the second action is 1 3.
  expected = [
    [3, 5, 6, 1, 3, 5, 6, 5, 6, 1, 3, 0, 0, 0],
    [2, 2, 5, 6, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0],
    [2, 2, 5, 6, 1, 3, 5, 6, 5, 6, 1, 3, 0, 0],
  ]
  np.testing.assert_array_equal(rollout.tokens, expected)
  np.testing.assert_array_equal(rollout.completion_mask.sum(1), [11, 6, 12])
  observed = np.isin(expected, [5, 6])
  np.testing.assert_array_equal(rollout.observed, observed)
  np.testing.assert_array_equal(
    rollout.written, rollout.completion_mask & ~observed
  )
  assert rollout.terminated.all()
  turn = [
    [0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 0, 0, 0],
    [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 0, 0],
  ]
  np.testing.assert_array_equal(
    rollout.turn[rollout.written], np.array(turn)[rollout.written]
  )
  np.testing.assert_array_equal(
    rollout.state_id[rollout.written], rollout.turn[rollout.written]
  )
  paid = np.zeros((3, 14))
  paid[0, 0] = 1
  np.testing.assert_array_equal(rollout.turn_rewards, paid)
  np.testing.assert_array_equal(rollout.scores["return"], [1, 0, 0])
  np.testing.assert_array_equal(rollout.scores["accuracy"], [1, 1, 1])


@pytest.mark.parametrize("slots", [3, 7])
def test_a_budget_cuts_an_episode_anywhere(slots):
  whole, cut = toy_run(14), toy_run(slots)
  exists = whole.completion_mask[:, :slots]
  np.testing.assert_array_equal(cut.completion_mask, exists)
  np.testing.assert_array_equal(
    cut.tokens[exists], whole.tokens[:, :slots][exists]
  )
  np.testing.assert_array_equal(cut.observed, whole.observed[:, :slots])
  over = whole.completion_mask.sum(1) <= slots
  np.testing.assert_array_equal(cut.terminated, over)
  np.testing.assert_array_equal(cut.scores["accuracy"], over)


def test_what_is_read_has_no_log_prob():
  rollout = _run(
    np.zeros((7, 7)),
    toy_prompts([1] * 20, [0] * 20),
    14,
    environment=toy.ENVIRONMENT,
  )
  assert rollout.observed.sum() > 60
  for x in (rollout.behavior_logp, rollout.sampler_logp, rollout.entropy):
    np.testing.assert_allclose(
      abs(x), np.where(rollout.written, np.log(7), 0), rtol=1e-6
    )


def test_a_row_depends_on_its_own_key_only():
  prompts = toy_prompts([1] * 6, [0, 1, 0, 1, 0, 1])
  run = functools.partial(
    _run, np.zeros((7, 7)), slots=14, group_size=2, environment=toy.ENVIRONMENT
  )
  everyone = run(prompts)
  some = run(jax.tree.map(lambda x: x[jnp.array([4, 1])], prompts))
  rows = np.array([8, 9, 2, 3])
  for name in ("tokens", "completion_mask", "observed", "behavior_logp"):
    np.testing.assert_array_equal(
      getattr(some, name), getattr(everyone, name)[rows]
    )
  for name, x in everyone.scores.items():
    np.testing.assert_array_equal(some.scores[name], x[rows])
  assert (everyone.tokens[::2] != everyone.tokens[1::2]).any()


def _actions(rollout, row):
  """Actions of the policy in an episode, turn by turn."""
  size = int(rollout.completion_mask[row].sum())
  actions = [[]]
  for t in range(size):
    if not rollout.observed[row, t]:
      actions[-1].append(int(rollout.tokens[row, t]))
    elif actions[-1]:
      actions.append([])
  return actions


@pytest.mark.parametrize(
  ("name", "options"), [("calc_tool", {"leak": True}), ("grid", {})]
)
def test_the_twin_of_a_task_answers_the_same(name, options):
  """Episodes of a policy that knows the grammar and little else."""
  task = tasks.make_task(name, **options)
  rng = np.random.default_rng(0)
  examples = [task.example(rng, "train") for _ in range(64)]
  shape = 64, task.max_prompt_len
  tokens, mask = np.zeros(shape, np.int32), np.zeros(shape, bool)
  for i, example in enumerate(examples):
    tokens[i, -len(example.prompt) :] = example.prompt
    mask[i, -len(example.prompt) :] = True
  extras = [example.extras for example in examples]
  stacked = {k: np.stack([e[k] for e in extras]) for k in extras[0]}
  # A little of everything, and of what teachers write more.
  table = np.zeros((vocab.VOCAB_SIZE, vocab.VOCAB_SIZE))
  for example in examples:
    whole = [*example.prompt, *example.completion]
    for token, successor in itertools.pairwise(whole):
      table[token, successor] += 1
  environment = task.environment
  rollout = _run(
    np.log(table + 0.01),
    Prompts(tokens, mask, np.arange(64), stacked),
    task.max_completion_len,
    group_size=2,
    environment=environment,
  )
  assert rollout.observed.any(1).mean() > 0.5
  key = jax.random.key(0)  # Nothing in these environments is random.
  lengths = set()
  for row in range(128):
    given = extras[row // 2]
    actions = _actions(rollout, row)
    if not rollout.terminated[row]:
      actions = actions[:-1]  # Cut off, or nothing.
    lengths.add(len(actions))
    start = jax.device_get(environment.reset(key, given))
    turns, scores = task.replay_numpy(given, start, actions)
    read = [token for turn in turns for token in turn.observation]
    seen = rollout.tokens[row][rollout.observed[row]].tolist()
    # The budget may have cut the last one.
    assert seen == read[: len(seen)]
    assert seen == read or not rollout.terminated[row]
    assert rollout.terminated[row] == turns[-1].done if turns else True
    for score, value in scores.items():
      assert rollout.scores[score][row] == pytest.approx(value, abs=1e-6)
    paid = sum(turn.reward for turn in turns)
    assert rollout.scores["return"][row] == pytest.approx(paid)
  assert len(lengths) > 1


def test_lanes_are_refused():
  with pytest.raises(ValueError, match="lanes is 2, and the rows of an env"):
    toy_run(4, lanes=2)


def test_greedy_episodes_end_as_well():
  rollout = toy_run(14, temperature=0.0)
  np.testing.assert_array_equal(rollout.tokens, toy_run(14).tokens)
  assert dataclasses.asdict(rollout)["observed"].any()
