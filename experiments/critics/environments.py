"""Copies of a gymnax environment, with the wrappers of the replication.

Discrete actions: observations and rewards are passed on as they are. Continuous
actions get the wrappers of CleanRL's `ppo_continuous_action`: the action is
clipped to its bounds, observations and rewards are normalised by running
statistics, and both are clipped to ±10. As in CleanRL, each copy keeps its own
statistics, from the first step of training on, and a reward is divided by the
deviation of the running discounted return. One thing is simpler than in
CleanRL: statistics of observations are updated once per step, with the
observation after the step, and not with the first observation of an episode.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

# Name -> whether an episode can end before its time limit.
NAMES = {
  "CartPole-v1": True,
  "Acrobot-v1": True,
  "MountainCarContinuous-v0": True,
  "Pendulum-v1": False,
}
_CLIP = 10.0  # Of normalised observations and rewards, in deviations.


class Moments(NamedTuple):
  """Running mean and variance of an array of any shape."""

  mean: jax.Array
  variance: jax.Array
  count: jax.Array  # []

  def add(self, x: jax.Array) -> Moments:
    """The moments with one more observation."""
    count = self.count + 1.0
    delta = x - self.mean
    spread = self.variance * self.count + delta**2 * self.count / count
    return Moments(self.mean + delta / count, spread / count, count)


def _moments(shape: tuple[int, ...]) -> Moments:
  return Moments(jnp.zeros(shape), jnp.ones(shape), jnp.array(1e-4))


class State(NamedTuple):
  """State of a copy of an environment, in the middle of an episode."""

  inner: Any  # Of gymnax.
  observation: jax.Array  # [D], as the policy sees it
  score: jax.Array  # [], sum of the raw rewards of the episode so far
  discounted: jax.Array  # [], running discounted return
  observation_moments: Moments  # of [D]
  return_moments: Moments  # of []


class Step(NamedTuple):
  """Result of one step of an environment."""

  # Reward that training uses.
  reward: jax.Array  # []
  # Sum of the raw rewards of the episode up to this step.
  score: jax.Array  # []
  # Observation after the step. The state's next observation is the same, or the
  # first observation of a new episode.
  final_observation: jax.Array  # [D]
  # The episode is over: nothing would follow.
  terminated: jax.Array  # [] bool
  # The time was up, and the state was not terminal.
  truncated: jax.Array  # [] bool


@dataclasses.dataclass(frozen=True, eq=False)
class Environment:
  """A gymnax environment with automatic reset; one copy, for `vmap`."""

  inner: Any  # The environment of gymnax.
  params: Any
  max_steps: int  # Time limit of an episode, steps.
  observation_size: int  # Size D of an observation.
  # Number of discrete actions, or of dimensions of a continuous one.
  num_actions: int
  continuous: bool  # Whether actions are real numbers.

  def reset(self, key: jax.Array) -> State:
    """The start of an episode, and of the statistics."""
    observation, inner = self.inner.reset(key, self.params)
    zero = jnp.zeros(())
    state = State(
      inner=inner,
      observation=observation,
      score=zero,
      discounted=zero,
      observation_moments=_moments((self.observation_size,)),
      return_moments=_moments(()),
    )
    return state._replace(observation=self._seen(state, observation))

  def step(
    self,
    key: jax.Array,
    state: State,
    action: jax.Array,  # [] int, or [A]
    gamma: jax.Array | float,
  ) -> tuple[State, Step]:
    """Takes a step; at the end of an episode, the state begins a new one.

    Raises:
      TypeError: gymnax answers otherwise than version 1.0 does.
    """
    if self.continuous:
      space = self.inner.action_space(self.params)
      action = jnp.clip(action, space.low, space.high)
    answer = self.inner.step(key, state.inner, action, self.params)
    if len(answer) != 6 or "final_observation" not in answer[-1]:
      raise TypeError(
        f"environments: a step of {self.inner.name} returned {len(answer)}"
        " values; needs (observation, state, reward, terminated,"
        " truncated, info) with info['final_observation'], as gymnax 1.0"
        " returns them. Install gymnax>=1.0.1."
      )
    observation, inner, reward, terminated, truncated, info = answer
    truncated = truncated & ~terminated
    done = terminated | truncated
    final = info["final_observation"]
    score = state.score + reward
    discounted = gamma * state.discounted + reward
    state = State(
      inner=inner,
      observation=observation,
      score=jnp.where(done, 0.0, score),
      discounted=jnp.where(done, 0.0, discounted),
      observation_moments=state.observation_moments.add(final),
      return_moments=state.return_moments.add(discounted),
    )
    if self.continuous:
      deviation = jnp.sqrt(state.return_moments.variance + 1e-8)
      reward = jnp.clip(reward / deviation, -_CLIP, _CLIP)
    step = Step(
      reward=reward,
      score=score,
      final_observation=self._seen(state, final),
      terminated=terminated,
      truncated=truncated,
    )
    return state._replace(observation=self._seen(state, observation)), step

  def _seen(self, state: State, observation: jax.Array) -> jax.Array:
    """Observation as the policy sees it."""
    if not self.continuous:
      return observation
    moments = state.observation_moments
    deviation = jnp.sqrt(moments.variance + 1e-8)
    return jnp.clip((observation - moments.mean) / deviation, -_CLIP, _CLIP)


def make(name: str) -> Environment:
  """Makes the environment of that name.

  Raises:
    ValueError: `name` is not one of `NAMES`.
    ImportError: gymnax is not installed.
  """
  if name not in NAMES:
    raise ValueError(
      f"environments: {name!r} is unknown; choose one of {list(NAMES)}."
    )
  try:
    import gymnax
  except ImportError as error:
    raise ImportError(
      f"environments: gymnax cannot be imported ({error}); run"
      " `pip install 'grpo_jax[rl]'`."
    ) from error
  inner, params = gymnax.make(name)
  (observation_size,) = inner.observation_space(params).shape
  actions = inner.action_space(params)
  continuous = not hasattr(actions, "n")
  return Environment(
    inner=inner,
    params=params,
    max_steps=int(params.max_steps_in_episode),
    observation_size=observation_size,
    num_actions=actions.shape[0] if continuous else int(actions.n),
    continuous=continuous,
  )
