"""Trains a policy on one environment; all seeds are one compiled program.

A rollout is an array [E, T] of E copies of the environment and T steps:

- horizon 128: T = 128, episodes end and begin inside a row.
- horizon 0: every copy plays one episode; T is the time limit, `mask` is True
  up to the end of the episode, and only these steps count.

Losses are those of `grpo_jax/ops`. Beside `ppo` nothing has a critic:

| baseline     | advantage of a step with the return-to-go G                   |
|--------------|---------------------------------------------------------------|
| `ppo`        | generalised advantage estimation                              |
| `none`       | G                                                             |
| `rstats`     | G − (m + s ε), ε Gaussian, m and s of all G of the batch      |
| `batch_mean` | G − m                                                         |
| `grpo`       | (G − m) / (s + 1e-8)                                          |
| `ema`        | G − EMA of m (0.9, bias-corrected, this batch included)       |

Readings of the protocol where the paper leaves a choice:

- The learning rate falls linearly to 0 over the number of iterations. With
  horizon 0 that number is unknown, and the paper's code takes the number of
  steps in its place: the rate stays all but constant. So it does here.
- Horizon 128 bootstraps: a critic's value stands for what follows the last
  step of a row and for what follows a time-out; after a termination there is
  nothing. Without a critic there is nothing to bootstrap with: G ends with the
  row, as it ends with an episode.
- Horizon 0 does not bootstrap: a time-out is an end like any other.
- `mean_of="episodes"`: m is the mean of the undiscounted sum of rewards of the
  episodes in the batch (or of their parts, with horizon 128), as in the first
  version of the paper's code; "steps", the default, is that of the second. s
  is the deviation over steps (ddof 0) in both.
- Time, budget and learning curves count environment steps of live copies. An
  iteration that begins below the budget is finished.
- Continuous actions use the same settings as discrete ones, entropy bonus
  included; the observation and reward wrappers are in `environments.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments.critics import environments, policies
from grpo_jax.ops import (
  aggregation,
  masked,
  ratios,
  returns,
  surrogates,
  values,
)
from grpo_jax.types import PyTree

BASELINES = ("ppo", "none", "rstats", "batch_mean", "grpo", "ema")
MEANS = ("steps", "episodes")
NUM_BINS = 50  # Of a learning curve, over the budget.

_LEARNING_RATE = 2.5e-4
_ADAM_EPS = 1e-5
_MAX_GRAD_NORM = 0.5
_EPOCHS = 4  # Each on the whole rollout.
_CLIP = 0.2
_ENTROPY_COEF = 0.01
_VALUE_COEF = 0.5
_LAMBDA = 0.95
_EMA = 0.9
_STD_EPS = 1e-8
# Steps whose gradient is taken at a time. Live steps come first, so that a
# batch of short episodes costs what it holds, and not the time limit.
_CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class Setting:
  """What one cell trains.

  Attributes:
    environment: One of `environments.NAMES`.
    baseline: One of `BASELINES`.
    gamma: Discount per step, in [0, 1].
    horizon: 128, or any number of steps > 0; 0 for whole episodes.
    num_envs: Copies of the environment: the size of the group.
    value_clip: Of the critic's loss, in units of the return; None for none.
    mean_of: One of `MEANS`.
    total_steps: Budget, environment steps.
  """

  environment: str
  baseline: str
  gamma: float = 0.99
  horizon: int = 128
  num_envs: int = 8
  value_clip: float | None = 0.2
  mean_of: str = "steps"
  total_steps: int = 1_100_000

  def __post_init__(self):
    for name, known in (("baseline", BASELINES), ("mean_of", MEANS)):
      if getattr(self, name) not in known:
        raise ValueError(
          f"training.Setting: {name}={getattr(self, name)!r} is unknown; choose"
          f" one of {list(known)}."
        )

  @property
  def has_critic(self) -> bool:
    return self.baseline == "ppo"

  @property
  def whole_episodes(self) -> bool:
    return self.horizon == 0


class Rollout(NamedTuple):
  """E copies over T slots; the entries where `mask` is False mean nothing."""

  observations: jax.Array  # [E, T, D]
  actions: jax.Array  # [E, T] int, or [E, T, A]
  final_observations: jax.Array  # [E, T, D], what each step led to
  rewards: jax.Array  # [E, T]
  scores: jax.Array  # [E, T], raw rewards of the episode up to each step
  terminated: jax.Array  # [E, T] bool
  truncated: jax.Array  # [E, T] bool
  mask: jax.Array  # [E, T] bool, the copy was live

  @property
  def ends(self) -> jax.Array:  # [E, T] bool
    return self.terminated | self.truncated


class Batch(NamedTuple):
  """What the loss reads; [E, T] each."""

  observations: jax.Array  # [E, T, D]
  actions: jax.Array  # [E, T] int, or [E, T, A]
  old_logp: jax.Array
  advantages: jax.Array
  old_values: jax.Array  # 0 without a critic
  returns: jax.Array  # targets of the critic
  mask: jax.Array  # bool


class State(NamedTuple):
  """One seed in the middle of training."""

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
  """What a cell leaves behind, of S seeds."""

  score_sums: jax.Array  # [S, NUM_BINS], over episodes that ended in the bin
  num_episodes: jax.Array  # [S, NUM_BINS]
  steps: jax.Array  # [S] int32


def mean_and_deviation(
  to_go: jax.Array,  # [E, T]
  rollout: Rollout,
  mean_of: str,
) -> tuple[jax.Array, jax.Array]:  # [], []
  """m and s of the table above."""
  mask = rollout.mask
  mean = masked.mean(to_go, mask)
  deviation = jnp.sqrt(masked.mean((to_go - mean) ** 2, mask))
  if mean_of == "episodes":
    # A row that does not close with an end has one more, unfinished part.
    last = jnp.maximum(mask.sum(axis=1) - 1, 0)  # [E]
    closed = jnp.take_along_axis(rollout.ends, last[:, None], axis=1).sum()
    num_parts = masked.sum(rollout.ends, mask) + mask.shape[0] - closed
    mean = masked.sum(rollout.rewards, mask) / num_parts
  return mean, deviation


def advantages(
  setting: Setting,
  rollout: Rollout,
  gamma: jax.Array | float,
  params: PyTree,
  ema: jax.Array,  # []
  iteration: jax.Array,  # [] int, from 0
  key: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Advantages, old values and targets of the critic [E, T], and the new EMA.

  Values and targets are zeros without a critic.
  """
  mask, ends = rollout.mask, rollout.ends
  if setting.has_critic:
    old_values = policies.value(params, rollout.observations)
    rewards, beyond = rollout.rewards, None
    if not setting.whole_episodes:
      following = policies.value(params, rollout.final_observations)
      rewards = rewards + gamma * masked.select(following, rollout.truncated)
      beyond = following[:, -1]
    found, targets = returns.generalized_advantages(
      rewards, old_values, mask, gamma, _LAMBDA, beyond, ends
    )
    return found, old_values, targets, ema
  to_go = returns.returns_to_go(rollout.rewards, mask, gamma, ends=ends)
  mean, deviation = mean_and_deviation(to_go, rollout, setting.mean_of)
  if setting.baseline == "ema":
    ema = _EMA * ema + (1 - _EMA) * mean
    mean = ema / (1 - _EMA ** (iteration + 1))
  baseline = 0.0 if setting.baseline == "none" else mean
  if setting.baseline == "rstats":
    baseline += deviation * jax.random.normal(key, to_go.shape)
  found = to_go - baseline
  if setting.baseline == "grpo":
    found = found / (deviation + _STD_EPS)
  nothing = jnp.zeros_like(to_go)
  return masked.select(found, mask), nothing, nothing, ema


def loss(setting: Setting, params: PyTree, batch: Batch) -> jax.Array:  # []
  """Clipped surrogate, entropy bonus and error of the critic, over live steps.

  The sum, to be divided by the number of live steps of the whole rollout.
  """
  mask = batch.mask
  # The *input* is masked: 0 · NaN in the backward pass would be NaN.
  observations, actions = (
    jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 2)), x, 0)
    for x in (batch.observations, batch.actions)
  )
  logp, entropy = policies.evaluate(params, observations, actions)
  ratio = ratios.token_ratio(logp, batch.old_logp, mask)
  gain = surrogates.clipped(ratio, batch.advantages, _CLIP, _CLIP)
  total = -gain - _ENTROPY_COEF * entropy
  if setting.has_critic:
    total += _VALUE_COEF * values.value_loss(
      policies.value(params, observations),
      batch.returns,
      batch.old_values,
      mask,
      setting.value_clip,
    )
  return aggregation.over_tokens(total, mask).total


def packed(batch: Batch) -> Batch:  # [E, T, ...] -> [1, N, ...]
  """The live steps, then what is not live, N a multiple of the chunk."""
  mask = batch.mask.reshape(-1)
  padding = -len(mask) % _CHUNK
  places = jnp.pad(jnp.argsort(~mask, stable=True), (0, padding))  # [N]
  packed = jax.tree.map(
    lambda x: x.reshape(-1, *x.shape[2:])[places][None], batch
  )
  return packed._replace(mask=(jnp.arange(len(places)) < mask.sum())[None])


def gradient(setting: Setting, params: PyTree, batch: Batch) -> PyTree:
  """Gradient of the mean loss over live steps of a packed batch."""

  def add(i, total):
    part = jax.tree.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, i * _CHUNK, _CHUNK, axis=1),
      batch,
    )
    found = jax.grad(functools.partial(loss, setting))(params, part)
    return jax.tree.map(jnp.add, total, found)

  num_live = batch.mask.sum()
  total = jax.lax.fori_loop(
    0, -(-num_live // _CHUNK), add, jax.tree.map(jnp.zeros_like, params)
  )
  return jax.tree.map(lambda x: x / jnp.maximum(num_live, 1), total)


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
  """One seed before training."""
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
  """One iteration of one seed, after its rollout."""
  found, old_values, targets, ema = advantages(
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
  live_first = packed(batch)
  optimizer = _optimizer(setting)

  def epoch(_, carry):
    params, optimizer_state = carry
    updates, optimizer_state = optimizer.update(
      gradient(setting, params, live_first), optimizer_state
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
  return jax.vmap(lambda key: policies.init(key, environment, has_critic))(keys)


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

  Settings that differ in gamma alone share what is compiled.
  """
  shared = dataclasses.replace(setting, gamma=0.0)
  compiled, params, keys = _compiled(shared, num_seeds)
  return lambda: compiled(jnp.float32(setting.gamma), params, keys)
