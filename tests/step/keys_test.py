"""Every draw has a key of its own: no two have the same, whoever draws."""

import collections
import dataclasses
import functools
import pathlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from grpo_jax.rollout import drawing, hints, mixing, sampling, turns
from grpo_jax.step import dynamic_sampling, reservoir
from grpo_jax.step import prompts as prompts_lib
from grpo_jax.step import step as step_lib
from grpo_jax.training.phases import optimizers
from tests.training import tiny

DRAWS = (
  *("bits", "categorical", "gumbel", "normal", "permutation"),
  *("randint", "uniform"),
)
G, T = 3, 4


@pytest.fixture
def used(monkeypatch):
  """Keys of all draws, by the file and what is drawn, and keys of others."""
  found = collections.defaultdict(list)

  def record(user, key):
    found[user].append(tuple(np.asarray(key).tolist()))

  def recorded(real, name):
    def call(key, *arguments, **options):
      place = pathlib.Path(sys._getframe(1).f_code.co_filename).name
      user = f"{place}, {name}" if name in DRAWS else "parents"
      jax.debug.callback(
        functools.partial(record, user), jax.random.key_data(key)
      )
      return real(key, *arguments, **options)

    return call

  for name in (*DRAWS, "fold_in", "split"):
    real = getattr(jax.random, name)
    monkeypatch.setattr(jax.random, name, recorded(real, name))
  return found


class _Replay:
  """Draws places in a buffer with the key that a step gives."""

  min_std = 0.0

  def mix(self, state, fresh, key, step):
    del step
    dynamic_sampling.choose(key, jnp.ones(3), jnp.int32(1), 2)
    return types.SimpleNamespace(state=state, groups=fresh, metrics={})


class _Schedule(prompts_lib.PoolSchedule):
  """Draws places of a pool."""

  def init(self):
    return {}

  def draw(self, state, key, step):
    del step
    places = prompts_lib.without_replacement(key, jnp.ones(8) / 8, 4)
    return state, places

  def update(self, state, feedback, step):
    del feedback, step
    return state, {}


def _of_a_step(state, prompts, phase):
  """Whatever is drawn in a step, but for what a run cannot have together."""
  rollout = step_lib.sample_stage(state, prompts, phase=phase)
  scored = phase.reward.score(None, prompts, rollout)
  rollout_key, _ = step_lib.step_keys(state)
  for turn in range(2):  # Of contexts that are compacted, too.
    config = sampling.SamplerConfig(max_new_tokens=T, end_ids=(), pad_id=0)
    keys = drawing.row_keys(rollout_key, prompts.ids, G, turn)
    for position in range(T):
      at = jnp.full(len(keys), position)
      drawing.draw(jnp.zeros((len(keys), 5)), keys, at, config)
      mixing.after(
        mixing.Mixing(rate=0.5),
        mixing.BlendedInputs(*mixing.plain(at, 2), at < T),
        jnp.zeros((5, 1), jnp.int32),
        jnp.zeros((len(keys), 5)),
        *(at, at.astype(jnp.float32), at, keys, at),
      )
  keys = drawing.row_keys(rollout_key, prompts.ids, G)
  environment = types.SimpleNamespace(
    reset=lambda key, extras: jax.random.bits(key), max_observation_len=1
  )
  turns.begin(environment, keys, {})
  jax.vmap(turns.seed)(keys)
  hints.kinds(
    hints.Correction(0.3, 0.3, 0.3, (2,), T, 3),
    *(keys, jnp.ones(len(keys), bool)),
  )
  groups = dynamic_sampling.Groups(prompts, rollout, scored)
  return step_lib.learn_stage(state, groups, phase=phase)[0]


@pytest.mark.slow
def test_no_draw_has_the_key_of_another(used):
  phase = tiny.make_phase(
    "clip_cov",
    group_size=G,
    num_minibatches=2,
    num_epochs=2,
    micro_batch_size=3,
  )
  state = tiny.make_state(phase)
  used.clear()  # Of parameters.
  phase = dataclasses.replace(
    phase,
    waiting_groups=dynamic_sampling.Buffers(
      tiny.make_prompts(), replay=_Replay()
    ),
    old_groups=reservoir.Reservoir(5, 4, 1, G, 3, T),
    schedule=_Schedule(),
  )
  state = dataclasses.replace(
    state,
    waiting={"replay": {}},
    reservoir=phase.old_groups.enter(None),
    schedule=phase.schedule.enter(state.key, state.step),
  )
  leaves = [jnp.ones(3, jnp.bfloat16), jnp.ones(3, jnp.bfloat16)]
  for owner in ("policy", "critic", "reward"):
    rounding = optimizers._stochastically_rounded(optax.sgd(0.1), 0, owner)
    of_owner = rounding.init(leaves)
    for _ in range(2):
      _, of_owner = rounding.update(leaves, of_owner, leaves)
  advance = jax.jit(functools.partial(_of_a_step, phase=phase))
  for step in range(2):
    state = advance(state, tiny.make_prompts(first=4 * step))
  jax.effects_barrier()
  parents = set(used.pop("parents"))
  # An environment on the host begins as its twin in the graph.
  assert set(used.pop("turns.py, bits")) == set(used["keys_test.py, bits"])
  per_row = 2 * 4 * G  # In two steps.
  assert {user: len(set(keys)) for user, keys in used.items()} == {
    "drawing.py, gumbel": 2 * per_row * T,  # Of two turns.
    "mixing.py, uniform": 2 * per_row * T,
    "keys_test.py, bits": per_row,
    "hints.py, uniform": per_row,
    "surrogates.py, uniform": 2,
    "update.py, permutation": 4,  # Of each epoch.
    "dynamic_sampling.py, gumbel": 2,
    "dynamic_sampling.py, categorical": 2,
    "reservoir.py, uniform": 2,
    "reservoir.py, randint": 2,
    "prompts.py, gumbel": 3,
    "optimizers.py, bits": 12,  # Of three models with two leaves each.
  }
  owners = collections.defaultdict(set)
  for user, keys in used.items():
    for key in keys:
      owners[key].add(user)
  assert [users for users in owners.values() if len(users) > 1] == []
  # And no key is that of a draw and of other keys.
  assert not parents & owners.keys()
