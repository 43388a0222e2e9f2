"""Trains a policy on one environment; all seeds are one compiled program.

An iteration plays a rollout and takes four steps of Adam on all of it. With
whole episodes the number of iterations is not known beforehand. So training is
a `while_loop` until every seed has used its budget; a seed that has used it
waits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.critics import environments, losses, policies
from experiments.critics.losses import Batch, Rollout
from experiments.critics.settings import Setting
from grpo_jax.ops import masked
from grpo_jax.types import PyTree

NUM_BINS = 50  # Of a learning curve, over the budget.

_LEARNING_RATE = 2.5e-4
_ADAM_EPS = 1e-5
_MAX_GRAD_NORM = 0.5
_EPOCHS = 4  # Each on the whole rollout.


class State(NamedTuple):
  """State of a seed in the middle of training."""

  params: PyTree
  optimizer: PyTree
  environments: environments.State  # [E, ...]
  key: jax.Array
  ema: jax.Array  # [], moving average of mean returns, not corrected
  iteration: jax.Array  # [] int32
  steps: jax.Array  # [] int32, of live copies
  score_sums: jax.Array  # [NUM_BINS], over episodes that ended in the bin
  num_episodes: jax.Array  # [NUM_BINS]


class Result(NamedTuple):
  """Results of a cell with S seeds."""

  score_sums: jax.Array  # [S, NUM_BINS], over episodes that ended in the bin
  num_episodes: jax.Array  # [S, NUM_BINS]
  steps: jax.Array  # [S] int32


def _optimizer(setting: Setting) -> optax.GradientTransformation:
  """Adam behind a clip of the global norm; the rate falls linearly."""
  per_iteration = setting.num_envs * setting.horizon or 1
  num_iterations = -(-setting.total_steps // per_iteration)

  def rate(count):
    return _LEARNING_RATE * (1 - (count // _EPOCHS) / num_iterations)

  return optax.chain(
    optax.clip_by_global_norm(_MAX_GRAD_NORM), optax.adam(rate, eps=_ADAM_EPS)
  )


def init(
  setting: Setting,
  environment: environments.Environment,
  params: PyTree,
  key: jax.Array,
) -> State:
  """State of a seed before training."""
  reset_key, key = jax.random.split(key)
  reset_keys = jax.random.split(reset_key, setting.num_envs)
  return State(
    params=params,
    optimizer=_optimizer(setting).init(params),
    environments=jax.vmap(environment.reset)(reset_keys),
    key=key,
    ema=jnp.zeros(()),
    iteration=jnp.zeros((), jnp.int32),
    steps=jnp.zeros((), jnp.int32),
    score_sums=jnp.zeros(NUM_BINS),
    num_episodes=jnp.zeros(NUM_BINS),
  )


def collect(
  setting: Setting,
  environment: environments.Environment,
  params: PyTree,  # [S, ...]
  states: environments.State,  # [S, E, ...]
  keys: jax.Array,  # [S] keys
  active: jax.Array,  # [S] bool
  gamma: jax.Array | float,
) -> tuple[environments.State, Rollout]:
  """Plays all copies of all seeds, until the last row or episode is complete.

  Returns:
    The environments, and the rollouts [S, E, T, ...].
  """
  length = environment.max_steps if setting.whole_episodes else setting.horizon

  def play(t, params, states, live, key):  # Of one seed.
    action_key, step_key = jax.random.split(jax.random.fold_in(key, t))
    actions = policies.sample(params, states.observation, action_key)
    step_keys = jax.random.split(step_key, setting.num_envs)
    new, step = jax.vmap(environment.step, in_axes=(0, 0, 0, None))(
      step_keys, states, actions, gamma
    )
    slot = Rollout(
      observations=states.observation,
      actions=actions,
      final_observations=step.final_observation,
      rewards=step.reward,
      scores=step.score,
      terminated=step.terminated,
      truncated=step.truncated,
      mask=live,
    )
    if not setting.whole_episodes:
      return new, live, slot
    # A copy that has ended waits at the start of its next episode.
    kept = jax.tree.map(
      lambda x, y: jnp.where(live.reshape(-1, *[1] * (x.ndim - 1)), x, y),
      new,
      states,
    )
    return kept, live & ~(step.terminated | step.truncated), slot

  play_seeds = jax.vmap(play, in_axes=(None, 0, 0, 0, 0))

  def body(carry):
    t, states, live, slots = carry
    states, live, slot = play_seeds(t, params, states, live, keys)
    slots = jax.tree.map(
      lambda xs, x: jax.lax.dynamic_update_index_in_dim(xs, x, t, 0),
      slots,
      slot,
    )
    return t + 1, states, live, slots

  live = jnp.broadcast_to(active[:, None], (len(active), setting.num_envs))
  shapes = jax.eval_shape(play_seeds, 0, params, states, live, keys)[2]
  slots = jax.tree.map(lambda x: jnp.zeros((length, *x.shape), x.dtype), shapes)
  _, states, _, slots = jax.lax.while_loop(
    lambda carry: (carry[0] < length) & carry[2].any(),
    body,
    (jnp.zeros((), jnp.int32), states, live, slots),
  )
  return states, jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), slots)


def _update(
  setting: Setting,
  gamma: jax.Array | float,
  key: jax.Array,
  state: State,
  rollout: Rollout,
) -> State:
  """Updates a seed after the rollout of an iteration."""
  found, old_values, targets, ema = losses.advantages(
    setting, rollout, gamma, state.params, state.ema, state.iteration, key
  )
  old_logp, _ = policies.evaluate(
    state.params, rollout.observations, rollout.actions
  )
  batch = Batch(
    observations=rollout.observations,
    actions=rollout.actions,
    old_logp=old_logp,
    advantages=found,
    old_values=old_values,
    returns=targets,
    mask=rollout.mask,
  )
  live_first = losses.packed(batch)
  optimizer = _optimizer(setting)

  def epoch(_, carry):
    params, optimizer_state = carry
    updates, optimizer_state = optimizer.update(
      losses.gradient(setting, params, live_first), optimizer_state
    )
    return optax.apply_updates(params, updates), optimizer_state

  params, optimizer_state = jax.lax.fori_loop(
    0, _EPOCHS, epoch, (state.params, state.optimizer)
  )
  steps = state.steps + rollout.mask.sum()
  ended = rollout.ends & rollout.mask
  share = (steps - 1) / setting.total_steps
  current = jnp.minimum((share * NUM_BINS).astype(jnp.int32), NUM_BINS - 1)
  return state._replace(
    params=params,
    optimizer=optimizer_state,
    ema=ema,
    iteration=state.iteration + 1,
    steps=steps,
    score_sums=state.score_sums.at[current].add(
      masked.sum(rollout.scores, ended)
    ),
    num_episodes=state.num_episodes.at[current].add(ended.sum()),
  )


@functools.partial(jax.jit, static_argnames=("setting", "environment"))
def _train(
  setting: Setting,
  environment: environments.Environment,
  gamma: jax.Array,  # []
  params: PyTree,  # [S, ...]
  keys: jax.Array,  # [S] keys
) -> Result:
  def is_active(state):
    return state.steps < setting.total_steps  # [S]

  def iterate(state):
    active = is_active(state)
    split = jax.vmap(functools.partial(jax.random.split, num=3))(state.key)
    state = state._replace(key=split[:, 0])
    states, rollouts = collect(
      setting,
      environment,
      state.params,
      state.environments,
      split[:, 1],
      active,
      gamma,
    )
    update = functools.partial(_update, setting, gamma)
    new = jax.vmap(update)(
      split[:, 2], state._replace(environments=states), rollouts
    )
    return jax.tree.map(
      lambda x, y: jnp.where(active.reshape(-1, *[1] * (x.ndim - 1)), x, y),
      new,
      state,
    )

  start = functools.partial(init, setting, environment)
  state = jax.vmap(start)(params, keys)
  state = jax.lax.while_loop(lambda s: is_active(s).any(), iterate, state)
  return Result(state.score_sums, state.num_episodes, state.steps)


# One object per name: `jit` compiles anew for another one.
_make = functools.cache(environments.make)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _initial_params(environment, has_critic, keys):  # [S] keys
  # One after another: two QR factorisations of batches wait for each other
  # forever, now and then, with jaxlib 0.10.2 on two cores.
  return jax.lax.map(
    lambda key: policies.init(key, environment, has_critic), keys
  )


@functools.cache
def _compiled(
  setting: Setting, num_seeds: int
) -> tuple[jax.stages.Compiled, PyTree, jax.Array]:
  """The program, and its arguments beside gamma."""
  environment = _make(setting.environment)
  keys = jax.vmap(jax.random.key)(jnp.arange(num_seeds))
  params_keys, keys = jnp.unstack(jax.vmap(jax.random.split)(keys), axis=1)
  # Apart: it takes a third of the time to compile, and few networks differ.
  params = _initial_params(environment, setting.has_critic, params_keys)
  program = _train.lower(setting, environment, jnp.float32(0), params, keys)
  return program.compile(), params, keys


def program(setting: Setting, num_seeds: int) -> Callable[[], Result]:
  """The training of a cell, compiled: seeds 0 to `num_seeds` − 1.

  Settings that differ in gamma alone share a compiled program.
  """
  shared = dataclasses.replace(setting, gamma=0.0)
  compiled, params, keys = _compiled(shared, num_seeds)
  return lambda: compiled(jnp.float32(setting.gamma), params, keys)
